"""What goes wrong on real machines, one fault at a time: the sentence that the user reads, and the state that the machine is left in."""

from __future__ import annotations

import json
import re
import shlex
import time
from typing import TYPE_CHECKING

import pytest
from browser import Browser
from vm.node_helpers import (
    NODES,
    OWN_NETPLAN,
    PENDING,
    RAILS,
    before,
    converged,
    docker_answers,
    gid_index,
    rail_facts,
    site,
    state,
    task_result,
    until,
    wanted_rails,
    when_pending,
    words,
)

if TYPE_CHECKING:
    from pathlib import Path

    from playbook import Run
    from vm.conftest import VmLab

APPLY = "Configure the rails"
EXPORT = "Export the fabric variables"
RAIL0, RAIL1 = RAILS


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    if not (vmlab.folder / "converged").exists() and not vmlab.pristine:
        vmlab.reset()
    vmlab.pristine = False
    converged(vmlab)
    docker_answers(vmlab)
    return vmlab


def refused(run: Run, *parts: str) -> None:
    """Assert that the run failed with each of these parts in its messages."""
    assert run.rc != 0, run.stdout[-3000:]
    output = words(" ".join(message for _host, _task, message in run.failures))
    assert [part for part in parts if part not in output] == [], output


# --- refused before anything is changed -----------------------------------------------------------------------------------------


def test_conflicting_file_of_another_tool_stops_the_play_before_any_change(lab: VmLab) -> None:
    text = "network:\\n  version: 2\\n  ethernets:\\n    enp1s0f0np0:\\n      addresses: [192.168.200.99/24]\\n"
    lab.on(2, f"printf '{text}' > /etc/netplan/90-mine.yaml; chmod 600 /etc/netplan/90-mine.yaml")
    try:
        own = lab.on(2, f"sha256sum {OWN_NETPLAN}; ls -la --time-style=full-iso {OWN_NETPLAN}")
        run = site(lab, "--limit", "vm-2", tags="roce", roce_mtu=8000)
        refused(run, "/etc/netplan/90-mine.yaml", "192.168.200.99/24", "Nothing was changed", "roce_foreign_policy")
        assert lab.on(2, f"sha256sum {OWN_NETPLAN}; ls -la --time-style=full-iso {OWN_NETPLAN}") == own
        assert rail_facts(lab, 2) == wanted_rails(2)
        assert lab.try_on(2, f"test -e {PENDING}").returncode != 0
    finally:
        lab.on(2, "rm -f /etc/netplan/90-mine.yaml")


def test_a_value_in_a_later_sysctl_file_is_reported_by_file_and_line(lab: VmLab) -> None:
    lab.on(1, "printf '# mine\\nvm.dirty_ratio = 40\\n' > /etc/sysctl.d/99-mine.conf")
    try:
        run = site(lab, "--limit", "vm-1", tags="sysctl")
        refused(run, "/etc/sysctl.d/99-mine.conf line 2 sets vm.dirty_ratio to 40", "sysctl_dirty_ratio")
        assert lab.on(1, "cat /proc/sys/vm/dirty_ratio; cat /etc/sysctl.d/99-mine.conf").splitlines() == ["5", "# mine", "vm.dirty_ratio = 40"]
    finally:
        lab.on(1, "rm -f /etc/sysctl.d/99-mine.conf")


@pytest.mark.long
def test_interfaces_that_do_not_exist_are_named(lab: VmLab) -> None:
    run = site(lab, "--limit", "vm-1", tags="roce", roce_interfaces=["enp9s0f0np0", "enP2p1s0f0np0"])
    refused(run, "enp9s0f0np0")
    assert rail_facts(lab, 1) == wanted_rails(1)


def test_the_interface_of_the_session_is_never_a_rail(lab: VmLab) -> None:
    run = site(lab, "--limit", "vm-1", tags="roce", roce_interfaces=["enP7s7", "enP2p1s0f0np0"])
    refused(run, "enP7s7", "default route")
    assert "10.0.2.11/24" in lab.on(1, "ip -br -4 addr show enP7s7")
    assert rail_facts(lab, 1) == wanted_rails(1)


