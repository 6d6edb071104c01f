# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The environment file of the secrets: written for Docker Compose, and read back. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")


def problem(value: str) -> str:
    """Return why Compose would not read a value as it is, as the end of a sentence; empty if it does. Compose prints the value in its error."""
    if "'" in value:
        return "contains a single quote"
    if re.search(r"[\n\r\0]", value):
        return "contains a line end"
    return "ends in a backslash" if (len(value) - len(value.rstrip("\\"))) % 2 else ""


def text_of(values: Mapping[str, str]) -> str:
    """Return the text of a file: one NAME='value' line each, sorted. In single quotes Compose expands no dollar sign. See problem()."""
    return "".join(f"{name}='{values[name]}'\n" for name in sorted(values))


def parse(text: str) -> dict[str, str]:
    """Return the values by name. One pair of quotes around a value is removed, as Compose does."""
    out = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        value = match[2].strip()
        quoted = len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]
        out[match[1]] = value[1:-1] if quoted else value
    return out
