# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The two questions that our read-only modules ask the Docker Engine, over its unix socket with the standard library.

The Docker command line costs 50 to 100 ms a call and frames nothing; the gate asks several times a second.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from typing import Any
from urllib.parse import quote, urlencode

DEFAULT_SOCKET = "/var/run/docker.sock"
API = "/v1.41"  # Docker 20.10, the oldest engine that we support


class DockerError(Exception):
    """The engine did not answer as expected; the text is a sentence for the user."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get(path: str, query: dict[str, str] | None = None, socket_path: str = DEFAULT_SOCKET, timeout: float = 20.0) -> bytes:
    """GET an API path and return the body; raise DockerError with the engine's own message on anything but 2xx."""
    connection = _UnixConnection(socket_path, timeout)
    try:
        connection.request("GET", API + path + ("?" + urlencode(query) if query else ""))
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise DockerError(
            f"the Docker Engine does not answer on {socket_path} ({error}): is docker.service running, and may this user read the socket?"
        ) from error
    finally:
        connection.close()
    if response.status // 100 != 2:
        text = body.decode("utf-8", "replace")
        with contextlib.suppress(ValueError, AttributeError):  # not JSON: the engine's plain text says it
            text = str(json.loads(text).get("message", text))
        raise DockerError(f"the Docker Engine answered {response.status} to {path}: {text.strip()}", response.status)
    return body


def inspect(container: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any] | None:
    """Return the engine's inspection of a container, None where there is none of that name or id."""
    try:
        return dict(json.loads(get(f"/containers/{quote(container, safe='')}/json", socket_path=socket_path)))
    except DockerError as error:
        if error.status == 404:
            return None
        raise


def list_containers(labels: list[str], socket_path: str = DEFAULT_SOCKET) -> list[dict[str, Any]]:
    """Return the engine's list of containers, stopped ones included, that carry all these `key=value` labels."""
    query = {"all": "1", "filters": json.dumps({"label": labels})}
    return list(json.loads(get("/containers/json", query, socket_path)))


def logs(container: str, since_ns: int, socket_path: str = DEFAULT_SOCKET) -> bytes:
    """Return both streams from a moment (ns since the epoch, inclusive) on, framed and with timestamps, as the engine sends them."""
    query = {"stdout": "1", "stderr": "1", "timestamps": "1", "since": f"{since_ns // 10**9}.{since_ns % 10**9:09d}"}
    return get(f"/containers/{quote(container, safe='')}/logs", query, socket_path)
