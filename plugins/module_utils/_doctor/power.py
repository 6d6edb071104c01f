# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read power, clocks and temperatures of one node from what its driver and its kernel report. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Record = dict[str, Any]

QUERY = ("--query-gpu=temperature.gpu,power.draw,utilization.gpu,clocks.sm,clocks.max.sm", "--format=csv,noheader,nounits")
#: By itself: one field that the driver does not know fails the whole query. Drivers from 535 on accept this older name, too.
REASONS = ("--query-gpu=clocks_throttle_reasons.active", "--format=csv,noheader")
_FIELDS = ("temperature_c", "power_w", "utilization", "sm_mhz", "max_mhz")


def _figure(field: str) -> float | None:
    """Return a figure; None for one that the driver does not report ([N/A])."""
    return float(field) if re.fullmatch(r"-?\d{1,7}(?:\.\d{1,4})?", field) else None


def gpus(text: str, reasons: str) -> list[Record]:
    """Return the GPUs in the output of nvidia-smi with QUERY, each with its reasons. A message of the driver is not a GPU."""
    bits = [int(line.strip(), 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", line.strip()) else 0 for line in reasons.splitlines()]
    found: list[Record] = []
    for line in text.splitlines():
        figures = [_figure(field.strip()) for field in line.split(",")]
        if len(figures) == len(_FIELDS) and any(figure is not None for figure in figures):
            found.append({**dict(zip(_FIELDS, figures)), "reasons": bits[len(found)] if len(found) < len(bits) else 0})
    return found


def zone(name: str, temperature: str, trips: Mapping[str, str]) -> Record | None:
    """Return a thermal zone of /sys/class/thermal in °C; None if it has no temperature. `trips` are the temperatures of its trip points by type."""
    now = _figure(temperature.strip())
    critical = _figure(trips.get("critical", "").strip())
    return None if now is None else {"name": name.strip()[:40], "temperature_c": now / 1000, "critical_c": critical / 1000 if critical else None}
