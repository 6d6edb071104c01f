# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command in a terminal and write its screen as SVG: python tools/screenshot.py docs/images/run.svg -- ansible-playbook site.yml -i inventories/lab.

`--while PATTERN FILE` also writes the screen at the last frame that has the pattern, such as a progress bar.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from pathlib import Path

import pexpect
from rich.console import Console
from rich.text import Text

ROWS, COLUMNS = 60, 118
_CONTROL = re.compile(r"(\r\n|\n|\r|\x1b\[2K|\x1b\[1A|\x1b\[\?25[lh])")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # fonts of a server; every system has a monospace font
_HOME = re.compile(re.escape(str(Path.cwd())))


def frames(raw: str) -> list[list[str]]:
    """Return the screen before each redraw and at the end, as lines with colours. It knows what the callback writes: erase a line, and one line up."""
    lines, row, found, is_erasing = [""], 0, [], False
    for piece in _CONTROL.split(raw):
        if piece in ("\r\n", "\n"):
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\x1b[2K":
            if not is_erasing:
                found.append(list(lines))
            is_erasing = True
            lines[row] = ""
        elif piece == "\x1b[1A":
            row = max(row - 1, 0)
        elif piece and piece != "\r" and not piece.startswith("\x1b[?25"):
            lines[row] += piece
            is_erasing = False
    found.append(list(lines))
    return found


def write(path: Path, title: str, lines: list[str]) -> None:
    """Write a screen as SVG."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines:
        console.print(Text.from_ansi(_HOME.sub("~/gb10.cluster", line)), soft_wrap=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    svg = "\n".join(line.rstrip() for line in _FONT.sub("", console.export_svg(title=title)).splitlines())
    path.write_text(svg + "\n", encoding="utf-8")


def main() -> int:
    """Run the command, write the pictures and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--while", dest="during", nargs=2, metavar=("PATTERN", "FILE"))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    env = {**os.environ, "TERM": "xterm-256color"}
    child = pexpect.spawn(options.command[0], options.command[1:], dimensions=(ROWS, COLUMNS), timeout=None, encoding="utf-8", env=env)
    child.expect(pexpect.EOF)
    child.close()
    seen = frames(child.before or "")
    title = " ".join(options.command)
    write(options.svg, title, seen[-1])
    if options.during:
        pattern, path = options.during
        found = [lines for lines in seen if any(re.search(pattern, line) for line in lines)]
        if not found:
            print(f"no frame has {pattern}", file=sys.stderr)
            return 1
        write(Path(path), title, max(found, key=lambda lines: sum(bool(re.search(pattern, line)) for line in lines)))
    return int(child.exitstatus or 0)


if __name__ == "__main__":
    raise SystemExit(main())
