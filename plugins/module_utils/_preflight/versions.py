# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of the machine and of its versions: GB10, parity between ranks, incomplete updates, versions that are known to fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.findings import FindingCollector, Rank, Requirements
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.known_versions import KNOWN
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import CX7, begins, numbers, vllm_version

Facts = Mapping[str, Any]

GIB_KB = 1 << 20
# component of a known version -> (check that reports it, its name in the finding)
COMPONENTS = {
    "driver": ("known_bad_driver", "NVIDIA driver"),
    "kernel": ("known_bad_kernel", "kernel"),
    "firmware_cx7": ("known_bad_firmware", "ConnectX-7 firmware"),
    "vllm": ("known_bad_vllm", "version of vLLM in the image"),
}


def check_python(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """The version of the interpreter that runs the modules."""
    if numbers(rank.facts["python"]) < (3, 9):
        found.add("python", "error", rank.host, f"Python is {rank.facts['python']}")


def check_gb10(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """What identifies the machine as a GB10, and its processor."""
    what, container = rank.facts["machine"], rank.facts["container"]
    severity = "error" if needs.require_gb10 else "warning"
    if what["gb10"]:
        return
    if container and not needs.require_gb10:
        found.skip(["gb10", "arch"], rank.host, f"a container ({container}) does not show the hardware of the node")
    elif what["evidence"]:
        text = f"its {what['evidence'][0]} identifies a GB10, but the processor is {what['arch'] or 'unknown'}; a GB10 is aarch64"
        found.add("arch", severity, rank.host, text)
    else:
        text = f"{what['product'] or 'no product name'}, {what['arch'] or 'unknown processor'}"
        found.add("gb10", severity, rank.host, f"this is not a GB10: {text}, and no GB10 on the PCI bus, in the device tree or in nvidia-smi")


def check_update(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """An update that was interrupted."""
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
    for text in signs:
        found.add("ota_torn", "error", rank.host, text)
    for key, value in rank.facts["ota_check"].items():
        if "torn" in str(key).lower() and isinstance(value, (bool, int, float)) and value:
            found.add("ota_torn", "warning", rank.host, f"nvidia-spark-ota-check: {key} {value}")


def _is_mismatch(error: str) -> bool:
    return "version mismatch" in error.lower()


def check_gpu(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """A driver that shows no GPU."""
    gpu = rank.facts["driver"]
    if gpu["error"] and not _is_mismatch(gpu["error"]):
        found.add("gpu_lost", "error", rank.host, f"nvidia-smi: {gpu['error']}")
    elif rank.facts["machine"]["gb10"] and not gpu["gpus"] and not gpu["error"]:
        found.add("gpu_lost", "error", rank.host, "no driver is loaded and nvidia-smi is not installed")
    elif not gpu["present"]:
        found.skip(["gpu_lost", "ota_torn"], rank.host, "no NVIDIA driver is installed")
    if not gpu["loaded"]:
        found.skip(["driver_parity", "known_bad_driver"], rank.host, "no NVIDIA driver is loaded")


def check_reboot(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """An update that requires a reboot."""
    kernel = rank.facts["kernel"]
    if kernel["reboot_required"]:
        packages = f" ({', '.join(kernel['reboot_packages'][:4])})" if kernel["reboot_packages"] else ""
        found.add("reboot_pending", "warning", rank.host, f"/run/reboot-required exists{packages}")
    if kernel["reboot_kho"]:
        found.add("reboot_pending", "warning", rank.host, kernel["reboot_kho"])


def check_known(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """Versions that are known to fail."""
    for entry in [*KNOWN, *needs.known]:
        version = known_match(rank.facts, entry, needs.image)
        if version:
            check, name = COMPONENTS[entry["component"]]
            found.add(check, str(entry["severity"]), rank.host, f"the {name} is {version}", str(entry["matters"]), str(entry["remedy"]))


def known_match(facts: Facts, entry: Mapping[str, Any], image: str = "") -> str:
    """Return the version of a node or of its image that an entry of known_versions matches; empty if it does not match."""
    version = _version_of(facts, str(entry["component"]), image)
    if not version or set(entry.get("unless") or []) & set(str(facts["kernel"]["cmdline"]).split()):
        return ""
    if entry.get("match"):
        matches = begins(version, str(entry["match"]))
    else:
        limit, line = numbers(str(entry["below"])), str(entry.get("line") or "")
        matches = numbers(version)[: len(limit)] < limit and (not line or begins(version, line))
    others = (entry.get("also") or {}).items()
    return version if matches and all(begins(_version_of(facts, str(name), image), str(start)) for name, start in others) else ""


def _version_of(facts: Facts, component: str, image: str) -> str:
    if component == "vllm":
        return vllm_version(image) if facts["machine"]["gb10"] else ""
    if component == "driver":
        return str(facts["driver"]["loaded"])
    if facts["container"]:  # kernel and firmware belong to its host
        return ""
    return str(facts["kernel"]["release"] if component == "kernel" else facts["firmware"].get(CX7, ""))


# --- parity ----------------------------------------------------------------------------------------------------------------------


class Parity(NamedTuple):
    """A value that should be equal on all ranks. Ranks where it is empty are not compared. `compared`: the part of it that counts."""

    check: str
    found: str
    value: Callable[[Facts], str]
    compared: Callable[[str], str] = str


def _memory(facts: Facts) -> str:
    total = 0 if facts["container"] else facts["memory"].get("total_kb", 0)
    return f"{total / GIB_KB:.0f} GiB" if total else ""


def _dgx_os(facts: Facts) -> str:
    dgx = facts["dgx"]
    if facts["container"] or not dgx["present"]:
        return ""
    return str(dgx["ota"] or f"{dgx['base']} (no OTA yet)")


def _firmware(name: str, facts: Facts) -> str:
    return str(facts["firmware"][name])


def _image_store(facts: Facts) -> str:
    engine = facts["docker"]
    return "" if engine["error"] else f"{engine['image_store']} ({engine['driver']})"


PARITIES = (
    Parity("memory_parity", "memory differs", _memory),
    Parity("ota_parity", "DGX OS differs", _dgx_os),
    Parity("kernel_parity", "the kernel differs", lambda facts: "" if facts["container"] else str(facts["kernel"]["release"])),
    Parity("driver_parity", "the NVIDIA driver differs", lambda facts: str(facts["driver"]["loaded"])),
    Parity("image_store_parity", "the image stores differ", _image_store, lambda shown: shown.partition(" ")[0]),  # storage drivers do not matter
)


def check_parity(found: FindingCollector, ranks: Sequence[Rank], _needs: Requirements) -> None:
    """Values that differ between the ranks."""
    for parity in PARITIES:
        _compare(found, ranks, parity)
    physical = [rank for rank in ranks if not rank.facts["container"]]
    names = set.intersection(*(set(rank.facts["firmware"]) for rank in physical)) if physical else set()
    for name in sorted(names):
        _compare(found, physical, Parity("firmware_parity", f"the firmware of {name} differs", partial(_firmware, name)))
    for rank in physical if not names else ():
        found.skip(["firmware_parity"], rank.host, "fwupd and sysfs show no firmware that all ranks have")


def check_clones(found: FindingCollector, ranks: Sequence[Rank], _needs: Requirements) -> None:
    """Nodes that were installed from one disk image and have one machine ID."""
    hosts: dict[str, list[str]] = {}
    for rank in ranks:
        if rank.facts["machine"].get("id") and not rank.facts["container"]:
            hosts.setdefault(rank.facts["machine"]["id"], []).append(rank.host)
    for names in hosts.values():
        if len(names) > 1:
            found.add("machine_id", "warning", names, f"/etc/machine-id is the same on {' and '.join(names)}, as after a copy of a disk")


def _compare(found: FindingCollector, ranks: Sequence[Rank], parity: Parity) -> None:
    hosts: dict[str, list[str]] = {}
    for rank in ranks:
        value = parity.value(rank.facts)
        if value:
            hosts.setdefault(value, []).append(rank.host)
        else:
            found.skip([parity.check], rank.host, "the node does not report the value that is compared")
    if len({parity.compared(value) for value in hosts}) < 2:
        return
    branches = {numbers(value)[:1] for value in hosts}
    severity = "error" if parity.check == "driver_parity" and len(branches) > 1 else "warning"
    shown = ", ".join(f"{value} on {' and '.join(names)}" for value, names in hosts.items())
    found.add(parity.check, severity, [rank.host for rank in ranks if parity.value(rank.facts)], f"{parity.found}: {shown}")