def test_a_pulled_cable_is_called_a_cable(lab: VmLab, tmp_path: Path) -> None:
    lab.cut("rail0")
    lab.cut("rail1")
    try:
        run = site(lab, "--limit", "vm-1", tags="roce")
        refused(run, "cable")
        assert lab.on(1, f"test -e {PENDING} || cat {OWN_NETPLAN}").count("addresses") == 2
        doctor = lab.play("playbooks/doctor.yml", variables={"output": "json"})
        assert (doctor.rc, doctor.changed) == (2, set()), doctor.stdout[-3000:]
        report = json.loads(next(line for line in doctor.stdout.splitlines() if line.startswith("{")))
        cables = [each for each in report["findings"] if each["id"] == "cable"]
        assert {host for each in cables for host in each["where"]} == set(lab.hosts)
        assert {each["severity"] for each in cables} == {"error"}
        assert all(each["command"].startswith("ssh ") for each in cables)
        assert "kernel" in report["passed"] or any(each["area"] == "kernel" for each in report["findings"]), "these nodes have a kernel of their own"
        reported = lab.play("playbooks/report.yml")
        assert (reported.rc, reported.changed) == (0, set()), reported.stdout[-3000:]
        page = (lab.folder / "receipts/pair1/report.html").read_text(encoding="utf-8")
        assert Browser(tmp_path).open(page) == ([], []), "no console message, no request"
        rails = re.search(r'<section id="rails">.*?</section>', page, re.DOTALL)
        assert rails is not None
        for rank, host in enumerate(lab.hosts):
            shown = " ".join(re.findall(rf">(rank {rank} on {host}.*?)(?:</p>|</tr>)", rails[0], re.DOTALL))
            assert [netdev for netdev in lab.netdevs if netdev not in shown] == [], rails[0]
            assert "cable" in shown, rails[0]
        assert "<td>up</td>" not in rails[0], rails[0]
        assert "was not read" not in page
    finally:
        lab.heal("rail0")
        lab.heal("rail1")
    for node in NODES:
        for _cable, netdev, _hca, network in RAILS:
            until(lab, node, f"ping -q -I {netdev} -c 1 -W 3 -M do -s 8972 {network}.1{3 - node}")
        assert rail_facts(lab, node) == wanted_rails(node)


def test_docker_is_not_restarted_under_a_serving_container(lab: VmLab) -> None:
    container = "serving-of-pair1"
    lab.on(1, f"docker run -d --name {container} --label gb10.cluster.group=pair1 --network none gb10-lab/probe sleep 3600", timeout=180)
    watch = f"docker inspect -f '{{{{.State.StartedAt}}}} {{{{.State.Running}}}}' {container}; systemctl show docker -p MainPID --value"
    try:
        running = lab.on(1, watch)
        assert "true" in running
        run = site(lab, "--limit", "vm-1", tags="docker", docker_stack=33554432)
        assert run.rc == 0, run.stdout[-3000:]
        assert task_result(run, "Export whether a restart is due", "vm-1")["ansible_facts"]["docker_restart_required"] is False
        assert lab.on(1, watch) == running
        assert "33554432" in lab.on(1, "cat /etc/docker/daemon.json")
    finally:
        lab.on(1, f"docker rm -f {container}", timeout=180)
    back = site(lab, "--limit", "vm-1", tags="docker")
    assert back.rc == 0, back.stdout[-3000:]
    assert task_result(back, "Export whether a restart is due", "vm-1")["ansible_facts"]["docker_restart_required"] is False
    assert "33554432" not in lab.on(1, "cat /etc/docker/daemon.json")


# --- drift, found and put right -------------------------------------------------------------------------------------------------


def test_a_memory_hog_is_killed_while_ssh_answers(lab: VmLab) -> None:
    lab.on(2, "docker rm -f hog 2>/dev/null; docker run -d --name hog --network none gb10-lab/probe sh -c 'sleep 4; tail /dev/zero' >/dev/null", timeout=180)
    slowest, end = 0.0, time.monotonic() + 300
    try:
        while True:
            asked = time.monotonic()
            swaps, killed = lab.on(2, "tail -n +2 /proc/swaps | wc -l; dmesg | grep -c 'Killed process.*(tail)' || true", timeout=60).split()
            slowest = max(slowest, time.monotonic() - asked)
            assert swaps == "0", "no swap all the while"
            if killed != "0":
                break
            assert time.monotonic() < end, "the hog still runs"
        assert slowest < 20, f"SSH took {slowest:.0f} s to answer"
        until(lab, 2, "docker inspect -f '{{.State.Running}} {{.State.ExitCode}}' hog | grep -qx 'false 137'")
        assert lab.on(2, "systemctl is-active ssh docker").split() == ["active", "active"]
    finally:
        lab.on(2, "docker rm -f hog", timeout=180)


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


