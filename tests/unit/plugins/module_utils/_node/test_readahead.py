"""Read-ahead: the udev rule, the restore command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import readahead
from ansible_collections.gb10.cluster.plugins.module_utils._node.readahead import Readahead
from unit.fixtures.host.tree import Tree


def test_the_restore_command_works_without_a_device_that_was_removed(tmp_path: Path) -> None:
    line = readahead.restore_command({"nvme0n1": 128, "gone": 128}, 60)[-1].replace("/sys/block", str(tmp_path))
    (tmp_path / "nvme0n1/queue").mkdir(parents=True)
    subprocess.run(["/bin/sh", "-c", line], check=True, stderr=subprocess.DEVNULL)
    assert (tmp_path / "nvme0n1/queue/read_ahead_kb").read_text() == "128\n"


# --- Read-ahead of a node: live values, the udev rule, and the transient units of the load phase.

PARAMS: dict[str, Any] = {
    "mounts": ["/srv/models"], "load_kb": 8, "steady_kb": 256, "guard": True,
    "guard_floor_gib": 8.0,
}  # fmt: skip


class Machine(Tree):
    """Two disks, one of them under a mapper that holds the model store; the transient units that run are in `running`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.running: dict[str, list[str]] = {}
        self.refuse = ""
        self.udev = ""  # what udev knows of nvme1n1
        self.put("/proc/meminfo", "MemTotal: 127600000 kB\nMemFree: 119000000 kB\n")
        self.mounted = "xfs    /dev/mapper/vg-m"  # below /srv, where the model store will be
        (root / "srv").mkdir()
        for name, kb in (("nvme0n1", 128), ("nvme1n1", 128), ("dm-0", 512)):
            self.put(f"/sys/block/{name}/queue/read_ahead_kb", f"{kb}\n")
        self.put("/sys/block/nvme1n1/nvme1n1p1/partition", "1\n")

    def live(self) -> dict[str, int]:
        return {name: int((self.root / f"sys/block/{name}/queue/read_ahead_kb").read_text()) for name in ("dm-0", "nvme0n1", "nvme1n1")}

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        if self.refuse and argv[0] == self.refuse:
            return 1, "", "Failed to start transient unit: permission denied"
        if argv[0] == "systemd-run":
            unit = next(word[7:] for word in argv if word.startswith("--unit="))
            suffix = "timer" if any(word.startswith("--on-active=") for word in argv) else "service"
            self.running[f"{unit}.{suffix}"] = list(argv)
            return 0, "", ""
        if argv[:2] == ["systemctl", "is-active"]:
            return (0, "active\n", "") if argv[2] in self.running else (3, "inactive\n", "")
        if argv[:2] == ["systemctl", "stop"]:
            self.running.pop(argv[2], None)
            return 0, "", ""
        if argv[0] == "findmnt":
            return 0, f"{self.mounted}\n" if argv[-1] == "/srv" else "ext4 /dev/nvme0n1p2\n", ""
        if argv[0] == "udevadm":
            return (0, self.udev, "") if argv[-1] == "--path=/sys/block/nvme1n1" else (1, "", "Unknown device")
        if argv[0] == "lsblk":
            return (0, "dm-0\nnvme1n1p1\nnvme1n1\n", "") if argv[-1] == "/dev/mapper/vg-m" else (32, "", "lsblk: not a block device")
        return 127, "", "command not found"

    def readahead(self, check: bool = False, state: str = "present", **params: Any) -> dict[str, Any]:
        return Readahead(Editor(Node(str(self.root), self.run), check)).run(state, {**PARAMS, **params})

    def phase(self, phase: str, seconds: int = 0) -> list[str]:
        return Readahead(Editor(Node(str(self.root), self.run), False), "/usr/bin/python3").phase(phase, seconds)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_sets_repeats_nothing_and_restores_everything(machine: Machine) -> None:
    before = machine.live()
    predicted = machine.readahead(check=True)
    assert (machine.live(), machine.get(readahead.RULE)) == (before, "")
    result = machine.readahead()
    assert (predicted["changes"], predicted["diff"]) == (result["changes"], result["diff"])
    assert machine.live() == {"dm-0": 256, "nvme0n1": 128, "nvme1n1": 256}
    assert 'KERNEL=="dm-0"' in machine.get(readahead.RULE)
    assert machine.readahead()["changed"] is False
    assert machine.readahead(check=True, state="absent")["changes"] == machine.readahead(state="absent")["changes"]
    assert machine.live() == before
    assert not (machine.root / readahead.RULE[1:]).exists()
    assert not (machine.root / "var/lib/gb10-cluster").exists()
    assert machine.readahead(state="absent")["changed"] is False


