"""What a node has recorded of its group: with an agent, without one, with an older one, and with damaged files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._agent import client
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError
from ansible_collections.gb10.cluster.plugins.modules import report_info as module

RECEIPT = {"release": "4f0c", "time": "2026-11-25T07:00:00Z", "passed": True, "seconds": 50.0, "checks": [{"name": "x"}], "ranks": [{"rank": 0, "facts": {}}]}
BRIEF = {"release": "4f0c", "time": "2026-11-25T07:00:00Z", "passed": True, "seconds": 50.0, "ranks": [{"rank": 0}], "models": []}


def refuse(error: Exception) -> Callable[..., Any]:
    """Return a call that fails."""

    def call(*_words: object, **_more: object) -> None:
        raise error

    return call


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine may have an agent or a bandwidth receipt of its own."""
    monkeypatch.setattr(module, "BANDWIDTH", str(tmp_path / "bandwidth.json"))
    monkeypatch.setattr(client, "call", refuse(client.AgentMissing("no socket")))


def put(folder: Path, name: str, content: object) -> None:
    path = folder / "pair1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def read(folder: Path, capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args({"group": "pair1", "directory": str(folder), **arguments}), pytest.raises(SystemExit):
        module.main()
    return dict(json.loads(capsys.readouterr().out))


def test_node_without_anything_returns_empty_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read(tmp_path / "none", capsys)
    assert (found["receipts"], found["events"], found["bandwidth"]) == ([], [], {})
    assert found["memory"] == {"recent": "", "day": "", "source": ""}


def test_receipts_of_releases_and_of_a_failed_start_are_returned_without_their_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "releases/4f0c/compose.yaml", "services: {}\n")
    put(tmp_path, "releases/4f0c/receipt.json", RECEIPT)
    put(tmp_path, "releases/9b1e/compose.yaml", "services: {}\n")
    put(tmp_path, "agent/outcome.json", {"verdict": {"receipt": {**RECEIPT, "release": "9b1e", "passed": False}}})
    assert read(tmp_path, capsys)["receipts"] == [BRIEF, {**BRIEF, "release": "9b1e", "passed": False}]
    put(tmp_path, "agent/outcome.json", {"verdict": {"receipt": RECEIPT}})
    assert read(tmp_path, capsys)["receipts"] == [BRIEF], "the receipt of the current release is not listed twice"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"verdict": []}', '{"verdict": {"receipt": 5}}'])
def test_damaged_outcome_counts_as_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    put(tmp_path, "agent/outcome.json", text)
    assert read(tmp_path, capsys)["receipts"] == []


def test_newest_events_are_returned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "agent/events.jsonl", "".join(json.dumps({"n": n, "kind": "step", "text": str(n)}) + "\n" for n in range(30)))
    assert [each["n"] for each in read(tmp_path, capsys, events=3)["events"]] == [27, 28, 29]
    assert read(tmp_path, capsys, events=0)["events"] == []


def test_memory_of_an_agent_that_does_not_answer_is_read_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    put(tmp_path, "agent/memory.json", {"day": "5 1 2 3"})
    assert read(tmp_path, capsys)["memory"] == {"recent": "", "day": "5 1 2 3", "source": "file"}
    monkeypatch.setattr(client, "call", refuse(RankError("does not support the verb 'memory'", "unknown")))
    assert read(tmp_path, capsys)["memory"]["source"] == "file"
    monkeypatch.setattr(client, "call", lambda *_words, **_more: {"recent": "9 1 2 3", "day": "5 1 2 3"})
    assert read(tmp_path, capsys)["memory"] == {"recent": "9 1 2 3", "day": "5 1 2 3", "source": "agent"}
