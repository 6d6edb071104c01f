# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of versions: equal on all ranks, updates that are incomplete, and versions that are known to fail, of failures.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import VERSIONS
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import PAIR, REBOOT, UPDATE, Event, Group, Rank, check, skip
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import ERROR, WARNING, found
from ansible_collections.gb10.cluster.plugins.module_utils._node.parse import CX7, begins, numbers, vllm_version

Facts = Mapping[str, Any]

GIB_KB = 1 << 20
_SAME_UPDATE = "update all nodes the same way (DGX Dashboard, or apt dist-upgrade and fwupdmgr upgrade; not apt upgrade), and reboot"
_FIRMWARE = "{on} 'sudo fwupdmgr refresh --force; sudo fwupdmgr upgrade'"
_DIFFER = "DGX OS, kernel, fwupd and ConnectX-7 versions that differ between ranks"
_KNOWN = "`versions` in `plugins/module_utils/_boot_log/failures.yml` (with sources), and yours in `preflight_known_versions`"


def differs(
    rank: Rank, ranks: Sequence[Rank], what: str, value: Callable[[Facts], str], compared: Callable[[str], str] = str, missing: str = "", severity: str = ""
) -> Iterator[Event]:
    """Compare a value of all ranks; `compared` is the part of it that counts. Ranks where it is empty are not compared."""
    if not value(rank.facts):
        yield skip(missing or "the node does not report the value that is compared")
        return
    hosts: dict[str, list[str]] = {}
    for each in ranks:
        hosts.setdefault(value(each.facts), []).append(each.host)
    hosts.pop("", None)
    if len({compared(shown) for shown in hosts}) > 1:
        listed = ", ".join(f"{shown} on {' and '.join(names)}" for shown, names in hosts.items())
        yield found(f"{what}: {listed}", severity=severity, hosts=[name for names in hosts.values() for name in names])


def _memory(facts: Facts) -> str:
    total = 0 if facts["container"] else facts["memory"].get("total_kb", 0)
    return f"{total / GIB_KB:.0f} GiB" if total else ""


@check(
    "memory_parity", "memory", WARNING, "every rank uses the same share of its memory, so the node with the least memory limits all ranks",
    "choose gpu_memory_utilization for that node; the sysctl role prints the highest value that starts", "{on} grep MemTotal /proc/meminfo", PAIR,
    physical=True)  # fmt: skip
def memory_parity(rank: Rank, group: Group) -> Iterator[Event]:
    """121 GiB and 119 GiB: the node with less memory limits both"""
    yield from differs(rank, group.read, "memory differs", _memory)


def _dgx_os(facts: Facts) -> str:
    dgx = facts["dgx"]
    if facts["container"] or not dgx["present"]:
        return ""
    return str(dgx["ota"] or f"{dgx['base']} (no OTA yet)")


@check(
    "ota_parity", "versions", WARNING, "kernel, driver and firmware are part of DGX OS, and pairs are only tested with equal versions", _SAME_UPDATE, UPDATE,
    PAIR, physical=True, looks=_DIFFER)  # fmt: skip
def ota_parity(rank: Rank, group: Group) -> Iterator[Event]:
    """The version of DGX OS."""
    yield from differs(rank, group.read, "DGX OS differs", _dgx_os)


@check(
    "ota_torn", "versions", ERROR, "after an incomplete update, the next container start loses the GPU",
    "complete the update: dpkg --configure -a, then apt dist-upgrade (not apt upgrade) or the DGX Dashboard, and reboot",
    "{on} 'sudo dpkg --configure -a && sudo apt dist-upgrade'")  # fmt: skip
