# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node knows of its agent. Reads only, and never raises: a node without an agent has the same keys, without values."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent import client, config, ssh_keys, stamp, standing
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._release.node import read_json

TIMEOUT_SECONDS = 2.0


def ssh_port(node: Node) -> int:
    """Return the first port that the node's SSH server is configured with."""
    for path in [*node.glob("/etc/ssh/sshd_config.d/*.conf"), "/etc/ssh/sshd_config"]:
        found = re.search(r"^\s*Port\s+(\d+)", node.read(path) or "", re.MULTILINE | re.IGNORECASE)
        if found:
            return int(found.group(1))
    return 22


def state_of(known: dict[str, Any], socket: str) -> dict[str, Any]:
    """Return what the agent on the socket reports; empty without an answer in time, and if the agent refuses. `known` is its configuration."""
    verb = "hello" if known.get("rank") else "state"
    try:
        return client.call(verb, socket=socket, timeout=TIMEOUT_SECONDS, group=known.get("group", ""), head=known.get("head_id", ""), generation=0)
    except client.ERRORS:
        return {}


def read(node: Node, socket: str = config.ADMIN_SOCKET) -> dict[str, Any]:
    """Return version, keys and state of the node's agent; the version is empty and the state is {} if there is no agent."""
    state = state_of(read_json(node.at(config.CONFIG)), socket)
    return {
        "version": node.link(config.CURRENT) or "",
        "state": state,
        "converges": standing.converges(state),
        "public_key": (node.read(f"{config.KEY}.pub") or "").strip(),
        "head_id": (node.read("/etc/machine-id") or "").strip(),
        "host_keys": ssh_keys.host_keys(node),
        "ssh_port": ssh_port(node),
        "stamp": "",
        **stamp.read(node.root),
    }
