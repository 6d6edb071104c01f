# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The memory of a node through `Node`: its facts, what holds it, and the drop of the page cache before an engine starts.

The GPU driver does not wait for page cache to be reclaimed (NV_ERR_NO_MEMORY), so cache does not count as free before a load.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory

VM_KEYS = ("min_free_kbytes", "watermark_boost_factor", "watermark_scale_factor")
GPU_DEVICE = "/dev/nvidia-uvm"
DROP = "/proc/sys/vm/drop_caches"
COMPACT = "/proc/sys/vm/compact_memory"
LARGE_KB = memory.GIB_KB  # a process with less is not named
LARGEST = 3
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
    command_line = (node.read("/proc/cmdline") or "").strip()
    problems = (
        memory.cma_problem(meminfo, kernel, command_line, int(crash) if crash.isdigit() else None),
        memory.stuck_problem(meminfo, facts.gpu_users),
        memory.fragmentation_problem(fragments, meminfo, facts.gpu_users),
        memory.cache_problem(meminfo),
        memory.boost_problem(facts.vm),
    )
    return {
        "total_kb": meminfo.get("MemTotal", 0),
        "free_kb": meminfo.get("MemFree", 0),
        "available_kb": meminfo.get("MemAvailable", 0),
        "size_class": memory.node_class(meminfo.get("MemTotal", 0)),
        "gpu_users": facts.gpu_users,
        "fragmentation": fragments,
        "cma": {"total_kb": meminfo.get("CmaTotal", 0), "free_kb": meminfo.get("CmaFree", 0)},
        "problems": [{"id": each.id, "message": each.found, "remedy": each.remedy} for each in problems if each],
    }


def reclaim(node: Node) -> str:
    """Write dirty pages to the disks, drop the page cache, and compact memory. Return why that is not possible; empty if it is done.

    Level 3, as in the sources and the guard, also drops dentries and inodes, which compaction cannot move. With 8 GiB of cache it freed 0.2 GiB more
    than level 1 in the same time (0.7 s; 2 cores, Linux 6.18, 2026-11-25).
    """
    fallback = "It is not dropped before the start, and MemAvailable is waited for instead of MemFree."
    container = container_reason(node)
    if container:
        return f"This node is a container ({container}), and the page cache belongs to its host. {fallback}"
    node.run(["sync"])  # the kernel drops clean pages only
    try:
        node.write_live(DROP, "3\n")
        node.write_live(COMPACT, "1\n")
    except OSError as error:
        return f"The page cache cannot be dropped: {error.filename}: {error.strerror}. {fallback} Run the agent as root of the node."
    return ""


def _processes(node: Node, page_kb: int) -> list[tuple[int, str]]:
    """Return (anonymous memory in KiB, name and PID) of the processes that hold most, the largest first."""
    found = []
    for pid in filter(str.isdigit, node.listdir("/proc")):
        pages = (node.read(f"/proc/{pid}/statm") or "").split()
        if len(pages) > 2 and pages[1].isdigit() and pages[2].isdigit():
            found.append((max(0, int(pages[1]) - int(pages[2])) * page_kb, pid))
    largest = sorted((each for each in found if each[0] >= LARGE_KB), reverse=True)[:LARGEST]
    return [(kb, f"{(node.read(f'/proc/{pid}/comm') or '?').strip()} (PID {pid})") for kb, pid in largest]


def held_by(node: Node) -> str:
    """Return what holds the memory of a node as a list with figures; empty if /proc/meminfo is not valid."""
    try:
        meminfo = memory.parse_meminfo(node.read("/proc/meminfo"))
    except memory.UmaError:
        return ""
    cache = meminfo.get("Cached", 0) + meminfo.get("Buffers", 0) - meminfo.get("Shmem", 0)
    rows = [(meminfo.get("MemFree", 0), "MemFree"), (max(0, cache), "page cache"), (meminfo.get("Shmem", 0), "shared memory")]
    rows += _processes(node, node.page_kb() or os.sysconf("SC_PAGE_SIZE") // 1024)
    if "AnonPages" in meminfo:
        rows.append((memory.unaccounted_kb(meminfo), "neither a process nor cache, on a GB10 the GPU driver"))
    return ", ".join(f"{name} {kb / memory.GIB_KB:.1f} GiB" for kb, name in rows)
