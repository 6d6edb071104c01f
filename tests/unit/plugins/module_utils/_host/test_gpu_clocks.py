"""Persistence mode and the clock cap, on a tree of files and a simulated nvidia-smi. Its messages are those of the driver; no GPU is involved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import gpu_clocks
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._host.gpu_clocks import PATH, UNIT, Gpu, GpuClocks
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import HostError, Node
from unit.fixtures.host.tree import Tree

BUS = "0000000F:01:00.0"


class Machine(Tree):
    """One GB10 under load: its SM clock is the highest one that the cap permits."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.persistence = "Disabled"
        self.cap = 0
        self.highest = 3003
        self.installed = True
        self.failure: tuple[int, str] = (0, "")  # of every call
        self.replies: dict[str, tuple[int, str]] = {}  # by the first word of nvidia-smi; nothing is changed then
        self.supported = "[N/A]\n"
        self.reports_clock = True
        self.units: set[str] = set()
        self.commands: list[str] = []
        self.pauses = 0

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        words = list(argv)
        if words[0] == "systemctl":
            return self.systemctl(words[1:])
        assert words[:3] == ["timeout", "20", "nvidia-smi"], words
        if not self.installed:
            return 127, "", "timeout: failed to run command 'nvidia-smi': No such file or directory"
        if self.failure[0]:
            return self.failure[0], self.failure[1], ""
        return self.smi(words[3:])

    def smi(self, words: list[str]) -> tuple[int, str, str]:
        clock = min(self.highest, self.cap or self.highest)
        if words[0].startswith("--query-gpu"):
            return 0, f"0, {self.persistence}, {clock if self.reports_clock else '[N/A]'}, {self.highest or '[N/A]'}\n", ""
        if words[0].startswith("--query-supported"):
            return 0, self.supported, ""
        self.commands.append(" ".join(words))
        if words[0] in self.replies:
            return *self.replies[words[0]], ""
        if words[0] == "-pm":
            self.persistence = ["Disabled", "Enabled"][int(words[1])]
            return 0, f"{self.persistence} persistence mode for GPU {BUS}.\nAll done.\n", ""
        self.cap = 0 if words[0] == "-rgc" else int(words[1].split(",")[1])
        return 0, f'GPU clocks set to "(gpuClkMin 0, gpuClkMax {self.cap})" for GPU {BUS}\nAll done.\n', ""

    def systemctl(self, words: list[str]) -> tuple[int, str, str]:
        if words[0] in ("is-active", "is-enabled"):
            return (0 if UNIT in self.units else 3), "", ""
        self.commands.append(" ".join(words))
        if words[0] in ("restart", "disable") and UNIT in self.units:
            self.execute("Stop")
        if words[0] == "restart":
            self.units.add(UNIT)
            self.execute("Start")
        if words[0] == "disable":
            self.units.discard(UNIT)
        return 0, "", ""

    def execute(self, when: str) -> None:
        """Run the commands of the unit, which are not commands of the role."""
        kept = list(self.commands)
        for words in gpu_clocks.commands_of(self.get(PATH), when) if self.installed else ():
            self.smi(words.split())
        self.commands = kept

    def reboot(self) -> None:
        """The driver forgets all, and systemd runs the unit."""
        self.cap, self.persistence = 0, "Disabled"
        if UNIT in self.units:
            self.execute("Start")

    def clocks(self, check_mode: bool = False, **params: Any) -> dict[str, Any]:
        self.commands.clear()
        wanted = {"state": "present", "persistence_mode": True, "max_clock_mhz": None, **params}
        return GpuClocks(Editor(Node(str(self.root), self.run), check_mode), wanted, self.pause).run()

    def pause(self, _seconds: float) -> None:
        self.pauses += 1


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_both_are_set_and_come_back_with_a_reboot(machine: Machine) -> None:
    result = machine.clocks(max_clock_mhz=2000)
    assert result["changes"] == ["nvidia-smi -pm 1", "nvidia-smi -lgc 0,2000", f"{PATH} written", f"{UNIT} enabled and started"]
    assert machine.commands == ["-pm 1", "-lgc 0,2000", "daemon-reload", f"enable --no-reload {UNIT}", f"restart {UNIT}"]
    assert (machine.persistence, machine.cap) == ("Enabled", 2000)
    machine.reboot()
    assert (machine.cap, machine.persistence) == (2000, "Enabled")
    again = machine.clocks(max_clock_mhz=2000)
    assert (again["changed"], machine.commands) == (False, [])


