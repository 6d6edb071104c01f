# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the YAML files of an inventory that Ansible cannot read, or reads as something else. Controller only.

Ansible reports such a fault once for each of its inventory plugins, and with the lines around it, which can have a secret. Files are composed, not
constructed: no tag is resolved, nothing is decrypted and no value is kept.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible import constants
from ansible_collections.gb10.cluster.plugins.module_utils._core import redact
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import variables
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import EXTRA, Located, short
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

NOT_DECRYPTED = "is encrypted, and the vault password is missing or wrong; run with --ask-vault-pass or --vault-password-file"
_TAGS = ("!", "!vault", "!vault-encrypted", "!unsafe")
_YAML = (".yml", ".yaml", ".json")
_FOLDERS = ("group_vars", "host_vars")
_NULL = "tag:yaml.org,2002:null"
# Follows the checkout's links, and works from an installed collection as well.
ROLES_DIR = Path(__file__).resolve().parents[2] / "roles"
# (line, key, sentence)
Found = tuple[int, str, str]


def variable_files(sources: Iterable[str], play_directories: Iterable[str] = ()) -> Iterator[tuple[Path, str, str]]:
    """Yield (file, ``group`` or ``host``, name of the group or host) of each file below group_vars and host_vars, as Ansible finds them."""
    existing = [Path(source) for source in sources if os.path.exists(source)]
    bases = [path if path.is_dir() else path.parent for path in existing] + [Path(each) for each in play_directories]
    for base in dict.fromkeys(each.resolve() for each in bases):
        for folder in (base / name for name in _FOLDERS):
            for each in sorted(folder.iterdir()) if folder.is_dir() else ():
                owner = each.stem if each.suffix in _YAML else each.name
                for path in sorted(each.rglob("*")) if each.is_dir() else [each]:
                    if path.is_file() and not any(part.startswith(".") or part.endswith("~") for part in path.relative_to(folder).parts):
                        yield path, folder.name.partition("_")[0], owner


def _inventory_files(sources: Iterable[str]) -> Iterator[Path]:
    for source in map(Path, sources):
        if source.is_file():
            yield source
        elif source.is_dir() and source.name not in _FOLDERS:
            ignored = tuple(constants.INVENTORY_IGNORE_EXTS)
            yield from _inventory_files(str(each) for each in sorted(source.iterdir()) if not each.name.startswith(".") and not each.name.endswith(ignored))


def faults(sources: Sequence[str], play_directories: Iterable[str] = (), options: Sequence[str] = ()) -> list[Located]:
    """Return what Ansible cannot read; a key that stands twice, and is a secret, is a warning, because no value is compared or shown.

    :param sources: the absolute paths of the inventory.
    :param options: the values of ``-e``, as they were given.
    """
    extra = [path for each in options if each.startswith("@") and (path := Path(os.path.expanduser(each[1:]))).is_file()]
    trees = [path for path in _inventory_files(sources) if path.suffix in _YAML and path.resolve() not in {each.resolve() for each in extra}]
    plain = [path for path, _kind, _owner in variable_files(sources, play_directories) if path.suffix in ("", *_YAML)]
    found: list[Located] = []
    for path, is_tree in [*((path, True) for path in trees), *((path, False) for path in (*plain, *extra))]:
        for line, key, text in file_faults(path, is_tree):
            found.append(Located(short(path), line, key, text, warning=key != "YAML" and redact.is_secret(key)))
    return found + [Located(EXTRA, 0, "-e", text) for option in options if option[:1] in ("{", "[") and (text := _json_fault(option))]


def file_faults(path: Path, is_tree: bool = False) -> list[Found]:
    """Return the faults of a file of variables, or of hosts and groups (a tree)."""
    try:
        text = path.read_text(encoding="utf-8")
        root = None if text.startswith("$ANSIBLE_VAULT;") else yaml.compose(text, Loader=SafeLoader)
    except UnicodeDecodeError as error:
        return [(path.read_bytes()[: error.start].count(b"\n") + 1, "YAML", "the file is not UTF-8 text here; save it as UTF-8")]
    except OSError as error:
        return [(0, "YAML", f"the file cannot be opened ({error.strerror})")]
    except yaml.YAMLError as error:
        line, problem = yaml_fault(error)
        return [(line, "YAML", problem)]
    found = list(_node_faults(root))
    if is_tree:
        plays = isinstance(root, yaml.SequenceNode)  # a playbook in the folder of an inventory, which Ansible passes over
        return found if plays or "plugin" in dict.fromkeys(key for key, _line, _value in pairs(root)) else [*found, *_tree_faults(root, "a group")]
    if root is not None and not isinstance(root, yaml.MappingNode) and root.tag != _NULL:
        what = "a list" if isinstance(root, yaml.SequenceNode) else "a string"
        found.append((root.start_mark.line + 1, "YAML", f"the file contains {what} here, expected variables, each as name: value"))
    return found


