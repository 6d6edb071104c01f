"""The action of the first module on a node: a connection that was kept while a link was down is replaced once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible_collections.gb10.cluster.plugins.action.node import ActionModule
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown

BLOCKED = AnsibleConnectionFailure("Timeout (12s) waiting for privilege escalation prompt: ")
PASSWORD = {"failed": True, "module_stderr": "sudo: a password is required\n", "module_stdout": "", "msg": "MODULE FAILURE"}
GOOD = {"changed": False, "facts": {}}


def run(monkeypatch: pytest.MonkeyPatch, *answers: Any, transport: str = "ssh") -> tuple[dict[str, Any], list[str]]:
    """Run the action against these answers of the module, one a call; return its result and what it did."""
    did: list[str] = []
    left = list(answers)

    def execute(**_options: Any) -> dict[str, Any]:
        did.append("module")
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(async_val=0)
    options = {"host": "192.168.1.12", "remote_user": "me", "port": None}
    action._connection = SimpleNamespace(
        transport=transport, reset=lambda: did.append("reset"), _shell=SimpleNamespace(tmpdir=None), get_option=lambda name: options[name]
    )
    monkeypatch.setattr(action, "_execute_module", execute)
    monkeypatch.setattr(action, "_remove_tmp_path", lambda _path: None)
    return action.run(None, {"inventory_hostname": "spark-2"}), did


def test_replaces_a_blocked_connection_and_runs_the_module_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, BLOCKED, GOOD) == (GOOD, ["module", "reset", "module"])


def test_the_clock_of_the_controller_is_read_around_a_module_that_reads_that_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    clock = run(monkeypatch, {**GOOD, "time": 5.0})[0]["clock"]
    assert now <= clock["before"] <= clock["after"] <= time.time()


def test_reports_a_node_that_blocks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    out, did = run(monkeypatch, BLOCKED, BLOCKED)
    assert did == ["module", "reset", "module"]
    assert out["unreachable"]
    assert "sudo does not answer in time" in out["msg"]


@pytest.mark.parametrize(("answer", "transport"), [(PASSWORD, "ssh"), (BLOCKED, "local")], ids=["password", "local"])
def test_other_causes_are_not_repeated(monkeypatch: pytest.MonkeyPatch, answer: Any, transport: str) -> None:
    out, did = run(monkeypatch, answer, transport=transport)
    assert did == ["module"]
    assert "spark-2" in out["msg"]
    assert out["access"] in out["msg"]


def test_what_a_module_shows_is_printed_with_the_name_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(shown, "wants_json", lambda _loader: True)
    monkeypatch.setattr(shown, "show", lambda *arguments: printed.append(arguments))
    monkeypatch.setattr(ActionModule, "_loader", None, raising=False)
    out, _did = run(monkeypatch, {"changed": False, "shown": ["nothing was changed"]})
    assert printed == [(out["shown"], None, True)] == [(["spark-2: nothing was changed"], None, True)]


@pytest.mark.parametrize(
    "error",
    [
        AnsibleConnectionFailure("Failed to connect to the host via ssh: me@192.168.1.12: Permission denied (publickey,password)."),
        AnsibleError("Using a SSH password instead of a key is not possible because Host Key checking is enabled. Add the fingerprint."),
    ],
    ids=["key", "host key"],
)
def test_a_node_that_ssh_does_not_reach_is_unreachable_with_its_remedy(monkeypatch: pytest.MonkeyPatch, error: AnsibleError) -> None:
    out, did = run(monkeypatch, error)
    assert did == ["module"]
    assert (out["unreachable"], out.get("failed")) == (True, None)
    assert out["msg"].startswith("spark-2 (192.168.1.12): it")
    assert "me@192.168.1.12" in out["remedy"]


def test_an_error_that_only_reads_like_one_of_ssh_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleError, match="timed out"):
        run(monkeypatch, AnsibleError("the template timed out"))
    with pytest.raises(AnsibleConnectionFailure):
        run(monkeypatch, AnsibleConnectionFailure("connection refused by the agent"), transport="local")
