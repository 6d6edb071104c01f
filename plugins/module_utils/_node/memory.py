# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Unified memory of a node: parse /proc, compute the cost of vm.min_free_kbytes and what vLLM sees. Pure.

Sizes are KiB (`_kb`) as in /proc/meminfo, or GiB as floats (`_gib`). Utilizations are fractions of MemTotal.

The cost of a floor (mm/page_alloc.c, `__setup_per_zone_wmarks` and `si_mem_available`):
  gap = max(min / 4, managed * watermark_scale_factor / 10000); low = min + gap; high = low + gap
  MemAvailable = MemFree - sum(high + lowmem reserve) + pagecache - min(pagecache / 2, low) + slab - min(slab / 2, low)
So `vm.min_free_kbytes` costs about 1.5 times its value, and up to twice its low watermark more if the page cache is small.
After fragmentation a zone holds back up to `watermark_boost_factor / 10000` of its high watermark more. /proc/zoneinfo prints min, low and high
with this boost. The sum in MemAvailable is without it, except for `low`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import Finding, found

GIB_KB = 1024 * 1024

# Without a model the driver holds less than this. What a failed run leaves is far above (33 GiB and more).
STUCK_KB = 8 * GIB_KB
# The kernel's handover (KHO) keeps this much as CMA scratch.
KHO_KB = 10 * GIB_KB
KHO_REMEDY = "set sysctl_kho_off: true, run site.yml --tags sysctl and then playbooks/reboot.yml"
# Blocks of 4 MiB and more in the largest zone: 24 on a fresh boot, 0 where large registrations fail (samples/fragmentation.tables.md).
FEW_LARGE_BLOCKS = 8
LARGE_BLOCK_KB = 4096
# Threshold of the field reports: below it the driver gets no memory from the page cache in time.
LOW_FREE_KB = 8 * GIB_KB


class Zone(NamedTuple):
    """One zone of /proc/zoneinfo. Everything in KiB; `reserve` is the largest entry of its protection list.

    As the kernel prints them, min, low and high contain the boost.
    """

    node: int
    name: str
    managed_kb: int
    min_kb: int
    low_kb: int
    high_kb: int
    boost_kb: int
    reserve_kb: int


class Buddy(NamedTuple):
    """One row of /proc/buddyinfo: free blocks by order."""

    node: int
    zone: str
    blocks: tuple[int, ...]


class Swap(NamedTuple):
    """One row of /proc/swaps."""

    device: str
    kind: str
    size_kb: int
    used_kb: int
    priority: int


class UmaError(ValueError):
    """/proc/meminfo is not valid. The message is for the user."""


def parse_meminfo(text: str | None) -> dict[str, int]:
    """Return /proc/meminfo in KiB (counts without a unit stay as they are). A captured `GiB` is converted. Raises UmaError."""
    found: dict[str, int] = {}
    for line in (text or "").splitlines():
        match = re.match(r"([A-Za-z]\w*(?:\(\w+\))?):\s+(\d+(?:\.\d+)?)\s*(kB|[MG]iB)?", line)
        if match:
            scale = {"MiB": 1024, "GiB": GIB_KB}.get(match.group(3) or "", 1)
            found.setdefault(match.group(1), int(float(match.group(2)) * scale))
    if "MemTotal" not in found and "MemFree" not in found:
        raise UmaError("/proc/meminfo is not valid: it has neither MemTotal nor MemFree")
    return found


def parse_zoneinfo(text: str | None, page_kb: int) -> list[Zone]:
    """Return the zones that hold pages; `page_kb` is the page size in KiB."""
    zones: list[Zone] = []
    for block in re.split(r"(?m)^(?=Node \d+, zone)", text or ""):
        head = re.match(r"Node (\d+), zone\s+(\S+)", block)
        found = reversed(re.findall(r"(?m)^ +(min|low|high|boost|managed) +(\d+)$", block))  # the first of a name counts
        kb = {name: int(pages) * page_kb for name, pages in found}
        protection = re.search(r"protection: \(([\d, ]*)\)", block)
        reserve = max((int(pages) for pages in re.findall(r"\d+", protection.group(1))), default=0) if protection else 0
        if head and kb.get("managed"):
            least, low, high, boost = (kb.get(name, 0) for name in ("min", "low", "high", "boost"))
            zones.append(Zone(int(head.group(1)), head.group(2), kb["managed"], least, low, high, boost, reserve * page_kb))
    return zones


def parse_buddyinfo(text: str | None) -> list[Buddy]:
    """Return the rows of /proc/buddyinfo."""
    rows: list[Buddy] = []
    for line in (text or "").splitlines():
        match = re.match(r"Node (\d+), zone\s+(\S+)\s+([\d\s]+)$", line)
        if match:
            rows.append(Buddy(int(match.group(1)), match.group(2), tuple(int(word) for word in match.group(3).split())))
    return rows


