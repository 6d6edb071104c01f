"""The faults of ranks that are expected to serve."""

from __future__ import annotations

import csv
import json
from typing import Any, Optional

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures
from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import (
    DEFAULTS,
    Fault,
    SettingsError,
    View,
    Wedge,
    canary,
    faults,
    merged_settings,
)
from shared_samples import needs_shared, samples


def container(release: str = "new", running: bool = True, **more: Any) -> dict[str, Any]:
    state = {"name": "gb10-pair1-rank1", "running": running, "status": "running" if running else "exited", "exit_code": 137, "oom_killed": False}
    return {**state, "labels": {"gb10.cluster.release": release}, **more}


def view(number: int = 1, lost: str = "", restarted: str = "", **sample: Any) -> View:
    return View(number, ("one", "two")[number], {"containers": [container()], "engine_error": "", "fault": "", "rails": [], **sample}, lost, restarted)


RAIL = {"address": "192.168.200.12", "interface": "enp1s0f0np0", "up": True, "mtu": 9000}
STOPPED = "the engine process is stopped (PID 7, VLLM::Worker_TP1)"
CASES: dict[str, tuple[View, str, str]] = {
    "serves": (view(rails=[RAIL]), "", ""),
    "lost": (view(lost="Connection refused."), "node_lost", "rank 1 on two does not answer (Connection refused)"),
    "no engine": (view(engine_error="The Docker Engine does not answer."), "docker", "rank 1 on two: The Docker Engine does not answer"),
    "no link": (view(rails=[{**RAIL, "up": False}]), "fabric", "rank 1 on two: the rail enp1s0f0np0 has no link"),
    "no address": (view(rails=[{**RAIL, "interface": ""}]), "fabric", "rank 1 on two: no interface has the rail address 192.168.200.12"),
    "exited": (view(containers=[container(running=False)]), "rank_dead", "rank 1 on two: the container gb10-pair1-rank1 exited with code 137"),
    "absent": (view(containers=[]), "rank_dead", "rank 1 on two: the container does not exist"),
    "another release": (view(containers=[container("old")]), "rank_dead", "rank 1 on two: the container does not exist"),
    "rebooted": (view(containers=[], restarted="reboot"), "reboot", "rank 1 on two: the container does not exist"),
    "no memory": (view(containers=[container(running=False)], memory_stop="1.0 GiB of memory were available"), "memory", "rank 1 on two: 1.0 GiB of memory"),
    "ends for lack of memory": (view(memory_stop="1.0 GiB of memory were available"), "memory", "rank 1 on two: 1.0 GiB of memory"),
    "dead child": (view(fault="the engine process is dead (PID 7, VLLM::Worker_TP1)"), "rank_dead", "rank 1 on two: the engine process is dead"),
    "stopped": (view(fault=STOPPED, fault_seconds=10.0), "rank_stopped", f"rank 1 on two: {STOPPED}"),
    "paused": (view(fault="the container gb10-pair1-rank1 is paused", fault_seconds=30.0), "rank_stopped", "rank 1 on two: the container"),
    "stopped for a moment": (view(fault=STOPPED, fault_seconds=3.0), "", ""),
    "not read yet": (View(1, "two", {}), "", ""),
}


@pytest.mark.parametrize(("found", "cause", "text"), CASES.values(), ids=CASES)
def test_fault_of_a_rank(found: View, cause: str, text: str) -> None:
    seen = faults([view(0), found], "new", 10.0)
    assert [fault.cause for fault in seen] == ([cause] if cause else [])
    assert all(fault.text.startswith(text) and fault.rank == 1 for fault in seen)


def test_what_has_to_pass_comes_before_what_needs_a_restart() -> None:
    seen = faults([view(0, containers=[]), view(1, lost="timeout")], "new", 10.0)
    assert [(fault.cause, fault.waits) for fault in seen] == [("node_lost", True), ("rank_dead", False)]
    assert not Fault("wedge", "").waits


def test_a_lack_of_memory_comes_before_the_rank_that_ends_with_its_peer() -> None:
    seen = faults([view(0, containers=[]), view(1, memory_stop="1.0 GiB of memory were available")], "new", 10.0)
    assert [fault.cause for fault in seen] == ["memory", "rank_dead"]


# --- The thresholds of the watch.


