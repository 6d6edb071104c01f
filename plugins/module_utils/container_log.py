# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The framing of a container's log as the Docker Engine sends it, and of its state. Pure: bytes and dicts in, bytes and dicts out."""

from __future__ import annotations

import calendar
import re
import struct
import time
from typing import Any

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?")


def stamp_to_ns(text: bytes | str) -> int:
    """Turn an RFC 3339 time (as Docker prints it) into nanoseconds since the epoch; 0 where it is none."""
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


def demux(raw: bytes, limit: int = 1 << 20) -> tuple[bytes, int]:
    """Unframe what the engine sent: (log bytes without timestamps, time of the last record in ns or 0 for none).

    Each frame is one record: 8 bytes (stream, 3 zeros, big-endian length), then a timestamp, a blank and the text.
    A record of over 16 KiB comes as several frames without a line end, each with a timestamp of its own: only whole frames are unstamped.
    Stops after `limit` bytes of text, so that a busy log cannot fill the memory; the time returned is that of the last record kept.
    """
    out: list[bytes] = []
    size = 0
    last = 0
    position = 0
    while position + 8 <= len(raw) and size < limit:
        stream, length = raw[position], struct.unpack(">I", raw[position + 4 : position + 8])[0]
        if stream not in (0, 1, 2) or raw[position + 1 : position + 4] != b"\0\0\0":
            # A container with a terminal: no frames, one stamped line after another.
            return _unstamp_lines(raw[position:], limit)
        frame = raw[position + 8 : position + 8 + length]
        if len(frame) < length:
            break
        position += 8 + length
        match = _STAMP.match(frame)
        if match:
            last = stamp_to_ns(match.group(0).strip()) or last
            frame = frame[match.end() :]
        out.append(frame)
        size += len(frame)
    return b"".join(out), last


def _unstamp_lines(raw: bytes, limit: int) -> tuple[bytes, int]:
    out: list[bytes] = []
    size = 0
    last = 0
    for line in raw.splitlines(keepends=True):
        match = _STAMP.match(line)
        if match:
            last = stamp_to_ns(match.group(0).strip()) or last
            line = line[match.end() :]  # the text after the stamp is what the container wrote
        out.append(line)
        size += len(line)
        if size >= limit:
            break
    return b"".join(out), last


def state_of(inspection: dict[str, Any] | None) -> dict[str, Any] | None:
    """Reduce an inspection to what the gate and the status need; None stays None (no such container)."""
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
    """Read the figures (KiB) that a boot on unified memory is judged by, and the kernel's count of OOM kills."""
    wanted = {"MemTotal": "total_kib", "MemFree": "free_kib", "MemAvailable": "available_kib", "SwapTotal": "swap_total_kib", "SwapFree": "swap_free_kib"}
    out: dict[str, int] = {}
    for line in meminfo.splitlines():
        key, _colon, rest = line.partition(":")
        if key in wanted and rest.split():
            out[wanted[key]] = int(rest.split()[0])
    for line in vmstat.splitlines():
        parts = line.split()
        if len(parts) == 2 and parts[0] == "oom_kill":
            out["oom_kills"] = int(parts[1])
    return out
