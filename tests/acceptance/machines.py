"""An owner of two emulated machines with kernels of their own (lab/vm): what is on them is read from the kernel, never from a role."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from acceptance import commands
from acceptance.owner import REPO, Owner, Running

VMLAB = (sys.executable, str(REPO / "lab/vm/vmlab.py"))
#: The rails: interface, HCA and network of each.
RAILS = (("enp1s0f0np0", "rocep1s0f0", "192.168.200"), ("enP2p1s0f0np0", "roceP2p1s0f0", "192.168.201"))
MANAGEMENT = "enP7s7"
FILES = "/etc/netplan /etc/udev /etc/docker /etc/security /etc/sysctl.d /etc/systemd /etc/tmpfiles.d /etc/NetworkManager /etc/fstab"
#: Kernel values that change by themselves, at any time or at each boot.
COUNTERS = re.compile(
    r"^(fs\.(dentry-state|inode-nr|inode-state|file-nr|aio-nr|quota\.|epoll\.max_user_watches)|kernel\.(random\.|ns_last_pid|pty\.nr|threads-max)"
    r"|net\.netfilter\.nf_conntrack_count|user\.max_|vm\.(stat|user_reserve|admin_reserve)|net\.ipv4\.(tcp_mem|udp_mem)|dev\.cdrom|kernel\.core_modes"
    r"|net\.ipv[46]\.route\.|net\.ipv6\.conf\.[^.]+\.stable_secret|net\.ipv[46]\.(conf|neigh)\.veth)"
)
HOST_ROLES = commands.tags(*commands.HOST_ROLES)


class Machines(Owner):
    """An owner of the machines of the VM lab."""

    hosts = ("vm-1", "vm-2")

    def __init__(self, folder: Path) -> None:
        self.folder, self.places = folder, commands.Places()
        self.inventory = REPO / "inventories/vm-lab"
        self.pristine = False

    def begin(self, what: str, *arguments: str, **values: Any) -> Running:
        """Do something from another shell; receipts and evidence are kept in the folder of the session."""
        return super().begin(what, *arguments, receipts=str(self.folder / "receipts"), evidence=str(self.folder / "evidence"), **values)

    @staticmethod
    def lab(*words: str, timeout: float = 900) -> str:
        """Run a command of the VM lab: reset, reboot, cut, heal."""
        done = subprocess.run([*VMLAB, *words], capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"vmlab.py {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    @staticmethod
    def on(node: int, line: str, check: bool = True, timeout: float = 120) -> str:
        """Run a shell line as root on a node and return what it printed, stripped."""
        words = [*VMLAB, "ssh", str(node), "sudo", "sh", "-c", shlex.quote(line)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0 or not check, f"vm-{node}: {line}: {done.stderr}"
        return done.stdout.strip()

    def until(self, node: int, line: str, seconds: float = 240) -> str:
        """Ask a node until a line succeeds; a node that does not answer is asked again."""
        end = time.monotonic() + seconds
        while True:
            words = [*VMLAB, "ssh", str(node), "sudo", "sh", "-c", shlex.quote(line)]
            try:
                done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
                if done.returncode == 0:
                    return done.stdout.strip()
            except subprocess.TimeoutExpired:
                pass
            assert time.monotonic() < end, f"vm-{node}: `{line}` did not succeed within {seconds:.0f} s"
            time.sleep(2)

    def docker_answers(self) -> None:
        """Wait until Docker has started; it is the last of a boot, and sets kernel values of its own."""
        for node in self.nodes:
            self.until(node, "docker info >/dev/null 2>&1", 300)

    def rails(self, node: int) -> dict[str, tuple[int, list[str]]]:
        """Return MTU and IPv4 addresses of each rail as the kernel has them."""
        links = {link["ifname"]: link for link in json.loads(self.on(node, "ip -j addr"))}
        return {
            netdev: (links[netdev]["mtu"], [f"{each['local']}/{each['prefixlen']}" for each in links[netdev]["addr_info"] if each["family"] == "inet"])
            for netdev, _hca, _network in RAILS
        }

    @staticmethod
    def wanted_rails(node: int) -> dict[str, tuple[int, list[str]]]:
        """Return what the inventory asks of the rails of a node."""
        return {netdev: (9000, [f"{network}.1{node}/24"]) for netdev, _hca, network in RAILS}

    def probe(self, node: int, lines: dict[str, str]) -> dict[str, str]:
        """Read many things in one call."""
        script = "; ".join(f"echo '@@@ {name}'; {{ {line}; }} 2>&1 || true" for name, line in lines.items())
        parts = self.on(node, script, timeout=240).split("@@@ ")[1:]
        return {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}

    def state(self, node: int) -> dict[str, Any]:
        """Return what an undo has to give back: kernel values, files with mode and content, links of units, rails and swap."""
        found = self.probe(
            node,
            {
                "sysctl": "sysctl -a 2>/dev/null",
                "files": f"find {FILES} -type f -exec stat -c '%n %a %U:%G' {{}} + | sort; find {FILES} -type f -exec sha256sum {{}} + | sort -k2",
                "links": "find /etc/systemd -type l -printf '%p %l\\n' | sort",
                "folders": "find /etc/netplan /etc/systemd/system /etc/docker /etc/udev -type d | sort",
                "rails": "; ".join(f"ip -o -4 addr show {netdev} | awk '{{print $2, $4}}'; cat /sys/class/net/{netdev}/mtu" for netdev, _hca, _net in RAILS),
                "swap": "swapon --show=NAME,TYPE --noheadings | sort",
                "thrashing guard": "cat /sys/kernel/mm/lru_gen/min_ttl_ms",
                "read-ahead": "cat /sys/block/nvme0n1/queue/read_ahead_kb",
                "locked memory": "systemctl show docker -p LimitMEMLOCK --value",
                "units": "systemctl list-unit-files --no-legend '*gb10*' | cat",
            },
        )
        values = dict(line.split(" = ", 1) for line in found.pop("sysctl").splitlines() if " = " in line)
        return {**{key: value for key, value in values.items() if not COUNTERS.match(key)}, **{key: text.splitlines() for key, text in found.items()}}

    def when_network_is_pending(self, node: int, line: str) -> None:
        """Let the node itself do something as soon as a network change waits for its confirmation, as a fault would."""
        loop = f"n=0; until [ -d {commands.NETWORK_PENDING} ] || [ $n -gt 900 ]; do sleep 0.3; n=$((n+1)); done; {line}"
        self.on(node, f"systemctl stop fault.service 2>/dev/null; systemd-run --quiet --collect --unit fault sh -c {shlex.quote(loop)}")
