"""The filters that read what is left of a release, on the controller too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.filter import release

GOOD = {"release": "r1", "passed": True}


def test_the_controllers_receipts_count_and_a_broken_one_is_passed_over(tmp_path: Path) -> None:
    assert release.judged_receipt([{"receipt": {}}], "r1", str(tmp_path / "none")) == {}
    (tmp_path / "last-good.json").write_text('{"release": "r1", "pas')
    assert release.judged_receipt([{"receipt": {}}], "r1", str(tmp_path)) == {}
    (tmp_path / "20261122T120000Z-r1-passed.json").write_text(json.dumps(GOOD))
    assert release.judged_receipt([{"receipt": {}}], "r1", str(tmp_path)) == GOOD


def test_a_lost_way_back_is_a_warning_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda _self, text, **_more: warned.append(text))
    head = {"current": "r2", "releases": [{"id": "r2", "good": True}, {"id": "r1", "good": True}]}
    found = release.lost_ways([head, {"current": "r2", "releases": []}], ["a", "b"], "r2", GOOD, "pair1")
    assert warned == [f"pair1: {sentence}" for sentence in found]
    assert "b does not keep its files any more" in warned[0]
