"""The wedge rule, on the recorded samples of two real GPUs and on synthetic readings."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from itertools import groupby
from typing import Optional

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import metrics
from ansible_collections.gb10.cluster.plugins.module_utils._host import gpu
from ansible_collections.gb10.cluster.plugins.module_utils._watch.wedge import Wedge
from shared_samples import needs_shared, samples

SETTLE = 1.5  # seconds until the averaged power of nvidia-smi follows the state
TOKENS_PER_SECOND = 240
ONE = tuple[float, int, float, list[gpu.Reading], Optional[float]]


def states(rule: Wedge, readings: Iterator[ONE] | list[ONE], idle: float | None) -> list[tuple[float, str]]:
    out = []
    for reading in readings:
        rule.add(*reading)
        out.append((reading[0], rule.state(idle)))
    return out


def recording() -> list[tuple[float, list[gpu.Reading]]]:
    """Return (seconds, readings of both GPUs) of the recorded session."""
    with open(samples() / "gpu" / "01.nvidia-smi.csv", encoding="utf-8") as handle:
        rows = [{key.split()[0]: value for key, value in row.items()} for row in csv.DictReader(handle)]
    pairs = [rows[at : at + 2] for at in range(0, len(rows), 2)]
    assert all([row["index"] for row in pair] == ["0", "1"] for pair in pairs)
    return [(float(pair[0]["seconds"]), gpu.readings("".join(f"{row['power.draw']}, {row['utilization.gpu']}\n" for row in pair))) for pair in pairs]


def marked() -> dict[str, tuple[float, float]]:
    """Return the intervals of the session by its marks. Two ends are not marked: the GPUs show when the second decode and the engine ended."""
    times: list[tuple[float, str]] = list(json.loads((samples() / "gpu" / "01.marks.json").read_text()))

    def at(text: str) -> float:
        return next(when for when, what in times if what.startswith(text))

    second_decode_ends = max(when for when, gpus in recording() if when < at("rank 1 stopped while idle") and gpus[0][1] != 0)
    engine_ends = max(when for when, gpus in recording() if gpus[0][1] == 100)
    return {
        "boot": (0.0, at("01-healthy")),
        "idle": (at("01-healthy"), at("decode begins")),
        "decode": (at("decode begins"), at("wedge")),
        "wedge": (at("wedge"), at("continued")),
        "decode again": (at("continued"), second_decode_ends),
        "idle again": (second_decode_ends, at("rank 1 stopped while idle")),
        "stopped while idle": (at("rank 1 stopped while idle"), at("rank 1 SIGKILLed")),
        "killed while idle": (at("rank 1 SIGKILLed"), at("rank 1 dead")),
        "request to a dead rank": (at("rank 1 dead"), engine_ends),
        "stopped": (engine_ends, recording()[-1][0]),
    }


EXPECTED = {"decode": "working", "wedge": "wedged", "decode again": "working", "request to a dead rank": "wedged"}


def replay(ranks: slice) -> list[ONE]:
    """Return the recording with requests and tokens, which follow from the marks: tokens advance in a decode, requests run in all of EXPECTED."""
    page = metrics.sample((samples() / "gpu" / "01.metrics.txt").read_text())
    assert page is not None
    tokens, before = page.tokens, 0.0
    out: list[ONE] = []
    spans = marked()
    for now, gpus in recording():
        name = next(name for name, (begin, end) in reversed(spans.items()) if begin <= now)
        tokens += TOKENS_PER_SECOND * (now - before) if EXPECTED.get(name) == "working" else 0
        out.append((now, int(name in EXPECTED), tokens, gpus[ranks], None))
        before = now
    return out


@needs_shared
@pytest.mark.parametrize("ranks", [slice(0, 1), slice(0, 2)], ids=["head", "both ranks"])
@pytest.mark.parametrize("window", [5.0, 10.0, 15.0])
def test_every_marked_interval_of_two_real_gpus_is_classified(window: float, ranks: slice) -> None:
    spans, seen = marked(), states(Wedge(window), replay(ranks), idle_power(ranks))
    assert {name for name, (begin, end) in spans.items() if EXPECTED.get(name) == "wedged" and end - begin > window + SETTLE} == {
        "wedge",
        "request to a dead rank",
    }
    for name, (begin, end) in spans.items():
        inside = {now: state for now, state in seen if begin < now < end}
        settled = {state for now, state in inside.items() if now > begin + window + SETTLE}
        if EXPECTED.get(name) == "wedged":
            assert settled == {"wedged"}, name
            assert "wedged" not in {state for now, state in inside.items() if now < begin + window - 1}, name
        else:
            assert set(inside.values()) == {EXPECTED.get(name, "idle")}, name
    noticed = [
        next(now - begin for now, state in seen if now >= begin and state == "wedged") for begin, _end in (spans["wedge"], spans["request to a dead rank"])
    ]
    assert max(noticed) < window + SETTLE + 0.5


def idle_power(ranks: slice) -> float:
    """Return the idle power as the gate measures it: the highest of these GPUs, the lowest of the readings before the first request."""
    begin, end = marked()["idle"]
    return min(max(power or 0.0 for power, _percent in gpus[ranks]) for now, gpus in recording() if begin < now < end)


@needs_shared
@pytest.mark.parametrize("ranks", [slice(0, 1), slice(0, 2)], ids=["head", "both ranks"])
def test_a_long_prefill_with_the_power_of_the_recorded_decode_is_computing(ranks: slice) -> None:
    begin, end = marked()["decode again"]
    working = [gpus[ranks] for now, gpus in recording() if begin + SETTLE < now < end - SETTLE]
    readings: list[ONE] = [(float(now), 1, 400.0, working[now % len(working)], None) for now in range(60)]
    seen = states(Wedge(10), readings, idle_power(ranks))
    assert [name for name, _all in groupby(state for _now, state in seen)] == ["", "computing"]
    assert next(now for now, state in seen if state) == 10.0


WEDGED: list[gpu.Reading] = [(14.0, 96.0)]


def still(seconds: int, gpus: list[gpu.Reading], running: int = 1, start: float = 0.0) -> list[ONE]:
    return [(start + now, running, 400.0, gpus, None) for now in range(seconds)]


@pytest.mark.parametrize(
    ("gpus", "idle", "expected"),
    [
        (WEDGED, 11.0, "wedged"),
        ([(27.0, 95.0)], 11.0, "wedged"),
        ([(30.0, 95.0)], 11.0, "computing"),
        # A request that compiles a grammar on the CPU: the GPU waits without spinning.
        ([(11.0, 0.0)], 11.0, ""),
        (WEDGED, None, ""),
        ([(None, 96.0)], 11.0, ""),
        ([(14.0, None)], 11.0, ""),
        ([(46.0, None)], 11.0, "computing"),
        # Of several ranks, one waits for the dead one.
        ([(14.0, 100.0), (8.0, 0.0)], 12.0, "wedged"),
        ([(14.0, 100.0), (46.0, 100.0)], 12.0, "computing"),
    ],
)
def test_the_figures_of_a_gb10_decide_once_the_window_has_passed(gpus: list[gpu.Reading], idle: float | None, expected: str) -> None:
    rule = Wedge(10, margin_w=18)
    assert {state for _now, state in states(rule, still(10, gpus), idle)} == {""}
    rule.add(10.0, 1, 400.0, gpus, None)
    assert rule.state(idle) == expected


def test_one_reading_with_power_or_without_utilization_in_the_window_is_not_a_wedge() -> None:
    others: list[list[gpu.Reading]] = [[(46.0, 96.0)], [(14.0, 40.0)]]
    for other in others:
        readings: list[ONE] = [*still(6, WEDGED), (6.0, 1, 400.0, other, None), *still(14, WEDGED, start=7.0)]
        seen = dict(states(Wedge(10), readings, 11.0))
        assert {seen[float(now)] for now in range(10, 17)} == {""}
        assert seen[17.0] == "wedged"


def test_the_window_begins_with_the_request_and_not_with_the_last_token_before_it() -> None:
    seen = dict(states(Wedge(10), [*still(60, WEDGED, running=0), *still(11, WEDGED, start=60.0)], 11.0))
    assert [seen[float(now)] for now in (59, 60, 69, 70)] == ["idle", "", "", "wedged"]


@pytest.mark.parametrize("tokens", [401.0, 3.0], ids=["a token", "an engine that started again"])
def test_a_change_of_the_tokens_begins_the_window_again(tokens: float) -> None:
    rule = Wedge(10)
    states(rule, still(10, WEDGED), 11.0)
    seen = states(rule, [(10.0 + now, 1, tokens, WEDGED, None) for now in range(12)], 11.0)
    assert [state for _now, state in seen] == [*["working"] * 10, "wedged", "wedged"]


def test_a_gap_in_the_readings_begins_the_window_again() -> None:
    seen = dict(states(Wedge(10), [*still(3, WEDGED), *still(11, WEDGED, start=20.0)], 11.0))
    assert seen[20.0] == seen[29.0] == ""
    assert seen[30.0] == "wedged"


@pytest.mark.parametrize(
    ("used", "expected"),
    [(0.0, "wedged"), (0.04, "wedged"), (0.06, "computing"), (1.9, "computing"), (-1.0, ""), (None, "")],
)
def test_the_cpu_time_decides_without_a_gpu(used: float | None, expected: str) -> None:
    readings: list[ONE] = [(float(now), 1, 400.0, [], None if used is None else 50 + used * now) for now in range(11)]
    seen = states(Wedge(10, cpu_share=0.05), readings, None)
    assert seen[-1][1] == expected
    assert {state for _now, state in seen[:-1]} == {""}


def test_nothing_is_decided_without_a_reading() -> None:
    assert Wedge(10).state(11.0) == ""


def test_an_engine_that_is_stuck_without_a_spinning_gpu_is_a_wedge_after_five_windows() -> None:
    rule = Wedge(10.0)
    seen = []
    for second in range(0, 80, 2):
        rule.add(float(second), 1, 100.0, [(12.0, 0.0)], None)
        seen.append((second, rule.state(11.0)))
    assert {state for second, state in seen if second < 50} == {""}
    assert {state for second, state in seen if second > 54} == {"wedged"}


def test_a_wedge_of_an_idle_gb10_draws_up_to_27_watts() -> None:
    for power, expected in ((27.0, "wedged"), (46.0, "computing")):
        rule = Wedge(10.0)
        for second in range(0, 20, 2):
            rule.add(float(second), 1, 100.0, [(power, 96.0)], None)
        assert rule.state(11.0) == expected


def test_seconds_without_tokens_count_from_the_requests_that_are_held_now() -> None:
    rule = Wedge(10.0)
    for second in range(0, 20, 2):
        rule.add(float(second), 1, 100.0, [(12.0, 0.0)], None)
    for second in range(20, 120, 2):
        rule.add(float(second), 0, 100.0, [(12.0, 0.0)], None)
    for second in range(120, 140, 2):
        rule.add(float(second), 1, 100.0, [(12.0, 0.0)], None)
    assert rule.state(11.0) == ""
