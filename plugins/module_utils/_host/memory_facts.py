# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read the memory facts of a node through `Node`."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._host import memory
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node

VM_KEYS = ("min_free_kbytes", "watermark_boost_factor", "watermark_scale_factor")
GPU_DEVICE = "/dev/nvidia-uvm"
ENGINE_NAME = re.compile(r"VLLM::|vllm\b|ray::")


class Facts(NamedTuple):
    """Memory facts of a node."""

    meminfo: dict[str, int]
    page_kb: int
    zones: list[memory.Zone]
    buddies: list[memory.Buddy]
    swaps: list[memory.Swap]
    vm: dict[str, int]
    gpu_users: list[str]
    container: str


def container_reason(node: Node) -> str:
    """Return the runtime of this container; empty outside a container."""
    named = (node.read("/run/systemd/container") or "").strip()
    if named:
        return named
    for path, name in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if node.exists(path):
            return name
    environ = node.read("/proc/1/environ") or ""
    match = re.search(r"(?:^|\0)container=([^\0]+)", environ)
    if match:
        return match.group(1)
    rc, out, _err = node.run(["systemd-detect-virt", "--container"])
    return out.strip() if rc == 0 and out.strip() not in ("", "none") else ""


def gpu_users(node: Node) -> list[str]:
    """Return the processes that use the GPU, as `name (pid)`: those that have opened the device, and engines by name."""
    found: list[str] = []
    devices = node.root != "/" or node.exists(GPU_DEVICE)  # without a GPU no open file has to be read
    for entry in node.listdir("/proc"):
        if not entry.isdigit():
            continue
        name = (node.read(f"/proc/{entry}/comm") or "").strip()
        folder = f"/proc/{entry}/fd"
        if ENGINE_NAME.match(name) or (devices and any(node.link(f"{folder}/{number}") == GPU_DEVICE for number in node.listdir(folder))):
            found.append(f"{name} ({entry})")
    return found


def gather(node: Node) -> Facts:
    """Read all facts. Raises UmaError."""
    meminfo = memory.parse_meminfo(node.read("/proc/meminfo"))
    zoneinfo = node.read("/proc/zoneinfo")
    page_kb = node.page_kb() or memory.page_size_kb(meminfo, zoneinfo)
    zones = memory.parse_zoneinfo(zoneinfo, page_kb)
    if "MemFree" in meminfo:  # old kernels do not print MemAvailable
        meminfo.setdefault("MemAvailable", memory.available_kb(meminfo, zones))
    vm: dict[str, int] = {}
    for key in VM_KEYS:
        text = (node.read(f"/proc/sys/vm/{key}") or "").strip()
        if text.isdigit():
            vm[key] = int(text)
    return Facts(
        meminfo,
        page_kb,
        zones,
        memory.parse_buddyinfo(node.read("/proc/buddyinfo")),
        memory.parse_swaps(node.read("/proc/swaps")),
        vm,
        gpu_users(node),
        container_reason(node),
    )


def report(node: Node, facts: Facts) -> dict[str, Any]:
    """Return the sizes in KiB, what uses the GPU, large free blocks, CMA, and the problems."""
    meminfo = facts.meminfo
    fragments = memory.fragmentation(facts.buddies, facts.zones, facts.page_kb)
    crash = (node.read("/sys/kernel/kexec_crash_size") or "").strip()
    kernel = (node.read("/proc/sys/kernel/osrelease") or "").strip()
    problems = memory.find_problems(
        meminfo, fragments, facts.vm, facts.gpu_users, kernel, (node.read("/proc/cmdline") or "").strip(), int(crash) if crash.isdigit() else None
    )
    return {
        "total_kb": meminfo.get("MemTotal", 0),
        "free_kb": meminfo.get("MemFree", 0),
        "available_kb": meminfo.get("MemAvailable", 0),
        "size_class": memory.node_class(meminfo.get("MemTotal", 0)),
        "gpu_users": facts.gpu_users,
        "fragmentation": fragments,
        "cma": {"total_kb": meminfo.get("CmaTotal", 0), "free_kb": meminfo.get("CmaFree", 0)},
        "problems": [{"id": each.id, "message": each.found, "remedy": each.remedy} for each in problems],
    }
