# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the kinds of faults in the kernel log. The section `kernel` of failures.yml has them and describes the fields."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL

#: A record of /dev/kmsg (priority, sequence, microseconds, flags), or the stamp of dmesg, and the caller.
_LINE = re.compile(r"(?:(?P<priority>\d{1,4}),\d+,\d+,[^;]*;)?(?:\[[^\]]{1,40}\]\s*)?(?:\[ *[TC]\d+\]\s*)?(?P<message>.*)")
_compiled = lru_cache(maxsize=128)(re.compile)


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

    def matches(self, message: str) -> bool:
        """Return whether a message is of this kind."""
        return any(_compiled(pattern).search(message) for pattern in self.patterns)


#: By their names. A message is of the first kind that matches it.
KINDS = {row["kind"]: Kind(**{**{key: row[key] for key in Kind._fields if key in row}, "patterns": tuple(row["patterns"])}) for row in KERNEL}


def message_of(line: str) -> str:
    """Return the message of a line of /dev/kmsg or dmesg without its stamp; empty if a process wrote the line, not the kernel."""
    found = _LINE.match(line)
    return "" if found is None or int(found["priority"] or 0) >> 3 else found["message"]


def kind_of(message: str) -> str:
    """Return the kind of a message; empty for a healthy one."""
    return next((name for name, kind in KINDS.items() if kind.matches(message)), "")
