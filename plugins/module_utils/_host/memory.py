# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC. Unified memory of one node: read what the kernel prints, and calculate what a floor costs and what vLLM will see.

No I/O. Sizes are KiB (`_kb`) as in /proc/meminfo, or GiB as floats (`_gib`); utilizations are fractions of MemTotal.

How a floor becomes a cost (mm/page_alloc.c, `__setup_per_zone_wmarks` and `si_mem_available`):
  gap = max(min / 4, managed * watermark_scale_factor / 10000); low = min + gap; high = low + gap
  MemAvailable = MemFree - sum(high + lowmem reserve) + pagecache - min(pagecache / 2, low) + slab - min(slab / 2, low)
so `vm.min_free_kbytes` costs about 1.5 times its value, and up to twice its low watermark more where the page cache is small.
A boosted zone holds back up to `watermark_boost_factor / 10000` of its high watermark more while the boost lasts. /proc/zoneinfo prints
min, low and high with the boost in them (`min_wmark_pages` and its sisters); the sum in MemAvailable is made without it, when the
watermarks are set, and its `low` is the one of the moment, with the boost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

GIB_KB = 1024 * 1024
CLASS_121 = "121"
CLASS_119 = "119"
CLASS_OTHER = "other"

# Without a model: the driver's own share stays below this, what a failed run leaves behind lies far above (33 GiB and more).
STUCK_KB = 8 * GIB_KB
# What the kernel's handover (KHO) keeps as CMA scratch: no failed run left it.
KHO_KB = 10 * GIB_KB
# Blocks of 4 MiB and more in the largest zone: 24 on a fresh boot, 0 where large registrations fail (samples/fragmentation.tables.md).
FEW_LARGE_BLOCKS = 8
LARGE_BLOCK_KB = 4096
# The guard threshold of the field reports: below it the driver loses the race against the page cache.
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
    """The memory files cannot be understood; the message is one sentence for the user."""


def parse_meminfo(text: str | None) -> dict[str, int]:
    """Return /proc/meminfo in KiB (counts without a unit stay as they are). A captured `GiB` is converted. Raises UmaError."""
    found: dict[str, int] = {}
    for line in (text or "").splitlines():
        match = re.match(r"([A-Za-z]\w*(?:\(\w+\))?):\s+(\d+(?:\.\d+)?)\s*(kB|[MG]iB)?", line)
        if match:
            scale = {"MiB": 1024, "GiB": GIB_KB}.get(match.group(3) or "", 1)
            found.setdefault(match.group(1), int(float(match.group(2)) * scale))
    if "MemTotal" not in found and "MemFree" not in found:
        raise UmaError("/proc/meminfo has neither MemTotal nor MemFree: it is empty or not a Linux meminfo")
    return found


def parse_zoneinfo(text: str | None, page_kb: int) -> list[Zone]:
    """Return the zones that hold pages; `page_kb` is the page size in KiB."""
    zones: list[Zone] = []
    node, name = 0, ""
    values: dict[str, int] = {}

    def close() -> None:
        if name and values.get("managed", 0) > 0:
            zones.append(
                Zone(
                    node,
                    name,
                    values["managed"] * page_kb,
                    values.get("min", 0) * page_kb,
                    values.get("low", 0) * page_kb,
                    values.get("high", 0) * page_kb,
                    values.get("boost", 0) * page_kb,
                    values.get("protection", 0) * page_kb,
                )
            )

    for line in (text or "").splitlines():
        head = re.match(r"Node (\d+), zone\s+(\S+)", line)
        if head:
            close()
            node, name, values = int(head.group(1)), head.group(2), {}
            continue
        words = line.split()
        if len(words) == 2 and words[0] in ("min", "low", "high", "boost", "managed") and words[1].isdigit():
            values.setdefault(words[0], int(words[1]))
        elif words and words[0] == "protection:":
            values["protection"] = max((int(number) for number in re.findall(r"\d+", line)), default=0)
    close()
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
    """Return the active swap devices of /proc/swaps (a blank in a name stands there as \\040)."""
    rows: list[Swap] = []
    for line in (text or "").splitlines():
        words = line.split()
        if len(words) >= 5 and all(re.fullmatch(r"-?[0-9]+", word) for word in words[2:5]):
            device = words[0].replace("\\040", " ")
            rows.append(Swap(device, words[1], int(words[2]), int(words[3]), int(words[4])))
    return rows


