# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The lines of a tunnel for one copy, pure: a key that may do nothing but reach one port, from named addresses, for a limited time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node

KEY = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+) ([A-Za-z0-9+/=]+)( .*)?")


class TunnelError(ValueError):
    """A tunnel cannot be made; the text is a sentence for the user."""


def bare_key(line: str) -> str:
    """Return type and key of a public key line, without its comment. Raises TunnelError."""
    match = KEY.fullmatch(line.strip())
    if not match:
        raise TunnelError(f"{line.strip()[:40]!r} is no SSH public key: give what gb10.cluster.weights_key returned")
    return f"{match[1]} {match[2]}"


def host_keys(node: Node) -> list[str]:
    """Return type and key of a node's SSH host keys; a type that is not supported, such as DSA, is left out."""
    found = (KEY.fullmatch((node.read(path) or "").strip()) for path in node.glob("/etc/ssh/ssh_host_*_key.pub"))
    return [f"{match[1]} {match[2]}" for match in found if match]


def plain_address(text: str) -> str:
    """Return an address that has only the characters of one, so that it can be part of a line of SSH. Raises TunnelError."""
    if not re.fullmatch(r"[0-9A-Fa-f.:]+", text):
        raise TunnelError(f"{text!r} is no address")
    return text


def authorized_line(key: str, comment: str, port: int, peers: Sequence[str], expires: str) -> str:
    """Return the line of authorized_keys; `expires` is local time as YYYYMMDDHHMM. Raises TunnelError."""
    allowed = ",".join(plain_address(peer) for peer in peers)
    options = f'restrict,port-forwarding,permitopen="127.0.0.1:{port}",from="{allowed}",expiry-time="{expires}"'
    return f"{options} {bare_key(key)} {comment}"


def without(text: str, comment: str) -> str:
    """Return an authorized_keys file without the lines of this comment."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.rstrip("\r\n").endswith(f" {comment}"))


def added(text: str, comment: str, lines: Iterable[str]) -> str:
    """Return an authorized_keys file with these lines instead of older ones of this comment."""
    kept = without(text, comment)
    return kept + ("\n" if kept and not kept.endswith("\n") else "") + "".join(f"{line}\n" for line in lines)


def known_hosts(address: str, keys: Iterable[str]) -> str:
    """Return known_hosts lines. Raises TunnelError."""
    return "".join(f"{address} {bare_key(key)}\n" for key in keys)


def command(folder: str, user: str, address: str, bind: str, local_port: int, port: int) -> list[str]:
    """Return ssh's words for one tunnel; `folder` has the key `id` and `known_hosts`."""
    options = [
        "BatchMode=yes", "IdentitiesOnly=yes", f"UserKnownHostsFile={folder}/known_hosts", "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes",
        "ExitOnForwardFailure=yes", "ConnectTimeout=10", "ServerAliveInterval=10", "ServerAliveCountMax=3", "Compression=no",
    ]  # fmt: skip
    argv = ["ssh", "-F", "/dev/null", "-N", "-T", "-i", f"{folder}/id"]
    for option in options:
        argv += ["-o", option]
    argv += ["-b", bind] if bind else []
    return [*argv, "-L", f"127.0.0.1:{local_port}:127.0.0.1:{port}", f"{user}@{address}"]
