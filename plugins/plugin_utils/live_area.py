# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the live lines at the end of a terminal, and the stream that keeps them below all other output. Controller only.

All methods run under the lock of Ansible's Display. Ansible holds it while it forks, so that no fork inherits a stream that is in use.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from ansible_collections.gb10.cluster.plugins.module_utils._common.progress import duration
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable
from ansible_collections.gb10.cluster.plugins.plugin_utils.run_report import Row

try:
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text
except ImportError:  # optional: without it there are no live lines
    HAS_RICH = False
else:
    HAS_RICH = True

QUIET_SECONDS = 0.3  # no redraw this soon after other output, which can be a prompt
BAR_WIDTH, WIDE = 24, 110


class LiveArea:
    """Lines that are redrawn in place. `paint` returns a text with the colour of a state."""

    def __init__(self, stream: TextIO, paint: Callable[[str], str], *, is_coloured: bool) -> None:
        """Prepare the area for a terminal."""
        spans = Text.from_ansi(paint("x")).spans
        self._style = spans[0].style if spans else ""
        self._console = Console(file=stream, force_terminal=True, no_color=not is_coloured, highlight=False, markup=False, emoji=False)
        self._live: Any = None

    def draw(self, rows: Sequence[Row]) -> None:
        """Show the rows in place of the ones before."""
        if not rows:
            self.erase()
            return
        table = self._table(rows[: max(1, self._console.size.height - 3)])
        if self._live is None:
            self._live = Live(table, console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
            self._console.show_cursor(True)  # a run that is killed cannot show it again
        self._live.update(table, refresh=True)

    def erase(self) -> None:
        """Remove the rows from the terminal."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _table(self, rows: Sequence[Row]) -> Any:
        """Return a line for each row. What stands last is cut if the terminal is narrow."""
        width = self._console.size.width
        bar_width = BAR_WIDTH if width >= WIDE else BAR_WIDTH // 2
        lines = []
        for row in rows:
            seen = row.progress
            texts = [printable(text) for text in (row.part, row.host, duration(row.seconds), seen.what if seen is not None else row.step)]
            percent = seen.percent if seen is not None else None
            details = [f"{percent} %" if percent is not None else "", seen.detail if seen is not None else ""]
            lines.append((texts, percent, printable(", ".join(each for each in details if each))))
        used = sum(max(len(texts[column]) for texts, _percent, _detail in lines) + 2 for column in range(3))
        bars = bar_width + 2 if any(percent is not None for _texts, percent, _detail in lines) else 0
        free = max(width - used - bars, 20)
        table = Table.grid(padding=(0, 2), expand=False)
        for _column in range(6):
            table.add_column(no_wrap=True, overflow="ellipsis")
        for texts, percent, detail in lines:
            step, end = Text(texts[3]), Text(detail)
            step.truncate(free // 3 if detail else free, overflow="ellipsis")
            end.truncate(free - len(step) - 3, overflow="ellipsis")
            drawn: Any = ""
            if percent is not None:
                drawn = ProgressBar(total=100, completed=percent, width=bar_width, complete_style=self._style, finished_style=self._style)
            table.add_row(Text(texts[0], style=self._style), Text(texts[1]), Text(texts[2]), step, drawn, end)
        return table


class Stream:
    """Stands in for sys.stdout or sys.stderr. Removes the live lines before other output is written, and knows when that was."""

    def __init__(self, name: str, area: LiveArea | None, lock: Any, *, take: Callable[[str], bool] | None = None) -> None:
        """Take the place of the stream. `take` returns whether a line has been dealt with and is not to be written."""
        self._name, self.area, self._lock, self._take = name, area, lock, take
        self._real: TextIO = getattr(sys, name)
        self.written_at = time.monotonic()
        self.is_at_start = True
        setattr(sys, name, self)

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the real stream."""
        return getattr(self._real, name)

    def write(self, text: str) -> int:
        """Write above the live lines."""
        with self._lock:
            kept = text
            if self._take is not None and text.strip() and self.is_at_start and text.endswith("\n"):
                kept = "".join(line for line in text.splitlines(keepends=True) if not self._take(line))
                if not kept:
                    return len(text)
            if self.area is not None:
                self.area.erase()
            with contextlib.suppress(BrokenPipeError):  # the reader has enough, such as `head`
                self._real.write(kept)
                if kept:
                    self.is_at_start = kept.endswith("\n")
                    self.written_at = time.monotonic()
                if self.is_at_start:
                    self._real.flush()
        return len(text)

    def is_quiet(self) -> bool:
        """Return whether live lines may be drawn now."""
        return self.is_at_start and time.monotonic() - self.written_at >= QUIET_SECONDS

    def release(self) -> None:
        """Give the place back."""
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._real)


def is_json(line: str) -> bool:
    """Return whether a line is an object or a list of JSON."""
    if line[:1] not in "{[":
        return False
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
