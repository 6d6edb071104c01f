# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The command `gb10`. It imports only what the subcommand needs: `gb10 connect` runs for each call of the head."""

from __future__ import annotations

import os
import select
import socket
import sys

#: A literal: this runs for each connection and imports nothing of the collection.
SESSION_SOCKET = "/run/gb10-agent/session.sock"
CHUNK = 1 << 16


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _copy(connection: socket.socket) -> None:
    """Copy both ways until the socket ends; an end of the input is passed on."""
    sources: list[socket.socket | int] = [connection, 0]
    while True:
        ready = select.select(sources, [], [])[0]
        if 0 in ready:
            data = os.read(0, CHUNK)
            if data:
                connection.sendall(data)
            else:
                sources.remove(0)
                connection.shutdown(socket.SHUT_WR)
        if connection in ready:
            data = connection.recv(CHUNK)
            if not data:
                return
            _write(1, data)


def connect(path: str = SESSION_SOCKET) -> int:
    """Copy between the standard streams and the session socket until one side ends.

    Return the exit code, 1 with one line on stderr if the agent does not accept the connection.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            sys.stderr.write(f"connect failed: {path}: {error.strerror}\n")
            return 1
        try:
            _copy(connection)
        except OSError as error:
            sys.stderr.write(f"connection lost: {path}: {error.strerror}\n")
            return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["connect"]:
        return connect()
    from ansible_collections.gb10.cluster.plugins.module_utils._agent import commands

    return commands.run(words)
