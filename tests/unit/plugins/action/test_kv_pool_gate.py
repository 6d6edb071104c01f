"""The action plugin: two instances at the same time, as Ansible runs them, over nodes that answer from a script; one verdict on both."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import constants
from ansible import context as cli_context
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import kv_pool_gate as plugin
from ansible_collections.gb10.cluster.plugins.module_utils import gate
from shared_samples import needs_shared, samples

Slice = Callable[[dict[str, Any]], dict[str, Any]]
GROUP = {"name": "pair1", "size": 2, "hosts": ["spark-1", "spark-2"], "rank": 0}
API: dict[str, Any] = {
    "models": [{"id": "m", "max_model_len": 4096}], "error": "", "http_status": 200, "version": "0.32.0", "metrics": [],
    "replies": [{"ok": True, "status": 200, "text": " Paris.", "error": "", "seconds": 0.1, "finish_reason": "stop"}],
}  # fmt: skip
BOOT = (
    b"INFO 11-21 05:00:00 [model.py:1] Using max model len 4096\n"
    b"(EngineCore pid=9) INFO 11-21 05:00:01 [kv_cache_utils.py:1] GPU KV cache size: 8,192 tokens, "
    b"Maximum concurrency for 4,096 tokens per request: 2.00x\nINFO:     Application startup complete.\n"
)
WORKER = b"INFO 11-21 05:00:00 [model.py:1] Using max model len 4096\n"


def state(**more: Any) -> dict[str, Any]:
    return {
        "id": "c", "name": "gb10-pair1-rank", "status": "running", "running": True, "exit_code": 0, "oom_killed": False, "error": "", "started_at": "",
        "finished_at": "", "restart_count": 0, "image": "i", "image_id": "sha256:1", "labels": {},
    } | more  # fmt: skip


def says(*pieces: bytes, container: dict[str, Any] | None = None, gone: bool = False) -> Slice:
    """A node whose slices bring these pieces one after the other, then nothing more; its container is as given from the last piece on."""
    rest = list(pieces)

    def answer(_arguments: dict[str, Any]) -> dict[str, Any]:
        data = rest.pop(0) if rest else b""
        if not data:
            time.sleep(0.02)
        shape = state() if rest or container is None else container
        return {
            "log": base64.b64encode(data).decode(), "cursor": 1, "container": None if gone else shape,
            "memory": {"free_kib": 1 << 20, "oom_kills": 0}, "http_status": 0,
        }  # fmt: skip

    return answer


class Pair:
    """Both ranks' instances of one task."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[Slice], api: dict[str, Any] | None = None, **arguments: Any) -> None:
        self.arguments: dict[str, Any] = {"criteria": {"context": 4096, "completion": {"prompt": "The capital of France is", "expect": "Paris."}}, **arguments}
        self.nodes = nodes
        self.api = api or API
        self.lines: list[str] = []
        self.tmp = tmp_path
        monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
        monkeypatch.setattr(plugin, "LOST_SECONDS", 0.3)
        monkeypatch.setattr(plugin, "RETRY_SECONDS", 0.05)
        monkeypatch.setattr(gate, "SETTLE_SECONDS", 0.3)
        monkeypatch.setattr(cli_context, "CLIARGS", {"forks": 5})

    def instance(self, rank: int) -> plugin.ActionModule:
        task = SimpleNamespace(_uuid="task-1", check_mode=False, args={"container": f"gb10-pair1-rank{rank}", "group": dict(GROUP, rank=rank)} | self.arguments)
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        action._task = task
        action._execute_module = lambda module_name, module_args, task_vars: self._module(rank, module_name, module_args)
        action.validate_argument_spec = lambda argument_spec: (None, {**{k: v.get("default") for k, v in argument_spec.items()}, **task.args})
        return action

    def _module(self, rank: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self.api if name.endswith("vllm_probe") else self.nodes[rank](arguments)

    def run(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
        monkeypatch.setattr(Display, "display", lambda _self, text, **_k: self.lines.append(text))
        out: dict[int, Any] = {}

        def one(rank: int) -> None:
            out[rank] = self.instance(rank).run(None, {"inventory_hostname": f"spark-{rank + 1}", "ansible_play_batch": ["spark-1", "spark-2"]})

        threads = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert set(out) == {0, 1}, "an instance did not end"
        return [out[0], out[1]]


def test_a_good_boot_passes_on_both_and_leaves_a_receipt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, monkeypatch, [says(BOOT[:60], BOOT[60:]), says(WORKER)], receipts=str(tmp_path / "r"), release="4f0c", profile="p")
    head, worker = pair.run(monkeypatch)
    assert head["passed"]
    assert worker["passed"]
    assert head["msg"] == worker["msg"] == "pair1 serves: every criterion holds."
    receipt = json.loads((tmp_path / "r/pair1/last-good.json").read_text(encoding="utf-8"))
    assert receipt["pool"]["effective_tokens"] == 8192
    assert [rank["host"] for rank in receipt["ranks"]] == ["spark-1", "spark-2"]
    assert any("rank 0  spark-1" in line for line in pair.lines)
    assert any("rank 1  spark-2" in line for line in pair.lines)


def test_a_restart_that_the_profile_allows_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [says(BOOT), says(WORKER, container=state(restart_count=1))]
    assert Pair(tmp_path, monkeypatch, nodes, criteria={"max_restarts": 1}).run(monkeypatch)[0]["passed"]


def broken(node: bytes, container: dict[str, Any] | None = None) -> Slice:
    return says(WORKER, node, container=container)


UNHAPPY = [
    ("worker: unknown flag", [says(WORKER), broken(b"vllm: error: unrecognized arguments: --nope\n", state(running=False, status="exited", exit_code=2))],
     {}, API, "rank 1 on spark-2: bad_argument"),
    ("worker killed", [says(WORKER), says(WORKER, container=state(running=False, status="exited", exit_code=137))], {}, API, "rank 1 on spark-2: killed"),
    ("worker has no container", [says(WORKER), says(gone=True)], {}, API, "rank 1 on spark-2: container_missing"),
    ("worker could not be started", [says(WORKER), says(gone=True)], {"start_error": "no such image: x"}, API, "start_failed: no such image: x"),
    ("pool too small", [says(BOOT), says(WORKER)], {"criteria": {"effective_tokens": {"min": 9000}}}, API, "wanted 9,000, found 8,192"),
    ("context differs", [says(BOOT), says(WORKER)], {"criteria": {"context": 8192}}, API, "context_differs: context: wanted 8,192, found 4,096"),
    ("ranks disagree", [says(BOOT), says(WORKER.replace(b"4096", b"2048"))], {}, API, "ranks_disagree"),
    ("wrong answer", [says(BOOT), says(WORKER)], {}, API | {"replies": [dict(API["replies"][0], text=" Rome.")]}, "completion_wrong"),
    ("no completion", [says(BOOT), says(WORKER)], {}, API | {"replies": [dict(API["replies"][0], ok=False, error="HTTP 500: dead")]}, "HTTP 500: dead"),
    ("another server on the port", [says(BOOT), says(WORKER)], {}, API | {"error": "does not answer as a vLLM server does", "replies": [], "models": []},
     "api_unreachable"),
    ("a user's own criterion", [says(BOOT), says(WORKER)],
     {"criteria": {"expressions": [{"name": "four at once", "expression": "pool.concurrency >= `4`", "remedy": "lower the context"}]}}, API,
     "four at once: wanted true, found False. Remedy: lower the context."),
    ("out of time", [says(WORKER), says(WORKER)], {"timeout": 0.5}, API, "stalled: no verdict after"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "arguments", "api", "sentence"), [u[1:] for u in UNHAPPY], ids=[u[0] for u in UNHAPPY])
def test_both_ranks_fail_with_the_same_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[Slice], arguments: dict[str, Any], api: dict[str, Any], sentence: str
) -> None:
    out = Pair(tmp_path, monkeypatch, [*nodes], api, receipts=str(tmp_path / "r"), **arguments).run(monkeypatch)
    assert [result["failed"] for result in out] == [True, True]
    assert out[0]["msg"] == out[1]["msg"]
    assert sentence in out[0]["msg"]
    assert "Remedy: " in out[0]["msg"]
    assert not (tmp_path / "r/pair1/last-good.json").exists()
    assert len(list((tmp_path / "r/pair1").glob("*-failed.json"))) == 1


