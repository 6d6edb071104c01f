# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A read client of the Docker Engine API over its unix socket, with the standard library only.

The Docker command line takes 50 to 100 ms a call and does not frame its output; the agent reads several times a second.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads

DEFAULT_SOCKET = "/var/run/docker.sock"
LOWEST = (1, 41)  # Docker Engine 20.10
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
    """Return the highest API version that the engine of this /version reply and this client support, as a path prefix. Raises DockerError."""
    newest = _numbers(reply.get("ApiVersion"))
    oldest = _numbers(reply.get("MinAPIVersion") or reply.get("ApiVersion"))
    chosen = min(newest, HIGHEST)
    if chosen >= max(oldest, LOWEST):
        return "/v{}.{}".format(*chosen)
    ranges = "Docker Engine {} supports API {}.{} to {}.{}, and gb10.cluster needs {}.{} to {}.{}.".format(
        reply.get("Version", "(unknown version)"), *oldest, *newest, *LOWEST, *HIGHEST
    )
    if newest < LOWEST:
        raise DockerError(f"{ranges} The engine is too old. Install Docker Engine 20.10 or later.")
    raise DockerError(
        f"{ranges} The engine is too new. Install a newer gb10.cluster, or set DOCKER_MIN_API_VERSION={HIGHEST[0]}.{HIGHEST[1]} in docker.service."
    )


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
    """Yield both streams with timestamps, framed, in pieces of at most 64 KiB; see :mod:`log` for the format.

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
