# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command in a terminal and write its screen as SVG: python tools/screenshot.py docs/images/run.svg -- ansible-playbook site.yml -i inventories/lab."""

from __future__ import annotations

import argparse
import io
import os
import re
from pathlib import Path

import pexpect
from rich.console import Console
from rich.text import Text

ROWS, COLUMNS = 60, 118
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # fonts of a server; every system has a monospace font
_HOME = re.compile(re.escape(str(Path.cwd())))


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
    """Run the command, write the picture and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("svg", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    env = {**os.environ, "TERM": "xterm-256color"}
    child = pexpect.spawn(options.command[0], options.command[1:], dimensions=(ROWS, COLUMNS), timeout=None, encoding="utf-8", env=env)
    child.expect(pexpect.EOF)
    child.close()
    write(options.svg, " ".join(options.command), (child.before or "").split("\r\n"))
    return int(child.exitstatus or 0)


if __name__ == "__main__":
    raise SystemExit(main())
