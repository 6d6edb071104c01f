# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read or run, with a limit in bytes and seconds: files that a container or a user can write, replies of servers, commands of the node.

And the form of what is in it, checked once where it enters: JSON, and the environment file of the secrets.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import reprlib
import selectors
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Protocol

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


# --- Run a command of the node, bounded in time and output.

SECONDS = 60.0
OUTPUT = 16 << 20  # bytes that are kept of each stream
LATE = 124  # as of timeout(1)


class Run(Protocol):
    """Runs a command: rc, stdout, stderr. rc is 127 if there is no such command, and 124 if it was ended after `timeout` seconds."""

    def __call__(
        self, argv: Sequence[str], timeout: float = SECONDS, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]: ...  # fmt: skip


def _leave_to_the_kernel(pid: int) -> None:
    """Take from a command the protection against the kernel's lack of memory that the agent itself has."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/oom_score_adj", encoding="ascii") as own:
            protected = int(own.read()) < 0
        if protected:
            with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as score:
                score.write("0")


def run_command(
    argv: Sequence[str], timeout: float = SECONDS, cwd: str | None = None, env: Mapping[str, str] | None = None, *,
    stdin: str | None = None, discard: bool = False, limit: int = OUTPUT,
) -> tuple[int, str, str]:  # fmt: skip
    """Run a command without a shell, without its output if `discard`. At its time limit it is ended together with its children. See Run.

    `limit` are the bytes that are kept of each stream.
    """
    output = subprocess.DEVNULL if discard else subprocess.PIPE
    try:
        # pylint: disable-next=ansible-bad-function  # run_command of Ansible keeps all output, has no time limit, and is not there in the agent
        process = subprocess.Popen(  # noqa: S603  the caller has a list of words
            list(argv), stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=output, stderr=output, cwd=cwd, start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
        )  # fmt: skip
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    _leave_to_the_kernel(process.pid)
    end = time.monotonic() + timeout
    out, err, ended = converse(process, (stdin or "").encode("utf-8", "replace"), timeout, (limit, limit))
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, end - time.monotonic()) if ended else 0)
    if not ended or process.poll() is None:
        # One that the kernel does not release is left behind.
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)
        return LATE, "", f"{' '.join(argv[:2])} did not end within {timeout:g} s."
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


# --- The form of data that a container, an engine or a user writes. Pure. Hand-made: jsonschema is not part of a node's Python.
# A form is a type, [form] for a list, or a mapping of keys to forms. A key that ends in ? may be missing or null. Other keys are not checked.

LARGEST = 2**63
_EXPECTED = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "a mapping", list: "a list"}


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also if it is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def scalar(value: Any, form: type) -> str:
    """Return what is expected in place of a value of this type; empty if it fits."""
    number = form in (int, float)
    fits = isinstance(value, (int, form) if number else form) and not (number and isinstance(value, bool))
    return "" if fits and (not number or abs(value) < LARGEST) else _EXPECTED[form]  # NaN is not less


def misfit(value: Any, form: Any, path: str = "") -> str:
    """Return what does not fit a form, as a phrase that names the place; empty if the value fits."""
    kind = type(form) if isinstance(form, (list, dict)) else None
    expected = scalar(value, form) if kind is None else "" if isinstance(value, kind) else _EXPECTED[kind]
    if expected:
        return f"{path or 'it'} is {reprlib.repr(value)[:60]}, and {expected} is expected"
    if isinstance(form, list):
        return next(filter(None, (misfit(each, form[0], f"{path}[{index}]") for index, each in enumerate(value))), "")
    for name, each in form.items() if isinstance(form, dict) else ():
        key = name.rstrip("?")
        if name != key and value.get(key) is None:
            continue
        problem = misfit(value[key], each, f"{path}.{key}" if path else key) if key in value else f"{path or 'it'} has no {key}"
        if problem:
            return problem
    return ""


# --- The environment file of the secrets: written for Docker Compose, and read back.

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")


def env_problem(value: str) -> str:
    """Return why Compose would not read a value as it is, as the end of a sentence; empty if it does. Compose prints the value in its error."""
    if "'" in value:
        return "contains a single quote"
    if re.search(r"[\n\r\0]", value):
        return "contains a line end"
    return "ends in a backslash" if (len(value) - len(value.rstrip("\\"))) % 2 else ""


def env_text(values: Mapping[str, str]) -> str:
    """Return the text of a file: one NAME='value' line each, sorted. In single quotes Compose expands no dollar sign. See env_problem()."""
    return "".join(f"{name}='{values[name]}'\n" for name in sorted(values))


def env_values(text: str) -> dict[str, str]:
    """Return the values by name. One pair of quotes around a value is removed, as Compose does."""
    out = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        value = match[2].strip()
        quoted = len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]
        out[match[1]] = value[1:-1] if quoted else value
    return out
