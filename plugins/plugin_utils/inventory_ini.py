# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the definitions of an inventory file in INI format with their lines, and what Ansible cannot read in it. Controller only.

Ansible's own parser has no line in its errors, and configparser refuses lines such as ``spark-1 ansible_host=…``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean

_PARTS = ("hosts", "children", "vars")
_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")


@dataclass
class Ini:
    """What a file defines: (kind, owner, key, line) as the index has it, (parent, child, line); and (line, what is wrong)."""

    entries: list[tuple[str, str, str, int]] = field(default_factory=list)
    children: list[tuple[str, str, int]] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)

    def groups(self) -> set[str]:
        """Return the groups that have a section of their own."""
        return {owner for kind, owner, key, _line in self.entries if kind == "group" and owner == key}


def is_ini(text: str) -> bool:
    """Report whether a text has sections, as no inventory in YAML has."""
    return re.search(r"^\s*\[[^\],]+\]\s*(?:#.*)?$", text, re.MULTILINE) is not None


def parse(text: str, known: Iterable[str] = ()) -> Ini:
    """Return what a file defines. `known` are the groups of other files of the inventory."""
    found = Ini()
    group, part = "ungrouped", "hosts"
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in ";#":
            continue
        if line.startswith("["):
            match = _SECTION.fullmatch(line)
            if match is None:
                found.faults.append((number, "is not the head of a section, expected [group], [group:children] or [group:vars], without spaces"))
                continue
            group, part = match[1], match[2] or "hosts"
            if part not in _PARTS:
                found.faults.append((number, f"the section is of the kind {part}, expected {', '.join(_PARTS[1:])}{did_you_mean(part, _PARTS)}"))
            elif part != "vars":
                found.entries.append(("group", group, group, number))
            continue
        if part == "hosts" and re.fullmatch(r"---|[^\s=]+:(?:\s*#.*)?", line):
            found.faults.append((number, "is YAML in a file that Ansible reads as INI; rename the file, such as to hosts.yml"))
            return found
        found.faults += [(number, text) for text in _line(found, group, part, line, number)]
    found.faults += _undefined(found, set(known))
    return found


def _line(found: Ini, group: str, part: str, line: str, number: int) -> Iterator[str]:
    """Add what a line defines, and yield what is wrong with it. No sentence contains a value."""
    if part == "vars":
        key, equals, _value = line.partition("=")
        if equals:
            found.entries.append(("group", group, key.strip(), number))
        else:
            yield "has no '=', expected NAME=VALUE below [group:vars]"
    elif part == "children":
        found.children.append((group, line.split()[0], number))
    elif part == "hosts":
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            yield "has a quotation mark that is not closed"
            return
        host = words[0]
        if host.endswith(":"):
            yield f"the name {host.rstrip(':')} ends with a colon, as in YAML; remove the colon, or rename the file, such as to hosts.yml"
            return
        found.entries += [("group", group, host, number), ("host", host, host, number)]
        if any(word.startswith("=") for word in words):
            yield f"after the host {host}, '=' has spaces next to it, expected NAME=VALUE; remove the spaces"
            return
        for word in words[1:]:
            key, equals, _value = word.partition("=")
            if equals:
                found.entries.append(("host", host, key, number))
            else:
                yield f"a word after the host {host} has no '=', expected NAME=VALUE; put a value with spaces in quotes"


def _undefined(found: Ini, before: set[str]) -> Iterator[tuple[int, str]]:
    """Groups that have members or variables and no section of their own, which Ansible refuses."""
    known = before | found.groups()
    for _parent, child, line in found.children:
        if child not in known:
            yield line, f"there is no section [{child}]{did_you_mean(child, known)}"
    lines = {owner: line for kind, owner, _key, line in reversed(found.entries) if kind == "group"}
    for group, line in lines.items():
        if group not in known | {"all", "ungrouped"} and group not in {child for _parent, child, _line in found.children}:
            yield line, f"there is no section [{group}], whose variables these are{did_you_mean(group, known)}"
