"""What a container may send: any JSON, and a good value with a lie at any place. GB10_FUZZ sets the number of examples."""

from __future__ import annotations

import copy
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("GB10_FUZZ", "100"))
MANY = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
FEW = settings(MANY, max_examples=EXAMPLES // 5)

TEXTS = ("", "running", "exited", "../../etc/passwd", "/etc/shadow", "\x1b[2J", "x" * 5000, "a\nb", "0", "2026-11-23T05:00:00Z")
NUMBERS = (0, 1, -1, 2**31, 2**63, 10**400, 0.5, float("nan"), float("inf"), True)
LEAVES = st.one_of(st.none(), st.booleans(), st.sampled_from(TEXTS), st.sampled_from(NUMBERS), st.text(max_size=20), st.integers())
ANY_JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS) | st.text(max_size=8), inner, max_size=3))


def places(value: Any) -> list[tuple[Any, ...]]:
    """Return the path of every value within a value."""
    found: list[tuple[Any, ...]] = [()]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in parts:
        found += [(key, *rest) for rest in places(each)]
    return found


def replaced(value: Any, path: tuple[Any, ...], new: Any, removes: bool) -> Any:
    """Return a copy of a value with another value at this path, or without the key."""
    if not path:
        return new
    out = copy.deepcopy(value)
    inner = out
    for key in path[:-1]:
        inner = inner[key]
    if removes:
        inner.pop(path[-1])
    else:
        inner[path[-1]] = new
    return out


def harmless(text: str) -> bool:
    """Whether a terminal shows all of a text as it is."""
    return all(
        each in "\n\t" or (each >= " " and not "\x7f" <= each <= "\x9f" and each not in "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e")
        for each in text
    ) and not any("\u2066" <= each <= "\u2069" for each in text)
