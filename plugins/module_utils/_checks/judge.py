# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC. Run the checks of one serving group: what was read of all ranks in, findings out. Report them: as data, and as a page for people.

No I/O, standard library only. `judge()` is the entry.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._checks import docker, engine, fabric, machine, versions
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import ACCESS, AREAS, HEAD, PAIR, PREFLIGHT, REGISTERED, Check, Group, Rank, Skipped
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import ERROR, INFO, SEVERITIES, WARNING, Finding, clipped, counts, merged

_MODULES = [each.__name__ for each in (machine, versions, fabric, docker, engine)]
#: All checks in the order of the reports, and the IDs of those that preflight makes.
CHECKS: dict[str, Check] = {each.id: each for each in sorted(REGISTERED.values(), key=lambda each: _MODULES.index(each.run.__module__))}
_COUNTED = ("nodes", "versions", "docker", "fabric", "memory")
IDS = tuple(each.id for each in CHECKS.values() if each.of in PREFLIGHT)
Record = dict[str, Any]

SCHEMA = "gb10.cluster/doctor/2"
_STATES = {
    **dict.fromkeys(("serves", "busy"), "It serves"),
    **dict.fromkeys(("down", "unserved"), "It does not serve"),
    "starting": "It is starting",
    "recovering": "It does not serve, and its agent restores it",
    "stopped": "It is stopped on request",
    "absent": "It has never served",
    "unknown": "It is not known whether it serves",
}


class Verdict(NamedTuple):
    """What the checks found. `ignored`: findings of checks that the user ignores. `passed`: figures by area."""

    findings: list[Finding]
    ignored: list[Finding]
    skipped: list[Skipped]
    passed: dict[str, list[str]]

    def data(self) -> dict[str, list[dict[str, Any]]]:
        """Return what was found for JSON."""
        return {
            "findings": [each.data() for each in self.findings],
            "ignored": [each.data() for each in self.ignored],
            "not_checked": [each.data() for each in self.skipped],
        }


def judge(group: Group, ignore: Iterable[str] = (), strict: bool = False, preflight: bool = True) -> Verdict:
    """Make the checks of preflight, or all; `strict` turns warnings into errors."""
    made = [each for each in CHECKS.values() if each.of in PREFLIGHT or not preflight]
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    passed: dict[str, list[str]] = {area: [] for area in AREAS}
    for run in dict.fromkeys(each.run for each in made):
        own = [each for each in made if each.run is run]
        for event in _events(own, group):
            if isinstance(event, Finding):
                findings.append(event._replace(severity=ERROR) if strict and event.severity == WARNING else event)
            elif isinstance(event, Skipped):
                skipped.append(event)
            else:
                passed[own[0].area].append(event.rstrip("."))
    areas, order, ignored = list(AREAS), list(CHECKS), set(ignore)
    ordered = sorted(merged(findings), key=lambda each: (SEVERITIES.index(each.severity), areas.index(each.area)))
    for area in () if preflight else _COUNTED:
        number = sum(each.area == area and has_run(each, group.hosts, skipped) for each in made if each.of in PREFLIGHT)
        passed[area][:0] = [f"{number} check{'s' if number > 1 else ''}"] if number else []
    return Verdict(
        [each for each in ordered if each.id not in ignored],
        [each for each in ordered if each.id in ignored],
        sorted(merged(skipped), key=lambda each: order.index(each.id)),
        passed,
    )


def _events(own: Sequence[Check], group: Group) -> Iterator[Finding | Skipped | str]:
    """Call the function of some checks, and yield what it yields with the texts of its check. What a rank makes impossible is skipped."""
    for check in own:
        for rank in group.ranks:
            reason = _impossible(check, rank)
            if reason:
                yield Skipped(check.id, check.area, (rank.host,), reason)
    of, once = own[0].of, own[0].once
    for rank in group.ranks[:1] if once or of == HEAD else group.ranks:
        if of not in PREFLIGHT or (not rank.absent if of == ACCESS else rank.read):
            impossible = {check.id for check in own if _impossible(check, rank)}
            for event in own[0].run(rank, group):
                named = event if isinstance(event, str) else _completed(event, own[0], group.hosts if once else (rank.host,))
                if isinstance(named, str) or named.id not in impossible:
                    yield named


def _impossible(check: Check, rank: Rank) -> str:
    """Return why a check of preflight is not made on a rank; empty if it is."""
    if check.of not in PREFLIGHT or (check.of == ACCESS and not rank.absent):
        return ""
    if check.physical and rank.container:
        return f"a container ({rank.container}) has the kernel, firmware, memory and links of its host"
    return "" if rank.read else rank.not_read