@pytest.mark.long  # without a kernel: tests/unit/plugins/module_utils/_fabric
def test_a_gid_at_another_index_than_its_twin_is_not_given_as_one_index(lab: VmLab) -> None:
    """Another address takes the GID index of ours while ours is removed; ours gets the next index, and repair cannot restore the old one."""
    _cable, netdev, hca, network = RAIL0
    lab.on(
        1,
        f"ip addr del {network}.11/24 dev {netdev}; ip addr add 10.99.0.1/24 dev {netdev}; sleep 1; ip addr add {network}.11/24 brd + dev {netdev}; sleep 1",
    )
    assert gid_index(lab, 1, hca, f"{network}.11") == [2]
    run = site(lab, tags="roce", roce_bandwidth_test="never")
    assert run.rc == 0, run.stdout[-3000:]
    env = task_result(run, EXPORT, "vm-1")["ansible_facts"]["roce_env"]
    moved = gid_index(lab, 1, hca, f"{network}.11")
    other = gid_index(lab, 1, RAIL1[2], f"{RAIL1[3]}.11")
    assert len(moved) == len(other) == 1
    if moved == other:
        assert env["NCCL_IB_GID_INDEX"] == str(moved[0])
    else:
        assert "NCCL_IB_GID_INDEX" not in env
        assert (env["NCCL_IB_ADDR_FAMILY"], env["NCCL_IB_ROCE_VERSION_NUM"]) == ("AF_INET", "2")


@pytest.fixture(scope="module")
def drifted(lab: VmLab) -> Run:
    """One run over two drifts: a GID that could go back to its index on vm-1, an MTU that was lost on vm-2."""
    _cable, netdev, hca, network = RAIL0
    lab.on(
        1,
        f"ip addr del {network}.11/24 dev {netdev}; ip addr replace 10.99.0.1/24 dev {netdev}; sleep 1; "
        f"ip addr add {network}.11/24 brd + dev {netdev}; sleep 1; ip addr del 10.99.0.1/24 dev {netdev}; sleep 1",
    )
    assert gid_index(lab, 1, hca, f"{network}.11") == [2]
    lab.on(2, f"ip link set {RAIL1[1]} mtu 1500")
    run = site(lab, tags="roce")
    assert run.rc == 0, run.stdout[-3000:]
    return run


def test_moved_gid_returns_to_its_index(lab: VmLab, drifted: Run) -> None:
    _cable, netdev, hca, network = RAIL0
    result = task_result(drifted, "Verify | Prove link", "vm-1")
    assert [(item["interface"], item["before"], item["after"]) for item in result["repaired"]] == [(netdev, 2, 1)]
    assert gid_index(lab, 1, hca, f"{network}.11") == [1]
    assert task_result(drifted, EXPORT, "vm-1")["ansible_facts"]["roce_env"]["NCCL_IB_GID_INDEX"] == "1"


def test_an_mtu_lost_on_one_side_is_found_and_given_back(lab: VmLab, drifted: Run) -> None:
    _cable, netdev, _hca, network = RAIL1
    result = task_result(drifted, APPLY, "vm-2")
    assert result["actions"] == [f"give {netdev} {network}.12/24 and MTU 9000 (now: {network}.12/24, MTU 1500)"]
    assert rail_facts(lab, 2) == wanted_rails(2)
    lab.on(1, f"ping -q -I {netdev} -c 2 -i 0.2 -W 5 -M do -s 8972 {network}.12")


# --- the way back ---------------------------------------------------------------------------------------------------------------


