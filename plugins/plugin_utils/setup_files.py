# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the inventory folder of setup.yml: what it has, and edits that keep all other lines. Controller only."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._setup.inventory_text import COMMENTS, GROUP, HOSTS, LOGIN, PYTHON, Host, line_of, written
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_files import faults, is_encrypted, pairs, variable_files
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import short
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

_LONGEST = 1 << 20  # bytes of a file
_READ = (*COMMENTS, *LOGIN)
_BY_HAND = "Edit the file, or write another inventory with -e setup_inventory=FOLDER"


class Existing(NamedTuple):
    """An inventory that is there: the texts of its files, its two machines, and the variables of the group; all values are strings or lists of them.

    `elsewhere` are variables that another file of group_vars sets, with that file; `in_host_vars` those of each machine that host_vars sets.
    """

    texts: dict[str, str]
    hosts: list[tuple[str, dict[str, Any]]]
    values: dict[str, Any]
    elsewhere: dict[str, str]
    in_host_vars: list[dict[str, str]]


def _node(text: str, path: Path) -> Any:
    """Return the composed document. A parser's message can quote a secret: only the place is shown."""
    try:
        return yaml.compose(text, Loader=SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise AnsibleActionFail(f"{path}{f':{mark.line + 1}' if mark else ''} is not valid YAML. {_BY_HAND}.") from None


def _items(node: Any) -> list[tuple[str, Any]]:
    return [(key, value) for key, _line, value in pairs(node)]


def _below(node: Any, *keys: str) -> Any:
    for key in keys:
        node = next((value for name, value in _items(node) if name == key), None)
    return node


def _plain(node: Any) -> Any:
    """Return a scalar as a string and a list as a list; None for what has a tag (a vault), or is a mapping."""
    if isinstance(node, yaml.SequenceNode):
        return [_plain(each) for each in node.value]
    return str(node.value) if isinstance(node, yaml.ScalarNode) and not str(node.tag).startswith("!") else None


def _host_nodes(text: str, path: Path) -> list[tuple[str, Any]]:
    """Return (name, variables) of the two machines. Raises AnsibleActionFail for an inventory of another shape."""
    groups = _items(_below(_node(text, path), "gb10", "children"))
    hosts = _items(_below(groups[0][1], "hosts")) if len(groups) == 1 else []
    if len(hosts) != 2:
        what = f"{len(groups)} groups below gb10" if len(groups) != 1 else f"{len(hosts)} hosts"
        raise AnsibleActionFail(f"{path} has {what}, expected one group with two hosts: setup.yml writes inventories of one pair. {_BY_HAND}.")
    return hosts


def read(folder: Path) -> Existing | None:
    """Return the inventory in a folder; None if there is none. Raises AnsibleActionFail if it cannot be read."""
    hosts_path, group_path = folder / HOSTS, folder / GROUP
    if not os.path.lexists(hosts_path):
        there = [path for path in (group_path, *sorted(folder.glob("[!.]*"))) if path.is_file()]
        if there:
            raise AnsibleActionFail(f"{there[0]} is there, and {hosts_path} is not: setup.yml edits only inventories with a {HOSTS}. {_BY_HAND}.")
        return None
    if group_path.with_suffix("").is_dir():
        raise AnsibleActionFail(f"{group_path.with_suffix('')} is a folder, so Ansible does not read {group_path}, where setup.yml writes. {_BY_HAND}.")
    texts = {HOSTS: _text(hosts_path), GROUP: _text(group_path) if os.path.lexists(group_path) else ""}
    hosts = [(name, {key: _plain(value) for key, value in _items(node)}) for name, node in _host_nodes(texts[HOSTS], hosts_path)]
    values = {key: _plain(value) for key, value in _items(_node(texts[GROUP], group_path))}
    for fault in [each for each in faults([str(folder)]) if each.key == "YAML"][:1]:
        raise AnsibleActionFail(f"{fault.file}{f':{fault.line}' if fault.line else ''}: {fault.text}. {_BY_HAND}.")
    elsewhere: dict[str, str] = {}
    in_host_vars: list[dict[str, str]] = [{} for _host in hosts]
    names = [name for name, _variables in hosts]
    root = _below(_node(texts[HOSTS], hosts_path), "gb10")
    found = [(hosts_path, "group", "", _below(each, "vars")) for each in (root, *(group for _name, group in _items(_below(root, "children"))))]
    files = [(path, kind, owner) for path, kind, owner in variable_files([str(folder)]) if not is_encrypted(path)]
    found += [(path, kind, owner, _node(_text(path), path)) for path, kind, owner in files]
    for path, kind, owner, node in found:
        for key, value in ((key, _plain(value)) for key, value in _items(node)):
            if kind == "group" and key in _READ and path.resolve() != group_path.resolve():
                elsewhere[key] = short(path)
                values.setdefault(key, value)
            elif kind == "host" and owner in names:  # wins over hosts.yml
                hosts[names.index(owner)][1][key] = value
                in_host_vars[names.index(owner)][key] = short(path)
    return Existing(texts, hosts, values, elsewhere, in_host_vars)


def _text(path: Path) -> str:
    try:
        return bounded.text(str(path), _LONGEST, "strict")
    except (OSError, UnicodeDecodeError) as error:
        raise AnsibleActionFail(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}. {_BY_HAND}.") from error


def _replaced(text: str, node: Any, value: str, path: Path) -> str:
    """Return the text with the value of a node of one line replaced; comment and indentation stay."""
    start, end = node.start_mark, node.end_mark
    lines = text.splitlines(keepends=True)
    # An alias leads to the value that has the anchor, which other variables use as well.
    what = "several lines" if start.line != end.line else "an anchor or a tag" if lines[start.line][start.column] in "&!" else ""
    if what:
        raise AnsibleActionFail(f"{path}:{start.line + 1} has a value with {what}. Set it to {value} by hand.")
    line = lines[start.line]
    lines[start.line] = line[: start.column] + value + line[end.column :]
    return "".join(lines)


def edited_group(text: str, values: Mapping[str, str | Sequence[str]], path: Path) -> str:
    """Return group_vars/gb10.yml with these variables; what has its value already, and all other lines, stay as they are."""
    for key, value in values.items():
        node = _below(_node(text, path), key)
        if node is not None and _plain(node) == (value if isinstance(value, str) else list(value)):
            continue
        if node is not None:
            text = _replaced(text, node, written(key, value), path)
            continue
        commented = re.search(rf"^# ?{re.escape(key)}:.*$", text, re.MULTILINE)
        if commented:
            text = text[: commented.start()] + line_of(key, value) + text[commented.end() :]
        else:
            text = f"{text.rstrip()}\n\n# {COMMENTS[key]}\n{line_of(key, value)}\n" if text.strip() else f"---\n# {COMMENTS[key]}\n{line_of(key, value)}\n"
    _node(text, path)  # a file with an end of document gets a second one
    return text


def edited_hosts(existing: Existing, hosts: Sequence[Host], path: Path) -> str:
    """Return hosts.yml with these addresses; names, other variables and comments stay as they are."""
    text = existing.texts[HOSTS]
    for number, host in enumerate(hosts):
        there, set_in = existing.hosts[number][1], existing.in_host_vars[number]
        for key, value in _wanted(host, there).items():
            name, variables = _host_nodes(text, path)[number]
            if key in set_in:
                if there[key] != (value if isinstance(value, str) else list(value)):
                    raise AnsibleActionFail(f"{set_in[key]} sets {key}, which has to be {written(key, value)}. Change it there, and run again.")
                continue
            node = _below(variables, key)
            if key == "ansible_host" and node is None and value == name:
                continue  # a host without ansible_host is reached by its name
            if node is None:
                text = _inserted(text, variables, line_of(key, value), f"{path}: {name}: {key}")
            elif _plain(node) != (value if isinstance(value, str) else list(value)):
                text = _replaced(text, node, written(key, value), path)
    return text


def _wanted(host: Host, there: Mapping[str, Any]) -> dict[str, str | Sequence[str]]:
    """Return the variables that a machine should have; `there` are those that it has."""
    wanted: dict[str, str | Sequence[str]] = {"ansible_host": host.address, **host.login}
    if host.local or there.get("ansible_connection") == "local":
        wanted["ansible_connection"] = "local" if host.local else "ssh"
    if host.local and there.get("ansible_python_interpreter") is None:
        wanted["ansible_python_interpreter"] = PYTHON
    if host.addresses:
        wanted["gb10_fabric_addresses"] = host.addresses
    return wanted


def _inserted(text: str, variables: Any, line: str, where: str) -> str:
    """Return the text with a line added to the variables of a host that has some."""
    if not isinstance(variables, yaml.MappingNode) or not variables.value or variables.flow_style:
        raise AnsibleActionFail(f"{where} is not set, and the host has no block of variables. Add it by hand.")
    last_key = variables.value[0][0]
    lines = text.splitlines(keepends=True)
    lines.insert(last_key.start_mark.line, " " * last_key.start_mark.column + line + "\n")
    return "".join(lines)


def diff(folder: Path, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what changes in the files, as lines of a unified diff."""
    lines: list[str] = []
    for name, text in after.items():
        path = str(folder / name)
        lines += [line.rstrip("\n") for line in difflib.unified_diff(before[name].splitlines(), text.splitlines(), path, path, lineterm="", n=0)]
    return lines


def write(folder: Path, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Write the files that differ, each as a whole, and return their paths. Raises AnsibleActionFail."""
    done = []
    for name, text in after.items():
        path = folder / name
        if before.get(name) == text:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(path) and _text(path) != before.get(name):
                raise AnsibleActionFail(f"{path} was changed by another process meanwhile. Run setup.yml again.")
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
            write_atomically(os.path.realpath(path), text, mode)
        except OSError as error:
            raise AnsibleActionFail(f"{path} cannot be written: {error.strerror or error}. Give another folder with -e setup_inventory=FOLDER.") from error
        done.append(str(path))
    return done
