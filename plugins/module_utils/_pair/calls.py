# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls of verbs on all ranks of a serving group, for one generation of what is desired; and one boot, until the judge has a verdict.

That is decided by generations, stops of local root, a pair that serves already, and the requests that it still serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from ansible_collections.gb10.cluster.plugins.module_utils._gate.judge import Judge, Verdict
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import passed_before, running_release, runs, same_models, weights_differ
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Actor, Job, Rank, Superseded
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import OWNER, RankError, RankLost, shortened

Result = Union[dict[str, Any], RankError, RankLost]

LOST_SECONDS = 20.0  # how long a rank may be unreachable before a step does without it
RETRY_SECONDS = 2.0
HALT_LIMIT = 300.0  # the engine's own grace period, evidence, and reading back
READ_LIMIT = 30.0
POLL_SECONDS = 2.0
TICK_SECONDS = 1.0
ENGINE_SECONDS = 60.0  # how long a Docker Engine may be silent before a start is given up
METRICS_SECONDS = 10.0  # more than a rank gives its engine
WAIT_SECONDS = 600.0  # vllm_tp2_wait_seconds of a request without options


class Failed(Exception):  # noqa: N818  carries a sentence and a class
    """The start ends before there is a boot to judge."""

    def __init__(self, sentence: str, kind: str = "start_failed") -> None:
        super().__init__(shortened(sentence))
        self.kind = kind


def result_of(job: Job) -> Result:
    """Return a job's result, or the error that it ended with."""
    try:
        return job.result()
    except (RankError, RankLost) as error:
        return error


def problem(error: Exception | dict[str, Any]) -> str:
    """Return what went wrong on a rank, as the end of a sentence without its period."""
    if isinstance(error, RankLost):
        return f"does not answer ({str(error).rstrip('.')})"
    return f"cannot be used: {str(error).rstrip('.')}"


