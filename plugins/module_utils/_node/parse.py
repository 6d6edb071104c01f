# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Parsers of files and command output of a node for preflight.

No I/O, standard library only. Python 3.9.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads
from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu

Record = dict[str, Any]

UNLIMITED = -1
CX7 = "ConnectX-7"
# PCIe host bridges of a GB10, as lspci names them (GB10 GEN5 X4 PCIe host, GB10 GEN4 X1 PCIe host).
GB10_BRIDGES = ("0x10de:0x22ce", "0x10de:0x22d0")


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's whole numbers in order: 6.17.0-1032-nvidia is (6, 17, 0, 1032)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def begins(version: str, start: str) -> bool:
    """Report whether a version begins with the numbers of `start`: 590.44.01 begins with 590, 5900.1 does not."""
    wanted = numbers(start)
    return bool(wanted) and numbers(version)[: len(wanted)] == wanted


# Product names of the DGX Spark and of the OEM models.
_PRODUCTS = re.compile(r"DGX[ _-]?Spark|\bGB10\b|\bGX10\b|\bZGX Nano\b|\bThinkStation PGX\b|\bEdgeXpert|\bAI TOP ATOM\b|\bVeriton GN100\b", re.IGNORECASE)


def gb10_evidence(products: Iterable[str], pci: Iterable[str], gpus: Sequence[str]) -> list[str]:
    """Return what identifies a machine as a GB10; empty for other machines. `products` are texts of DMI, `pci` are `vendor:device`."""
    found = [f"product name {name}" for name in products if _PRODUCTS.search(name)][:1]
    if set(pci) & set(GB10_BRIDGES):
        found.append("GB10 PCIe host bridge")
    if any(re.search(r"\bGB10\b", name) for name in gpus):
        found.append("nvidia-smi")
    return found


def hidden_id(text: str | None) -> str:
    """Return a hash of a machine ID, which is confidential (machine-id(5)); empty if there is none."""
    text = (text or "").strip()
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16] if re.fullmatch(r"[0-9a-f]{32}", text) else ""


def vllm_version(image: str) -> str:
    """Return the version of vLLM in the tag of an image's name; empty if it has none. The tags of nvcr.io are those of the container."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    match = re.search(r"(?:^|[-_])v?(\d+\.\d+(?:\.\d+)*)", tag)
    return match.group(1) if match and "vllm" in image.lower() and not image.startswith("nvcr.io/") else ""


def keys(text: str) -> dict[str, str]:
    """Return the keys of ini and shell files, the last one counts. An empty value is the default."""
    found = {key: value.strip("'\"").removeprefix("uint32 ") for key, value in re.findall(r"(?m)^[ \t]*([\w-]+)[ \t]*=[ \t]*(.*?)[ \t]*$", text)}
    return {key: value for key, value in found.items() if value}


def dgx_release(text: str | None) -> Record:
    """Return /etc/dgx-release: name, base version and OTA version. There is one DGX_OTA_VERSION line per update."""
    found = keys(text or "")
    names = {"name": "DGX_NAME", "base": "DGX_SWBUILD_VERSION", "ota": "DGX_OTA_VERSION"}
    return {"present": text is not None, **{name: found.get(key, "") for name, key in names.items()}}


def loaded_driver(text: str | None) -> str:
    """Return the version of the loaded kernel module from /proc/driver/nvidia/version; empty if none is loaded."""
    match = re.search(r"^NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)*)\s", text or "", re.MULTILINE)
    return match.group(1) if match else ""


def library_versions(paths: Iterable[str]) -> list[str]:
    """Return the driver versions of user-space libraries by their file names (libnvidia-ml.so.580.173.02)."""
    found = set()
    for path in paths:
        match = re.search(r"\.so\.(\d{3,}\.\d+(?:\.\d+)*)$", path)
        if match:
            found.add(match.group(1))
    return sorted(found, key=numbers)


def read_smi(rc: int, text: str) -> tuple[list[str], str, str]:
    """Return (GPU names, driver version, error) of nvidia-smi's CSV query or of its table. rc 127: not installed, not an error."""
    if rc == 127:
        return [], "", ""
    if rc == 124:
        return [], "", "nvidia-smi did not answer within 20 s"
    names, version = [], ""
    for name, driver in gpu.rows(text, 2):
        # [GPU is lost], [Unknown Error] and ERR! are no names.
        if re.fullmatch(r"\d{3,}(\.\d+)+", driver) and not re.match(r"\[|ERR!", name):
            names.append(name)
            version = driver
    if names and rc == 0:
        return names, version, ""
    error = " ".join(text.split()).rstrip(".")[:200]
    return names, version, error or f"nvidia-smi exited with code {rc} without output"


def json_object(text: str) -> Record:
    """Return the JSON object in a command's output; empty if there is none."""
    start = text.find("{")
    try:
        data = loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def json_rows(text: str) -> list[Record]:
    """Return the objects of a JSON list, [] if it is not one."""
    try:
        found = loads(text)
    except ValueError:
        return []
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def fwupd_versions(text: str) -> dict[str, str]:
    """Return {device name: version} of `fwupdmgr get-devices --json`; several devices of one name give their versions in order."""
    found: dict[str, set[str]] = {}
    for device in json_object(text).get("Devices") or []:
        if isinstance(device, dict) and device.get("Name") and device.get("Version"):
            name = CX7 if CX7 in str(device["Name"]) else str(device["Name"])
            found.setdefault(name, set()).add(str(device["Version"]))
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