def test_a_node_that_stops_answering_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def frozen(arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        if len(calls) > 2:
            raise AnsibleConnectionFailure("Connection timed out")
        return says(WORKER)(arguments)

    out = Pair(tmp_path, monkeypatch, [says(WORKER), frozen]).run(monkeypatch)
    assert "rank 1 on spark-2: node_lost" in out[0]["msg"]
    assert "Connection timed out" in out[0]["msg"]


def test_fewer_forks_than_ranks_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)])
    monkeypatch.setattr(cli_context, "CLIARGS", {"forks": 1})
    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    with pytest.raises(AnsibleActionFail, match="set forks to 2 or more"):
        pair.instance(0).run(None, {"inventory_hostname": "spark-1", "ansible_play_batch": ["spark-1", "spark-2"]})


def test_expressions_without_jmespath_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "jmespath", None)
    action = Pair(tmp_path, monkeypatch, []).instance(0)
    with pytest.raises(AnsibleActionFail, match=r"^jmespath is missing on the controller: pip install jmespath$"):
        action._expressions([{}], {}, {"expressions": ["pool.concurrency"]})
    assert action._expressions([{}], {}, {}) == []


def test_a_rank_that_is_not_in_the_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)])
    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    with pytest.raises(AnsibleActionFail, match="spark-2 is not in this run"):
        pair.instance(0).run(None, {"inventory_hostname": "spark-1", "ansible_play_batch": ["spark-1"]})


def test_check_mode_judges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    action = Pair(tmp_path, monkeypatch, []).instance(0)
    action._task.check_mode = True
    assert action.run(None, {})["skipped"]


@needs_shared
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("f17-truncated-weights", "weights_corrupt"),
        ("f11-default-memory-fraction", "startup_free_memory"),
        ("f7-master-port-in-use", "rank 0 on spark-1: addr_in_use"),
        ("f21-tp3-heads-not-divisible", "config_error"),
        ("f15-ranks-disagree-max-model-len", "ranks_disagree"),
    ],
)
def test_recordings_of_a_real_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str) -> None:
    """What only both logs together show is found: each rank's recording is fed in pieces, and its container then ends as the recording did."""
    logs = [(samples() / "recorded" / f"{name}-{who}.log").read_bytes() for who in ("head", "worker")]
    ended = None if "disagree" in name else state(running=False, status="exited", exit_code=1)
    nodes = [says(*[log[i : i + 2000] for i in range(0, len(log), 2000)], container=ended) for log in logs]
    out = Pair(tmp_path, monkeypatch, nodes, criteria={}).run(monkeypatch)
    assert [result["failed"] for result in out] == [True, True]
    assert sentence in out[0]["msg"]
