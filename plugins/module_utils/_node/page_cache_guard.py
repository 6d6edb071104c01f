# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The page-cache guard: while weights load, keep MemFree above a floor by dropping the page cache and compacting memory.

The readahead module writes this file to the node and runs it in a transient systemd unit. It uses only the standard library, opens its files
before the memory is short, locks itself into memory, and writes a JSON receipt. Sizes are KiB, times seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import time
from collections.abc import Callable

INTERVAL = 0.1  # a check takes little CPU, and weights fill the page cache by gigabytes a second
PAUSE = 1.0  # between two compactions, and after a drop that has freed little: the memory is not cache, and walking it takes CPU
LITTLE_KB = 64 * 1024


class Guard:
    """`step` checks once and acts, `run` checks until its time is over or a signal stops it. `receipt` counts what it has done."""

    def __init__(self, floor_kb: int, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        """Open the files. Raises OSError."""
        self.floor_kb = floor_kb
        self.clock = clock
        self.meminfo = os.open(os.path.join(proc, "meminfo"), os.O_RDONLY)
        self.drop = os.open(os.path.join(proc, "sys/vm/drop_caches"), os.O_WRONLY)
        self.compact = os.open(os.path.join(proc, "sys/vm/compact_memory"), os.O_WRONLY)
        self.stopped = ""
        self.receipt: dict[str, int] = {"floor_kb": floor_kb, "looks": 0, "drops": 0, "errors": 0, "lowest_free_kb": -1, "freed_kb": 0}
        self.drop_from = self.compact_from = -1e9  # the times before which neither is done again

    def free_kb(self) -> int:
        """Return MemFree."""
        match = re.search(rb"MemFree:\s+(\d+)", os.pread(self.meminfo, 4096, 0))
        return int(match.group(1)) if match else -1

    def step(self) -> bool:
        """Check once; return whether the cache was dropped."""
        seen, free, now = self.receipt, self.free_kb(), self.clock()
        seen["looks"] += 1
        if free < 0:
            seen["errors"] += 1
            return False
        seen["lowest_free_kb"] = free if seen["lowest_free_kb"] < 0 else min(free, seen["lowest_free_kb"])
        if free >= self.floor_kb or now < self.drop_from:
            return False
        try:
            os.pwrite(self.drop, b"3\n", 0)
            freed = max(0, self.free_kb() - free)
            if now >= self.compact_from:
                os.pwrite(self.compact, b"1\n", 0)
                self.compact_from = now + PAUSE
        except OSError:
            seen["errors"] += 1
            return False
        seen["drops"] += 1
        seen["freed_kb"] += freed
        if freed < LITTLE_KB:
            self.drop_from = now + PAUSE
        return True

    def run(self, seconds: float, pause: Callable[[float], None] = time.sleep) -> None:
        """Check every INTERVAL seconds until `seconds` are over or `stopped` is set."""
        end = self.clock() + seconds
        while not self.stopped and self.clock() < end:
            self.step()
            pause(INTERVAL)
        self.stopped = self.stopped or "time limit"


def lock_memory() -> None:
    """Lock this process into memory, if the kernel permits it."""
    mlockall = getattr(ctypes.CDLL(None), "mlockall", None)
    if mlockall is not None:
        mlockall(3)


def main(argv: list[str] | None = None) -> int:
    """Run the guard and write its receipt."""
    parser = argparse.ArgumentParser(description="Keep MemFree above a floor while weights load.")
    parser.add_argument("--floor-kb", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--receipt", required=True)
    parser.add_argument("--proc", default="/proc")
    options = parser.parse_args(argv)
    guard = Guard(options.floor_kb, options.proc)

    def stop(_number: int, _frame: object) -> None:
        guard.stopped = "stopped"

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    lock_memory()
    started = time.time()
    guard.run(options.seconds)
    receipt = {**guard.receipt, "started": round(started, 1), "ended": round(time.time(), 1), "reason": guard.stopped}
    with open(f"{options.receipt}.new", "w", encoding="utf-8") as handle:
        json.dump(receipt, handle, indent=2, sort_keys=True)
    os.replace(f"{options.receipt}.new", options.receipt)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
