# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The power of the GPUs of a node. Pure.

An engine that waits in a collective shows full utilization and draws the power of an idle one: 1 to 3 W more, against 45 W more at work.
"""

from __future__ import annotations

from collections.abc import Sequence

QUERY = ("--query-gpu=power.draw", "--format=csv,noheader,nounits")
MARGIN_W = 5.0
MARGIN_SHARE = 0.1


def power(text: str) -> float | None:
    """Return the highest power in W of the GPUs in the output of nvidia-smi; None if it names none."""
    found = []
    for line in text.splitlines():
        try:
            found.append(float(line.strip().split(" ")[0]))
        except ValueError:  # [N/A], or a message of the driver
            continue
    return max(found) if found else None


def at_idle(readings: Sequence[float], idle: float | None) -> bool | None:
    """Return whether all readings are at idle power; None if the readings or the idle power are not known."""
    if idle is None or not readings:
        return None
    return max(readings) <= idle + max(MARGIN_W, MARGIN_SHARE * idle)
