# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the files of the inventory that setup.yml writes the first time, with comments. Pure, standard library only.

A later run edits them (plugin_utils/setup_files.py). The texts follow inventories/spark-pair.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PYTHON = "/usr/bin/python3"  # of a machine that is reached without SSH, where discovery finds the one on the user's PATH
LOGIN = ("ansible_user", "ansible_port", "ansible_ssh_private_key_file")  # how SSH reaches a machine; of a host or of the group
HOSTS, GROUP = "hosts.yml", "group_vars/gb10.yml"
# The variables of GROUP in the order in which a later run adds those that are missing, each with its comment.
COMMENTS = {
    "ansible_user": "The user to log in as over SSH.",
    "gb10_profile": "What to serve: a profile shipped in profiles/, or one of your own (docs/profiles.md).",
    "gb10_model_store": "Where the model weights are on both machines. Weights that no machine has are downloaded.",
    "gb10_fabric_cidrs": "The networks of the QSFP link, one for each rail.",
    "roce_foreign_policy": "What to do with the network configuration of other tools on the rails: adopt, replace or refuse.",
}


class Host(NamedTuple):
    """One machine of the inventory. `addresses` are those of its rails, if they do not follow from its rank.

    `login` are its own variables of LOGIN.
    """

    name: str
    address: str
    local: bool = False
    addresses: Sequence[str] = ()
    login: Mapping[str, str] = {}


def scalar(value: str) -> str:
    """Return a string as YAML reads it back: plain if it can only be a string, else in quotes."""
    plain = re.fullmatch(r"[A-Za-z_/][A-Za-z0-9_./-]*|\d{1,3}(?:\.\d{1,3}){3}", value)
    word = value.lower() in ("y", "yes", "n", "no", "true", "false", "on", "off", "null", "none", "~")
    return value if plain and not word else json.dumps(value, ensure_ascii=False)


def flow(values: Sequence[str]) -> str:
    """Return a list of strings in one line."""
    return f"[{', '.join(scalar(value) if re.fullmatch(r'[0-9./]+', value) is None else value for value in values)}]"


def _host_lines(host: Host) -> list[str]:
    """Return the variables of a machine."""
    lines = [line_of("ansible_host", host.address), *(line_of(key, value) for key, value in host.login.items())]
    if host.local:
        lines.append("ansible_connection: local  # the runs start on this machine")
        lines.append(f"ansible_python_interpreter: {PYTHON}  # that of the system, not that of .venv")
    if host.addresses:
        lines.append(f"{line_of('gb10_fabric_addresses', host.addresses)}  # of its rails, configured by another tool")
    return lines


def hosts_text(hosts: Sequence[Host]) -> str:
    """Return a new hosts.yml."""
    lines = [
        "---",
        "# Your two machines, written by playbooks/setup.yml. Edit what you like: a second run keeps it.",
        "# The first host is the head (rank 0, serves the API), the second is the worker.",
        "gb10:",
        "  children:",
        "    pair1:  # one serving group: the hosts that serve one model together",
        "      hosts:",
    ]
    for host in hosts:
        lines += [f"        {scalar(host.name)}:", *(f"          {line}" for line in _host_lines(host))]
    return "\n".join(lines) + "\n"


def group_text(values: Mapping[str, str | Sequence[str]]) -> str:
    """Return a new group_vars/gb10.yml; `values` has the variables of COMMENTS that are set."""
    lines = [
        "---",
        "# What you want of the pair, written by playbooks/setup.yml. Edit what you like: a second run keeps it.",
        "# docs/inventory.md has all variables, `ansible-doc -t role gb10.cluster.<role>` those of a role.",
    ]
    for key, comment in COMMENTS.items():
        if key in values:
            lines += ["", f"# {comment}", line_of(key, values[key])]
    lines += [
        "",
        "# The key that the API asks for. Without one the first run makes a key and keeps it on the head. To choose one, paste here what this prints:",
        "#   ansible-vault encrypt_string --stdin-name vllm_tp2_api_key",
        "# and add --ask-vault-pass to the command.",
        "# vllm_tp2_api_key: !vault |",
        "#   ...",
    ]
    return "\n".join(lines) + "\n"


def line_of(key: str, value: str | Sequence[str]) -> str:
    """Return `key: value` as one line."""
    return f"{key}: {written(key, value)}"


def written(key: str, value: str | Sequence[str]) -> str:
    """Return a value as YAML: a port as a number, else a string or a list of strings."""
    if not isinstance(value, str):
        return flow(value)
    return value if key == "ansible_port" else scalar(value)


def host_names(found: Sequence[str]) -> list[str]:
    """Return the names of two machines in the inventory: their own if they are valid and differ, else spark-1 and spark-2."""
    short = [name.partition(".")[0].lower() for name in found]
    valid = all(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,59}", name) and name not in ("localhost", "gb10", "pair1", "all", "ungrouped") for name in short)
    return short if valid and len(set(short)) == len(short) else [f"spark-{number}" for number in range(1, len(found) + 1)]
