"""Long work followed from the controller: the progress, and the ends."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import image_get, weights_copy, weights_download
from ansible_collections.gb10.cluster.plugins.plugin_utils import followed

LOST: dict[str, Any] = {"unreachable": True, "msg": "timed out"}
END = {"state": "done", "done": 2 << 30, "total": 2 << 30, "rate": 1000}
DONE: dict[str, Any] = {"report": END, "changed": True}
KINDS = [image_get, weights_download, weights_copy]
RESULT = {"changed": True}  # the report was for the action plugin


def follow(
    kind: Any, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], check: bool = False, show_seconds: float = 0.0, **args: Any,
) -> tuple[dict[str, Any], list[str], list[str]]:  # fmt: skip
    """Run the action with scripted results; return (result, lines shown, steps called)."""
    shown: list[str] = []
    steps: list[str] = []
    rest = list(answers)

    def execute(module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert module_name == kind.ActionModule.MODULE
        assert task_vars["inventory_hostname"] == "spark-1"
        steps.append(module_args["step"])
        return rest.pop(0)

    monkeypatch.setattr(followed, "SHOW_SECONDS", show_seconds)
    monkeypatch.setattr(followed, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(Display, "display", lambda _self, text, **_k: shown.append(text))
    action = kind.ActionModule.__new__(kind.ActionModule)
    action._task = SimpleNamespace(check_mode=check, args={"how": "pull", "name": "weights-pair1", "fetch": [{}], **args})
    action._execute_module = execute
    return action.run(None, {"inventory_hostname": "spark-1"}), shown, steps


def running(**report: Any) -> dict[str, Any]:
    return {"report": {"state": "running", **report}}


def test_pull_shows_each_new_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["layer 1", "layer 1", "layer 2"]
    out, shown, steps = follow(image_get, monkeypatch, [{}, *(running(text=text) for text in texts), {"report": {"state": "done"}, "changed": True}])
    assert out == RESULT
    assert [line.split(" s  ")[1] for line in shown] == ["layer 1", "layer 2"]
    assert all(line.startswith("  spark-1: pull  ") for line in shown)
    assert steps == ["start", *["status"] * 4]


def test_download_shows_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    out, shown, _steps = follow(weights_download, monkeypatch, [{}, running(done=1 << 30, total=2 << 30), DONE])
    assert out == RESULT
    assert shown[0] == "  spark-1: download  50 %  1.0 GiB of 2.0 GiB  0 MB/s"


def test_copy_shows_share_rate_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"done": 1 << 30, "total": 2 << 30, "files": 4, "files_done": 1}
    out, shown, _steps = follow(weights_copy, monkeypatch, [{}, running(), running(**half), running(**{**half, "done": 2 << 30}), DONE])
    assert out == RESULT
    assert shown[1] == "  spark-1: weights  50 %  1.0 GiB of 2.0 GiB  1073741 MB/s  1 of 4 files"
    assert shown[2] == "  spark-1: weights checking  2.0 GiB"
    assert shown[3] == "  spark-1: weights  100 %  2.0 GiB of 2.0 GiB  1000 MB/s  0 of 0 files"


@pytest.mark.parametrize("kind", KINDS)
def test_ends(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"failed": True, "msg": "no space"}
    assert follow(kind, monkeypatch, [refused])[0] == refused
    assert follow(kind, monkeypatch, [{}, refused])[0] == refused
    lost = follow(kind, monkeypatch, [{}, *[LOST] * followed.LOST_AFTER])[0]
    assert lost["failed"]
    assert "spark-1 does not answer" in lost["msg"]
    assert follow(kind, monkeypatch, [{}, LOST, DONE])[0] == RESULT


@pytest.mark.parametrize("kind", KINDS)
def test_check_mode_is_one_call(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(kind, monkeypatch, [RESULT], check=True)[::2] == (RESULT, ["plain"])


@pytest.mark.parametrize("arguments", [{"fetch": []}, *({"state": state} for state in ("prepared", "offered", "closed", "absent"))])
def test_copy_without_files_is_one_call(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(weights_copy, monkeypatch, [RESULT], **arguments)[::2] == (RESULT, ["plain"])


def test_a_line_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(100.0, 5.0)  # five seconds with each call
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    answers = [{}, *[running(text=f"layer {number}") for number in range(20)], {"report": {"state": "done"}, "changed": True}]
    _out, shown, _steps = follow(image_get, monkeypatch, answers, show_seconds=followed.SHOW_SECONDS)
    assert [line.split()[-1] for line in shown] == ["0", "6", "12", "18"]
