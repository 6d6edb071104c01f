"""The memory facts of captured trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, no_commands
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import GIB_KB

ZONEINFO = """Node 0, zone      DMA
  pages free     1000
        boost    0
        min      100
        low      125
        high     150
        managed  1048576
        protection: (0, 0, 480)
Node 0, zone   Normal
  pages free     3000
        min      200
        low      250
        high     300
        managed  30851792
        protection: (0, 0, 0)
"""


def put(root: Path, path: str, text: str) -> None:
    """Write one file of a tree."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a stock Spark's tree."""
    rows = {"MemTotal": 121.69, "MemFree": 114.0, "MemAvailable": 113.0, "AnonPages": 2.0, "Cached": 3.0}
    put(tmp_path, "proc/meminfo", "".join(f"{key}: {int(value * GIB_KB)} kB\n" for key, value in rows.items()))
    put(tmp_path, "proc/zoneinfo", ZONEINFO)
    put(tmp_path, "proc/buddyinfo", "Node 0, zone      DMA      1      1\nNode 0, zone   Normal  9  9  9  9  9  9  9  9  9  9  3909\n")
    put(tmp_path, "proc/swaps", "Filename Type Size Used Priority\n/swap.img file 16777212 3670016 -2\n")
    put(tmp_path, "proc/cmdline", "quiet\n")
    put(tmp_path, "proc/sys/kernel/osrelease", "6.17.0-1032-nvidia\n")
    put(tmp_path, "proc/sys/vm/min_free_kbytes", "45167\n")
    return tmp_path


def gathered(root: Path) -> memory.Facts:
    """Read the facts of a tree."""
    return memory.gather(Node(str(root), no_commands))


def ask(root: Path) -> dict[str, Any]:
    """Return the report of a tree."""
    return memory.report(Node(str(root), no_commands), gathered(root))


def test_a_stock_spark(tree: Path) -> None:
    facts, result = gathered(tree), ask(tree)
    assert (facts.page_kb, facts.container, facts.vm) == (4, "", {"min_free_kbytes": 45167})
    assert [swap.used_kb for swap in facts.swaps] == [3670016]
    assert sum(zone.high_kb for zone in facts.zones) == 1800
    assert (result["size_class"], result["fragmentation"]["blocks_4mib"], result["problems"]) == ("121", 3909, [])
    assert memory.highest_utilization(result["available_kb"], result["total_kb"]) == 0.92
    assert memory.highest_utilization(result["free_kb"], result["total_kb"]) == 0.93


def test_all_problems_of_a_node_are_returned(tree: Path) -> None:
    rows = {"MemTotal": 121.69, "MemFree": 80.0, "AnonPages": 2.0, "Cached": 3.0}
    text = "".join(f"{key}: {int(value * GIB_KB)} kB\n" for key, value in rows.items())
    put(tree, "proc/meminfo", f"{text}CmaTotal: 0 kB\nCmaFree: 940604 kB\n")
    put(tree, "proc/buddyinfo", "Node 0, zone   Normal  9  9\n")
    put(tree, "proc/sys/vm/min_free_kbytes", "3145728\n")
    put(tree, "proc/sys/vm/watermark_boost_factor", "15000\n")
    assert [each["id"] for each in ask(tree)["problems"]] == ["kho_leak", "memory_stuck", "memory_fragmented", "watermark_boost"]


def test_an_engine_is_found_by_name_and_by_device(tree: Path) -> None:
    put(tree, "proc/7/comm", "VLLM::EngineCore\n")
    put(tree, "proc/8/comm", "python3\n")
    (tree / "proc/8/fd").mkdir()
    (tree / "proc/8/fd/5").symlink_to("/dev/nvidia-uvm")
    put(tree, "proc/9/comm", "bash\n")
    assert ask(tree)["gpu_users"] == ["VLLM::EngineCore (7)", "python3 (8)"]


CONTAINERS = {
    "systemd": ("run/systemd/container", "docker\n", "docker"),
    "docker": (".dockerenv", "", "docker"),
    "podman": ("run/.containerenv", "", "podman"),
    "the environment of pid 1": ("proc/1/environ", "PATH=/x\0container=lxc\0", "lxc"),
}


@pytest.mark.parametrize(("path", "text", "expected"), CONTAINERS.values(), ids=CONTAINERS.keys())
def test_containers_are_recognized(tree: Path, path: str, text: str, expected: str) -> None:
    put(tree, path, text)
    assert gathered(tree).container == expected


