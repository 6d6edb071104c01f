# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: a whole log as a stream of bytes into boots and facts, in constant memory.

How it is fast: a line without its digits is its shape. Shapes repeat (access lines, statistics, tracebacks), so each shape is searched once for
anything of interest and the answer is kept: what to try on its lines, chosen by the literals in it. Only lines of an interesting shape are decoded
and parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.boot import Boot
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import (
    BENIGN,
    Failure,
    Plan,
    built_in,
    built_in_class,
    check_user_class,
    user_entry,
    users_classes,
)
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import (
    BOUNDARY,
    DEATH,
    DETAIL,
    KEEP,
    RULES,
    TRACEBACK,
    Line,
    cap,
    parse_line,
    records,
    without_digits,
)

#: Shapes are remembered until so many, or so many bytes of them, are known; a longer one never is.
_SHAPES = 20000
_SHAPES_BYTES = 8 * 1024 * 1024
_SHAPE_BYTES = 16 * 1024
#: More of a line is not needed to see that it is the name of a field.
_FIELD_BYTES = 400

_DIGITS = b"0123456789"
_REQUEST = re.compile(rb"\[(?:[\w./]*/)?logger\.py:\] Received request ")

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


class BootLog:
    """Reads one log, in any slices, and returns at any time what it knows.

    ``extra_classes``: users' own failure classes, dicts with ``class``, ``pattern``, ``remedy`` and optionally ``anchor``, ``any_level``.
    """

    def __init__(self, extra_classes: list[dict[str, Any]] | None = None) -> None:
        extra = list(extra_classes or [])
        for entry in extra:
            problem = check_user_class(entry)
            if problem:
                raise ValueError(problem)
        self._users = users_classes([user_entry(e) for e in extra])  # they can match any line
        self._shapes: dict[bytes, Plan | None] = {}
        self._shapes_bytes = 0
        self._rest = b""
        self._before = b""  # the start of the last line
        self._lines = 0
        self._boot = Boot()
        self._restarts = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log, cut anywhere."""
        end = data.rfind(b"\n") + 1
        if end:
            self._take_block(self._rest + data[:end])
            self._rest = b""
        self._rest = cap(self._rest + data[end:])

    def _take_block(self, block: bytes) -> None:
        """Take whole lines."""
        lines = block.split(b"\n")
        shapes = block.translate(None, _DIGITS).split(b"\n")
        plans, above = self._shapes, self._lines
        self._lines += len(lines) - 1
        for index in range(len(lines) - 1):
            try:
                plan = plans[shapes[index]]
            except KeyError:
                plan = self._plan(shapes[index], lines[index])
            if plan is not None and not (plan.repeats and self._repeats(plan)):
                self._take_line(lines[index], above + index + 1, plan, lines[index - 1] if index else self._before)
        self._before = lines[-2][:_FIELD_BYTES]

    def _repeats(self, plan: Plan) -> bool:
        """Return whether a line only repeats that the server serves."""
        boot = self._boot
        return boot.ready is not None and (plan.repeats == "Running: " or (boot.frozen and not boot.unsure))

    def _plan(self, shape: bytes, raw: bytes) -> Plan | None:
        """Return what to try on the lines of a shape that is not in the cache, None for nothing."""
        if _REQUEST.search(shape, 0, 400) is not None and self._boot.frozen:
            return None  # prompts differ: not worth keeping
        if len(raw) > 2 * KEEP:
            shape = cap(raw).translate(None, _DIGITS)
        found = literals_in(shape)
        plan = plan_for(found) if found or self._users else None
        if plan is not None and self._users:
            any_level = (c for c in self._users if c.any_level)
            plan = plan._replace(classifiers=(*self._users, *plan.classifiers), at_any_level=(*any_level, *plan.at_any_level))
        if len(shape) <= _SHAPE_BYTES:
            if len(self._shapes) >= _SHAPES or self._shapes_bytes >= _SHAPES_BYTES:
                self._shapes.clear()
                self._shapes_bytes = 0
            self._shapes[shape] = plan
            self._shapes_bytes += len(shape)
        return plan

    def _take_line(self, raw: bytes, number: int, plan: Plan, before: bytes) -> None:
        """Take a line. before: the line above it, which names the field that a line of pydantic is about."""
        above: Line | None = parse_line(before[:_FIELD_BYTES].decode("utf-8", "replace").rstrip("\r")) if plan.detail else None
        for piece in cap(raw).split(b"\r"):  # a progress bar overwrites itself
            for line in records(piece.decode("utf-8", "replace")) if piece else ():
                if plan.boundary and self._boot.recognised and self._boot.begins(line):
                    self._restarts += 1
                    self._boot = Boot()
                if plan.detail:
                    self._boot.above, above = above, line
                self._boot.take(line, number, plan)

    def facts(self, final: bool = False) -> dict[str, Any]:
        """Return the facts of the log so far. final: the process has ended, and an unterminated last line counts, without the digits at its end."""
        if final and self._rest:
            rest, self._rest = self._rest.rstrip(b"0123456789.,"), b""  # a figure can be cut off
            plan = self._plan(rest.translate(None, _DIGITS), rest)
            if plan is not None:
                self._take_line(rest, self._lines + 1, plan, self._before)
        return {**self._boot.facts(final), "restarts": self._restarts}


def parse(log: str | bytes, extra_classes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Parse a whole log given as text or bytes."""
    reader = BootLog(extra_classes)
    reader.feed(log.encode("utf-8", "surrogateescape") if isinstance(log, str) else log)
    return reader.facts(final=True)


def with_container(facts: dict[str, Any], container: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a boot log with the container's state in them: an out-of-memory kill and a SIGKILL leave no line.

    facts: what `BootLog.facts` returned. container: `running` (bool), `exit_code` (int or None), `oom_killed` (bool), `name`.
    A kill that the log does not explain becomes class `oom_killed`; one that followed a shutdown in the log does not.
    """
    out = dict(facts)
    out["container"] = container
    killed = container.get("exit_code") == 137 and not container.get("running") and facts.get("stopped") is None
    failure = facts.get("failure")
    if not (container.get("oom_killed") or killed) or (failure is not None and failure.get("kind") != "tail"):
        return out
    how = "OOMKilled" if container.get("oom_killed") else "exit code 137 (SIGKILL)"
    served = facts.get("ready") is not None
    out["failure"] = {
        **Failure(built_in_class("oom_killed"), Line(None, False, "", "", (), ""), 0, {}, served, 0).facts(None),
        "line": f"state of container {container.get('name')}: {how}",
        "line_number": None,
        "confirmed": bool(container.get("oom_killed")),
        "also": [failure["class"], *failure.get("also", [])] if failure is not None else [],
    }
    out["suspicion"] = None
    out["state"] = "served_then_failed" if served else "failed"
    return out
