# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The power and utilization of the GPUs of a node. Pure.

An engine that waits in a collective shows full utilization and draws little more power than an idle one:
1 to 3 W on an H200, 5 to 16 W on a GB10, against 35 W and more at work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import LARGEST

QUERY = ("--query-gpu=power.draw,utilization.gpu", "--format=csv,noheader,nounits")
MARGIN_W = 18.0  # owners of GB10 saw 16 to 27 W in a wedge, about 11 W at idle, and 45 W and more at work
MARGIN_SHARE = 0.1

#: Power in W and utilization in percent of one GPU; None if the driver does not report the figure.
Reading = tuple[Optional[float], Optional[float]]


def _figure(field: str) -> float | None:
    try:
        found = float(field)
    except ValueError:  # [N/A], [Unknown Error]
        return None
    return found if 0 <= found < LARGEST else None


def readings(text: str) -> list[Reading]:
    """Return the GPUs in the output of nvidia-smi with QUERY. A message of the driver is not a GPU."""
    found = []
    for line in text.splitlines():
        power_w, _comma, utilization = (field.strip() for field in line.partition(","))
        if power_w.startswith("[") or _figure(power_w) is not None:
            found.append((_figure(power_w), _figure(utilization)))
    return found


def power(text: str) -> float | None:
    """Return the highest power in W of the GPUs in the output of nvidia-smi; None if it names none."""
    return max((power_w for power_w, _utilization in readings(text) if power_w is not None), default=None)


def at_idle(powers: Sequence[float], idle: float | None, margin_w: float = MARGIN_W) -> bool | None:
    """Return whether all powers are at idle power; None if the powers or the idle power are not known."""
    if idle is None or not powers:
        return None
    return max(powers) <= idle + max(margin_w, MARGIN_SHARE * idle)