def test_a_kernel_without_memavailable_and_without_the_sum_of_huge_pages(tree: Path) -> None:
    rows = {"MemTotal": 121.69, "MemFree": 82.0, "AnonPages": 2.0, "Cached": 3.0, "Active(file)": 0.5, "Inactive(file)": 1.5}
    text = "".join(f"{key}: {int(value * GIB_KB)} kB\n" for key, value in rows.items())
    put(tree, "proc/meminfo", text + "HugePages_Total:   16384\nHugePages_Free:    16384\nHugepagesize:       2048 kB\n")
    result = ask(tree)
    assert result["problems"] == []
    assert result["available_kb"] == 84 * GIB_KB - 1800 - 1920 - 1500  # without the high watermarks, DMA's reserve and the low watermarks' share of the cache
    assert memory.highest_utilization(result["available_kb"], result["total_kb"]) == 0.69


def test_an_empty_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(memory.UmaError, match="it has neither MemTotal nor MemFree"):
        gathered(tmp_path)


@pytest.mark.parametrize("text", ["", "Node x, zone\nNode 0, zone Normal\n  managed many\n  protection: (a, b)\n/swap.img file 1 2 x\n", "\x00\x01Node"])
def test_files_other_than_meminfo_may_be_missing_or_not_valid(tree: Path, text: str) -> None:
    for path in [path for path in tree.rglob("*") if path.is_file() and path.name != "meminfo"]:
        path.write_text(text) if text else path.unlink()
    assert ask(tree)["total_kb"] == int(121.69 * GIB_KB)


# --- What is done with the memory of a node before an engine starts, on a tree of kernel files.

GIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    for name in ("drop_caches", "compact_memory"):
        (tmp_path / "proc/sys/vm" / name).write_text("")
    return tmp_path


def values(root: Path) -> list[str]:
    return [(root / "proc/sys/vm" / name).read_text() for name in ("drop_caches", "compact_memory")]


def test_dirty_pages_are_written_before_the_cache_is_dropped(root: Path) -> None:
    seen: list[tuple[list[str], list[str]]] = []

    def run(argv: object) -> tuple[int, str, str]:
        seen.append((list(argv), values(root)))  # type: ignore[call-overload]  # a list of words
        return 127 if argv == ["systemd-detect-virt", "--container"] else 0, "", ""

    assert memory.reclaim(Node(str(root), run)) == ""
    assert (["sync"], ["", ""]) in seen
    assert values(root) == ["3\n", "1\n"]


def test_a_container_leaves_the_page_cache_of_its_host(root: Path) -> None:
    (root / ".dockerenv").write_text("")
    note = memory.reclaim(Node(str(root)))
    assert note == (
        "This node is a container (docker), and the page cache belongs to its host. It is not dropped before the start, and MemAvailable is waited for"
        " instead of MemFree."
    )
    assert values(root) == ["", ""]


def test_the_largest_processes_the_cache_and_the_driver_are_named(root: Path) -> None:
    meminfo = {"MemTotal": 121, "MemFree": 5, "Buffers": 1, "Cached": 24, "Shmem": 2, "AnonPages": 30, "SReclaimable": 0}
    (root / "proc/meminfo").write_text("".join(f"{name}: {gib * GIB} kB\n" for name, gib in meminfo.items()))
    pages = GIB // 4
    for pid, name, resident, shared in ((7, "python3", 22 * pages, 2 * pages), (8, "ray::IDLE", 5 * pages, 0), (9, "sshd", 3000, 0), (10, "", 0, 0)):
        folder = root / "proc" / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "statm").write_text(f"99999999 {resident} {shared} 1 0 1 0\n" if name else "")
    assert memory.held_by(Node(str(root))) == (
        "MemFree 5.0 GiB, page cache 23.0 GiB, shared memory 2.0 GiB, python3 (PID 7) 20.0 GiB, ray::IDLE (PID 8) 5.0 GiB,"
        " neither a process nor cache, on a GB10 the GPU driver 61.0 GiB"
    )


def test_a_meminfo_that_is_not_valid_names_nothing(root: Path) -> None:
    (root / "proc/meminfo").write_text("nonsense\n")
    assert memory.held_by(Node(str(root))) == ""
