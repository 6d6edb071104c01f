# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of the node while it runs: power, heat, and the kernel logs of this boot and of the one before."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import RANK, Event, Group, Rank, check, found, skip
from ansible_collections.gb10.cluster.plugins.module_utils._common.finding import WARNING, Finding
from ansible_collections.gb10.cluster.plugins.module_utils._doctor import power
from ansible_collections.gb10.cluster.plugins.module_utils._doctor.kernel import KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import LOG_SIGNS


@check("kernel_log", "kernel", WARNING, command="{on} sudo dmesg")
def kernel_log(rank: Rank, _group: Group) -> Iterator[Event]:
    """fatal PCIe errors, GPU Xid 79/119/120/154, Wi-Fi oopses since the boot; the 27 W line and single `NV_ERR_NO_MEMORY` are healthy"""
    if rank.node and "this boot" not in rank.node["kernel"]["skipped"]:
        return  # the journal has more
    if rank.container and not rank.node:
        yield skip(f"a container ({rank.container}) has the kernel, firmware, memory and links of its host")
        return
    for entry in rank.facts["kernel_log"]:
        sign = LOG_SIGNS[entry["id"]]
        yield found(f"the kernel log has {entry['count']} such line(s) since the boot: {entry['line']}", sign.remedy, sign.matters)


@check("gpu_hot", "power", WARNING, "a hot GPU slows down, and the pair runs at the speed of its slower node",
    command="{on} nvidia-smi -q -d TEMPERATURE,PERFORMANCE", of=RANK, looks="the GPU slows down because of heat, or is at 90 °C")  # fmt: skip
@check("gpu_power", "power", WARNING, "the pair runs at the speed of its slower node; a reboot does not clear this state of the power supply",
    command="{on} sudo shutdown -h now  # then unplug the power for a minute", of=RANK,
    looks="the power supply slows the GPU down, or it works far below its clock")  # fmt: skip
@check("sensor_hot", "power", WARNING, "the node switches itself off at the critical temperature",
    command="{on} 'grep . /sys/class/thermal/thermal_zone*/temp'", of=RANK, looks="a sensor is within 5 °C of its critical temperature")  # fmt: skip
def heat(rank: Rank, _group: Group) -> Iterator[Event]:
    """Power, clocks and temperatures."""
    if not rank.node:
        yield skip(rank.not_read)
        return
    for name, text in power.problems(rank.node["gpus"], rank.node["zones"]):
        yield found(text, name=name)
    figures = power.shown(rank.node["gpus"], rank.node["zones"])
    if figures:
        yield f"{rank.host}: {figures}"
    if rank.node["gpu_error"]:
        yield skip(rank.node["gpu_error"])


@check("unclean_end", "kernel", WARNING, "the node lost its power, froze or reset: memory, power supply and heat are the usual causes",
    command="{on} sudo journalctl -b -1 -e", of=RANK, looks="the previous boot ended without a shutdown: power loss, freeze or reset")  # fmt: skip
def kernel_logs(rank: Rank, _group: Group) -> Iterator[Event]:
    """The faults of _doctor/kernel.py, with their own IDs, and the end of the previous boot."""
    if not rank.node:
        yield skip(rank.not_read)
        return
    logs = rank.node["kernel"]
    for event in logs["events"]:
        kind, old = KINDS[event["id"]], event["boot"] < 0
        text = f"{kind.found}{' in the previous boot' if old else ''}: {event['count']} line(s), the last at {event['last'] or 'unknown'}: {event['line']}"
        command = kind.command.replace("{boot}", str(event["boot"]))
        yield Finding(event["id"], "kernel", WARNING if old else kind.severity, (), text, kind.matters, "", command)
    if logs["unclean"]:
        yield found(f"the previous boot ended without a shutdown, its last message is of {logs['unclean']}")
    for boot, reason in logs["skipped"].items():
        both = len(set(logs["skipped"].values())) < len(logs["skipped"])
        yield skip(reason if both else f"{boot}: {reason}")
    boots = 2 - len(logs["skipped"])
    if boots:
        yield f"{rank.host}: {boots} boot{'s' if boots > 1 else ''}"
