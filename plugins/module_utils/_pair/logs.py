# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Container logs: one slice with the container's state and the node's memory, and those of all ranks merged by time."""

from __future__ import annotations

import base64
import heapq
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple
from urllib.parse import urlsplit

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import without
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import Server
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DEFAULT_SOCKET, DockerError, inspect, logs, stamp_to_ns
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError

# --- One slice of a container's log, with its state and the node's memory: what the agent's verb slice returns.

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


def take_slice(
    container: str, cursor: object = "", known_state: str = "", wait: float = 2.0, gather: float = 0.0, limit: int = 262144, url: str = "",
    docker_socket: str = DEFAULT_SOCKET, stamps: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return a slice as soon as there is news, at the latest after `wait` seconds. Raises DockerError.

    log: the bytes since `cursor`, in base64. cursor: for the next slice. container: its state, None without one. http_status: of `url`; 0 without a reply.
    """
    start = time.monotonic()
    data, status = b"", 0
    while True:
        state = docker_api.state_of(inspect(container, docker_socket))
        if state is not None and state["status"] != "created" and limit > len(data):
            reader = docker_api.LogReader(cursor, docker_api.stamp_to_ns(state["started_at"]))
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
        "memory": docker_api.memory_of(read_text("/proc/meminfo"), read_text("/proc/vmstat")),
        "http_status": status,
    }


def run_slice(arguments: dict[str, Any], secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Return a slice without these values; `failed` and `msg` if the Docker Engine does not answer."""
    try:
        out = take_slice(**arguments)
        if secrets and out.get("log"):
            text = base64.b64decode(out["log"]).decode("utf-8", "surrogateescape")
            out["log"] = base64.b64encode(without(text, secrets).encode("utf-8", "surrogateescape")).decode("ascii")
        return out
    except DockerError as error:
        return {"failed": True, "msg": f"Cannot follow the container {arguments['container']}: {error}"}


# --- The container logs of all ranks of a group, merged by the times that the Docker Engine gave their lines.

SCHEMA = "gb10.cluster/logs/1"
SLICE_BYTES = 1 << 20
BLOCK, AROUND = 1000, 200  # lines that are masked together, and lines before and behind them that are read with them
MOST_PIECES = 256  # more than the Docker Engine keeps with the role's settings
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

#: Takes the arguments of the verb `slice`, and returns its result.
Ask = Callable[..., dict[str, Any]]


class Line(NamedTuple):
    """One line of a rank's log: its time in ns since the epoch."""

    time: int
    host: str
    text: str


def seconds_of(text: str) -> float:
    """Return the seconds in 90s, 10m, 2h or 1d. Raises ValueError with a sentence."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not match:
        raise ValueError(f"{text!r} is not a duration. Use a number with a unit, such as 90s, 10m, 2h or 1d.")
    return float(match[1]) * _UNITS[match[2]]


def lines_of(ask: Ask, container: str, host: str, since: float) -> Iterator[Line]:
    """Yield the lines of a container of the last `since` seconds. Raises RankError, RankLost."""
    cursor = f"{max(0, int((time.time() - since) * 10**9))}:0"
    moment = 0
    for _piece in range(MOST_PIECES):
        piece = ask(container=container, cursor=cursor, wait=0.0, limit=SLICE_BYTES, stamps=True)
        if piece.get("failed"):
            raise RankError(str(piece.get("msg")))
        if piece.get("container") is None:
            raise RankError(f"There is no container {container} on {host}.")
        data = base64.b64decode(piece["log"])
        for raw in data.decode("utf-8", "replace").splitlines():
            stamp, _blank, text = raw.partition(" ")
            found = stamp_to_ns(stamp)
            moment = found or moment
            yield Line(moment, host, text if found else raw)  # a carriage return within a line leaves a part without a stamp
        if len(data) < SLICE_BYTES:
            return
        cursor = piece["cursor"]
    raise RankError(f"The log of {container} on {host} is longer than {MOST_PIECES * SLICE_BYTES >> 20} MiB: the rest is left out. Use a shorter time.")


def masked(lines: Iterable[Line], mask: Callable[[str], str], wanted: Callable[[str], Any]) -> Iterator[Line]:
    """Yield the masked lines of one rank whose own text is wanted. A line is masked with those around it: a key or an argument can begin on an earlier one."""
    kept: list[Line] = []
    done = 0  # how many of them are behind us: they are there to be read only
    failure: Exception | None = None
    source, ended = iter(lines), False
    while not ended:
        before = len(kept)
        try:
            for line in itertools.islice(source, BLOCK):
                kept.append(line)  # those before an error stay
        except Exception as error:  # noqa: BLE001  the lines before it are shown first
            failure = error
        ended = len(kept) < before + BLOCK
        end = len(kept) if ended else len(kept) - AROUND
        texts = mask("\n".join(line.text for line in kept)).split("\n")
        for line, text in list(zip(kept, texts))[done:end]:
            if wanted(line.text):
                yield line._replace(text=text)
        first = max(0, end - AROUND)
        kept, done = kept[first:], end - first
    if failure is not None:
        raise failure


def merged(logs: Iterable[Iterator[Line]], problem: Callable[[Exception], None]) -> Iterator[Line]:
    """Yield the lines of all ranks by time. A rank that cannot be read is reported to `problem`, and the others go on."""
    return heapq.merge(*(_guarded(log, problem) for log in logs), key=lambda line: line.time)


def _guarded(log: Iterator[Line], problem: Callable[[Exception], None]) -> Iterator[Line]:
    try:
        yield from log
    except Exception as error:  # noqa: BLE001  one rank must not end the output of the others
        problem(error)


def shown(line: Line) -> str:
    """Return a line as it is printed."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line.time // 10**9)) + f".{line.time // 10**6 % 1000:03d}Z"
    return f"{stamp} {line.host} | {line.text}"


def document_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the text of a document of `gb10 logs`."""
    return [*document["lines"], *document["problems"]] or ["No line matches."]
