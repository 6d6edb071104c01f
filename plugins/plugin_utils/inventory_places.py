# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the place of each fault of an inventory: file, line and key, from the origin that Ansible stores with keys and values. Controller only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible._internal._datatag._tags import Origin  # since core 2.19; not public, and used in this file only
from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import ROOT_GROUP, Fault, Place

EXTRA = "the extra variables (-e)"
ROLES = Path(__file__).resolve().parents[2] / "roles"
# (file, line); the line is 0 if only the file is known
At = tuple[str, int]


@dataclass(frozen=True)
class Located:
    """A fault with the place to change; ``line`` is 0 if only the file is known."""

    file: str
    line: int
    key: str
    text: str
    example: bool = False
    warning: bool = False

    def sentence(self) -> str:
        """Return the fault as one sentence."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.text}"


def summary(found: Sequence[Located], what: str = "The inventory") -> str:
    """Return the faults for a person, numbered."""
    listed = "".join(f"\n{number}. {each.sentence()}" for number, each in enumerate(found, 1))
    return f"{what} has {len(found)} fault{'s' if len(found) != 1 else ''}; no host was touched.{listed}"


def origin_of(value: Any) -> At | None:
    """Return the file and the line of a key or a value; None if it is from no file."""
    origin = Origin.get_tag(value)
    return (origin.path, origin.line_num or 0) if origin and origin.path else None


def definition(variables: Mapping[str, Any], key: str, below: Sequence[str | int] = ()) -> At | None:
    """Return where a variable is set, or a part of its value, or the nearest part above it that a file has.

    A boolean and a null have no origin, and of two files with the same key, the key has that of the file that Ansible reads first.
    """
    found, value = None, variables
    for step in (key, *below):
        if isinstance(value, Mapping):
            name = next((each for each in value if str(each) == str(step)), None)
            if name is None:
                break
            value = value[name]
            at, head = origin_of(value), origin_of(name)
            in_key = head and (not at or (at[0] == head[0] and isinstance(value, (Mapping, list)) and 0 <= at[1] - head[1] <= 1))
            found = (head if in_key else at) or found
        elif isinstance(value, (list, tuple)) and isinstance(step, int) and step < len(value):
            value = value[step]
            found = origin_of(value) or found
        else:
            break
    return found


@dataclass
class Places:
    """The places of the definitions of one inventory.

    :param groups: group name to host names, as Ansible has them: a name has its origin.
    :param raw: variables of each host, before templates are resolved.
    :param extra: the extra variables of the command line, which win over every file.
    """

    sources: Sequence[str]
    groups: Mapping[str, Sequence[str]]
    raw: Mapping[str, Mapping[str, Any]]
    extra: Mapping[str, Any]

    def locate(self, fault: Fault) -> Located:
        """Return a fault with its file, and the line if there is one."""
        place = fault.place
        if place.kind == "file":
            file, line = short(Path(place.name)), int(place.below[0])
        elif place.key not in self.extra and place.kind == "run":
            file, line = place.name, 0
        else:
            at = definition(self.extra, place.key, place.below) if place.key in self.extra else self._definition(place)
            missing = EXTRA if place.key in self.extra else self._file_to_write(place)  # JSON of the command line has no lines
            file, line = (short(Path(at[0])), at[1]) if at else (missing, 0)
        return Located(file, line, place.key, fault.text, fault.example, fault.warning)

    def is_of_role(self, name: Any) -> bool:
        """Report whether a variable is a fact that a role of this collection has set earlier in the run."""
        at = origin_of(name)
        return at is not None and ROLES in Path(at[0]).resolve().parents

    def _definition(self, place: Place) -> At | None:
        if place.key == place.name:  # a group or a host itself
            names = [*self.groups, *(host for hosts in self.groups.values() for host in hosts)]
            return next((at for name in names if name == place.name and (at := origin_of(name))), None)  # INI names have none
        if place.kind == "group" and place.key in self.groups.get(place.name, ()):  # a host of a group
            return self._definition(Place("host", place.key, place.key))
        members = [place.name] if place.kind == "host" else self.groups.get(place.name) or []
        return definition(self.raw.get(members[0], {}), place.key, place.below) if members else None

    def _file_to_write(self, place: Place) -> str:
        """The file for what no file has: a variable of the collection, or a host or a group."""
        existing = [Path(source) for source in self.sources if os.path.exists(source)]
        if not existing:
            return f"the inventory ({', '.join(self.sources) or 'none was given, use -i inventories/mine'})"
        base = existing[0] if existing[0].is_dir() else existing[0].parent
        if place.key != place.name and not place.key.startswith("ansible_"):
            return short(base / "group_vars" / f"{ROOT_GROUP}.yml")
        inside = [each for each in sorted(base.iterdir()) if each.is_file() and not each.name.startswith(".")]
        return short(next(iter(inside), base) if existing[0].is_dir() else existing[0])


def first_line(error: AnsibleError) -> str:
    """Return the first line of an error, without the lines of a file below it."""
    return str(error).strip().splitlines()[0].rstrip(".")


def short(path: Path) -> str:
    """A path as the user writes it: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def steps(path: str) -> Iterator[str | int]:
    """Split a profile's key path (``container.volumes[0]``) into steps."""
    for word in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        yield int(word[1:-1]) if word.startswith("[") else word
