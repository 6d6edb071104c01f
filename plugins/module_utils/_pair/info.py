# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What a node knows of its agent. Reads only: a node without an agent has the same keys, without values."""

from __future__ import annotations

import glob
import os
import pwd
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node.node import fingerprint, read_json
from ansible_collections.gb10.cluster.plugins.module_utils._pair import config, protocol, sshd, standing

TIMEOUT_SECONDS = 2.0
#: What the service is started with, and all that the role `agent` writes.
STARTED = (config.PROGRAM, config.CONFIG)
FILES = (*STARTED, config.UNIT_FILE, config.KNOWN_HOSTS, config.AUTHORIZED)
HOST_KEY = re.compile(r"((?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+) [A-Za-z0-9+/=]+)(?: .*)?")


def host_keys(node: Node) -> list[str]:
    """Return type and key of a node's SSH host keys; a type that is not supported, such as DSA, is left out."""
    found = (HOST_KEY.fullmatch((node.read(path) or "").strip()) for path in node.glob("/etc/ssh/ssh_host_*_key.pub"))
    return [match[1] for match in found if match]


def fingerprints(paths: tuple[str, ...], root: str = "/") -> dict[str, str]:
    """Return mode and SHA-256 of files, `0644 9f86d0...`; empty for one that is not there."""
    return {path: fingerprint(root.rstrip("/") + path) for path in paths}


def version_of(files: Mapping[str, str]) -> str:
    """Return the version of the program among fingerprints: 12 digits of its SHA-256; empty without a program."""
    return str(files.get(config.PROGRAM) or "").rpartition(" ")[2][:12]


def state_of(known: dict[str, Any], socket: str) -> dict[str, Any]:
    """Return what the agent on the socket reports; empty without an answer in time, and if the agent refuses. `known` is its configuration."""
    try:
        return protocol.call("hello" if known.get("rank") else "state", socket=socket, timeout=TIMEOUT_SECONDS)
    except protocol.ERRORS:
        return {}


def owners_in(directory: str) -> dict[str, str]:
    """Return the groups that own this node: group -> machine id of its head."""
    found = {path.split(os.sep)[-3]: str(read_json(path).get("head") or "") for path in glob.glob(os.path.join(directory, "*", config.STATE, config.OWNER))}
    return {group: head for group, head in sorted(found.items()) if head}


def _has_user() -> bool:
    try:
        return bool(pwd.getpwnam(config.USER))
    except KeyError:
        return False


def read(node: Node, head: Mapping[str, Any] | None = None, socket: str = config.ADMIN_SOCKET, directory: str = "") -> dict[str, Any]:
    """Return files, keys, owners and state of the node's agent.

    `head` has the name and the address that the head's sessions come from; none on the head. `directory` has the folders of all serving groups.
    """
    head = head if head and head.get("name") else None
    known = read_json(node.at(config.CONFIG))
    state = state_of(known, socket)
    found = fingerprints(FILES, node.root)
    rc, text = sshd.output(node, config.USER, head["name"], head["address"]) if head else sshd.output(node)
    return {
        "version": version_of(found),
        "files": found,
        "enabled": node.exists(f"/etc/systemd/system/multi-user.target.wants/{config.UNIT}"),
        "user": _has_user(),
        "place": {"group": str(known.get("group") or ""), "rank": int(known.get("rank") or 0)} if known else {},
        "owners": owners_in(node.at(directory)) if directory else {},
        "state": state,
        "converges": standing.converges(state),
        "public_key": (node.read(f"{config.KEY}.pub") or "").strip(),
        "head_id": (node.read("/etc/machine-id") or "").strip(),
        "host_keys": host_keys(node),
        "ssh_port": sshd.port_of(text) if rc == 0 else 22,
        "sshd_problems": sshd.problems_of(node, head["name"], head["address"], rc, text) if head else [],
    }
