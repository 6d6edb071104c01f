# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The verbs of a rank and how each is guarded. Their arguments are the parameters of the methods of RankService. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

#: read: not guarded, and it never waits. claim: by the method itself, one at a time. work: only the owner, one at a time. local: only local root.
VERBS = {
    "hello": "read", "claim": "claim", "look": "read", "doctor": "read", "slice": "read", "probe": "read", "reclaim": "work", "phase": "work", "start": "work",
    "halt": "work", "watch": "read", "engine": "read", "record": "work", "memory": "local", "stop_here": "local", "hold": "local",
    "release_hold": "local", "own": "local",
}  # fmt: skip
#: Verbs that the head sends to a worker; session.sock accepts no other.
SESSION_VERBS = tuple(name for name, guard in VERBS.items() if guard != "local")
READ_VERBS = tuple(name for name, guard in VERBS.items() if guard == "read")
_ENVELOPE = ("v", "verb", "group", "head", "generation")


class Caller(NamedTuple):
    """Who asks: a group's head, and the generation of its desired state."""

    group: str
    head: str
    generation: int


def take(method: Callable[..., Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method in a request; None counts as not given."""
    found = inspect.signature(method).parameters
    given = {key: value for key, value in request.items() if value is not None}
    if any(each.kind is each.VAR_KEYWORD for each in found.values()):
        return {key: value for key, value in given.items() if key not in _ENVELOPE}
    return {key: given[key] for key in found if key in given}
