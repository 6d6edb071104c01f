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
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import Plan, built_in
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import BOUNDARY, DEATH, DETAIL, RULES, TRACEBACK, without_digits

#: To split a text into its words of ASCII letters.
_LETTERS = bytes(byte if chr(byte).isalpha() and byte < 128 else 32 for byte in range(256))
#: No more is remembered of a word. In a line with a longer one each literal is searched for.
_WORD_BYTES = 64

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
_BENIGN = tuple((without_digits(needle), name) for name, needle in BENIGN.items())


@lru_cache(maxsize=1)
def literals() -> list[str]:
    """Return all literals of facts and failures, without digits, the longest first."""
    needles = {*DEATH, *BOUNDARY, TRACEBACK, DETAIL, *BENIGN.values(), *(rule.needle for rule in RULES)}
    needles.update(needle for classifier in built_in() for needle in classifier.needles)
    needles.update(needle for texts, _method in (*ALWAYS, *FIGURES) for needle in texts)
    return sorted({without_digits(needle) for needle in needles}, key=len, reverse=True)


@lru_cache(maxsize=1)
def _keys() -> tuple[re.Pattern[bytes], dict[bytes, set[str]]]:
    """Return the expression that finds the key of a literal, its longest run of letters, and the literals by the keys that begin with theirs."""
    by_key: dict[bytes, set[str]] = {}
    for literal in literals():
        by_key.setdefault(max(literal.encode().translate(_LETTERS).split(), key=len), set()).add(literal)
    branches: dict[bytes, list[bytes]] = {}  # all keys with one first letter are one branch, which is what makes it fast
    for key in sorted(by_key, key=len, reverse=True):
        branches.setdefault(key[:1], []).append(key[1:])
        by_key[key].update(*(by_key[key[:end]] for end in range(1, len(key)) if key[:end] in by_key))
    return re.compile(b"|".join(first + b"(?:" + b"|".join(rest) + b")" for first, rest in branches.items())), by_key


@lru_cache(maxsize=8192)
def _of_word(word: bytes) -> frozenset[str]:
    """Return the literals whose key is in a word."""
    expression, by_key = _keys()
    found: set[str] = set()
    match = expression.search(word)
    while match is not None:
        found |= by_key[match.group()]
        match = expression.search(word, match.start() + 1)
    return frozenset(found)


def literals_in(shape: bytes) -> frozenset[str]:
    """Return the literals in a line without its digits. Lines differ more than their words do, of which most are known."""
    words = set(shape.translate(_LETTERS).split())
    known = max(map(len, words), default=0) <= _WORD_BYTES
    text = shape.decode("utf-8", "replace")
    return frozenset(literal for literal in (set[str]().union(*map(_of_word, words)) if known else literals()) if literal in text)


@lru_cache(maxsize=1024)
def plan_for(found: frozenset[str]) -> Plan:
    """Choose what to try on a line with these literals."""
    here = tuple(c.narrowed(found) for c in built_in() if not c.needles or not found.isdisjoint(c.needles))
    return Plan(
        found,
        next((only for only in ("HTTP/", "Running: ") if found == {only}), ""),
        here,
        tuple(c for c in here if c.any_level),
        not found.isdisjoint(DEATH),
        TRACEBACK in found,
        DETAIL in found,
        not found.isdisjoint(BOUNDARY),
        tuple(name for needle, name in _BENIGN if needle in found),
        tuple(method for needles, method in ALWAYS if not found.isdisjoint(needles)),
        tuple(method for needles, method in FIGURES if not found.isdisjoint(needles)),
        tuple(rule for rule in RULES if rule.needle in found),
    )
