# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The failure catalogue: boot failures ready to run, faults of the kernel log, versions that fail. failures.yml is its source and describes the keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.failures_data import TEXT
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import MAX_TEXT, Line, Rule
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import redact

_DATA: dict[str, list[Any]] = json.loads(TEXT)
#: The rows of failures that the log shows, the most specific first.
CATALOGUE: list[dict[str, Any]] = _DATA["failures"]
#: The literals of look-alikes that are not failures, by name.
BENIGN: dict[str, str] = dict(_DATA["benign"])
#: The kinds of faults in the kernel log.
KERNEL: list[dict[str, Any]] = _DATA["kernel"]
#: Versions that are known to fail on a GB10.
VERSIONS: list[dict[str, Any]] = _DATA["versions"]
#: The remedies of failures that the gate finds without a log line, by class.
GATE: dict[str, str] = dict(_DATA["gate"])
#: What the Docker Engine reports when it cannot start a container: expression, remedy.
MESSAGES: list[list[str]] = list(_DATA["messages"])
#: Classes that can pass by themselves: the same release may serve at the next attempt. All others are lasting.
TRANSIENT = frozenset(_DATA["transient"])


def remedy_of(name: str) -> str:
    """Return the remedy of a failure that the gate finds without a log line, empty if it does not know the class."""
    return GATE.get(name, "")


def start_remedy(error: str) -> str:
    """Return the remedy for a start that failed, by the Docker Engine's message."""
    return next((remedy for pattern, remedy in MESSAGES if re.search(pattern, error, re.I)), remedy_of("start_failed"))


def check_user_class(entry: Any) -> str:
    """Return what is wrong with a user's class (a dict from the inventory) as one sentence, or an empty string."""
    if not isinstance(entry, dict):
        return f"A failure class in extra_classes is a {type(entry).__name__}, expected a mapping with class, pattern and remedy."
    for key in ("class", "pattern", "remedy"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            return f"The failure class {entry.get('class', '?')!r} in extra_classes has no {key}, expected a non-empty string."
    try:
        re.compile(entry["pattern"])
    except re.error as exc:
        return f"The pattern of failure class {entry['class']!r} in extra_classes is not a valid regular expression ({exc}): {entry['pattern']!r}."
    if re.search(r"\([^()]*[+*][^()]*\)\s*[+*{]", entry["pattern"]):
        return (
            f"The pattern of failure class {entry['class']!r} in extra_classes repeats a group that repeats ({entry['pattern']!r}), "
            "which can hang on a long line: give it one repeat."
        )
    return ""


def user_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a user's class in the shape of a catalogue entry; it outranks the built-in classes."""
    return {
        "class": entry["class"],
        "patterns": [entry["pattern"]],
        "literals": [[]],
        "kind": "strong",
        "any_level": bool(entry.get("any_level", False)),
        "remedy": entry["remedy"],
        "remedy_plain": entry["remedy"],
        "pick": "first",
        "needs_peer": "",
        "anchor": str(entry.get("anchor") or f"docs/reference/failures.md#{entry['class']}"),
    }


# --- Failure classes ready to run, and the failures found with them.


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


# --- The kinds of faults in the kernel log, and which of them a log or a line has.
# The section `kernel` of failures.yml has the kinds and describes the fields.

#: A record of /dev/kmsg (priority, sequence, microseconds, flags), or the stamp of dmesg, and the caller.
_KERNEL_LINE = re.compile(r"(?:(?P<priority>\d{1,4}),\d+,\d+,[^;]*;)?(?:\[[^\]]{1,40}\]\s*)?(?:\[ *[TC]\d+\]\s*)?(?P<message>.*)")
_compiled_kinds = lru_cache(maxsize=128)(re.compile)
KERNEL_CLIP = 200  # characters that are kept of a line
#: `journalctl --output=short-iso --dmesg`: stamp, host, message.
_STAMPED = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,6}) \S{1,255} kernel: (?P<message>.*)")
_SHUTDOWN = re.compile(r"Journal stopped|systemd-shutdown|Reached target .{0,40}(?:[Ss]hutdown|[Rr]eboot|[Pp]ower.?[Oo]ff|Final Step)")


