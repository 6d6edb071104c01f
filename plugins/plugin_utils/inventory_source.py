# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: file and line of the variables, hosts and groups of an inventory. Controller only.

YAML files are composed, not constructed: no tag is resolved, nothing is decrypted and no value is kept.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible import constants

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = ("!", "!vault", "!vault-encrypted", "!unsafe")
_YAML = (".yml", ".yaml", ".json")

# Ansible's order of precedence, lowest first.
_FILE_GROUP, _ALL, _PLAY_ALL, _GROUP, _PLAY_GROUP, _FILE_HOST, _HOST, _PLAY_HOST = range(8)


@dataclass(frozen=True)
class Entry:
    """One definition: ``line`` starts at 1, ``stage`` is its place in Ansible's order of precedence."""

    path: Path
    line: int
    stage: int
    node: Any = None

    def line_of(self, below: Sequence[str | int]) -> int:
        """Return the line of a part of the value, or of the nearest part above it that the file has."""
        line, node = self.line, self.node
        for step in below:
            if isinstance(node, yaml.MappingNode):
                parts = [(key, value) for key, value in node.value if getattr(key, "value", None) == step]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                parts = [(value, value) for value in node.value[step : step + 1]]
            else:
                parts = []
            if not parts:
                break
            line, node = parts[0][0].start_mark.line + 1, parts[0][1]
        return line


@dataclass
class Index:
    """The definitions in the files of an inventory.

    ``unreadable`` has (file, line, what is wrong), ``repeated`` (file, line, key, line of its first definition). ``owners`` has the files with the
    variables of a group or host (file, kind, name), ``unread`` those that Ansible passes over because of their ending.
    """

    entries: dict[tuple[str, str, str], list[Entry]] = field(default_factory=dict)
    parents: dict[str, set[str]] = field(default_factory=dict)
    unreadable: list[tuple[Path, int, str]] = field(default_factory=list)
    encrypted: list[Path] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    repeated: list[tuple[Path, int, str, int]] = field(default_factory=list)
    owners: list[tuple[Path, str, str]] = field(default_factory=list)
    unread: list[tuple[Path, str, str]] = field(default_factory=list)

    def add(self, kind: str, owner: str, key: str, entry: Entry) -> None:
        """Add a definition; ``kind`` is ``host`` or ``group``. Hosts and groups themselves have their name as the key."""
        self.entries.setdefault((kind, owner, key), []).append(entry)

    def variables(self) -> set[str]:
        """Return the names of all variables that are defined."""
        return {key for _kind, owner, key in self.entries if key != owner}

    def depth(self, group: str, seen: tuple[str, ...] = ()) -> int:
        """Return the depth of a group below ``all``; a group that is its own child ends the search."""
        if group == "all" or group in seen:
            return 0
        return 1 + max((self.depth(parent, (*seen, group)) for parent in self.parents.get(group, ())), default=0)

    def find(self, host: str, key: str, groups: Mapping[str, Sequence[str]]) -> tuple[str, str, Entry] | None:
        """Return (kind, owner, definition) of the definition that applies to a host."""
        owners = [("host", host, 99)] + [("group", name, self.depth(name)) for name, members in groups.items() if host in members or name == "all"]
        found = [(entry.stage, depth, owner, kind, entry) for kind, owner, depth in owners for entry in self.entries.get((kind, owner, key), [])]
        if not found:
            return None
        _stage, _depth, owner, kind, entry = max(reversed(found), key=lambda item: item[:3])  # of equals the last one
        return kind, owner, entry


def scan(sources: Iterable[str], play_directories: Iterable[str] = ()) -> Index:
    """Read every file of an inventory.

    :param sources: the absolute paths of the inventory (``ansible_inventory_sources``).
    :param play_directories: directories of playbooks, whose ``group_vars`` and ``host_vars`` apply too.
    """
    index = Index()
    for path in [Path(source) for source in sources if os.path.exists(source)]:
        index.directories.append(path if path.is_dir() else path.parent)
        for each in _inventory_files(path):
            index.files.append(each)
            _scan_inventory(index, each)
    directories = list(dict.fromkeys(path.resolve() for path in index.directories))
    plays = [path for path in dict.fromkeys(Path(each).resolve() for each in play_directories) if path not in directories]
    for folder in directories + plays:
        stages = (_PLAY_ALL, _PLAY_GROUP, _PLAY_HOST) if folder in plays else (_ALL, _GROUP, _HOST)
        _scan_vars(index, folder / "group_vars", "group", stages)
        _scan_vars(index, folder / "host_vars", "host", stages)
    return index


def _inventory_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for each in sorted(path.iterdir()):
        if each.name not in ("group_vars", "host_vars") and not each.name.startswith(".") and not each.name.endswith(tuple(constants.INVENTORY_IGNORE_EXTS)):
            yield from _inventory_files(each)


