# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: where in the files of an inventory a variable, a host or a group stands. Controller only (PyYAML).

Files are composed, not constructed: no tag is resolved, nothing is decrypted and no value is kept.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAGS = ("!", "!vault", "!vault-encrypted", "!unsafe")
_YAML = (".yml", ".yaml", ".json")
_IGNORED = (".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst", ".orig", ".cfg", ".retry")

# Ansible's order of precedence, lowest first.
_FILE_GROUP, _ALL, _PLAY_ALL, _GROUP, _PLAY_GROUP, _FILE_HOST, _HOST, _PLAY_HOST = range(8)


@dataclass(frozen=True)
class Entry:
    """One definition: ``line`` counts from 1, ``stage`` is its place in Ansible's order of precedence."""

    path: Path
    line: int
    stage: int
    node: Any = None

    def line_of(self, below: Sequence[str | int]) -> int:
        """Return the line of a value below this one, as deep as the file shows it."""
        line, node = self.line, self.node
        for step in below:
            if isinstance(node, yaml.MappingNode):
                pair = next(((key, value) for key, value in node.value if getattr(key, "value", None) == step), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line + 1, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line + 1
            else:
                break
        return line


@dataclass
class Index:
    """Everything found in the files of an inventory; ``unreadable`` has (file, line, what is wrong there, as the end of a sentence)."""

    entries: dict[tuple[str, str, str], list[Entry]] = field(default_factory=dict)
    parents: dict[str, set[str]] = field(default_factory=dict)
    unreadable: list[tuple[Path, int, str]] = field(default_factory=list)
    encrypted: list[Path] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def add(self, kind: str, owner: str, key: str, entry: Entry) -> None:
        """Remember a definition; ``kind`` is ``host`` or ``group``."""
        self.entries.setdefault((kind, owner, key), []).append(entry)

    def variables(self) -> set[str]:
        """Return the names of everything that is defined somewhere."""
        return {key for _rest, owner, key in self.entries if key != owner}

    def depth(self, group: str, seen: tuple[str, ...] = ()) -> int:
        """Return how deep a group lies below ``all``."""
        if group == "all" or group in seen:
            return 0
        return 1 + max((self.depth(parent, (*seen, group)) for parent in self.parents.get(group, ())), default=0)

    def find(self, host: str, key: str, groups: Mapping[str, Sequence[str]]) -> tuple[str, str, Entry] | None:
        """Return (kind, owner, definition) of the definition that wins for a host."""
        found = [(entry.stage, 99, "host", host, entry) for entry in self.entries.get(("host", host, key), [])]
        for group, members in groups.items():
            if host in members or group == "all":
                found += [(entry.stage, self.depth(group), "group", group, entry) for entry in self.entries.get(("group", group, key), [])]
        if not found:
            return None
        best = max(enumerate(found), key=lambda item: (item[1][0], item[1][1], item[1][3], item[0]))[1]
        return best[2], best[3], best[4]


def scan(sources: Iterable[str], play_directories: Iterable[str] = ()) -> Index:
    """Read every file of an inventory.

    :param sources: the inventory's sources as given to ansible-playbook, made absolute (``ansible_inventory_sources``).
    :param play_directories: directories of playbooks, whose ``group_vars`` and ``host_vars`` count too.
    """
    index = Index()
    for source in sources:
        path = Path(source)
        if not path.exists():
            continue
        index.directories.append(path if path.is_dir() else path.parent)
        for each in _inventory_files(path):
            index.files.append(each)
            _scan_inventory(index, each)
    directories = list(dict.fromkeys(path.resolve() for path in index.directories))
    plays = [path for path in dict.fromkeys(Path(each).resolve() for each in play_directories) if path not in directories]
    for beside, stages in [(each, (_ALL, _GROUP, _HOST)) for each in directories] + [(each, (_PLAY_ALL, _PLAY_GROUP, _PLAY_HOST)) for each in plays]:
        _scan_vars(index, beside / "group_vars", "group", stages)
        _scan_vars(index, beside / "host_vars", "host", stages)
    return index


def _inventory_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for each in sorted(path.iterdir()):
        if each.name in ("group_vars", "host_vars") or each.name.startswith(".") or each.name.endswith(_IGNORED):
            continue
        if each.is_dir():
            yield from _inventory_files(each)
        elif each.is_file():
            yield each


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return "" if text.startswith("$ANSIBLE_VAULT;") else text


def _compose(index: Index, path: Path, text: str) -> Any:
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        problem = getattr(exc, "problem", None) or getattr(exc, "reason", None) or "cannot be read"
        index.unreadable.append((path, mark.line + 1 if mark else 1, f"the file is no valid YAML here ({problem})"))
        return None


def _variables(index: Index, path: Path) -> list[tuple[str, int, Any]]:
    """The variables in a file that Ansible reads as nothing else; where Ansible cannot, the file is unreadable."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        line = path.read_bytes()[: exc.start].count(b"\n") + 1
        index.unreadable.append((path, line, "the file is no UTF-8 text here; save it as UTF-8"))
        return []
    except OSError as exc:
        index.unreadable.append((path, 0, f"the file cannot be opened ({exc.strerror})"))
        return []
    if text.startswith("$ANSIBLE_VAULT;"):
        index.encrypted.append(path)
        return []
    node = _compose(index, path, text)
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
        return []
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        what = "a list" if isinstance(node, yaml.SequenceNode) else "a text"
        index.unreadable.append((path, line, f"the file holds {what} here, expected variables, each as name: value"))
        return []
    for tag, at in _strange_tags(node):
        index.unreadable.append((path, at, f"the tag {tag} is none that Ansible knows; put a text that begins with an exclamation mark in quotes"))
    return _pairs(node)


def _strange_tags(node: Any) -> Iterator[tuple[str, int]]:
    """Tags of a node and all below it that Ansible has no reading for, each with its line."""
    waiting, seen = [node], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue  # an alias, maybe of what it stands in
        seen.add(id(each))
        if not each.tag.startswith("tag:yaml.org,2002:") and each.tag not in _TAGS:
            yield each.tag, each.start_mark.line + 1
        if isinstance(each, yaml.MappingNode):
            waiting += [part for pair in each.value for part in pair]
        elif isinstance(each, yaml.SequenceNode):
            waiting += each.value


def _pairs(node: Any) -> list[tuple[str, int, Any]]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]


def _scan_inventory(index: Index, path: Path) -> None:
    text = _read(path)
    if path.suffix in _YAML:
        for group, line, node in _pairs(_compose(index, path, text)):
            _scan_group(index, path, group, line, node)
    elif text and not text.startswith("#!") and not os.access(path, os.X_OK):
        _scan_ini(index, path, text)


def _scan_group(index: Index, path: Path, group: str, line: int, node: Any) -> None:
    index.add("group", group, group, Entry(path, line, _FILE_GROUP))
    for part, _rest, below in _pairs(node):
        if part == "hosts":
            for host, at, variables in _pairs(below):
                index.add("group", group, host, Entry(path, at, _FILE_GROUP))
                index.add("host", host, host, Entry(path, at, _FILE_HOST))
                for key, key_line, value in _pairs(variables):
                    index.add("host", host, key, Entry(path, key_line, _FILE_HOST, value))
        elif part == "vars":
            for key, at, value in _pairs(below):
                index.add("group", group, key, Entry(path, at, _FILE_GROUP, value))
        elif part == "children":
            for child, at, value in _pairs(below):
                index.parents.setdefault(child, set()).add(group)
                _scan_group(index, path, child, at, value)


def _scan_ini(index: Index, path: Path, text: str) -> None:
    group, part = "ungrouped", "hosts"
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and "]" in line:
            group, _sep, part = line[1 : line.index("]")].partition(":")
            part = part or "hosts"
            if part == "hosts":
                index.add("group", group, group, Entry(path, number, _FILE_GROUP))
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        if part == "vars" and "=" in line:
            index.add("group", group, line.split("=", 1)[0].strip(), Entry(path, number, _FILE_GROUP))
        elif part == "children":
            index.parents.setdefault(words[0], set()).add(group)
            index.add("group", words[0], words[0], Entry(path, number, _FILE_GROUP))
        elif part == "hosts" and words:
            index.add("group", group, words[0], Entry(path, number, _FILE_GROUP))
            index.add("host", words[0], words[0], Entry(path, number, _FILE_HOST))
            for word in words[1:]:
                index.add("host", words[0], word.split("=", 1)[0], Entry(path, number, _FILE_HOST))


def _scan_vars(index: Index, folder: Path, kind: str, stages: tuple[int, int, int]) -> None:
    if not folder.is_dir():
        return
    for each in sorted(folder.iterdir()):
        if each.name.startswith(".") or each.name.endswith("~"):
            continue
        owner = each.stem if each.suffix in _YAML else each.name
        files = sorted(path for path in each.rglob("*") if path.is_file() and path.suffix in ("", *_YAML)) if each.is_dir() else [each]
        stage = stages[2] if kind == "host" else stages[0] if owner == "all" else stages[1]
        for path in files:
            if path.suffix not in ("", *_YAML):
                continue
            index.files.append(path)
            for key, line, value in _variables(index, path):
                index.add(kind, owner, key, Entry(path, line, stage, value))
