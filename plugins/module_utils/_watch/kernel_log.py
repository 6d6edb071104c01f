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
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import LOG_SIGNS, SUSPEND

#: A record of /dev/kmsg (priority, sequence, microseconds, flags), or the stamp of dmesg, and the caller.
_LINE = re.compile(r"(?:(?P<priority>\d{1,4}),\d+,\d+,[^;]*;)?(?:\[[^\]]{1,40}\]\s*)?(?:\[ *[TC]\d+\]\s*)?(?P<message>.*)")
#: Drivers of the other network interfaces of a GB10, and of those that are plugged in: they do not carry the rails.
_OTHER_NIC = r"(?:r81\d\d|mt7\d|rtw|iwlwifi|ath\d)"
_CLASSES = ("driver_no_memory", "gpu_lost", "oom_killed", "cuda_fault")
_KINDS = (
    *((row["class"], re.compile(pattern)) for name in _CLASSES for row in CATALOGUE if row["class"] == name for pattern in row["patterns"]),
    ("wifi_oops", re.compile(LOG_SIGNS["wifi_oops"].pattern)),
    ("pcie_error", re.compile(LOG_SIGNS["fatal_aer"].pattern)),
    (
        "pcie_error",
        re.compile(r"AER: .*\bUncorrect|PCIe Bus Error: severity=Uncorrect|AER: .*[Rr]ecovery failed|Hardware Error\]: event severity: (?!corrected)"),
    ),
    (
        "pcie_error",  # a slot or device that did not come back; a card that is plugged in, or a link that recovered, is benign
        re.compile(
            rf"^(?!{_OTHER_NIC}).*(?:pciehp.*Slot\S* ?\S*: (?:Link Down(?!/Up)|Card not present|Cannot train link|Power fault|No device found)"
            r"|DPC: (?:containment event|unmasked uncorrectable|ERR_(?:NON)?FATAL)|not ready \d+ms after .{1,40}; giving up"
            r"|(?:Unable to|can't) change power state from \S+ to D0\b)"
        ),
    ),
    ("lockup", re.compile(r"soft lockup - CPU|hard LOCKUP|INFO: task \S+ blocked for more than \d+ seconds|detected stalls? on CPU")),
    (
        "mlx5_error",
        re.compile(
            r"mlx5_core\b.*(?:health compromised|[Ff]atal error|[Ff]irmware internal error|[Uu]nrecoverable|health recovery.*(?:failed|aborted)"
            r"|[Ff]ailed health recovery|handling bad device|Health issue observed.*severity\([0-3]\)|Port module event\[error\]"
            r"|timeout\. Will cause a leak|TX timeout (?:detected|on queue)|PCI reads still not working|NIC IFC still|PCI link not ready|link_toggle failed"
            r"|(?:FW|[Ff]irmware|[Ss]ync|mlx5_cmd\S*).{0,60}reset.{0,40}(?:time(?:d )?out|fail|abort)|mlx5_cmd.*[Ff]irmware reset"
            r"|Firmware over \d+ MS|init_one failed|probe(?: of \S+| with driver mlx5_core)? failed)"
        ),
    ),
    # Until kernel 6.7 the message names the driver behind the interface, since 6.8 before it.
    ("mlx5_error", re.compile(r"(?:mlx5_core\b.*|^|\ben\w+np\d+: )NETDEV WATCHDOG: (?:CPU: \d+: )?transmit queue|NETDEV WATCHDOG: .*\(mlx5_core\)")),
    ("suspend", re.compile(SUSPEND)),
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