def _read(index: Index, path: Path) -> str:
    """Return the text of a file; empty if it is encrypted or cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        index.unreadable.append((path, line, "the file is not UTF-8 text here; save it as UTF-8"))
        return ""
    except OSError as error:
        index.unreadable.append((path, 0, f"the file cannot be opened ({error.strerror})"))
        return ""
    if text.startswith("$ANSIBLE_VAULT;"):
        index.encrypted.append(path)
        return ""
    return text


def _compose(index: Index, path: Path) -> Any:
    """Return the root node of a YAML file; None if it is empty or cannot be read."""
    text = _read(index, path)
    try:
        node = yaml.compose(text, Loader=_Loader)
        events = list(yaml.parse(text, Loader=_Loader)) if "!" in text else []
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
        if mark and "'\\t'" in problem:
            problem = "a tab; YAML indents with spaces"
        index.unreadable.append((path, mark.line + 1 if mark else 1, f"the file is not valid YAML here ({problem})"))
        return None
    for event in events:
        tag = getattr(event, "tag", None) or "!"
        if event.start_mark and tag not in _TAGS and not tag.startswith("tag:yaml.org,2002:"):
            text = f"Ansible does not know the tag {tag}; put a string that starts with an exclamation mark in quotes"
            index.unreadable.append((path, event.start_mark.line + 1, text))
    _add_repeated(index, path, node)
    return None if getattr(node, "tag", "") == "tag:yaml.org,2002:null" else node


def _add_repeated(index: Index, path: Path, root: Any) -> None:
    """Add the keys that stand twice in one mapping, of which Ansible takes the last. An alias can lead back to a node above it."""
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen or not isinstance(node, yaml.CollectionNode):
            continue
        seen.add(id(node))
        lines: dict[str, int] = {}
        for key, line, _value in _pairs(node):
            if key in lines and key != "<<":
                index.repeated.append((path, line, key, lines[key]))
            lines.setdefault(key, line)
        nodes += [value for _key, value in node.value] if isinstance(node, yaml.MappingNode) else node.value


def _pairs(node: Any) -> list[tuple[str, int, Any]]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]


def _scan_inventory(index: Index, path: Path) -> None:
    if path.suffix in _YAML:
        for group, line, node in _pairs(_compose(index, path)):
            _scan_group(index, path, group, line, node)
    elif not os.access(path, os.X_OK):  # a script
        _scan_ini(index, path, _read(index, path))


def _scan_group(index: Index, path: Path, group: str, line: int, node: Any) -> None:
    index.add("group", group, group, Entry(path, line, _FILE_GROUP))
    parts = {part: below for part, _line, below in _pairs(node)}
    for host, at, variables in _pairs(parts.get("hosts")):
        index.add("group", group, host, Entry(path, at, _FILE_GROUP))
        index.add("host", host, host, Entry(path, at, _FILE_HOST))
        if variables is not None and not isinstance(variables, yaml.MappingNode) and getattr(variables, "tag", "") != "tag:yaml.org,2002:null":
            text = f"{host} has a value here, expected the name of a host; indent a variable below its host"
            index.unreadable.append((path, at, text))
        for key, key_line, value in _pairs(variables):
            index.add("host", host, key, Entry(path, key_line, _FILE_HOST, value))
    for key, at, value in _pairs(parts.get("vars")):
        index.add("group", group, key, Entry(path, at, _FILE_GROUP, value))
    for child, at, value in _pairs(parts.get("children")):
        index.parents.setdefault(child, set()).add(group)
        _scan_group(index, path, child, at, value)


def _scan_ini(index: Index, path: Path, text: str) -> None:
    group, part = "ungrouped", "hosts"
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        of_group, of_host = Entry(path, number, _FILE_GROUP), Entry(path, number, _FILE_HOST)
        if line.startswith("[") and "]" in line:
            group, _sep, part = line[1 : line.index("]")].partition(":")
            part = part or "hosts"
            if part == "hosts":
                index.add("group", group, group, of_group)
            continue
        try:
            words = shlex.split("" if line.startswith(";") else line, comments=True)
        except ValueError:
            continue
        if not words:
            continue
        if part == "vars":
            index.add("group", group, line.split("=", 1)[0].strip(), of_group)
        elif part == "children":
            index.parents.setdefault(words[0], set()).add(group)
            index.add("group", words[0], words[0], of_group)
        elif part == "hosts":
            index.add("group", group, words[0], of_group)
            for key in words:
                index.add("host", words[0], key.split("=", 1)[0], of_host)


def _scan_vars(index: Index, folder: Path, kind: str, stages: tuple[int, int, int]) -> None:
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        if each.name.startswith(".") or each.name.endswith("~"):
            continue
        owner = each.stem if each.suffix in _YAML else each.name
        stage = stages[2] if kind == "host" else stages[0] if owner == "all" else stages[1]
        for path in sorted(each.rglob("*")) if each.is_dir() else [each]:
            if path.suffix not in ("", *_YAML) or not path.is_file():
                index.unread.append((path, kind, path.name.partition(".")[0]))
                continue
            index.owners.append((path, kind, owner))
            index.files.append(path)
            node = _compose(index, path)
            if node is not None and not isinstance(node, yaml.MappingNode):
                what = "a list" if isinstance(node, yaml.SequenceNode) else "a string"
                text = f"the file contains {what} here, expected variables, each as name: value"
                index.unreadable.append((path, node.start_mark.line + 1, text))
            for key, line, value in _pairs(node):
                index.add(kind, owner, key, Entry(path, line, stage, value))
