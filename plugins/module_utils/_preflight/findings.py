# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the checks receive and return: ranks, requirements, findings and skipped checks. Sizes are GiB (`_gib`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.catalogue import ACCESS, CHECKS

Record = dict[str, Any]


class Requirements(NamedTuple):
    """What the serving group requires of its nodes; sizes in GiB, 0 if unknown."""

    group: str = ""
    size: int = 2
    require_gb10: bool = False
    head_ports: Mapping[int, str] = {}
    open_port: int = 0
    model_gib: float = 0.0
    image_gib: float = 0.0
    image: str = ""
    free_gib: float = 5.0
    clock_skew_seconds: float = 5.0
    known: Sequence[Mapping[str, Any]] = ()


class Rank(NamedTuple):
    """One rank: its host, and what preflight_info returned or how it failed."""

    host: str
    rank: int
    facts: Mapping[str, Any]
    failure: str = ""
    unreachable: bool = False
    in_run: bool = True
    remedy: str = ""  # what to do about a node that is not reached


class FindingCollector:
    """Findings {id, severity, hosts, found, matters, remedy} and skips {id, hosts, reason}. Equal entries of several hosts become one."""

    def __init__(self) -> None:
        self.findings: list[Record] = []
        self.skipped: list[Record] = []

    def add(self, check: str, severity: str, hosts: str | Sequence[str], found: str, matters: str = "", remedy: str = "") -> None:
        """Add a finding; `matters` and `remedy` replace those of the catalogue."""
        texts = CHECKS[check]
        entry = {"id": check, "severity": severity, "found": found, "matters": matters or texts.matters, "remedy": remedy or texts.remedy}
        _merge(self.findings, entry, hosts)

    def skip(self, checks: Sequence[str], host: str, reason: str) -> None:
        """Note checks that cannot be made on a host, and why. The first reason counts."""
        known = {entry["id"] for entry in self.skipped if host in entry["hosts"]}
        for check in checks:
            if check not in known:
                _merge(self.skipped, {"id": check, "reason": reason}, host)


def _merge(entries: list[Record], entry: Record, hosts: str | Sequence[str]) -> None:
    names = [hosts] if isinstance(hosts, str) else list(hosts)
    for other in entries:
        if all(other[key] == value for key, value in entry.items()):
            other["hosts"] += [host for host in names if host not in other["hosts"]]
            return
    entries.append(entry | {"hosts": names})


def block(finding: Mapping[str, Any]) -> str:
    """Return a finding as a paragraph."""
    return (
        f"{finding['severity']} {finding['id']} ({', '.join(finding['hosts'])}): {_capital(finding['found'])}. "
        f"Why it matters: {finding['matters'].rstrip('.')}. Remedy: {finding['remedy'].rstrip('.')}."
    )


def _capital(text: str) -> str:
    """Capitalize the first word, unless it is the name of a device or a host."""
    text = text.rstrip(".")
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+\b(?!-\w*\d)", text) else text


def skipped_lines(skipped: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each reason: which checks were skipped, and on which hosts."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for entry in skipped:
        by_reason.setdefault((entry["reason"], ", ".join(entry["hosts"])), []).append(entry["id"])
    whole = {frozenset(CHECKS): "all checks", frozenset(CHECKS) - set(ACCESS): "all other checks"}
    return [f"skipped ({hosts}): {whole.get(frozenset(names)) or ', '.join(names)}: {reason}." for (reason, hosts), names in by_reason.items()]
