"""The line of progress is parsed to what it was made of, and no other line is taken for one."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common import progress
from hypothesis import example, given
from hypothesis import strategies as st

HOSTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)
WORDS = st.from_regex(r"[a-z]{1,9}( [a-z]{1,9}){0,2}", fullmatch=True)
PERCENT = st.none() | st.integers(0, 100)
AMOUNT = st.from_regex(r"[1-9][0-9]{0,3}\.[0-9] (KiB|MiB|GiB)", fullmatch=True)
# A time that is shown is rounded up to its unit.
LEFT = st.none() | st.integers(0, 99) | st.integers(2, 99).map(lambda n: n * 60) | st.integers(2, 200).map(lambda n: n * 3600)


@given(HOSTS, WORDS, PERCENT, AMOUNT, AMOUNT, LEFT, st.lists(st.from_regex(r"[0-9]{1,4} MB/s|[0-9] of [0-9] files", fullmatch=True), max_size=2))
def test_a_line_is_parsed_to_what_it_was_made_of(host: str, what: str, percent: int | None, done: str, total: str, left: int | None, notes: list[str]) -> None:
    line = progress.text(host, what, percent, done, total, left, notes)
    seen = progress.parse(line)
    assert seen is not None
    assert (seen.host, seen.what, seen.percent, seen.done, seen.total, seen.notes) == (host, what, percent, done, total, tuple(notes))
    assert (seen.seconds_left is None) == (left is None)
    assert left is None or left <= (seen.seconds_left or 0) <= left + max(59, left // 50)


@given(st.integers(0, 99), HOSTS, st.sampled_from(["starting", "load", "kv", "not started"]), PERCENT, st.sampled_from(["", "MemFree 31.0 GiB"]), LEFT)
@example(0, "lab-1", "load", 100, "MemFree 15.9 GiB", None)
def test_a_line_of_a_boot_is_parsed_with_and_without_its_time(rank: int, host: str, stage: str, percent: int | None, memory: str, left: int | None) -> None:
    line = progress.boot_text(rank, host, stage, percent, memory, left)
    seen = progress.parse(line)
    assert seen is not None
    assert (seen.host, seen.what, seen.percent, seen.notes) == (host, stage, percent, (memory,) if memory else ())
    assert progress.parse(f"[pair1 +  93 s] {line}") == seen


@given(st.text(max_size=300))
def test_any_text_is_parsed_without_an_error(line: str) -> None:
    progress.parse(line)


@pytest.mark.parametrize(
    "line",
    [
        "", "  endpoint     http://172.30.70.11:8000/v1", "  KV pool: 4,194,304 tokens, 1024.0 requests at full context at once", "  release: 0b8e719d1f28",
        "[pair1 +   0 s] pair1 starts release 0b8e719d1f28", "  memory: 18.0 GiB available, 14.7 GiB free, of 23.5 GiB",
        "sysctl      lab-1 ok   lab-2 ok   1 s", "  changed   lab-1: Install",
        "[pair1 +   0 s] rank 0 on lab-1, rank 1 on lab-2: This node is a container (docker)", "  spark-1: weights  45 %\n  spark-2: weights  45 %",
    ],
)  # fmt: skip
def test_other_lines_are_not_progress(line: str) -> None:
    assert progress.parse(line) is None


def test_the_remaining_time_is_that_of_the_average_rate() -> None:
    pace = progress.Pace()
    assert pace.seconds_left(0.0, 0, 1000) is None, "no rate yet"
    assert pace.seconds_left(5.0, 100, 1000) is None, "too soon"
    assert pace.seconds_left(20.0, 200, 1000) == 80.0
    assert pace.seconds_left(40.0, 200, 1000) == 160.0, "a stall makes it longer"
    assert pace.seconds_left(50.0, 1000, 1000) is None, "nothing is left"


def test_no_remaining_time_without_movement_and_a_new_rate_after_a_restart() -> None:
    pace = progress.Pace()
    assert [pace.seconds_left(float(now), 500, 1000) for now in (0, 60, 120)] == [None] * 3
    assert pace.seconds_left(130.0, 0, 1000) is None
    assert pace.seconds_left(150.0, 500, 1000) == 20.0


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5999, "100 min"), (6001, "2 h")])
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert progress.duration(seconds) == shown
