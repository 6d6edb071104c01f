# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Faults in the lines of the kernel log. Pure.

The rows of the failure catalogue and the signs of preflight are used where they have the message. Here is what only a running pair needs.
Benign: corrected PCIe errors, the 27 W line, cables and links (the rails are read by themselves), user processes that write to /dev/kmsg.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import CATALOGUE
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import clip
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import LOG_SIGNS

#: A record of /dev/kmsg (priority, sequence, microseconds, flags), or the stamp of dmesg.
_LINE = re.compile(r"(?:(?P<priority>\d{1,4}),\d+,\d+,[^;]*;)?(?:\[[^\]]{1,40}\]\s*)?(?P<message>.*)")
_CLASSES = ("driver_no_memory", "gpu_lost", "oom_killed", "cuda_fault")
_KINDS = (
    *((row["class"], re.compile(pattern)) for name in _CLASSES for row in CATALOGUE if row["class"] == name for pattern in row["patterns"]),
    ("wifi_oops", re.compile(LOG_SIGNS["wifi_oops"].pattern)),
    ("pcie_error", re.compile(LOG_SIGNS["fatal_aer"].pattern)),
    (
        "pcie_error",
        re.compile(r"AER: .*\bUncorrect|PCIe Bus Error: severity=Uncorrect|AER: .*[Rr]ecovery failed|Hardware Error\]: event severity: (?!corrected)"),
    ),
    ("lockup", re.compile(r"soft lockup - CPU|hard LOCKUP|INFO: task \S+ blocked for more than \d+ seconds|detected stalls? on CPU")),
    (
        "mlx5_error",
        re.compile(
            r"mlx5_core .*(?:health compromised|[Ff]atal error|firmware internal error|health recovery.* (?:failed|aborted)|handling bad device"
            r"|Health issue observed.*severity\([0-3]\)|Port module event\[error\]|timeout\. Will cause a leak|TX timeout detected)"
        ),
    ),
)

#: How many lines of a kind in one boot are a fault. A driver reports a few refused allocations in healthy boots, and an exhausted one far more.
LEAST = {"driver_no_memory": 10}


def due(kind: str, count: int) -> bool:
    """Return whether line number `count` of this kind in a boot is an event: each one, and of those that are healthy while they are few, the first too many."""
    least = LEAST.get(kind, 1)
    return count == least if least > 1 else True


def news(known: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return what a list of the last lines has more than an earlier state of it, by the order of the lines."""
    common = next(count for count in range(min(len(known), len(lines)), -1, -1) if list(known[len(known) - count :]) == list(lines[:count]))
    return lines[common:]


def classify(line: str) -> tuple[str, str] | None:
    """Return the kind of fault and the message, without stamp and secrets; None for any other line."""
    found = _LINE.match(line)
    if found is None or int(found["priority"] or 0) >> 3:  # a facility other than the kernel
        return None
    return next(((kind, clip(found["message"])) for kind, pattern in _KINDS if pattern.search(found["message"])), None)
