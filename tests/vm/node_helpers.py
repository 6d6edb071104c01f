"""What the tests of the roles on VMs share: one converged state, and reading the kernel without any role."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

NODES = (1, 2)
SSH_FAILED = 255  # exit code of ssh itself
TAGS = "preflight,sysctl,readahead,docker,roce"
RAILS = (("rail0", "enp1s0f0np0", "rocep1s0f0", "192.168.200"), ("rail1", "enP2p1s0f0np0", "roceP2p1s0f0", "192.168.201"))
OWN_NETPLAN = "/etc/netplan/60-gb10-cluster.yaml"
PENDING = "/var/lib/gb10-cluster/roce/pending"
FILES = "/etc/netplan /etc/udev /etc/docker /etc/security /etc/sysctl.d /etc/systemd /etc/tmpfiles.d /etc/NetworkManager /etc/fstab"
# Figures that the kernel changes by itself, at any time or at each boot.
COUNTERS = re.compile(
    r"^(fs\.(dentry-state|inode-nr|inode-state|file-nr|aio-nr|quota\.|epoll\.max_user_watches)|kernel\.(random\.|ns_last_pid|pty\.nr|threads-max)"
    r"|net\.netfilter\.nf_conntrack_count|user\.max_|vm\.(stat|user_reserve|admin_reserve)|net\.ipv4\.(tcp_mem|udp_mem)|dev\.cdrom|kernel\.core_modes"
    r"|net\.ipv[46]\.route\.|net\.ipv6\.conf\.[^.]+\.stable_secret|net\.ipv[46]\.(conf|neigh)\.veth)"
)


def probe(lab: VmLab, node: int, lines: dict[str, str]) -> dict[str, str]:
    """Read many things in one SSH call: {name: shell line} to {name: what it printed}."""
    script = "; ".join(f"echo '@@@ {name}'; {{ {line}; }} 2>&1 || true" for name, line in lines.items())
    parts = lab.on(node, script).split("@@@ ")[1:]
    return {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}


def docker_answers(lab: VmLab, *nodes: int) -> None:
    """Wait until Docker has started; it is the last of a boot, and sets kernel values of its own. Until then sshd can close a connection."""
    line = "for i in $(seq 60); do docker info >/dev/null 2>&1 && exit 0; sleep 2; done; exit 1"
    for node in nodes or NODES:
        end = time.monotonic() + 300
        while (done := lab.try_on(node, line, timeout=300)).returncode == SSH_FAILED and time.monotonic() < end:
            time.sleep(2)
        assert done.returncode == 0, f"Docker does not start on node {node}: {done.stderr.strip()}"


def state(lab: VmLab, node: int) -> dict[str, Any]:
    """Return what `absent` has to give back: kernel values, files with mode and content, links of units, rails and swap."""
    output = probe(
        lab,
        node,
        {
            "sysctl": "sysctl -a 2>/dev/null",
            "files": f"find {FILES} -type f -exec stat -c '%n %a %U:%G' {{}} + | sort; find {FILES} -type f -exec sha256sum {{}} + | sort -k2",
            "links": "find /etc/systemd -type l -printf '%p %l\\n' | sort",
            "folders": "find /etc/netplan /etc/systemd/system /etc/docker /etc/udev -type d | sort",
            "rails": "; ".join(f"ip -o -4 addr show {netdev} | awk '{{print $2, $4}}'; cat /sys/class/net/{netdev}/mtu" for _c, netdev, _h, _n in RAILS),
            "swap": "swapon --show=NAME,TYPE --noheadings | sort",
            "thrash": "cat /sys/kernel/mm/lru_gen/min_ttl_ms",
            "readahead": "cat /sys/block/nvme0n1/queue/read_ahead_kb",
            "memlock": "systemctl show docker -p LimitMEMLOCK --value",
            "units": "systemctl list-unit-files --no-legend '*gb10*' | cat",
        },
    )
    values = dict(line.split(" = ", 1) for line in output.pop("sysctl").splitlines() if " = " in line)
    return {"sysctl": {key: value for key, value in values.items() if not COUNTERS.match(key)}, **{key: text.splitlines() for key, text in output.items()}}


def site(lab: VmLab, *arguments: str, tags: str = TAGS, **variables: Any) -> Run:
    """Run site.yml for some roles, of one node too: site.yml refuses `--limit` to a part of a group for the role roce."""
    if "--limit" in arguments:
        variables["inventory_check_group_stages"] = []
    return lab.play("playbooks/site.yml", "--tags", tags, *arguments, variables=variables)


def converged(lab: VmLab) -> None:
    """See that the roles have run on these machines once in this session."""
    mark = lab.folder / "converged"
    if not mark.exists():
        run = site(lab)
        assert run.rc == 0, run.stdout[-4000:]
        mark.touch()


def task_result(run: Run, task: str, host: str) -> dict[str, Any]:
    """Return a task's result on a host, failed or not."""
    kinds = ("runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped")
    found = [e["event_data"] for e in run.events if e["event"] in kinds]
    found = [d for d in found if d["host"] == host and task in d["task"]]
    assert found, f"{task} did not run on {host}:\n{run.stdout[-3000:]}"
    return dict(found[-1].get("res") or {})


def rail_facts(lab: VmLab, node: int) -> dict[str, tuple[int, list[str]]]:
    """Return {netdev: (MTU, IPv4 addresses with prefix)} as the kernel has it."""
    links = {link["ifname"]: link for link in json.loads(lab.on(node, "ip -j addr"))}
    return {
        netdev: (links[netdev]["mtu"], [f"{a['local']}/{a['prefixlen']}" for a in links[netdev]["addr_info"] if a["family"] == "inet"])
        for _c, netdev, _h, _n in RAILS
    }


def wanted_rails(node: int) -> dict[str, tuple[int, list[str]]]:
    """Return what the roles give the rails of a node."""
    return {netdev: (9000, [f"{network}.1{node}/24"]) for _c, netdev, _h, network in RAILS}


def gid_index(lab: VmLab, node: int, hca: str, address: str) -> list[int]:
    """Return the indices of the RoCE v2 GIDs that hold an IPv4 address, read from sysfs."""
    gid = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*map(int, address.split(".")))
    port = f"/sys/class/infiniband/{hca}/ports/1"
    loop = f'for i in 0 1 2 3 4 5 6 7; do echo $i "$(cat {port}/gids/$i)" "$(cat {port}/gid_attrs/types/$i 2>/dev/null)"; done'
    return [int(line.split()[0]) for line in lab.on(node, loop).splitlines() if line.split()[1:] == [gid, "RoCE", "v2"]]


def when_pending(lab: VmLab, node: int, shell: str) -> None:
    """Let the node itself do something as soon as a network change waits for its confirmation, as a fault would: unasked and without a controller."""
    line = f"n=0; until [ -d {PENDING} ] || [ $n -gt 900 ]; do sleep 0.3; n=$((n+1)); done; {shell}"
    lab.on(node, f"systemctl stop fault.service 2>/dev/null; systemd-run --quiet --collect --unit fault sh -c {shlex.quote(line)}")


def until(lab: VmLab, node: int, shell: str, seconds: float = 240) -> str:
    """Ask a node until a line succeeds; a node that does not answer is asked again."""
    end = time.monotonic() + seconds
    while True:
        try:
            done = lab.try_on(node, shell, timeout=30)
            if done.returncode == 0:
                return done.stdout.strip()
        except subprocess.TimeoutExpired:
            pass
        assert time.monotonic() < end, f"vm-{node}: `{shell}` did not succeed within {seconds:.0f} s"
        time.sleep(2)