@pytest.mark.parametrize(
    ("known", "match"),
    [
        ("DEVNAME=/dev/nvme1n1\nID_WWN=eui.0025\nID_SERIAL=Samsung_S6-1_1\n", 'ENV{ID_SERIAL}=="Samsung_S6-1_1"'),
        ("ID_WWN=eui.0025\nID_SERIAL=\n", 'ENV{ID_WWN}=="eui.0025"'),
        ("DM_NAME=vg-m\nDM_UUID=LVM-aB1\n", 'ENV{DM_UUID}=="LVM-aB1"'),
        ('ID_SERIAL=x", RUN+="/bin/sh\n', 'KERNEL=="nvme1n1"'),
        ("ID_SERIAL=*\nID_WWN=a|b\n", 'KERNEL=="nvme1n1"'),
        ("DEVNAME=/dev/nvme1n1\n", 'KERNEL=="nvme1n1"'),
    ],
    ids=["serial", "wwn", "mapper", "quotes", "pattern", "none"],
)
def test_the_rule_matches_a_disk_by_what_stays_at_a_boot(machine: Machine, known: str, match: str) -> None:
    machine.udev = known
    machine.readahead()
    header, *lines = machine.get(readahead.RULE).splitlines()
    assert header.startswith("# Managed by gb10.cluster")
    assert [line.split(", ", 3)[3] for line in lines] == [f'{each}, ATTR{{queue/read_ahead_kb}}="256"' for each in ('KERNEL=="dm-0"', match)]


def test_load_and_steady(machine: Machine) -> None:
    machine.readahead()
    assert machine.phase("load") == []
    assert machine.live() == {"dm-0": 8, "nvme0n1": 128, "nvme1n1": 8}
    assert set(machine.running) == {"gb10-readahead-restore.timer", "gb10-page-cache-guard.service"}
    line = machine.running["gb10-readahead-restore.timer"][-1]
    assert line == "; ".join(f"echo 256 > /sys/block/{name}/queue/read_ahead_kb" for name in ("dm-0", "nvme1n1")) + "; true"
    machine.readahead()
    assert machine.live() == {"dm-0": 8, "nvme0n1": 128, "nvme1n1": 8}
    machine.phase("steady")
    assert (machine.live(), machine.running) == ({"dm-0": 256, "nvme0n1": 128, "nvme1n1": 256}, {})
    assert machine.readahead()["changed"] is False


@pytest.mark.parametrize(("boot", "seconds"), [(9000, 9000), (60, 2700), (0, 2700)], ids=["longer", "shorter", "not given"])
def test_the_load_phase_lasts_as_long_as_a_boot_may_take(machine: Machine, boot: int, seconds: int) -> None:
    machine.readahead()
    machine.phase("load", boot)
    assert f"--on-active={seconds}" in machine.running["gb10-readahead-restore.timer"]
    assert {f"--seconds={seconds}", f"--property=RuntimeMaxSec={seconds + 30}"} <= set(machine.running["gb10-page-cache-guard.service"])


def test_the_guard_runs_from_the_program_that_starts_it(machine: Machine, tmp_path: Path) -> None:
    machine.readahead()
    machine.phase("load")
    command = machine.running["gb10-page-cache-guard.service"]
    path = next(word.removeprefix("--setenv=PYTHONPATH=") for word in command if word.startswith("--setenv="))
    module = command[command.index("-m") + 1]
    shown = subprocess.run([sys.executable, "-m", module, "--help"], env={"PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Keep MemFree above a floor" in shown.stdout


def test_the_timer_starts_before_anything_changes(machine: Machine) -> None:
    machine.readahead()
    machine.refuse = "systemd-run"
    with pytest.raises(HostError, match=r"systemd-run failed \(rc 1: Failed to start transient unit"):
        machine.phase("load")
    assert machine.live() == {"dm-0": 256, "nvme0n1": 128, "nvme1n1": 256}


def test_without_the_role_a_phase_does_nothing(machine: Machine) -> None:
    assert "the readahead role has not run on this node" in machine.phase("load")[0]
    assert machine.live()["nvme0n1"] == 128


def test_absent_ends_a_load_phase(machine: Machine) -> None:
    machine.readahead()
    machine.phase("load")
    machine.readahead(state="absent")
    assert (machine.running, machine.live()) == ({}, {"dm-0": 512, "nvme0n1": 128, "nvme1n1": 128})


def test_a_small_node_gets_a_small_floor(machine: Machine) -> None:
    machine.put("/proc/meminfo", "MemTotal: 1536000 kB\nMemFree: 900000 kB\n")
    machine.readahead()
    assert machine.phase("load")
    assert "--floor-kb=96000" in machine.running["gb10-page-cache-guard.service"]


def test_a_container_is_not_changed(machine: Machine) -> None:
    machine.put("/run/systemd/container", "docker\n")
    for state in ("present", "absent"):
        result = machine.readahead(state=state)
        assert (result["changed"], "this node is a container (docker)" in result["shown"][0]) == (False, True)
    assert "this node is a container (docker)" in machine.phase("load")[0]
    assert machine.live() == {"dm-0": 512, "nvme0n1": 128, "nvme1n1": 128}


def test_a_device_that_is_not_selected_any_more_is_restored(machine: Machine) -> None:
    machine.readahead()
    machine.readahead(mounts=[])
    assert machine.live() == {"dm-0": 512, "nvme0n1": 128, "nvme1n1": 128}
    assert (machine.get(readahead.RULE), machine.readahead(mounts=[])["changed"]) == ("", False)


def test_a_store_without_a_disk_is_noted_and_has_the_guard_alone(machine: Machine) -> None:
    machine.mounted = "nfs4 nas:/root"
    result = machine.readahead()
    assert (result["changed"], "/srv/models is on nfs4 (nas:/root), which does not" in result["shown"][0]) == (False, True)
    machine.phase("load")
    assert "gb10-page-cache-guard.service" in machine.running
    assert machine.live() == {"dm-0": 512, "nvme0n1": 128, "nvme1n1": 128}
