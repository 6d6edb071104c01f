# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A read client of the Docker Engine API over its unix socket, with the standard library only; the logs and the states of containers that it returns.

The Docker command line takes 50 to 100 ms a call and does not frame its output; the agent reads several times a second.
"""

from __future__ import annotations

import calendar
import contextlib
import http.client
import itertools
import json
import re
import socket
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads

DEFAULT_SOCKET = "/var/run/docker.sock"
HIGHEST = (1, 52)  # Docker Engine 29
TIMEOUT = 20.0
CHUNK = 1 << 16
LOG_SECONDS = 600.0  # the longest read of a log

_negotiated: dict[str, str] = {}


class DockerError(Exception):
    """The Docker Engine cannot be used as required. The text is one or more sentences with the remedy."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def left(deadline: float) -> float:
    """Return the seconds until a time of time.monotonic(), as the timeout of a call: 0.1 to TIMEOUT."""
    return min(TIMEOUT, max(deadline - time.monotonic(), 0.1))


def connect(socket_path: str, timeout: float = TIMEOUT, pause: float | None = None) -> http.client.HTTPConnection:
    """Return a connection to the engine that ends after `timeout` seconds, and after `pause` seconds in which nothing is sent."""
    return bounded.Connection("localhost", 80, timeout, socket_path, pause)


def silence(error: Exception, socket_path: str, timeout: float = TIMEOUT) -> DockerError:
    """Return the error for an engine that does not answer, with the remedy that fits the cause."""
    if isinstance(error, PermissionError):
        return DockerError(f"This user has no access to the Docker Engine's socket {socket_path}. Run with become.")
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return DockerError(
            f"The Docker Engine is not running: {socket_path} does not accept connections. Run site.yml with --tags docker, or `systemctl start docker`."
        )
    reason = f"no reply within {timeout:.0f} s" if isinstance(error, (socket.timeout, TimeoutError)) else str(error) or type(error).__name__
    return DockerError(f"The Docker Engine does not answer on {socket_path} ({reason}). See `journalctl -u docker -n 50`.")


def message_of(body: bytes) -> str:
    """Return the engine's own message in a reply."""
    text = body.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, AttributeError):  # a reply that is not JSON is the message itself
        text = str(loads(text).get("message", text))
    return text.strip()


def _numbers(version: object) -> tuple[int, int]:
    major, minor = str(version).split(".")
    return int(major), int(minor)


def choose_api(reply: dict[str, Any]) -> str:
    """Return the highest API version that the engine of this /version reply and this client support, as a path prefix.

    An engine that does not accept it any more names the versions that it accepts.
    """
    return "/v{}.{}".format(*min(_numbers(reply.get("ApiVersion")), HIGHEST))


