# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: file and line of the variables, hosts and groups of an inventory. Controller only.

YAML files are composed, not constructed: no tag is resolved, nothing is decrypted and no value is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible import constants
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.plugin_utils import inventory_ini
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

_TAGS = ("!", "!vault", "!vault-encrypted", "!unsafe")
_YAML = (".yml", ".yaml", ".json")
_FOLDERS = ("group_vars", "host_vars")
_HIDDEN = re.compile(r"[^\S ]|[\u200b-\u200f\u2060\ufeff\x00-\x1f]")
_RANGE = re.compile(r"\[[0-9A-Za-z]*:[0-9A-Za-z]+(?::[0-9]+)?\]")
_GROUP_PARTS = ("hosts", "children", "vars")

# Ansible's order of precedence, lowest first.
_FILE_GROUP, _ALL, _PLAY_ALL, _GROUP, _PLAY_GROUP, _FILE_HOST, _HOST, _PLAY_HOST, _EXTRA = range(9)


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
    variables of a group or host (file, kind, name), ``unread`` those that Ansible passes over because of their ending. ``partial``
    is set if hosts can be missing here: those of a script, a plugin, a range or an encrypted file.
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
    partial: bool = False

    def add(self, kind: str, owner: str, key: str, entry: Entry) -> None:
        """Add a definition; ``kind`` is ``host``, ``group`` or, with the path as the owner, ``extra``. A host or group itself has its name as the key."""
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


def scan(sources: Iterable[str], play_directories: Iterable[str] = (), extra_files: Iterable[Path] = ()) -> Index:
    """Read every file of an inventory.

    :param sources: the absolute paths of the inventory (``ansible_inventory_sources``).
    :param play_directories: directories of playbooks, whose ``group_vars`` and ``host_vars`` apply too.
    :param extra_files: files of extra variables (``-e @FILE``), which can be next to an inventory and are not a part of it.
    """
    index = Index()
    extra = [path for path in extra_files if path.exists()]
    given = {path.resolve() for path in extra}
    for path in [Path(source) for source in sources if os.path.exists(source)]:
        if path.is_file() and path.resolve().parent.name in _FOLDERS:
            text = f"this file has variables and is not an inventory; write -i {os.path.relpath(path.resolve().parents[1])}"
            index.unreadable.append((path, 0, text))
            continue
        index.directories.append(path if path.is_dir() else path.parent)
        for each in _inventory_files(index, path):
            if each.resolve() in given:
                continue
            index.files.append(each)
            _scan_inventory(index, each, path.is_dir())
    directories = list(dict.fromkeys(path.resolve() for path in index.directories))
    plays = [path for path in dict.fromkeys(Path(each).resolve() for each in play_directories) if path not in directories]
    for folder in directories + plays:
        stages = (_PLAY_ALL, _PLAY_GROUP, _PLAY_HOST) if folder in plays else (_ALL, _GROUP, _HOST)
        _scan_vars(index, folder / "group_vars", "group", stages)
        _scan_vars(index, folder / "host_vars", "host", stages)
    for path in extra:
        _scan_extra(index, path)
    return index