def ota_torn(rank: Rank, _group: Group) -> Iterator[Event]:
    """loaded driver, module on disk and libraries that are not of one version; half-configured packages; `nvidia-spark-ota-check`"""
    gpu = rank.facts["driver"]
    loaded, libraries = gpu["loaded"], ", ".join(gpu["libraries"])
    signs = []
    if loaded and any(version != loaded for version in gpu["libraries"]):
        signs.append(f"the loaded driver is {loaded}, but its libraries on disk are {libraries}")
    elif loaded and gpu["on_disk"] not in ("", loaded):
        signs.append(f"the loaded driver is {loaded}, but the module on disk is {gpu['on_disk']}")
    elif not loaded and len(gpu["libraries"]) > 1:
        signs.append(f"libraries of several drivers are on disk ({libraries}), but no driver is loaded")
    if _is_mismatch(gpu["error"]) and not signs:
        signs.append(f"nvidia-smi: {gpu['error']}")
    if rank.facts["broken_packages"]:
        signs.append(f"dpkg reports incomplete packages: {', '.join(rank.facts['broken_packages'][:5])}")
    yield from map(found, signs)
    for key, value in rank.facts["ota_check"].items():
        if "torn" in str(key).lower() and isinstance(value, (bool, int, float)) and value:
            yield found(f"nvidia-spark-ota-check: {key} {value}", severity=WARNING)
    if _has_no_driver(rank):
        yield skip("no NVIDIA driver is installed")


def _is_mismatch(error: str) -> bool:
    return "version mismatch" in error.lower()


def _has_no_driver(rank: Rank) -> bool:
    gpu = rank.facts["driver"]
    return not gpu["present"] and (not gpu["error"] or _is_mismatch(gpu["error"])) and not rank.facts["machine"]["gb10"]


@check(
    "reboot_pending", "versions", WARNING, "the running versions differ from the installed ones until the next reboot, perhaps on one node only",
    "run playbooks/reboot.yml, which reboots the worker and then the head", "{play}reboot{end}", physical=True)  # fmt: skip
def reboot_pending(rank: Rank, _group: Group) -> Iterator[Event]:
    """`/run/reboot-required`; `kho=off` that the next boot starts or ends with"""
    kernel = rank.facts["kernel"]
    if kernel["reboot_required"]:
        yield found(f"/run/reboot-required exists{' (' + ', '.join(kernel['reboot_packages'][:4]) + ')' if kernel['reboot_packages'] else ''}")
    if kernel["reboot_kho"]:
        yield found(kernel["reboot_kho"])


@check(
    "kernel_parity", "versions", WARNING, "memory, GIDs and hot-plug depend on the kernel version, so one rank can fail while the other does not",
    _SAME_UPDATE, UPDATE, PAIR, physical=True, looks=_DIFFER)  # fmt: skip
def kernel_parity(rank: Rank, group: Group) -> Iterator[Event]:
    """The running kernel."""
    yield from differs(rank, group.read, "the kernel differs", lambda facts: "" if facts["container"] else str(facts["kernel"]["release"]))


@check(
    "driver_parity", "versions", ERROR, "the ranks run the same CUDA calls on different drivers, and the free memory at the start differs", _SAME_UPDATE,
    UPDATE, PAIR)  # fmt: skip
def driver_parity(rank: Rank, group: Group) -> Iterator[Event]:
    """drivers of different branches; of one branch, a warning"""
    branches = {numbers(each.facts["driver"]["loaded"])[:1] for each in group.read if each.facts["driver"]["loaded"]}
    severity = ERROR if len(branches) > 1 else WARNING
    yield from differs(rank, group.read, "the NVIDIA driver differs", _loaded, missing="no NVIDIA driver is loaded", severity=severity)


def _loaded(facts: Facts) -> str:
    return str(facts["driver"]["loaded"])


@check(
    "firmware_parity", "versions", WARNING, "link training, power and resets depend on the firmware version",
    "run fwupdmgr refresh and fwupdmgr upgrade on every node, and reboot all nodes with the cable connected", _FIRMWARE, PAIR, physical=True,
    looks=_DIFFER)  # fmt: skip
