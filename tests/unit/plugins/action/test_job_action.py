"""Long work followed from the controller: the progress, and the ends."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import job

LOST: dict[str, Any] = {"unreachable": True, "msg": "timed out"}
END = {"state": "done", "done": 2 << 30, "total": 2 << 30, "rate": 1000}
DONE: dict[str, Any] = {"report": END, "changed": True}
STARTED = {"changed": True, "started": True}
RESULT = {"changed": True}  # the report was for the action plugin


def follow(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any]], work: str = "fetch", show_seconds: float = 0.0
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Run the action with scripted results; return (result, lines shown, steps called)."""
    shown: list[str] = []
    steps: list[str] = []
    rest = list(answers)

    def execute(module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert module_name == "gb10.cluster.job"
        assert task_vars["inventory_hostname"] == "spark-1"
        steps.append(module_args["step"])
        return dict(rest.pop(0))

    monkeypatch.setattr(job, "SHOW_SECONDS", show_seconds)
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(Display, "display", lambda _self, text, **_k: shown.append(text))
    action: Any = job.ActionModule.__new__(job.ActionModule)
    action._task = SimpleNamespace(args={"work": work, "name": "weights-pair1"})
    action._execute_module = execute
    return action.run(None, {"inventory_hostname": "spark-1"}), shown, steps


def running(**report: Any) -> dict[str, Any]:
    return {"report": {"state": "running", **report}}


def test_pull_shows_each_new_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["layer 1", "layer 1", "layer 2"]
    out, shown, steps = follow(monkeypatch, [STARTED, *(running(text=text) for text in texts), {"report": {"state": "done"}, "changed": True}], "pull")
    assert out == RESULT
    assert [line.split(" s  ")[1] for line in shown] == ["layer 1", "layer 2"]
    assert all(line.startswith("  spark-1: pull  ") for line in shown)
    assert steps == ["start", *["status"] * 4]


@pytest.mark.parametrize(("work", "what"), [("download", "download"), ("fetch", "weights")])
def test_bytes_are_shown_with_share_and_rate(monkeypatch: pytest.MonkeyPatch, work: str, what: str) -> None:
    monkeypatch.setattr("time.monotonic", itertools.count(100.0, 1.0).__next__)
    out, shown, _steps = follow(monkeypatch, [STARTED, running(done=1 << 30, total=2 << 30), DONE], work)
    assert out == RESULT
    assert shown[0].startswith(f"  spark-1: {what}  50 %  1.0 GiB of 2.0 GiB  ")
    assert shown[-1] == f"  spark-1: {what}  100 %  2.0 GiB of 2.0 GiB  1000 MB/s"


def test_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"failed": True, "msg": "no space"}
    assert follow(monkeypatch, [refused])[0] == refused
    assert follow(monkeypatch, [STARTED, refused])[0] == refused
    lost = follow(monkeypatch, [STARTED, *[LOST] * job.LOST_AFTER])[0]
    assert lost["failed"]
    assert "spark-1 does not answer" in lost["msg"]
    assert follow(monkeypatch, [STARTED, LOST, DONE])[0] == RESULT


def test_work_that_needs_no_unit_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert follow(monkeypatch, [RESULT])[::2] == (RESULT, ["start"])


def test_a_line_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(100.0, 5.0)  # five seconds with each call
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    answers = [STARTED, *[running(text=f"layer {number}") for number in range(20)], {"report": {"state": "done"}, "changed": True}]
    _out, shown, _steps = follow(monkeypatch, answers, "pull", show_seconds=30.0)
    assert [line.split()[-1] for line in shown] == ["0", "6", "12", "18"]
