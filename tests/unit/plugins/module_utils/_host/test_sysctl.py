"""sysctl.d in the order of the boot, the wishes, and every sentence that refuses."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, sysctl
from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import DROP_IN, SysctlError

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


def test_proc_paths() -> None:
    assert sysctl.proc_path("vm.swappiness") == "/proc/sys/vm/swappiness"
    assert sysctl.proc_path("net.ipv4.conf.e/5.arp_ignore") == "/proc/sys/net/ipv4/conf/e.5/arp_ignore"


def test_a_file_is_read_with_its_line_numbers() -> None:
    text = "# vm.swappiness = 1\n; no\n\n-vm/dirty_ratio=5\nvm.overcommit_memory   =   0  \nnonsense\n"
    assert [(entry.line, entry.key, entry.value) for entry in sysctl.parse_file("/x", text)] == [
        (4, "vm.dirty_ratio", "5"),
        (5, "vm.overcommit_memory", "0"),
    ]


ORDER: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "by name, whatever the folder": (
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
    "an earlier file loses": ({"/etc/sysctl.d/10-mine.conf": "vm.dirty_ratio = 20\n"}, []),
    "a later file that agrees": ({"/etc/sysctl.d/99-mine.conf": "vm.dirty_ratio=5\n"}, []),
    "a pattern counts": ({"/usr/lib/sysctl.d/70-x.conf": "vm.dirty* = 7\n"}, ["/usr/lib/sysctl.d/70-x.conf line 1 sets vm.dirty_ratio to 7"]),
    "the twin zeroes ours": ({"/etc/sysctl.d/90-b.conf": "vm.dirty_bytes = 1048576\n"}, ["/etc/sysctl.d/90-b.conf line 1 sets vm.dirty_bytes to 1048576"]),
    "the twin at zero does not": ({"/etc/sysctl.d/90-b.conf": "vm.dirty_bytes = 0\n"}, []),
    "the last of several": (
        {"/etc/sysctl.d/90-b.conf": "vm.dirty_ratio = 5\n", "/etc/sysctl.conf": "vm.dirty_ratio = 30\n"},
        ["/etc/sysctl.conf line 1 sets vm.dirty_ratio to 30"],
    ),
    "later and then back to ours": ({"/etc/sysctl.d/90-b.conf": "vm.dirty_ratio = 30\n", "/etc/sysctl.d/91-c.conf": "vm.dirty_ratio = 5\n"}, []),
    "a hidden file": ({"/usr/lib/sysctl.d/99-x.conf": "vm.dirty_ratio = 30\n", "/etc/sysctl.d/99-x.conf": None}, []),
    "our own earlier file": ({DROP_IN: "vm.dirty_ratio = 30\n"}, []),
}


@pytest.mark.parametrize(("files", "expected"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_overrides_are_named_by_file_and_line(files: dict[str, str | None], expected: list[str]) -> None:
    found = sysctl.overrides(files, {"vm.dirty_ratio": "5"})
    assert len(found) == len(expected)
    if expected:
        message = sysctl.override_message(found)
        assert message.startswith(expected[0])
        assert message.endswith("or set sysctl_dirty_ratio to leave or to that value")


FLOORS: dict[str, tuple[str, int, int, str]] = {
    "121 GiB": ("auto", TOTAL_121, 45167, "3145728"),
    "119 GiB": ("auto", int(119.63 * memory.GIB_KB), 45167, "3145728"),
    "another size": ("auto", 24 * memory.GIB_KB, 67584, "629145"),
    "a small one keeps the kernel's": ("auto", 2 * memory.GIB_KB, 67584, "67584"),
    "chosen": ("1572864", TOTAL_121, 45167, "1572864"),
    "left": ("leave", TOTAL_121, 45167, "leave"),
}


@pytest.mark.parametrize(("wish", "total", "stock", "expected"), FLOORS.values(), ids=FLOORS.keys())
def test_floors(wish: str, total: int, stock: int, expected: str) -> None:
    assert sysctl.choose_floor(wish, total, BY_CLASS, 2.5, stock)[0] == expected


def wishes(**values: str) -> dict[str, str]:
    """Return the role's wishes with changes."""
    return {"vm.dirty_ratio": "5", "vm.dirty_background_ratio": "2", "vm.swappiness": "auto", **{f"vm.{key}": value for key, value in values.items()}}


