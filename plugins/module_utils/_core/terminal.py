# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Text from nodes, logs, and replies for a terminal. Pure."""

from __future__ import annotations

import re

#: Control characters but tab and line end, characters that change the direction of what follows, other line ends, and halves that cannot be printed.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with what a terminal would obey written as \\x1b or \\u202e. Line ends of Windows become plain ones."""
    return _UNSAFE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text.replace("\r\n", "\n"))
