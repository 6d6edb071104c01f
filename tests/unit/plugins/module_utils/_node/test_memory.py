"""Unified memory: files of the kernel, the cost of a floor, what vLLM reads, and problems."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import GIB_KB, Buddy, Zone
from hypothesis import given
from hypothesis import strategies as st
from shared_samples import needs_shared, samples

TOTAL_121 = int(121.69 * GIB_KB)
SPARK = [Zone(0, "DMA", 4 * GIB_KB, 0, 0, 0, 0, 0), Zone(0, "Normal", TOTAL_121 - 4 * GIB_KB, 0, 0, 0, 0, 0)]
STOCK = (45167, 10)

ZONEINFO = "Node 0, zone DMA\n        managed  2000\nNode 0, zone Normal\n        managed  8000\n"


def node(**values: float) -> dict[str, int]:
    """Return a meminfo of a 121 GiB node; values in GiB."""
    base = {"MemTotal": 121.69, "MemFree": 114.0, "MemAvailable": 113.0, "AnonPages": 2.0, "Cached": 3.0, "SReclaimable": 0.5, "SUnreclaim": 0.5}
    return {key: int(value * GIB_KB) for key, value in {**base, **values}.items()}


@pytest.mark.parametrize(("page_kb", "total"), [(4, 40000), (16, 160000), (64, 640000)])
def test_the_page_size_is_the_one_with_which_the_zones_add_up(page_kb: int, total: int) -> None:
    assert memory.page_size_kb({"MemTotal": total}, ZONEINFO) == page_kb
    assert memory.page_size_kb({"MemTotal": total}, None) == 4


def test_computes_memavailable_as_this_kernel() -> None:
    """The calculation against the kernel that runs the tests: within 2 % of MemTotal."""
    facts = memory.gather(Node())
    assert abs(memory.available_kb(facts.meminfo, facts.zones) - facts.meminfo["MemAvailable"]) < facts.meminfo["MemTotal"] // 50


def test_computes_watermarks_as_this_kernel() -> None:
    """While a boost lasts, /proc/zoneinfo shows the watermarks with it. A guest's zones need not add up to its MemTotal (memory that comes on demand)."""
    zones = memory.gather(Node()).zones
    floor = int(Path("/proc/sys/vm/min_free_kbytes").read_text())
    scale = int(Path("/proc/sys/vm/watermark_scale_factor").read_text())
    for planned, live in zip(memory.watermarks(zones, floor, scale), zones, strict=True):
        assert abs(planned.min_kb + live.boost_kb - live.min_kb) <= max(64, live.min_kb // 50), live
        assert abs(planned.high_kb + live.boost_kb - live.high_kb) <= max(64, live.high_kb // 50), live


BOOSTED = """Node 0, zone   Normal
  pages free     20000000
        boost    {boost}
        min      {min}
        low      {low}
        high     {high}
        managed  30000000
        protection: (0, 0, 0)
"""


@pytest.mark.parametrize("boost", [0, 5000, 2000000])
def test_a_boost_is_in_the_printed_watermarks_and_not_in_the_reserve(boost: int) -> None:
    zones = memory.parse_zoneinfo(BOOSTED.format(boost=boost, min=10000 + boost, low=40000 + boost, high=70000 + boost), 4)
    assert (zones[0].low_kb, zones[0].boost_kb) == ((40000 + boost) * 4, boost * 4)
    free = 20000000 * 4
    assert memory.available_kb({"MemFree": free}, zones) == free - 70000 * 4
    # the part of the page cache that cannot be given away follows `low` with its boost, and is half of the cache at most
    cached = memory.available_kb({"MemFree": free, "Inactive(file)": 8000000}, zones)
    assert cached == free - 70000 * 4 + 8000000 - min(4000000, (40000 + boost) * 4)


@pytest.mark.parametrize(("floor", "least", "most"), [(45167, 0.0, 0.0), (3145728, 4.1, 5.2), (4194304, 5.6, 6.8), (5242880, 7.0, 8.5)])
def test_the_cost_of_a_floor(floor: int, least: float, most: float) -> None:
    """4 GiB were measured at 6.2 GiB."""
    meminfo = node(**{"Active(file)": 1.0, "Inactive(file)": 1.0})
    assert least <= memory.gib(memory.floor_cost_kb(meminfo, SPARK, STOCK, (floor, 10))) <= most


@given(st.integers(0, 8 * GIB_KB), st.integers(0, 8 * GIB_KB), st.integers(1, 1000))
def test_a_higher_floor_never_costs_less(one: int, two: int, scale: int) -> None:
    low, high = sorted((one, two))
    meminfo = node()
    assert memory.floor_cost_kb(meminfo, SPARK, (0, scale), (low, scale)) <= memory.floor_cost_kb(meminfo, SPARK, (0, scale), (high, scale))


@needs_shared
def test_a_real_119_gib_node() -> None:
    text = (samples() / "free-h.gb10-vllm-running.txt").read_text()
    match = re.search(r"MiB Mem :\s*([\d.]+) total.*\n.*used\.\s*([\d.]+) avail", text)
    assert match is not None
    total, available = (int(float(word) * 1024) for word in match.groups())
    assert memory.node_class(total) == "119"
    assert memory.highest_utilization(available, total) == 0.01
    assert memory.gib(total) == 119.63


@needs_shared
def test_the_kho_leak_before_and_after() -> None:
    text = (samples() / "meminfo.kho-leak-before-after.txt").read_text()
    leaking = memory.parse_meminfo(text)
    assert leaking["MemFree"] == 88 * GIB_KB
    found = memory.cma_problem(leaking, "7.0.0-1019-nvidia", "quiet", 0)
    assert found is not None
    assert found.id == "kho_leak"
    after = re.search(r"after kho=off:  CmaFree (\d+), MemFree \(idle\) (\d+) GiB", text)
    assert after is not None
    for free in (int(after.group(1)), 100):
        assert memory.cma_problem({"CmaTotal": free, "CmaFree": free}) is None
    assert memory.cma_problem({"MemFree": 1}) is None


KHO: dict[str, tuple[str, int | None, str]] = {
    "default": ("quiet splash", 0, "set sysctl_kho_off: true, run site.yml --tags sysctl and then playbooks/reboot.yml, or boot kernel 6.17.0-1032"),
    "a crash kernel is reserved": ("quiet crashkernel=1G", 512, "kho=off is not safe here, because /sys/kernel/kexec_crash_size is 512"),
    "already off": ("kho=off", 0, "kho=off is on the kernel command line already, so reboot"),
}


@pytest.mark.parametrize(("cmdline", "crash", "remedy"), KHO.values(), ids=KHO.keys())
def test_the_kho_remedy_fits_the_node(cmdline: str, crash: int | None, remedy: str) -> None:
    found = memory.cma_problem({"CmaTotal": 0, "CmaFree": 1}, "7.0.0", cmdline, crash)
    assert found is not None
    assert remedy in found.remedy
    same = memory.cma_problem({"CmaTotal": 0, "CmaFree": 1}, "6.17.0-1032-nvidia", cmdline, crash)
    assert same is not None
    assert "6.17.0-1032" not in same.remedy


STUCK: dict[str, tuple[dict[str, int], list[str], str]] = {
    "a failed run left 33 GiB": (node(MemFree=80.0), [], "35.69 GiB of 121.69 GiB belong to no process"),
    "about 100 GiB until reboot": (node(MemFree=12.0, MemAvailable=14.0), [], "wait up to 60 s"),
    "the same while an engine runs": (node(MemFree=12.0), ["VLLM::Worker_TP (4)"], ""),
    "an idle node": (node(), [], ""),
    "the driver's own share": (node(MemFree=110.0), [], ""),
    "what the handover keeps": (node(MemFree=104.0, CmaTotal=0.0, CmaFree=0.9), [], ""),
    "more than the handover keeps": (node(MemFree=80.0, CmaTotal=0.0, CmaFree=0.9), [], "35.69 GiB of 121.69 GiB belong to no process"),
}


@pytest.mark.parametrize(("meminfo", "users", "expected"), STUCK.values(), ids=STUCK.keys())
def test_memory_that_stays_with_the_driver(meminfo: dict[str, int], users: list[str], expected: str) -> None:
    found = memory.stuck_problem(meminfo, users)
    assert (found is not None) is bool(expected)
    if found is not None:
        assert expected in found.found + found.remedy


@needs_shared
def test_fragmentation_tables() -> None:
    """Each row of the published table as a buddyinfo row: only the fresh boot has large blocks."""
    rows = re.findall(
        r"^\| (?:\*?)([\w ]+?)(?:\*?) \|[^|]*\| (?:\*?)([\d,]+)[^|]*\| \*{0,2}(\d+)\*{0,2} \|$",
        (samples() / "fragmentation.tables.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 5
    verdicts = {}
    for name, one_mib, four_mib in rows:
        big, huge = int(one_mib.replace(",", "")), int(four_mib)
        row = Buddy(0, "Normal", (5000, 100, 50, 10, 5, 2, 1, 1, big - huge, 0, huge))
        state = memory.fragmentation([row], [], 4)
        assert (state["blocks_1mib"], state["blocks_4mib"]) == (big, huge)
        verdicts[name] = memory.fragmentation_problem(state, {"MemTotal": TOTAL_121}, []) is not None
    assert verdicts == {"head": True, "worker 1": True, "worker 2": True, "worker 3": True, "fresh boot": False}


FRAGMENTS: dict[str, tuple[tuple[int, ...], int, list[str], bool]] = {
    "idle, no large block": ((9000, 900, 9), TOTAL_121, [], True),
    "under a loaded engine that is normal": ((9000, 900, 9), TOTAL_121, ["VLLM::EngineCore (1)"], False),
    "a small machine is not judged": ((9000, 900, 9), 2 * GIB_KB, [], False),
    "blocks of 16 MiB count": ((0,) * 12 + (27,), TOTAL_121, [], False),
}


@pytest.mark.parametrize(("blocks", "total", "users", "fragmented"), FRAGMENTS.values(), ids=FRAGMENTS.keys())
def test_fragmentation(blocks: tuple[int, ...], total: int, users: list[str], fragmented: bool) -> None:
    state = memory.fragmentation([Buddy(0, "DMA", (1,)), Buddy(0, "Normal", blocks)], SPARK, 4)
    assert state["zone"] == "Normal"
    assert (memory.fragmentation_problem(state, {"MemTotal": total}, users) is not None) is fragmented


@needs_shared
def test_memavailable_that_is_cache() -> None:
    """22.5 GiB available, 2.5 GiB really free: the figures at the moment the driver logged NV_ERR_NO_MEMORY."""
    text = (samples() / "uma-accounting.vllm54200.txt").read_text()
    available, cached = (float(word) for word in re.findall(r"`MemAvailable` reported ([\d.]+)|`Cached` was ([\d.]+)", text) for word in word if word)
    used, total = (float(word) for word in re.findall(r"at ([\d.]+) of ([\d.]+) GiB", text)[0])
    meminfo = node(MemTotal=total, MemFree=total - used, MemAvailable=available, Cached=cached)
    found = memory.cache_problem(meminfo)
    assert found is not None
    assert "MemAvailable is 22.5 GiB, but only 2.5 GiB are free" in found.found
    assert memory.cache_problem(node()) is None
    assert memory.cache_problem(node(MemFree=2.0, MemAvailable=4.0)) is None


@pytest.mark.parametrize(
    ("vm", "expected"),
    [
        ({"min_free_kbytes": 4194304, "watermark_boost_factor": 15000}, "can hold back 15.0 GiB"),
        ({"min_free_kbytes": 4194304, "watermark_boost_factor": 0}, ""),
        ({"min_free_kbytes": 45167, "watermark_boost_factor": 15000}, ""),
    ],
)
def test_a_boosted_floor(vm: dict[str, int], expected: str) -> None:
    found = memory.boost_problem(vm)
    assert (found.found if found else "").endswith(expected)
    assert (found is not None) is bool(expected)


SWAPS = """Filename				Type		Size		Used		Priority
/swap.img                               file		16777212	3670016		-2
/dev/zram0                              partition	8388604		0		100
/my\\040swap (deleted)                   file		1024		0		-3
"""


def test_swaps() -> None:
    rows = memory.parse_swaps(SWAPS)
    assert [(row.device, row.used_kb, row.priority) for row in rows[:2]] == [("/swap.img", 3670016, -2), ("/dev/zram0", 0, 100)]
    assert memory.parse_swaps("Filename\tType\tSize\tUsed\tPriority\n") == []


def test_utilization_has_bounds() -> None:
    cases: list[tuple[Any, ...]] = [(5, 0, 0.0), (-5, 100, 0.0), (500, 100, 1.0), (81, 100, 0.81)]
    assert [memory.highest_utilization(free, total) for free, total, _answer in cases] == [answer for _free, _total, answer in cases]
