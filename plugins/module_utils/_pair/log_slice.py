# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. One slice of a container's log, with its state and the node's memory: what the agent's verb slice returns."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import without
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import Server
from ansible_collections.gb10.cluster.plugins.module_utils._node import log
from ansible_collections.gb10.cluster.plugins.module_utils._node.client import DEFAULT_SOCKET, DockerError, inspect, logs

POLL_SECONDS = 0.25
LOG_SECONDS = 60.0  # for one read of the log; a backlog of 150 MB takes 1 s
#: What may be decisive: a slice that holds one of these is returned at once, other news may gather for a while.
_DECISIVE = re.compile(rb"(?i)error|exception|traceback|startup complete|uvicorn running|ready to accept|killed|abort|fatal|usage:")


def http_status(url: str) -> int:
    """Return the HTTP status of a URL on this node; 0 without a reply within two seconds."""
    return Server(url, "", 2.0).call("GET", urlsplit(url).path or "/")[0]


def read_text(path: str) -> str:
    """Read a small file of /proc; an unreadable one reads as empty."""
    try:
        return bounded.text(path)
    except OSError:
        return ""


def take(
    container: str, cursor: object = "", known_state: str = "", wait: float = 2.0, gather: float = 0.0, limit: int = 262144, url: str = "",
    docker_socket: str = DEFAULT_SOCKET, stamps: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return a slice as soon as there is news, at the latest after `wait` seconds. Raises DockerError.

    log: the bytes since `cursor`, in base64. cursor: for the next slice. container: its state, None without one. http_status: of `url`; 0 without a reply.
    """
    start = time.monotonic()
    data, status = b"", 0
    while True:
        state = log.state_of(inspect(container, docker_socket))
        if state is not None and state["status"] != "created" and limit > len(data):
            reader = log.Reader(cursor, log.stamp_to_ns(state["started_at"]))
            data += reader.read(logs(state["id"], reader.since, docker_socket, deadline=time.monotonic() + LOG_SECONDS), limit - len(data), stamps)
            cursor = reader.cursor
        if url and not status:
            status = http_status(url)
        seconds = time.monotonic() - start
        changed = (state["status"] if state else "absent") != known_state
        full = len(data) >= limit
        if changed or status or full or seconds >= wait or (data and (seconds >= gather or _DECISIVE.search(data))):
            break
        time.sleep(POLL_SECONDS)
    return {
        "log": base64.b64encode(data).decode(),
        "cursor": str(cursor or ""),
        "container": state,
        "memory": log.memory_of(read_text("/proc/meminfo"), read_text("/proc/vmstat")),
        "http_status": status,
    }


def run(arguments: dict[str, Any], secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Return a slice without these values; `failed` and `msg` if the Docker Engine does not answer."""
    try:
        out = take(**arguments)
        if secrets and out.get("log"):
            text = base64.b64decode(out["log"]).decode("utf-8", "surrogateescape")
            out["log"] = base64.b64encode(without(text, secrets).encode("utf-8", "surrogateescape")).decode("ascii")
        return out
    except DockerError as error:
        return {"failed": True, "msg": f"Cannot follow the container {arguments['container']}: {error}"}
