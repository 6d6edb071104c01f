# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The container logs of all ranks of a group, merged by the times that the Docker Engine gave their lines."""

from __future__ import annotations

import base64
import heapq
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._node.log import stamp_to_ns
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError

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
