"""The thresholds of the watch."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import DEFAULTS, SettingsError, merged_settings, usable_settings


def test_a_given_value_replaces_its_default_and_none_does_not() -> None:
    assert merged_settings({"restarts": 2, "hook": None}) == {**DEFAULTS, "restarts": 2}
    assert merged_settings(None) == DEFAULTS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"wedge_second": 3}, "wedge_second is not a setting of the watch. Supported: enabled, "),
        ({"restarts": -1}, "restarts of the watch is -1. Expected: a number that is not negative."),
        ({"restarts": True}, "restarts of the watch is True. Expected: a number"),
        ({"hook": "echo"}, "hook of the watch is 'echo'. Expected: a list of words."),
        ({"textfile": 3}, "textfile of the watch is 3. Expected: str."),
        ({"head_seconds": 5}, "head_seconds of the watch is 5. Expected: at least 45;"),
        ({"memory_drop_gib": 1.0}, "memory_drop_gib of the watch does not fit: memory_drop_gib (1) is below"),
    ],
)
def test_a_wrong_value_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        merged_settings(given)
    assert str(error.value).startswith(message)


def test_settings_of_another_version_are_left_out_with_a_sentence_each() -> None:
    given = {"wedge_second": 3, "restarts": "many", "hook": "echo", "head_seconds": 5, "lost_seconds": 4.0, "memory_floor_gib": 9.0, "wedge_seconds": 0}
    found, problems = usable_settings(given)
    assert found == {**DEFAULTS, "lost_seconds": 4.0}
    assert len(problems) == 6
    assert problems[0].startswith("wedge_second is not a setting of the watch.")
    assert all(problem.endswith(". It is ignored. Run site.yml.") for problem in problems)
    assert usable_settings(None) == (DEFAULTS, [])
