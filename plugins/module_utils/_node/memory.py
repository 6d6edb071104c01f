# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unified memory of a node: /proc, the cost of vm.min_free_kbytes, what vLLM sees and what holds it; its course over time; the drop of the page cache.

Sizes are KiB (`_kb`) as in /proc/meminfo, or GiB as floats (`_gib`). Utilizations are fractions of MemTotal.

The cost of a floor (mm/page_alloc.c, `__setup_per_zone_wmarks` and `si_mem_available`):
  gap = max(min / 4, managed * watermark_scale_factor / 10000); low = min + gap; high = low + gap
  MemAvailable = MemFree - sum(high + lowmem reserve) + pagecache - min(pagecache / 2, low) + slab - min(slab / 2, low)
Each zone has its share of the floor by its `managed` pages, so the sums are those of one zone of MemTotal. (Only a zone Movable has another rule; a GB10 has
none.) The lowmem reserve does not depend on the floor.
So `vm.min_free_kbytes` costs about 1.5 times its value, and up to twice its low watermark more if the page cache is small.
After fragmentation a zone holds back up to `watermark_boost_factor / 10000` of its high watermark more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import Finding, found
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError, Node

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


class Kernel(NamedTuple):
    """The running kernel. `crash_size` is the memory that is reserved for a crash kernel, as the kernel prints it."""

    release: str = ""
    cmdline: str = ""
    crash_size: str = "0"

    @property
    def kho_off(self) -> bool:
        """Whether its handover (KHO) is switched off."""
        return "kho=off" in self.cmdline.split()


def parse_meminfo(text: str | None) -> dict[str, int]:
    """Return /proc/meminfo in KiB (counts without a unit stay as they are). Raises HostError."""
    found = {name: int(figure) for name, figure in re.findall(r"(?m)^([A-Za-z]\w*(?:\(\w+\))?):\s+(\d+)", text or "")}
    if "MemFree" not in found:
        raise HostError("/proc/meminfo is not valid: it does not have MemFree")
    return found


def parse_buddyinfo(text: str | None) -> list[Buddy]:
    """Return the rows of /proc/buddyinfo."""
    rows = re.findall(r"(?m)^Node (\d+), zone +(\S+)((?: +\d+)+) *$", text or "")
    return [Buddy(int(node), zone, tuple(map(int, blocks.split()))) for node, zone, blocks in rows]


def parse_swaps(text: str | None) -> list[Swap]:
    """Return the active swap devices of /proc/swaps."""
    rows = re.findall(r"(?m)^(\S+)(?: \(deleted\))?\s+(\w+)\s+(\d+)\s+(\d+)\s+-?\d+ *$", text or "")
    return [Swap(device.replace("\\040", " "), kind, int(size), int(used)) for device, kind, size, used in rows]


