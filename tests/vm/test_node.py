"""The roles on real kernels, from factory-fresh machines over a reboot: what they set is read from the kernel, never from the roles."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from vm.node_helpers import NODES, OWN_NETPLAN, RAILS, SYSCTLS, before, docker_answers, gid_index, probe, rail_facts, site, task_result, wanted_rails, words

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
EXPORT = "Export the fabric variables"
# A check run cannot know these: no address is on a rail yet, so no GID can be judged, no packet sent and nothing measured.
ONLY_FOR_REAL = ("Verify | Prove link", "Verify | Wait for RDMA", "Verify | Measure RDMA")


@pytest.fixture(scope="module")
def lab(fresh_vmlab: VmLab) -> VmLab:
    for name in ("before.json", "converged"):
        (fresh_vmlab.folder / name).unlink(missing_ok=True)
    before(fresh_vmlab)
    return fresh_vmlab


@pytest.fixture(scope="module")
def checked(lab: VmLab) -> Run:
    return site(lab, "--check", "--diff")


@pytest.fixture(scope="module")
def first(lab: VmLab, checked: Run) -> Run:
    run = site(lab, "--diff")
    assert run.rc == 0, run.stdout[-4000:]
    (lab.folder / "converged").touch()
    return run


@pytest.fixture(scope="module")
def rebooted(lab: VmLab, first: Run) -> VmLab:
    """Both machines after playbooks/reboot.yml, the worker before the head, with nothing applied since."""
    boots = {node: lab.on(node, BOOT_ID) for node in NODES}
    run = lab.play("playbooks/reboot.yml", "--tags", "reboot", variables={"reboot_all": True})
    assert run.rc == 0, run.stdout[-4000:]
    assert [host for host, _end in run.tasks("Reboot and wait")] == ["vm-2", "vm-1"]
    assert all(lab.on(node, BOOT_ID) != boots[node] for node in NODES)
    docker_answers(lab)
    return lab


def test_a_check_run_on_fresh_machines_ends_well_and_changes_nothing(lab: VmLab, checked: Run) -> None:
    assert checked.rc == 0, checked.stdout[-4000:]
    for node in NODES:
        output = lab.on(node, f"ls {OWN_NETPLAN} /etc/sysctl.d/60-gb10-cluster.conf /var/lib/gb10-cluster 2>&1; cat /proc/sys/vm/dirty_ratio")
        assert output.count("No such file") == 3
        assert output.splitlines()[-1] == "20"
        assert {mtu for mtu, _addresses in rail_facts(lab, node).values()} == {1500}


def test_run_changes_what_the_check_run_reported(checked: Run, first: Run) -> None:
    real = {(host, task) for host, task in first.changed if not any(name in task for name in ONLY_FOR_REAL)}
    assert checked.changed == real
    assert real, "a first run changes something"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/sysctl.d/60-gb10-cluster.conf",
        "/etc/tmpfiles.d/60-gb10-cluster.conf",
        OWN_NETPLAN,
        "/etc/docker/daemon.json",
        "/etc/udev/rules.d/61-gb10-readahead.rules",
    ],
)
def test_the_check_run_showed_the_file_as_it_was_written(lab: VmLab, checked: Run, first: Run, path: str) -> None:
    written = lab.on(2, f"cat {path}")
    shown = json.dumps([e["event_data"].get("res", {}).get("diff") for e in checked.events if e["event_data"].get("host") == "vm-2"])
    assert path in shown
    assert all(json.dumps(line.strip())[1:-1] in shown for line in written.splitlines() if line.strip())


@pytest.mark.long  # the run after the reboot, below, changes nothing either
def test_a_second_run_changes_nothing(lab: VmLab, first: Run) -> None:
    run = site(lab)
    assert run.rc == 0, run.stdout[-4000:]
    assert run.changed == set()


@pytest.mark.parametrize("node", NODES)
def test_the_sysctls_live_on_after_the_reboot(rebooted: VmLab, node: int) -> None:
    keys = [*SYSCTLS, "vm.min_free_kbytes"]
    live = dict(zip(keys, rebooted.on(node, f"sysctl -n {' '.join(keys)}").splitlines(), strict=True))
    floor = int(live.pop("vm.min_free_kbytes"))
    assert live == SYSCTLS
    total = int(rebooted.on(node, "awk '/MemTotal/ {print $2}' /proc/meminfo"))
    assert floor == pytest.approx(total * 0.06, rel=0.02)
    assert rebooted.on(node, "cat /sys/kernel/mm/lru_gen/min_ttl_ms") == "100"


def test_no_swap_comes_back_from_fstab_nor_from_a_unit(rebooted: VmLab) -> None:
    for node in NODES:
        assert rebooted.on(node, "tail -n +2 /proc/swaps") == ""
    # vm-2 has a swap unit of its own besides the line in fstab: it is still there, enabled, and does not start
    assert rebooted.try_on(2, "systemctl is-active 'swap\\x2dof\\x2dmine.swap'").stdout.strip() == "inactive"
    assert rebooted.on(2, "ls /swap-of-mine /swap.img").split() == ["/swap-of-mine", "/swap.img"]


@pytest.mark.parametrize("node", NODES)
def test_read_ahead_is_the_steady_one_by_the_udev_rule(rebooted: VmLab, node: int) -> None:
    rebooted.on(node, "echo 4 > /sys/block/nvme0n1/queue/read_ahead_kb; udevadm trigger --action=add --settle /sys/block/nvme0n1")
    assert rebooted.on(node, "cat /sys/block/nvme0n1/queue/read_ahead_kb") == "128"


@pytest.mark.parametrize("node", NODES, ids=["NetworkManager", "networkd"])
def test_both_rails_have_address_and_mtu_after_the_reboot(rebooted: VmLab, node: int) -> None:
    assert rail_facts(rebooted, node) == wanted_rails(node)
    output = probe(
        rebooted,
        node,
        {
            "ping": "; ".join(f"ping -q -I {netdev} -c 2 -i 0.2 -W 5 -M do -s 8972 {net}.1{3 - node} >/dev/null && echo ok" for _c, netdev, _h, net in RAILS),
            "mode": f"stat -c '%a %U' {OWN_NETPLAN}",
            "ipv6": "; ".join(f"sysctl -n net.ipv6.conf.{netdev}.disable_ipv6" for _c, netdev, _h, _n in RAILS),
            "arp": "; ".join(f"sysctl -n net.ipv4.conf.{netdev}.arp_ignore" for _c, netdev, _h, _n in RAILS),
            "route": "ip -j route show default",
            "left": "ls /var/lib/gb10-cluster/roce",
        },
    )
    assert output["ping"].split() == ["ok", "ok"]
    assert output["mode"] == "600 root"
    assert output["ipv6"].split() == ["1", "1"]
    assert output["arp"].split() == ["1", "1"]
    assert [route["dev"] for route in json.loads(output["route"])] == ["enP7s7"]
    assert not {"pending", "restoring", "restored.json"} & set(output["left"].split())


@pytest.mark.parametrize("node", NODES)
def test_a_container_has_unlimited_memlock_without_asking(rebooted: VmLab, node: int) -> None:
    output = rebooted.on(node, "docker run --rm --network none --device /dev/infiniband gb10-lab/probe sh -c 'ulimit -l; ls /dev/infiniband'", timeout=180)
    assert output.splitlines()[0] == "unlimited"
    assert {"uverbs0", "uverbs1"} <= set(output.splitlines()[1:])


@pytest.mark.parametrize("rail", RAILS, ids=[rail[0] for rail in RAILS])
def test_rdma_writes_flow_by_the_gid_index_that_was_resolved(rebooted: VmLab, first: Run, rail: tuple[str, str, str, str]) -> None:
    _cable, _netdev, hca, network = rail
    env = [task_result(first, EXPORT, host)["ansible_facts"]["roce_env"] for host in rebooted.hosts]
    index = env[0]["NCCL_IB_GID_INDEX"]
    for node in NODES:
        assert env[node - 1]["NCCL_IB_HCA"].lstrip("=").replace(":1", "").split(",") == [name for _c, _n, name, _w in RAILS]
        assert env[node - 1]["NCCL_IB_GID_INDEX"] == index
        # the kernel's own table, after a reboot, agrees with what was resolved before it
        assert gid_index(rebooted, node, hca, f"{network}.1{node}") == [int(index)]
    command = f"ib_write_bw -d {hca} -x {index} -m 4096 -n 200 -F"
    rebooted.on(2, f"systemctl stop bw-server 2>/dev/null; systemd-run --quiet --unit bw-server --collect -p RuntimeMaxSec=60 {command}")
    time.sleep(3)
    table = rebooted.on(1, f"{command} --report_gbits {network}.12")
    row = [line.split() for line in table.splitlines() if line.split()[:2] == ["65536", "200"]]
    assert row, table
    assert float(row[0][3]) > 0


def test_a_run_after_the_reboot_changes_nothing(rebooted: VmLab) -> None:
    run = site(rebooted)
    assert run.rc == 0, run.stdout[-4000:]
    assert run.changed == set()
    assert "put its network back" not in words(run.stdout)
