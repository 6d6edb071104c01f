"""The power, utilization and own memory of the GPUs: figures of two H200, of an H100 and of owners of GB10."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu
from ansible_collections.gb10.cluster.plugins.module_utils._node.gpu import PATH, UNIT, Gpu, GpuClocks
from playbook import REPO
from unit.fixtures.host.tree import Tree


@pytest.mark.parametrize(
    ("readings", "idle", "expected"),
    [
        ([120.0, 122.0], 119.4, True), ([165.0], 119.4, False), ([129.0], 127.0, True), ([120.0, 165.0], 119.4, False), ([16.0], 12.0, True),
        ([46.0], 12.0, False), ([27.0], 11.0, True), ([46.0], 11.0, False), ([120.0], None, None), ([], 119.4, None),
    ],
)  # fmt: skip
def test_idle_power_is_measured_against_the_same_gpu(readings: list[float], idle: float | None, expected: bool | None) -> None:
    assert gpu.at_idle(readings, idle) is expected


@pytest.mark.parametrize(
    ("text", "readings", "power"),
    [
        ("119.41, 5\n82.61, 100\n", [(119.41, 5.0), (82.61, 100.0)], 119.41),
        ("[N/A], 96\n", [(None, 96.0)], None),
        ("11.20, [N/A]\n", [(11.2, None)], 11.2),
        ("[Unknown Error], [Unknown Error]\n", [(None, None)], None),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n", [], None),
        ("", [], None),
    ],
)
def test_reads_the_output_of_nvidia_smi(text: str, readings: list[gpu.Reading], power: float | None) -> None:
    assert gpu.readings(text) == readings
    assert gpu.power(text) == power


def test_a_gpu_that_reports_nothing_is_still_a_gpu() -> None:
    text = "45.1, 96, 2418, 3003, 71\n[Unknown Error], [N/A], [N/A], [N/A], [N/A]\nFailed to initialize NVML\n"
    assert gpu.watched(text) == [[45.1, 96.0, 2418.0, 3003.0, 71.0], [None] * 5]


H100 = "GPU-1, NVIDIA H100 80GB HBM3, 81559, 480, 81079\n"


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        (H100, ("GPU-1", 81079.0, 80014.0)),
        ("GPU-1, NVIDIA GB10, [N/A], [N/A], [N/A]\n", None),
        ("GPU-1, NVIDIA GB10, 124610, 0, 119000\n", None),  # a driver that reports the node's memory changes nothing
        ("GPU-1, NVIDIA Thor, [Not Supported], [Not Supported], [Not Supported]\n", None),
        ("GPU-1, NVIDIA H100, 81559, [N/A], [Unknown Error]\n", ("GPU-1", 81559.0, None)),
        ("GPU-1, NVIDIA H100, 81559, 480, 200\n", ("GPU-1", 81079.0, 0.0)),
        ("GPU-1, NVIDIA H100, 0, 0, 0\n", None),
        ("Unable to determine the device handle for GPU0: 0000:00:06.0: Unknown Error\n" + H100, ("GPU-1", 81079.0, 80014.0)),
        (H100 + "GPU-2, NVIDIA H100 80GB HBM3, 81559, 480, 50\n", ("GPU-1", 81079.0, 80014.0)),
        ("No devices were found\n", None),
    ],
)
def test_a_gpu_has_memory_of_its_own_only_if_the_driver_reports_it(text: str, memory: tuple[str, float, float | None] | None) -> None:
    assert gpu.own_memory(text) == memory


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("GPU-1, 101, 39000\nGPU-1, 900, 25500\nGPU-2, 102, 7\n", 39000.0),
        ("GPU-1, 101, 39000\nGPU-1, 102, 500\n", 39500.0),
        ("GPU-1, 101, [N/A]\nGPU-1, 102, 500\n", None),
        ("GPU-1, 900, 25500\n", None),
        ("GPU-1, [Not Found], 39000\n", None),
        ("", None),
    ],
)
def test_memory_of_an_engine_is_that_of_its_processes_on_this_gpu(text: str, used: float | None) -> None:
    assert gpu.used_by(text, "GPU-1", {101, 102}) == used


# --- Persistence mode and the clock cap: the unit's own commands run with a stub of nvidia-smi. Its messages are those of the driver; no GPU is involved.

BUS = "0000000F:01:00.0"
TEMPLATE = (REPO / "roles/gpu/templates/gb10-gpu-clocks.service.j2").read_text(encoding="utf-8")
JINJA = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, autoescape=False)
JINJA.filters["bool"] = bool


def render(persistence_mode: bool, max_clock_mhz: int | None) -> str:
    text = JINJA.from_string(TEMPLATE).render(gpu_persistence_mode=persistence_mode, gpu_max_clock_mhz=max_clock_mhz)
    return text if persistence_mode or max_clock_mhz else ""


class Machine(Tree):
    """One GPU under load: its SM clock is the highest one that the cap permits. systemctl runs the commands of the unit in a shell."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "node")
        self.state = root / "driver"
        self.bin = root / "bin"
        self.bin.mkdir()
        shutil.copy(REPO / "molecule/gpu/files/nvidia-smi.sh", self.bin / "nvidia-smi")
        (self.bin / "nvidia-smi").chmod(0o755)
        self.environment = {"PATH": f"{self.bin}:{os.environ['PATH']}", "GB10_STUB_STATE": str(self.state)}
        self.active = self.enabled = False
        self.journal = ""

    def reply(self, option: str, script: str) -> None:
        self.state.mkdir(exist_ok=True)
        (self.state / f"reply{option}").write_text(script)

    def shell(self, words: Sequence[str]) -> tuple[int, str]:
        done = subprocess.run(["env", *words], capture_output=True, text=True, check=False, env=self.environment)
        return done.returncode, done.stdout + done.stderr

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        words = list(argv)
        if words[0] == "timeout":
            return (*self.shell(words), "")
        if words[0] == "journalctl":
            return 0, self.journal, ""
        assert words[0] == "systemctl", words
        return self.systemctl(words[1]), "", ""

    def systemctl(self, verb: str) -> int:
        if verb in ("enable", "disable"):
            self.enabled = verb == "enable"
        if verb == "stop" and self.active:
            self.active = bool(self.execute("StopPost"))
        if verb == "start":
            self.active = not self.execute("")
            if not self.active:
                self.execute("StopPost")
        return 0 if {"is-active": self.active, "is-enabled": self.enabled, "start": self.active}.get(verb, True) else 3

    def execute(self, when: str) -> int:
        """Run the commands as systemd does: until one fails."""
        folder = self.root / "run/gb10-gpu-clocks"
        folder.mkdir(parents=True, exist_ok=True)
        for line in re.findall(rf"(?m)^Exec(?:{when or 'Start'})=(.+)$", self.get(PATH)):
            rc, reply = self.shell(shlex.split(line.replace("$$", "$").replace("/run/gb10-gpu-clocks", str(folder))))
            self.journal += reply
            if rc != 0:
                return rc
        return 0

    def reboot(self) -> None:
        """The driver forgets all, and systemd runs the unit."""
        shutil.rmtree(self.state)
        if self.enabled:
            self.execute("")

    def driver(self) -> tuple[str, int]:
        """Return the persistence mode and the clock."""
        _index, mode, clock, _highest = self.shell(["nvidia-smi", gpu.CLOCKS_QUERY[0]])[1].split(", ")
        return mode, int(clock)

    def files(self) -> list[str]:
        return [path.name for path in (self.root / "etc").rglob("*") if path.is_file()]

    def clocks(self, check_mode: bool = False, state: str = "present", persistence_mode: bool = True, max_clock_mhz: int | None = None) -> dict[str, Any]:
        settings = {"unit": render(persistence_mode, max_clock_mhz), "persistence_mode": persistence_mode, "max_clock_mhz": max_clock_mhz}
        return GpuClocks(Editor(Node(str(self.root), self.run), check_mode), state, settings, lambda _seconds: None).run()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_both_are_set_come_back_with_a_reboot_and_check_mode_reports_the_same(machine: Machine) -> None:
    planned = machine.clocks(check_mode=True, max_clock_mhz=2000)
    assert (machine.driver(), machine.files(), machine.enabled) == (("Disabled", 3003), [], False)
    done = machine.clocks(max_clock_mhz=2000)
    assert (planned["changes"], planned["diff"]) == (done["changes"], done["diff"])
    assert done["changes"] == [f"{PATH} written", f"{UNIT} enabled and started"]
    assert machine.driver() == ("Enabled", 2000)
    machine.reboot()
    assert machine.driver() == ("Enabled", 2000)
    assert machine.clocks(max_clock_mhz=2000)["changed"] is False


