"""A long step followed from the controller: what it shows, and how it ends; for the pull or build and for the download."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import image_get, weights_download
from ansible_collections.gb10.cluster.plugins.plugin_utils import followed

LOST: dict[str, Any] = {"unreachable": True, "msg": "timed out"}
DONE = {"report": {"state": "done"}, "changed": True}
RESULT = {"changed": True}  # the report was for the action plugin


def follow(kind: Any, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], check: bool = False) -> tuple[dict[str, Any], list[str], list[str]]:
    """Run the action over scripted answers; return (result, lines shown, steps asked for)."""
    shown: list[str] = []
    steps: list[str] = []
    rest = list(answers)

    def execute(module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert module_name == kind.ActionModule.MODULE
        assert task_vars["inventory_hostname"] == "spark-1"
        steps.append(module_args["step"])
        return rest.pop(0)

    monkeypatch.setattr(followed, "SHOW_SECONDS", 0.0)
    monkeypatch.setattr(followed, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    monkeypatch.setattr(Display, "display", lambda _self, text, **_k: shown.append(text))
    action = kind.ActionModule.__new__(kind.ActionModule)
    action._task = SimpleNamespace(check_mode=check, args={"how": "pull", "step": "ignored"})
    action._execute_module = execute
    return action.run(None, {"inventory_hostname": "spark-1"}), shown, steps


def says(text: str) -> dict[str, Any]:
    return {"report": {"state": "running", "says": text}}


def test_a_pull_shows_each_new_word_once(monkeypatch: pytest.MonkeyPatch) -> None:
    out, shown, steps = follow(image_get, monkeypatch, [{}, says("layer 1"), says("layer 1"), says("layer 2"), DONE])
    assert out == RESULT
    assert [line.split(" s  ")[1] for line in shown] == ["layer 1", "layer 2"]
    assert all(line.startswith("  spark-1: pull ") for line in shown)
    assert steps == ["start", *["status"] * 4]


def test_a_download_shows_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"report": {"state": "running", "done": 1 << 30, "total": 2 << 30}}
    out, shown, _steps = follow(weights_download, monkeypatch, [{}, half, DONE])
    assert out == RESULT
    assert shown[0].startswith("  spark-1: download  50 %")


@pytest.mark.parametrize("kind", [image_get, weights_download])
def test_the_ends(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(kind, monkeypatch, [{"plain": 1}], check=True)[0] == {"plain": 1}
    refused = {"failed": True, "msg": "no space"}
    assert follow(kind, monkeypatch, [refused])[0] == refused
    broken = {"failed": True, "msg": "the registry refuses"}
    assert follow(kind, monkeypatch, [{}, broken])[0] == broken
    lost = follow(kind, monkeypatch, [{}, *[LOST] * followed.LOST_AFTER])[0]
    assert lost["failed"]
    assert "spark-1 does not answer; the " in lost["msg"]
    assert follow(kind, monkeypatch, [{}, LOST, DONE])[0] == RESULT