def test_a_change_that_cuts_the_management_path_comes_back_by_itself(lab: VmLab) -> None:
    # Again and again for 12 of the 20 s: applying the change may give the address back.
    when_pending(lab, 2, "cut -d. -f1 /proc/uptime > /run/cut-at; for i in $(seq 40); do ip addr flush dev enP7s7; sleep 0.3; done")
    run = site(lab, "--limit", "vm-2", tags="roce", roce_mtu=8000, roce_confirm_seconds=20)
    refused(run, "this node put its network back as it was before", f"write {OWN_NETPLAN}", "was not confirmed within 20 s")
    assert rail_facts(lab, 2) == wanted_rails(2)
    assert "mtu: 9000" in lab.on(2, f"cat {OWN_NETPLAN}")
    assert lab.on(2, "ip -br addr show enP7s7; ip route show default").count("enP7s7") == 2
    assert lab.try_on(2, f"test -e {PENDING}").returncode != 0
    cut, back = (int(text) for text in lab.on(2, "cat /run/cut-at; cut -d. -f1 /proc/uptime").split())
    assert back > cut


@pytest.mark.long  # of make test, the change above is not confirmed either
def test_a_controller_that_dies_before_the_confirmation_leaves_the_old_network(lab: VmLab) -> None:
    run = site_killed(lab)
    assert run.rc != 0
    for node in NODES:
        until(lab, node, "test -e /var/lib/gb10-cluster/roce/restored.json")
        assert rail_facts(lab, node) == wanted_rails(node)
        assert "mtu: 9000" in lab.on(node, f"cat {OWN_NETPLAN}")
        assert lab.try_on(node, "systemctl list-timers --all | grep gb10-roce-restore").returncode != 0
    after = site(lab, tags="roce", roce_bandwidth_test="never")
    assert after.rc == 0, after.stdout[-3000:]
    output = words(after.stdout)
    assert output.count("this node put its network back as it was before") >= 1
    assert "was not confirmed within 25 s" in output
    assert after.changed == set()


def site_killed(lab: VmLab) -> Run:
    """Run a change of the fabric and end the controller between the change and its confirmation."""
    return lab.play(
        "playbooks/site.yml",
        "--tags",
        "roce",
        variables={"roce_mtu": 8000, "roce_confirm_seconds": 25},
        dies_at="Reconnect to the node",
    )


def test_node_restart_during_the_run_is_reported_and_the_next_run_converges(lab: VmLab) -> None:
    boot = lab.on(2, "cat /proc/sys/kernel/random/boot_id")
    when_pending(lab, 2, f"until grep -q 8000 {OWN_NETPLAN}; do sleep 0.1; done; sync; systemctl reboot --force")
    run = site(lab, "--limit", "vm-2", tags="roce", roce_mtu=8000)
    refused(run, "this node put its network back as it was before", "the node restarted before the change was confirmed")
    assert lab.on(2, "cat /proc/sys/kernel/random/boot_id") != boot
    assert rail_facts(lab, 2) == wanted_rails(2)
    after = site(lab, tags="roce", roce_bandwidth_test="never")
    assert after.rc == 0, after.stdout[-3000:]
    assert {node: rail_facts(lab, node) for node in NODES} == {node: wanted_rails(node) for node in NODES}
    assert lab.try_on(2, "ls /etc/systemd/system/gb10-roce-restore-boot.service").returncode != 0


@pytest.mark.long
def test_absent_takes_away_what_a_removed_file_has_left(lab: VmLab) -> None:
    """On the node under NetworkManager: its connections, made from our file, outlive it."""
    lab.on(1, f"rm {OWN_NETPLAN}; nmcli -g NAME connection | grep -q netplan-{RAIL0[1]}")
    run = site(lab, "--limit", "vm-1", tags="roce", roce_state="absent")
    assert run.rc == 0, run.stdout[-3000:]
    assert state(lab, 1)["rails"] == before(lab)[1]["rails"]
    assert lab.try_on(1, f"nmcli -g NAME connection | grep netplan-{RAIL0[1]}").returncode != 0
    after = site(lab, tags="roce", roce_bandwidth_test="never")
    assert after.rc == 0, after.stdout[-3000:]
    assert {node: rail_facts(lab, node) for node in NODES} == {node: wanted_rails(node) for node in NODES}