def yaml_fault(error: yaml.YAMLError) -> tuple[int, str]:
    """Return the line of what the parser cannot read, and a sentence without a part of the file."""
    mark, opened = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read")
    context = getattr(error, "context", None) or ""
    if opened and ("quoted scalar" in context or "flow" in context):
        mark, problem = opened, "a quotation mark or a bracket opens here and is not closed"
    elif "did not find expected key" in problem:
        problem = "a template that begins a value needs quotes, and a list or a mapping ends before it goes on"
    elif "could not find expected ':'" in problem:
        mark, problem = opened or mark, "the colon after the name is missing, or the space after the colon"
    elif "mapping values are not allowed" in problem:
        problem = "a second colon in one line, or a line that is indented too far; put a value with a colon in quotes"
    elif "undefined alias" in problem:  # its name can be a part of a secret
        problem = "an alias that is not defined; put a value that begins with * in quotes"
    return mark.line + 1 if mark else 1, f"the file is not valid YAML here ({problem})"


def pairs(node: Any) -> list[tuple[str, int, Any]]:
    """Return (key, line, value) of a mapping; nothing of another node."""
    if not isinstance(node, yaml.MappingNode):
        return []
    return [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]


def _node_faults(root: Any) -> Iterator[Found]:
    """Yield the keys that stand twice in one mapping, of which Ansible takes the last, and tags that it does not know."""
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in seen:  # an alias can lead back to a node above it
            continue
        seen.add(id(node))
        if node.tag.startswith("!") and node.tag not in _TAGS:  # it can be a password, which Ansible would show
            yield node.start_mark.line + 1, "YAML", "Ansible does not know the tag here; put a string that starts with an exclamation mark in quotes"
        lines: dict[str, int] = {}
        for key, line, _value in pairs(node):
            if key in lines and key != "<<":
                yield line, key, f"is set twice, first in line {lines[key]}; remove one"
            lines.setdefault(key, line)
        if isinstance(node, yaml.MappingNode):
            nodes += [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


def _tree_faults(node: Any, what: str) -> Iterator[Found]:
    """Yield where groups or hosts have another shape, which Ansible passes over with a warning, or takes for a host."""
    if isinstance(node, yaml.SequenceNode):
        yield node.start_mark.line + 1, "YAML", f"a list is here, expected {what} on each line, with a colon after its name"
    for name, line, parts in pairs(node):
        if not isinstance(parts, yaml.MappingNode) and parts.tag != _NULL:
            yield line, "YAML", f"{name} has a value here, expected the name of {what}; indent a variable below its host, or below vars of its group"
        for part, at, below in pairs(parts) if what == "a group" else ():
            if part in ("hosts", "children"):
                yield from _tree_faults(below, "a host" if part == "hosts" else "a group")
            elif part != "vars":
                yield at, "YAML", f"{part} is not a part of a group, expected hosts, children or vars"


def _json_fault(option: str) -> str:
    """Return what is wrong with variables on the command line, without a part of the text, which can be a secret."""
    try:
        valid = isinstance(yaml.compose(option, Loader=SafeLoader), yaml.MappingNode)
    except yaml.YAMLError:
        valid = False
    return "" if valid else 'the text after -e is not a mapping in JSON or YAML; write -e \'{"name": "value"}\''


def _load(path: Path) -> Any:
    with contextlib.suppress(FileNotFoundError, yaml.YAMLError):  # a tag such as !unsafe
        return yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoader)  # noqa: S506  see above
    return None


@cache
def load_specs() -> dict[str, dict[str, dict[str, Any]]]:
    """Return role name to its options, for every role of the collection."""
    specs = sorted(ROLES_DIR.glob("*/meta/argument_specs.yml"))
    return {path.parts[-3]: variables.role_options(_load(path) or {}, _load(path.parents[1] / "defaults" / "main.yml") or {}) for path in specs}
