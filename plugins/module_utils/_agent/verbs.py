# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The verbs of a rank and their arguments: a request comes from another node, and only what fits is used. Pure."""

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


def switch(default: Any) -> Argument:
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


MOST = 2**53
#: A generation grows by one with each change; JSON programs read whole numbers below 2**53, which leaves room for a head above all its ranks.
GENERATION = whole(0, 2**48 - 1)

RELEASE = matching(r"[0-9a-z]{3,64}", "the id of a release, 3 to 64 lower-case letters and digits")
RELEASE_OR_NONE = matching(r"(?:[0-9a-z]{3,64})?", "the id of a release, 3 to 64 lower-case letters and digits, or an empty text", "")
LABEL = matching(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,99})?", "letters, digits, dots, dashes and underscores, at most 100, or an empty text", "")
NAME = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "letters, digits, dots, dashes and underscores, at most 100")
URL = matching(r"http://[A-Za-z0-9.\-\[\]:]{1,255}(?:/[!-~]{0,1000})?", "a URL that begins with http://", OMIT)
MAPPING = Argument("a mapping", lambda value: isinstance(value, dict))
MAPPINGS = Argument("a list of mappings", lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value), OMIT)
CURSOR = matching(r"(?:\d{1,20}(?::\d{1,9})?)?", "the cursor of an earlier slice", OMIT)
CALLER: dict[str, Argument] = {"group": NAME, "head": NAME, "generation": GENERATION}


class Verb(NamedTuple):
    """A verb: its arguments, and how it is guarded.

    read: not at all, and it never waits. claim: by the method itself, one at a time. work: only the owner, one at a time. local: only local root.
    """

    guard: str
    arguments: Mapping[str, Argument]


VERBS: dict[str, Verb] = {
    "hello": Verb("read", {}),
    "claim": Verb("claim", {}),
    "look": Verb("read", {"release": RELEASE_OR_NONE, "free_share": number(0, 2, None), "free_only": switch(False)}),
    "slice": Verb(
        "read",
        {
            "container": NAME,
            "cursor": CURSOR._replace(fits=lambda value: value == 0 or CURSOR.fits(value)),
            "known_state": text(100, OMIT),
            "wait": number(0, 60, OMIT),
            "gather": number(0, 60, OMIT),
            "limit": whole(1, 4 << 20, OMIT),  # the reply has to fit into one line
            "url": URL._replace(fits=lambda value: value == "" or URL.fits(value)),
            "stamps": switch(OMIT),
        },
    ),
    "probe": Verb(
        "read",
        {
            "release": RELEASE_OR_NONE,
            "url": URL,
            "requests": MAPPINGS,
            "model": text(1000, OMIT),
            "concurrency": whole(1, 64, OMIT),
            "timeout": number(0.01, 3600, OMIT),
        },
    ),
    "reclaim": Verb("work", {}),
    "phase": Verb("work", {"phase": matching(r"load|steady", "load or steady"), "seconds": number(0, 7 * 86400, 0)}),
    "start": Verb("work", {"release": RELEASE}),
    "halt": Verb("work", {"label": LABEL, "mark": text(200, ""), "kill": switch(False)}),
    "watch": Verb("read", {"release": RELEASE_OR_NONE, "known": whole(0, MOST, 0), "wait": number(0, 60, 0)}),
    "engine": Verb("read", {"release": RELEASE_OR_NONE}),
    "record": Verb("work", {"release": RELEASE, "receipt": MAPPING}),
    "memory": Verb("local", {}),
    "stop_here": Verb("local", {"by": text(200, "")}),
    "hold": Verb("local", {"name": NAME, "reason": text(500), "seconds": number(1, 7 * 86400), "by": text(200, "")}),
    "release_hold": Verb("local", {"name": NAME}),
    "own": Verb("local", {"head": NAME, "group": NAME, "takeover": switch(False)}),
}


#: Verbs that the head sends to a worker; session.sock accepts no other.
SESSION_VERBS = tuple(name for name, verb in VERBS.items() if verb.guard != "local")
READ_VERBS = tuple(name for name, verb in VERBS.items() if verb.guard == "read")


class Caller(NamedTuple):
    """Who asks: a group's head, and the generation of its desired state."""

    group: str
    head: str
    generation: int