@pytest.mark.parametrize("before", ["Disabled", "Enabled"])
def test_absent_restores_what_was_before_the_first_run(machine: Machine, before: str) -> None:
    machine.shell(["nvidia-smi", "-pm", str(int(before == "Enabled"))])
    machine.clocks(max_clock_mhz=2000)
    machine.clocks(max_clock_mhz=1800)
    planned = machine.clocks(check_mode=True, state="absent")
    assert planned["changes"] == machine.clocks(state="absent")["changes"] != []
    assert (machine.driver(), machine.files(), machine.active, machine.enabled) == ((before, 3003), [], False, False)
    assert machine.clocks(state="absent")["changed"] is False


def test_what_is_taken_out_of_the_inventory_is_given_back(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2000)
    assert machine.clocks(persistence_mode=False, max_clock_mhz=2000)["changed"] is True
    assert machine.driver() == ("Disabled", 2000)
    machine.clocks()
    assert machine.driver() == ("Enabled", 3003)
    machine.clocks(persistence_mode=False)
    assert (machine.driver(), machine.files()) == (("Disabled", 3003), [])


def test_a_cap_that_was_removed_outside_of_the_role_is_set_again(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2000)
    machine.shell(["nvidia-smi", "-rgc"])
    assert machine.clocks(max_clock_mhz=2000)["changes"] == [f"{UNIT} enabled and started"]
    assert machine.driver() == ("Enabled", 2000)


