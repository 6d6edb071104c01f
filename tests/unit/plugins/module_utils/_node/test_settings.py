"""Files that are read later at boot, the desired values, refusals, and undo."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory, settings

TOTAL_121 = int(121.69 * memory.GIB_KB)

CONFIGURATION = """# /etc/sysctl.d/10-a.conf
vm.dirty_ratio = 1

# /etc/sysctl.d/99-sysctl.conf -> /etc/sysctl.conf
# /etc/other/mine.conf
-vm.dirty_ratio=5
"""


def test_lines_that_systemd_reads_later_have_their_file_and_number() -> None:
    answers = {"systemd-analyze cat-config sysctl.d": (0, CONFIGURATION, "")}
    assert settings.later_lines(Node("/", lambda argv: answers[" ".join(argv)])) == [
        ("/etc/sysctl.d/99-sysctl.conf line 1", "# /etc/other/mine.conf"), ("/etc/sysctl.d/99-sysctl.conf line 2", "-vm.dirty_ratio=5"),
    ]  # fmt: skip


OVERRIDES: dict[str, tuple[list[str], str]] = {
    "a later file wins": (["# x", "vm.dirty_ratio = 20"], "/etc/z.conf line 2 sets vm.dirty_ratio to 20"),
    "the same value": (["vm.dirty_ratio = 5"], ""),
    "a comment": (["; vm.dirty_ratio = 20", "#vm.dirty_ratio = 20", "nonsense"], ""),
    "the last of several": (["vm.dirty_ratio = 9", "-vm.dirty_ratio=30"], "/etc/z.conf line 2 sets vm.dirty_ratio to 30"),
    "the last of several is ours": (["vm.dirty_ratio = 9", "vm.dirty_ratio = 5"], ""),
}


@pytest.mark.parametrize(("lines", "expected"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_overrides_are_named_by_file_and_line(lines: list[str], expected: str) -> None:
    message = settings.override_problem([(f"/etc/z.conf line {number}", line) for number, line in enumerate(lines, 1)], {"vm.dirty_ratio": "5"})
    assert (message.startswith(expected), bool(message)) == (True, bool(expected))
    if expected:
        assert "Remove the line from /etc/z.conf, or set sysctl_dirty_ratio to leave" in message


FLOORS: dict[str, tuple[str, int, int, str]] = {
    "121 GiB": ("auto", TOTAL_121, 45167, "3145728"),
    "119 GiB": ("auto", int(119.63 * memory.GIB_KB), 45167, "3145728"),
    "another size": ("auto", 24 * memory.GIB_KB, 67584, "629145"),
    "a small one keeps the kernel's": ("auto", 2 * memory.GIB_KB, 67584, "67584"),
    "chosen": ("1572864", TOTAL_121, 45167, "1572864"),
    "left": ("leave", TOTAL_121, 45167, "leave"),
}


@pytest.mark.parametrize(("option", "total", "stock", "expected"), FLOORS.values(), ids=FLOORS.keys())
def test_floors(option: str, total: int, stock: int, expected: str) -> None:
    assert settings.choose_floor(option, total, stock)[0] == expected


def values(**values: str) -> dict[str, str]:
    """Return the settings of the role with changes."""
    return {"vm.dirty_ratio": "5", "vm.dirty_background_ratio": "2", "vm.swappiness": "auto", **{f"vm.{key}": value for key, value in values.items()}}


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a floor that starves": ({"option": str(20 * memory.GIB_KB)}, "more than 10 % of the .* Choose at most"),
    "background above": ({"values": values(dirty_background_ratio="5")}, "sysctl_dirty_background_ratio is 5"),
}


@pytest.mark.parametrize(("case", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(case: dict[str, Any], message: str) -> None:
    with pytest.raises(HostError, match=message):
        settings.desired_sysctls(case.get("values", values()), settings.choose_floor(case.get("option", "auto"), TOTAL_121)[0], "off")


ROOM: dict[str, tuple[float, float, float, str]] = {
    "idle": (113.0, 4.3, 3.5, ""),
    "an engine serves": (2.3, 4.3, 0.0, "vm.min_free_kbytes = 3145728 takes 4.3 GiB, and only 2.3 GiB are available"),
    "swap does not fit": (2.0, 0.0, 14.0, "swap contains 14.0 GiB, and only 2.0 GiB are available"),
    "nothing to raise": (0.1, 0.0, 0.0, ""),
    "lowering is always fine": (0.1, -3.0, 0.0, ""),
    "just enough": (4.9, 4.3, 0.0, ""),
}


@pytest.mark.parametrize(("available", "cost", "swap", "expected"), ROOM.values(), ids=ROOM.keys())
def test_nothing_is_taken_from_a_full_node(available: float, cost: float, swap: float, expected: str) -> None:
    meminfo = {"MemTotal": TOTAL_121, "MemAvailable": int(available * memory.GIB_KB)}
    problem = settings.room_problem(meminfo, int(cost * memory.GIB_KB), "3145728", int(swap * memory.GIB_KB))
    assert (expected in problem, bool(problem)) == (True, bool(expected))
