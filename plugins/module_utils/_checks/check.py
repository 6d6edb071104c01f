# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What a check is, what it receives and what it yields. Sizes are GiB (`_gib`).

A check is a function of a rank and its group, with the decorator check(). It yields found(), skip(), and figures as text, which the report
has if their area has no finding.
The texts have no capital and no full stop. In a command, {on} runs a command on the node of the finding and {head} on the head, {site} is site.yml
with the user's inventory, {play} and {end} are around the name of another playbook, {group} are the hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import Finding

#: In the order of the reports: causes before what follows from them.
AREAS = {
    "nodes": "nodes",
    "versions": "versions",
    "docker": "Docker",
    "fabric": "fabric",
    "memory": "memory",
    "power": "power, heat",
    "kernel": "kernel log",
    "boot": "boot log",
    "engine": "engine",
    "drift": "drift",
}
# For which ranks a check is called. The first four need the facts of preflight only.
ACCESS, NODE, HEAD, PAIR = PREFLIGHT = "access", "node", "head", "pair"  # each one; each one that was read; the head; to compare it
RANK, GROUP = "rank", "group"  # only by doctor, read or not: each rank, and once for the group
NOT_READ, NOT_IN_RUN = "the node was not read", "not in this run (--limit)"
# Commands of several checks.
UPDATE = "{on} 'sudo apt update && sudo apt dist-upgrade'"
REBOOT = "{play}reboot{end} -e reboot_all=true --limit {group}"
ROCE, DOCKER, SYSCTL, SERVE = (f"{{site}} --tags {tag}" for tag in ("roce", "docker", "sysctl", "vllm_tp2"))


class Requirements(NamedTuple):
    """What the serving group requires of its nodes; sizes in GiB, 0 if unknown."""

    require_gb10: bool = False
    head_ports: Mapping[int, str] = {}
    open_port: int = 0
    model_gib: float = 0.0
    image_gib: float = 0.0
    image: str = ""
    free_gib: float = 5.0
    clock_skew_seconds: float = 5.0
    known_versions: Sequence[Mapping[str, Any]] = ()


class Rank(NamedTuple):
    """One rank: its host, and what each reader returned or how preflight_info failed; {} for a reader that did not run."""

    host: str
    number: int
    facts: Mapping[str, Any] = {}  # preflight_info
    failure: str = ""
    unreachable: bool = False
    absent: str = ""  # why it was not to be read
    remedy: str = ""  # what to do about a node that is not reached
    info: Mapping[str, Any] = {}  # vllm_rank_info
    repairs: Sequence[str] = ()  # what the rank has lost of its release
    settings: Mapping[str, Mapping[str, Any]] = {}  # by role, what it returned in check mode

    @property
    def read(self) -> bool:
        """Whether there are facts."""
        return not (self.absent or self.failure or self.unreachable)

    @property
    def health(self) -> Mapping[str, Any]:
        """Kernel logs, power, temperatures and the newest kept boot log."""
        return self.info.get("health") or {}

    @property
    def log(self) -> Mapping[str, Any]:
        """The facts of the boot log of its container."""
        return self.info.get("boot_log") or {}

    @property
    def container(self) -> str:
        """The kind of container that the rank is; empty for a machine."""
        return str(self.facts.get("container") or "") if self.read else ""

    @property
    def not_read(self) -> str:
        """Why there is nothing of it."""
        return self.absent or NOT_READ


class Group(NamedTuple):
    """A serving group: its ranks, the head first, and what was read once for all of them."""

    name: str
    ranks: Sequence[Rank]
    needs: Requirements = Requirements()
    status: Mapping[str, Any] = {}  # group_status
    liveness: Mapping[str, Any] = {}
    named: str = ""  # the release that the inventory describes; empty if it was not rendered
    bandwidth: Mapping[str, Mapping[str, Any]] = {}  # by host, what the test returned
    bandwidth_not: str = ""  # why the bandwidth test that was asked for did not run
    collective: Mapping[str, Any] = {}

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the ranks."""
        return tuple(rank.host for rank in self.ranks)

    @property
    def read(self) -> list[Rank]:
        """The ranks with facts."""
        return [rank for rank in self.ranks if rank.read]

    @property
    def serves(self) -> bool:
        """Whether the group serves, as status.yml judges it."""
        return self.status.get("state") in ("serves", "busy")


class Skipped(NamedTuple):
    """A check that was not made on hosts."""

    id: str
    area: str
    hosts: tuple[str, ...]
    reason: str

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**self._asdict(), "hosts": list(self.hosts)}


Event = Union[Finding, Skipped, str]
Function = Callable[[Rank, Group], Iterator[Event]]


class Check(NamedTuple):
    """A check with the texts of its findings. `severity` is the worst. `looks`: what it looks for. `physical`: a container has nothing to look at."""

    id: str
    area: str
    severity: str
    why: str
    remedy: str
    command: str
    of: str
    physical: bool
    looks: str
    run: Function

    @property
    def once(self) -> bool:
        """Whether it is made once for the group."""
        return self.of == GROUP


#: The checks that are imported; judge.py has them in order.
REGISTERED: dict[str, Check] = {}


def check(
    name: str, area: str, severity: str, why: str = "", remedy: str = "", command: str = "", of: str = NODE, physical: bool = False, looks: str = ""
) -> Callable[[Function], Function]:
    """Register a check. A function with several of them names the check in what it yields; else it is the first one."""

    def register(run: Function) -> Function:
        below = {each.id: REGISTERED.pop(each.id) for each in list(REGISTERED.values()) if each.run is run}
        text = looks or " ".join((run.__doc__ or "").split())
        REGISTERED[name] = Check(name, area, severity, why, remedy, command, of, physical, text, run)
        REGISTERED.update(below)
        return run

    return register


def skip(reason: str, name: str = "", hosts: Sequence[str] = ()) -> Skipped:
    """Return that a check is not made, and why. The first reason counts."""
    return Skipped(name, "", tuple(hosts), reason)