def page_size_kb(meminfo: Mapping[str, int], zoneinfo: str | None) -> int:
    """Return the page size that makes the zones of a capture add up to MemTotal; 4 KiB where that cannot be told."""
    pages = sum(zone.managed_kb for zone in parse_zoneinfo(zoneinfo, 1))
    if not pages or not meminfo.get("MemTotal"):
        return 4
    ratio = meminfo["MemTotal"] / pages
    return min((4, 16, 64), key=lambda size: abs(size - ratio))


def node_class(total_kb: int) -> str:
    """Return 121 or 119 (the two sizes in which a GB10's 128 GB appear), else other."""
    gib = total_kb / GIB_KB
    if 120.7 <= gib < 123:
        return CLASS_121
    if 118 <= gib < 120.7:
        return CLASS_119
    return CLASS_OTHER


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


def guess_zones(total_kb: int) -> list[Zone]:
    """Return one zone that stands in for a node whose zoneinfo is not known."""
    return [Zone(0, "Normal", total_kb, 0, 0, 0, 0, 0)]


def floor_cost_kb(meminfo: Mapping[str, int], zones: Sequence[Zone], now: tuple[int, int], then: tuple[int, int], boost_factor: int = 0) -> int:
    """Return what MemAvailable loses (negative: gains) when (min_free_kbytes, watermark_scale_factor) goes from `now` to `then`.

    `boost_factor` is the factor that stays in force: the loss then includes a full boost of the new watermarks, which the kernel holds
    back although its own MemAvailable does not count it.
    """
    zones = zones or guess_zones(meminfo.get("MemTotal", 0))
    before = available_kb(meminfo, watermarks(zones, *now))
    planned = watermarks(zones, *then)
    if boost_factor:
        planned = [zone._replace(high_kb=zone.high_kb + zone.high_kb * boost_factor // 10000) for zone in planned]
    return before - available_kb(meminfo, planned)


def highest_utilization(free_kb: int, total_kb: int) -> float:
    """Return the highest gpu_memory_utilization, in hundredths, whose start check passes: vLLM wants free >= utilization * total."""
    if total_kb <= 0:
        return 0.0
    return max(0, min(100, free_kb * 100 // total_kb)) / 100


def gib(kilobytes: float) -> float:
    """Return KiB as GiB with two digits."""
    return round(kilobytes / GIB_KB, 2)


def unaccounted_kb(meminfo: Mapping[str, int]) -> int:
    """Return what neither the kernel nor a process accounts for: on a GB10, what the NVIDIA driver holds."""
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


def large_blocks(row: Buddy, page_kb: int, block_kb: int = LARGE_BLOCK_KB) -> int:
    """Return how many free blocks of `block_kb` or more a zone has, counted in blocks of their own order."""
    return sum(count for order, count in enumerate(row.blocks) if page_kb << order >= block_kb)


def largest_zone(rows: Sequence[Buddy], zones: Sequence[Zone]) -> Buddy | None:
    """Return the row of the zone that holds most of the memory: zone Normal on a GB10."""
    sizes = {(zone.node, zone.name): zone.managed_kb for zone in zones}
    return max(rows, key=lambda row: (sizes.get((row.node, row.zone), 0), row.zone == "Normal"), default=None)


def fragmentation(rows: Sequence[Buddy], zones: Sequence[Zone], page_kb: int) -> dict[str, Any]:
    """Return the state of the largest zone: free memory, and blocks of 1 MiB, 4 MiB and more."""
    row = largest_zone(rows, zones)
    if row is None:
        return {"zone": None, "free_kb": 0, "blocks": [], "blocks_1mib": 0, "blocks_4mib": 0, "largest_kb": 0}
    free = sum(count * (page_kb << order) for order, count in enumerate(row.blocks))
    orders = [order for order, count in enumerate(row.blocks) if count]
    return {
        "zone": row.zone,
        "free_kb": free,
        "blocks": list(row.blocks),
        "blocks_1mib": large_blocks(row, page_kb, 1024),
        "blocks_4mib": large_blocks(row, page_kb),
        "largest_kb": page_kb << orders[-1] if orders else 0,
    }


def problem(name: str, message: str, remedy: str) -> dict[str, str]:
    """Return one entry of `problems`."""
    return {"id": name, "message": message, "remedy": remedy}


def cma_problem(meminfo: Mapping[str, int], kernel: str = "", cmdline: str = "", kexec_crash_size: int | None = None) -> dict[str, str] | None:
    """Return the KHO leak, told by more free CMA than there is CMA."""
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
        remedy = (
            f"boot {fixed}; kho=off is not safe here, because /sys/kernel/kexec_crash_size "
            f"is {kexec_crash_size} and a crash kernel is reserved"
        )
    else:
        remedy = f"add kho=off to the kernel command line and reboot, or boot {fixed}"
    return problem("kho-cma-leak", message, remedy)


def stuck_problem(meminfo: Mapping[str, int], gpu_users: Sequence[str]) -> dict[str, str] | None:
    """Return memory that stays with the driver although no process uses the GPU."""
    held = unaccounted_kb(meminfo)
    expected = KHO_KB if cma_problem(meminfo) is not None else 0
    if gpu_users or "MemTotal" not in meminfo or "AnonPages" not in meminfo or held < STUCK_KB + expected:
        return None
    return problem(
        "memory-stuck",
        f"{gib(held)} GiB of {gib(meminfo['MemTotal'])} GiB belong to no process and to no cache, and nothing uses the GPU: "
        "a failed run left them with the driver",
        "wait up to 60 s after a stop and look again; what is then still missing comes back only with a reboot",
    )


def fragmentation_problem(state: Mapping[str, Any], meminfo: Mapping[str, int], gpu_users: Sequence[str]) -> dict[str, str] | None:
    """Return a fragmented node; under a loaded engine zero large blocks are normal, so only an idle node is judged."""
    if gpu_users or not state.get("zone") or state["blocks_4mib"] >= FEW_LARGE_BLOCKS or meminfo.get("MemTotal", 0) < 16 * GIB_KB:
        return None
    return problem(
        "memory-fragmented",
        f"zone {state['zone']} has {state['blocks_4mib']} free blocks of 4 MiB or more (largest free block {state['largest_kb']} KiB) "
        f"with {gib(state['free_kb'])} GiB free and nothing using the GPU; a fresh boot has 24 and more",
        "echo 3 > /proc/sys/vm/drop_caches, then echo 1 > /proc/sys/vm/compact_memory; after days of uptime only a reboot helps",
    )


def cache_problem(meminfo: Mapping[str, int]) -> dict[str, str] | None:
    """Return a node whose MemAvailable is page cache that the driver cannot take in time."""
    free, available = meminfo.get("MemFree"), meminfo.get("MemAvailable")
    if free is None or available is None or meminfo.get("MemTotal", 0) < 64 * GIB_KB:
        return None
    if free >= LOW_FREE_KB or available - free < LOW_FREE_KB:
        return None
    return problem(
        "available-is-cache",
        f"MemAvailable says {gib(available)} GiB, but only {gib(free)} GiB are free: the rest is page cache, which the GPU driver does not "
        "wait for (NV_ERR_NO_MEMORY)",
        "echo 3 > /proc/sys/vm/drop_caches before a start; vllm_tp2 runs the page-cache guard of the readahead role while weights load",
    )


def boost_problem(vm: Mapping[str, int]) -> dict[str, str] | None:
    """Return a raised floor under a boost factor that multiplies it."""
    floor, factor = vm.get("min_free_kbytes", 0), vm.get("watermark_boost_factor", 0)
    if floor < GIB_KB or factor == 0:
        return None
    worst = floor * 3 // 2 * (10000 + factor) // 10000
    return problem(
        "watermark-boost",
        f"vm.min_free_kbytes is {floor} with vm.watermark_boost_factor {factor}: after fragmentation the kernel can hold back {gib(worst)} GiB",
        "set vm.watermark_boost_factor=0, as the sysctl role does",
    )


def vllm_start(meminfo: Mapping[str, int]) -> dict[str, Any]:
    """Return what vLLM's start check sees: MemAvailable since PR 35356 (integrated GPUs), MemFree before it."""
    total = meminfo.get("MemTotal", 0)
    answer: dict[str, Any] = {"total_gib": gib(total)}
    for key, name in (("memavailable", "MemAvailable"), ("memfree", "MemFree")):
        free = meminfo.get(name, 0)
        answer[key] = {"free_gib": gib(free), "highest_utilization": highest_utilization(free, total)}
    return answer


def find_problems(
    meminfo: Mapping[str, int],
    fragments: Mapping[str, Any],
    vm: Mapping[str, int],
    gpu_users: Sequence[str],
    kernel: str = "",
    cmdline: str = "",
    kexec_crash_size: int | None = None,
) -> list[dict[str, str]]:
    """Return everything that is wrong with a node's memory."""
    found = [
        cma_problem(meminfo, kernel, cmdline, kexec_crash_size),
        stuck_problem(meminfo, gpu_users),
        fragmentation_problem(fragments, meminfo, gpu_users),
        cache_problem(meminfo),
        boost_problem(vm),
    ]
    return [entry for entry in found if entry is not None]
