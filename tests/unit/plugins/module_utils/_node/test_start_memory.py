"""What is done with the memory of a node before an engine starts, on a tree of kernel files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory

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
