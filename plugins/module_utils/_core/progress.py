# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The progress of long work as one line of text, and the remaining time. Pure.

Two or more spaces separate the parts of a line::

      spark-1: weights  45 %  66.2 GiB of 148.0 GiB  310 MB/s  4 min left
    [pair1 +  93 s] rank 0  spark-1      load 45 %  MemFree 31.0 GiB  6 min left
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_SHORT, _MINUTE, _HOUR = 100, 60, 3600
_BOOT = re.compile(r"rank \d{1,3}  (\S{1,255}) +([a-z][a-z ]{0,40}?)(?: \d{1,3} %)?(?:  |\Z)")

#: A rate is known after this many seconds and this share of the work.
_KNOWN_SECONDS, _KNOWN_SHARE = 10.0, 0.01


class Pace:
    """The rate of a piece of work, from its start to now."""

    def __init__(self) -> None:
        """Wait for the first amount."""
        self._first: tuple[float, float] | None = None

    def seconds_left(self, now: float, done: float, total: float) -> float | None:
        """Return the remaining seconds at the average rate; None as long as the rate is not known. Work that starts again starts a new rate."""
        if self._first is None or done < self._first[1]:
            self._first = (now, done)
        seconds, moved = now - self._first[0], done - self._first[1]
        if seconds < _KNOWN_SECONDS or moved < _KNOWN_SHARE * total or moved <= 0 or done >= total:
            return None
        return (total - done) * seconds / moved


def duration(seconds: float) -> str:
    """Return seconds as `85 s`, `12 min` or `3 h`."""
    whole = max(0, math.ceil(seconds))
    if whole < _SHORT:
        return f"{whole} s"
    if whole < _SHORT * _MINUTE:
        return f"{math.ceil(whole / _MINUTE)} min"
    return f"{math.ceil(whole / _HOUR)} h"


def _bounded(percent: float | None) -> int | None:
    return None if percent is None else min(max(int(percent), 0), 100)


def text(
    host: str, what: str, percent: float | None = None, done: str = "", total: str = "", seconds_left: float | None = None, notes: Sequence[str] = ()
) -> str:  # fmt: skip
    """Return the line of progress. `what` and the notes have one line."""
    parts = [f"  {host}: {' '.join(what.split())}"]
    if percent is not None:
        parts.append(f"{_bounded(percent)} %")
    if done:
        parts.append(f"{done} of {total}" if total else done)
    parts += [" ".join(note.split()) for note in notes if note.strip()]
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return "  ".join(parts)


def boot_text(rank: int, host: str, stage: str, percent: float | None = None, memory: str = "", seconds_left: float | None = None) -> str:
    """Return the line of progress of a rank that starts."""
    share = f" {_bounded(percent)} %" if percent is not None else ""
    left = f"  {duration(seconds_left)} left" if seconds_left is not None else ""
    return f"rank {rank}  {host:<12} {stage}{share}{f'  {memory}' if memory else ''}{left}"


def boot_stage(line: str) -> tuple[str, str] | None:
    """Return the host and the stage of a line of `boot_text`; None for any other line."""
    found = _BOOT.match(line)
    return (found[1], found[2]) if found else None
