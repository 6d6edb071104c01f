# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Power, clocks and temperatures of one node, as its driver and its kernel report them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Record = dict[str, Any]

QUERY = ("--query-gpu=temperature.gpu,power.draw,utilization.gpu,clocks.sm,clocks.max.sm", "--format=csv,noheader,nounits")
#: By itself: one field that the driver does not know fails the whole query. Drivers from 535 on accept this older name, too.
REASONS = ("--query-gpu=clocks_throttle_reasons.active", "--format=csv,noheader")
_FIELDS = ("temperature_c", "power_w", "utilization", "sm_mhz", "max_mhz")

# Bits of the reasons, as nvml.h defines them.
IDLE, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x8, 0x20, 0x40, 0x80
HOT_C = 90.0  # a GB10 slows down a little above
NEAR_C = 5.0  # below the critical temperature of a sensor
WORKS, SLOW = 50.0, 0.4  # utilization in percent, share of the highest clock


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


def problems(found: Sequence[Mapping[str, Any]], zones: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (ID, what was found) of each problem of a node."""
    out = []
    for gpu in found:
        reasons, units = int(gpu["reasons"]), (("temperature_c", "°C"), ("power_w", "W"), ("sm_mhz", "MHz"))
        shown = "GPU at " + ", ".join(f"{gpu[name]:g} {unit}" for name, unit in units if gpu[name] is not None)
        if reasons & (SW_THERMAL | HW_THERMAL) or (gpu["temperature_c"] or 0) >= HOT_C:
            out.append(("gpu_hot", f"the GPU is hot{' and slows down' if reasons & (SW_THERMAL | HW_THERMAL) else ''} ({shown})"))
        elif reasons & (POWER_BRAKE | HW_SLOWDOWN):
            out.append(("gpu_power", f"the power supply slows the GPU down ({shown}, reasons {reasons:#x})"))
        elif not reasons & IDLE and (gpu["utilization"] or 0) >= WORKS and gpu["sm_mhz"] and gpu["max_mhz"] and gpu["sm_mhz"] < SLOW * gpu["max_mhz"]:
            out.append(("gpu_power", f"the GPU works far below its clock ({shown}, highest {gpu['max_mhz']} MHz)"))
    for each in zones:
        if each["critical_c"] and each["temperature_c"] >= each["critical_c"] - NEAR_C:
            out.append(("sensor_hot", f"the sensor {each['name']} is at {each['temperature_c']:g} °C, and {each['critical_c']:g} °C are critical"))
    return out


def shown(found: Sequence[Mapping[str, Any]], zones: Sequence[Mapping[str, Any]]) -> str:
    """Return the figures of a node in a few words; empty without any."""
    parts = [f"GPU {gpu['temperature_c']:g} °C" for gpu in found[:1] if gpu["temperature_c"] is not None]
    parts += [f"{gpu['power_w']:g} W" for gpu in found[:1] if gpu["power_w"] is not None]
    hottest = max((each["temperature_c"] for each in zones), default=None)
    return ", ".join([*parts, *([f"hottest sensor {hottest:g} °C"] if hottest is not None else [])])
