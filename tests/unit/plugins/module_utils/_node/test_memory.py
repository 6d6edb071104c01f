"""Unified memory: files of the kernel, the cost of a floor, what vLLM reads, and problems."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError, Node, no_commands
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import GIB_KB, Buddy, Kernel, Sample, Series, parse_series
from hypothesis import given
from hypothesis import strategies as st
from shared_samples import needs_shared, samples
from unit.fixtures.host.tree import Tree, meminfo

TOTAL_121 = int(121.69 * GIB_KB)
STOCK = 45167


def node(**values: float) -> dict[str, int]:
    """Return a meminfo of a 121 GiB node; values in GiB."""
    base = {"MemTotal": 121.69, "MemFree": 114.0, "MemAvailable": 113.0, "AnonPages": 2.0, "Cached": 3.0, "KReclaimable": 0.5, "SUnreclaim": 0.5}
    return {key: int(value * GIB_KB) for key, value in {**base, **values}.items()}


def test_the_cost_of_a_floor_is_that_of_the_watermarks_of_this_kernel() -> None:
    """A guest's zones need not add up to its MemTotal (memory that comes on demand). A boost that lasts is in the printed watermarks."""
    text, vm = Path("/proc/zoneinfo").read_text(), {name: int(Path(f"/proc/sys/vm/{name}").read_text()) for name in memory.VM_KEYS}
    found = re.findall(r"(?m)^ +(boost|high|managed) +(\d+)$", text)
    pages = {name: sum(int(count) for each, count in found if each == name) for name in ("boost", "high", "managed")}
    total, high = (kb * (os.sysconf("SC_PAGE_SIZE") // 1024) for kb in (pages["managed"], pages["high"] - pages["boost"]))
    without_floor = 2 * (total * vm["watermark_scale_factor"] // 10000)
    cost = memory.floor_cost_kb({"MemTotal": total}, 0, vm["min_free_kbytes"], vm["watermark_scale_factor"])
    assert abs(without_floor + cost - high) <= max(64, high // 50)


@pytest.mark.parametrize(("floor", "least", "most"), [(45167, 0.0, 0.0), (3145728, 4.1, 5.2), (4194304, 5.6, 6.8), (5242880, 7.0, 8.5)])
def test_the_cost_of_a_floor(floor: int, least: float, most: float) -> None:
    """4 GiB were measured at 6.2 GiB."""
    meminfo = node(**{"Active(file)": 1.0, "Inactive(file)": 1.0})
    assert least <= memory.gib(memory.floor_cost_kb(meminfo, STOCK, floor, 10)) <= most


@given(st.integers(0, 8 * GIB_KB), st.integers(0, 8 * GIB_KB), st.integers(1, 1000))
def test_a_higher_floor_never_costs_less(one: int, two: int, scale: int) -> None:
    low, high = sorted((one, two))
    meminfo = node()
    assert memory.floor_cost_kb(meminfo, 0, low, scale) <= memory.floor_cost_kb(meminfo, 0, high, scale)


@needs_shared
def test_a_real_119_gib_node() -> None:
    text = (samples() / "free-h.gb10-vllm-running.txt").read_text()
    match = re.search(r"MiB Mem :\s*([\d.]+) total.*\n.*used\.\s*([\d.]+) avail", text)
    assert match is not None
    total, available = (int(float(word) * 1024) for word in match.groups())
    assert memory.highest_utilization(available, total) == 0.01
    assert memory.gib(total) == 119.63


@needs_shared
def test_the_kho_leak_before_and_after() -> None:
    text = (samples() / "meminfo.kho-leak-before-after.txt").read_text()
    leaking = memory.parse_meminfo(text)
    found = memory.cma_problem(leaking, Kernel("7.0.0-1019-nvidia", "quiet"))
    assert found is not None
    assert found.id == "kho_leak"
    after = re.search(r"after kho=off:  CmaFree (\d+), MemFree \(idle\) (\d+) GiB", text)
    assert after is not None
    for free in (int(after.group(1)), 100):
        assert memory.cma_problem({"CmaTotal": free, "CmaFree": free}, Kernel()) is None
    assert memory.cma_problem({"MemFree": 1}, Kernel()) is None


KHO: dict[str, tuple[str, str, str]] = {
    "default": ("quiet splash", "0", "set sysctl_kho_off: true, run site.yml --tags sysctl and then playbooks/reboot.yml, or boot kernel 6.17.0-1032"),
    "a crash kernel is reserved": ("quiet crashkernel=1G", "512", "kho=off is not safe here, because /sys/kernel/kexec_crash_size is 512"),
    "already off": ("kho=off", "0", "kho=off is on the kernel command line already, so reboot"),
}


@pytest.mark.parametrize(("cmdline", "crash", "remedy"), KHO.values(), ids=KHO.keys())
def test_the_kho_remedy_fits_the_node(cmdline: str, crash: str, remedy: str) -> None:
    found = memory.cma_problem({"CmaTotal": 0, "CmaFree": 1}, Kernel("7.0.0", cmdline, crash))
    assert found is not None
    assert remedy in found.remedy
    same = memory.cma_problem({"CmaTotal": 0, "CmaFree": 1}, Kernel("6.17.0-1032-nvidia", cmdline, crash))
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
        state = memory.fragmentation([row], 4)
        assert state["blocks_4mib"] == huge
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
    state = memory.fragmentation([Buddy(0, "DMA", (1,)), Buddy(0, "Normal", blocks)], 4)
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
    assert [(row.device, row.kind, row.used_kb) for row in memory.parse_swaps(SWAPS)] == [
        ("/swap.img", "file", 3670016), ("/dev/zram0", "partition", 0), ("/my swap", "file", 0),
    ]  # fmt: skip


def test_utilization_has_bounds() -> None:
    cases: list[tuple[Any, ...]] = [(5, 0, 0.0), (-5, 100, 0.0), (500, 100, 1.0), (81, 100, 0.81)]
    assert [memory.highest_utilization(free, total) for free, total, _answer in cases] == [answer for _free, _total, answer in cases]


# --- The memory facts of captured trees.

@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Return a stock Spark's tree."""
    tree = Tree(tmp_path)
    tree.put("proc/meminfo", meminfo())
    tree.put("proc/buddyinfo", "Node 0, zone      DMA      1      1\nNode 0, zone   Normal  9  9  9  9  9  9  9  9  9  9  3909\n")
    tree.put("proc/swaps", "Filename Type Size Used Priority\n/swap.img file 16777212 3670016 -2\n")
    tree.put("proc/cmdline", "quiet\n")
    tree.put("proc/sys/kernel/osrelease", "6.17.0-1032-nvidia\n")
    for name, text in (("min_free_kbytes", "45167\n"), ("drop_caches", ""), ("compact_memory", "")):
        tree.put(f"proc/sys/vm/{name}", text)
    return tree


def gathered(tree: Tree) -> memory.Facts:
    """Read the facts of a tree."""
    return memory.gather(Node(str(tree.root), no_commands))


def ask(tree: Tree) -> dict[str, Any]:
    """Return the report of a tree."""
    return memory.report(gathered(tree))


def test_a_stock_spark(tree: Tree) -> None:
    facts, result = gathered(tree), ask(tree)
    assert (facts.container, facts.vm) == ("", {"min_free_kbytes": 45167})
    assert (memory.fragmentation(facts.buddies, facts.page_kb)["blocks_4mib"], result["problems"]) == (3909, [])
    assert memory.highest_utilization(facts.meminfo["MemAvailable"], result["total_kb"]) == 0.92
    assert memory.highest_utilization(facts.meminfo["MemFree"], result["total_kb"]) == 0.93


def test_all_problems_of_a_node_are_returned(tree: Tree) -> None:
    tree.put("proc/meminfo", meminfo(MemFree=80.0, MemAvailable=79.0, CmaFree=0.897))
    tree.put("proc/buddyinfo", "Node 0, zone   Normal  9  9\n")
    tree.put("proc/sys/vm/min_free_kbytes", "3145728\n")
    tree.put("proc/sys/vm/watermark_boost_factor", "15000\n")
    assert [each["id"] for each in ask(tree)["problems"]] == ["kho_leak", "memory_stuck", "memory_fragmented", "watermark_boost"]


def test_an_engine_is_found_by_name_and_by_device(tree: Tree) -> None:
    tree.put("proc/7/comm", "VLLM::EngineCore\n")
    tree.put("proc/8/comm", "python3\n")
    (tree.root / "proc/8/fd").mkdir()
    (tree.root / "proc/8/fd/5").symlink_to("/dev/nvidia-uvm")
    tree.put("proc/9/comm", "bash\n")
    assert gathered(tree).gpu_users == ["VLLM::EngineCore (7)", "python3 (8)"]


@pytest.mark.parametrize(("path", "text"), [("run/systemd/container", "docker\n"), (".dockerenv", "")])
def test_containers_are_recognized(tree: Tree, path: str, text: str) -> None:
    tree.put(path, text)
    assert gathered(tree).container == "docker"


def test_an_empty_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="does not have MemFree"):
        gathered(Tree(tmp_path))


@pytest.mark.parametrize("text", ["", "Node x, zone\nNode 0, zone Normal many\n/swap.img file 1 2 x\n", "\x00\x01Node"])
def test_files_other_than_meminfo_may_be_missing_or_not_valid(tree: Tree, text: str) -> None:
    for path in [path for path in tree.root.rglob("*") if path.is_file() and path.name != "meminfo"]:
        path.write_text(text) if text else path.unlink()
    assert ask(tree)["total_kb"] == int(121.69 * GIB_KB)


# --- What is done with the memory of a node before an engine starts.


def values(tree: Tree) -> list[str]:
    return [tree.get(f"/proc/sys/vm/{name}") for name in ("drop_caches", "compact_memory")]


def test_dirty_pages_are_written_before_the_cache_is_dropped(tree: Tree) -> None:
    seen: list[tuple[list[str], list[str]]] = []

    def run(argv: object) -> tuple[int, str, str]:
        seen.append((list(argv), values(tree)))  # type: ignore[call-overload]  # a list of words
        return 127 if argv == ["systemd-detect-virt", "--container"] else 0, "", ""

    assert memory.reclaim(Node(str(tree.root), run)) == ""
    assert (["sync"], ["", ""]) in seen
    assert values(tree) == ["3\n", "1\n"]


def test_a_container_leaves_the_page_cache_of_its_host(tree: Tree) -> None:
    tree.put(".dockerenv", "")
    note = memory.reclaim(Node(str(tree.root)))
    assert note == (
        "This node is a container (docker), and the page cache belongs to its host. It is not dropped before the start, and MemAvailable is waited for"
        " instead of MemFree."
    )
    assert values(tree) == ["", ""]


def test_the_largest_processes_the_cache_and_the_driver_are_named(tree: Tree) -> None:
    tree.put("proc/meminfo", meminfo(MemTotal=121, MemFree=5, Buffers=1, Cached=24, Shmem=2, AnonPages=30))
    pages = GIB_KB // 4
    for pid, name, resident, shared in ((7, "python3", 22 * pages, 2 * pages), (8, "ray::IDLE", 5 * pages, 0), (9, "sshd", 3000, 0), (10, "", 0, 0)):
        tree.put(f"proc/{pid}/comm", f"{name}\n")
        tree.put(f"proc/{pid}/statm", f"99999999 {resident} {shared} 1 0 1 0\n" if name else "")
    assert memory.held_by(Node(str(tree.root))) == (
        "MemFree 5.0 GiB, page cache 23.0 GiB, shared memory 2.0 GiB, python3 (PID 7) 20.0 GiB, ray::IDLE (PID 8) 5.0 GiB,"
        " neither a process nor cache, on a GB10 the GPU driver 61.0 GiB"
    )


def test_a_meminfo_that_is_not_valid_names_nothing(tree: Tree) -> None:
    tree.put("proc/meminfo", "nonsense\n")
    assert memory.held_by(Node(str(tree.root))) == ""


# --- A bounded series of memory samples and its compact text.


def reading(available: int, free: int = 1, swap: int = 16) -> dict[str, int]:
    return {"available_kib": available << 10, "free_kib": free << 10, "swap_free_kib": swap << 10}


def filled(series: Series, count: int, step: float = 5.0) -> Series:
    for number in range(count):
        series.add(number * step, reading(100 + number))
    return series


def test_the_text_of_a_series_is_read_back() -> None:
    series = filled(Series(5, 10), 3)
    assert series.text() == "0 1 100 16;5 1 101 16;10 1 102 16"
    assert parse_series(series.text()) == series.samples


def test_samples_that_are_nearer_than_the_step_are_left_out() -> None:
    assert [each.seconds for each in filled(Series(5, 100), 11, step=1.0).samples] == [0, 5, 10]


@pytest.mark.parametrize("count", [401, 5000, 100_000])
def test_a_boot_of_any_length_keeps_its_begin_and_its_end_within_the_bound(count: int) -> None:
    series = filled(Series(5, 400), count)
    assert 199 <= len(series.samples) <= 400
    assert series.samples[0].seconds == 0
    assert series.samples[-1].seconds >= (count - 1) * 5 - series.step


def test_a_ring_loses_the_oldest_sample() -> None:
    assert [each.seconds for each in filled(Series(60, 3, ring=True), 5, step=60).samples] == [120, 180, 240]


def test_a_clock_that_was_set_back_does_not_end_the_series() -> None:
    series = Series(60, 10, ring=True)
    for seconds in (10_000, 100, 170):
        series.add(seconds, reading(5))
    assert [each.seconds for each in series.samples] == [10_000, 100, 170]


@pytest.mark.parametrize("figures", [{}, {"total_kib": 5}, {"available_kib": 0}])
def test_a_reading_without_figures_is_no_sample(figures: dict[str, int]) -> None:
    series = Series(5, 10)
    series.add(1, figures)
    assert series.text() == ""


@pytest.mark.parametrize("text", ["", "x", "1 2 3", "-1 2 3 4", "1 2 3 4 5", "1 2 3 " + "9" * 40, None, 7, ["1 2 3 4"]])
def test_what_is_not_a_sample_is_left_out(text: object) -> None:
    assert parse_series(text) == []
    if isinstance(text, str):
        assert parse_series(f"{text};5 1 2 3") == [Sample(5, 1, 2, 3)]


def test_a_text_without_a_bound_is_read_to_its_last_samples() -> None:
    assert len(parse_series("1 2 3 4;" * 50_000 + "2 2 3 4", 100)) == 100