class Kind(NamedTuple):
    """What the lines of one kind are, and what each reader does with them."""

    severity: str
    found: str
    matters: str
    patterns: tuple[str, ...]
    watch: str = ""
    preflight: str = ""
    show: str = ""
    command: str = ""
    least: int = 1
    block: str = ""

    @property
    def helps(self) -> str:
        """The command that helps, or prints the lines of this kind in the kernel log of a boot."""
        return self.command or f"{{on}} 'sudo journalctl -k -b {{boot}} | grep -iE \"{self.show}\"'"

    def matches(self, message: str) -> bool:
        """Return whether a message is of this kind."""
        return any(_compiled_kinds(pattern).search(message) for pattern in self.patterns)


#: By their names. A message is of the first kind that matches it.
KERNEL_KINDS = {row["kind"]: Kind(**{**{key: row[key] for key in Kind._fields if key in row}, "patterns": tuple(row["patterns"])}) for row in KERNEL}
_LEAST = {kind.watch: kind.least for kind in KERNEL_KINDS.values() if kind.watch}


def message_of(line: str) -> str:
    """Return the message of a line of /dev/kmsg or dmesg without its stamp; empty if a process wrote the line, not the kernel."""
    found = _KERNEL_LINE.match(line)
    return "" if found is None or int(found["priority"] or 0) >> 3 else found["message"]


def kind_of(message: str) -> str:
    """Return the kind of a message; empty for a healthy one."""
    return next((name for name, kind in KERNEL_KINDS.items() if kind.matches(message)), "")


def summarize_kernel(text: str, boot: int = 0) -> list[dict[str, Any]]:
    """Return {id, boot, count, first, last, line} of each kind in the log of a boot: 0 is this one, -1 the one before. `line` is the last one."""
    stamped = [(_STAMPED.match(line), line) for line in text.splitlines()]
    rows = [(match["at"], message_of(match["message"])) if match else ("", message_of(line)) for match, line in stamped]
    whole, blocks = "\n".join(message for _at, message in rows), [(name, kind.block) for name, kind in KERNEL_KINDS.items() if kind.block]
    found: dict[str, dict[str, Any]] = {}
    for name, at, message in (
        *((kind_of(message), at, message) for at, message in rows),
        *((name, "", match["line"]) for name, block in blocks for match in re.finditer(block, whole)),
    ):
        if name:
            entry = found.setdefault(name, {"id": name, "boot": boot, "count": 0, "first": at, "last": at, "line": ""})
            entry.update(count=entry["count"] + 1, last=at or entry["last"], line=message.strip()[:KERNEL_CLIP])
    return [entry for name, entry in found.items() if entry["count"] >= KERNEL_KINDS[name].least]


def ended_by_shutdown(tail: str) -> bool:
    """Whether the last lines of a boot's journal show a shutdown. Without one, the power was lost, or the node froze or reset."""
    return bool(_SHUTDOWN.search(tail))


# --- events of the watch


def kernel_due(kind: str, count: int) -> bool:
    """Return whether line number `count` of this kind in a boot is an event: each one, and of those that are healthy while they are few, the first too many."""
    least = _LEAST.get(kind, 1)
    return count == least if least > 1 else True


def kernel_news(known: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return what a list of the last lines has more than an earlier state of it, by the order of the lines."""
    common = next(count for count in range(min(len(known), len(lines)), -1, -1) if list(known[len(known) - count :]) == list(lines[:count]))
    return lines[common:]


def classify_kernel(line: str) -> tuple[str, str] | None:
    """Return the name of the event and the message, without stamp and secrets; None for any other line."""
    message = message_of(line)
    name = kind_of(message)
    return (KERNEL_KINDS[name].watch, clip(message)) if name and KERNEL_KINDS[name].watch else None