def test_a_node_without_nvidia_tools_is_not_changed_and_can_be_undone(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2000)
    (machine.bin / "nvidia-smi").unlink()
    result = machine.clocks(max_clock_mhz=1800)
    assert (result["changed"], result["shown"]) == (
        False, ["nvidia-smi is not installed on this node: neither persistence mode nor clocks were changed"],
    )  # fmt: skip
    assert machine.clocks(state="absent")["changed"] is True
    assert machine.files() == []


QUERY = gpu.CLOCKS_QUERY[0]
#: name: (option of nvidia-smi that is replaced, its script, the cap, the message)
FAILURES = {
    "nvidia-smi fails": (QUERY, "echo NVIDIA-SMI has failed because; exit 9", 2000, "nvidia-smi exited with 9: NVIDIA-SMI has failed because"),
    "nvidia-smi hangs": (QUERY, "exit 124", 2000, "did not answer within 20 s"),
    "above the highest clock": ("-unused", "", 3100, r"gpu_max_clock_mhz is 3100\. This GPU supports at most 3003 MHz"),
}


@pytest.mark.parametrize(("option", "script", "cap", "message"), FAILURES.values(), ids=list(FAILURES))
def test_a_run_that_fails_changes_nothing(machine: Machine, option: str, script: str, cap: int, message: str) -> None:
    machine.reply(option, script)
    with pytest.raises(HostError, match=message):
        machine.clocks(max_clock_mhz=cap)
    assert (machine.files(), machine.active, machine.enabled) == ([], False, False)


