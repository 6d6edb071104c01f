"""Read-ahead of a node: live values, the udev rule, and the transient units of the load phase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import readahead as plan
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead import ReadaheadError
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead_node import Readahead
from unit.fixtures.host.tree import Tree

PARAMS: dict[str, Any] = {
    "state": "present",
    "phase": None,
    "classes": ["nvme"],
    "mounts": ["/srv/models"],
    "devices": [],
    "load_kb": 8,
    "steady_kb": 256,
    "restore_after": 2700,
    "guard": True,
    "guard_floor_gib": 8.0,
    "guard_interval": 1.0,
}


class Machine(Tree):
    """Two disks, one of them under a mapper that holds the model store; the transient units that run are in `running`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.running: dict[str, list[str]] = {}
        self.commands: list[str] = []
        self.refuse = ""
        self.put("/proc/meminfo", "MemTotal: 127600000 kB\nMemFree: 119000000 kB\n")
        self.put("/proc/self/mountinfo", "22 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n31 22 252:0 / /srv/models rw - xfs /dev/mapper/vg-m rw\n")
        self.block("nvme0n1", 128)
        self.block("nvme1n1", 128)
        self.block("dm-0", 512)
        self.put("/sys/devices/virtual/block/dm-0/dm/name", "vg-m\n")
        (root / "sys/devices/virtual/block/dm-0/slaves").mkdir()
        (root / "sys/devices/virtual/block/dm-0/slaves/nvme1n1").symlink_to("../../nvme1n1")
        self.put("/sys/devices/virtual/block/nvme0n1/nvme0n1p2/partition", "2\n")
        self.link("/sys/class/block/nvme0n1p2", "../../devices/virtual/block/nvme0n1/nvme0n1p2")
        self.link("/sys/dev/block/259:2", "../../devices/virtual/block/nvme0n1/nvme0n1p2")
        self.link("/sys/dev/block/252:0", "../../devices/virtual/block/dm-0")

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def block(self, name: str, kb: int) -> None:
        self.put(f"/sys/devices/virtual/block/{name}/queue/read_ahead_kb", f"{kb}\n")
        self.link(f"/sys/class/block/{name}", f"../../devices/virtual/block/{name}")
        self.link(f"/sys/block/{name}", f"../devices/virtual/block/{name}")

    def live(self) -> dict[str, int]:
        return {name: int((self.root / f"sys/block/{name}/queue/read_ahead_kb").read_text()) for name in ("dm-0", "nvme0n1", "nvme1n1")}

    def found(self, path: str) -> str | None:
        target = self.root / path.lstrip("/")
        return target.read_text() if target.exists() else None

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.commands.append(" ".join(argv))
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
        return (0, "", "") if argv[0] == "udevadm" else (127, "", "command not found")

    def readahead(self, check: bool = False, **params: Any) -> dict[str, Any]:
        given = {**PARAMS, **params}
        if given["phase"]:
            given["state"] = None
        return Readahead(Node(str(self.root), self.run), given, check, "/usr/bin/python3").run()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_sets_repeats_nothing_and_restores_everything(machine: Machine) -> None:
    before = machine.live()
    predicted = machine.readahead(check=True)
    assert (machine.live(), machine.found(plan.RULE)) == (before, None)
    result = machine.readahead()
    assert (predicted["changes"], predicted["diff"]) == (result["changes"], result["diff"])
    assert machine.live() == {"dm-0": 256, "nvme0n1": 256, "nvme1n1": 256}
    assert 'ATTR{dm/name}=="vg-m"' in (machine.found(plan.RULE) or "")
    assert "class Guard" in (machine.found(plan.GUARD_SCRIPT) or "")
    assert machine.readahead()["changed"] is False
    assert machine.readahead(check=True, state="absent")["changes"] == machine.readahead(state="absent")["changes"]
    assert machine.live() == before
    assert [machine.found(path) for path in (plan.RULE, plan.GUARD_SCRIPT)] == [None, None]
    assert not (machine.root / "var/lib/gb10-cluster").exists()
    assert machine.readahead(state="absent")["changed"] is False


def test_load_and_steady(machine: Machine) -> None:
    machine.readahead()
    predicted = machine.readahead(check=True, phase="load")
    assert (predicted["changed"], set(machine.live().values()), machine.running) == (True, {256}, {})
    load = machine.readahead(phase="load")
    assert (load["phase"], set(machine.live().values())) == ("load", {8})
    assert set(machine.running) == {"gb10-readahead-restore.timer", "gb10-page-cache-guard.service"}
    line = machine.running["gb10-readahead-restore.timer"][-1]
    assert line == "; ".join(f"echo 256 > /sys/block/{name}/queue/read_ahead_kb" for name in ("dm-0", "nvme0n1", "nvme1n1")) + "; true"
    assert (machine.readahead()["phase"], set(machine.live().values())) == ("load", {8})
    machine.put(plan.GUARD_RECEIPT, '{"drops": 3}')
    steady = machine.readahead(phase="steady")
    assert (steady["guard_receipt"], set(machine.live().values()), machine.running) == ({"drops": 3}, {256}, {})
    assert machine.readahead(phase="steady")["changed"] is False