def version(socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return the engine's reply to /version, which needs no API version. Raises DockerError."""
    with _request("/version", socket_path, TIMEOUT) as response:
        return dict(parsed(bounded.reply(response), socket_path))


def api(socket_path: str = DEFAULT_SOCKET) -> str:
    """Return the prefix of API paths, `/v1.45`, negotiated with the engine once per process and socket. Raises DockerError."""
    if socket_path not in _negotiated:
        _negotiated[socket_path] = choose_api(version(socket_path))
    return _negotiated[socket_path]


@contextlib.contextmanager
def _request(path: str, socket_path: str, timeout: float) -> Iterator[http.client.HTTPResponse]:
    connection = connect(socket_path, timeout, TIMEOUT)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status // 100 != 2:
            shown = path.split("?", 1)[0]
            if response.status == 400:  # so replies an engine that was replaced by one with other API versions
                _negotiated.pop(socket_path, None)
            raise DockerError(f"The Docker Engine answers HTTP {response.status} to {shown}: {message_of(response.read1(CHUNK))}", response.status)
        yield response
    except (OSError, http.client.HTTPException) as error:
        raise silence(error, socket_path, timeout) from error
    finally:
        connection.close()


def get(path: str, query: dict[str, str] | None = None, socket_path: str = DEFAULT_SOCKET, timeout: float = TIMEOUT) -> bytes:
    """GET an API path and return the body. Raises DockerError with the engine's own message on anything but 2xx."""
    with _request(api(socket_path) + path + ("?" + urlencode(query) if query else ""), socket_path, timeout) as response:
        return bounded.reply(response)


def parsed(body: bytes, socket_path: str) -> Any:
    """Return a reply's content. Raises DockerError if it is not JSON."""
    try:
        return loads(body)
    except ValueError as error:
        raise DockerError(f"{socket_path} does not answer as a Docker Engine does: found {body[:60]!r}. Check what listens there.") from error


def look_up(path: str, socket_path: str, timeout: float = TIMEOUT) -> dict[str, Any] | None:
    """Return the content of an API path, None if the engine does not have what it names. Raises DockerError."""
    try:
        body = get(path, None, socket_path, timeout)
    except DockerError as error:
        if error.status == 404:
            return None
        raise
    return dict(parsed(body, socket_path))


def inspect(container: str, socket_path: str = DEFAULT_SOCKET, timeout: float = TIMEOUT) -> dict[str, Any] | None:
    """Return the engine's inspection of a container, None if no container has this name or id. Raises DockerError."""
    return look_up(f"/containers/{quote(container, safe='')}/json", socket_path, timeout)


def list_containers(labels: list[str], socket_path: str = DEFAULT_SOCKET, timeout: float = TIMEOUT, stopped: bool = True) -> list[dict[str, Any]]:
    """Return the engine's list of containers that carry all these `key=value` labels; `stopped` includes stopped ones. Raises DockerError."""
    query = {"all": "1" if stopped else "0", "filters": json.dumps({"label": labels})}
    return list(parsed(get("/containers/json", query, socket_path, timeout), socket_path))


def logs(container: str, since_ns: int = 0, socket_path: str = DEFAULT_SOCKET, tail: int | None = None, deadline: float | None = None) -> Iterator[bytes]:
    """Yield both streams with timestamps, framed, in pieces of at most 64 KiB; log_records() reads them.

    `since_ns` is inclusive, in ns since the epoch. `tail` is the number of last records. `deadline` is a time of time.monotonic();
    after it, at the latest after LOG_SECONDS, the iteration ends with DockerError. Raises DockerError.
    """
    query = {"stdout": "1", "stderr": "1", "timestamps": "1"}
    if since_ns > 0:
        query["since"] = f"{since_ns // 10**9}.{since_ns % 10**9:09d}"
    if tail is not None:
        query["tail"] = str(tail)
    timeout = LOG_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.1)
    with _request(f"{api(socket_path)}/containers/{quote(container, safe='')}/logs?{urlencode(query)}", socket_path, timeout) as response:
        while True:
            data = response.read1(CHUNK)
            if not data:
                return
            yield data


# --- Parse the log and the state of a container as the Docker Engine sends them.

# In UTC with the log driver json-file, which each release sets. (In Docker 24.0.7 the driver local used the time zone of the node: moby issue 46910.)
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z ?")
#: A record may be this much older than the one before it: the engine reads and stamps the two streams of a container independently.
OUT_OF_ORDER_NS = 2 * 10**9
RECORD_BYTES = 1 << 20


def stamp_to_ns(text: bytes | str) -> int:
    """Return the nanoseconds since the epoch of an RFC 3339 time in UTC, as Docker prints it; 0 if the text is not one."""
    raw = text.encode() if isinstance(text, str) else text
    match = _STAMP.match(raw)
    if not match:
        return 0
    seconds = calendar.timegm(time.strptime(match.group(1).decode(), "%Y-%m-%dT%H:%M:%S"))
    fraction = (match.group(2) or b"").decode().ljust(9, "0")
    return seconds * 10**9 + int(fraction)


