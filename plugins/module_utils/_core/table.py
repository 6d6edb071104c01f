# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Aligned columns of text. Pure. Nodes and the controller have only the standard library, which has no tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.terminal import printable

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
