# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Reads with a limit in bytes and seconds: of files that a container or a user can write, and of replies of servers."""

from __future__ import annotations

import errno
import http.client
import os
import selectors
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Callable

FILE = 64 << 20  # bytes
REPLY = 32 << 20  # bytes
ENTRIES = 100_000  # files and folders below a folder
CHUNK = 1 << 16
LINGER = 1.0  # seconds


def data(path: str | int, limit: int = FILE) -> bytes:
    """Return the content of a file, which can be a descriptor (it is closed).

    Raises OSError, also if it is not a regular file (a pipe never ends), or is longer.
    """
    descriptor = path if isinstance(path, int) else os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = bytearray()
    with os.fdopen(descriptor, "rb", buffering=0) as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        while piece := handle.read(CHUNK):  # a file of /proc/sys refuses a read of megabytes
            found += piece
            if len(found) > limit:
                raise OSError(errno.EFBIG, f"it is longer than {limit} bytes", path)
    return bytes(found)


def text(path: str | int, limit: int = FILE, errors: str = "replace") -> str:
    """Return a file's text, with line ends as Python's text files have them. Raises OSError, and UnicodeDecodeError with errors="strict"."""
    return data(path, limit).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def end(path: str, limit: int) -> str:
    """Return the last `limit` bytes of a file as text. Raises OSError."""
    with open(path, "rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - limit))
        return handle.read(limit).decode("utf-8", "replace")


def below(root: str, limit: int = ENTRIES) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the path below `root`, and the entry, of all but folders. No link is followed. Raises OSError, also after `limit` files and folders."""
    pending, seen = [""], 0
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(root, folder) if folder else root) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                seen += 1
                if seen > limit:
                    raise OSError(errno.EFBIG, f"it has more than {limit} files and folders", root)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                else:
                    yield path, entry


class _Timed(socket.socket):
    """A socket whose reads and writes all end at one time of time.monotonic(), and each of them after `pause` seconds."""

    end = pause = 0.0

    def _left(self) -> None:
        left = self.end - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        self.settimeout(min(left, self.pause))

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self._left()
        return super().recv_into(*args, **kwargs)

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self._left()
        super().sendall(*args, **kwargs)


class Connection(http.client.HTTPConnection):
    """A connection that ends after `seconds`, however slowly the server sends. http.client's own timeout, `pause`, bounds each read alone."""

    def __init__(self, host: str, port: int, seconds: float, path: str = "", pause: float | None = None) -> None:
        """Prepare a connection to a TCP port, or to the unix socket `path`."""
        self._seconds, self._pause, self._path = seconds, min(seconds, pause or seconds), path
        super().__init__(host, port, timeout=self._pause)

    def connect(self) -> None:
        """Connect. Raises OSError."""
        end = time.monotonic() + self._seconds
        if self._path:
            plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                plain.settimeout(self._pause)
                plain.connect(self._path)
            except OSError:
                plain.close()
                raise
        else:
            plain = socket.create_connection((self.host, self.port), self._pause)
        timed = _Timed(plain.family, plain.type, plain.proto, fileno=plain.detach())
        timed.end, timed.pause = end, self._pause
        self.sock = timed


def reply(response: Any) -> bytes:
    """Return a reply's body. Raises OSError if it is longer than REPLY, or if its connection's time is over."""
    found = bytearray()
    while True:
        piece = response.read1(CHUNK)
        if not piece:
            if response.length:
                raise http.client.IncompleteRead(bytes(found[:CHUNK]), response.length)
            return bytes(found)
        found += piece
        if len(found) > REPLY:
            raise OSError(errno.EMSGSIZE, f"the reply is longer than {REPLY >> 20} MiB")


def _send(stream: Any, data: bytes) -> bytes:
    """Write to a pipe what it takes now, close it after the last byte, and return the rest."""
    try:
        data = data[os.write(stream.fileno(), data) :]
    except BrokenPipeError:  # the process has ended: what it printed tells why
        data = b""
    if not data:
        stream.close()
    return data


def converse(
    process: subprocess.Popen[bytes], data: bytes, seconds: float, limits: tuple[int, int], last: Callable[[bytearray], bool] = lambda _out: False
) -> tuple[bytes, bytes, bool]:
    """Write `data` to a process, and return what it prints on stdout and on stderr, and whether that ended in time. Closes its pipes.

    `limits` are the bytes that are kept of each. The end is when `last` of what came on stdout is true, or when both are closed. A child
    that stays may keep stderr open, so it is read for at most LINGER seconds after stdout has closed.
    """
    kept = (bytearray(), bytearray())
    try:
        in_time = _converse(process, data, time.monotonic() + seconds, list(zip(kept, limits)), last)
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
    return bytes(kept[0]), bytes(kept[1]), in_time


def _converse(process: subprocess.Popen[bytes], data: bytes, end: float, kept: list[tuple[bytearray, int]], last: Callable[[bytearray], bool]) -> bool:
    in_time = False
    with selectors.DefaultSelector() as ready:
        for number, stream in enumerate((process.stdout, process.stderr)):
            if stream:
                ready.register(stream, selectors.EVENT_READ, number)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            ready.register(process.stdin, selectors.EVENT_WRITE)
        while ready.get_map():
            found = ready.select(max(0.0, end - time.monotonic()))
            if time.monotonic() >= end:
                return in_time
            for key, _events in found:
                if key.data is None:
                    ready.unregister(key.fileobj)
                    data = _send(key.fileobj, data)
                    if data:
                        ready.register(key.fileobj, selectors.EVENT_WRITE)
                    continue
                piece = os.read(key.fd, CHUNK)
                out, limit = kept[key.data]
                out.extend(piece[: max(0, limit - len(out))])
                if not piece:
                    ready.unregister(key.fileobj)
                if not piece and key.data == 0:
                    end, in_time = min(end, time.monotonic() + LINGER), True
            if last(kept[0][0]):
                break
    return True