REFUSALS = {
    "warning-with-code-0": (0, f"Setting locked GPU clocks is not supported for GPU {BUS}."),
    "permissions": (4, f"The current user does not have permission to change clocks for GPU {BUS}: Insufficient Permissions"),
    "other": (3, "Invalid combination of input arguments."),
}


@pytest.mark.parametrize(("code", "line"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_cap_that_the_driver_refuses_restores_what_was_changed(machine: Machine, code: int, line: str) -> None:
    machine.reply("-lgc", f"echo '{line}'; echo All done.; exit {code}")
    with pytest.raises(HostError, match=f"The driver refuses it: .*{re.escape(line)}"):
        machine.clocks(max_clock_mhz=2000)
    assert (machine.driver(), machine.files(), machine.enabled) == (("Disabled", 3003), [], False)


def test_a_driver_that_hangs_after_the_cap_is_set_restores_what_was_changed(machine: Machine) -> None:
    machine.reply("-lgc", f"echo 'exit 124' >\"$GB10_STUB_STATE/reply{QUERY}\"")
    with pytest.raises(HostError, match=r"did not answer within 20 s\. Run `nvidia-smi` and `journalctl -k -g NVRM` on the node\.$"):
        machine.clocks(max_clock_mhz=2000)
    assert (machine.files(), machine.active, machine.enabled) == ([], False, False)


def test_a_clock_above_the_cap_is_an_error_and_the_earlier_cap_returns(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2200)
    machine.reply("-lgc", 'test "$2" = 0,2000 || echo "${2#*,}" >"$GB10_STUB_STATE/cap"')
    with pytest.raises(HostError, match=r"GPU 0 runs at 3003 MHz after `nvidia-smi -lgc 0,2000`: the cap has no effect"):
        machine.clocks(max_clock_mhz=2000)
    assert machine.driver() == ("Enabled", 2200)


def test_the_cap_is_given_back_although_the_persistence_mode_is_not(machine: Machine) -> None:
    machine.clocks(max_clock_mhz=2000)
    machine.reply("-pm", "exit 3")
    machine.clocks(state="absent")
    assert machine.driver() == ("Enabled", 3003)


@pytest.mark.parametrize("text", ["0", ""])
def test_a_cap_of_the_command_line_that_is_not_one_sets_none(text: str) -> None:
    assert "-lgc" not in JINJA.from_string(TEMPLATE).render(gpu_persistence_mode=True, gpu_max_clock_mhz=text)


def test_a_clock_that_the_driver_rounds_or_does_not_report_is_accepted(machine: Machine) -> None:
    machine.reply(gpu.CLOCKS_QUERY[0], "echo 0, Enabled, 2010, 3003")
    assert machine.clocks(max_clock_mhz=2000)["shown"] == []
    machine.reply(gpu.CLOCKS_QUERY[0], "echo '0, Enabled, [N/A], 3003'")
    assert machine.clocks(max_clock_mhz=2000)["shown"] == ["The driver does not report the SM clock, so the cap was not read back"]


def test_a_unit_of_another_tool_is_kept(machine: Machine) -> None:
    machine.put(PATH, "[Service]\nExecStart=nvidia-smi -lgc 0,1500\n")
    with pytest.raises(HostError, match=r"is not managed by gb10\.cluster"):
        machine.clocks(max_clock_mhz=2000)
    assert machine.clocks(state="absent")["changed"] is False
    assert "0,1500" in machine.get(PATH)


def test_output_of_the_driver_is_parsed_row_by_row() -> None:
    text = "Warning: infoROM is corrupted at gpu 0000000F:01:00.0\n0, Enabled, 208, 3003\n1, [N/A], [N/A], [Not Supported]\n2, Enabled, [Unknown Error], -1\n"
    assert gpu.parse_gpus(text) == [Gpu("0", "Enabled", 208, 3003), Gpu("1", "[N/A]", None, None), Gpu("2", "Enabled", None, None)]
