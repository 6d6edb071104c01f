# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: how a person logs in to a node, in the commands to copy. Controller only."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ansible import context

# Of each setting of a connection the variables, the one that wins first, and the option of the command line.
_NAMES = {
    "connection": (("ansible_connection",), "connection"),
    "user": (("ansible_ssh_user", "ansible_user"), "remote_user"),
    "host": (("ansible_ssh_host", "ansible_host"), ""),
    "port": (("ansible_ssh_port", "ansible_port"), ""),
    "key": (("ansible_ssh_private_key_file", "ansible_private_key_file"), "private_key_file"),
    "common": (("ansible_ssh_common_args",), "ssh_common_args"),
    "extra": (("ansible_ssh_extra_args",), "ssh_extra_args"),
}


def ssh_words(values: Mapping[str, Any], host: str) -> list[str]:
    """Return the words of ssh for a node with these variables: options, and USER@ADDRESS; none if the node is the controller."""

    def value(what: str) -> str:
        names, option = _NAMES[what]
        found = next((values[name] for name in names if values.get(name)), None)
        return str(found or (context.CLIARGS.get(option) if option else "") or "")

    if value("connection").rpartition(".")[2] == "local":
        return []
    user, address, port, key = value("user"), value("host") or host, value("port"), value("key")
    options = [*(["-p", port] if port not in ("", "22") else []), *(["-i", key] if key else [])]
    return [*options, *shlex.split(value("common")), *shlex.split(value("extra")), f"{user}@{address}" if user else address]
