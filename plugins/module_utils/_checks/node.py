# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of the node while it runs: power, heat, and the kernel logs of this boot and of the one before."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.kernel import KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import RANK, Event, Group, Rank, check, skip
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import WARNING, Finding, found

# Bits of the reasons, as nvml.h defines them.
IDLE, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x8, 0x20, 0x40, 0x80
HOT_C = 90.0  # a GB10 slows down a little above
NEAR_C = 5.0  # below the critical temperature of a sensor
WORKS, SLOW = 50.0, 0.4  # utilization in percent, share of the highest clock


@check("kernel_log", "kernel", WARNING, command="{on} sudo dmesg")
def kernel_log(rank: Rank, _group: Group) -> Iterator[Event]:
    """uncorrected PCIe errors, a lost GPU (Xid 79, 119 and others), Wi-Fi oopses since the boot; the 27 W line and single `NV_ERR_NO_MEMORY` are healthy"""
    if rank.health and "this boot" not in rank.health["kernel"]["skipped"]:
        return  # the journal has more
    if rank.container and not rank.health:
        yield skip(f"a container ({rank.container}) has the kernel, firmware, memory and links of its host")
        return
    for entry in rank.facts["kernel_log"]:
        kind = KINDS[entry["id"]]
        yield found(f"the kernel log has {entry['count']} such line(s) since the boot: {entry['line']}", kind.preflight, kind.matters)


@check(
    "gpu_hot", "power", WARNING, "a hot GPU slows down, and the pair runs at the speed of its slower node",
    command="{on} nvidia-smi -q -d TEMPERATURE,PERFORMANCE", of=RANK, looks="the GPU slows down because of heat, or is at 90 °C")  # fmt: skip
@check(
    "gpu_power", "power", WARNING, "the pair runs at the speed of its slower node; a reboot does not clear this state of the power supply",
    command="{on} sudo shutdown -h now  # then unplug the power for a minute", of=RANK,
    looks="the power supply slows the GPU down, or it works far below its clock")  # fmt: skip
@check(
    "sensor_hot", "power", WARNING, "the node switches itself off at the critical temperature",
    command="{on} 'grep . /sys/class/thermal/thermal_zone*/temp'", of=RANK, looks="a sensor is within 5 °C of its critical temperature")  # fmt: skip
def heat(rank: Rank, _group: Group) -> Iterator[Event]:
    """Power, clocks and temperatures."""
    if not rank.health:
        yield skip(rank.not_read)
        return
    gpus, zones = rank.health["gpus"], rank.health["zones"]
    for gpu in gpus:
        reasons, units = int(gpu["reasons"]), (("temperature_c", "°C"), ("power_w", "W"), ("sm_mhz", "MHz"))
        shown = "GPU at " + ", ".join(f"{gpu[name]:g} {unit}" for name, unit in units if gpu[name] is not None)
        if reasons & (SW_THERMAL | HW_THERMAL) or (gpu["temperature_c"] or 0) >= HOT_C:
            yield found(f"the GPU is hot{' and slows down' if reasons & (SW_THERMAL | HW_THERMAL) else ''} ({shown})")
        elif reasons & (POWER_BRAKE | HW_SLOWDOWN):
            yield found(f"the power supply slows the GPU down ({shown}, reasons {reasons:#x})", name="gpu_power")
        elif not reasons & IDLE and (gpu["utilization"] or 0) >= WORKS and gpu["sm_mhz"] and gpu["max_mhz"] and gpu["sm_mhz"] < SLOW * gpu["max_mhz"]:
            yield found(f"the GPU works far below its clock ({shown}, highest {gpu['max_mhz']} MHz)", name="gpu_power")
    for each in zones:
        if each["critical_c"] and each["temperature_c"] >= each["critical_c"] - NEAR_C:
            text = f"the sensor {each['name']} is at {each['temperature_c']:g} °C, and {each['critical_c']:g} °C are critical"
            yield found(text, name="sensor_hot")
    figures = [f"GPU {gpu['temperature_c']:g} °C" for gpu in gpus[:1] if gpu["temperature_c"] is not None]
    figures += [f"{gpu['power_w']:g} W" for gpu in gpus[:1] if gpu["power_w"] is not None]
    figures += [f"hottest sensor {max(each['temperature_c'] for each in zones):g} °C"] if zones else []
    if figures:
        yield f"{rank.host}: {', '.join(figures)}"
    if rank.health["gpu_error"]:
        yield skip(rank.health["gpu_error"])


@check(
    "unclean_end", "kernel", WARNING, "the node lost its power, froze or reset: memory, power supply and heat are the usual causes",
    command="{on} sudo journalctl -b -1 -e", of=RANK, looks="the previous boot ended without a shutdown: power loss, freeze or reset")  # fmt: skip
def kernel_logs(rank: Rank, _group: Group) -> Iterator[Event]:
    """The kinds of failures.yml, with their own IDs, and the end of the previous boot."""
    if not rank.health:
        yield skip(rank.not_read)
        return
    logs = rank.health["kernel"]
    for event in logs["events"]:
        kind, old = KINDS[event["id"]], event["boot"] < 0
        text = f"{kind.found}{' in the previous boot' if old else ''}: {event['count']} line(s), the last at {event['last'] or 'unknown'}: {event['line']}"
        command = kind.helps.replace("{boot}", str(event["boot"]))
        yield Finding(event["id"], "kernel", WARNING if old else kind.severity, (), text, kind.matters, "", command)
    if logs["unclean"]:
        yield found(f"the previous boot ended without a shutdown, its last message is of {logs['unclean']}")
    for boot, reason in logs["skipped"].items():
        both = len(set(logs["skipped"].values())) < len(logs["skipped"])
        yield skip(reason if both else f"{boot}: {reason}")
    boots = 2 - len(logs["skipped"])
    if boots:
        yield f"{rank.host}: {boots} boot{'s' if boots > 1 else ''}"
