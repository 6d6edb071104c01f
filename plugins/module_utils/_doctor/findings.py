# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the readers returned of all ranks of one serving group, as findings. Pure.

A finding is {id, area, severity, where (hosts), found, matters, remedy, command}. The texts have no full stop at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.kernel import KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._doctor import kernel, power
from ansible_collections.gb10.cluster.plugins.module_utils._doctor.commands import AREAS, OWN, PREFLIGHT
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.catalogue import SEVERITIES
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.checks import NOT_READ, has_run
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.hardware import FABRIC
from ansible_collections.gb10.cluster.plugins.module_utils._release import release
from ansible_collections.gb10.cluster.plugins.module_utils._release.group import group_status

Record = dict[str, Any]

#: state of the group -> (ID, severity); the others are healthy
_STATES = {
    "starting": ("engine_starting", "info"),
    "stopped": ("engine_stopped", "info"),
    "absent": ("engine_absent", "info"),
    "unserved": ("engine_unserved", "error"),
    "unknown": ("engine_unknown", "error"),
    "down": ("engine_down", "error"),
}
FINE = ("serves", "busy")
_ROLES = ("sysctl", "readahead", "gpu", "docker")


class Rank(NamedTuple):
    """One rank: its host, and what each reader returned; {} for one that did not run."""

    host: str
    node: Mapping[str, Any]  # doctor_info
    facts: Mapping[str, Any]  # preflight_info
    info: Mapping[str, Any]  # vllm_rank_info
    log: Mapping[str, Any]  # vllm_boot_log_info
    repairs: Sequence[str]  # release_repairs
    settings: Mapping[str, Mapping[str, Any]]  # by role, what it returned in check mode


class Group(NamedTuple):
    """A serving group: its ranks, the head first, and what was read once for all of them."""

    name: str
    ranks: Sequence[Rank]
    preflight: Mapping[str, Sequence[Mapping[str, Any]]]  # findings, ignored, not_checked
    liveness: Mapping[str, Any]
    named: str  # the release that the inventory describes; empty if it was not rendered
    bandwidth: Mapping[str, Mapping[str, Any]]  # by host, what the test returned
    collective: Mapping[str, Any]
    bandwidth_not: str = ""  # why the bandwidth test that was asked for did not run


def _merge(entries: list[Record], new: Record) -> None:
    """Add an entry, or its hosts to an equal one. `where` is a host, or several."""
    hosts = [new["where"]] if isinstance(new["where"], str) else list(new["where"])
    same = next((each for each in entries if {**each, "where": new["where"]} == new), None)
    if same is None:
        entries.append({**new, "where": hosts})
    else:
        same["where"] += [host for host in hosts if host not in same["where"]]


