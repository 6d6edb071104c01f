# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a rank that is expected to serve: the thresholds of the watch, its rules, and the wedge rule. Pure.

| cause | found by | action |
|---|---|---|
| node_lost | the rank's agent does not answer | wait |
| docker | its Docker Engine does not answer | wait |
| fabric | a rail has no link, or not its address | wait |
| memory | the rank has stopped itself below its memory floor | restart |
| rank_dead | no container of the release runs, or an engine process is dead | restart |
| reboot, docker_restart | the same, and its node or its Docker Engine has restarted | restart |
| rank_stopped | an engine process is stopped, or the container is paused, for `stopped_seconds` | restart |
| wedge, idle_wedge, engine_failed | see the watch of the head | restart |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import RELEASE_LABEL

# --- The thresholds of the watch, with their source.

#: Seconds and GiB. `vllm_tp2_watch` replaces single values.
DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "stopped_seconds": 5.0,  # a debugger stops a process for less
    "wedge_seconds": 20.0,  # two real GPUs: a wedge shows idle power within 2 s, a decode step takes less than 1 s
    "metrics_seconds": 5.0,
    "completion_seconds": 45.0,  # with the time-out below 75 s until an idle wedge is noticed
    "completion_timeout": 30.0,
    "canary_seconds": 600.0,  # between two short decodes while nothing else runs; 0 for none
    "lost_seconds": 3.0,  # ssh reports a silent node after 6 s; these come on top
    "memory_drop_gib": 4.0,  # the sources keep 8 GiB free while serving; nodes froze below 2 GiB
    "memory_floor_gib": 1.5,
    "memory_fall_seconds": 2.0,  # one reading ahead: a node with 10 GiB froze 3 s later
    "restarts": 5,
    "stable_seconds": 0.0,  # as long as the boot took: a crash loop boots for longer than it serves
    "head_seconds": 60.0,  # a group that is held is asked every 30 s
    "textfile": "",  # the folder of the role monitoring, if that exists
    "hook": [],
    "webhook": "",
}

HEAD_SECONDS = 45.0
CANARIES, CANARY_LAST, CANARY_SLOW, CANARY_BACK = 200, 3, 0.7, 0.85  # kept; compared with those before; shares at which it is slow, and no longer
CANARY_LEAST = 10  # before the last ones
# With 0, a group that serves well would have a fault in each look.
_ABOVE_ZERO = ("stopped_seconds", "wedge_seconds", "metrics_seconds", "completion_seconds", "completion_timeout")


class SettingsError(ValueError):
    """A setting has a value that cannot be used. The text is one sentence with the remedy."""


