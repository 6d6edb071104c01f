# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a vLLM server by its /metrics, and the verdict if a completion does not come. Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import LARGEST

_LINE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_TOKENS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"


class Sample(NamedTuple):
    """One reading of /metrics, the sum over all engines of the server."""

    tokens: float  # generated and prefilled since the start
    running: int
    waiting: int


class Limits(NamedTuple):
    """Seconds since the completion was requested."""

    answer: float  # after it, a server that computes for others is busy
    wedge: float  # how long tokens stand still before the engine counts as frozen
    total: float  # the longest wait for a completion of a server without other requests


def figures(text: str, names: Collection[str]) -> Iterator[tuple[str, str, float]]:
    """Yield name, labels and figure of each line of a /metrics page with one of these names; one that is not a number is left out."""
    for name, labels, value in _LINE.findall(text):
        if name in names:
            with contextlib.suppress(ValueError):
                yield name, labels, float(value)


def sums_of(text: str, names: Collection[str]) -> dict[str, float]:
    """Return the sums of these figures over all engines of the server; a name that the page does not have is missing."""
    sums: dict[str, float] = {}
    for name, _labels, number in figures(text, names):
        sums[name] = sums.get(name, 0.0) + (number if 0 <= number < LARGEST else 0.0)  # not NaN, not +Inf
    return sums


def sample(text: str) -> Sample | None:
    """Return the figures of a /metrics page; None if it does not count tokens."""
    sums = sums_of(text, (*_TOKENS, _RUNNING, _WAITING))
    if not any(name in sums for name in _TOKENS):
        return None
    return Sample(sum(sums.get(name, 0.0) for name in _TOKENS), int(sums.get(_RUNNING, 0)), int(sums.get(_WAITING, 0)))


def requests_text(seen: Sample) -> str:
    """Return how many requests the server holds, as a phrase. The request of this check is one of them."""
    running = max(1, seen.running)
    waiting = f", {seen.waiting} waiting" if seen.waiting else ""
    return f"{running} request{'s' if running > 1 else ''} running{waiting}"


def decide(seen: Sequence[tuple[float, Sample | None]], limits: Limits, at_idle: bool | None) -> str:
    """Return what a server is whose completion has not come: busy, computing, frozen, wedged, silent; empty to go on waiting.

    `seen` holds (seconds since the request, reading), the first one from before the request; a reading is None if /metrics did not answer.
    `at_idle` tells whether the GPU draws idle power; None if this is not known.
    """
    now = seen[-1][0]
    known = [(when, reading) for when, reading in seen if reading is not None]
    if now < limits.answer:
        return ""
    if not known or now - known[-1][0] >= limits.wedge:
        return "silent" if now >= limits.wedge else ""
    changes = [when for (_before, old), (when, new) in zip(known, known[1:]) if new.tokens != old.tokens]
    still = now - (changes[-1] if changes else known[0][0])
    if changes and still < limits.wedge:
        first = known[0][1]
        others = first.running + first.waiting > 0 or any(reading.running + reading.waiting > 1 for _when, reading in known)
        return "busy" if others or now >= limits.total else ""
    if still < limits.wedge:
        return ""
    return "frozen" if at_idle is None else "wedged" if at_idle else "computing"
