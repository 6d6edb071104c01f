"""What follows a failed boot, by the class of the failure."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import watch


@pytest.mark.parametrize(
    ("passed_before", "failure", "attempt", "fallback", "switched", "expected"),
    [
        (False, "killed", 1, "old", False, watch.RETURN),
        (False, "killed", 1, "", True, watch.STOP),
        (False, "weights_missing", 1, "old", False, watch.RETURN),
        (True, "killed", 1, "old", True, watch.RETRY),
        (True, "killed", 3, "old", False, watch.HOLD),
        (True, "killed", 3, "old", True, watch.RETURN),
        (True, "weights_missing", 1, "old", True, watch.RETURN),
        (True, "weights_missing", 1, "", True, watch.HOLD),
        (True, "weights_missing", 1, "old", False, watch.HOLD),
        (True, "a class of the user", 1, "", False, watch.HOLD),
    ],
)
def test_follows_the_ladder(passed_before: bool, failure: str, attempt: int, fallback: str, switched: bool, expected: str) -> None:
    assert watch.after_failure(passed_before, failure, attempt, 3, fallback, switched) == expected


def test_pauses_grow_and_the_last_one_stays() -> None:
    assert [watch.pause_before(attempt) for attempt in (2, 3, 4, 5, 9)] == [5.0, 20.0, 60.0, 180.0, 180.0]
