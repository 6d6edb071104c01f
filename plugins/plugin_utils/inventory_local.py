# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what an inventory and the command line name on this computer: connection plugins, key files, folders. Controller only."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.plugins.loader import become_loader, connection_loader
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.connection import key_fault, user_fault

_USUAL = ("ssh", "local", "smart")
_KEYS = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_PASSWORDS = ("ansible_password", "ansible_ssh_pass", "ansible_ssh_password")
FOLDERS = (
    "gb10_evidence", "gb10_profiles_directory", "gb10_receipts", "vllm_tp2_bench_output", "vllm_tp2_evidence", "vllm_tp2_receipts", "vllm_tp2_report_dest",
    "vllm_tp2_validate_output",
)  # fmt: skip


def faults(values: Mapping[str, Any], connects: bool) -> list[tuple[str, str]]:
    """Return (variable, sentence) of each value that names what this computer does not have.

    :param connects: whether this run connects to the hosts with a key. A run that does not may be on a computer without it.
    """
    method = values.get("ansible_connection") or "ssh"
    found = [("ansible_connection", connection_fault(method)), ("ansible_become_method", become_fault(values.get("ansible_become_method")))]
    with_password = any(values.get(name) for name in _PASSWORDS)  # SSH then goes on without the key
    found += [(name, key_file_fault(values.get(name))) for name in _KEYS if connects and str(method) == "ssh" and not with_password]
    found += [(name, folder_fault(values.get(name))) for name in FOLDERS]
    return [(name, text) for name, text in found if text]


def command_line_faults(arguments: Mapping[str, Any], addresses: Sequence[str]) -> list[tuple[str, str]]:
    """Return (option, sentence) of each way to the hosts on the command line that leads to none.

    :param addresses: the names and addresses of the hosts.
    """
    key = arguments.get("private_key_file")
    found = [
        ("-u", user_fault(arguments.get("remote_user"), tuple(addresses))),
        ("--private-key", key_fault(key) or key_file_fault(key)),
        ("--become-method", become_fault(arguments.get("become_method"))),
    ]
    return [(option, text) for option, text in found if text]


def all_here(values: Mapping[str, Mapping[str, Any]], arguments: Mapping[str, Any]) -> list[str]:
    """Return the hosts of one serving group that would all be this computer; empty if at most one would be."""
    # The full name, ansible.builtin.local, is not written by mistake: tests of playbooks have two hosts that are this computer.
    here = [host for host, each in values.items() if (each.get("ansible_connection") or arguments.get("connection")) == "local"]
    return here if len(here) > 1 else []


def become_fault(value: Any) -> str:
    """Return what is wrong with the short name of a become plugin; empty if Ansible has it. The name of a collection's plugin is not judged."""
    name = str(value or "sudo").strip()
    if "." in name or become_loader.has_plugin(name):
        return ""
    return f"is {name!r}, which is not a become plugin of this computer, expected sudo"


def connection_fault(value: Any) -> str:
    """Return what is wrong with the short name of a connection plugin; empty if Ansible has it. The name of a collection's plugin is not judged."""
    name = str(value).strip()
    if name in _USUAL or "." in name or connection_loader.has_plugin(name):
        return ""
    return f"is {name!r}, which is not a connection plugin of this computer, expected ssh or local{did_you_mean(name, _USUAL[:2])}"


def key_file_fault(value: Any) -> str:
    """Return why SSH cannot read a private key; empty if it can. An agent can have a key whose file is elsewhere."""
    path = Path(os.path.expanduser(str(value or "")))
    if not path.is_absolute() or "%" in str(value) or "$" in str(value) or key_fault(value) or os.path.exists(path) or os.environ.get("SSH_AUTH_SOCK"):
        return ""
    # os.path and not pathlib: a folder that this user may not read is then one without the key.
    siblings = [public.removesuffix(".pub") for public in glob.glob(os.path.join(glob.escape(str(path.parent)), "*.pub"))]
    return f"{value} does not exist on this computer, expected the file of a private key, such as ~/.ssh/id_ed25519{did_you_mean(path, siblings)}"


def folder_fault(value: Any) -> str:
    """Return why a folder cannot be made or read; empty if it can. What does not exist yet is made later."""
    if not isinstance(value, str) or not value.strip():
        return ""
    path = Path(os.path.expanduser(value))  # pathlib raises an error for the home of an unknown user
    above = next((each for each in (path, *path.parents) if os.path.lexists(each)), None)
    if above is None or not os.path.isfile(above):
        return ""
    return f"is {value!r}, and {above} is a file here, expected a folder"
