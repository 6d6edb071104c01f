"""What follows a failed boot, by the class of the failure."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import watch
from ansible_collections.gb10.cluster.plugins.module_utils._pair.watch import Unserved


@pytest.mark.parametrize(
    ("passed_before", "failure", "attempt", "fallback", "switched", "expected"),
    [
        (False, "killed", 1, "old", False, watch.RETURN),
        (False, "killed", 1, "", True, watch.STOP),
        (False, "weights_missing", 1, "old", False, watch.RETURN),
        (True, "killed", 1, "old", True, watch.RETRY),
        (True, "killed", 3, "old", False, watch.HOLD),
        (True, "killed", 3, "old", True, watch.RETURN),
        (True, "weights_missing", 1, "old", True, watch.RETURN),
        (True, "weights_missing", 1, "", True, watch.HOLD),
        (True, "weights_missing", 1, "old", False, watch.HOLD),
        (True, "a class of the user", 1, "", False, watch.HOLD),
    ],
)
def test_follows_the_ladder(passed_before: bool, failure: str, attempt: int, fallback: str, switched: bool, expected: str) -> None:
    assert watch.after_failure(passed_before, failure, attempt, 3, fallback, switched) == expected


def test_pauses_grow_and_the_last_one_stays() -> None:
    assert [watch.pause_before(attempt) for attempt in (2, 3, 4, 5, 9)] == [5.0, 20.0, 60.0, 180.0, 180.0]


# --- The seconds without service, over restarts of the agent, boots, and clocks that are set.

YEARS = 94_608_000.0


class Clock:
    def __init__(self, monotonic: float, wall: float) -> None:
        self.now, self.at = monotonic, wall

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.at

    def wait(self, seconds: float) -> None:
        self.now, self.at = self.now + seconds, self.at + seconds


@pytest.mark.parametrize(
    ("monotonic", "wall", "expected"),
    [
        (1100.0, 2100.0, 100.0),
        (1100.0, 2100.0 + YEARS, 100.0),
        (1100.0, 0.0, 100.0),
        (90.0, 2300.0, 90.0),  # the node was booted: for no longer than it runs
        (90.0, 2060.0, 60.0),
        (90.0, 2100.0 + YEARS, 90.0),
        (90.0, 1000.0, 0.0),
    ],
)
def test_the_next_agent_counts_on(monotonic: float, wall: float, expected: float) -> None:
    episode: dict[str, Any] = {}
    Unserved(Clock(1000.0, 2000.0), episode).begin(episode, 1000.0)
    assert Unserved(Clock(monotonic, wall), episode).seconds(episode) == expected


def test_a_pause_keeps_what_is_counted_and_the_whole_time_replaces_it() -> None:
    clock, episode = Clock(1000.0, 2000.0), dict[str, Any]()
    count = Unserved(clock, episode)
    count.begin(episode, 990.0)
    clock.wait(5.0)
    count.pause(episode)
    clock.wait(50.0)
    assert (count.counts, count.seconds(episode), Unserved(clock, episode).seconds(episode)) == (False, 15.0, 15.0)
    count.begin(episode, 980.0, whole=True)
    assert count.seconds(episode) == 75.0


def test_no_second_counts_in_two_episodes() -> None:
    clock, episode = Clock(1000.0, 2000.0), dict[str, Any]()
    count = Unserved(clock, episode)
    count.begin(episode, 1000.0)
    clock.wait(10.0)
    count.end()
    following: dict[str, Any] = {}
    clock.wait(5.0)
    count.begin(following, 1001.0)
    assert count.seconds(following) == 5.0
