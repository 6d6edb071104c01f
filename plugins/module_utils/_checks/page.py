# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The report of a serving group: its verdict, the commands of the user's inventory, and the page for people. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import AREAS, Group, Skipped
from ansible_collections.gb10.cluster.plugins.module_utils._checks.judge import Verdict
from ansible_collections.gb10.cluster.plugins.module_utils._common.finding import INFO, Finding, clipped, counts, merged

Record = dict[str, Any]

SCHEMA = "gb10.cluster/doctor/2"
LINES = 60  # of a page
_STATES = {
    **dict.fromkeys(("serves", "busy"), "It serves"),
    **dict.fromkeys(("down", "unserved"), "It does not serve"),
    "starting": "It is starting",
    "recovering": "It does not serve, and its agent restores it",
    "stopped": "It is stopped on request",
    "absent": "It has never served",
    "unknown": "It is not known whether it serves",
}


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


def lines(data: Mapping[str, Any], more: str = "-e output=json") -> list[str]:
    """Return the page: verdict, findings worst first, what passed, what was not checked. Findings without room have one line, the last ones are counted.

    `more` is the option that prints all of it.
    """
    areas = [f"ok           {AREAS[area]:<12} {clipped(text)}" for area, text in data["passed"].items()]
    skipped: dict[str, list[str]] = {}
    for each in data["not_checked"]:
        skipped.setdefault(f"{', '.join(each['hosts'])}: {each['reason']}", []).append(AREAS[each["area"]])
    rest = [f"not checked  {', '.join(dict.fromkeys(names))} ({clipped(why)})" for why, names in skipped.items()]
    tail = [*areas, *rest[:8], *([f"not checked  {len(rest) - 8} more, see {more}"] if len(rest) > 8 else [])]
    room = LINES - len(tail) - 3
    body: list[str] = []
    findings = [Finding(**{**each, "hosts": tuple(each["hosts"])}) for each in data["findings"]]
    for later, finding in zip(range(len(findings) - 1, -1, -1), findings):
        block = finding.block()
        if len(body) + len(block) + min(later, 4) > room:
            block = [finding.title()]
        if len(body) + len(block) + (1 if later else 0) > room:
            body.append(f"and {later + 1} more, see {more}")
            break
        body += block
    return [verdict(data), *([""] if body else []), *body, *([""] if tail else []), *tail]
