# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only actor of a serving group: it keeps what is desired and what came of it, and converges. It runs on the head.

Others state what they want with desire() and read what happened with state() and events(). These three may be called from any thread. converge.step()
runs in one thread only. All waiting is done by the clock, all reading and changing of nodes by the ranks, so that tests can run the actor in virtual time.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ansible_collections.gb10.cluster.plugins.module_utils._core import redact, text
from ansible_collections.gb10.cluster.plugins.module_utils._pair import standing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Store
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import shortened

ATTEMPTS = 3
DESIRED, OUTCOME = "desired.json", "outcome.json"
#: `auto` tells that the agent itself has asked for it, to restore service, and `hold` why it asks to stop the group instead.
#: `known_stop` is the highest generation of a stop that this head has ordered or obeyed.
NOTHING: dict[str, Any] = {
    "generation": 0, "state": "", "release": "", "by": "", "at": "", "reasons": [], "options": {}, "replaces": [], "known_stop": 0,
    "auto": False, "hold": "",
}  # fmt: skip
EVENTS_IN_MEMORY = 300
EVENTS_CHARACTERS = 256 << 10  # of all events in memory: with the outcome they have to fit into one reply
#: How far above its own generation the head follows a rank at once. A rank that reports any number cannot use up those that are left.
STEP = 1 << 20


class Refused(Exception):  # noqa: N818  the answer to a request, in one sentence
    """The request is not carried out."""


class Superseded(Exception):  # noqa: N818  a change of what is desired, no error
    """Another state is desired than the one that is being converged to."""


class Job(Protocol):
    """A verb under way on a rank."""

    def done(self) -> bool:
        """Tell whether the verb has ended."""

    def result(self) -> dict[str, Any]:
        """Return the verb's result. Raises RankError or RankLost."""


class Rank(Protocol):
    """One rank of the group, as the actor reaches it."""

    number: int
    host: str
    generation: int

    def begin(self, verb: str, limit: float, /, **arguments: Any) -> Job:
        """Begin a verb that may take `limit` seconds. Never blocks, never raises."""


class Clock(Protocol):
    """Time, and waiting."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never jumps."""

    def wall(self) -> float:
        """Return seconds since the epoch."""

    def wait(self, seconds: float) -> None:
        """Wait; shorter if a job has ended or another state is desired."""


def fresh_outcome(generation: int) -> dict[str, Any]:
    """Return the outcome of a generation that nothing was done for yet."""
    return {
        "generation": generation, "phase": "waiting", "result": "", "release": "", "verdict": {}, "final": False, "sentence": "", "attempt": 1, "warnings": [],
        "unserved_seconds": 0.0, "evidence": [], "delivered": False, "at": "", "containers": {}, "returning": False,
        "resumes": "",
    }  # fmt: skip


