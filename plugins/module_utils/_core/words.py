# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Hints for misspelt words. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def nearest(word: Any, known: Iterable[Any], cutoff: float = 0.6) -> str:
    """Return the nearest known word, or an empty string."""
    return next(iter(difflib.get_close_matches(str(word), [str(each) for each in known], n=1, cutoff=cutoff)), "")


def did_you_mean(word: Any, known: Iterable[Any], cutoff: float = 0.6, prefix: str = "") -> str:
    """Return ``; did you mean X?`` for the nearest known word, with a prefix that all of them share, or an empty string."""
    near = nearest(word, known, cutoff)
    return f"; did you mean {prefix}{near}?" if near else ""