def with_defaults(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all settings; `given` replaces single ones. The agent checks nothing: a value that another version has written must not end it."""
    return {**DEFAULTS, **{key: value for key, value in (given or {}).items() if value is not None}}


def merged_settings(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all settings. The argument specification of the role has checked names and types of `given`. Raises SettingsError."""
    out = with_defaults(given)
    for key, value in out.items():
        if isinstance(value, (int, float)) and value < 0:
            raise SettingsError(f"{key} of the watch is {value!r}. Expected: a number that is not negative.")
    zero = next((key for key in _ABOVE_ZERO if out[key] == 0), "")
    if zero:
        raise SettingsError(f"{zero} of the watch is 0. Expected: a number above 0; the default is {DEFAULTS[zero]:g}.")
    if out["head_seconds"] < HEAD_SECONDS:
        expected = f"at least {HEAD_SECONDS:.0f}; the head asks every 30 s or more often"
        raise SettingsError(f"head_seconds of the watch is {out['head_seconds']!r}. Expected: {expected}.")
    if out["memory_drop_gib"] < out["memory_floor_gib"]:
        own = next((key for key in ("memory_floor_gib", "memory_drop_gib") if (given or {}).get(key) is not None), "memory_drop_gib")
        figures = f"memory_drop_gib ({out['memory_drop_gib']:g}) is below memory_floor_gib ({out['memory_floor_gib']:g})"
        raise SettingsError(f"{own} of the watch does not fit: {figures}. Expected: the page cache is dropped before the rank is stopped.")
    return out


def canary(known: Sequence[float], new: Sequence[float], was_slow: bool) -> tuple[list[float], bool, float]:
    """Return the speeds to keep, whether the last decodes are far slower than those before, and the usual speed; as before while there are too few.

    While it is slow, the usual speed stays: a slow state of days must not count as usual in the end.
    """
    before, last = list(known[:-CANARY_LAST]), [*known[-CANARY_LAST:], *new]
    speeds = [*before, *(last[-CANARY_LAST:] if was_slow else last)][-CANARIES:]
    usual = median(speeds[:-CANARY_LAST] or [0.0])
    if len(speeds) < CANARY_LEAST + CANARY_LAST:
        return speeds, was_slow, usual
    return speeds, median(speeds[-CANARY_LAST:]) < usual * (CANARY_BACK if was_slow else CANARY_SLOW), usual


# --- What is wrong with a rank that is expected to serve.

WAITS = frozenset(("node_lost", "docker", "fabric"))
#: Causes that end the other ranks too, which may be read first.
ROOTS = ("memory", "reboot", "docker_restart")
CAUSES = (*sorted(WAITS), *ROOTS, "rank_dead", "rank_stopped", "wedge", "idle_wedge", "engine_failed")
#: Causes from outside of the release: they do not count as crashes of it.
OUTSIDE = frozenset((*WAITS, "reboot", "docker_restart"))


class Fault(NamedTuple):
    """One fault of a group."""

    cause: str
    text: str  # a phrase without a full stop that names rank and host
    rank: int = 0

    @property
    def waits(self) -> bool:
        """Whether it has to pass by itself before anything is started."""
        return self.cause in WAITS


class View(NamedTuple):
    """What the head knows of one rank."""

    number: int
    host: str
    sample: Mapping[str, Any]  # of its sampler; empty before the first one
    lost: str = ""  # why it does not answer
    restarted: str = ""  # reboot or docker_restart if its node or its Docker Engine has restarted since the group served

    @property
    def name(self) -> str:
        """The rank as sentences name it."""
        return f"rank {self.number} on {self.host}"


def rails_down(sample: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the rails of a rank, one phrase each."""
    out = []
    for rail in sample.get("rails") or []:
        if not rail["interface"]:
            out.append(f"no interface has the rail address {rail['address']}")
        elif not rail["up"]:
            out.append(f"the rail {rail['interface']} has no link")
    return out


def _dead(view: View, release: str) -> str:
    """Return why no container of the release runs on a rank, as a phrase; empty if one does."""
    containers = list(view.sample.get("containers") or [])
    mine = [each for each in containers if (each.get("labels") or {}).get(RELEASE_LABEL) == release]
    if any(each["running"] for each in mine):
        fault = str(view.sample.get("fault") or "")
        return fault if fault and not stopped(view) else ""
    if not mine:
        return "the container does not exist"
    killed = ", killed by the kernel for lack of memory" if mine[0].get("oom_killed") else ""
    return f"the container {mine[0]['name']} exited with code {mine[0]['exit_code']}{killed}"


def stopped(view: View) -> bool:
    """Whether the fault of a rank's processes can pass: stopped, or paused."""
    return str(view.sample.get("fault") or "").startswith(("the engine process is stopped", "the container"))


def faults(views: Sequence[View], release: str, stopped_seconds: float) -> list[Fault]:
    """Return the faults of all ranks, those that have to pass by themselves first. A rank can be dead for lack of another one's memory."""
    out: list[Fault] = []
    for view in views:
        if view.lost:
            out.append(Fault("node_lost", f"{view.name} does not answer ({view.lost.rstrip('.')})", view.number))
        elif not view.sample:
            continue
        elif view.sample.get("engine_error"):
            out.append(Fault("docker", f"{view.name}: {str(view.sample['engine_error']).rstrip('.')}", view.number))
        else:
            out += [Fault("fabric", f"{view.name}: {phrase}", view.number) for phrase in rails_down(view.sample)]
            out += _of_rank(view, release, stopped_seconds)
    return sorted(out, key=lambda fault: (not fault.waits, fault.cause not in ROOTS))


def _of_rank(view: View, release: str, stopped_seconds: float) -> list[Fault]:
    dead = _dead(view, release)
    memory = view.sample.get("memory_stop") or ""
    if memory:
        return [Fault("memory", f"{view.name}: {memory}", view.number)]
    if dead:
        return [Fault(view.restarted or "rank_dead", f"{view.name}: {dead}", view.number)]
    if stopped(view) and float(view.sample.get("fault_seconds") or 0.0) >= stopped_seconds:
        return [Fault("rank_stopped", f"{view.name}: {view.sample['fault']}", view.number)]
    return []


# --- The wedge rule: an engine that holds requests and computes nothing.
# Tokens also stand still in a long prefill, so the GPU decides: a rank that waits in a collective shows full utilization at idle power. Without a GPU, the
# CPU time of the engine's processes decides.

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
