# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The report of a serving group: its verdict, the commands of the user's inventory, and the page for people. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._doctor.commands import AREAS
from ansible_collections.gb10.cluster.plugins.module_utils._doctor.findings import Findings

Record = dict[str, Any]

SCHEMA = "gb10.cluster/doctor/1"
LINES = 60  # of a page
CLIP = 400  # characters of a text on the page
_STATES = {
    **dict.fromkeys(("serves", "busy"), "It serves"),
    **dict.fromkeys(("down", "unserved"), "It does not serve"),
    "starting": "It is starting",
    "stopped": "It is stopped on request",
    "absent": "It has never served",
    "unknown": "It is not known whether it serves",
}


class Places:
    """How the user runs playbooks, and reaches the nodes."""

    def __init__(self, inventory: Sequence[str], checkout: bool, ssh: Mapping[str, Sequence[str]]) -> None:
        """`ssh` has for each host the words of ssh, such as USER@ADDRESS, empty for a node that is the controller itself."""
        option = " ".join(f"-i {shlex.quote(each)}" for each in inventory)
        run = "ansible-playbook"
        self.words = {
            "site": f"{run} site.yml {option}" if checkout else f"{run} gb10.cluster.site {option}",
            "play": f"{run} playbooks/" if checkout else f"{run} gb10.cluster.",
            "end": f".yml {option}" if checkout else f" {option}",
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


def report(findings: Findings, places: Places, time: str) -> Record:
    """Return the report as data."""
    found = [{**each, "command": places.command(each["command"], each["where"], findings.hosts)} for each in findings.found]
    seen = {each["area"] for each in found if each["severity"] != "info"}
    passed = {area: "; ".join(texts) for area, texts in findings.passed.items() if texts and area not in seen}
    errors, warnings, infos = (sum(each["severity"] == severity for each in found) for severity in ("error", "warning", "info"))
    return {
        "schema": SCHEMA,
        "time": time,
        "group": findings.group.name,
        "hosts": list(findings.hosts),
        "state": findings.status["state"],
        "sentence": findings.status["sentence"],
        "counts": {"error": errors, "warning": warnings, "info": infos},
        "findings": found,
        "passed": passed,
        "not_checked": list(findings.skipped),
    }


def verdict(data: Mapping[str, Any]) -> str:
    """Return the verdict in one sentence."""
    counts = data["counts"]
    parts = [f"{number} {name}{'' if number == 1 else 's'}" for name, number in (("error", counts["error"]), ("warning", counts["warning"])) if number]
    parts += [f"{counts['info']} for information"] if counts["info"] else []
    return f"{data['group']}: {', '.join(parts) or 'no problem found'}. {_STATES[data['state']]}."


def _clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= CLIP else f"{text[: CLIP - 4]} ..."


def _block(finding: Mapping[str, Any]) -> list[str]:
    """Return a finding with all that a person needs."""
    rows = [("why", finding["matters"]), ("do", finding["remedy"]), ("run", finding["command"])]
    return [_title(finding), *(f"    {name + ':':<5}{text if name == 'run' else _clipped(text)}" for name, text in rows if text)]


def _title(finding: Mapping[str, Any]) -> str:
    return f"{finding['severity']} {finding['id']} ({', '.join(finding['where'])}): {_clipped(finding['found'])}"


def lines(data: Mapping[str, Any]) -> list[str]:
    """Return the page: verdict, findings worst first, what passed, what was not checked. Findings without room have one line, the last ones are counted."""
    areas = [f"ok           {AREAS[area]:<12} {_clipped(text)}" for area, text in data["passed"].items()]
    skipped: dict[str, list[str]] = {}
    for each in data["not_checked"]:
        skipped.setdefault(f"{', '.join(each['where'])}: {each['reason']}", []).append(AREAS[each["area"]])
    rest = [f"not checked  {', '.join(dict.fromkeys(names))} ({_clipped(why)})" for why, names in skipped.items()]
    tail = [*areas, *rest[:8], *([f"not checked  {len(rest) - 8} more, see -e output=json"] if len(rest) > 8 else [])]
    room = LINES - len(tail) - 3
    body: list[str] = []
    found = list(data["findings"])
    for number, finding in enumerate(found):
        block, later = _block(finding), len(found) - number - 1
        if len(body) + len(block) + min(later, 4) > room:
            block = [_title(finding)]
        if len(body) + len(block) + (1 if later else 0) > room:
            body.append(f"and {later + 1} more, see -e output=json")
            break
        body += block
    return [verdict(data), *([""] if body else []), *body, *([""] if tail else []), *tail]
