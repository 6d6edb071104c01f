"""The roles on real kernels, from factory-fresh machines over a reboot to their undo."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from acceptance import commands
from acceptance.machines import HOST_ROLES, MANAGEMENT, RAILS, VMLAB, Machines
from acceptance.owner import REPO, Screen

SYSCTLS = {
    "vm.watermark_boost_factor": "0",
    "vm.vfs_cache_pressure": "200",
    "vm.dirty_ratio": "5",
    "vm.dirty_background_ratio": "2",
    "vm.overcommit_memory": "0",
    "vm.min_free_kbytes": str(yaml.safe_load((REPO / "inventories/vm-lab/group_vars/gb10.yml").read_text(encoding="utf-8"))["sysctl_min_free_kbytes"]),
}
UNDONE = ("sysctl", "readahead", "docker", "roce")
#: A check run cannot know these: no address is on a rail yet, so no packet is sent and nothing is measured.
ONLY_FOR_REAL = ("Prove link", "Wait for RDMA", "Measure RDMA")
#: Brings swap back at every boot, and stands in no fstab: a swap unit of the owner's own.
SWAP_UNIT = (
    "fallocate -l 32M /swap-of-mine || dd if=/dev/zero of=/swap-of-mine bs=1M count=32 status=none; chmod 600 /swap-of-mine; "
    "mkswap -q /swap-of-mine; systemd-escape -p --suffix=swap /swap-of-mine > /tmp/unit; "
    'printf "[Unit]\\nDescription=mine\\n[Swap]\\nWhat=/swap-of-mine\\n[Install]\\nWantedBy=swap.target\\n" > "/etc/systemd/system/$(cat /tmp/unit)"; '
    'systemctl daemon-reload; systemctl enable --now -q "$(cat /tmp/unit)"; grep -q swap-of-mine /proc/swaps'
)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two machines fresh from the factory, of which one has a swap unit of its own; off again if they were off before."""
    was_up = subprocess.run([*VMLAB, "status"], capture_output=True, check=False).returncode == 0
    subprocess.run([*VMLAB, "up"], check=True)
    owner = Machines(tmp_path_factory.mktemp("machines"))
    if was_up:
        owner.lab("reset")
    owner.docker_answers()
    owner.on(2, SWAP_UNIT, timeout=240)
    yield owner
    if not was_up:
        owner.lab("down")


@pytest.fixture(scope="module")
def was(machines: Machines) -> dict[int, dict[str, Any]]:
    """The state before the first run."""
    return {node: machines.state(node) for node in machines.nodes}


@pytest.fixture(scope="module")
def checked(machines: Machines, was: dict[int, dict[str, Any]]) -> Screen:
    """A check run on the fresh machines."""
    return machines.run("bring up", *HOST_ROLES, "--check", "--diff", timeout=900)


@pytest.fixture(scope="module")
def first(machines: Machines, was: dict[int, dict[str, Any]]) -> Screen:
    """The first run."""
    return machines.run("bring up", *HOST_ROLES, timeout=900).passed()


def kernel_has_all(machines: Machines) -> None:
    """Assert what the kernel of each machine shows after a run: memory, swap, rails."""
    for node in machines.nodes:
        pings = (f"ping -q -I {netdev} -c 2 -i 0.2 -W 5 -M do -s 8972 {network}.1{3 - node} >/dev/null && echo ok" for netdev, _hca, network in RAILS)
        found = machines.probe(
            node,
            {
                "sysctl": f"sysctl -n {' '.join(SYSCTLS)}",
                "swap": "tail -n +2 /proc/swaps",
                "guard": "cat /sys/kernel/mm/lru_gen/min_ttl_ms",
                "ping": "; ".join(pings),
                "mode": f"stat -c '%a %U' {commands.NETPLAN}",
                "route": "ip -j route show default",
                "arp": "; ".join(f"sysctl -n net.ipv4.conf.{netdev}.arp_ignore" for netdev, _hca, _network in RAILS),
            },
        )
        assert dict(zip(SYSCTLS, found["sysctl"].splitlines(), strict=True)) == SYSCTLS
        assert (found["swap"], found["guard"]) == ("", "100")
        assert machines.rails(node) == machines.wanted_rails(node)
        assert (found["ping"].split(), found["arp"].split(), found["mode"]) == (["ok", "ok"], ["1", "1"], "600 root")
        assert [route["dev"] for route in json.loads(found["route"])] == [MANAGEMENT]


