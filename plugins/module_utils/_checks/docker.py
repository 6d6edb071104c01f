# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of what runs on a node: its Docker Engine, containers and the ports of the head; power, heat, and the kernel logs of this boot and the one before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL_KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import DOCKER, HEAD, PAIR, RANK, Event, Group, Rank, check, skip
from ansible_collections.gb10.cluster.plugins.module_utils._checks.versions import Facts, differs
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import ERROR, WARNING, Finding, found

LABEL = "gb10.cluster.group"
_SILENT = "the Docker Engine does not answer"


@check(
    "docker", "docker", WARNING, "the containers of the node are unknown", "run `systemctl status docker` on the node; the docker role starts it",
    "{on} sudo systemctl status docker --no-pager")  # fmt: skip
def engine(rank: Rank, _group: Group) -> Iterator[Event]:
    """an engine that is installed and does not answer"""
    facts = rank.facts["docker"]
    if facts["error"] and facts["installed"]:
        yield found(facts["error"])
    elif facts["error"]:
        yield skip("the Docker Engine is not installed; the docker role installs it")


@check(
    "image_store_parity", "docker", WARNING,
    "the two stores give one image different IDs, so a copy between nodes transfers all layers and IDs cannot be compared",
    'set "features": {"containerd-snapshotter": false} (or true) in /etc/docker/daemon.json on every node, then fetch the images again', "{on} docker info",
    PAIR)  # fmt: skip
def image_store_parity(rank: Rank, group: Group) -> Iterator[Event]:
    """containerd's image store on one node, the storage driver's on another"""
    yield from differs(rank, group.read, "the image stores differ", _image_store, lambda shown: shown.partition(" ")[0], _SILENT)


def _image_store(facts: Facts) -> str:
    return "" if facts["docker"]["error"] else f"{facts['docker']['image_store']} ({facts['docker']['driver']})"


@check(
    "memlock", "docker", WARNING, "RDMA registers gigabytes of locked memory. Without it NCCL uses TCP or fails in ibv_reg_mr",
    "run dockerd with CAP_SYS_RESOURCE, or with LimitMEMLOCK=infinity as the docker role sets it", DOCKER, physical=True)  # fmt: skip
def memlock(rank: Rank, _group: Group) -> Iterator[Event]:
    """a Docker daemon that may not lock memory"""
    limit = rank.facts["memlock"]
    if not limit["known"]:
        yield skip("the limits of the Docker daemon cannot be read")
    elif limit["bytes"] is not None and not limit["may_raise"]:
        yield found(f"the Docker daemon can lock {limit['bytes'] // 1024} KiB and cannot raise this limit (no CAP_SYS_RESOURCE)")


@check(
    "gpu_reload", "docker", WARNING, "a running container loses its GPU at the next `systemctl daemon-reload`, and the engine fails",
    "run site.yml --tags docker, which enables nvidia-cdi-refresh, or `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, then restart the group", DOCKER,
    physical=True)  # fmt: skip
def gpu_reload(rank: Rank, _group: Group) -> Iterator[Event]:
    """Docker with systemd cgroups and no CDI specification: a daemon-reload takes the GPU from a container"""
    facts = rank.facts["docker"]
    if facts["cgroup_driver"] == "systemd" and not facts["cdi"] and rank.facts["driver"]["present"]:
        yield found("the cgroup driver of Docker is systemd, and /etc/cdi and /run/cdi have no specification of the GPU")


def _serving(rank: Rank, group: Group) -> list[Mapping[str, Any]]:
    """Return the containers of the serving group that run on a rank."""
    return [each for each in rank.facts["containers"] if each["labels"].get(LABEL) == group.name and each["state"] in ("running", "restarting")]


@check(
    "stale_containers", "docker", ERROR, "two engines do not fit into one memory: the second fails its start check, or the node freezes",
    command="{on} sudo docker ps --all")  # fmt: skip
def stale_containers(rank: Rank, group: Group) -> Iterator[Event]:
    """another vLLM, a rank of another group, half a pair, one that a reboot brings back"""
    if rank.facts["docker"]["error"]:
        yield skip(_SILENT)
    for each in rank.facts["containers"]:
        name, state, owner = each["name"], each["state"], each["labels"].get(LABEL)
        running = state in ("running", "restarting", "paused")
        remove = f"docker rm -f {name} (or move it to another node)"
        if owner == group.name:
            continue
        if owner and running:
            yield found(f"the container {name} of the serving group {owner} is {state} on this node, which belongs to another group", remove)
        elif running and each["vllm"]:
            yield found(f"the container {name} ({each['image']}) is {state} and looks like a vLLM that this collection does not manage", remove)
        elif running and each["gpu"]:
            remedy = f"docker stop {name}, or lower gpu_memory_utilization by the share of this container"
            yield found(f"the container {name} ({each['image']}) is {state} and uses the GPU", remedy, "the engine lacks the memory that it uses", WARNING)
        elif not running and each["vllm"] and each["restart"] in ("always", "unless-stopped"):
            text, remedy = f"the container {name} is {state} with the restart policy {each['restart']}", f"docker update --restart=no {name}"
            yield found(text, remedy, "it starts at the next reboot, next to the engine", WARNING)
    yield from _half(group)


def _half(group: Group) -> Iterator[Event]:
    """A serving group that runs on some of its ranks."""
    answering = [rank for rank in group.read if not rank.facts["docker"]["error"]]
    running = [rank.host for rank in answering if _serving(rank, group)]
    stopped = [rank.host for rank in answering if rank.host not in running]
    if running and stopped and len(answering) == len(group.ranks):
        yield found(
            f"the serving group {group.name} runs on {', '.join(running)} and not on {', '.join(stopped)}",
            "run playbooks/stop.yml, or site.yml, which replaces it",
            "a rank that lost its peer holds memory and ports, and a new peer never joins it",
            WARNING,
            hosts=running,
        )


@check(
    "ports_free", "docker", ERROR, "the engine starts for minutes and then fails to bind",
    "stop the process, or choose another port in the profile (engine.api.port, engine.master_port)", "{on} sudo ss -ltnp", HEAD)  # fmt: skip
def ports_free(rank: Rank, group: Group) -> Iterator[Event]:
    """API and master port of the head, used by another process"""
    own, ports = [each["name"] for each in _serving(rank, group)], group.needs.head_ports
    for entry in rank.facts["listening"]:
        port, container, process = entry["port"], entry.get("container") or "", entry.get("process") or ""
        # Without a cgroup, a process that looks like an engine belongs to the rank that runs.
        if port not in ports or container in own or (own and not container and re.search(r"vllm|python|ray", process, re.IGNORECASE)):
            continue
        user = f"the container {container}" if container else f"{process or 'a process'} (pid {entry.get('pid', '?')})"
        yield found(f"port {port} ({ports[port]}) is used by {user}, which listens on {entry['address']}")


# --- Checks of the node while it runs: power, heat, and the kernel logs of this boot and of the one before.

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
        kind = KERNEL_KINDS[entry["id"]]
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
        kind, old = KERNEL_KINDS[event["id"]], event["boot"] < 0
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
