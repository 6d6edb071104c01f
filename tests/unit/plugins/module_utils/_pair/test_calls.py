"""What a rank lacks for a start."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.calls import Calls

HERE: dict[str, Any] = {"proof": "1", "files": {"a": [1, "x"], "draft/b": [2, "y"]}, "folders": ["/m", "/draft"]}
ALONE: dict[str, Any] = {"proof": "2", "files": {"a": [1, "x"]}, "folders": ["/m"]}
LOST = {**HERE, "proof": "3", "files": {"a": [1, "x"], "draft/b": [-1, ""]}}


@pytest.mark.parametrize(
    ("run", "judged", "now", "phrases"),
    [
        (HERE, {}, HERE, []),
        (HERE, {}, LOST, ["the weights differ: draft/b is missing"]),
        ({}, HERE, LOST, ["the weights differ: draft/b is missing"]),
        (HERE, ALONE, ALONE, []),
        (HERE, ALONE, {**ALONE, "proof": "4", "files": {"a": [0, ""]}}, ["the weights differ: a has 0 bytes instead of 1"]),
    ],
    ids=["same", "drafter-lost", "by-the-receipt", "back-to-a-release-without-drafter", "which-has-lost-weights"],
)
def test_weights_are_compared_with_those_of_the_run_or_of_the_release(
    run: dict[str, Any], judged: dict[str, Any], now: dict[str, Any], phrases: list[str]
) -> None:
    calls = Calls.__new__(Calls)
    calls.options = {"weights": run}
    assert calls.lacks({"missing": [], "receipt": {"weights": judged}, "weights": now}) == phrases
