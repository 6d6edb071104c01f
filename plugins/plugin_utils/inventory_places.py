# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the place of each fault of an inventory: file, line and key. Controller only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import ROOT_GROUP, Fault, Place
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_source import Entry, Index

_CONNECTION = ("ansible_host", "ansible_port")


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


@dataclass
class Places:
    """The places of the definitions of one inventory.

    :param groups: group name to host names.
    :param extra: the extra variables of the command line, which win over every file.
    :param files: the places of those that come from a file.
    """

    index: Index
    sources: Sequence[str]
    groups: Mapping[str, Sequence[str]]
    extra: Mapping[str, Any]
    files: Mapping[str, Entry]

    def definition(self, place: Place) -> tuple[str, str, Entry] | None:
        """The definition that a fault is about; None if no file has one."""
        if place.kind == "host":
            return self.index.find(place.name, place.key, self.groups)
        if place.kind == "group":
            own = self.index.entries.get(("group", place.name, place.key))
            if own:
                return "group", place.name, own[-1]
            members = self.groups.get(place.name)
            if members and place.key != place.name:
                return self.index.find(members[0], place.key, self.groups)
        return None

    def subject(self, place: Place) -> Any:
        """What two faults have in common that are about the same definition."""
        return place.key if place.key in self.extra else self.definition(place) or place._replace(below=())

    def locate(self, fault: Fault) -> Located:
        """Return a fault with its file, and the line if there is one."""
        place = fault.place
        if place.kind == "file":
            return Located(short(Path(place.name)), int(place.below[0]), place.key, fault.text)
        given = self.files.get(place.key)
        if given and place.key in self.extra:
            return Located(short(given.path), given.line_of(place.below), place.key, fault.text, fault.example)
        if place.kind == "run":
            return Located(place.name, 0, place.key, fault.text)
        if place.key in self.extra:
            return Located("the extra variables (-e)", 0, place.key, fault.text, fault.example)
        candidates = [self.definition(place), *(self.definition(place._replace(name=host)) for host in fault.among)]
        # If hosts differ, the value that is set for a single host is the one to change.
        definition = next((each for each in candidates if each and each[0] == "host"), None) if fault.among else None
        definition = definition or candidates[0]
        if definition and not (place.own and definition[1] != place.name):
            return Located(short(definition[2].path), definition[2].line_of(place.below), place.key, fault.text, fault.example)
        return Located(self._file_to_write(place), 0, place.key, fault.text, fault.example)

    def _file_to_write(self, place: Place) -> str:
        """The file for a variable that no file has."""
        if not self.index.directories:
            given = ", ".join(self.sources)
            return f"the inventory ({given})" if given else "the inventory (none was given, use -i inventories/mine)"
        base = self.index.directories[0]
        if place.key == place.name or place.key in _CONNECTION:
            return short(self.index.files[0] if self.index.files else base)
        own = place.own or (place.kind == "host" and place.key in ("gb10_rank", "gb10_fabric_addresses"))
        owner = place.name if own else ROOT_GROUP
        return short(base / f"{'host' if owner in self.groups.get(ROOT_GROUP, ()) else 'group'}_vars" / f"{owner}.yml")


def first_line(error: AnsibleError) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def short(path: Path) -> str:
    """A path as the user writes it: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def neighbours(path: Path) -> list[str]:
    """The paths next to a file that is not there."""
    return [str(each) for each in path.parent.iterdir()] if path.parent.is_dir() else []


def steps(path: str) -> Iterator[str | int]:
    """Split a profile's key path (``container.volumes[0]``) into steps."""
    for word in re.findall(r"[^.\[\]]+|\[\d+\]", path):
        yield int(word[1:-1]) if word.startswith("[") else word