def test_a_given_value_replaces_its_default_and_none_does_not() -> None:
    assert merged_settings({"restarts": 2, "hook": None}) == {**DEFAULTS, "restarts": 2}
    assert merged_settings(None) == DEFAULTS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"restarts": -1}, "restarts of the watch is -1. Expected: a number that is not negative."),
        ({"wedge_seconds": 0}, "wedge_seconds of the watch is 0. Expected: a number above 0; the default is 20."),
        ({"head_seconds": 5}, "head_seconds of the watch is 5. Expected: at least 45;"),
        ({"memory_drop_gib": 1.0}, "memory_drop_gib of the watch does not fit: memory_drop_gib (1) is below"),
    ],
)
def test_a_wrong_value_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        merged_settings(given)
    assert str(error.value).startswith(message)


# --- The wedge rule, on the recorded samples of two real GPUs and on synthetic readings.

SETTLE = 1.5  # seconds until the averaged power of nvidia-smi follows the state
TOKENS_PER_SECOND = 240
ONE = tuple[float, int, float, list[gpu.Reading], Optional[float]]


def states(rule: Wedge, readings: list[ONE], idle: float | None) -> list[tuple[float, bool]]:
    """Return after each reading whether it is a wedge."""
    out = []
    for reading in readings:
        rule.add(*reading)
        out.append((reading[0], rule.wedged(idle)))
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


WORKS, HANGS = ("decode", "decode again"), ("wedge", "request to a dead rank")


def replay(ranks: slice) -> list[ONE]:
    """Return the recording with requests and tokens, which follow from the marks: tokens advance in a decode, requests run in a decode and a wedge."""
    page = measures.sample((samples() / "gpu" / "01.metrics.txt").read_text())
    assert page is not None
    tokens, before = page.tokens, 0.0
    out: list[ONE] = []
    spans = marked()
    for now, gpus in recording():
        name = next(name for name, (begin, end) in reversed(spans.items()) if begin <= now)
        tokens += TOKENS_PER_SECOND * (now - before) if name in WORKS else 0
        out.append((now, int(name in WORKS + HANGS), tokens, gpus[ranks], None))
        before = now
    return out


@needs_shared
@pytest.mark.parametrize("ranks", [slice(0, 1), slice(0, 2)], ids=["head", "both ranks"])
@pytest.mark.parametrize("window", [5.0, 10.0, 15.0])
def test_every_marked_interval_of_two_real_gpus_is_classified(window: float, ranks: slice) -> None:
    spans, seen = marked(), states(Wedge(window), replay(ranks), idle_power(ranks))
    for name, (begin, end) in spans.items():
        inside = {now: wedged for now, wedged in seen if begin < now < end}
        if name in HANGS:
            assert {wedged for now, wedged in inside.items() if now > begin + window + SETTLE} == {True}, name
            assert not any(wedged for now, wedged in inside.items() if now < begin + window - 1), name
            assert next(now - begin for now, wedged in inside.items() if wedged) < window + SETTLE + 0.5
        else:
            assert set(inside.values()) == {False}, name


def idle_power(ranks: slice) -> float:
    """Return the idle power as the gate measures it: the highest of these GPUs, the lowest of the readings before the first request."""
    begin, end = marked()["idle"]
    return min(max(power or 0.0 for power, _percent in gpus[ranks]) for now, gpus in recording() if begin < now < end)


@needs_shared
@pytest.mark.parametrize("ranks", [slice(0, 1), slice(0, 2)], ids=["head", "both ranks"])
def test_a_long_prefill_with_the_power_of_the_recorded_decode_is_not_a_wedge(ranks: slice) -> None:
    begin, end = marked()["decode again"]
    working = [gpus[ranks] for now, gpus in recording() if begin + SETTLE < now < end - SETTLE]
    readings: list[ONE] = [(float(now), 1, 400.0, working[now % len(working)], None) for now in range(60)]
    assert not any(wedged for _now, wedged in states(Wedge(10), readings, idle_power(ranks)))


WEDGED: list[gpu.Reading] = [(14.0, 96.0)]
STUCK: list[gpu.Reading] = [(12.0, 0.0)]  # on the CPU


def still(seconds: int, gpus: list[gpu.Reading], running: int = 1, start: float = 0.0) -> list[ONE]:
    return [(start + now, running, 400.0, gpus, None) for now in range(seconds)]


@pytest.mark.parametrize(
    ("gpus", "idle", "expected"),
    [
        (WEDGED, 11.0, True),
        ([(27.0, 95.0)], 11.0, True),
        ([(30.0, 95.0)], 11.0, False),
        # A request that compiles a grammar on the CPU: the GPU waits without spinning.
        ([(11.0, 0.0)], 11.0, False),
        (WEDGED, None, False),
        ([(None, 96.0)], 11.0, False),
        ([(14.0, None)], 11.0, False),
        ([(46.0, None)], 11.0, False),
        # Of several ranks, one waits for the dead one.
        ([(14.0, 100.0), (8.0, 0.0)], 12.0, True),
        ([(14.0, 100.0), (46.0, 100.0)], 12.0, False),
    ],
)
def test_the_figures_of_a_gb10_decide_once_the_window_has_passed(gpus: list[gpu.Reading], idle: float | None, expected: bool) -> None:
    assert [wedged for _now, wedged in states(Wedge(10), still(11, gpus), idle)] == [*[False] * 10, expected]


def test_one_reading_with_power_or_without_utilization_in_the_window_is_not_a_wedge() -> None:
    others: list[list[gpu.Reading]] = [[(46.0, 96.0)], [(14.0, 40.0)]]
    for other in others:
        readings: list[ONE] = [*still(6, WEDGED), (6.0, 1, 400.0, other, None), *still(14, WEDGED, start=7.0)]
        seen = dict(states(Wedge(10), readings, 11.0))
        assert not any(seen[float(now)] for now in range(10, 17))
        assert seen[17.0]


def test_the_window_begins_with_the_request_and_not_with_the_last_token_before_it() -> None:
    seen = dict(states(Wedge(10), [*still(60, WEDGED, running=0), *still(11, WEDGED, start=60.0)], 11.0))
    assert [seen[float(now)] for now in (59, 60, 69, 70)] == [False, False, False, True]


@pytest.mark.parametrize("tokens", [401.0, 3.0], ids=["a token", "an engine that started again"])
def test_a_change_of_the_tokens_begins_the_window_again(tokens: float) -> None:
    rule = Wedge(10)
    states(rule, still(10, WEDGED), 11.0)
    seen = states(rule, [(10.0 + now, 1, tokens, WEDGED, None) for now in range(12)], 11.0)
    assert [wedged for _now, wedged in seen] == [*[False] * 10, True, True]


def test_a_gap_in_the_readings_begins_the_window_again() -> None:
    seen = dict(states(Wedge(10), [*still(3, WEDGED), *still(11, WEDGED, start=20.0)], 11.0))
    assert [seen[20.0], seen[29.0], seen[30.0]] == [False, False, True]


@pytest.mark.parametrize(("used", "expected"), [(0.0, True), (0.09, True), (0.11, False), (1.9, False), (-1.0, False), (None, False)])
def test_the_cpu_time_decides_without_a_gpu(used: float | None, expected: bool) -> None:
    readings: list[ONE] = [(float(now), 1, 400.0, [], None if used is None else 50 + used * now) for now in range(11)]
    assert [wedged for _now, wedged in states(Wedge(10), readings, None)] == [*[False] * 10, expected]


def test_an_engine_that_is_stuck_without_a_spinning_gpu_is_a_wedge_after_five_windows() -> None:
    seen = states(Wedge(10), still(80, STUCK), 11.0)
    assert not any(wedged for second, wedged in seen if second < 50)
    assert all(wedged for second, wedged in seen if second > 54)


def test_seconds_without_tokens_count_from_the_requests_that_are_held_now() -> None:
    readings = [*still(20, STUCK), *still(100, STUCK, running=0, start=20.0), *still(20, STUCK, start=120.0)]
    assert not any(wedged for _now, wedged in states(Wedge(10), readings, 11.0))


def test_a_decode_that_is_slow_for_days_does_not_become_the_usual_one() -> None:
    speeds, slow, usual = [25.0] * 50, False, 0.0
    for _number in range(500):
        speeds, slow, usual = canary(speeds, [10.0], slow)
    assert (slow, usual, len(speeds)) == (True, 25.0, 52)
    for _number in range(300):
        speeds, slow, usual = canary(speeds, [24.0], slow)
    assert (slow, usual, len(speeds)) == (False, 24.0, 200)
