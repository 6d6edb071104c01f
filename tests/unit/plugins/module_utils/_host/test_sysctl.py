"""sysctl.d in the order of the boot, the desired values, refusals, and undo."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, sysctl
from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import SysctlError

TOTAL_121 = int(121.69 * memory.GIB_KB)
BY_CLASS = {"121": 3145728, "119": 3145728}

KEYS: dict[str, str] = {
    "vm.swappiness": "vm.swappiness",
    "vm/swappiness": "vm.swappiness",
    "-vm.swappiness": "vm.swappiness",
    " - vm.swappiness ": "vm.swappiness",
    "net/ipv4/conf/enP2p1s0f0np0.5/arp_ignore": "net.ipv4.conf.enP2p1s0f0np0/5.arp_ignore",
}


@pytest.mark.parametrize(("written", "expected"), KEYS.items(), ids=KEYS.keys())
def test_keys_are_written_in_two_ways(written: str, expected: str) -> None:
    assert sysctl.dotted(written) == expected


def test_a_file_is_read_with_its_line_numbers() -> None:
    text = "# vm.swappiness = 1\n; no\n\n-vm/dirty_ratio=5\nvm.overcommit_memory   =   0  \nnonsense\n"
    assert [(entry.line, entry.key, entry.value) for entry in sysctl.parse_file("/x", text)] == [
        (4, "vm.dirty_ratio", "5"),
        (5, "vm.overcommit_memory", "0"),
    ]


ORDER: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "by name": (
        {"/usr/lib/sysctl.d/99-z.conf": "", "/etc/sysctl.d/10-a.conf": "", "/run/sysctl.d/50-m.conf": ""},
        ["/etc/sysctl.d/10-a.conf", "/run/sysctl.d/50-m.conf", "/usr/lib/sysctl.d/99-z.conf"],
    ),
    "etc hides usr/lib": ({"/usr/lib/sysctl.d/50-x.conf": "", "/etc/sysctl.d/50-x.conf": ""}, ["/etc/sysctl.d/50-x.conf"]),
    "a link to /dev/null hides the name": ({"/usr/lib/sysctl.d/50-x.conf": "", "/etc/sysctl.d/50-x.conf": None}, []),
    "sysctl.conf comes last": ({"/etc/sysctl.conf": "", "/etc/sysctl.d/99-z.conf": ""}, ["/etc/sysctl.d/99-z.conf", "/etc/sysctl.conf"]),
    "other suffixes are not read": ({"/etc/sysctl.d/README": "", "/etc/sysctl.d/70-x.conf.bak": ""}, []),
}


@pytest.mark.parametrize(("files", "expected"), ORDER.values(), ids=ORDER.keys())
def test_reading_order(files: dict[str, str | None], expected: list[str]) -> None:
    assert sysctl.reading_order(files) == expected


OVERRIDES: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "a later file wins": ({"/etc/sysctl.d/99-mine.conf": "\nvm.dirty_ratio = 20\n"}, ["/etc/sysctl.d/99-mine.conf line 2 sets vm.dirty_ratio to 20"]),
    "a pattern counts": ({"/usr/lib/sysctl.d/70-x.conf": "vm.dirty* = 7\n"}, ["/usr/lib/sysctl.d/70-x.conf line 1 sets vm.dirty_ratio to 7"]),
    "the partner sets ours to 0": (
        {"/etc/sysctl.d/90-b.conf": "vm.dirty_bytes = 1048576\n"},
        ["/etc/sysctl.d/90-b.conf line 1 sets vm.dirty_bytes to 1048576"],
    ),
    "the partner at 0 does not": ({"/etc/sysctl.d/90-b.conf": "vm.dirty_bytes = 0\n"}, []),
    "the last of several": (
        {"/etc/sysctl.d/90-b.conf": "vm.dirty_ratio = 5\n", "/etc/sysctl.conf": "vm.dirty_ratio = 30\n"},
        ["/etc/sysctl.conf line 1 sets vm.dirty_ratio to 30"],
    ),
    "a hidden file": ({"/usr/lib/sysctl.d/99-x.conf": "vm.dirty_ratio = 30\n", "/etc/sysctl.d/99-x.conf": None}, []),
}


@pytest.mark.parametrize(("files", "expected"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_overrides_are_named_by_file_and_line(files: dict[str, str | None], expected: list[str]) -> None:
    found = sysctl.overrides(files, {"vm.dirty_ratio": "5"})
    assert len(found) == len(expected)
    if expected:
        message = sysctl.override_message(found, {"vm.dirty_ratio": "5"})
        assert message.startswith(expected[0])
        assert "set sysctl_dirty_ratio to leave" in message


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
    assert sysctl.choose_floor(option, total, BY_CLASS, 2.5, stock)[0] == expected


def settings(**values: str) -> dict[str, str]:
    """Return the settings of the role with changes."""
    return {"vm.dirty_ratio": "5", "vm.dirty_background_ratio": "2", "vm.swappiness": "auto", **{f"vm.{key}": value for key, value in values.items()}}


def test_swappiness_follows_the_swap_policy() -> None:
    assert sysctl.desired(settings(), "leave", "swappiness0", {})["vm.swappiness"] == "0"
    assert "vm.swappiness" not in sysctl.desired(settings(), "leave", "off", {})
    assert sysctl.desired(settings(swappiness="10"), "leave", "swappiness0", {})["vm.swappiness"] == "10"


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a floor that is not a number": ({"option": "3 GiB"}, "sysctl_min_free_kbytes is '3 GiB'"),
    "a floor that starves": ({"option": str(20 * memory.GIB_KB)}, "more than 10 % of the .* Choose at most"),
    "a value that is not a number": ({"values": settings(dirty_ratio="five")}, "sysctl_dirty_ratio is 'five'"),
    "auto for another key": ({"values": settings(dirty_ratio="auto")}, "sysctl_dirty_ratio is 'auto'"),
    "background above": ({"values": settings(dirty_background_ratio="5")}, "sysctl_dirty_background_ratio is 5"),
    "not a sysctl": ({"extra": {"min_free_kbytes": 5}}, "sysctl_settings has the key 'min_free_kbytes'"),
    "twice": ({"extra": {"vm/dirty_ratio": 5}}, "sysctl_settings sets vm.dirty_ratio.* Use sysctl_dirty_ratio"),
}


@pytest.mark.parametrize(("case", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(case: dict[str, Any], message: str) -> None:
    with pytest.raises(SysctlError, match=message):
        sysctl.desired(
            case.get("values", settings()), sysctl.choose_floor(case.get("option", "auto"), TOTAL_121, BY_CLASS, 2.5)[0], "off", case.get("extra", {})
        )


def test_the_record_keeps_the_first_values_and_undo_writes_them() -> None:
    live = {"vm.dirty_ratio": "20", "vm.swappiness": "60"}
    before = sysctl.record_before({}, {"vm.dirty_ratio": "5"}, live)
    again = sysctl.record_before({"live": before}, {"vm.dirty_ratio": "7", "vm.swappiness": "0"}, {**live, "vm.dirty_ratio": "5"})
    assert again == live
    assert sysctl.to_restore(again, {}, {"vm.dirty_ratio": "7", "vm.swappiness": "60"}) == {"vm.dirty_ratio": "20"}
    assert sysctl.to_restore(again, {"vm.dirty_ratio": "7"}, {"vm.dirty_ratio": "7", "vm.swappiness": "0"}) == {"vm.swappiness": "60"}


def test_undo_restores_bytes_that_were_in_use() -> None:
    live = {"vm.dirty_ratio": "0", "vm.dirty_bytes": "1048576"}
    before = sysctl.record_before({}, {"vm.dirty_ratio": "5"}, live)
    now = {"vm.dirty_ratio": "5", "vm.dirty_bytes": "0"}
    assert sysctl.to_restore(before, {"vm.dirty_ratio": "5"}, now) == {}
    assert sysctl.to_restore(before, {}, now) == {"vm.dirty_bytes": "1048576"}


HEADROOM: dict[str, tuple[float, float, bool]] = {
    "idle": (113.0, 4.3, True),
    "an engine serves": (2.3, 4.3, False),
    "nothing to raise": (0.1, 0.0, True),
    "lowering is always fine": (0.1, -3.0, True),
    "just enough": (4.9, 4.3, True),
}


@pytest.mark.parametrize(("available", "cost", "fine"), HEADROOM.values(), ids=HEADROOM.keys())
def test_a_floor_is_not_raised_under_a_full_node(available: float, cost: float, fine: bool) -> None:
    meminfo = {"MemTotal": TOTAL_121, "MemAvailable": int(available * memory.GIB_KB)}
    assert (sysctl.headroom_problem(meminfo, int(cost * memory.GIB_KB), "3145728") == "") is fine