def lacking(look: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return what a rank lacks for a start: files, image, and weights that differ from the given ones of the run, or from those of the receipt.

    A release that is returned to can have another model or drafter than the run. Then its receipt counts.
    """
    now = look.get("weights") or {}
    judged = given if given and same_models(given, now) else (look.get("receipt") or {}).get("weights") or {}
    return [*look["missing"], *(f"the weights differ: {phrase}" for phrase in weights_differ(judged, now))]


def readable(look: Result) -> bool:
    """Tell whether a rank could be read, and its Docker Engine answers."""
    return isinstance(look, dict) and not look["engine_error"]


def point(text: str) -> str:
    """Return a sentence with its period."""
    return text if text.endswith(".") else f"{text}."


def _requests(count: int) -> str:
    return f"{count} request{'s' if count != 1 else ''}"


class Calls:
    """The ranks of a group, as one generation of the head calls them, and its authority over them."""

    answered = False  # whether all ranks have answered read_authority()

    def __init__(self, actor: Actor, desired: dict[str, Any]) -> None:
        self.actor, self.desired = actor, desired
        self.group, self.ranks, self.clock = actor.group, actor.ranks, actor.clock
        self.release = str(desired["release"])
        self.options: dict[str, Any] = {"wait_seconds": WAIT_SECONDS, **(desired.get("options") or {})}
        self.number(int(desired["generation"]))

    def pause(self, seconds: float) -> None:
        """Wait. Raises Superseded."""
        self.clock.wait(seconds)
        self.actor.check(self.generation)

    def each(self, verb: str, limit: float, ranks: Sequence[Rank] | None = None, patience: float = 0.0, **arguments: Any) -> list[Result]:
        """Call a verb on all these ranks at once and return the results in their order. A lost rank is called again for `patience` seconds."""
        chosen = list(self.ranks if ranks is None else ranks)
        start = self.clock.monotonic()
        jobs: list[Job | None] = [rank.begin(verb, limit, **arguments) for rank in chosen]
        again = [0.0] * len(chosen)
        out: list[Result | None] = [None] * len(chosen)
        while True:
            now = self.clock.monotonic()
            for index, (rank, job) in enumerate(zip(chosen, jobs)):
                if job is None and out[index] is None and now >= again[index]:
                    jobs[index] = rank.begin(verb, limit, **arguments)
                elif job is not None and out[index] is None and job.done():
                    result = result_of(job)
                    if isinstance(result, RankLost) and now - start < patience:
                        jobs[index], again[index] = None, now + RETRY_SECONDS
                    else:
                        out[index] = result
            if all(each is not None for each in out):
                return [each for each in out if each is not None]
            self.pause(TICK_SECONDS)

    @staticmethod
    def lost(results: Sequence[Result]) -> bool:
        """Tell whether a rank did not answer."""
        return any(isinstance(each, RankLost) for each in results)

    def name(self, index: int) -> str:
        """Return a rank as sentences name it."""
        return f"rank {index} on {self.ranks[index].host}"

    def phrases(self, results: Sequence[Result]) -> list[str]:
        """Return what went wrong, one phrase a rank."""
        return [f"{self.name(index)} {problem(result)}" for index, result in enumerate(results) if isinstance(result, Exception)]

    def lacks(self, look: dict[str, Any]) -> list[str]:
        """Return what a rank lacks for a start."""
        return lacking(look, self.options.get("weights") or {})

    def look(self, release: str, patience: float = 0.0, share: float | None = None, free_only: bool = False) -> list[Result]:
        """Read all ranks. `share` of the memory must be available, or free if `free_only` and the rank has dropped its page cache."""
        return self.each("look", READ_LIMIT, patience=patience, release=release, free_share=share, free_only=free_only)

    def halt(self, label: str, mark: str = "", patience: float = LOST_SECONDS, kill: bool = False) -> list[Result]:
        """Stop all ranks; `kill` gives the engines no time to end by themselves."""
        return self.each("halt", HALT_LIMIT, patience=patience, label=label, mark=mark, kill=kill)

    def halted(self, label: str, results: Sequence[Result]) -> list[str]:
        """Note the evidence of a halt. Return the ranks that are not proven to be stopped, one phrase each."""
        if label:
            kept = self.actor.outcome()["evidence"]
            self.actor.update(evidence=kept if label in kept else [*kept, label])
        wrong = self.phrases(results)
        for index, found in enumerate(results):
            if isinstance(found, dict) and found.get("note"):
                self.actor.warn(f"{self.name(index)}: {found['note']}")
            if isinstance(found, dict) and found["left"]:
                wrong.append(f"{self.name(index)} still runs")
        return wrong

    def hold_off(self) -> None:
        """Wait while a rank has a hold. Raises Superseded."""
        shown = ""
        while True:
            held = [hold for found in self.each("hello", READ_LIMIT) if isinstance(found, dict) for hold in found.get("holds") or []]
            if not held:
                return
            text = f"{self.group} waits: {held[0]['reason']}"
            if text != shown:
                self.actor.event("hold", text)
                shown = text
            self.pause(POLL_SECONDS)

    def number(self, generation: int) -> None:
        """Continue with this generation."""
        self.generation = generation
        for rank in self.ranks:
            rank.generation = generation

    # --- authority

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
            raise Failed(f"{self.group}: {'. '.join(wrong)}. Nothing was changed.", "node_lost" if self.lost(results) else "start_failed")

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
                kind = "node_lost" if self.lost(found) else "start_failed"
                raise Failed(f"{self.group}: {' '.join(point(each) for each in wrong + silent)} Nothing was changed.", kind)
            self.pause(POLL_SECONDS)

    def readable(self) -> tuple[list[Result], bool]:
        """Read all ranks, for a while if one cannot be read. Return also whether all of them could be."""
        start = self.clock.monotonic()
        while True:
            found = self.look(self.release)
            whole = all(map(readable, found))
            if whole or self.clock.monotonic() - start >= LOST_SECONDS:
                return found, whole
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


# --- The following of one boot, until the judge has a verdict.

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