def _held_back_kb(meminfo: Mapping[str, int], floor: int, scale_factor: int) -> int:
    """Return what MemAvailable is without for a floor: the high watermarks, and what page cache and slab cannot give away."""
    gap = max(floor // 4, meminfo.get("MemTotal", 0) * scale_factor // 10000)
    cache, low = meminfo.get("Active(file)", 0) + meminfo.get("Inactive(file)", 0), floor + gap
    return low + gap + min(cache // 2, low) + min(meminfo.get("KReclaimable", 0) // 2, low)


def floor_cost_kb(meminfo: Mapping[str, int], now: int, then: int, scale_factor: int) -> int:
    """Return what MemAvailable loses (negative: gains) if min_free_kbytes changes from `now` to `then`."""
    return _held_back_kb(meminfo, then, scale_factor) - _held_back_kb(meminfo, now, scale_factor)


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
        "KReclaimable",
        "SUnreclaim",
        "KernelStack",
        "PageTables",
        "SecPageTables",
        "Percpu",
        "VmallocUsed",
        "Zswap",
        "Hugetlb",
    )
    return max(0, meminfo.get("MemTotal", 0) - sum(meminfo.get(name, 0) for name in names))


def fragmentation(rows: Sequence[Buddy], page_kb: int) -> dict[str, Any]:
    """Return free memory and large free blocks of the zone with most free memory, which is Normal on an idle GB10."""
    row = max(rows, key=lambda row: sum(count << order for order, count in enumerate(row.blocks)), default=Buddy(0, "", ()))
    blocks = [(page_kb << order, count) for order, count in enumerate(row.blocks)]
    return {
        "zone": row.zone or None,
        "free_kb": sum(size * count for size, count in blocks),
        "blocks_4mib": sum(count for size, count in blocks if size >= LARGE_BLOCK_KB),
        "largest_kb": max((size for size, count in blocks if count), default=0),
    }


def cma_problem(meminfo: Mapping[str, int], kernel: Kernel) -> Finding | None:
    """Return the KHO leak: more free CMA than CMA."""
    total, free = meminfo.get("CmaTotal"), meminfo.get("CmaFree", 0)
    if total is None or free <= total:
        return None
    fixed = "another kernel" if kernel.release.startswith("6.17.0-1032") else "kernel 6.17.0-1032 or a later fixed one"
    message = (
        f"CmaFree is {free} kB with CmaTotal {total} kB on kernel {kernel.release or 'unknown'}: the kernel's handover (KHO) keeps about 9.4 GiB as CMA "
        "scratch, which makes RDMA registration fail with ENOMEM"
    )
    if kernel.kho_off:
        remedy = f"kho=off is on the kernel command line already, so reboot into {fixed}"
    elif kernel.crash_size != "0":
        remedy = f"boot {fixed}; kho=off is not safe here, because /sys/kernel/kexec_crash_size is {kernel.crash_size} and a crash kernel is reserved"
    else:
        remedy = f"{KHO_REMEDY}, or boot {fixed}"
    return found(message, remedy, name="kho_leak")


def stuck_problem(meminfo: Mapping[str, int], gpu_users: Sequence[str]) -> Finding | None:
    """Return memory that the driver holds although no process uses the GPU."""
    held = unaccounted_kb(meminfo)
    expected = KHO_KB if cma_problem(meminfo, Kernel()) else 0
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


# --- A bounded series of a node's memory over time, and its compact text: `seconds MemFree MemAvailable SwapFree` in MiB, joined by ';'.

KEYS = ("free_kib", "available_kib", "swap_free_kib")  # of _node.docker_api.memory_of()
_SAMPLE = re.compile(r"(\d{1,11}) (\d{1,9}) (\d{1,9}) (\d{1,9})")


class Sample(NamedTuple):
    """The memory at one time. `seconds` count from the boot's start or from the epoch; the others are MiB."""

    seconds: int
    free: int
    available: int
    swap_free: int


class Series:
    """At most `most` samples, `step` seconds apart. A full one loses its oldest sample (`ring`), or every second one while its step doubles."""

    def __init__(self, step: float, most: int, ring: bool = False) -> None:
        self.step, self.most, self.ring = step, most, ring
        self.samples: list[Sample] = []

    def add(self, seconds: float, memory: Mapping[str, int]) -> None:
        """Take a reading, unless the last sample is too near or the reading has no figures. A clock that was set back does not end the series."""
        if not memory.get("available_kib") or (self.samples and abs(seconds - self.samples[-1].seconds) < self.step):
            return
        self.samples.append(Sample(max(0, round(seconds)), *(int(memory.get(key) or 0) >> 10 for key in KEYS)))
        if len(self.samples) > self.most:
            if self.ring:
                del self.samples[0]
            else:
                self.step *= 2
                del self.samples[1::2]

    def text(self) -> str:
        """Return the compact form."""
        return series_text(list(self.samples))


def series_text(samples: Iterable[Sample]) -> str:
    """Return the compact form of samples."""
    return ";".join(" ".join(map(str, sample)) for sample in samples)


def parse_series(text: object, most: int = 2000) -> list[Sample]:
    """Return the samples of a compact form, the last `most`; what is not one is left out, and a value that is not a text has none."""
    parts = text.rsplit(";", most)[-most:] if isinstance(text, str) else []
    return [Sample(*map(int, match.groups())) for match in map(_SAMPLE.fullmatch, parts) if match]


# --- The memory of a node through `Node`: its facts, what holds it, and the drop of the page cache before an engine starts.
# The GPU driver does not wait for page cache to be reclaimed (NV_ERR_NO_MEMORY), so cache does not count as free before a load.

VM_KEYS = ("min_free_kbytes", "watermark_boost_factor", "watermark_scale_factor")
GPU_DEVICE = "/dev/nvidia-uvm"
DROP = "/proc/sys/vm/drop_caches"
COMPACT = "/proc/sys/vm/compact_memory"
LARGE_KB = GIB_KB  # a process with less is not named
LARGEST = 3
ENGINE_NAME = re.compile(r"VLLM::|vllm\b|ray::")


class Facts(NamedTuple):
    """Memory facts of a node."""

    meminfo: dict[str, int]
    page_kb: int
    buddies: list[Buddy]
    swaps: list[Swap]
    vm: dict[str, int]
    gpu_users: list[str]
    container: str
    kernel: Kernel


def container_reason(node: Node) -> str:
    """Return the runtime of this container; empty outside a container."""
    named = (node.read("/run/systemd/container") or "").strip()
    if named:
        return named
    if node.exists("/.dockerenv"):
        return "docker"
    rc, out, _err = node.run(["systemd-detect-virt", "--container"])
    return out.strip() if rc == 0 and out.strip() not in ("", "none") else ""


def read_kernel(node: Node) -> Kernel:
    """Read the running kernel."""
    texts = (node.read(path) or "" for path in ("/proc/sys/kernel/osrelease", "/proc/cmdline", "/sys/kernel/kexec_crash_size"))
    release, cmdline, crash_size = (text.strip() for text in texts)
    return Kernel(release, cmdline, crash_size or "0")


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
    """Read all facts. Raises HostError."""
    meminfo = parse_meminfo(node.read("/proc/meminfo"))
    page_kb = node.page_kb() or 4
    vm = {key: (node.read(f"/proc/sys/vm/{key}") or "").strip() for key in VM_KEYS}
    return Facts(
        meminfo,
        page_kb,
        parse_buddyinfo(node.read("/proc/buddyinfo")),
        parse_swaps(node.read("/proc/swaps")),
        {key: int(text) for key, text in vm.items() if text.isdigit()},
        gpu_users(node),
        container_reason(node),
        read_kernel(node),
    )


def report(facts: Facts) -> dict[str, Any]:
    """Return the size in KiB, and the problems."""
    meminfo = facts.meminfo
    problems = (
        cma_problem(meminfo, facts.kernel),
        stuck_problem(meminfo, facts.gpu_users),
        fragmentation_problem(fragmentation(facts.buddies, facts.page_kb), meminfo, facts.gpu_users),
        cache_problem(meminfo),
        boost_problem(facts.vm),
    )
    return {
        "total_kb": meminfo.get("MemTotal", 0),
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
        meminfo = parse_meminfo(node.read("/proc/meminfo"))
    except HostError:
        return ""
    cache = meminfo.get("Cached", 0) + meminfo.get("Buffers", 0) - meminfo.get("Shmem", 0)
    rows = [(meminfo.get("MemFree", 0), "MemFree"), (max(0, cache), "page cache"), (meminfo.get("Shmem", 0), "shared memory")]
    rows += _processes(node, node.page_kb() or os.sysconf("SC_PAGE_SIZE") // 1024)
    if "AnonPages" in meminfo:
        rows.append((unaccounted_kb(meminfo), "neither a process nor cache, on a GB10 the GPU driver"))
    return ", ".join(f"{name} {kb / GIB_KB:.1f} GiB" for kb, name in rows)
