# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a rank that is expected to serve. Pure.

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

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._node.release import RELEASE_LABEL

WAITS = frozenset(("node_lost", "docker", "fabric"))
#: Causes that end the other ranks too, which may be read first.
ROOTS = ("memory", "reboot", "docker_restart")
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
