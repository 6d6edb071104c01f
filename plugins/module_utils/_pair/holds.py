# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The holds of a node, which keep the watch from acting for some seconds.

Within a boot they end by its own clock, which is never set. After a reboot the wall clock decides.
"""

from __future__ import annotations

import time
from typing import Any

LONGEST = 7 * 86400.0  # as the verb accepts them. More is left only by a clock that was ahead


def booted() -> float:
    """Return the seconds since the boot of this node."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new(name: str, reason: str, seconds: float, by: str, boot: str, wall: float) -> dict[str, Any]:
    """Return a hold that begins now. `boot` is the boot id of the node, empty if it is not known."""
    ends = {"boot": boot, "ends": round(booted() + seconds, 3)} if boot else {}
    return {"name": name, "reason": reason, "until": round(wall + seconds, 3), "by": by, **ends}


def lasting(found: Any, boot: str, wall: float) -> list[dict[str, Any]]:
    """Return the holds in the content of a file that have not expired. `until` is their end by the present wall clock."""
    out = []
    for each in found or []:
        same = bool(boot) and each.get("boot") == boot and each.get("ends") is not None
        left = each["ends"] - booted() if same else each["until"] - wall
        if 0 < left <= LONGEST:
            texts = {key: str(each.get(key) or "") for key in ("name", "reason", "by")}
            out.append({**texts, "until": round(wall + left, 3) if same else each["until"], **({"boot": boot, "ends": each["ends"]} if same else {})})
    return out
