# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC. Preflight of one serving group: the facts of all ranks in, findings out.

Controller only. No I/O, standard library only. `judge()` is the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._host.access import cause_of
from ansible_collections.gb10.cluster.plugins.module_utils._preflight import agent, docker, hardware, storage, versions
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.catalogue import ACCESS, CHECKS, SEVERITIES
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.findings import FindingCollector, Rank, Record, Requirements

RankCheck = Callable[[FindingCollector, Rank, Requirements], None]
GroupCheck = Callable[[FindingCollector, Sequence[Rank], Requirements], None]

# For each rank that answers.
RANK_CHECKS: tuple[RankCheck, ...] = (
    versions.check_python,
    versions.check_gb10,
    versions.check_update,
    versions.check_gpu,
    versions.check_known,
    hardware.check_kernel_log,
    hardware.check_fabric,
    hardware.check_wifi,
    hardware.check_exposure,
    docker.check_engine,
    docker.check_containers,
    docker.check_ports,
    storage.check_disks,
    storage.check_clock,
    agent.check_service,
    agent.check_sshd,
)
# For each of them that is not a container.
PHYSICAL_CHECKS: tuple[RankCheck, ...] = (versions.check_reboot, hardware.check_memory, hardware.check_suspend, docker.check_memlock, docker.check_gpu_devices)
GROUP_CHECKS: tuple[GroupCheck, ...] = (
    versions.check_parity,
    versions.check_clones,
    hardware.check_reachable_rails,
    docker.check_partial_group,
    agent.check_path,
)
NOT_READ = "the node was not read"
# Checks that compare ranks, and checks that only the head has.
COMPARED = frozenset(("firmware_parity", "fabric_neighbor", "machine_id", *(parity.check for parity in versions.PARITIES)))
OF_HEAD = frozenset(("ports_free", "api_open", "agent_path"))
NOT_IN_CONTAINER = (
    "memory_parity", "ota_parity", "reboot_pending", "kernel_parity", "firmware_parity", "known_bad_kernel", "known_bad_firmware", "kernel_log",
    *(check for check, _severity in hardware.MEMORY.values()), "memlock", "gpu_reload", "may_suspend", "machine_id",
)  # fmt: skip


def judge(ranks: Sequence[Rank], needs: Requirements, ignore: Iterable[str] = (), strict: bool = False) -> dict[str, list[Record]]:
    """Return {findings, ignored, not_checked} of one serving group; `strict` turns warnings into errors."""
    found = FindingCollector()
    for rank in ranks:
        _check_answer(found, rank)
    answered = [rank for rank in ranks if rank.in_run and not rank.failure and not rank.unreachable]
    for rank in answered:
        container = rank.facts["container"]
        if container:
            names = [*NOT_IN_CONTAINER, *(hardware.LINKS if needs.size > 1 else ())]
            found.skip(names, rank.host, f"a container ({container}) has the kernel, firmware, memory and links of its host")
        for check in (*RANK_CHECKS, *(() if container else PHYSICAL_CHECKS)):
            check(found, rank, needs)
    for group_check in GROUP_CHECKS:
        group_check(found, answered, needs)
    order = list(CHECKS)
    for entry in found.findings:
        if strict and entry["severity"] == "warning":
            entry["severity"] = "error"
    found.findings.sort(key=lambda entry: (SEVERITIES.index(entry["severity"]), order.index(entry["id"])))
    found.skipped.sort(key=lambda entry: order.index(entry["id"]))
    ignored = set(ignore)
    return {
        "findings": [entry for entry in found.findings if entry["id"] not in ignored],
        "ignored": [entry for entry in found.findings if entry["id"] in ignored],
        "not_checked": found.skipped,
    }


def has_run(check: str, hosts: Sequence[str], not_checked: Iterable[Mapping[str, Any]]) -> bool:
    """Tell whether a check ran on a host of the group, the head first; on two of them if it compares ranks."""
    without = {host for entry in not_checked if entry["id"] == check for host in entry["hosts"]}
    read = [host for host in hosts if host not in without]
    return read[:1] == list(hosts[:1]) if check in OF_HEAD else len(read) >= (2 if check in COMPARED else 1)


def _check_answer(found: FindingCollector, rank: Rank) -> None:
    """A rank that is not in the run, or whose facts could not be read."""
    text = next((line.strip() for line in rank.failure.splitlines() if line.strip()), "no reason given").rstrip(".")[:300]
    cause = cause_of(rank.failure)
    if not rank.in_run:
        found.skip(list(CHECKS), rank.host, "not in this run (--limit)")
        return
    if rank.unreachable or rank.failure:
        found.skip([check for check in CHECKS if check not in ACCESS], rank.host, NOT_READ)
    if cause and (rank.unreachable or rank.failure):
        found.add(cause.check, "error", rank.host, f"its facts could not be read: {text}", cause.matters, cause.remedy)
    elif rank.unreachable:
        found.add("reachable", "error", rank.host, f"it cannot be reached: {text}", remedy=rank.remedy)
    elif rank.failure:
        found.add("reachable", "error", rank.host, f"its facts could not be read: {text}", remedy="run again with -vvv for this host")


def unknown_ids(names: Iterable[str]) -> list[str]:
    """Return a sentence for each name that is not the ID of a check, with the nearest ID."""
    hints = ((name, did_you_mean(name, CHECKS, 0.5) or f"; known are {', '.join(CHECKS)}") for name in names if name not in CHECKS)
    return [f"preflight_ignore has {name!r}, which is not a check{hint}" for name, hint in hints]
