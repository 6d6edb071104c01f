# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the head checks of a reply: the types of what it reads, and its size, because it quotes what containers print. Pure."""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import MAX_TEXT, MAX_TEXTS, RankError
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import cut

_HELLO = {"host": str, "owner": dict, "generation": int, "stopped": str, "stop_generation": int}
#: By verb. A verb that is missing here is asked of rank 0 only, which is the agent itself.
TYPES: dict[str, dict[str, type]] = {
    "hello": _HELLO, "claim": _HELLO, "slice": {}, "watch": {"hello": dict, "sample": dict}, "phase": {}, "reclaim": {"note": str},
    "start": {}, "halt": {"left": list}, "doctor": {"facts": dict, "info": dict},
    "look": {
        "containers": list, "engine_error": str, "memory": dict, "current": str, "releases": list, "stopped": str, "processes": dict, "missing": list,
        "blocked": str,
    },
}  # fmt: skip
#: Of a reply itself: what may be longer than a text.
LONG = ("log", "manifest", "receipt")


def checked(verb: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a verb, with bounded texts and numbers. Raises RankError if it is not one."""
    if verb not in TYPES:
        return result
    try:
        found = dict(cut(result, MAX_TEXT, MAX_TEXTS, LONG))
    except ValueError as error:
        raise RankError(f"its reply to {verb} is not valid: {error}") from error
    places = [(found, TYPES[verb]), *([(found["hello"], _HELLO)] if verb == "watch" and isinstance(found.get("hello"), dict) else [])]
    wrong = [key for place, types in places for key, kind in types.items() if not isinstance(place.get(key), kind)]
    if wrong:
        raise RankError(f"its reply to {verb} has no valid {wrong[0]}")
    return found
