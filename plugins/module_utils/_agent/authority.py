# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may change the ranks of a serving group: generations, stops of local root, a pair that serves already, and the requests that it still serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent.actor import Superseded
from ansible_collections.gb10.cluster.plugins.module_utils._agent.boot import readable
from ansible_collections.gb10.cluster.plugins.module_utils._agent.calls import HALT_LIMIT, LOST_SECONDS, POLL_SECONDS, READ_LIMIT, Calls, Failed, Result, lost
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import OWNER
from ansible_collections.gb10.cluster.plugins.module_utils._release.release import running_release, runs

ENGINE_SECONDS = 60.0  # how long a Docker Engine may be silent before a start is given up
METRICS_SECONDS = 10.0  # more than a rank gives its engine


class Authority(Calls):
    """The authority of the head over the ranks, for one generation."""

    answered = False  # whether all ranks have answered read_authority()

    def _known(self, patience: float = 0.0) -> list[dict[str, Any]]:
        """Return what the ranks that answer know of this group, and note the highest generation."""
        known = {index: each for index, each in enumerate(self.each("hello", READ_LIMIT, patience=patience)) if isinstance(each, dict)}
        self.note(known)
        return list(known.values())

    def note(self, known: Mapping[int, dict[str, Any]]) -> None:
        """Note the highest generation of the ranks, and which of them has no owner although the group has settled."""
        self.actor.floor = max([self.actor.floor, *(self.actor.reached(each["generation"]) for each in known.values())])
        for index, each in known.items():
            if not each["owner"].get("head") and self.desired["state"] and self.actor.settled():
                self.actor.warn(f"{self.name(index)} has no owner: {OWNER} was lost or damaged. The next start or stop writes it again.")

    def read_authority(self, adopts: bool = True) -> bool:
        """Read what the ranks know of this group; return whether all of them have answered since the agent's start."""
        known = self._known()
        if self.obey_stop(known):
            return True
        self.answered = len(known) == len(self.ranks)
        if not adopts or not self.answered:
            return not adopts
        return bool(self.desired["state"]) or self._adopt()

    def obey_stop(self, found: Sequence[dict[str, Any]]) -> bool:
        """Obey a stop that was ordered on a rank while the head was down; return whether there was one."""
        later = [each for each in found if each["stop_generation"] > int(self.desired["known_stop"]) and each["stopped"]]
        if not later:
            return False
        stop = max(later, key=lambda each: int(each["stop_generation"]))
        generation = max(self.actor.reached(stop["stop_generation"]), self.actor.floor, int(self.desired["generation"]) + 1)
        self.actor.adopt(
            {
                "generation": generation, "known_stop": generation, "state": "stopped", "release": self.desired["release"], "by": f"a stop on {stop['host']}",
            }
        )  # fmt: skip
        self.actor.event("desired", f"{self.group} is to be stopped: it was stopped on {stop['host']} at {str(stop['stopped']).strip()} without its head")
        return True

    def _adopt(self) -> bool:
        """Take over a pair that serves without a desired state: this store was lost.

        Return whether all ranks could be read. Containers that are not taken over are an event, and the sentence of the outcome.
        """
        looks = [each for each in self.look("") if isinstance(each, dict) and not each["engine_error"]]
        if len(looks) < len(self.ranks):
            return False
        names = [running_release(each) for each in looks]
        release = names[0] if len(set(names)) == 1 else ""
        if not release or not passed_before(looks, release):
            self._report_unknown(looks)
            return True
        self.release = release
        self.actor.adopt(
            {"generation": self.actor.floor + 1, "state": "serving", "release": release, "by": "the pair that runs"},
            phase="settled", result="serves", release=release, final=True, delivered=True, sentence=f"{self.group} serves release {release}.",
        )  # fmt: skip
        self.actor.event("settled", f"{self.group} serves release {release}; the agent has taken it over without a restart.", result="serves")
        return True

    def _report_unknown(self, looks: Sequence[dict[str, Any]]) -> None:
        what = [f"release {running_release(each)}" if running_release(each) else "containers" if runs(each) else "nothing" for each in looks]
        found = ", ".join(f"{self.name(index)} runs {each}" for index, each in enumerate(what))
        text = f"The desired state of {self.group} is not known: {found}. The agent does not watch that. Run site.yml to serve, or stop.yml."
        text = text if any(map(runs, looks)) else ""
        if text != self.actor.outcome()["sentence"]:
            self.actor.update(sentence=text)
        if text:
            self.actor.event("warning", text)

    def authority(self, patience: float = 0.0) -> None:
        """Continue above the highest generation that a rank has seen. Raises Superseded if a rank was stopped by its local root."""
        known = self._known(patience)
        if self.desired["state"] != "stopped" and self.obey_stop(known):
            raise Superseded
        highest = max((self.actor.reached(each["generation"]) for each in known), default=0)
        if highest > self.generation:
            self.actor.renumber(highest + 1)
            self.number(highest + 1)

    def claim(self) -> None:
        """Make sure that this head may act on all ranks, with the highest generation. Raises Failed."""
        self.authority(LOST_SECONDS)
        # A rank answers after what an earlier generation has begun there: what is read next is true.
        results = self.each("claim", HALT_LIMIT, patience=LOST_SECONDS)
        wrong = self.phrases(results)
        if wrong:
            raise Failed(f"{self.group}: {'. '.join(wrong)}. Nothing was changed.", "node_lost" if lost(results) else "start_failed")

    def looks(self) -> list[dict[str, Any]]:
        """Read all ranks until they can be read. Raises Failed."""
        start = self.clock.monotonic()
        while True:
            found = self.look(self.release, LOST_SECONDS)
            wrong = self.phrases(found)
            silent = [f"{self.name(i)}: {each['engine_error']}" for i, each in enumerate(found) if isinstance(each, dict) and each["engine_error"]]
            if not wrong and not silent:
                return [each for each in found if isinstance(each, dict)]
            if wrong or self.clock.monotonic() - start > ENGINE_SECONDS:
                kind = "node_lost" if lost(found) else "start_failed"
                raise Failed(f"{self.group}: {' '.join(point(each) for each in wrong + silent)} Nothing was changed.", kind)
            self.pause(POLL_SECONDS)

    def readable(self) -> list[Result]:
        """Read all ranks, for a while if one cannot be read."""
        start = self.clock.monotonic()
        while True:
            found = self.look(self.release)
            if all(map(readable, found)) or self.clock.monotonic() - start >= LOST_SECONDS:
                return found
            self.pause(POLL_SECONDS)

    def drain(self, looks: Sequence[dict[str, Any]], seconds: float = 0.0) -> None:
        """Wait up to `seconds` for the requests of what runs, and record how many are cut. Metrics that do not answer end it. Raises Superseded."""
        release, start, held, waits = next(filter(None, map(running_release, looks)), ""), self.clock.monotonic(), 0, False
        while release:
            found = self.each("engine", METRICS_SECONDS, self.ranks[:1], release=release)[0]
            if not isinstance(found, dict) or found["tokens"] is None:
                break
            held = int(found["running"]) + int(found["waiting"])
            if not held or self.clock.monotonic() - start >= seconds:
                break
            if not waits:
                waits = True
                self.actor.update(phase="draining")
                self.actor.event("step", f"{self.group} waits up to {seconds:.0f} s for {_requests(held)}")
            self.authority()  # a stop on a worker counts, and a worker that is not asked reports that its head is gone
            self.pause(POLL_SECONDS)
        waited = f" after {self.clock.monotonic() - start:.0f} s" if waits else ""
        if held or waits:
            self.actor.event("step", f"{self.group}: {_requests(held)} {'is' if held == 1 else 'are'} cut{waited}" if held else f"{self.group} drained{waited}")


def point(text: str) -> str:
    """Return a sentence with its period."""
    return text if text.endswith(".") else f"{text}."


def _requests(count: int) -> str:
    return f"{count} request{'s' if count != 1 else ''}"


def passed_before(looks: Sequence[dict[str, Any]], release: str) -> bool:
    """Whether a release has passed its gate on a rank."""
    return any(entry["id"] == release and entry.get("good") for each in looks for entry in each["releases"])