class Findings:
    """Collects findings, what was not checked, and the figures of the areas."""

    def __init__(self, group: Group) -> None:
        """Judge all areas."""
        self.group = group
        self.hosts = [rank.host for rank in group.ranks]
        self.found: list[Record] = []
        self.skipped: list[Record] = []
        self.passed: dict[str, list[str]] = {area: [] for area in AREAS}
        infos = [rank.info for rank in group.ranks]
        self.status = group_status(infos, group.name, self.hosts, group.liveness, group.ranks[0].log if group.ranks else {})
        for judge in (self.of_preflight, self.of_fabric, self.of_power, self.of_engine, self.of_boot, self.of_kernel, self.of_drift):
            judge()
        areas = list(AREAS)
        self.found.sort(key=lambda each: (SEVERITIES.index(each["severity"]), areas.index(each["area"])))

    def add(self, name: str, severity: str, where: str | Sequence[str], found: str, remedy: str = "", **more: str) -> None:
        """Add a finding. Equal ones of several hosts become one."""
        area, command, matters = OWN.get(name) or (*PREFLIGHT.get(name, ("kernel", "")), "")
        entry = {"id": name, "area": area, "severity": severity, "found": found.rstrip("."), "matters": matters, "remedy": remedy.rstrip(".")}
        entry |= {"command": command, **more}
        _merge(self.found, {**entry, "where": where})

    def skip(self, area: str, where: str | Sequence[str], reason: str) -> None:
        """Note what was not checked."""
        _merge(self.skipped, {"area": area, "where": where, "reason": reason})

    def of_preflight(self) -> None:
        """The checks of preflight. The kernel log is left to the journal where that was read."""
        journal = {rank.host for rank in self.group.ranks if rank.node and "this boot" not in rank.node["kernel"]["skipped"]}
        for entry in self.group.preflight.get("findings", ()):
            hosts = [host for host in entry["hosts"] if entry["id"] != "kernel_log" or host not in journal]
            if hosts:
                self.add(entry["id"], entry["severity"], hosts, entry["found"], entry["remedy"], matters=entry["matters"])
        not_checked = self.group.preflight.get("not_checked", ())
        for area in ("nodes", "versions", "docker", "fabric", "memory"):
            number = sum(where == area and has_run(name, self.hosts, not_checked) for name, (where, _command) in PREFLIGHT.items())
            self.passed[area] += [f"{number} check{'s' if number > 1 else ''}"] if number else []
        read = {rank.host for rank in self.group.ranks if rank.node}
        for entry in not_checked:
            # Without the node's own log there is no power and no boot log either.
            areas = ("kernel", "power", "boot") if entry["id"] == "kernel_log" else (PREFLIGHT[entry["id"]][0],)
            hosts = [host for host in entry["hosts"] if entry["id"] != "kernel_log" or host not in read]
            for area in areas if hosts else ():
                self.skip(area, hosts, entry["reason"])

    def of_fabric(self) -> None:
        """The rails of a group that was set up, and the tests that were asked for."""
        for rank in self.group.ranks:
            fabric = rank.facts.get("fabric") or {}
            up = [rail for rail in fabric.get("rails") or () if rail.get("carrier")]
            if up:
                self.passed["fabric"].append(f"{rank.host}: {len(up)} rails up")
            cables = {"no_cable", "link_down", "interface_missing", "rail_unplaced"} & {problem["id"] for problem in fabric.get("problems") or ()}
            for problem in fabric.get("problems") or () if rank.info.get("current") and not cables and not rank.facts.get("container") else ():
                if problem["id"] not in FABRIC:
                    self.add("roce_problem", "warning", rank.host, f"{problem['id']}: {problem['message']}", problem["remedy"])
        for host, measured in self.group.bandwidth.items():
            text = str(measured.get("message") or measured.get("msg") or "no result").rstrip(".")
            if measured.get("bandwidth_class") == "healthy" and not measured.get("failed"):
                self.passed["fabric"].append(text)
            else:
                self.add("bandwidth", "warning", host, text, str(measured.get("remedy") or ""))
        if self.group.bandwidth_not:
            self.skip("fabric", self.hosts, f"bandwidth test: {self.group.bandwidth_not}")
        tested = self.group.collective
        if tested.get("skipped"):
            self.skip("fabric", self.hosts, f"collective test: {tested['skipped']}")
        elif tested.get("class"):
            self.add("collective", "error" if tested.get("failed") else "warning", self.hosts, str(tested.get("msg")))
        elif tested:
            self.passed["fabric"].append(str(tested.get("msg")).rstrip("."))

    def of_power(self) -> None:
        """Power, clocks and temperatures."""
        for rank in self.group.ranks:
            if not rank.node:
                continue
            for name, text in power.problems(rank.node["gpus"], rank.node["zones"]):
                self.add(name, "warning", rank.host, text)
            figures = power.shown(rank.node["gpus"], rank.node["zones"])
            if figures:
                self.passed["power"].append(f"{rank.host}: {figures}")
            if rank.node["gpu_error"]:
                self.skip("power", rank.host, rank.node["gpu_error"])

    def of_engine(self) -> None:
        """Whether the group serves, as status.yml judges it, and what holds its agent."""
        state, sentence = self.status["state"], str(self.status["sentence"])
        name, severity = _STATES.get(state, ("", ""))
        if self.group.liveness.get("outcome") == "wedged" and state == "down":
            name = "engine_wedged"
        if name:
            self.add(name, "info" if self.status["ok"] else severity, self.hosts, sentence)
        else:
            self.passed["engine"].append(sentence.rstrip("."))
        for rank in self.group.ranks:
            memory = rank.info.get("memory") or {}
            if memory.get("available_kib"):
                available, free = (memory[f"{key}_kib"] / 2**20 for key in ("available", "free"))
                self.passed["memory"].append(f"{rank.host}: {available:.0f} GiB available, {free:.0f} GiB free")
            agent = (rank.info.get("agent") or {}).get("state") or {}
            for hold in agent.get("holds") or ():
                self.add("agent_hold", "warning", rank.host, f"hold {hold['name']}: {hold['reason']}")
            watch = agent.get("watch") or {}
            number = sum((watch.get("restarts") or {}).values())
            if number:
                last = (watch.get("last") or watch.get("fault") or {}).get("text")
                severity = "info" if self.status["state"] in FINE else "warning"
                self.add("restarts", severity, rank.host, f"the agent has restarted the group {number} time(s){f', last because {last}' if last else ''}")

    def of_boot(self) -> None:
        """The verdict of the last boot, and the boot logs of the containers, or of the newest evidence."""
        head = self.group.ranks[0]
        serves = self.status["state"] in FINE
        severity = "warning" if serves else "error"
        outcome = ((head.info.get("agent") or {}).get("state") or {}).get("outcome") or {}
        verdict = outcome.get("verdict") or {}
        judged = verdict and not verdict.get("passed", True)
        if judged:
            place = (verdict.get("finding") or {}).get("host")
            self.add("boot_failed", severity, place if place in self.hosts else self.hosts, str(verdict.get("msg") or outcome.get("sentence") or "no sentence"))
        receipt = head.info.get("receipt") or {}
        if receipt.get("passed"):
            self.passed["boot"].append(f"release {receipt.get('release')} passed its gate at {receipt.get('time')}")
        for rank in self.group.ranks:
            kept = rank.node.get("boot") or {}
            kept = {} if rank.info.get("containers") or rank.info.get("stopped") or not kept.get("label") else kept
            log = rank.log or kept
            failure = log.get("failure")
            if failure and failure["class"] != verdict.get("class"):
                where = f" (evidence {kept['label']})" if kept else ""
                self.add("boot_log", severity, rank.host, f"{failure['class']}: {failure['line']}{where}", str(failure.get("remedy") or ""))
            elif log.get("state") and not failure:
                # The log of a worker does not show when it is ready.
                self.passed["boot"].append(f"{rank.host}: {log['state'] if rank is head else 'no failure'}")
            elif not log and not judged and "containers" in rank.info:
                self.skip("boot", rank.host, "no container and no evidence has a boot log")

    def of_kernel(self) -> None:
        """The kernel logs of this boot and of the one before."""
        for rank in self.group.ranks:
            logs = rank.node.get("kernel")
            if not logs:
                continue
            for event in logs["events"]:
                kind = KINDS[event["id"]]
                old = event["boot"] < 0
                text = f"{kind.found}{' in the previous boot' if old else ''}: {event['count']} line(s), the last at {event['last'] or 'unknown'}"
                more = {"matters": kind.matters, "command": kernel.command_of(kind).replace("{boot}", str(event["boot"])), "area": "kernel"}
                self.add(event["id"], "warning" if old else kind.severity, rank.host, f"{text}: {event['line']}", **more)
            if logs["unclean"]:
                text = f"the previous boot ended without a shutdown, its last message is of {logs['unclean']}"
                self.add("unclean_end", "warning", rank.host, text)
            for boot, reason in logs["skipped"].items():
                both = len(set(logs["skipped"].values())) < len(logs["skipped"])
                self.skip("kernel", rank.host, reason if both else f"{boot}: {reason}")
            read = 2 - len(logs["skipped"])
            if read:
                self.passed["kernel"].append(f"{rank.host}: {read} boot{'s' if read > 1 else ''}")

    def of_drift(self) -> None:
        """How the nodes differ from the release that is current, and the inventory from both."""
        current = {str(rank.info.get("current") or "") for rank in self.group.ranks if rank.info} - {""}
        if not current:
            read = [rank.host for rank in self.group.ranks if "current" in rank.info]
            self.skip("drift", read or self.hosts, "no release is current" if read else NOT_READ)
            return
        named = self.group.named
        if named and current != {named}:
            self.add("release_differs", "warning", self.hosts, f"release {', '.join(sorted(current))} is current, and the inventory describes {named}")
        elif named:
            self.passed["drift"].append(f"release {named} is the one of the inventory")
        else:
            unread = any("current" not in rank.info for rank in self.group.ranks)
            self.skip("drift", self.hosts, f"the release was not rendered{', because a rank was not read' if unread else ''}")
        lacks = [rank.host for rank in self.group.ranks if rank.info.get("current") == ""]
        if lacks:
            self.add("release_files", "warning", lacks, "no release is current, although another rank has one")
        for rank in self.group.ranks:
            for phrase in rank.repairs if named and current == {named} else ():
                self.add("release_files", "warning", rank.host, phrase)
            moved = release.moved_tag(rank.info)
            if moved:
                self.add("image_moved", "warning", rank.host, moved)
            differ = list(rank.info.get("weights_differ") or ())
            if differ:
                more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
                self.add("weights_differ", "warning", rank.host, "; ".join(differ[:3]) + more)
            for role in _ROLES:
                result = rank.settings.get(role) or {}
                changes = [str(each) for each in result.get("changes") or ()]
                if result.get("failed"):
                    self.skip("drift", rank.host, f"settings of the role {role}: {str(result.get('msg') or 'no message').rstrip('.')[:160]}")
                elif changes:
                    self.add(f"settings_{role}", "warning", rank.host, "; ".join(changes[:4]) + (f" and {len(changes) - 4} more" if len(changes) > 4 else ""))
        infos = [rank.info for rank in self.group.ranks if rank.info.get("releases")]
        hosts = [rank.host for rank in self.group.ranks if rank.info.get("releases")]
        if len(current) == 1:
            judged = release.judged_receipt(infos, next(iter(current)))
            for sentence in release.lost_ways(infos, hosts, next(iter(current)), judged):
                self.add("no_way_back", "info", hosts, sentence)