_WATCHED = re.compile(r"^(?:nvidia|libnvidia|linux-(?:image|modules|headers)|dgx|cuda-(?:drivers|compat)|mlnx|doca|docker|containerd)")


def broken_packages(text: str | None) -> list[str]:
    """Return the packages of drivers, kernels and containers that dpkg reports as not fully installed or removed, as `name (state)`."""
    found = []
    for block in (text or "").split("\n\n"):
        name = re.match(r"\s*Package: (\S+)", block)
        status = re.search(r"^Status: \S+ (\S+) (\S+)", block, re.MULTILINE)
        if name and status and _WATCHED.match(name.group(1)):
            flag, state = status.groups()
            if flag != "ok" or state not in ("installed", "config-files", "not-installed"):
                found.append(f"{name.group(1)} ({state})")
    return sorted(found)


def engine_facts(info: Mapping[str, Any]) -> Record:
    """Return version, storage driver, image store, data directory and cgroup driver from the /info of the Docker Engine."""
    status = [str(word) for pair in info.get("DriverStatus") or [] for word in pair]
    containerd = any("io.containerd.snapshotter" in word for word in status)
    return {
        "version": str(info.get("ServerVersion") or ""),
        "driver": str(info.get("Driver") or ""),
        "image_store": "containerd" if containerd else "graphdriver",
        "root": str(info.get("DockerRootDir") or "/var/lib/docker"),
        "cgroup_driver": str(info.get("CgroupDriver") or ""),
    }


def is_vllm(entry: Mapping[str, Any]) -> bool:
    """Report whether the name, the image or the command of an entry of the engine's list contains vllm."""
    return "vllm" in f"{entry.get('Names')} {entry.get('Image')} {entry.get('Command')}".lower()


def container_facts(entry: Mapping[str, Any], details: Mapping[str, Any]) -> Record:
    """Return the facts of one container; `details` is its inspection, empty if it was not requested."""
    host = details.get("HostConfig") or {}
    labels = entry.get("Labels") or {}
    devices = [str(each.get("PathOnHost")) for each in host.get("Devices") or []]
    requests = host.get("DeviceRequests") or []
    gpu = any("gpu" in str(each.get("Capabilities")) or "nvidia" in str(each) for each in requests) or any("/dev/nvidia" in path for path in devices)
    return {
        "id": str(entry.get("Id") or ""),
        "name": str((entry.get("Names") or ["?"])[0]).lstrip("/"),
        "image": str(entry.get("Image") or ""),
        "state": str(entry.get("State") or ""),
        "labels": {key: value for key, value in labels.items() if str(key).startswith("gb10.cluster.")},
        "vllm": is_vllm(entry),
        "gpu": gpu or str(host.get("Runtime") or "") == "nvidia",
        "restart": str((host.get("RestartPolicy") or {}).get("Name") or "no"),
    }


def container_of(cgroup: str, ids: Mapping[str, str]) -> str:
    """Return the name of the container of a /proc/PID/cgroup; empty if there is none."""
    return next((ids[each] for each in re.findall(r"[0-9a-f]{64}", cgroup) if each in ids), "")


def hard_memlock(text: str | None) -> int | None:
    """Return the hard limit of locked memory in a /proc/<pid>/limits."""
    match = re.search(r"(?m)^Max locked memory +\S+ +(\d+|unlimited)", text or "")
    return None if match is None else UNLIMITED if match.group(1) == "unlimited" else int(match.group(1))


def memlock(text: str | None, status: str | None) -> Record:
    """Return {known, bytes (null: unlimited), may_raise} of the Docker daemon from its /proc limits and status."""
    bounding, hard = re.search(r"(?m)^CapBnd:\s*([0-9a-fA-F]+)", status or ""), hard_memlock(text)
    return {
        "known": hard is not None,
        "bytes": None if hard == UNLIMITED else hard,
        "may_raise": bool(int(bounding.group(1), 16) >> 24 & 1) if bounding else True,  # CAP_SYS_RESOURCE
    }


def reboot_reasons(facts: Mapping[str, Any]) -> list[str]:
    """Return why a node needs a reboot, each as a phrase; empty if it does not."""
    found = []
    if facts["kernel"]["reboot_required"]:
        found.append("an update requires it (/run/reboot-required)")
    if facts["kernel"]["reboot_kho"]:
        found.append(facts["kernel"]["reboot_kho"])
    gpu = facts["driver"]
    if gpu["loaded"] and gpu["on_disk"] and gpu["loaded"] != gpu["on_disk"]:
        found.append(f"the loaded driver is {gpu['loaded']}, the driver on disk is {gpu['on_disk']}")
    phrases = {"memory_stuck": "the driver holds memory of no process", "memory_fragmented": "memory is fragmented"}
    if not facts["container"] and facts["machine"]["gb10"]:
        found += [phrases[problem["id"]] for problem in facts["memory"].get("problems", []) if problem["id"] in phrases]
    return found
