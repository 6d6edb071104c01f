"""The filters that read what is left of a release, on the controller too."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.filter import release

GOOD = {"release": "r2", "passed": True}


WANTED: dict[str, Any] = {
    "release": "r2", "inputs": ["i", "i"], "files": {}, "keep": 3, "options": {}, "criteria": {}, "restart": False, "takeover": False, "again": False,
    "new_key": "",
}  # fmt: skip
PAIR = {"name": "pair1", "rank": 0, "hosts": ["a", "b"]}


def info(current: str, *kept: str, **more: Any) -> dict[str, Any]:
    runs = {"name": "c", "running": True, "labels": {"gb10.cluster.release": current}}
    return {"current": current, "containers": [runs], "releases": [{"id": each, "good": True, "files": {}} for each in kept], "receipt": {}, **more}


def test_the_controllers_receipts_count_and_a_broken_one_is_passed_over(tmp_path: Path) -> None:
    infos = [info("r2", "r2"), info("r2", "r2")]
    judged = partial(release.run_plan, infos, PAIR, WANTED)
    assert judged(str(tmp_path / "none"))["judged"] == {}
    (tmp_path / "last-good.json").write_text('{"release": "r2", "pas')
    assert judged(str(tmp_path))["judged"] == {}
    (tmp_path / "20261122T120000Z-r2-passed.json").write_text(json.dumps(GOOD))
    assert judged(str(tmp_path))["judged"] == GOOD


def test_a_lost_way_back_is_a_warning_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    warned: list[str] = []
    monkeypatch.setattr(Display, "warning", lambda _self, text, **_more: warned.append(text))
    found = release.run_plan([info("r2", "r2", "r1", receipt=GOOD), info("r2", "r2")], PAIR, WANTED, str(tmp_path))
    assert warned == [f"pair1: {sentence}" for sentence in found["lost"]]
    assert "b does not keep its files any more" in warned[0]


def test_a_release_of_the_same_inputs_stays_until_a_restart_is_asked_for(tmp_path: Path) -> None:
    infos = [info("r1", "r1", inputs="i"), info("r1", "r1", inputs="i")]
    found = release.run_plan(infos, PAIR, WANTED, str(tmp_path))
    assert (found["release"], found["stands"], found["do"], found["reasons"]) == ("r1", True, "nothing", [])
    found = release.run_plan(infos, PAIR, {**WANTED, "restart": True}, str(tmp_path))
    assert (found["release"], found["stands"], found["do"]) == ("r2", False, "start")
    found = release.run_plan(infos, PAIR, {**WANTED, "inputs": ["i", "other"]}, str(tmp_path))
    assert (found["do"], found["reasons"]) == ("start", ["release r1 -> r2"])


def test_a_dead_api_of_the_head_and_a_new_key_are_reasons(tmp_path: Path) -> None:
    infos = [info("r2", "r2", alive={"outcome": "dead", "text": "HTTP 500"}, receipt=GOOD), info("r2", "r2")]
    found = release.run_plan(infos, PAIR, {**WANTED, "new_key": "the API needs the new key"}, str(tmp_path))
    assert [reason.partition(":")[0] for reason in found["reasons"]] == ["the head does not serve", "the API needs the new key"]
