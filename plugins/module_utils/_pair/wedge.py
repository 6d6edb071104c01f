# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The wedge rule: an engine that holds requests and computes nothing. Pure.

Tokens also stand still in a long prefill, so the GPU decides: a rank that waits in a collective shows full utilization at idle power.
Without a GPU, the CPU time of the engine's processes decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu

BUSY_PERCENT = 95.0
CPU_SHARE = 0.1  # of a core: a rank that waits uses 0.04, a rank 0 that works 0.3 and more
LONG = 5.0  # windows at idle power at any utilization


class Reading(NamedTuple):
    """What one second shows of an engine. gpus: the GPUs of one rank or of several. cpu_seconds: used since the start of the engine's processes."""

    now: float
    tokens: float
    gpus: Sequence[gpu.Reading]
    cpu_seconds: float | None


class Wedge:
    """The rule over one engine, which needs readings of `window` seconds."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._last: Reading | None = None
        self._still: deque[Reading] = deque()  # requests run and tokens stand still; the oldest one begins the window
        self._frozen: float | None = None  # since when requests run and tokens stand still

    def add(self, now: float, running: int, tokens: float, gpus: Sequence[gpu.Reading], cpu_seconds: float | None) -> None:
        """Take a reading. If two are more than half a window apart, the window begins again: nothing is known of the time between."""
        last, self._last = self._last, Reading(now, tokens, gpus, cpu_seconds)
        if running == 0 or last is None or tokens != last.tokens or not 0 <= now - last.now <= self.window / 2:
            self._still.clear()
            self._frozen = None
        elif self._frozen is None:
            self._frozen = now
        if running == 0:
            return
        self._still.append(self._last)
        while len(self._still) > 1 and self._still[1].now <= now - self.window:
            self._still.popleft()

    def wedged(self, idle_power_w: float | None) -> bool:
        """Return whether the readings of the whole window show a wedge."""
        if not self._still or self._still[-1].now - self._still[0].now < self.window:
            return False
        return self._gpu(idle_power_w) if any(reading.gpus for reading in self._still) else self._cpu(self._still[0], self._still[-1])

    def figures(self, idle_power_w: float | None) -> str:
        """Return what the last reading shows, for a person."""
        last = self._still[-1]
        power = max((power for power, _percent in last.gpus if power is not None), default=None)
        percent = max((percent for _power, percent in last.gpus if percent is not None), default=None)
        if power is None:
            first = self._still[0]
            return f"{((last.cpu_seconds or 0.0) - (first.cpu_seconds or 0.0)) / max(last.now - first.now, 0.1):.2f} of a CPU core"
        idle = [] if idle_power_w is None else [f"idle {idle_power_w:.1f} W"]
        return ", ".join([f"{power:.1f} W", *idle, *([] if percent is None else [f"{percent:.0f} %"])])

    def _gpu(self, idle: float | None) -> bool:
        idles = [gpu.at_idle([power for power, _percent in reading.gpus if power is not None], idle) for reading in self._still]
        spins = [max((percent for _power, percent in reading.gpus if percent is not None), default=0.0) >= BUSY_PERCENT for reading in self._still]
        frozen = self._still[-1].now - self._frozen if self._frozen is not None else 0.0
        return all(idles) and (all(spins) or frozen >= LONG * self.window)  # an engine that is stuck on the CPU does not spin on the GPU

    def _cpu(self, first: Reading, last: Reading) -> bool:
        if first.cpu_seconds is None or last.cpu_seconds is None:
            return False
        return 0 <= last.cpu_seconds - first.cpu_seconds <= CPU_SHARE * (last.now - first.now)
