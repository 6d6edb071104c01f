"""A bounded series of memory samples and its compact text."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import Sample, Series, parse_series


def memory(available: int, free: int = 1, swap: int = 16) -> dict[str, int]:
    return {"available_kib": available << 10, "free_kib": free << 10, "swap_free_kib": swap << 10}


def filled(series: Series, count: int, step: float = 5.0) -> Series:
    for number in range(count):
        series.add(number * step, memory(100 + number))
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
        series.add(seconds, memory(5))
    assert [each.seconds for each in series.samples] == [10_000, 100, 170]


@pytest.mark.parametrize("reading", [{}, {"total_kib": 5}, {"available_kib": 0}])
def test_a_reading_without_figures_is_no_sample(reading: dict[str, int]) -> None:
    series = Series(5, 10)
    series.add(1, reading)
    assert series.text() == ""


@pytest.mark.parametrize("text", ["", "x", "1 2 3", "-1 2 3 4", "1 2 3 4 5", "1 2 3 " + "9" * 40, None, 7, ["1 2 3 4"]])
def test_what_is_not_a_sample_is_left_out(text: object) -> None:
    assert parse_series(text) == []
    if isinstance(text, str):
        assert parse_series(f"{text};5 1 2 3") == [Sample(5, 1, 2, 3)]


def test_a_text_without_a_bound_is_read_to_its_last_samples() -> None:
    assert len(parse_series("1 2 3 4;" * 50_000 + "2 2 3 4", 100)) == 100
