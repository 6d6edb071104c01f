"""The page-cache guard on a /proc made of files, and as the process that it is on a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import page_cache_guard
from ansible_collections.gb10.cluster.plugins.module_utils._node.page_cache_guard import Guard


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a /proc with 5000 KiB free."""
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/drop_caches").write_text("")
    (tmp_path / "sys/vm/compact_memory").write_text("")
    (tmp_path / "meminfo").write_text("MemTotal: 10000 kB\nMemFree:     5000 kB\n")
    return tmp_path


def test_enough_memory_is_left_alone(proc: Path) -> None:
    guard = Guard(4000, str(proc))
    assert guard.step() is False
    assert (proc / "sys/vm/drop_caches").read_text() == ""
    assert tuple(guard.receipt[key] for key in ("looks", "drops", "lowest_free_kb")) == (1, 0, 5000)


def test_below_the_floor_the_cache_goes(proc: Path) -> None:
    guard = Guard(6000, str(proc))
    assert guard.step() is True
    assert (proc / "sys/vm/drop_caches").read_text() == "3\n"
    assert (proc / "sys/vm/compact_memory").read_text() == "1\n"
    (proc / "meminfo").write_text("MemTotal: 10000 kB\nMemFree:      100 kB\n")
    guard.step()
    assert guard.receipt["lowest_free_kb"] == 100


def test_memory_that_is_not_cache_is_walked_once_a_second(proc: Path) -> None:
    now = [10.0]
    guard = Guard(6000, str(proc), lambda: now[0])
    acted = []
    for now[0] in (10.0, 10.1, 10.9, 11.0, 11.1, 12.1):
        acted.append(guard.step())
    assert acted == [True, False, False, True, False, True]


def test_a_cache_that_fills_at_once_is_dropped_at_each_step_and_compacted_once_a_second(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    guard = Guard(6000, str(proc), lambda: now[0])
    free = iter([100, 100 + page_cache_guard.LITTLE_KB] * 4)
    monkeypatch.setattr(guard, "free_kb", lambda: next(free))
    written: list[int] = []
    monkeypatch.setattr(os, "pwrite", lambda descriptor, _data, _offset: written.append(descriptor))
    for now[0] in (10.0, 10.1, 10.2, 11.0):
        assert guard.step() is True
    assert written == [guard.drop, guard.compact, guard.drop, guard.drop, guard.drop, guard.compact]
    assert guard.receipt["freed_kb"] == 4 * page_cache_guard.LITTLE_KB


def test_an_unreadable_meminfo_is_counted_and_drops_nothing(proc: Path) -> None:
    (proc / "meminfo").write_text("")
    guard = Guard(6000, str(proc))
    assert guard.step() is False
    assert tuple(guard.receipt[key] for key in ("errors", "drops", "lowest_free_kb")) == (1, 0, -1)


@pytest.mark.parametrize(("stop", "reason"), [(True, "stopped"), (False, "time limit")])
def test_as_a_process_it_leaves_a_receipt(proc: Path, stop: bool, reason: str) -> None:
    receipt = proc / "receipt.json"
    seconds = "30" if stop else "0.3"
    options = ["--floor-kb=6000", f"--seconds={seconds}", f"--receipt={receipt}", f"--proc={proc}"]
    command = [sys.executable, page_cache_guard.__file__, *options]
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 20
        while not (proc / "sys/vm/drop_caches").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        if stop:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    data = json.loads(receipt.read_text())
    assert data["reason"] == reason
    assert data["drops"] >= 1
    assert data["lowest_free_kb"] == 5000
