"""The seconds without service, over restarts of the agent, boots, and clocks that are set."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.watch import Unserved

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
