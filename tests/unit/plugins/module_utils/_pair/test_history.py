"""The memory that an agent keeps over time."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import parse_series
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence
from ansible_collections.gb10.cluster.plugins.module_utils._pair.evidence import DAY_MOST, MEMORY_FILE, MOST, History
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder

START = 1_795_000_000
SAMPLE: dict[str, Any] = {"memory": {"free_kib": 2 << 20, "available_kib": 100 << 20, "swap_free_kib": 16 << 20}}


class Kept:
    """A history whose clock the test sets."""

    def __init__(self, folder: Path) -> None:
        self.now = float(START)
        self.path = folder / "agent" / MEMORY_FILE
        self.writes = 0
        self.state = Folder(str(folder), "agent")
        self.history = History(self.state, lambda: self.now)

    def sample(self, seconds: float, step: float = 2.0) -> None:
        end = self.now + seconds
        while self.now < end:
            before = self.path.stat().st_ino if self.path.exists() else 0
            self.history.add(SAMPLE)
            self.writes += self.path.exists() and self.path.stat().st_ino != before
            self.now += step


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_the_last_half_hour_is_kept_in_steps_of_five_seconds_and_the_day_in_minutes(kept: Kept) -> None:
    kept.sample(3600)
    recent, day = (parse_series(kept.history.shown()[key]) for key in ("recent", "day"))
    assert len(recent) == MOST
    assert 5 <= recent[1].seconds - recent[0].seconds <= 6
    assert len(day) == 60
    assert day[0][1:] == (2 << 10, 100 << 10, 16 << 10)


def test_two_days_stay_within_the_bounds_of_memory_and_disk(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "SAVE_SECONDS", 14400.0)  # tracemalloc makes each write slow
    tracemalloc.start()
    kept.sample(2 * 86400, step=60)
    used, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parse_series(kept.history.shown()["day"], 5000)) == DAY_MOST
    assert used < 2 << 20
    assert kept.path.stat().st_size < 64 << 10


def test_a_quarter_of_an_hour_costs_one_write(kept: Kept) -> None:
    kept.sample(3600 - 2)
    assert kept.writes == 3


def test_the_day_survives_a_restart_of_the_agent(kept: Kept) -> None:
    kept.sample(600)
    kept.history.save()
    later = Kept(kept.path.parents[1])
    later.now = kept.now + 60
    later.sample(120)
    day = parse_series(later.history.shown()["day"])
    assert [day[0].seconds, len(day)] == [START, 12]