def firmware_parity(rank: Rank, group: Group) -> Iterator[Event]:
    """Firmware that all ranks have."""
    ranks = [each for each in group.read if not each.container]
    names = set.intersection(*(set(each.facts["firmware"]) for each in ranks)) if ranks else set()
    for name in sorted(names):
        yield from differs(rank, ranks, f"the firmware of {name} differs", partial(_firmware, name))
    if not names:
        yield skip("fwupd and sysfs show no firmware that all ranks have")


def _firmware(name: str, facts: Facts) -> str:
    return str(facts["firmware"].get(name, ""))


# component of a known version -> (check that reports it, its name in the finding)
COMPONENTS = {
    "driver": ("known_bad_driver", "NVIDIA driver"),
    "kernel": ("known_bad_kernel", "kernel"),
    "firmware_cx7": ("known_bad_firmware", "ConnectX-7 firmware"),
    "vllm": ("known_bad_vllm", "version of vLLM in the image"),
}


@check("known_bad_driver", "versions", ERROR, command=UPDATE, looks=_KNOWN)
@check("known_bad_kernel", "versions", ERROR, command=UPDATE, physical=True, looks=_KNOWN)
@check("known_bad_firmware", "versions", ERROR, command=_FIRMWARE, physical=True, looks=_KNOWN)
@check("known_bad_vllm", "versions", ERROR, command="{on} sudo docker images", looks=_KNOWN)
def known_bad(rank: Rank, group: Group) -> Iterator[Event]:
    """Versions that are known to fail."""
    if not rank.facts["driver"]["loaded"]:
        yield skip("no NVIDIA driver is loaded", "known_bad_driver")
    for entry in [*VERSIONS, *group.needs.known_versions]:
        version = known_match(rank.facts, entry, group.needs.image)
        if version:
            name, shown = COMPONENTS[entry["component"]]
            texts = {"remedy": str(entry["remedy"]), "why": str(entry["matters"]), "severity": str(entry["severity"])}
            yield found(f"the {shown} is {version}", name=name, **texts)


def known_match(facts: Facts, entry: Mapping[str, Any], image: str = "") -> str:
    """Return the version of a node or of its image that an entry of known_versions matches; empty if it does not match."""
    version = _version_of(facts, str(entry["component"]), image)
    if not version or set(entry.get("unless") or []) & set(str(facts["kernel"]["cmdline"]).split()):
        return ""
    if entry.get("match"):
        matches = begins(version, str(entry["match"]))
    else:
        limit, line = numbers(str(entry.get("below") or "")), str(entry.get("line") or "")
        matches = numbers(version)[: len(limit)] < limit and (not line or begins(version, line))
    others = (entry.get("also") or {}).items()
    return version if matches and all(begins(_version_of(facts, str(name), image), str(start)) for name, start in others) else ""


def _version_of(facts: Facts, component: str, image: str) -> str:
    if component == "vllm":
        return vllm_version(image) if facts["machine"]["gb10"] else ""
    if component == "driver":
        return _loaded(facts)
    if facts["container"]:  # kernel and firmware belong to its host
        return ""
    return str(facts["kernel"]["release"] if component == "kernel" else facts["firmware"].get(CX7, ""))


@check(
    "gpu_lost", "nodes", ERROR, "an engine cannot start without the GPU",
    "reboot. If that does not help, complete the update (dpkg --configure -a, apt dist-upgrade) and unplug the power for a minute", REBOOT)  # fmt: skip
def gpu_lost(rank: Rank, _group: Group) -> Iterator[Event]:
    """a driver that shows no GPU"""
    gpu = rank.facts["driver"]
    if gpu["error"] and not _is_mismatch(gpu["error"]):
        yield found(f"nvidia-smi: {gpu['error']}")
    elif rank.facts["machine"]["gb10"] and not gpu["gpus"] and not gpu["error"]:
        yield found("no driver is loaded and nvidia-smi is not installed")
    elif _has_no_driver(rank):
        yield skip("no NVIDIA driver is installed")
