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


def _exchange(connection: socket.socket) -> None:
    """Pass a request line from the standard input to the socket, and the reply line from there to the standard output."""
    data = b" "
    while data and not data.endswith(b"\n"):
        if connection.fileno() in select.select([0, connection.fileno()], [], [])[0]:
            break  # refused, or closed: the agent waits for a request only so long, and a head that lost its power ends no session
        data = os.read(0, CHUNK)
        try:
            connection.sendall(data)
        except BrokenPipeError:
            break
    connection.shutdown(socket.SHUT_WR)
    data = b" "
    while data and not data.endswith(b"\n"):
        data = rest = connection.recv(CHUNK)
        while rest:
            rest = rest[os.write(1, rest) :]


def connect(path: str = SESSION_SOCKET) -> int:
    """Copy a request and its reply between the standard streams and the session socket.

    Return the exit code, 1 with one line on stderr if the agent does not accept the connection.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        what = "connect failed"
        try:
            connection.connect(path)
            what = "connection lost"
            _exchange(connection)
        except OSError as error:
            sys.stderr.write(f"{what}: {path}: {error.strerror}\n")
            return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["connect"]:
        return connect()
    from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands

    return commands.run(words)
