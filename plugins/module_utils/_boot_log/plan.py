# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what to try on a line, chosen by the literals in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.boot import Boot
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import BENIGN
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import Classifier, Plan, built_in
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.literals import without_digits
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import BOUNDARY, DEATH, DETAIL, RULES, TRACEBACK

#: Tried on every line, also after requests began: needles without digits, method.
ALWAYS: tuple[tuple[tuple[str, ...], Callable[..., None]], ...] = (
    (("HTTP/",), Boot.take_access),
    (("startup complete", "Uvicorn running"), Boot.take_ready),
    (("bind_address=",), Boot.take_ready_rust),
    (("hutting down", "shutdown complete", "shutdown triggered", "trigger received", "Finished server process", "Parent process exited"), Boot.take_stopped),
    (("Running: ",), Boot.take_stats),
    (("KeyboardInterrupt",), Boot.take_interrupted),
    (("eceived request ", "Added request "), Boot.take_request),
)
#: Tried until the first request of a boot.
FIGURES: tuple[tuple[tuple[str, ...], Callable[..., None]], ...] = (
    ((" KV cache size: ", "Maximum concurrency for "), Boot.take_pool),
    (("Available KV cache memory: ", "memory for KV Cache as", "GiB for KV cache", "startup plan"), Boot.take_available),
    (("loading took ", "weights took ", "raph capturing finished", "init engine ("), Boot.take_duration),
    (("LLM engine (v",), Boot.take_engine),
    (("args: {",), Boot.take_args),
    (("world_size=", "in world size "), Boot.take_rank),
    (("Starting vLLM",), Boot.take_listen),
    (("INFO Using network", "NCCL version ", "using nccl==", "via NET/", "NET/IB : "), Boot.take_nccl),
    (("Completed | ", "Capturing CUDA"), Boot.take_progress),
)


@lru_cache(maxsize=1)
def literals() -> list[str]:
    """Return all literals of facts and failures, without digits, the longest first."""
    needles = {*DEATH, *BOUNDARY, TRACEBACK, DETAIL, *(b["needle"] for b in BENIGN), *(rule.needle for rule in RULES)}
    needles.update(needle for classifier in built_in() for needle in classifier.needles)
    needles.update(needle for texts, _method in (*ALWAYS, *FIGURES) for needle in texts)
    return sorted({without_digits(needle) for needle in needles}, key=len, reverse=True)


@lru_cache(maxsize=1)
def trigger() -> re.Pattern[bytes]:
    """Return the expression that finds a shape of interest. All literals with one first letter are one branch, which is what makes it fast."""
    branches: dict[str, list[str]] = {}
    for literal in literals():
        branches.setdefault(literal[0], []).append(re.escape(literal[1:]))
    return re.compile("|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in branches.items()).encode())


def literals_in(text: str) -> frozenset[str]:
    """Return the literals in the text of a line, from which the digits are removed."""
    return frozenset(literal for literal in literals() if literal in text)


def plan_for(found: frozenset[str], classifiers: list[Classifier]) -> Plan:
    """Choose what to try on a line with these literals."""
    here = tuple(c.narrowed(found) for c in classifiers if not c.needles or not found.isdisjoint(c.needles))
    return Plan(
        found,
        here,
        tuple(c for c in here if c.any_level),
        not found.isdisjoint(DEATH),
        TRACEBACK in found,
        DETAIL in found,
        not found.isdisjoint(BOUNDARY),
        tuple(b["name"] for b in BENIGN if without_digits(b["needle"]) in found),
        tuple(method for needles, method in ALWAYS if not found.isdisjoint(needles)),
        tuple(method for needles, method in FIGURES if not found.isdisjoint(needles)),
        tuple(rule for rule in RULES if rule.needle in found),
    )
