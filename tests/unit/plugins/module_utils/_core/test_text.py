"""Aligned columns of text."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core import text
from ansible_collections.gb10.cluster.plugins.module_utils._core import text as t
from hypothesis import example, given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), ("", "-"), (True, "yes"), (False, "no"), (1990142, "1,990,142"), (0, "0"), (0.5, "0.5"), ("a\n b\x1b[2J", "a b\\x1b[2J"), ([], "[]")],
)
def test_a_value_is_one_printable_line(value: object, text: str) -> None:
    assert t.cell(value) == text


def test_a_long_cell_is_cut() -> None:
    assert t.cell("abcdef", 5) == "abcd…"
    assert t.cell("abcde", 5) == "abcde"


def test_numbers_are_to_the_right_and_text_to_the_left() -> None:
    assert t.table(("name", "tokens", "rate"), [("a", 5, "1.0-2.0"), ("longer", 1990142, None)]) == [
        "name       tokens     rate",
        "a               5  1.0-2.0",
        "longer  1,990,142        -",
    ]


def test_columns_line_up_with_wide_and_hostile_text() -> None:
    lines = t.table(("host", "state"), [("日本", "up"), ("a\x1b[31m", "down"), ("e\u0301", "up")])
    assert {t.width_of(line[: line.rindex("  ") + 2]) for line in lines} == {len("a\\x1b[31m") + 2}
    assert all(line.isprintable() for line in lines)


def test_a_table_without_header_or_rows() -> None:
    assert t.table(("", ""), [("SERVES", "pair1")]) == ["SERVES  pair1"]
    assert t.table(("a", "b"), []) == ["a  b"]


# --- Lines of progress, the stage of a boot in them, and the remaining time.

HOSTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)
PERCENT = st.none() | st.integers(0, 100)
LEFT = st.none() | st.integers(0, 10**6)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("spark-1", "copy", 45.9, "66.2 GiB", "148.0 GiB", 200.0, ["310 MB/s"]), "  spark-1: copy  45 %  66.2 GiB of 148.0 GiB  310 MB/s  4 min left"),
        (("spark-1", "build\nlayer", None, "3 layers", "", None, [""]), "  spark-1: build layer  3 layers"),
    ],
)
def test_a_line_has_the_parts_that_are_known(arguments: tuple[Any, ...], line: str) -> None:
    assert text.progress_text(*arguments) == line


@given(st.integers(0, 99), HOSTS, st.sampled_from(["starting", "load", "kv", "not started"]), PERCENT, st.sampled_from(["", "MemFree 31.0 GiB"]), LEFT)
@example(0, "lab-1", "load", 100, "MemFree 15.9 GiB", None)
def test_the_stage_of_a_boot_is_found_in_its_line(rank: int, host: str, stage: str, percent: int | None, memory: str, left: int | None) -> None:
    assert text.boot_stage(text.boot_text(rank, host, stage, percent, memory, left)) == (host, stage)


@pytest.mark.parametrize("line", ["", "pair1 starts release 0b8e719d1f28", "rank 0 on lab-1: This node is a container", "  spark-1: load  4 %"])
def test_other_lines_have_no_stage(line: str) -> None:
    assert text.boot_stage(line) is None


def test_the_remaining_time_is_that_of_the_average_rate() -> None:
    pace = text.Pace()
    assert pace.seconds_left(0.0, 0, 1000) is None, "no rate yet"
    assert pace.seconds_left(5.0, 100, 1000) is None, "too soon"
    assert pace.seconds_left(20.0, 200, 1000) == 80.0
    assert pace.seconds_left(40.0, 200, 1000) == 160.0, "a stall makes it longer"
    assert pace.seconds_left(50.0, 1000, 1000) is None, "nothing is left"


def test_no_remaining_time_without_movement_and_a_new_rate_after_a_restart() -> None:
    pace = text.Pace()
    assert [pace.seconds_left(float(now), 500, 1000) for now in (0, 60, 120)] == [None] * 3
    assert pace.seconds_left(130.0, 0, 1000) is None
    assert pace.seconds_left(150.0, 500, 1000) == 20.0


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5999, "100 min"), (6001, "2 h")])
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown
