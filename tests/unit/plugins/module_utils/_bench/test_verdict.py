"""The verdict of a soak, on simulated series with noise as memory and speed of a pair have it."""

from __future__ import annotations

import math
import random
import re
import time
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._bench import verdict

PLAN = {"group": "pair1", "name": "a", "release": "4f0c61d2a9be", "profile": "mine", "hours": 4.0, "missing_env": []}
FAULTS: dict[str, dict[str, Any]] = {
    "leak": {"leak": 1.0}, "slowdown": {"slow": 10.0}, "step": {"step": 2048.0}, "all three": {"leak": 1.0, "slow": 10.0, "step": 2048.0}, "quiet": {},
}  # fmt: skip
MEANT = {"leak": "MiB a request (", "slowdown": "% an hour (", "step": "GiB in one step"}


def soak(seed: str, minutes: int = 240, rate: float = 10.0, leak: float = 0.0, slow: float = 0.0, step: float = 0.0) -> list[dict[str, Any]]:
    """Return samples with a warm-up, noise of the page cache that lasts, bursts of minutes, and a day's drift of temperature. Rank 1 has the faults."""
    draw, out, requests = random.Random(seed), list[dict[str, Any]](), 0
    level, wander, burst = [draw.uniform(15e3, 21e3) for _ in range(2)], [0.0, 0.0], [0, 0]
    pace, swing, lag, cache = draw.uniform(12, 45), draw.uniform(0, 24), draw.uniform(2, 6), draw.uniform(35, 90)
    when, slowness = draw.uniform(0.3, 0.78) * minutes, 0.0
    for minute in range(minutes):
        requests += max(0, int(draw.gauss(rate, rate / 3)))
        running, day, ranks = draw.choice([1, 1, 2, 2, 3, 4]), math.sin((minute / 60 + swing) * math.pi / 12), []
        for rank in range(2):
            wander[rank] = 0.8 * wander[rank] + draw.gauss(0, cache)
            burst[rank] = burst[rank] - 1 if burst[rank] > 0 else draw.randint(1, 3) if draw.random() < 0.03 else 0
            memory = level[rank] + wander[rank] + 2500 * math.exp(-minute / lag) - (draw.uniform(300, 1500) if burst[rank] else 0)
            memory -= leak * requests + (step if minute >= when else 0) if rank else 0
            ranks.append({"host": f"spark-{rank + 1}", "available_mib": memory, "power_w": 60.0, "clock_mhz": 2400.0, "temperature_c": 70 + 5 * day})
        slowness = 0.6 * slowness + draw.gauss(0, 0.012)
        speed = pace * math.exp(slowness - 0.015 * day) * (1 - slow / 100) ** (minute / 60) / (1 + 0.12 * math.log1p(running))
        speed *= 0.7 if draw.random() < 0.04 else 1
        out.append({
            "time": 1.7e9 + 60 * minute, "seconds": 60.0 * minute, "requests": requests, "failed": 0, "engine": "c1", "tok_s": speed, "running": running,
            "acceptance": 60 + draw.gauss(0, 4), "kv": 40.0, "ranks": ranks, "kernel": [],
        })  # fmt: skip
    return out


@pytest.mark.parametrize("kind", FAULTS)
def test_of_20_series_each_fault_is_found_and_nothing_else(kind: str) -> None:
    meant = {name for name in MEANT if kind in (name, "all three")}
    for number in range(20):
        found = verdict.verdict(PLAN, soak(f"{kind} {number}", **FAULTS[kind]))
        named = [next((name for name, part in MEANT.items() if part in each), each) for each in found["findings"]]
        assert sorted(named) == sorted(meant), found["findings"]
        assert found["verdict"] == ("failed" if meant else "passed")
        assert all("rank 1 on spark-2" in each for each in found["findings"] if "memory" in each)


def test_a_short_soak_is_not_wrong_although_it_cannot_always_tell() -> None:
    for number in range(20):
        assert verdict.verdict(PLAN, soak(f"short {number}", minutes=60, rate=30.0))["verdict"] != "failed"
        assert verdict.verdict(PLAN, soak(f"slow {number}", minutes=60, rate=30.0, slow=10.0))["verdict"] != "passed"


def test_a_day_is_judged_as_four_hours_are() -> None:
    assert verdict.verdict(PLAN, soak("day", minutes=1440))["verdict"] == "passed"
    [found] = verdict.verdict(PLAN, soak("day", minutes=1440, leak=0.3))["findings"]
    assert found.startswith("Available memory of rank 1 on spark-2 falls 0.3 MiB a request (0.")


def test_a_leak_is_explained_by_the_ucx_pair_that_is_not_set() -> None:
    [found] = verdict.verdict({**PLAN, "missing_env": list(verdict.UCX_PAIR)}, soak("ucx", leak=11.0))["findings"]
    pattern = r"Available memory of rank 1 on spark-2 falls 11\.\d MiB a request \((.+) to (.+)\): the UCX pair is not set \(UCX_MEM_MMAP"
    match = re.match(pattern, found)
    assert match, found
    assert 10.8 < float(match[1]) <= float(match[2]) < 11.3


def test_a_slowdown_names_the_clock_that_falls_with_it() -> None:
    samples = soak("clock", slow=10.0)
    for sample in samples:
        sample["ranks"][1].update(clock_mhz=2400 * 0.9 ** (sample["seconds"] / 3600), temperature_c=88.0)
    [found] = verdict.verdict(PLAN, samples)["findings"]
    assert found.endswith(", and the SM clock of rank 1 falls with it, at up to 88 °C.")


def test_what_happens_in_a_gap_is_not_judged_and_the_memory_of_a_new_engine_warms_up() -> None:
    samples = soak("gap", minutes=600)
    for index, sample in enumerate(samples):
        if index >= 200:  # other memory after the soak was away, then again after the engine was started again
            sample["ranks"][1]["available_mib"] -= 3000 if index < 400 else 6000 - 2500 * math.exp(-(index - 400) / 4)
            sample["engine"] = "c1" if index < 400 else "c2"
    samples[199].update(failed=1)  # before it was noticed
    samples[200].update(gap="the soak did not run for 4 min", failed=2)
    samples[400].update(gap="rank 1 was started again", failed=3)
    found = verdict.verdict(PLAN, samples)
    assert (found["verdict"], found["findings"], found["gaps"]) == ("passed", [], 2)
    assert found["sentence"].endswith(" requests, 2 gaps: passed."), "a crash of the engine is one"
    assert found["notes"][1] == "2 gaps not judged: the soak did not run for 4 min; rank 1 was started again."


def test_gaps_of_an_engine_that_goes_on_do_not_hide_a_slowdown() -> None:
    samples = soak("slow gaps", slow=10.0)
    for index in range(40, len(samples), 10):
        samples[index].update(gap="the soak did not run for 14 s")
    [found] = verdict.verdict(PLAN, samples)["findings"]
    assert found.startswith("Decode speed falls ")


def test_failed_requests_and_kernel_messages_fail_it() -> None:
    samples = soak("events")
    samples[120].update(failed=2, errors=["HTTP 500: EngineDeadError"])
    samples[130].update(kernel=["spark-2: NVRM: Xid 31"])
    assert verdict.verdict(PLAN, samples)["findings"] == [
        f"2 of {samples[-1]['requests'] + 2:,} requests failed. The last error: HTTP 500: EngineDeadError.", "The kernel of spark-2 reported: NVRM: Xid 31.",
    ]  # fmt: skip
    for sample in samples:
        sample["kernel"] = [f"spark-2: NVRM: Xid 31, pid {sample['time']}"]
    assert len(verdict.verdict(PLAN, samples)["findings"]) == 11, "a receipt stays small"


def test_restarts_by_the_agent_fail_it_beyond_those_that_are_permitted() -> None:
    samples = soak("restarts")
    for index, sample in enumerate(samples):
        before = {"node_lost": 3} if index < 150 else {}  # its record was lost: it counts from 0 again
        sample["restarts"] = None if index == 121 else {**before, **({"rank_dead": 1} if index >= 120 else {}), **({"wedge": 1} if index >= 200 else {})}
    samples[120].update(gap="the API did not answer", engine="c2")
    text = "The agent has started the engine again 2 times (rank_dead 1, wedge 1; permitted: "
    found = verdict.verdict(PLAN, samples)
    assert (found["verdict"], found["findings"]) == ("failed", [f"{text}0). See `gb10 events`."])
    assert verdict.verdict({**PLAN, "restarts": 1}, samples)["findings"] == [f"{text}1). See `gb10 events`."]
    permitted = verdict.verdict({**PLAN, "restarts": 2}, samples)
    assert (permitted["verdict"], permitted["notes"][0]) == ("passed", f"{text}2).")


def test_a_soak_that_ended_because_nothing_served_has_failed() -> None:
    samples, more = soak("down"), [dict(each) for each in soak("down")[-2:]]
    for hours, sample in zip((1, 23), more):
        sample.update(gap="rank 1 on spark-2 did not run", time=samples[-1]["time"] + 3600 * hours, engine="")
    assert verdict.verdict(PLAN, [*samples, *more[:1]])["verdict"] == "passed"
    found = verdict.verdict(PLAN, [*samples, *more])
    assert (found["verdict"], found["findings"]) == ("failed", ["No service was seen in the last 23 h: rank 1 on spark-2 did not run."])


def test_a_soak_that_cannot_tell_names_what_it_needs() -> None:
    found = verdict.verdict(PLAN, soak("brief", minutes=20))
    assert (found["verdict"], found["findings"]) == ("unclear", ["Too short to tell: 15 samples are judged, and 20 are needed."])
    assert found["sentence"].endswith("requests: too short to tell.")
    few = verdict.verdict(PLAN, soak("few", minutes=60, rate=3.0))["findings"]
    assert any(each.startswith("Too short to tell: available memory of rank") and each.endswith(" h would tell.") for each in few)
    late = soak("late")
    for sample in late[-9:]:
        sample["ranks"][0]["available_mib"] -= 3000
    [found] = verdict.verdict(PLAN, late)["findings"]
    assert found.startswith("Too short to tell: available memory of rank 0 on spark-1 fell by ")
    assert verdict.verdict(PLAN, [])["verdict"] == "unclear"


def test_a_long_soak_of_an_engine_that_comes_and_goes_is_judged_in_seconds() -> None:
    samples = soak("flapping", minutes=3000)
    for index, sample in enumerate(samples):
        sample["gap"] = "the API did not answer" if index % 8 == 0 else ""
    begun = time.monotonic()
    assert verdict.verdict(PLAN, samples)["verdict"] == "unclear"
    assert time.monotonic() - begun < 10
