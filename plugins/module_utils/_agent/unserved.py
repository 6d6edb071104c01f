# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The seconds in which a group should have served and did not. Status, metrics and events take them from here.

They begin with the last token of the requests that are held, and without requests when the fault began. A fault that only blinds the head does not count
while the engine serves as far as the head sees. Seconds are those of the monotonic clock, which goes on until the node is booted. Over a boot the wall
clock decides, for no longer than the node runs.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent.actor import Clock


class Unserved:
    """The count of one episode, whose entry in watch.json is passed: its counted `seconds`, and since when the count goes on, 0 while it stands still.

    `from` is that time by the monotonic clock, `since` by the wall clock.
    """

    def __init__(self, clock: Clock, episode: dict[str, Any]) -> None:
        """Continue the count of an earlier agent."""
        self._clock = clock
        self._from: float | None = None  # since when service is missing, by the monotonic clock
        self._floor = 0.0  # what was before is counted
        if episode.get("since"):
            now, begin = clock.monotonic(), float(episode["from"])
            passed = min(max(0.0, clock.wall() - float(episode["since"])), now)
            self._from = begin if begin <= now else now - passed

    @property
    def counts(self) -> bool:
        """Whether service is missing now."""
        return self._from is not None

    def seconds(self, episode: dict[str, Any]) -> float:
        """Return the seconds without service until now."""
        begin = self._from
        return float(episode.get("seconds") or 0.0) + (self._clock.monotonic() - begin if begin is not None else 0.0)

    def begin(self, episode: dict[str, Any], begin: float, whole: bool = False) -> None:
        """Count from `begin` on, by the monotonic clock. `whole`: what was counted of this episode is part of that time."""
        self._from = max(begin, self._floor)
        episode["from"], episode["since"] = self._from, self._clock.wall() - (self._clock.monotonic() - self._from)
        if whole:
            episode["seconds"] = 0.0

    def pause(self, episode: dict[str, Any]) -> None:
        """Stop the count: the group serves, or is not expected to."""
        episode["seconds"], episode["since"] = self.seconds(episode), 0.0
        self._from = None

    def end(self) -> None:
        """Forget the episode."""
        self._from, self._floor = None, self._clock.monotonic()
