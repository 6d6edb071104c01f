# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: failure classes ready to run, and the failures found with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import CATALOGUE
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import Line
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import MAX_TEXT, Rule
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import redact


class Classifier(NamedTuple):
    """A failure class ready to run."""

    name: str
    order: int
    needles: frozenset[str]
    needles_of: tuple[frozenset[str], ...]  # of each pattern of the row
    patterns: tuple[re.Pattern[str], ...]  # once narrowed: to compile all at each start would cost more than to read a log
    unless: tuple[str, ...]
    within: str | None
    any_level: bool
    kind: str
    users: bool
    entry: dict[str, Any]

    def narrowed(self, found: frozenset[str]) -> Classifier:
        """Return the class with the patterns only that can match a text with these literals."""
        sources = zip(self.entry["patterns"], self.needles_of)
        return self._replace(patterns=tuple(_compiled(source) for source, own in sources if not own or not found.isdisjoint(own)))


class Plan(NamedTuple):
    """What a text may hold; the same for all lines of one shape."""

    literals: frozenset[str]
    repeats: str  # the only literal, of an access line or of statistics
    classifiers: tuple[Classifier, ...]
    at_any_level: tuple[Classifier, ...]
    death: bool
    traceback: bool
    detail: bool
    boundary: bool
    benign: tuple[str, ...]
    always: tuple[Callable[..., None], ...]
    figures: tuple[Callable[..., None], ...]
    rules: tuple[Rule, ...]


_compiled = lru_cache(maxsize=1024)(re.compile)


def users_classes(extra: list[dict[str, Any]]) -> tuple[Classifier, ...]:
    """Return the classes of user entries in catalogue shape; they come first."""
    return tuple(_compile(entry, order - len(extra), users=True).narrowed(frozenset()) for order, entry in enumerate(extra))


@lru_cache(maxsize=1)
def built_in() -> tuple[Classifier, ...]:
    """Return the classes of the catalogue."""
    return tuple(_compile(entry, order) for order, entry in enumerate(CATALOGUE))


def _compile(entry: dict[str, Any], order: int, users: bool = False) -> Classifier:
    needles_of = tuple(map(frozenset, entry["literals"]))
    return Classifier(
        entry["class"],
        order,
        frozenset().union(*needles_of, entry.get("within_literals", ())),
        needles_of,
        (),
        tuple(entry.get("unless", ())),
        entry.get("within"),
        bool(entry.get("any_level", False)),
        entry["kind"],
        users,
        entry,
    )


def built_in_class(name: str) -> Classifier:
    """Return the class of the catalogue with this name, not one of its cases."""
    return next(c for c in built_in() if c.name == name and "case" not in c.entry)


def redacted(text: str) -> str:
    """Return a text with its secrets masked."""
    return _redacted(text) if len(text) <= MAX_TEXT else redact(text)


@lru_cache(maxsize=64)  # a boot that is tried again has the same texts, and facts that are asked for again
def _redacted(text: str) -> str:
    return redact(text)


def clip(text: str) -> str:
    text = redacted(text.strip())
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


class Failure:
    """The first line (the last one if the class has `pick: last`) of one class in one boot."""

    def __init__(self, classifier: Classifier, line: Line, number: int, groups: dict[str, str], after_ready: bool, stage: int) -> None:
        self.classifier = classifier
        self.message = line.message
        self.number = number
        self.groups = groups
        self.proc = proc_name(line)
        self.ip = next((p[2] for p in line.procs if p[2]), "")
        self.after_ready = after_ready
        self.stage = stage
        self.count = 1

    def facts(self, rank: int | None) -> dict[str, Any]:
        """Return the public shape of the failure."""
        entry = self.classifier.entry
        values = {k: v for k, v in self.groups.items() if v}
        try:
            remedy = entry["remedy"].format(**values)
        except (KeyError, IndexError, ValueError):
            remedy = entry.get("remedy_plain") or re.sub(r"\{\w+\}", "?", entry["remedy"])
        return {
            "class": self.classifier.name,
            "line": clip(self.message),
            "line_number": self.number,
            "remedy": redacted(remedy),
            "anchor": entry["anchor"],
            "kind": self.classifier.kind,
            "rank": rank,
            "proc": self.proc or None,
            "ip": self.ip or None,
            "after_ready": self.after_ready,
            "needs_peer": entry["needs_peer"],
            "found": {k: redacted(v) for k, v in values.items()},
            "count": self.count,
        }


def proc_name(line: Line) -> str:
    return " ".join(p[0] for p in line.procs if p[0])


def engine_key(line: Line) -> str:
    if not line.procs:
        return ""
    # the containers of two nodes can have the same process ids
    name, pid, ip = next((p for p in line.procs if p[0].startswith("EngineCore")), line.procs[0])
    return f"{name} {pid}@{ip}"
