# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the kinds of faults in the kernel log, and which of them a log or a line has. Pure.

The section `kernel` of failures.yml has the kinds and describes the fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import clip

#: A record of /dev/kmsg (priority, sequence, microseconds, flags), or the stamp of dmesg, and the caller.
_LINE = re.compile(r"(?:(?P<priority>\d{1,4}),\d+,\d+,[^;]*;)?(?:\[[^\]]{1,40}\]\s*)?(?:\[ *[TC]\d+\]\s*)?(?P<message>.*)")
_compiled = lru_cache(maxsize=128)(re.compile)
CLIP = 200  # characters that are kept of a line
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
        return any(_compiled(pattern).search(message) for pattern in self.patterns)


#: By their names. A message is of the first kind that matches it.
KINDS = {row["kind"]: Kind(**{**{key: row[key] for key in Kind._fields if key in row}, "patterns": tuple(row["patterns"])}) for row in KERNEL}
_LEAST = {kind.watch: kind.least for kind in KINDS.values() if kind.watch}


def message_of(line: str) -> str:
    """Return the message of a line of /dev/kmsg or dmesg without its stamp; empty if a process wrote the line, not the kernel."""
    found = _LINE.match(line)
    return "" if found is None or int(found["priority"] or 0) >> 3 else found["message"]


def kind_of(message: str) -> str:
    """Return the kind of a message; empty for a healthy one."""
    return next((name for name, kind in KINDS.items() if kind.matches(message)), "")


def summarize(text: str, boot: int = 0) -> list[dict[str, Any]]:
    """Return {id, boot, count, first, last, line} of each kind in the log of a boot: 0 is this one, -1 the one before. `line` is the last one."""
    stamped = [(_STAMPED.match(line), line) for line in text.splitlines()]
    rows = [(match["at"], message_of(match["message"])) if match else ("", message_of(line)) for match, line in stamped]
    whole, blocks = "\n".join(message for _at, message in rows), [(name, kind.block) for name, kind in KINDS.items() if kind.block]
    found: dict[str, dict[str, Any]] = {}
    for name, at, message in (
        *((kind_of(message), at, message) for at, message in rows),
        *((name, "", match["line"]) for name, block in blocks for match in re.finditer(block, whole)),
    ):
        if name:
            entry = found.setdefault(name, {"id": name, "boot": boot, "count": 0, "first": at, "last": at, "line": ""})
            entry.update(count=entry["count"] + 1, last=at or entry["last"], line=message.strip()[:CLIP])
    return [entry for name, entry in found.items() if entry["count"] >= KINDS[name].least]


def ended_by_shutdown(tail: str) -> bool:
    """Whether the last lines of a boot's journal show a shutdown. Without one, the power was lost, or the node froze or reset."""
    return bool(_SHUTDOWN.search(tail))


# --- events of the watch


def due(kind: str, count: int) -> bool:
    """Return whether line number `count` of this kind in a boot is an event: each one, and of those that are healthy while they are few, the first too many."""
    least = _LEAST.get(kind, 1)
    return count == least if least > 1 else True


def news(known: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return what a list of the last lines has more than an earlier state of it, by the order of the lines."""
    common = next(count for count in range(min(len(known), len(lines)), -1, -1) if list(known[len(known) - count :]) == list(lines[:count]))
    return lines[common:]


def classify(line: str) -> tuple[str, str] | None:
    """Return the name of the event and the message, without stamp and secrets; None for any other line."""
    message = message_of(line)
    name = kind_of(message)
    return (KINDS[name].watch, clip(message)) if name and KINDS[name].watch else None
