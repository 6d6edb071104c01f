# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Something that is wrong: what, where, why it matters and what to do. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

ERROR, WARNING, INFO = SEVERITIES = ("error", "warning", "info")
CLIP = 400  # characters of a text in block()


class Finding(NamedTuple):
    """A finding on one host or several. The texts have no full stop at the end. `command` is to be copied."""

    id: str
    area: str
    severity: str
    hosts: tuple[str, ...]
    found: str
    why: str = ""
    remedy: str = ""
    command: str = ""

    def data(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {**self._asdict(), "hosts": list(self.hosts)}

    @property
    def where(self) -> str:
        """Severity, ID and hosts, with which each text begins."""
        return f"{self.severity} {self.id} ({', '.join(self.hosts)}): "

    def line(self) -> str:
        """Return the finding as one paragraph."""
        return f"{self.where}{_capital(self.found)}. Why it matters: {self.why}. Remedy: {self.remedy}."

    def title(self) -> str:
        """Return the finding in one line."""
        return self.where + clipped(self.found)

    def block(self) -> list[str]:
        """Return the finding with each text in a line of its own."""
        rows = (("why", clipped(self.why)), ("do", clipped(self.remedy)), ("run", self.command))
        return [self.title(), *(f"    {name + ':':<5}{text}" for name, text in rows if text)]


def found(text: str, remedy: str = "", why: str = "", severity: str = "", name: str = "", hosts: Sequence[str] = (), command: str = "") -> Finding:
    """Return what a reader or a check found; its check in _checks has the texts that are empty, and where it was found has the hosts."""
    return Finding(name, "", severity, tuple(hosts), text, why, remedy, command)


Entry = TypeVar("Entry", bound=Any)  # a NamedTuple with `hosts`


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries in their order; those that differ in their hosts only become one."""
    hosts_of: dict[Entry, dict[str, None]] = {}
    for entry in entries:
        hosts_of.setdefault(entry._replace(hosts=()), {}).update(dict.fromkeys(entry.hosts))
    return [entry._replace(hosts=tuple(hosts)) for entry, hosts in hosts_of.items()]


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Return the number of findings of each severity."""
    shown = [finding.severity for finding in findings]
    return {severity: shown.count(severity) for severity in SEVERITIES}


def clipped(text: str) -> str:
    """Return a text as one line of bounded length."""
    text = " ".join(text.split())
    return text if len(text) <= CLIP else f"{text[: CLIP - 4]} ..."


def _capital(text: str) -> str:
    """Capitalize the first word, unless it is the name of a device or a host."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+\b(?!-\w*\d)", text) else text
