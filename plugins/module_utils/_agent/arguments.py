# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Arguments of a verb: a request comes from another node, and only what fits is used. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError

#: The default of an argument that has to be given.
REQUIRED = object()
#: The default of an argument that is not passed on if it is not given.
OMIT = object()


class Argument(NamedTuple):
    """One argument: what it is expected to be, as a phrase, whether a value fits, and its default."""

    expected: str
    fits: Callable[[Any], bool]
    default: Any = REQUIRED


def matching(pattern: str, expected: str, default: Any = REQUIRED) -> Argument:
    """Return an argument that is a text and matches a regular expression as a whole."""
    compiled = re.compile(pattern)
    return Argument(expected, lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None, default)


def text(limit: int, default: Any = REQUIRED) -> Argument:
    """Return an argument that is one line of text."""
    return Argument(f"a line of at most {limit} characters", lambda value: isinstance(value, str) and len(value) <= limit and value.isprintable(), default)


def number(low: float, high: float, default: Any = REQUIRED) -> Argument:
    """Return an argument that is a number."""
    return Argument(f"a number from {low:g} to {high:g}", lambda value: _is_number(value) and low <= value <= high, default)


def whole(low: int, high: int, default: Any = REQUIRED) -> Argument:
    """Return an argument that is a whole number."""
    return Argument(f"a whole number from {low} to {high}", lambda value: _is_number(value) and isinstance(value, int) and low <= value <= high, default)


def mapping(default: Any = REQUIRED) -> Argument:
    """Return an argument that is a mapping."""
    return Argument("a mapping", lambda value: isinstance(value, dict), default)


def mappings(default: Any = REQUIRED) -> Argument:
    """Return an argument that is a list of mappings."""
    return Argument("a list of mappings", lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value), default)


def switch(default: Any = REQUIRED) -> Argument:
    """Return an argument that is true or false."""
    return Argument("true or false", lambda value: isinstance(value, bool), default)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def take(verb: str, arguments: Mapping[str, Argument], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a verb in a request; others are left out, and None counts as not given. Raises RankError."""
    out = {}
    for name, argument in arguments.items():
        value = request.get(name)
        if value is None:
            if argument.default is REQUIRED:
                raise RankError(f"{verb}: the argument {name} is missing. Expected: {argument.expected}.", "refused")
            if argument.default is not OMIT:
                out[name] = argument.default
        elif argument.fits(value):
            out[name] = value
        else:
            raise RankError(f"{verb}: the argument {name} is {repr(value)[:80]}. Expected: {argument.expected}.", "refused")
    return out
