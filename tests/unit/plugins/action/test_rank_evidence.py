"""Evidence on the controller: collected on the node, or copied from what the agent kept there."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action import rank_evidence
from ansible_collections.gb10.cluster.plugins.module_utils._agent.evidence import FIGURES


def run(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], **arguments: Any) -> tuple[dict[str, Any], list[tuple[str | None, dict[str, Any]]]]:
    """Run the action with the node's answer; return its result and the modules that it called."""
    calls: list[tuple[str | None, dict[str, Any]]] = []

    def execute(module_name: str | None = None, module_args: dict[str, Any] | None = None, task_vars: Any = None) -> dict[str, Any]:
        calls.append((module_name, module_args or {}))
        return dict(answer)

    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    action = rank_evidence.ActionModule.__new__(rank_evidence.ActionModule)
    action._task = SimpleNamespace(args={"group": "pair1", **arguments})
    monkeypatch.setattr(action, "_execute_module", execute)
    return dict(action.run(None, {})), calls


def test_collects_into_a_file_that_only_its_owner_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, calls = run(monkeypatch, {"changed": False, "text": "== memory\n"}, dest=str(tmp_path / "a/rank0.txt"))
    assert (out, calls) == ({"changed": False, "path": str(tmp_path / "a/rank0.txt")}, [(None, {"group": "pair1"})])
    assert (tmp_path / "a/rank0.txt").read_text(encoding="utf-8") == "== memory\n"
    assert stat.S_IMODE((tmp_path / "a/rank0.txt").stat().st_mode) == 0o600


def test_a_file_that_every_user_could_read_is_private_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rank0.txt").touch(mode=0o644)
    run(monkeypatch, {"changed": False, "text": "== memory\n"}, dest=str(tmp_path / "rank0.txt"))
    assert stat.S_IMODE((tmp_path / "rank0.txt").stat().st_mode) == 0o600


def test_figures_of_the_moment_have_a_file_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = f"== log\n{FIGURES}\nof a container\n{FIGURES}\n\n== GPU\n45 C\n"
    out, _calls = run(monkeypatch, {"changed": False, "text": text}, dest=str(tmp_path / "rank0.txt"))
    assert out["path"] == str(tmp_path / "rank0.txt")
    assert (tmp_path / "rank0.txt").read_text(encoding="utf-8") == f"== log\n{FIGURES}\nof a container\n"
    assert (tmp_path / "rank0.figures.txt").read_text(encoding="utf-8") == "\n== GPU\n45 C\n"
    assert stat.S_IMODE((tmp_path / "rank0.figures.txt").stat().st_mode) == 0o600


def test_copies_what_the_agent_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = {"changed": False, "content": base64.b64encode("== märz\n".encode()).decode(), "encoding": "base64"}
    out, calls = run(monkeypatch, answer, src="/kept/rank0.txt", dest=str(tmp_path / "rank0.txt"))
    assert calls == [("ansible.builtin.slurp", {"src": "/kept/rank0.txt"})]
    assert out["path"] == str(tmp_path / "rank0.txt")
    assert "content" not in out
    assert (tmp_path / "rank0.txt").read_text(encoding="utf-8") == "== märz\n"


def test_leaves_a_note_and_fails_if_nothing_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, _calls = run(monkeypatch, {"failed": True, "msg": "file not found"}, src="/kept/rank0.txt", dest=str(tmp_path / "rank0.txt"))
    assert out["failed"]
    assert (tmp_path / "rank0.txt").read_text(encoding="utf-8") == "No evidence could be read: file not found\n"