def test_swappiness_follows_the_swap_policy() -> None:
    floor = ("leave", "")
    assert sysctl.tuning(wishes(), floor, "swappiness0", {}).values["vm.swappiness"] == "0"
    assert "vm.swappiness" not in sysctl.tuning(wishes(), floor, "off", {}).values
    assert sysctl.tuning(wishes(swappiness="10"), floor, "swappiness0", {}).values["vm.swappiness"] == "10"


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a floor in words": ({"wish": "3 GiB"}, "sysctl_min_free_kbytes is '3 GiB': write auto, leave or a number of KiB, such as 3145728"),
    "a floor that starves": ({"wish": str(20 * memory.GIB_KB)}, "more than 10 % of this node's .* which starves it: choose at most"),
    "a value in words": ({"values": wishes(dirty_ratio="five")}, "sysctl_dirty_ratio is 'five': write a whole number or leave"),
    "auto where there is none": ({"values": wishes(dirty_ratio="auto")}, "sysctl_dirty_ratio is 'auto'"),
    "background above": ({"values": wishes(dirty_background_ratio="5")}, "the background one has to be the smaller"),
    "no sysctl": ({"extra": {"min_free_kbytes": 5}}, "sysctl_settings has the key 'min_free_kbytes', which is no sysctl"),
    "twice": ({"extra": {"vm/dirty_ratio": 5}}, "sysctl_settings sets vm.dirty_ratio, which has a variable of its own: use sysctl_dirty_ratio"),
}


@pytest.mark.parametrize(("case", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(case: dict[str, Any], message: str) -> None:
    with pytest.raises(SysctlError, match=message):
        sysctl.tuning(case.get("values", wishes()), sysctl.choose_floor(case.get("wish", "auto"), TOTAL_121, BY_CLASS, 2.5), "off", case.get("extra", {}))


def test_a_key_that_the_kernel_lacks() -> None:
    with pytest.raises(SysctlError, match=r"this kernel has no vm\.swapines \(/proc/sys/vm/swapines does not exist\): misspelt in sysctl_settings"):
        sysctl.live_writes({"vm.swapines": "1"}, {})


def test_live_writes_are_only_what_differs() -> None:
    assert sysctl.live_writes({"vm.b": "2", "vm.a": "1"}, {"vm.a": "1", "vm.b": "3"}) == {"vm.b": "2"}


def test_the_record_keeps_the_first_values_and_undo_writes_them() -> None:
    live = {"vm.dirty_ratio": "20", "vm.swappiness": "60"}
    before = sysctl.record_before({}, {"vm.dirty_ratio": "5"}, live)
    again = sysctl.record_before({"live": before}, {"vm.dirty_ratio": "7", "vm.swappiness": "0"}, {**live, "vm.dirty_ratio": "5"})
    assert again == live
    assert sysctl.given_back(again, {}, {"vm.dirty_ratio": "7", "vm.swappiness": "60"}) == {"vm.dirty_ratio": "20"}
    assert sysctl.given_back(again, {"vm.dirty_ratio": "7"}, {"vm.dirty_ratio": "7", "vm.swappiness": "0"}) == {"vm.swappiness": "60"}


def test_undo_brings_back_bytes_where_bytes_were_in_force() -> None:
    live = {"vm.dirty_ratio": "0", "vm.dirty_bytes": "1048576"}
    before = sysctl.record_before({}, {"vm.dirty_ratio": "5"}, live)
    now = {"vm.dirty_ratio": "5", "vm.dirty_bytes": "0"}
    assert sysctl.given_back(before, {"vm.dirty_ratio": "5"}, now) == {}
    assert sysctl.given_back(before, {}, now) == {"vm.dirty_bytes": "1048576"}


def test_a_value_that_did_not_stay_names_who_may_have_set_it() -> None:
    wanted = {"vm.swappiness": "0"}
    assert sysctl.mismatch_message(wanted, {"vm.swappiness": "0"}) == ""
    assert "vm.swappiness is 10 where 0 was set: tuned (throughput) runs here" in sysctl.mismatch_message(
        wanted, {"vm.swappiness": "10"}, ["tuned (throughput)"]
    )
    assert "look for a service that sets it" in sysctl.mismatch_message(wanted, {})


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
    problem = sysctl.headroom_problem(meminfo, int(cost * memory.GIB_KB), "3145728")
    assert (problem == "") is fine
    if not fine:
        assert "stop the serving group first (playbooks/stop.yml)" in problem


def test_the_file_is_sorted_and_marked() -> None:
    assert sysctl.render({"vm.b": "2", "vm.a": "1"}) == sysctl.MARKER + "\nvm.a = 1\nvm.b = 2\n"
