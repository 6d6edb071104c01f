# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Parse the log and the state of a container as the Docker Engine sends them. Pure."""

from __future__ import annotations

import calendar
import itertools
import re
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._node.client import DockerError

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")
#: A record may be this much older than the one before it: the engine reads and stamps the two streams of a container independently.
OUT_OF_ORDER_NS = 2 * 10**9
RECORD_BYTES = 1 << 20


def stamp_to_ns(text: bytes | str) -> int:
    """Return the nanoseconds since the epoch of an RFC 3339 time, as Docker prints it; 0 if the text is not one."""
    raw = text.encode() if isinstance(text, str) else text
    match = _STAMP.match(raw)
    if not match:
        return 0
    seconds = calendar.timegm(time.strptime(match.group(1).decode(), "%Y-%m-%dT%H:%M:%S"))
    zone = match.group(3).decode()
    if zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        seconds += offset if zone[0] == "-" else -offset
    fraction = (match.group(2) or b"").decode().ljust(9, "0")
    return seconds * 10**9 + int(fraction)


def ns_to_stamp(time_ns: int) -> str:
    """Return a time in nanoseconds since the epoch as Docker prints it, with nine digits, so that the texts sort as the times do."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ns // 10**9)) + f".{time_ns % 10**9:09d}Z"


class Record(NamedTuple):
    """One record of a log: its time in ns since the epoch (0 without a timestamp), and its text without the timestamp.

    The engine splits a line longer than 16 KiB into several records without a line end. All of them have the timestamp of the first.
    """

    time: int
    text: bytes


def records(pieces: Iterable[bytes], partial: bool = True) -> Iterator[Record]:
    """Parse a log as the engine sends it with timestamps: frames of 8 bytes (stream, 3 zeros, big-endian length) and one record each.

    A container with a terminal has no frames, but lines. There, `partial` decides whether a last line without its end is a record.
    A frame that is not complete is left out. Raises DockerError for a frame longer than RECORD_BYTES: the engine ends each at 16 KiB.
    """
    buffer = bytearray()
    framed: bool | None = None
    for piece in pieces:
        buffer += piece
        if framed is None:
            if len(buffer) < 8:
                continue
            framed = buffer[0] in (0, 1, 2) and buffer[1:4] == b"\0\0\0"
        position = 0
        while True:
            if framed:
                size = int.from_bytes(buffer[position + 4 : position + 8], "big")
                if size > RECORD_BYTES:
                    raise DockerError(f"The Docker Engine sends a log record of {size} bytes, more than {RECORD_BYTES}. Check what listens on its socket.")
                end = position + 8 + size
                if len(buffer) < position + 8 or len(buffer) < end:
                    break
                yield _record(bytes(buffer[position + 8 : end]))
            else:
                end = buffer.find(b"\n", position) + 1 or (position + RECORD_BYTES if len(buffer) - position >= RECORD_BYTES else 0)
                if not end:
                    break
                yield _record(bytes(buffer[position:end]))
            position = end
        del buffer[:position]
    if buffer and partial and framed is False:
        yield _record(bytes(buffer))


def _record(raw: bytes) -> Record:
    match = _STAMP.match(raw)
    return Record(stamp_to_ns(match.group(0).strip()), raw[match.end() :]) if match else Record(0, raw)


class Reader:
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
        for number, record in enumerate(records(pieces, partial=False)):
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


def text_of(pieces: Iterable[bytes], limit: int) -> tuple[bytes, bool]:
    """Return the last `limit` bytes of a log's text, and whether it is longer. Uses twice the limit."""
    kept, size = bytearray(), 0
    for record in records(pieces):
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
