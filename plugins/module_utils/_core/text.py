# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text for people: printable characters, columns, near matches, time stamps, and lines of progress. Pure, standard library only."""

from __future__ import annotations

import difflib
import math
import re
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

# --- Text from nodes, logs, and replies for a terminal.

#: Control characters but tab and line end, characters that change the direction of what follows, other line ends, and halves that cannot be printed.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with what a terminal would obey written as \\x1b or \\u202e. Line ends of Windows become plain ones."""
    return _UNSAFE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text.replace("\r\n", "\n"))


# --- Aligned columns of text. Pure. Nodes and the controller have only the standard library, which has no tables.

_NUMBER = re.compile(r"[-+]?[\d,.]+(?:-[\d.]+)?|-")


def cell(value: Any, longest: int = 0) -> str:
    """Return a value as the text of one line: yes and no, thousands with separators, a dash for nothing. `longest` cuts a text."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = " ".join(printable(f"{value:,}" if isinstance(value, int) else str(value)).split())
    return f"{text[: longest - 1]}…" if 0 < longest < len(text) else text


def width_of(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a table, numbers to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    lines = [list(header), *cells] if any(header) else cells
    columns = list(zip(*lines))
    widths = [max(map(width_of, column)) for column in columns]
    values = list(zip(*cells)) or [()] * len(columns)
    right = [any(text != "-" for text in column) and all(map(_NUMBER.fullmatch, column)) for column in values]
    out = []
    for line in lines:
        spaces = [" " * (total - width_of(text)) for text, total in zip(line, widths)]
        padded = [space + text if to_right else text + space for text, space, to_right in zip(line, spaces, right)]
        out.append("  ".join(padded).rstrip())
    return out


# --- Hints for misspelt words.


def nearest(word: Any, known: Iterable[Any], cutoff: float = 0.6) -> str:
    """Return the nearest known word, or an empty string."""
    return next(iter(difflib.get_close_matches(str(word), [str(each) for each in known], n=1, cutoff=cutoff)), "")


def did_you_mean(word: Any, known: Iterable[Any], cutoff: float = 0.6, prefix: str = "") -> str:
    """Return ``; did you mean X?`` for the nearest known word, with a prefix that all of them share, or an empty string."""
    near = nearest(word, known, cutoff)
    return f"; did you mean {prefix}{near}?" if near else ""


# --- The form of time stamps.


def stamp(seconds: float | None = None) -> str:
    """Return a time in seconds since the epoch, or the present time, as UTC: 2026-11-23T05:06:07Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


# --- The progress of long work as one line of text, and the remaining time.
# Two or more spaces separate the parts of a line::
#       spark-1: weights  45 %  66.2 GiB of 148.0 GiB  310 MB/s  4 min left
#     [pair1 +  93 s] rank 0  spark-1      load 45 %  MemFree 31.0 GiB  6 min left

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


def progress_text(
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
