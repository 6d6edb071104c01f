# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A Unix socket of the agent: each connection has one request line and one reply line, in a thread of its own."""

from __future__ import annotations

import contextlib
import grp
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError

MAX_CONNECTIONS = 32
CHUNK = 1 << 16
IDLE_SECONDS = 300.0  # after which a connection without a request is closed: its other end may no longer exist
REQUEST_SECONDS = 30.0  # from the first byte of a request to its last

Handle = Callable[[dict[str, Any]], dict[str, Any]]


def log(text: str) -> None:
    """Write a line to the journal."""
    sys.stderr.write(text.rstrip("\n") + "\n")
    sys.stderr.flush()


def bound(path: str, mode: int, group: str = "") -> socket.socket:
    """Return a listening socket at `path`. It belongs to `group` if that group exists. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)  # before listen(), so that no other user can connect
        with contextlib.suppress(KeyError):
            if group:
                os.chown(path, -1, grp.getgrnam(group).gr_gid)
                os.chmod(path, mode)
        listening.listen(MAX_CONNECTIONS)
    except OSError:
        listening.close()
        raise
    return listening


def request_of(connection: socket.socket) -> bytes:
    """Return the request line of a connection; empty if it ends before, and longer than MAX_LINE without its end if it is too long.

    Raises OSError, also if the request does not begin within IDLE_SECONDS, or does not end within REQUEST_SECONDS.
    """
    found, end = bytearray(), 0.0
    connection.settimeout(IDLE_SECONDS)
    while b"\n" not in found[-CHUNK:] and len(found) <= protocol.MAX_LINE:
        if found:
            end = end or time.monotonic() + REQUEST_SECONDS
            connection.settimeout(max(0.001, end - time.monotonic()))
        data = connection.recv(CHUNK)
        if not data:
            return b""
        found += data
    return b"".join(bytes(found).partition(b"\n")[:2])


class Listener:
    """Accepts connections on one socket and answers them with `handle`, which never raises for a verb that fails."""

    def __init__(self, path: str, handle: Handle, host: str, *, mode: int = 0o600, group: str = "") -> None:
        """Open the socket and accept connections in a thread. Raises OSError."""
        self.path, self._handle, self._host = path, handle, host
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._socket = bound(path, mode, group)
        self._thread = threading.Thread(target=self._accept, daemon=True, name=f"gb10-{os.path.basename(path)}")
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._socket.accept()
            except OSError as error:
                if self._socket.fileno() < 0 or not os.path.exists(self.path):
                    return
                log(f"{self.path}: {error}")
                threading.Event().wait(0.2)  # out of file descriptors, for example
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        with self._lock:
            accepted = len(self._open) < MAX_CONNECTIONS
            if accepted:
                self._open.add(connection)
        if not accepted:
            with contextlib.suppress(OSError), connection:
                connection.sendall(protocol.encode(protocol.failure(f"The agent on {self._host} has {MAX_CONNECTIONS} connections open. Try again later.")))
            return
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="gb10-connection").start()
        except RuntimeError as error:
            log(f"{self.path}: {error}")
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                line = request_of(connection)
                connection.settimeout(IDLE_SECONDS)
                if len(line) > protocol.MAX_LINE:
                    connection.sendall(protocol.encode(protocol.failure(f"A request is longer than {protocol.MAX_LINE} bytes.", "refused")))
                elif line:
                    connection.sendall(self.answer(line))
        finally:
            self._end(connection)

    def answer(self, line: bytes) -> bytes:
        """Return the reply line to a request line."""
        try:
            request = protocol.decode(line)
            if request.get("v") != protocol.PROTOCOL:
                return protocol.encode(protocol.refusal(request.get("v"), self._host))
            if not isinstance(request.get("verb"), str):
                return protocol.encode(protocol.failure("The request has no verb.", "unknown"))
            return protocol.encode(self._handle(request))
        except RankError as error:
            return protocol.encode(protocol.failure(error, error.kind))
        except Exception as error:  # noqa: BLE001  one request must not end the connection
            log(traceback.format_exc())
            return protocol.encode(protocol.failure(f"The agent on {self._host} failed: {type(error).__name__}: {error}. See `journalctl -u gb10-agent`."))

    def close(self) -> None:
        """Remove the socket and end its connections."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)
        self._socket.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