@pytest.mark.parametrize(("boot", "seconds"), [(9000, 9000), (60, 2700), (None, 2700)], ids=["longer", "shorter", "not given"])
def test_the_load_phase_lasts_as_long_as_a_boot_may_take(machine: Machine, boot: int | None, seconds: int) -> None:
    machine.readahead()
    machine.readahead(phase="load", restore_after=boot)
    assert f"--on-active={seconds}" in machine.running["gb10-readahead-restore.timer"]
    assert {f"--seconds={seconds}", f"--property=RuntimeMaxSec={seconds + 30}"} <= set(machine.running["gb10-page-cache-guard.service"])


def test_the_timer_starts_before_anything_changes(machine: Machine) -> None:
    machine.readahead()
    machine.refuse = "systemd-run"
    with pytest.raises(ReadaheadError, match=r"systemd-run failed \(rc 1: Failed to start transient unit"):
        machine.readahead(phase="load")
    assert set(machine.live().values()) == {256}


def test_a_second_load_restarts_the_timer(machine: Machine) -> None:
    machine.readahead()
    machine.readahead(phase="load")
    machine.readahead(phase="load")
    assert machine.commands.count("systemctl stop gb10-readahead-restore.timer") == 1
    assert "gb10-readahead-restore.timer" in machine.running


def test_without_the_role_a_phase_does_nothing(machine: Machine) -> None:
    result = machine.readahead(phase="load")
    assert (result["changed"], machine.live()["nvme0n1"]) == (False, 128)
    assert "the readahead role has not run on this node" in result["skipped_reason"]


def test_absent_ends_a_load_phase(machine: Machine) -> None:
    machine.readahead()
    machine.readahead(phase="load")
    machine.readahead(state="absent")
    assert (machine.running, machine.live()) == ({}, {"dm-0": 512, "nvme0n1": 128, "nvme1n1": 128})


def test_the_guard_is_optional(machine: Machine) -> None:
    machine.readahead()
    machine.readahead(guard=False)
    assert machine.found(plan.GUARD_SCRIPT) is None
    machine.readahead(phase="load")
    assert set(machine.running) == {"gb10-readahead-restore.timer"}


def test_a_small_node_gets_a_small_floor(machine: Machine) -> None:
    machine.put("/proc/meminfo", "MemTotal: 1536000 kB\nMemFree: 900000 kB\n")
    machine.readahead()
    assert machine.readahead(phase="load")["notes"]
    assert "--floor-kb=96000" in machine.running["gb10-page-cache-guard.service"]


@pytest.mark.parametrize("params", [{"state": "present"}, {"state": "absent"}, {"phase": "load"}])
def test_a_container_is_not_changed(machine: Machine, params: dict[str, Any]) -> None:
    machine.put("/run/systemd/container", "docker\n")
    result = machine.readahead(**params)
    assert (result["changed"], "this node is a container (docker)" in result["skipped_reason"]) == (False, True)
    assert machine.live() == {"dm-0": 512, "nvme0n1": 128, "nvme1n1": 128}


def test_a_device_that_is_not_selected_any_more_is_restored(machine: Machine) -> None:
    machine.readahead()
    machine.readahead(mounts=[])
    assert machine.live() == {"dm-0": 512, "nvme0n1": 256, "nvme1n1": 256}
    assert machine.readahead(mounts=[])["changed"] is False


NOTES = {
    "a network mount": ("/proc/self/mountinfo", "22 1 0:40 / / rw - nfs4 nas:/root rw\n", "/srv/models is on nfs4 (nas:/root)"),
    "a later rule": ("/etc/udev/rules.d/99-x.rules", 'KERNEL=="nvme0n1", ATTR{queue/read_ahead_kb}="4096"\n', "/etc/udev/rules.d/99-x.rules line 1"),
}


@pytest.mark.parametrize(("path", "text", "note"), NOTES.values(), ids=NOTES.keys())
def test_notes(machine: Machine, path: str, text: str, note: str) -> None:
    machine.put(path, text)
    assert [found.startswith(note) for found in machine.readahead()["notes"]] == [True]


@pytest.mark.parametrize("params", [{"load_kb": 10}, {"restore_after": 5}, {"devices": ["sdq"]}])
def test_refusals_change_nothing(machine: Machine, params: dict[str, Any]) -> None:
    with pytest.raises(ReadaheadError, match=f"readahead_{next(iter(params))}"):
        machine.readahead(**params)
    assert machine.live()["nvme0n1"] == 128


def test_a_rule_of_another_owner_stays(machine: Machine) -> None:
    machine.put(plan.RULE, "# mine\n")
    with pytest.raises(ReadaheadError, match="is not managed by"):
        machine.readahead()
    machine.readahead(state="absent")
    assert machine.found(plan.RULE) == "# mine\n"
