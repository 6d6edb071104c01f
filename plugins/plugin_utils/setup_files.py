# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the two files of an inventory that setup.yml writes: their texts, and what is there already. Controller only.

The texts follow inventories/spark-pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

HOSTS, GROUP = "hosts.yml", "group_vars/gb10.yml"
# The variables of GROUP, each with its comment.
COMMENTS = {
    "ansible_user": "The user to log in as over SSH.",
    "gb10_profile": "What to serve: a profile shipped in profiles/, or one of your own (docs/reference/profiles.md).",
    "gb10_model_store": "Where the model weights are on both machines. Weights that no machine has are downloaded.",
    "gb10_fabric_cidrs": "The networks of the QSFP link, one for each rail.",
    "roce_foreign_policy": "What to do with the network configuration of other tools on the rails: adopt, replace or refuse.",
}
_HOSTS_TEXT = """---
# Your two machines, written by playbooks/setup.yml.
# The first host is the head (rank 0, serves the API), the second is the worker. pair1 is a serving group: the hosts that serve one model together.
"""
_GROUP_TEXT = """---
# What you want of the pair, written by playbooks/setup.yml.
# docs/inventory.md has all variables, `ansible-doc -t role gb10.cluster.<role>` those of a role.
"""
_API_KEY = """
# The key that the API asks for. Without one the first run makes a key and keeps it on the head. To choose one, paste here what this prints:
#   ansible-vault encrypt_string --stdin-name vllm_tp2_api_key
# and add --ask-vault-pass to the command.
# vllm_tp2_api_key: !vault |
#   ...
"""
_OWN = ("ansible_user", "ansible_connection")  # not there for a machine that needs none
_OTHER = "Write another inventory with -e setup_inventory=FOLDER"


class _Loader(SafeLoader):
    """Reads what has a tag, such as a vault, as nothing."""


_Loader.add_multi_constructor("!", lambda *_arguments: None)


def read(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the variables of each of the two machines and of the group; empty without an inventory. Raises AnsibleActionFail for one of another shape."""
    if not (folder / HOSTS).exists():
        others = [path for path in sorted(folder.glob("[!.]*")) if path.is_file()]
        if others:
            raise AnsibleActionFail(f"{others[0]} is there, and {folder / HOSTS} is not: setup.yml writes inventories with a {HOSTS}. {_OTHER}.")
        return {}, {}
    try:
        ((_name, group),) = _load(folder / HOSTS)["gb10"]["children"].items()
        hosts = {str(name): dict(variables or {}) for name, variables in group["hosts"].items()}
        values = dict(_load(folder / GROUP) or {})
    except (AttributeError, KeyError, TypeError, ValueError):
        hosts, values = {}, {}
    if len(hosts) != 2:
        raise AnsibleActionFail(f"{folder} is not an inventory of one pair, expected one group below gb10 with two hosts. {_OTHER}.")
    return hosts, values


def _load(path: Path) -> Any:
    """Return the document of a file, None without one. A parser's message can quote a secret: only the place is shown."""
    try:
        return yaml.load(bounded.text(str(path), 1 << 20, "strict"), Loader=_Loader) if path.exists() else None  # noqa: S506  a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise AnsibleActionFail(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}. {_OTHER}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise AnsibleActionFail(f"{path}{f':{mark.line + 1}' if mark else ''} is not valid YAML. Correct it. {_OTHER}.") from None


def hosts_text(hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return hosts.yml; the head comes first."""
    return _HOSTS_TEXT + compose_yaml({"gb10": {"children": {"pair1": {"hosts": hosts}}}})


def group_text(values: Mapping[str, Any]) -> str:
    """Return group_vars/gb10.yml; `values` has the variables of COMMENTS that are set."""
    parts = [f"\n# {comment}\n{compose_yaml({key: values[key]})}" for key, comment in COMMENTS.items() if key in values]
    return _GROUP_TEXT + "".join(parts) + _API_KEY


def host_names(found: Sequence[str]) -> list[str]:
    """Return the names of two machines in the inventory: their own if they are valid and differ, else spark-1 and spark-2."""
    short = [name.partition(".")[0].lower() for name in found]
    valid = all(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,59}", name) and name not in ("localhost", "gb10", "pair1", "all", "ungrouped") for name in short)
    return short if valid and len(set(short)) == len(short) else [f"spark-{number}" for number in range(1, len(found) + 1)]


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value with the path of its key."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree


def change(path: Path, text: str) -> tuple[bool, list[str]]:
    """Return whether a file has other values than a text, and what of the file the text has not, or with another value. More variables do not differ."""
    old, new = dict(_flat(_load(path))), dict(_flat(yaml.load(text, Loader=_Loader)))  # noqa: S506  a SafeLoader
    differs = any(old.get(key) != value for key, value in new.items()) or any(key not in new and key.rpartition(".")[2] in _OWN for key in old)
    return differs, [".".join(key.split(".")[-2:]) for key, value in old.items() if key and new.get(key, _OTHER) != value]


def write(path: Path, text: str) -> None:
    """Write a file as a whole. Raises AnsibleActionFail."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(str(path.resolve()), text, path.stat().st_mode & 0o777 if path.exists() else 0o644)
    except OSError as error:
        raise AnsibleActionFail(f"{path} cannot be written: {error.strerror or error}. {_OTHER}.") from error