def _inventory_files(index: Index, path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for each in sorted(path.iterdir()):
        hint = did_you_mean(each.name, _FOLDERS, 0.8)
        if each.is_dir() and hint and each.name not in _FOLDERS:
            index.unreadable.append((each, 0, f"Ansible does not read this folder as variables{hint}"))
        elif each.name not in _FOLDERS and not each.name.startswith(".") and not each.name.endswith(tuple(constants.INVENTORY_IGNORE_EXTS)):
            yield from _inventory_files(index, each)


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


def _compose(index: Index, path: Path, text: str) -> Any:
    """Return the root node of a YAML file; None if it is empty or cannot be read."""
    try:
        node = yaml.compose(text, Loader=SafeLoader)
        events = list(yaml.parse(text, Loader=SafeLoader)) if "!" in text else []
    except yaml.YAMLError as error:
        index.unreadable.append((path, *yaml_fault(error, text)))
        return None
    for event in events:
        tag = getattr(event, "tag", None) or "!"
        plain = getattr(event, "style", "|") in (None, "") and str(getattr(event, "value", "")).startswith("$ANSIBLE_VAULT;")
        if event.start_mark and tag == "!vault" and plain:
            index.unreadable.append((path, event.start_mark.line + 1, "the encrypted text needs a | after !vault, and its lines below it"))
        if event.start_mark and tag not in _TAGS and not tag.startswith("tag:yaml.org,2002:"):
            # The tag is not shown: it can be a password that starts with an exclamation mark.
            hint = did_you_mean(tag, _TAGS[1:])
            text = f"Ansible does not know the tag here{hint}; put a string that starts with an exclamation mark in quotes"
            index.unreadable.append((path, event.start_mark.line + 1, text))
    _add_key_faults(index, path, node)
    if not index.unreadable:
        index.unreadable += [(path, line, problem) for line, problem in _value_faults(node, text)]
    return None if getattr(node, "tag", "") == "tag:yaml.org,2002:null" else node


def yaml_fault(error: yaml.YAMLError, text: str = "") -> tuple[int, str]:
    """Return the line of what a parser of YAML cannot read, and a sentence without a part of the file."""
    mark, opened = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    context = getattr(error, "context", None) or ""
    lines = text.splitlines()
    conflict = next((number for number, line in enumerate(lines, 1) if re.match(r"(?:<{7}|>{7}) ", line)), 0)
    if conflict:
        return conflict, "a merge conflict of git begins here; keep one of its two sides, and remove the lines with <<<<<<<, ======= and >>>>>>>"
    if mark and mark.line < len(lines) and re.match(r" *\t", lines[mark.line]):
        problem = "a tab; YAML indents with spaces"
    elif mark and any(re.search(r"(?:^\s*-|:)\s+\{[{%]", line) for line in lines[(opened or mark).line : mark.line + 1]):
        problem = "a template that begins a value needs quotes"
    elif "unknown escape" in problem:
        problem = "a backslash in double quotes; put the value in single quotes, and write a path of the nodes as /srv/models"
    elif "flow node" in context:
        problem = "a bracket is not closed, or a value is missing"
    elif opened and ("quoted scalar" in context or "flow" in context):
        mark, problem = opened, f"a {'quotation mark' if 'quoted' in context else 'bracket'} opens here and is not closed"
    elif "could not find expected ':'" in problem:
        mark, problem = opened or mark, "the colon after the name is missing, or the space after the colon"
    elif "cannot start any token" in problem:
        problem = "no value begins with this character; put the value in quotes"
    elif "mapping values are not allowed" in problem:
        problem = "a second colon in one line, or a line that is indented too far; put a value with a colon in quotes"
    elif "expected '-' indicator" in problem:
        problem = "the lines above it are a list, and this one has no dash; a host, a group or a variable is written without one"
    elif "undefined alias" in problem:
        problem = "YAML reads a word with * as an alias, which is not defined; put the value in quotes"
    elif "another document" in problem or "single document" in context:
        problem = "a second document begins; remove the line ---"
    return mark.line + 1 if mark else 1, f"the file is not valid YAML here ({problem})"


class _Trial(SafeLoader):
    """Makes the values of a file, to find those that no YAML loader can make. The tags of Ansible have none here."""


_Trial.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


def _value_faults(root: Any, text: str) -> list[tuple[int, str]]:
    """Return (line, sentence) of a value that is written correctly and has none, such as a date with the month 13."""
    error = _makes(root) if root is not None else None
    if error is None:
        return []
    if isinstance(error, yaml.YAMLError):
        return [yaml_fault(error, text)]
    lines = [node.start_mark.line + 1 for node in _nodes(root) if isinstance(node, yaml.ScalarNode) and _makes(node)]
    return [(line, "the value is not a valid date or number; put it in quotes") for line in lines[:1]]


def _makes(node: Any) -> Exception | None:
    """Return why a node has no value; None if it has one."""
    try:
        _Trial("").construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return error
    return None


def altered(node: Any) -> list[tuple[tuple[str, ...], str]]:
    """Return (key, number) of each string in a node that YAML reads as a number with other digits, such as 3.10 as 3.1 and 010 as 8."""
    found: list[tuple[tuple[str, ...], Any]] = [((key,), value) for key, _line, value in pairs(node)] or [((), node)]
    made = [(below, each.value, _Trial("").construct_document(each)) for below, each in found if isinstance(each, yaml.ScalarNode)]
    return [(below, str(value)) for below, text, value in made if isinstance(value, (int, float)) and not isinstance(value, bool) and str(value) != text]


def in_another_base(node: Any) -> list[tuple[tuple[str | int, ...], str, int]]:
    """Return (way to the part, its text, the number) of each number in a node that YAML 1.1 reads in another base, such as 011 as 9 and 1:30 as 90."""
    found: list[tuple[tuple[str | int, ...], Any]] = [((key,), value) for key, _line, value in pairs(node)]
    found += [((index,), value) for index, value in enumerate(node.value)] if isinstance(node, yaml.SequenceNode) else []
    numbers = [(below, each) for below, each in found or [((), node)] if getattr(each, "tag", "") == "tag:yaml.org,2002:int"]
    return [(below, each.value, _Trial("").construct_document(each)) for below, each in numbers if re.match(r"[-+]?0[\d_]|.*:", each.value)]


def _nodes(root: Any) -> Iterator[Any]:
    """Yield each node of a file once. An alias can lead back to a node above it."""
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            nodes += [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


def _add_key_faults(index: Index, path: Path, root: Any) -> None:
    """Add the keys that stand twice in one mapping, of which Ansible takes the last, and those with an invisible character."""
    for node in _nodes(root) if root is not None else ():
        lines: dict[str, int] = {}
        for key, line, _value in pairs(node):
            hidden = _HIDDEN.search(key)
            if hidden:
                name = _HIDDEN.sub("", key)
                text = f"the key has the character U+{ord(hidden[0]):04X}, which looks like a space or like nothing; type the key again: {name}"
                index.unreadable.append((path, line, text))
            if key in lines and key != "<<":
                index.repeated.append((path, line, key, lines[key]))
            lines.setdefault(key, line)


def pairs(node: Any) -> list[tuple[str, int, Any]]:
    """Return (key, line, value) of a mapping; nothing of another node."""
    if not isinstance(node, yaml.MappingNode):
        return []
    return [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]


def _is_playbook(node: Any) -> bool:
    plays = node.value if isinstance(node, yaml.SequenceNode) else ()
    return any(key in ("hosts", "import_playbook", "ansible.builtin.import_playbook") for play in plays for key, _line, _value in pairs(play))


def _scan_inventory(index: Index, path: Path, of_folder: bool) -> None:
    if path.suffix == ".toml" or (path.suffix not in _YAML and os.access(path, os.X_OK)):  # Ansible's plugin for TOML checks it; a script
        index.partial = True
        return
    text = _read(index, path)
    if path.suffix in _YAML or (not path.suffix and _is_yaml(text)):
        root = _compose(index, path, text)
        if of_folder and _is_playbook(root):  # Ansible tries each file of the folder, and uses the others
            return
        if root is None and path.suffix in _YAML and path not in index.encrypted and path not in {each for each, _line, _text in index.unreadable}:
            index.unreadable.append((path, 0, "the file is empty, expected a group such as gb10"))
        groups = _parts(index, path, root, "the file", "a group")
        if "plugin" in [group for group, _line, _node in groups]:  # a file with the settings of an inventory plugin
            index.partial = True
        else:
            for group, line, node in groups:
                _scan_group(index, path, group, line, node)
    else:
        known = {owner for kind, owner, key in index.entries if kind == "group" and owner == key}  # of the files before this one
        _scan_ini(index, path, inventory_ini.parse(text, known))


def _is_yaml(text: str) -> bool:
    """Report whether a file without an ending is a mapping in YAML."""
    try:
        return not inventory_ini.is_ini(text) and isinstance(yaml.compose(text, Loader=SafeLoader), yaml.MappingNode)
    except yaml.YAMLError:
        return False


def _scan_ini(index: Index, path: Path, found: inventory_ini.Ini) -> None:
    for kind, owner, key, line in found.entries:
        index.add(kind, owner, key, Entry(path, line, _FILE_GROUP if kind == "group" else _FILE_HOST))
    for parent, child, line in found.children:
        index.parents.setdefault(child, set()).add(parent)
        index.add("group", child, child, Entry(path, line, _FILE_GROUP))
    if path.suffix == ".ini" or path.name == "hosts" or found.groups():  # another text, such as a password, is read as a list of hosts
        index.unreadable += [(path, line, text) for line, text in found.faults]


def _parts(index: Index, path: Path, node: Any, owner: str, each: str) -> list[tuple[str, int, Any]]:
    """Return the parts of a mapping. Another kind of node is a fault, except a single name, which Ansible accepts for ``hosts`` and ``children``."""
    if isinstance(node, yaml.SequenceNode) or (isinstance(node, yaml.ScalarNode) and not _is_null(node) and owner == "the file"):
        what = "a list" if isinstance(node, yaml.SequenceNode) else "a string"
        text = f"{owner} contains {what} here, expected {each} on each line, with a colon after its name"
        index.unreadable.append((path, node.start_mark.line + 1, text))
    elif isinstance(node, yaml.ScalarNode) and re.search(r"[,\s]", node.value):
        text = f"{owner} contains a string with several words here, expected {each} on each line, with a colon after its name"
        index.unreadable.append((path, node.start_mark.line + 1, text))
    keys = [key for key, _value in node.value if isinstance(key, yaml.ScalarNode)] if isinstance(node, yaml.MappingNode) and each != "a variable" else []
    for key in keys:
        if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            index.unreadable.append((path, key.start_mark.line + 1, f"{key.value} is not a string here, expected the name of {each}; put it in quotes"))
        elif owner == "hosts" and "[" in key.value and not _RANGE.search(key.value):
            text = f"{key.value} is not a valid range of hosts, expected the first and the last one, such as spark-[1:2]"
            index.unreadable.append((path, key.start_mark.line + 1, text))
    return pairs(node)


def _is_null(node: Any) -> bool:
    return node is None or getattr(node, "tag", "") == "tag:yaml.org,2002:null"


def _scan_group(index: Index, path: Path, group: str, line: int, node: Any) -> None:
    index.add("group", group, group, Entry(path, line, _FILE_GROUP))
    if not _is_null(node) and not isinstance(node, yaml.MappingNode):
        text = f"{group} has a value here, expected a group with hosts, children or vars; a variable belongs in group_vars, or below vars of a group"
        index.unreadable.append((path, line, text))
    parts = {}
    for part, at, below in pairs(node):
        parts[part] = below
        if part not in _GROUP_PARTS:
            text = f"{part} is not a part of a group, expected one of {', '.join(_GROUP_PARTS)}{did_you_mean(part, _GROUP_PARTS)}"
            index.unreadable.append((path, at, text))
    for host, at, variables in _parts(index, path, parts.get("hosts"), "hosts", "a host"):
        index.add("group", group, host, Entry(path, at, _FILE_GROUP))
        index.add("host", host, host, Entry(path, at, _FILE_HOST))
        if not _is_null(variables) and not isinstance(variables, yaml.MappingNode):
            text = f"{host} has a value here, expected the name of a host; indent a variable below its host"
            index.unreadable.append((path, at, text))
        for key, key_line, value in pairs(variables):
            index.add("host", host, key, Entry(path, key_line, _FILE_HOST, value))
            _add_part_fault(index, path, key, key_line, value, f"below the host {host}")
    for key, at, value in _parts(index, path, parts.get("vars"), "vars", "a variable"):
        index.add("group", group, key, Entry(path, at, _FILE_GROUP, value))
    for child, at, value in _parts(index, path, parts.get("children"), "children", "a group"):
        index.parents.setdefault(child, set()).add(group)
        _scan_group(index, path, child, at, value)


def _add_part_fault(index: Index, path: Path, key: str, line: int, value: Any, where: str) -> None:
    """Add a part of a group, such as ``vars``, where variables are expected. Ansible accepts it as a variable with this name."""
    if key in _GROUP_PARTS and isinstance(value, yaml.MappingNode):
        do = "remove this line and indent the variables less" if key == "vars" else "groups and their hosts belong in a file such as hosts.yml"
        index.unreadable.append((path, line, f"{key} is a part of a group, expected variables {where}; {do}"))


def _scan_vars(index: Index, folder: Path, kind: str, stages: tuple[int, int, int]) -> None:
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        if each.name.startswith(".") or each.name.endswith("~"):
            continue
        owner = each.stem if each.suffix in _YAML else each.name
        stage = stages[2] if kind == "host" else stages[0] if owner == "all" else stages[1]
        for path in sorted(each.rglob("*")) if each.is_dir() else [each]:
            if path.is_dir() or any(part.startswith(".") or part.endswith("~") for part in path.relative_to(folder).parts):  # as Ansible does
                continue
            if path.suffix not in ("", *_YAML) or not path.is_file():
                index.unread.append((path, kind, path.name.partition(".")[0]))
                continue
            index.owners.append((path, kind, owner))
            index.files.append(path)
            node = _compose(index, path, _read(index, path))
            if node is not None and not isinstance(node, yaml.MappingNode):
                what = "a list" if isinstance(node, yaml.SequenceNode) else "a string"
                text = f"the file contains {what} here, expected variables, each as name: value"
                index.unreadable.append((path, node.start_mark.line + 1, text))
            for key, line, value in pairs(node):
                index.add(kind, owner, key, Entry(path, line, stage, value))
                _add_part_fault(index, path, key, line, value, "in this file")


def _scan_extra(index: Index, path: Path) -> None:
    node = _compose(index, path, _read(index, path))
    if not isinstance(node, yaml.MappingNode) and path not in [*index.encrypted, *(each for each, _line, _text in index.unreadable)]:
        index.unreadable.append((path, 1, "the file has no variables, expected each as name: value"))
    for key, line, value in pairs(node):
        index.add("extra", str(path), key, Entry(path, line, _EXTRA, value))