def test_check_mode_reports_the_same_and_changes_nothing(machine: Machine) -> None:
    planned = machine.clocks(check_mode=True, max_clock_mhz=2000)
    assert machine.commands == []
    assert not list(machine.root.iterdir())
    done = machine.clocks(max_clock_mhz=2000)
    assert (planned["changes"], planned["diff"]) == (done["changes"], done["diff"])
    assert "ExecStart=nvidia-smi -lgc 0,2000\n" in done["diff"][0]["after"]


def test_absent_restores_what_was_before_the_first_run(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2000)
    machine.clocks(max_clock_mhz=1800)
    planned = machine.clocks(check_mode=True, state="absent")
    result = machine.clocks(state="absent")
    assert planned["changes"] == result["changes"] != []
    assert (machine.cap, machine.persistence, machine.units) == (0, "Disabled", set())
    assert not [path for path in machine.root.rglob("*") if path.is_file()]
    assert machine.clocks(state="absent")["changed"] is False


def test_persistence_mode_that_was_enabled_before_stays(machine: Machine) -> None:
    machine.persistence = "Enabled"
    machine.clocks()
    machine.clocks(state="absent")
    assert (machine.persistence, machine.get(PATH)) == ("Enabled", "")


def test_a_cap_that_is_taken_out_of_the_inventory_is_removed(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2000)
    assert f"{PATH} written" in machine.clocks()["changes"]
    assert (machine.cap, "-lgc" in machine.get(PATH)) == (0, False)
    assert machine.clocks()["changed"] is False


def test_a_cap_that_was_removed_outside_of_the_role_is_set_again(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2000)
    machine.cap = 0
    assert "nvidia-smi -lgc 0,2000" in machine.clocks(max_clock_mhz=2000)["changes"]
    assert machine.cap == 2000


def test_options_that_set_nothing_leave_no_unit(machine: Machine) -> None:
    assert machine.clocks(persistence_mode=False)["changed"] is False
    machine.clocks(max_clock_mhz=2000)
    machine.clocks(persistence_mode=False, max_clock_mhz=2000)
    assert (machine.persistence, machine.cap) == ("Disabled", 2000)
    machine.clocks(persistence_mode=False)
    assert (machine.cap, machine.get(PATH)) == (0, "")


def test_a_node_without_nvidia_tools_is_not_changed(machine: Machine) -> None:
    machine.installed = False
    result = machine.clocks(max_clock_mhz=2000)
    assert result["changed"] is False
    assert result["shown"] == ["nvidia-smi is not installed on this node: neither persistence mode nor clocks were changed"]
    assert not list(machine.root.iterdir())
    assert machine.clocks(state="absent")["changed"] is False


def test_absent_removes_the_unit_also_without_nvidia_tools(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2000)
    machine.installed = False
    assert machine.clocks(state="absent")["changed"] is True
    assert machine.get(PATH) == ""


NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed.\n"


@pytest.mark.parametrize(
    ("failure", "message"),
    [((9, NO_DRIVER), "nvidia-smi exited with 9: NVIDIA-SMI has failed because"), ((124, ""), "nvidia-smi did not answer within 20 s"), ((2, ""), "no output")],
    ids=["no-driver", "hangs", "silent"],
)
def test_nvidia_smi_that_fails_changes_nothing(machine: Machine, failure: tuple[int, str], message: str) -> None:
    machine.failure = failure
    with pytest.raises(HostError, match=message):
        machine.clocks(max_clock_mhz=2000)
    assert not list(machine.root.iterdir())


REFUSALS = {
    "warning-with-code-0": (0, f"Setting locked GPU clocks is not supported for GPU {BUS}.\nTreating as warning and moving on.\nAll done.\n"),
    "permissions": (4, f"The current user does not have permission to change clocks for GPU {BUS}: Insufficient Permissions\n"),
    "other": (3, "Invalid combination of input arguments.\n"),
}


