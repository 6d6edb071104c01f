# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of SSH keys and addresses before they become part of a line of OpenSSH's files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node

KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+) ([A-Za-z0-9+/=]+)( .*)?")


class KeyLineError(ValueError):
    """A key or an address is not valid. The text is a sentence for the user."""


def bare_key(line: str) -> str:
    """Return type and key of a public key line, without its comment. Raises KeyLineError."""
    match = KEY.fullmatch(line.strip())
    if not match:
        raise KeyLineError(f"{line.strip()[:40]!r} is not an SSH public key. Expected: type, key and comment on one line.")
    return f"{match[1]} {match[2]}"


def host_keys(node: Node) -> list[str]:
    """Return type and key of a node's SSH host keys; a type that is not supported, such as DSA, is left out."""
    found = (KEY.fullmatch((node.read(path) or "").strip()) for path in node.glob("/etc/ssh/ssh_host_*_key.pub"))
    return [f"{match[1]} {match[2]}" for match in found if match]


def plain_address(text: str) -> str:
    """Return an address that has only the characters of one, so that it can be part of a line of SSH. Raises KeyLineError."""
    if not re.fullmatch(r"[0-9A-Fa-f.:]+", text):
        raise KeyLineError(f"{text!r} is not an address")
    return text


def known_hosts(address: str, keys: Iterable[str]) -> str:
    """Return known_hosts lines. Raises KeyLineError."""
    return "".join(f"{address} {bare_key(key)}\n" for key in keys)