def ns_to_stamp(time_ns: int) -> str:
    """Return a time in nanoseconds since the epoch as Docker prints it, with nine digits, so that the texts sort as the times do."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ns // 10**9)) + f".{time_ns % 10**9:09d}Z"


class LogRecord(NamedTuple):
    """One record of a log: its time in ns since the epoch (0 without a timestamp), and its text without the timestamp.

    The engine splits a line longer than 16 KiB into several records without a line end. All of them have the timestamp of the first.
    """

    time: int
    text: bytes


def log_records(pieces: Iterable[bytes]) -> Iterator[LogRecord]:
    """Parse a log as the engine sends it with timestamps: frames of 8 bytes (stream, 3 zeros, big-endian length) and one record each.

    A frame that is not complete is left out. Raises DockerError for a frame longer than RECORD_BYTES: the engine ends each at 16 KiB, and sends no frames
    for a container with a terminal, which no release asks for.
    """
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        position = 0
        while len(buffer) >= position + 8:
            size = int.from_bytes(buffer[position + 4 : position + 8], "big")
            if size > RECORD_BYTES:
                raise DockerError(f"The Docker Engine sends a log record of {size} bytes, more than {RECORD_BYTES}. Check what listens on its socket.")
            end = position + 8 + size
            if len(buffer) < end:
                break
            yield _record(bytes(buffer[position + 8 : end]))
            position = end
        del buffer[:position]


def _record(raw: bytes) -> LogRecord:
    match = _STAMP.match(raw)
    return LogRecord(stamp_to_ns(match.group(0).strip()), raw[match.end() :]) if match else LogRecord(0, raw)


class LogReader:
    """Reads a growing log in parts, each record once.

    The log is ordered by writing, not by time: a record of one stream may carry an earlier time than a record of the other stream before it, and
    several records may carry the same time. The engine returns the records since a time in the order of writing. So the position is a time,
    a little before the latest record, and the number of records since that time that were consumed. `cursor` holds both as text.
    """

    def __init__(self, cursor: object = "", start_ns: int = 0) -> None:
        """Continue at a cursor of an earlier reader; an empty one, 0 or one before `start_ns` (the container's start) begins at that start."""
        since, _colon, count = str(cursor or 0).partition(":")
        self.since, self.count = int(since), int(count or 0)
        if self.since < start_ns:
            self.since, self.count = start_ns, 0

    @property
    def cursor(self) -> str:
        """The position for the next reader."""
        return f"{self.since}:{self.count}"

    def read(self, pieces: Iterable[bytes], limit: int, stamps: bool = False) -> bytes:
        """Return the new text of what the engine has sent since `self.since`. Ends with the record that reaches `limit` bytes.

        `stamps` begins each line with its time and a blank.
        """
        out: list[bytes] = []
        size = 0
        times = array("q")  # 8 bytes a record: a backlog has millions. Of all records consumed since self.since
        for number, record in enumerate(log_records(pieces)):
            if number >= self.count:
                if size >= limit:
                    break
                if stamps and (not out or out[-1].endswith(b"\n")):
                    out.append(ns_to_stamp(record.time).encode() + b" ")
                    size += len(out[-1])
                out.append(record.text)
                size += len(record.text)
            times.append(record.time)
        self._advance(times)
        return b"".join(out)

    def _advance(self, times: array[int]) -> None:
        """Move the position to the first record that must be read again.

        Engines before 23 return the records that are not older than `since`, later ones all from the first of these on. Both return the same
        where all records before the position are older than all after it.
        """
        self.count = len(times)
        least = times[-1] if times else 0
        wanted = max(times, default=0) - OUT_OF_ORDER_NS
        before = array("q", itertools.accumulate(times, max))
        for index in range(len(times) - 1, 0, -1):
            least = min(least, times[index])
            if before[index - 1] < least <= wanted:
                self.since, self.count = least, len(times) - index
                return


def log_text(pieces: Iterable[bytes], limit: int) -> tuple[bytes, bool]:
    """Return the last `limit` bytes of a log's text, and whether it is longer. Uses twice the limit."""
    kept, size = bytearray(), 0
    for record in log_records(pieces):
        kept += record.text
        size += len(record.text)
        if len(kept) > 2 * limit:
            del kept[:-limit]
    return bytes(kept[max(0, len(kept) - limit) :]), size > limit


def state_of(inspection: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the keys of an inspection that the gate and the status use; None if there is no container."""
    if inspection is None:
        return None
    state = inspection.get("State") or {}
    config = inspection.get("Config") or {}
    labels = config.get("Labels") or {}
    return {
        "id": str(inspection.get("Id", "")),
        "name": str(inspection.get("Name", "")).lstrip("/"),
        "status": str(state.get("Status", "unknown")),
        "running": bool(state.get("Running")),
        "pid": int(state.get("Pid") or 0),
        "exit_code": int(state.get("ExitCode") or 0),
        "oom_killed": bool(state.get("OOMKilled")),
        "error": str(state.get("Error") or ""),
        "started_at": str(state.get("StartedAt") or ""),
        "finished_at": str(state.get("FinishedAt") or ""),
        "restart_count": int(inspection.get("RestartCount") or 0),
        "image": str(config.get("Image") or ""),
        "image_id": str(inspection.get("Image") or ""),
        "labels": {key: value for key, value in labels.items() if key.startswith("gb10.cluster.")},
    }


def memory_of(meminfo: str, vmstat: str = "") -> dict[str, int]:
    """Return the memory figures of a boot, in KiB, and the number of OOM kills of the kernel."""
    wanted = {"MemTotal": "total_kib", "MemFree": "free_kib", "MemAvailable": "available_kib", "SwapTotal": "swap_total_kib", "SwapFree": "swap_free_kib"}
    out = {wanted[key]: int(kib) for key, kib in re.findall(r"(?m)^(\w+):\s*(\d+)", meminfo) if key in wanted}
    kills = re.search(r"(?m)^oom_kill\s+(\d+)", vmstat)
    return {**out, "oom_kills": int(kills[1])} if kills else out