def _completed(event: Finding | Skipped, first: Check, hosts: Sequence[str]) -> Finding | Skipped:
    """Return a finding or a skipped check with ID, area, hosts and texts. A finding with an area has its own."""
    check, where = CHECKS.get(event.id, first), event.hosts or tuple(hosts)
    if isinstance(event, Skipped):
        return event._replace(id=check.id, area=check.area, hosts=where)
    event = event._replace(found=event.found.rstrip("."), hosts=where)
    if event.area:
        return event
    return Finding(
        check.id,
        check.area,
        event.severity or check.severity,
        where,
        event.found,
        (event.why or check.why).rstrip("."),
        (event.remedy or check.remedy).rstrip("."),
        event.command or check.command,
    )


def has_run(check: Check, hosts: Sequence[str], skipped: Iterable[Skipped]) -> bool:
    """Tell whether a check ran on a host of the group, the head first; on two of them if it compares ranks."""
    without = {host for each in skipped if each.id == check.id for host in each.hosts}
    read = [host for host in hosts if host not in without]
    return read[:1] == list(hosts[:1]) if check.of == HEAD else len(read) >= (2 if check.of == PAIR else 1)


class Places:
    """How the user runs playbooks, and reaches the nodes."""

    def __init__(self, inventory: Sequence[str], checkout: bool, ssh: Mapping[str, Sequence[str]]) -> None:
        """`ssh` has for each host the words of ssh, such as USER@ADDRESS, empty for a node that is the controller itself."""
        option = "".join(f" -i {shlex.quote(each)}" for each in inventory)
        run = "ansible-playbook"
        self.words = {
            "site": f"{run} site.yml{option}" if checkout else f"{run} gb10.cluster.site{option}",
            "play": f"{run} playbooks/" if checkout else f"{run} gb10.cluster.",
            "end": f".yml{option}" if checkout else option,
        }
        self.ssh = ssh

    def on(self, host: str, sudo: bool = False) -> str:
        """Return the start of a command that runs on a node; empty for the controller. sudo can ask for a password, for which it needs a terminal."""
        return shlex.join(["ssh", *(["-t"] if sudo else []), *self.ssh[host]]) if self.ssh.get(host) else ""

    def command(self, template: str, hosts: Sequence[str], group: Sequence[str]) -> str:
        """Return the command to copy, for the first of several hosts of a group."""
        sudo, head = "sudo " in template, group[0]
        words = {"on": self.on(hosts[0] if hosts else head, sudo), "head": self.on(head, sudo), "group": shlex.quote(",".join(group)), **self.words}
        filled = re.sub(r"\{(\w+)\}", lambda m: words.get(m[1], m[0]), template).strip()
        # Without ssh, what is quoted for it is the line itself.
        bare = re.fullmatch(r"'([^']*)'", filled)
        return bare[1] if bare else filled


def report(group: Group, found: Verdict, places: Places, time: str) -> Record:
    """Return the report as data."""
    findings = [each._replace(command=places.command(each.command, each.hosts, group.hosts)) for each in found.findings]
    seen = {each.area for each in findings if each.severity != INFO}
    unread = merged(Skipped("", each.area, each.hosts, each.reason) for each in found.skipped)
    return {
        "schema": SCHEMA,
        "time": time,
        "group": group.name,
        "hosts": list(group.hosts),
        "state": group.status["state"],
        "sentence": group.status["sentence"],
        "counts": counts(findings),
        "findings": [each.data() for each in findings],
        "passed": {area: "; ".join(texts) for area, texts in found.passed.items() if texts and area not in seen},
        "not_checked": [{"area": each.area, "hosts": list(each.hosts), "reason": each.reason} for each in unread],
    }


def verdict(data: Mapping[str, Any]) -> str:
    """Return the verdict in one sentence."""
    number = data["counts"]
    parts = [f"{number[name]} {name}{'' if number[name] == 1 else 's'}" for name in ("error", "warning") if number[name]]
    parts += [f"{number['info']} for information"] if number["info"] else []
    return f"{data['group']}: {', '.join(parts) or 'no problem found'}. {_STATES[data['state']]}."


def lines(data: Mapping[str, Any]) -> list[str]:
    """Return the page: verdict, findings worst first, what passed, what was not checked."""
    body = [line for each in data["findings"] for line in Finding(**{**each, "hosts": tuple(each["hosts"])}).block()]
    tail = [f"ok           {AREAS[area]:<12} {clipped(text)}" for area, text in data["passed"].items()]
    skipped: dict[str, list[str]] = {}
    for each in data["not_checked"]:
        skipped.setdefault(f"{', '.join(each['hosts'])}: {each['reason']}", []).append(AREAS[each["area"]])
    tail += [f"not checked  {', '.join(dict.fromkeys(names))} ({clipped(why)})" for why, names in skipped.items()]
    return [verdict(data), *([""] if body else []), *body, *([""] if tail else []), *tail]
