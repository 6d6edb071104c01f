# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls of verbs on all ranks of a serving group, for one generation of what is desired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from ansible_collections.gb10.cluster.plugins.module_utils._agent.actor import Actor, Job, Rank
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError, RankLost, shortened
from ansible_collections.gb10.cluster.plugins.module_utils._release.release import same_models, weights_differ

Result = Union[dict[str, Any], RankError, RankLost]

LOST_SECONDS = 20.0  # how long a rank may be unreachable before a step does without it
RETRY_SECONDS = 2.0
HALT_LIMIT = 300.0  # the engine's own grace period, evidence, and reading back
READ_LIMIT = 30.0
POLL_SECONDS = 2.0
TICK_SECONDS = 1.0
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


def lost(results: Sequence[Result]) -> bool:
    """Tell whether a rank did not answer."""
    return any(isinstance(each, RankLost) for each in results)


def lacking(look: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return what a rank lacks for a start: files, image, and weights that differ from the given ones of the run, or from those of the receipt.

    A release that is returned to can have another model or drafter than the run. Then its receipt counts.
    """
    now = look.get("weights") or {}
    judged = given if given and same_models(given, now) else (look.get("receipt") or {}).get("weights") or {}
    return [*look["missing"], *(f"the weights differ: {phrase}" for phrase in weights_differ(judged, now))]


class Calls:
    """The ranks of a group, as one generation calls them."""

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
