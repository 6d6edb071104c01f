"""Drift of a network that only a kernel shows, an engine that loads in a full memory, a reboot in a change, and an undo without our file."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
from acceptance.commands import NETPLAN, NETWORK_PENDING
from acceptance.machines import RAILS
from vm.node_helpers import converged, site, task_result

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

APPLY = "Configure the rails"
EXPORT = "Export the fabric variables"
RAIL0, RAIL1 = RAILS


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    if not (vmlab.folder / "converged").exists() and not vmlab.pristine:
        vmlab.lab("reset")
    vmlab.pristine = False
    converged(vmlab)
    vmlab.docker_answers()
    return vmlab


def gid_index(lab: VmLab, node: int, hca: str, address: str) -> list[int]:
    """Return the indices of the RoCE v2 GIDs that hold an IPv4 address, read from sysfs."""
    gid = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*map(int, address.split(".")))
    port = f"/sys/class/infiniband/{hca}/ports/1"
    loop = f'for i in 0 1 2 3 4 5 6 7; do echo $i "$(cat {port}/gids/$i)" "$(cat {port}/gid_attrs/types/$i 2>/dev/null)"; done'
    return [int(line.split()[0]) for line in lab.on(node, loop).splitlines() if line.split()[1:] == [gid, "RoCE", "v2"]]


READER = """
import ctypes, mmap
held = bytearray(700 << 20)
for at in range(0, len(held), 4096): held[at] = 1
assert ctypes.CDLL(None).mlockall(1) == 0
with open("/var/tmp/weights", "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print(sum(mapped[at] for at in range(0, len(mapped), 4096)))
"""


def test_mapped_weights_and_a_full_memory_kill_no_process(lab: VmLab) -> None:
    """The other side of the guard: what an engine does when it loads must not look like thrashing."""
    lab.on(2, "dmesg -C; truncate -s 0 /var/tmp/weights; dd if=/dev/zero of=/var/tmp/weights bs=1M count=1800 status=none; sync", timeout=180)
    try:
        assert lab.on(2, f"python3 -c {shlex.quote(READER)}", timeout=180) == "0"
        assert lab.on(2, "dmesg | grep -c oom-killer || true") == "0"
    finally:
        lab.on(2, "rm -f /var/tmp/weights")


def test_a_gid_at_another_index_than_its_twin_is_not_given_as_one_index(lab: VmLab) -> None:
    """Another address takes the GID index of ours while ours is removed; ours gets the next index, and repair cannot restore the old one."""
    netdev, hca, network = RAIL0
    lab.on(
        1,
        f"ip addr del {network}.11/24 dev {netdev}; ip addr add 10.99.0.1/24 dev {netdev}; sleep 1; ip addr add {network}.11/24 brd + dev {netdev}; sleep 1",
    )
    assert gid_index(lab, 1, hca, f"{network}.11") == [2]
    run = site(lab, tags="roce", roce_bandwidth_test="never")
    assert run.rc == 0, run.stdout[-3000:]
    env = task_result(run, EXPORT, "vm-1")["ansible_facts"]["roce_env"]
    moved = gid_index(lab, 1, hca, f"{network}.11")
    other = gid_index(lab, 1, RAIL1[1], f"{RAIL1[2]}.11")
    assert len(moved) == len(other) == 1
    if moved == other:
        assert env["NCCL_IB_GID_INDEX"] == str(moved[0])
    else:
        assert "NCCL_IB_GID_INDEX" not in env
        assert (env["NCCL_IB_ADDR_FAMILY"], env["NCCL_IB_ROCE_VERSION_NUM"]) == ("AF_INET", "2")


@pytest.fixture(scope="module")
def drifted(lab: VmLab) -> Run:
    """One run over two drifts: a GID that could go back to its index on vm-1, an MTU that was lost on vm-2."""
    netdev, hca, network = RAIL0
    lab.on(
        1,
        f"ip addr del {network}.11/24 dev {netdev}; ip addr replace 10.99.0.1/24 dev {netdev}; sleep 1; "
        f"ip addr add {network}.11/24 brd + dev {netdev}; sleep 1; ip addr del 10.99.0.1/24 dev {netdev}; sleep 1",
    )
    assert gid_index(lab, 1, hca, f"{network}.11") == [2]
    lab.on(2, f"ip link set {RAIL1[0]} mtu 1500")
    run = site(lab, tags="roce")
    assert run.rc == 0, run.stdout[-3000:]
    return run


def test_moved_gid_returns_to_its_index(lab: VmLab, drifted: Run) -> None:
    netdev, hca, network = RAIL0
    assert task_result(drifted, APPLY, "vm-1")["actions"] == [f"remove and add {network}.11/24 on {netdev} for its GID (now: index 2)"]
    assert gid_index(lab, 1, hca, f"{network}.11") == [1]
    assert task_result(drifted, EXPORT, "vm-1")["ansible_facts"]["roce_env"]["NCCL_IB_GID_INDEX"] == "1"


def test_an_mtu_lost_on_one_side_is_found_and_given_back(lab: VmLab, drifted: Run) -> None:
    netdev, _hca, network = RAIL1
    result = task_result(drifted, APPLY, "vm-2")
    assert result["actions"] == [f"give {netdev} {network}.12/24 and MTU 9000 (now: {network}.12/24, MTU 1500)"]
    assert lab.rails(2) == lab.wanted_rails(2)
    lab.on(1, f"ping -q -I {netdev} -c 2 -i 0.2 -W 5 -M do -s 8972 {network}.12")


def test_a_change_outlives_a_restart_of_a_node_that_answers_and_the_next_run_converges(lab: VmLab) -> None:
    boot = lab.on(2, "cat /proc/sys/kernel/random/boot_id")
    lab.when_network_is_pending(2, f"until grep -q 8000 {NETPLAN}; do sleep 0.1; done; sync; systemctl reboot --force")
    run = site(lab, "--limit", "vm-2", tags="roce", roce_mtu=8000)
    assert run.rc == 0, run.stdout[-3000:]
    assert lab.on(2, "cat /proc/sys/kernel/random/boot_id") != boot
    assert "mtu 8000" in lab.on(2, f"ip link show {RAIL0[0]}")
    assert lab.try_on(2, f"ls -d {NETWORK_PENDING}").returncode != 0
    after = site(lab, tags="roce", roce_bandwidth_test="never")
    assert after.rc == 0, after.stdout[-3000:]
    assert {node: lab.rails(node) for node in lab.nodes} == {node: lab.wanted_rails(node) for node in lab.nodes}


def test_absent_takes_away_what_a_removed_file_has_left(lab: VmLab) -> None:
    """On the node under NetworkManager: its connections, made from our file, outlive it."""
    lab.on(1, f"rm {NETPLAN}; nmcli -g NAME connection | grep -q netplan-{RAIL0[0]}")
    run = site(lab, "--limit", "vm-1", tags="roce", roce_state="absent")
    assert run.rc == 0, run.stdout[-3000:]
    assert lab.rails(1) == {netdev: (1500, []) for netdev, _hca, _network in RAILS}
    assert lab.try_on(1, f"nmcli -g NAME connection | grep netplan-{RAIL0[0]}").returncode != 0
    after = site(lab, tags="roce", roce_bandwidth_test="never")
    assert after.rc == 0, after.stdout[-3000:]
    assert {node: lab.rails(node) for node in lab.nodes} == {node: lab.wanted_rails(node) for node in lab.nodes}