@pytest.mark.long
def test_check_mode_predicts_the_first_run_on_real_kernels(machines: Machines, was: dict[int, dict[str, Any]], checked: Screen, request: Any) -> None:
    checked.passed()
    for node in machines.nodes:
        assert machines.state(node)["files"] == was[node]["files"]
        assert machines.on(node, f"ls {commands.NETPLAN} {commands.SYSCTL} {commands.STATE} 2>/dev/null; cat /proc/sys/vm/dirty_ratio", check=False) == "20"
        assert {mtu for mtu, _addresses in machines.rails(node).values()} == {1500}
    whole = machines.run("bring up", *HOST_ROLES, "--check", "--diff", "-v", timeout=900)  # without -v, a difference is cut after its first lines
    run: Screen = request.getfixturevalue("first")
    assert checked.changes == {change for change in run.changes if not any(name in change for name in ONLY_FOR_REAL)}
    for path in (commands.NETPLAN, commands.SYSCTL):
        for line in machines.on(2, f"cat {path}").splitlines():
            assert line.strip() in whole.text, f"{path} is not in the difference of the check run"


@pytest.mark.quick
def test_the_kernel_has_memory_floor_rails_and_no_swap_after_a_run(machines: Machines, first: Screen) -> None:
    kernel_has_all(machines)
    for node in machines.nodes:
        limits = "docker run --rm --network none --device /dev/infiniband gb10-lab/probe sh -c 'ulimit -l; ls /dev/infiniband'"
        shown = machines.on(node, limits, timeout=240).splitlines()
        assert shown[0] == "unlimited"
        assert {"uverbs0", "uverbs1"} <= set(shown[1:])
        machines.on(node, "echo 4 > /sys/block/nvme0n1/queue/read_ahead_kb; udevadm trigger --action=add --settle /sys/block/nvme0n1")
        assert machines.on(node, "cat /sys/block/nvme0n1/queue/read_ahead_kb") == "128"


@pytest.mark.quick
def test_a_second_run_changes_nothing_on_real_kernels(machines: Machines, first: Screen) -> None:
    assert machines.run("bring up", *HOST_ROLES, timeout=900).passed().changes == set()


@pytest.mark.quick
def test_a_file_of_another_tool_for_a_rail_stops_the_run_before_a_change(machines: Machines, first: Screen) -> None:
    path, own = "/etc/netplan/90-mine.yaml", f"sha256sum {commands.NETPLAN}; stat -c %y {commands.NETPLAN}"
    text = f"network:\\n  version: 2\\n  ethernets:\\n    {RAILS[0][0]}:\\n      addresses: [192.168.200.99/24]\\n"
    machines.on(2, f"printf '{text}' >{path}; chmod 600 {path}")
    try:
        before, values = machines.on(2, own), {"rail_mtu": 8000, "roles_of_whole_groups": []}
        run = machines.run("bring up", *commands.tags("roce"), "--limit", "vm-2", timeout=900, **values)
        run.failed(path, "192.168.200.99/24", "Nothing was changed")
        assert machines.on(2, own) == before
        assert machines.rails(2) == machines.wanted_rails(2)
    finally:
        machines.on(2, f"rm -f {path}")


@pytest.mark.quick
def test_the_interface_that_carries_ssh_is_never_a_rail(machines: Machines, first: Screen) -> None:
    values: dict[str, Any] = {"rail_interfaces": [MANAGEMENT, RAILS[1][0]], "roles_of_whole_groups": []}
    machines.run("bring up", *commands.tags("roce"), "--limit", "vm-1", timeout=900, **values).failed(MANAGEMENT, "default route|SSH session")
    assert "10.0.2.11/24" in machines.on(1, f"ip -br -4 addr show {MANAGEMENT}")
    assert machines.rails(1) == machines.wanted_rails(1)


@pytest.mark.long
def test_a_pulled_cable_is_called_a_cable_and_its_rails_come_back(machines: Machines, first: Screen) -> None:
    for cable in ("rail0", "rail1"):
        machines.lab("cut", cable)
    try:
        machines.run("bring up", *commands.tags("roce"), "--limit", "vm-1", timeout=900, roles_of_whole_groups=[]).failed("cable")
        doctor = machines.run("doctor", timeout=900).failed("cable", *machines.hosts)
        assert "ssh " in doctor.text
    finally:
        for cable in ("rail0", "rail1"):
            machines.lab("heal", cable)
    for node in machines.nodes:
        for netdev, _hca, network in RAILS:
            machines.until(node, f"ping -q -I {netdev} -c 1 -W 3 -M do -s 8972 {network}.1{3 - node}")
        assert machines.rails(node) == machines.wanted_rails(node)