def parse_swaps(text: str | None) -> list[Swap]:
    """Return the active swap devices of /proc/swaps."""
    rows: list[Swap] = []
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) >= 5 and all(re.fullmatch(r"-?[0-9]+", word) for word in words[2:5]):
            device = words[0].replace("\\040", " ")
            rows.append(Swap(device, words[1], int(words[2]), int(words[3]), int(words[4])))
    return rows


def page_size_kb(meminfo: Mapping[str, int], zoneinfo: str | None) -> int:
    """Return the page size with which the zones of a capture add up to MemTotal; 4 KiB if it is unknown."""
    pages = sum(zone.managed_kb for zone in parse_zoneinfo(zoneinfo, 1))
    if not pages or not meminfo.get("MemTotal"):
        return 4
    ratio = meminfo["MemTotal"] / pages
    return min((4, 16, 64), key=lambda size: abs(size - ratio))


def node_class(total_kb: int) -> str:
    """Return 121 or 119 (the two sizes in which a GB10's 128 GB appear), else other."""
    gib = total_kb / GIB_KB
    if 120.7 <= gib < 123:
        return "121"
    if 118 <= gib < 120.7:
        return "119"
    return "other"


def watermarks(zones: Sequence[Zone], min_free_kb: int, scale_factor: int) -> list[Zone]:
    """Return the zones with the watermarks that the kernel would set for a floor, without a boost."""
    counted = sum(zone.managed_kb for zone in zones if zone.name != "Movable") or 1
    planned: list[Zone] = []
    for zone in zones:
        share = min_free_kb * zone.managed_kb // counted
        gap = max(share // 4, zone.managed_kb * scale_factor // 10000)
        low_share = min(512, zone.managed_kb // 1024) if zone.name == "Movable" else share
        planned.append(zone._replace(min_kb=low_share, low_kb=low_share + gap, high_kb=low_share + 2 * gap, boost_kb=0))
    return planned


def available_kb(meminfo: Mapping[str, int], zones: Sequence[Zone]) -> int:
    """Return MemAvailable as the kernel calculates it from these zones' watermarks."""
    reserve = sum(min(zone.managed_kb, max(0, zone.high_kb - zone.boost_kb) + zone.reserve_kb) for zone in zones)
    low = sum(zone.low_kb for zone in zones)
    cache = meminfo.get("Active(file)", 0) + meminfo.get("Inactive(file)", 0)
    slab = meminfo.get("KReclaimable", meminfo.get("SReclaimable", 0))
    available = meminfo.get("MemFree", 0) - reserve
    available += cache - min(cache // 2, low)
    available += slab - min(slab // 2, low)
    return max(0, available)


def floor_cost_kb(meminfo: Mapping[str, int], zones: Sequence[Zone], now: tuple[int, int], then: tuple[int, int]) -> int:
    """Return what MemAvailable loses (negative: gains) if (min_free_kbytes, watermark_scale_factor) changes from `now` to `then`."""
    return available_kb(meminfo, watermarks(zones, *now)) - available_kb(meminfo, watermarks(zones, *then))


def highest_utilization(free_kb: int, total_kb: int) -> float:
    """Return the highest gpu_memory_utilization, in hundredths, that starts: vLLM requires free >= utilization * total."""
    if total_kb <= 0:
        return 0.0
    return max(0, min(100, free_kb * 100 // total_kb)) / 100


def gib(kilobytes: float) -> float:
    """Return KiB as GiB with two digits."""
    return round(kilobytes / GIB_KB, 2)


def unaccounted_kb(meminfo: Mapping[str, int]) -> int:
    """Return the memory of no process and no cache: on a GB10 the NVIDIA driver holds it."""
    names = (
        "MemFree",
        "Buffers",
        "Cached",
        "SwapCached",
        "AnonPages",
        "KReclaimable" if "KReclaimable" in meminfo else "SReclaimable",
        "SUnreclaim",
        "KernelStack",
        "PageTables",
        "SecPageTables",
        "Percpu",
        "VmallocUsed",
        "Zswap",
    )
    huge = meminfo.get("Hugetlb", meminfo.get("HugePages_Total", 0) * meminfo.get("Hugepagesize", 0))  # the sum is not printed by kernels before 4.19
    return max(0, meminfo.get("MemTotal", 0) - huge - sum(meminfo.get(name, 0) for name in names))


def fragmentation(rows: Sequence[Buddy], zones: Sequence[Zone], page_kb: int) -> dict[str, Any]:
    """Return free memory and large free blocks of the zone with most of the memory, which is Normal on a GB10."""
    sizes = {(zone.node, zone.name): zone.managed_kb for zone in zones}
    row = max(rows, key=lambda row: (sizes.get((row.node, row.zone), 0), row.zone == "Normal"), default=Buddy(0, "", ()))
    blocks = [(page_kb << order, count) for order, count in enumerate(row.blocks)]
    return {
        "zone": row.zone or None,
        "free_kb": sum(size * count for size, count in blocks),
        "blocks": list(row.blocks),
        "blocks_1mib": sum(count for size, count in blocks if size >= 1024),
        "blocks_4mib": sum(count for size, count in blocks if size >= LARGE_BLOCK_KB),
        "largest_kb": max((size for size, count in blocks if count), default=0),
    }


def cma_problem(meminfo: Mapping[str, int], kernel: str = "", cmdline: str = "", kexec_crash_size: int | None = None) -> Finding | None:
    """Return the KHO leak: more free CMA than CMA."""
    total, free = meminfo.get("CmaTotal"), meminfo.get("CmaFree", 0)
    if total is None or free <= total:
        return None
    off = "kho=off" in cmdline.split()
    fixed = "another kernel" if kernel.startswith("6.17.0-1032") else "kernel 6.17.0-1032 or a later fixed one"
    message = (
        f"CmaFree is {free} kB with CmaTotal {total} kB on kernel {kernel or 'unknown'}: the kernel's handover (KHO) keeps about 9.4 GiB as CMA "
        "scratch, which makes RDMA registration fail with ENOMEM"
    )
    if off:
        remedy = f"kho=off is on the kernel command line already, so reboot into {fixed}"
    elif kexec_crash_size:
        remedy = f"boot {fixed}; kho=off is not safe here, because /sys/kernel/kexec_crash_size is {kexec_crash_size} and a crash kernel is reserved"
    else:
        remedy = f"{KHO_REMEDY}, or boot {fixed}"
    return found(message, remedy, name="kho_leak")


def stuck_problem(meminfo: Mapping[str, int], gpu_users: Sequence[str]) -> Finding | None:
    """Return memory that the driver holds although no process uses the GPU."""
    held = unaccounted_kb(meminfo)
    expected = KHO_KB if cma_problem(meminfo) is not None else 0
    if gpu_users or "MemTotal" not in meminfo or "AnonPages" not in meminfo or held < STUCK_KB + expected:
        return None
    return found(
        f"{gib(held)} GiB of {gib(meminfo['MemTotal'])} GiB belong to no process and to no cache, and nothing uses the GPU: "
        "a failed run left them with the driver",
        "wait up to 60 s after a stop and look again; what is then still missing comes back only with a reboot",
        name="memory_stuck",
    )


def fragmentation_problem(state: Mapping[str, Any], meminfo: Mapping[str, int], gpu_users: Sequence[str]) -> Finding | None:
    """Return fragmentation of an idle node; under a loaded engine zero large blocks are normal."""
    if gpu_users or not state.get("zone") or state["blocks_4mib"] >= FEW_LARGE_BLOCKS or meminfo.get("MemTotal", 0) < 16 * GIB_KB:
        return None
    return found(
        f"zone {state['zone']} has {state['blocks_4mib']} free blocks of 4 MiB or more (largest free block {state['largest_kb']} KiB) "
        f"with {gib(state['free_kb'])} GiB free and nothing using the GPU; a fresh boot has 24 and more",
        "the agent drops the page cache and compacts memory before each start; if that does not help, which is usual after days of uptime, reboot",
        name="memory_fragmented",
    )


def cache_problem(meminfo: Mapping[str, int]) -> Finding | None:
    """Return MemAvailable that is mostly page cache, which the driver does not get in time."""
    free, available = meminfo.get("MemFree"), meminfo.get("MemAvailable")
    if free is None or available is None or meminfo.get("MemTotal", 0) < 64 * GIB_KB:
        return None
    if free >= LOW_FREE_KB or available - free < LOW_FREE_KB:
        return None
    return found(
        f"MemAvailable is {gib(available)} GiB, but only {gib(free)} GiB are free: the rest is page cache, which the GPU driver does not "
        "wait for (NV_ERR_NO_MEMORY)",
        "the agent drops the page cache before each start, and the page-cache guard of the readahead role runs while weights load",
        name="memory_cache",
    )


def boost_problem(vm: Mapping[str, int]) -> Finding | None:
    """Return a raised floor together with a boost factor that multiplies it."""
    floor, factor = vm.get("min_free_kbytes", 0), vm.get("watermark_boost_factor", 0)
    if floor < GIB_KB or factor == 0:
        return None
    worst = floor * 3 // 2 * (10000 + factor) // 10000
    return found(
        f"vm.min_free_kbytes is {floor} with vm.watermark_boost_factor {factor}: after fragmentation the kernel can hold back {gib(worst)} GiB",
        "set vm.watermark_boost_factor=0, as the sysctl role does",
        name="watermark_boost",
    )
