"""When a long poll of events returns at once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.service import decides


def reply(generation: int = 7, final: bool = False, kinds: tuple[str, ...] = (), desired: int = 7, **more: Any) -> dict[str, Any]:
    return {"events": [{"kind": kind} for kind in kinds], "outcome": {"generation": generation, "final": final}, "desired": {"generation": desired, **more}}


@pytest.mark.parametrize(
    ("found", "generation", "was_final", "expected"),
    [
        (reply(), 7, False, False),
        (reply(kinds=("progress", "step", "hold", "warning")), 7, False, False),
        (reply(kinds=("progress", "verdict")), 7, False, True),
        (reply(kinds=("settled",)), 0, False, True),
        (reply(final=True), 0, False, True),
        (reply(final=True), 0, True, False),
        (reply(final=True), 7, True, True),
        (reply(desired=8), 7, False, True),
        (reply(desired=8), 0, False, False),
        (reply(generation=6, final=True), 7, True, False),
        (reply(generation=9, desired=9, replaces=[7]), 7, False, False),
        (reply(generation=9, desired=9, replaces=[7], final=True), 7, True, True),
        (reply(desired=7), 8, False, False),
    ],
)
def test_decides_whether_a_follower_must_hear_at_once(found: dict[str, Any], generation: int, was_final: bool, expected: bool) -> None:
    assert decides(found, generation, was_final) is expected
