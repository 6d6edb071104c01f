"""What setup.yml refuses before it reaches a machine."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action import setup_access


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        ({"setup_profile": "b12x-fp8-1n"}, "setup_profile is 'b12x-fp8-1n', expected one of b12x-fp8-1m.*did you mean"),
        ({"setup_foreign_policy": "adpot"}, "setup_foreign_policy is 'adpot', expected one of .*; did you mean adopt"),
        ({"setup_model_store": "models"}, "setup_model_store is 'models', expected an absolute path"),
        ({"setup_write": "perhaps"}, "setup_write is 'perhaps', expected yes or no"),
    ],
)
def test_refuses_a_wrong_answer_to_a_later_question(extra: dict[str, Any], part: str) -> None:
    with pytest.raises(AnsibleActionFail, match=part):
        setup_access._check_answers(extra)


@pytest.mark.parametrize(
    "extra", [{}, {"setup_profile": "b12x-fp8-1m"}, {"setup_profile": "2"}, {"setup_write": True}, {"setup_profile": "mine", "gb10_profiles": {"mine": {}}}]
)
def test_accepts_answers(extra: dict[str, Any]) -> None:
    setup_access._check_answers(extra)
