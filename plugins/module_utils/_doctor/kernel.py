# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Faults in the kernel log of one boot, and whether that boot ended with a shutdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.kernel import KINDS, Kind, kind_of, message_of
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import MASK_SLEEP

Record = dict[str, Any]

LINE = 200  # characters that are kept of a line
#: `journalctl --output=short-iso --dmesg`: stamp, host, message.
_STAMPED = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,6}) \S{1,255} kernel: (?P<message>.*)")
_SHUTDOWN = re.compile(r"Journal stopped|systemd-shutdown|Reached target .{0,40}(?:[Ss]hutdown|[Rr]eboot|[Pp]ower.?[Oo]ff|Final Step)")


def command_of(kind: Kind) -> str:
    """Return the command that helps with a kind, or prints its lines in the kernel log of a boot."""
    return kind.command.replace("{mask_sleep}", MASK_SLEEP) or f"{{on}} 'sudo journalctl -k -b {{boot}} | grep -iE \"{kind.show}\"'"


def summarize(lines: Iterable[str], boot: int) -> list[Record]:
    """Return {id, boot, count, first, last, line} of each kind in the log of a boot: 0 is this one, -1 the one before. `line` is the last one."""
    found: dict[str, Record] = {}
    for text in lines:
        stamped = _STAMPED.match(text)
        message = stamped["message"] if stamped else text
        name = kind_of(message_of(message))
        if name:
            at = stamped["at"] if stamped else ""
            entry = found.setdefault(name, {"id": name, "boot": boot, "count": 0, "first": at, "last": at, "line": ""})
            entry.update(count=entry["count"] + 1, last=at, line=message.strip()[:LINE])
    return [entry for name, entry in found.items() if entry["count"] >= KINDS[name].least]


def ended_by_shutdown(tail: str) -> bool:
    """Whether the last lines of a boot's journal show a shutdown. Without one, the power was lost, or the node froze or reset."""
    return bool(_SHUTDOWN.search(tail))
