# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The following of one boot, until the judge has a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate.judge import Judge, Verdict
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Job
from ansible_collections.gb10.cluster.plugins.module_utils._pair.calls import LOST_SECONDS, RETRY_SECONDS, TICK_SECONDS, Calls, Result, readable, result_of
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankLost

SLICE_LIMIT = 60.0  # a slice ends by itself within 5 s
SETTLE_TICK_SECONDS = 0.1  # while a failure waits for its cause


def take_looks(judge: Judge, looks: Sequence[Result], seconds: float) -> None:
    """Pass the containers of the ranks that could be read to the judge: what another one showed last counts."""
    for number, look in enumerate(looks):
        if isinstance(look, dict) and readable(look):
            judge.container(number, look["containers"], seconds)


def take_misses(judge: Judge, looks: Sequence[Result]) -> None:
    """Pass the ranks that could not be read for LOST_SECONDS to the judge."""
    for number, look in enumerate(looks):
        if not readable(look):
            why = look["engine_error"] if isinstance(look, dict) else str(look)
            for seconds in (0.0, LOST_SECONDS):
                judge.missed(number, why, not isinstance(look, RankLost), seconds)


class Boot:
    """The following of one boot: a slice of each rank's log is always under way."""

    def __init__(self, calls: Calls, judge: Judge, release: str) -> None:
        self.calls, self.judge, self.release = calls, judge, release
        self.ranks, self.clock, self.actor = calls.ranks, calls.clock, calls.actor
        self.start = self.clock.monotonic()
        self._slices: dict[int, Job | None] = {}
        self._again: dict[int, float] = {}
        self._known: dict[str, str] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the following began."""
        return self.clock.monotonic() - self.start

    def follow(self) -> Verdict:
        """Return the verdict. Raises Superseded."""
        requests, probe = None, None
        while True:
            self._read()
            what, finding = self.judge.decide(self.seconds)
            if finding is not None:
                return self.judge.failed(finding, self.seconds)
            if what == "probe":
                self.actor.event("progress", "the head serves: asking for its models and real completions", self.seconds)
                requests = self.judge.requests()
                probe = self._probe(next(requests))
            if requests is not None and probe is not None and probe.done():
                try:
                    probe = self._probe(requests.send(self._answer(probe)))
                except StopIteration:
                    take_looks(self.judge, self.calls.look(self.release, patience=LOST_SECONDS), self.seconds)  # a rank may have ended since its last slice
                    return self.judge.concluded(self.seconds)
            self.calls.pause(SETTLE_TICK_SECONDS if self.judge.settling else TICK_SECONDS)

    def _read(self) -> None:
        for rank in self.ranks:
            job = self._slices.get(rank.number)
            if job is not None and job.done():
                self._take(rank.number, job)
                job = self._slices[rank.number] = None
            if job is None and self.seconds >= self._again.get(rank.number, 0.0):
                self._slices[rank.number] = rank.begin("slice", SLICE_LIMIT, **self.judge.question(rank.number))

    def _take(self, number: int, job: Job) -> None:
        result = result_of(job)
        if isinstance(result, Exception) or result.get("failed"):
            why = str(result) if isinstance(result, Exception) else str(result.get("msg"))
            self.judge.missed(number, why, not isinstance(result, RankLost), self.seconds)
            self._again[number] = self.seconds + RETRY_SECONDS
            return
        line = self.judge.feed(number, result, self.seconds)
        if line:
            self.actor.event("progress", line, self.seconds)
        container = result["container"]
        if container and self._known.get(str(number)) != container["id"]:
            self._known[str(number)] = container["id"]
            if len(self._known) == len(self.ranks):
                self.actor.update(containers=dict(self._known))

    def _probe(self, arguments: dict[str, Any]) -> Job:
        timeout = float(self.calls.options.get("completion_timeout") or 120.0) * float(arguments.pop("patience", 1.0))
        return self.ranks[0].begin("probe", timeout + SLICE_LIMIT, release=self.release, url=self.judge.url, timeout=timeout, **arguments)

    def _answer(self, probe: Job) -> dict[str, Any]:
        found = result_of(probe)
        if not isinstance(found, Exception) and not found.get("failed"):
            return found
        why = str(found) if isinstance(found, Exception) else str(found.get("msg"))
        return {"error": f"the API on {self.ranks[0].host} cannot be asked: {why}", "models": [], "replies": [], "metrics": [], "version": "", "http_status": 0}