class Actor:
    """The actor of one serving group."""

    def __init__(self, group: str, ranks: Sequence[Rank], store: Store, clock: Clock, *, search: Callable[[str, Any], Any] | None = None) -> None:
        """`ranks` begin with the head. `search` is jmespath.search if the library is there."""
        self.group, self.ranks, self.store, self.clock, self.search = group, list(ranks), store, clock, search
        self.lock = threading.RLock()
        self._events = collections.deque(store.events(), maxlen=EVENTS_IN_MEMORY)
        self._trim()
        desired, desired_is = store.known(DESIRED)
        outcome, outcome_is = store.known(OUTCOME)
        self._desired = {**copy.deepcopy(NOTHING), **desired}
        known = outcome.get("generation") == self._desired["generation"]
        self._outcome = {**fresh_outcome(int(self._desired["generation"])), **(outcome if known else {})}
        self.lost: list[str] = []  # what the files did not tell this actor, one phrase each, until it is an event
        self._used = any(int(each.get("generation") or 0) for each in (desired, outcome, *self._events))
        if desired_is == "damaged" or (desired_is and self._used):
            self.lost.append(f"{DESIRED} was {desired_is}; what runs was read instead")
        if outcome_is == "damaged" or (outcome_is and desired):
            self.lost.append(f"{OUTCOME} was {outcome_is}; what runs was read instead")
        self._used = self._used or bool(self.lost)
        self.listener: Callable[[Mapping[str, Any]], None] = lambda _event: None  # is called with each event
        self.continued = -1 if self._outcome["final"] else int(self._desired["generation"])  # a generation that was not settled when the agent started
        self.looked = False  # whether the workers' authority was read since this start
        self.looked_at = -1e9  # when it was read last, by the monotonic clock
        self.floor = 0  # the highest generation that a rank has reported

    def report_lost(self) -> None:
        """Record once what was lost with the files of an earlier agent."""
        with self.lock:
            while self.lost:
                self.event("warning", f"{self.group}: {self.lost.pop(0)}")

    def reached(self, generation: int) -> int:
        """Return the generation that a rank reports, as far as this head follows it."""
        return min(generation, self.generation + STEP)

    # --- what others ask

    def state(self) -> dict[str, Any]:
        """Return what is desired and what came of it."""
        with self.lock:
            return {"desired": copy.deepcopy(self._desired), "outcome": copy.deepcopy(self._outcome), "busy": self._busy()}

    def events(self, since: int = 0) -> list[dict[str, Any]]:
        """Return the events after number `since`, the oldest first."""
        with self.lock:
            return [dict(event) for event in self._events if int(event["n"]) > since]

    def acknowledge(self, generation: int) -> None:
        """Record that the outcome of a generation was read by its follower."""
        with self.lock:
            if self._outcome["generation"] == generation and self._outcome["final"] and not self._outcome["delivered"]:
                self.update(delivered=True)

    def desire(
        self, state: str, release: str = "", by: str = "", reasons: Sequence[str] = (), options: Mapping[str, Any] | None = None, takeover: bool = False,
        seen: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Set what is desired; return `generation`, `joined` if it was so already, and `adjusted` if its options change. Raises Refused with one sentence.

        `seen` is the generation that the reasons were found in, 0 if it is not known: a restart by the agent since then has removed them.
        """
        if state not in ("serving", "stopped") or (state == "serving" and not release):
            raise Refused(f"The desired state {state!r} is not valid. Expected: stopped, or serving with a release.")
        with self.lock:
            now, busy = self._desired, self._busy()
            if now["auto"] and 0 < seen < int(now["generation"]):
                reasons = ()
            if standing.joins({"desired": now, "outcome": self._outcome, "busy": busy}, state, release, reasons):
                adjusted = self._adjust(by, options or {}) if state == "serving" and not busy else []
                return {"generation": now["generation"], "joined": True, **({"adjusted": adjusted} if adjusted else {})}
            if busy and state == "serving" and not takeover and not now["auto"]:
                raise Refused(self.under_way())
            generation = max(int(now["generation"]), self.floor) + 1
            wanted = {
                "generation": generation, "state": state, "release": release if state == "serving" else now["release"], "by": by, "at": self.stamp(),
                "reasons": list(reasons), "options": dict(options or (now["options"] if state == "stopped" else {})), "replaces": [], "auto": False, "hold": "",
                "known_stop": generation if state == "stopped" else now["known_stop"],
            }  # fmt: skip
            error = self._set(wanted)
            if error:
                raise Refused(f"{self.group}: the desired state cannot be recorded on the head ({error}). Nothing was changed. Make room there.")
            text = f"{self.group} is to be stopped" if state == "stopped" else f"{self.group} is to serve release {release}"
            self.event("desired", f"{text}, desired by {by or 'a local command'}{': ' if reasons else ''}{'; '.join(reasons)}")
            return {"generation": wanted["generation"], "joined": False}

    def _adjust(self, by: str, options: Mapping[str, Any]) -> list[str]:
        """Put changed options into force for the starts to come. Return them, one phrase each. Raises Refused."""
        changed = standing.differences(self._desired["options"], options) if options else []
        if changed:
            wanted = {**self._desired, "options": dict(options)}
            try:
                self.store.save(DESIRED, wanted)
            except OSError as error:
                raise Refused(f"{self.group}: the options cannot be recorded on the head ({error}). Nothing was changed. Make room there.") from error
            self._desired = wanted
            self.event("desired", f"{self.group}: {', '.join(changed)}, desired by {by or 'a local command'}, for its next start")
        return changed

    def recover(self, generation: int, release: str, reason: str, by: str, cause: str, hold: str = "") -> None:
        """Set a new generation to restore service with today's options, if `generation` is still the desired one and has settled. Raises Superseded."""
        with self.lock:
            self.check(generation)
            if self._busy():
                raise Superseded
            wanted = {
                **copy.deepcopy(NOTHING), "generation": max(generation, self.floor) + 1, "state": "serving", "release": release, "by": by, "at": self.stamp(),
                "reasons": [reason], "options": dict(self._desired["options"]), "known_stop": self._desired["known_stop"], "auto": True, "hold": hold,
            }  # fmt: skip
            self._set(wanted, must=True)
            self.event("desired", f"{self.group} is to serve release {release}, desired by {by}: {reason}", cause=cause)

    def under_way(self) -> str:
        """Return the sentence that refuses a second change."""
        now = self._desired
        what = "being stopped" if now["state"] == "stopped" else f"being changed to release {now['release']}"
        return (
            f"{self.group} is {what} by {now['by'] or 'another process'} since {now['at']}. Wait until that has ended (`sudo gb10 status` on the head),"
            " or take it over with -e takeover=true."
        )

    # --- what the converge loop asks

    def desired(self) -> dict[str, Any]:
        """Return what is desired."""
        with self.lock:
            return copy.deepcopy(self._desired)

    def outcome(self) -> dict[str, Any]:
        """Return what came of it."""
        with self.lock:
            return copy.deepcopy(self._outcome)

    def settled(self) -> bool:
        """Tell whether the outcome is final. Unlike outcome(), this copies nothing."""
        with self.lock:
            return bool(self._outcome["final"])

    @property
    def generation(self) -> int:
        """The desired generation."""
        with self.lock:
            return int(self._desired["generation"])

    def unattended(self) -> str:
        """Return the release that has to serve without being asked for again; empty if nothing has to. Copies nothing."""
        with self.lock:
            desired, outcome = self._desired, self._outcome
            if desired["state"] != "serving" or self._busy():
                return ""
            if outcome["result"] == "failed":
                return str(outcome["release"] or outcome["resumes"])
            return str(outcome["release"]) if outcome["result"] == "serves" else ""

    def check(self, generation: int) -> None:
        """Raise Superseded if another generation is desired."""
        with self.lock:
            if self._desired["generation"] != generation:
                raise Superseded

    def update(self, **changes: Any) -> None:
        """Change the outcome of the desired generation. A disk that cannot take it is a warning: it decides nothing."""
        with self.lock:
            self._outcome.update(changes)
            try:
                self.store.save(OUTCOME, self._outcome)
            except OSError as error:
                self._warn_once(f"The agent's state cannot be saved ({error}). The verdict does not depend on it. Make room on the head.")

    def settle(self, generation: int, result: str, sentence: str, **more: Any) -> None:
        """Record the outcome of a generation for good. Raises Superseded if another one is desired."""
        with self.lock:
            self.check(generation)
            sentence = shortened(sentence)
            if (result, sentence) != (self._outcome["result"], self._outcome["sentence"]):  # a stop that is repeated may fail as before
                self.event("settled", sentence, result=result)
            self.update(phase="settled", result=result, sentence=sentence, final=True, at=self.stamp(), containers={}, **more)

    def adopt(self, desired: Mapping[str, Any], **outcome: Any) -> None:
        """Take over what is desired from outside of this store: a pair that serves already, or a stop on a worker."""
        with self.lock:
            known = {"known_stop": self._desired["known_stop"], "at": self.stamp()}
            self._set({**copy.deepcopy(NOTHING), **known, **desired}, must=True)
            if outcome:
                self.update(at=self.stamp(), **outcome)

    def renumber(self, generation: int) -> None:
        """Give the desired state a higher generation: its ranks have seen one that this store does not know."""
        with self.lock:
            old = int(self._desired["generation"])
            outcome = self._outcome
            self.continued = generation if self.continued == old else self.continued
            changes: dict[str, Any] = {"generation": generation, "replaces": [*self._desired.get("replaces", []), old]}
            if self._desired["state"] == "stopped":
                changes["known_stop"] = generation
            self._set({**self._desired, **changes}, must=True)
            self.update(**{**outcome, "generation": generation, "warnings": [*outcome["warnings"], *self._outcome["warnings"]]})

    def event(self, kind: str, text: str, seconds: float | None = None, **more: str) -> None:
        """Record an event; a disk that cannot take it does not matter."""
        with self.lock:
            # Without events of an agent that has served before, a follower waits for a number above the last one that it has read.
            last = int(self._events[-1]["n"]) if self._events else int(self.clock.wall()) if self._used or self.floor else 0
            number = max(self.store.last_number(), last) + 1
            masked = shortened(redact.redact(text))
            entry: dict[str, Any] = {"n": number, "at": self.stamp(), "generation": self._desired["generation"], "kind": kind, "text": masked, **more}
            if seconds is not None:
                entry["seconds"] = round(seconds, 1)
            self._events.append(entry)
            self._trim()
            with contextlib.suppress(OSError):
                self.store.append(entry)
            self.listener(entry)

    def _trim(self) -> None:
        """Forget the oldest events in memory if all of them have too many characters."""
        most = EVENTS_CHARACTERS
        for index, event in enumerate(reversed(self._events)):
            most -= sum(len(str(value)) for value in event.values())
            if most < 0:
                self._events = collections.deque(list(self._events)[len(self._events) - index :], maxlen=EVENTS_IN_MEMORY)
                return

    def warn(self, text: str) -> None:
        """Record a warning, in the events and in the outcome."""
        with self.lock:
            text = shortened(text)
            if text not in self._outcome["warnings"]:
                self._warn_once(text)
                self.update()

    def stamp(self) -> str:
        """Return the present time, UTC."""
        return text.stamp(self.clock.wall())

    def _warn_once(self, text: str) -> None:
        if text not in self._outcome["warnings"]:
            self._outcome["warnings"] = [*self._outcome["warnings"], text]
            self.event("warning", text)

    def _busy(self) -> bool:
        return standing.converges({"desired": self._desired, "outcome": self._outcome})

    def _set(self, wanted: dict[str, Any], must: bool = False) -> str:
        """Replace what is desired. Return why it cannot be saved; nothing has changed then, unless it `must` count without a record of it."""
        error = ""
        try:
            self.store.save(DESIRED, wanted)
        except OSError as failure:
            error = str(failure)
            if not must:
                return error
        self._desired = wanted
        self._outcome = fresh_outcome(int(wanted["generation"]))
        if error:
            self._warn_once(f"The desired state cannot be saved ({error}). It counts until the agent ends. Make room on the head.")
        self.update()
        return error