@pytest.mark.parametrize("reply", REFUSALS.values(), ids=list(REFUSALS))
def test_a_cap_that_the_driver_refuses_restores_what_was_changed(machine: Machine, reply: tuple[int, str]) -> None:
    machine.replies["-lgc"] = reply
    line = reply[1].splitlines()[0].rstrip(".")
    with pytest.raises(HostError) as raised:
        machine.clocks(max_clock_mhz=2000)
    assert f"The driver refuses `nvidia-smi -lgc 0,2000` (exit code {reply[0]}): {line}." in str(raised.value)
    assert machine.commands == ["-pm 1", "-lgc 0,2000", "-rgc", "-pm 0"]
    assert (machine.persistence, machine.units) == ("Disabled", set())
    assert not [path for path in machine.root.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("supported", "highest", "cap", "message"),
    [
        ("[N/A]\n", 3003, 3100, "supports 0 to 3003 MHz"),
        ("3003\n2400\n300\n", 3003, 200, "supports 300 to 3003 MHz"),
        ("2400\n300\n", 0, 3000, "supports 300 to 2400 MHz"),
    ],
    ids=["above-the-highest", "below-the-lowest", "highest-from-the-list"],
)
def test_a_cap_outside_of_the_supported_clocks_is_refused(machine: Machine, supported: str, highest: int, cap: int, message: str) -> None:
    machine.supported, machine.highest = supported, highest
    with pytest.raises(HostError, match=message):
        machine.clocks(max_clock_mhz=cap)
    assert machine.commands == []
    assert not list(machine.root.iterdir())


def test_a_clock_above_the_cap_is_an_error_and_the_earlier_cap_returns(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2200)
    machine.replies["-lgc"] = (0, f'GPU clocks set to "(gpuClkMin 0, gpuClkMax 2000)" for GPU {BUS}\nAll done.\n')
    with pytest.raises(HostError, match=r"GPU 0 runs at 3003 MHz after `nvidia-smi -lgc 0,2000`: the cap has no effect"):
        machine.clocks(max_clock_mhz=2000)
    assert machine.pauses == gpu_clocks.READS - 1
    assert machine.commands == ["-rgc", "-pm 0", "-pm 1", "-lgc 0,2000", "-rgc", "-pm 0", "-pm 1", "-lgc 0,2200"]
    assert "-lgc 0,2200" in machine.get(PATH)


def test_persistence_mode_that_stays_disabled_is_an_error(machine: Machine) -> None:
    machine.replies["-pm"] = (0, "All done.\n")
    with pytest.raises(HostError, match="GPU 0 reports persistence mode Disabled after"):
        machine.clocks()
    assert machine.get(PATH) == ""


def test_a_clock_that_the_driver_rounds_or_does_not_report_is_accepted(machine: Machine) -> None:
    machine.highest = 2010
    assert machine.clocks(max_clock_mhz=2000)["shown"] == []
    machine.reports_clock = False
    assert machine.clocks(max_clock_mhz=2000)["shown"] == ["The driver does not report the SM clock, so the cap was not read back"]


def test_a_unit_of_another_tool_is_kept(machine: Machine) -> None:
    machine.put(PATH, "[Service]\nExecStart=nvidia-smi -lgc 0,1500\n")
    with pytest.raises(HostError, match=r"is not managed by gb10\.cluster"):
        machine.clocks(max_clock_mhz=2000)
    assert machine.commands == []
    assert machine.clocks(state="absent")["changed"] is False
    assert "0,1500" in machine.get(PATH)


def test_output_of_the_driver_is_parsed_row_by_row() -> None:
    text = "Warning: infoROM is corrupted at gpu 0000000F:01:00.0\n0, Enabled, 208, 3003\n1, [N/A], [N/A], [Not Supported]\n2, Enabled, 99999999, -1\n"
    assert gpu_clocks.parse_gpus(text) == [Gpu("0", "Enabled", 208, 3003), Gpu("1", "[N/A]", None, None), Gpu("2", "Enabled", None, None)]
