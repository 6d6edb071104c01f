"""The agent's action: when the module runs, and what stands in for it when it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action import agent

HEAD = "3f7a1c0d5b9e4f6a8c2d1e0f9a8b7c6d"
OPTIONS = {"state": "present", "group": {"name": "pair1", "rank": 1}, "head_id": HEAD, "takeover": False}
KNOWN: dict[str, Any] = {
    "version": "1f0c61d2a9be", "public_key": "", "head_id": "a" * 32, "host_keys": ["ssh-ed25519 AAAA"], "ssh_port": 2222, "converges": False,
    "state": {"owner": {"group": "pair1", "head": HEAD}, "generation": 4}, "stamp": agent.digest(OPTIONS),
}  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, known: dict[str, Any] | None, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the action; return its result and the options of each run of the module."""
    calls: list[dict[str, Any]] = []

    def execute(module_args: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        calls.append(module_args)
        return {"changed": True}

    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    action = agent.ActionModule.__new__(agent.ActionModule)
    action._task = SimpleNamespace(args={**OPTIONS, **options, **({} if known is None else {"installed": known})})
    monkeypatch.setattr(action, "_execute_module", execute)
    return dict(action.run(None, {})), calls


def test_an_installation_with_the_same_stamp_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    out, calls = run(monkeypatch, KNOWN)
    assert calls == []
    same = {name: KNOWN[name] for name in ("version", "public_key", "head_id", "host_keys", "ssh_port")}
    assert out == {"changed": False, "changes": [], "problems": [], "active": True, **same}


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(None, id="not read"),
        pytest.param({**KNOWN, "stamp": ""}, id="touched"),
        pytest.param({**KNOWN, "state": {}}, id="no answer"),
        pytest.param({**KNOWN, "state": {"owner": None}}, id="no owner"),
        pytest.param({**KNOWN, "state": {"owner": {"group": "pair1", "head": "b" * 32}}}, id="another head"),
        pytest.param({**KNOWN, "state": {"owner": {"group": "pair2", "head": HEAD}}}, id="another group"),
    ],
)
def test_anything_else_runs_the_module_which_stores_the_stamp(monkeypatch: pytest.MonkeyPatch, known: dict[str, Any] | None) -> None:
    out, calls = run(monkeypatch, known)
    assert out == {"changed": True}
    assert calls == [{**OPTIONS, "stamp": KNOWN["stamp"]}]


def test_other_options_and_other_code_have_another_stamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert len(run(monkeypatch, KNOWN, takeover=True)[1]) == 1
    (tmp_path / "modules").mkdir()
    (tmp_path / "module_utils/_agent").mkdir(parents=True)
    (tmp_path / "modules/agent.py").write_text("")
    monkeypatch.setattr(agent, "PLUGINS", tmp_path)
    before = agent.digest(OPTIONS)
    (tmp_path / "module_utils/_agent/rank.py").write_text("x = 1\n")
    assert agent.digest(OPTIONS) != before


def test_the_head_is_known_by_its_own_id_before_the_keys_are_exchanged() -> None:
    options = {"group": {"name": "pair1"}}
    known = {**KNOWN, "head_id": HEAD}
    assert agent.stands(known, options, KNOWN["stamp"])
    assert not agent.stands({**known, "head_id": "", "state": {"owner": {"group": "pair1", "head": ""}}}, options, KNOWN["stamp"])


def test_removal_always_runs_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, KNOWN, state="absent")[1] == [{**OPTIONS, "state": "absent"}]