@pytest.mark.quick
def test_a_network_change_that_cuts_ssh_is_taken_back_by_the_node(machines: Machines, first: Screen) -> None:
    # Again and again for 12 of the 20 s: applying the change may give the address back.
    machines.when_network_is_pending(2, f"for i in $(seq 40); do ip addr flush dev {MANAGEMENT}; sleep 0.3; done")
    values: dict[str, Any] = {"rail_mtu": 8000, "confirm_seconds": 20, "roles_of_whole_groups": []}
    run = machines.run("bring up", *commands.tags("roce"), "--limit", "vm-2", timeout=900, **values)
    run.failed("put its network back", "not confirmed within 20 s")
    assert machines.rails(2) == machines.wanted_rails(2)
    assert "mtu: 9000" in machines.on(2, f"cat {commands.NETPLAN}")
    assert machines.on(2, f"ip -br addr show {MANAGEMENT}; ip route show default").count(MANAGEMENT) == 2
    assert machines.on(2, f"ls -d {commands.NETWORK_PENDING} 2>/dev/null || true") == ""


@pytest.mark.long
def test_a_process_that_eats_the_memory_is_killed_while_ssh_answers(machines: Machines, first: Screen) -> None:
    hog = "docker rm -f hog 2>/dev/null; docker run -d --name hog --network none gb10-lab/probe sh -c 'sleep 4; tail /dev/zero' >/dev/null"
    machines.on(2, hog, timeout=240)
    slowest, end, killed = 0.0, time.monotonic() + 300, "0"
    try:
        while killed == "0":
            asked = time.monotonic()
            swaps, killed = machines.on(2, "tail -n +2 /proc/swaps | wc -l; dmesg | grep -c 'Killed process.*(tail)' || true").split()
            slowest = max(slowest, time.monotonic() - asked)
            assert swaps == "0"
            assert time.monotonic() < end, "the hog still runs"
        assert slowest < 60, f"SSH took {slowest:.0f} s to answer"
        machines.until(2, "docker inspect -f '{{.State.Running}} {{.State.ExitCode}}' hog | grep -qx 'false 137'")
        assert machines.on(2, "systemctl is-active ssh docker").split() == ["active", "active"]
    finally:
        machines.on(2, "docker rm -f hog", timeout=240)


@pytest.mark.long
def test_reboots_come_in_order_and_every_setting_outlives_them(machines: Machines, first: Screen) -> None:
    boot = "cat /proc/sys/kernel/random/boot_id"
    boots = {node: machines.on(node, boot) for node in machines.nodes}
    run = machines.run("reboot", "--tags", "reboot", timeout=900, reboot_all=True).passed()
    started = {node: float(machines.on(node, 'date -d "$(uptime -s)" +%s')) for node in machines.nodes}
    assert started[2] < started[1], "the worker is rebooted before the head"
    assert run.seconds > 0
    assert all(machines.on(node, boot) != boots[node] for node in machines.nodes)
    machines.docker_answers()
    kernel_has_all(machines)
    assert machines.on(2, "systemctl is-active 'swap\\x2dof\\x2dmine.swap' || true") == "inactive"
    assert machines.run("bring up", *HOST_ROLES, timeout=900).passed().changes == set()


@pytest.mark.long
def test_an_undo_gives_back_every_kernel_value_and_file(machines: Machines, was: dict[int, dict[str, Any]], first: Screen) -> None:
    machines.undo(*UNDONE, timeout=900).passed()
    machines.docker_answers()
    for node in machines.nodes:
        now = machines.state(node)
        assert {key: (was[node].get(key), now.get(key)) for key in was[node].keys() | now.keys() if was[node].get(key) != now.get(key)} == {}
        left = machines.on(
            node, "find / -xdev \\( -path /proc -o -path /sys \\) -prune -o -iname '*gb10-cluster*' -print -o -iname '*gb10-roce*' -print"
        ).split()
        assert set(left) <= {commands.STATE}
