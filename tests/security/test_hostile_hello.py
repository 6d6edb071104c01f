"""Long texts that a worker passes on from its containers: the head cuts them, so that its own replies stay short."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import session
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import MAX_TEXT, RankError


def test_texts_of_a_reply_are_cut_but_a_log_a_manifest_and_a_receipt() -> None:
    long = "é" * (MAX_TEXT + 5)
    found = session.checked("start", {"error": long, "receipt": {"text": long}, "manifest": long, "more": [{"deep": long, long: 1e300, "log": long}]})
    assert (found["error"], found["receipt"], found["manifest"]) == (long[:MAX_TEXT], {"text": long}, long)
    assert found["more"] == [{"deep": long[:MAX_TEXT], long[:MAX_TEXT]: None, "log": long[:MAX_TEXT]}]
    log: dict[str, Any] = {"log": "QUJD" * MAX_TEXT, "cursor": "5:1", "container": None, "memory": {}, "http_status": 0}
    assert session.checked("slice", log) == log


def test_a_reply_with_too_many_texts_is_refused() -> None:
    with pytest.raises(RankError, match="its reply to start is not valid: it has more than"):
        session.checked("start", {"error": "", "more": ["x" * 100] * 20_000})


@pytest.mark.parametrize(("verb", "wrong"), [("hello", {}), ("watch", {"hello": {}}), ("halt", {"left": "x"}), ("look", [])])
def test_a_reply_of_another_type_is_refused(verb: str, wrong: Any) -> None:
    with pytest.raises(RankError, match=f"its reply to {verb} has no valid"):
        session.checked(verb, wrong if isinstance(wrong, dict) else {"containers": wrong})
