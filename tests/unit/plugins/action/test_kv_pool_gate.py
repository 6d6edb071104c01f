"""The action plugin: two instances at the same time, as Ansible runs them, over nodes that answer from a script; one verdict on both."""

from __future__ import annotations

import base64
import itertools
import json
import stat
import threading
import time
from collections.abc import Callable, Iterator
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
from ansible_collections.gb10.cluster.plugins.module_utils import gate, reply
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

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[Slice], api: Any = None, **arguments: Any) -> None:
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
        if name.endswith("vllm_probe"):
            return dict(self.api(arguments) if callable(self.api) else self.api)
        return self.nodes[rank](arguments)

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
    kept = {"receipts": str(tmp_path / "r"), "release": "4f0c", "profile": "p", "weights": {"proof": "5c1e"}}
    pair = Pair(tmp_path, monkeypatch, [says(BOOT[:60], BOOT[60:]), says(WORKER)], **kept)
    head, worker = pair.run(monkeypatch)
    assert head["passed"]
    assert worker["passed"]
    assert head["msg"] == worker["msg"] == "pair1 serves: every criterion holds."
    receipt = json.loads((tmp_path / "r/pair1/last-good.json").read_text(encoding="utf-8"))
    assert receipt["pool"]["effective_tokens"] == 8192
    assert (receipt["image"], receipt["weights"]) == ("sha256:1", {"proof": "5c1e"})
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
    ("no reply in time", [says(BOOT), says(WORKER)], {}, API | {"replies": [dict(API["replies"][0], ok=False, status=0, error="no reply within 5 s")]},
     "completion_missing: a real completion: wanted Paris., found no completion came back (no reply within 5 s). Remedy: read the logs of all ranks"),
    ("another server on the port", [says(BOOT), says(WORKER)], {}, API | {"error": "does not answer as a vLLM server does", "replies": [], "models": []},
     "api_unreachable"),
    ("another run's release", [says(BOOT), says(WORKER, container=state(labels={"gb10.cluster.release": "5e1f"}))], {"release": "4f0c"}, API,
     "rank 1 on spark-2: other_release"),
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


def test_a_docker_engine_that_stops_is_not_a_lost_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def silent(arguments: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return says(WORKER)(arguments) if len(calls) < 3 else {"failed": True, "msg": "Cannot follow the container c: The Docker Engine is not running."}

    out = Pair(tmp_path, monkeypatch, [says(WORKER), silent]).run(monkeypatch)
    assert "rank 1 on spark-2: rank_unreadable" in out[0]["msg"]
    assert "The Docker Engine is not running." in out[0]["msg"]
    assert "SSH: see whether it is frozen" not in out[0]["msg"]


def test_fewer_forks_than_ranks_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)])
    monkeypatch.setattr(cli_context, "CLIARGS", {"forks": 1})
    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    with pytest.raises(AnsibleActionFail, match="set forks to 2 or more"):
        pair.instance(0).run(None, {"inventory_hostname": "spark-1", "ansible_play_batch": ["spark-1", "spark-2"]})


def test_expressions_without_jmespath_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "jmespath", None)
    action = Pair(tmp_path, monkeypatch, []).instance(0)
    [check] = action._expressions([{}], {}, {"expressions": ["pool.concurrency"]})
    assert (check["ok"], check["remedy"]) == (False, "pip install jmespath")
    assert action._expressions([{}], {}, {}) == []


@pytest.fixture
def frozen() -> Iterator[Callable[..., Any]]:
    """A call that does not return before the test is over."""
    over = threading.Event()
    yield lambda *_arguments: over.wait(30) and {}
    over.set()


def same_failure(out: list[dict[str, Any]], *parts: str) -> None:
    assert [result["failed"] for result in out] == [True, True]
    assert out[0]["msg"] == out[1]["msg"]
    for part in parts:
        assert part in out[0]["msg"]


def test_times_out_when_head_freezes_during_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: Any) -> None:
    monkeypatch.setattr(plugin, "STALE_SECONDS", 1.5)
    monkeypatch.setattr(plugin, "PULSE_SECONDS", 0.1)
    pair = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], frozen, completion_timeout=0.5)
    same_failure(pair.run(monkeypatch), "rank 0 on spark-1: node_lost", "has not answered over SSH for 2 s while the gate asks for completions")


def test_times_out_when_node_freezes_during_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: Any) -> None:
    monkeypatch.setattr(plugin, "STALE_SECONDS", 1.5)
    monkeypatch.setattr(plugin, "PULSE_SECONDS", 0.1)
    same_failure(Pair(tmp_path, monkeypatch, [frozen, frozen]).run(monkeypatch), "node_lost", "while the gate reads the log")


def test_other_rank_decides_when_instance_of_head_freezes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(plugin, "STALE_SECONDS", 2.0)
    monkeypatch.setattr(reply, "faults", lambda *_arguments: over.wait(30) and [])
    close = plugin.ActionModule._close

    def closed(action: plugin.ActionModule, verdict: dict[str, Any]) -> dict[str, Any]:
        out = close(action, verdict)
        over.set()
        return out

    monkeypatch.setattr(plugin.ActionModule, "_close", closed)
    out = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], receipts=str(tmp_path / "r")).run(monkeypatch)
    same_failure(out, "rank 0 on spark-1: gate_error", "process for spark-1 on the controller has been silent for 2 s")
    assert len(list((tmp_path / "r/pair1").iterdir())) == 1, "one verdict, one receipt"


def test_worker_that_dies_during_probe_is_reported_before_probe_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: Any) -> None:
    asked = threading.Event()

    def api(arguments: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        return dict(frozen(arguments))

    alive, dead = says(WORKER), says(container=state(running=False, status="exited", exit_code=137))

    def worker(arguments: dict[str, Any]) -> dict[str, Any]:
        return dict((dead if asked.is_set() else alive)(arguments))

    out = Pair(tmp_path, monkeypatch, [says(BOOT), worker], api).run(monkeypatch)
    same_failure(out, "rank 1 on spark-2: killed")


def test_error_in_gate_of_one_rank_fails_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_node(_arguments: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("boom")

    out = Pair(tmp_path, monkeypatch, [says(WORKER), broken_node]).run(monkeypatch)
    same_failure(out, "rank 1 on spark-2: gate_error: RuntimeError: boom")


@pytest.mark.parametrize("expression", ["length(pool.tokens) > `1`", "pool.["], ids=["at run time", "syntax"])
def test_expression_that_raises_is_failed_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expression: str) -> None:
    out = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], criteria={"expressions": [expression]}).run(monkeypatch)
    same_failure(out, "criterion: ", "the expression cannot be evaluated", "Remedy: correct gate.expressions in the profile.")


def test_truncated_last_good_receipt_is_warning_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "r/pair1/last-good.json"
    good.parent.mkdir(parents=True)
    good.write_text('{"pool": ', encoding="utf-8")
    out = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], receipts=str(tmp_path / "r")).run(monkeypatch)
    assert [result["passed"] for result in out] == [True, True]
    assert all(f"{good} is not a readable receipt" in result["receipt"]["warning"] for result in out)
    assert sum("warnings" in result for result in out) == 1
    assert out[0]["receipt"]["path"] == out[1]["receipt"]["path"]
    assert json.loads(good.read_text(encoding="utf-8"))["passed"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in good.parent.iterdir()} == {0o600}


def test_receipts_folder_that_cannot_be_written_is_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    out = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], receipts=str(tmp_path / "file")).run(monkeypatch)
    assert [result["passed"] for result in out] == [True, True]
    for result in out:
        assert "cannot be written" in result["receipt"]["warning"]
        assert result["receipt"].get("path") is None


def test_step_of_wall_clock_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = itertools.count(0, 3600)
    monkeypatch.setattr(time, "time", lambda: float(next(steps)))
    assert Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)]).run(monkeypatch)[0]["passed"]


def test_reply_of_reasoning_alone_passes_and_leaves_known_answer_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thinks = dict(API["replies"][0], text="", reasoning="The user asks for a capital.", finish_reason="length")
    nodes = [says(BOOT), says(WORKER)]
    out = Pair(tmp_path, monkeypatch, nodes, API | {"replies": [thinks]}).run(monkeypatch)
    assert out[0]["passed"]
    assert "the known answer" in out[0]["unknown_checks"]


@pytest.mark.parametrize(("context", "asked"), [(4096, 4096 - 4 - 64), (65536, 28000), (1024, None)], ids=["capped", "whole", "no room"])
def test_long_prompt_fits_served_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: int, asked: int | None) -> None:
    seen: list[Any] = []

    def api(arguments: dict[str, Any]) -> dict[str, Any]:
        seen.extend(request.get("prompt_tokens") for request in arguments["requests"])
        return API | {"models": [{"id": "m", "max_model_len": context}]}

    out = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], api, criteria={"long_prompt_tokens": 28000}).run(monkeypatch)
    assert out[0]["passed"]
    assert seen == [None] + [asked] * (asked is not None)
    assert ("a long prompt" in out[0]["unknown_checks"]) is (asked is None)


@pytest.mark.parametrize(("ok", "passed"), [(True, True), (False, False)], ids=["any text", "no reply"])
def test_long_prompt_needs_a_reply_of_any_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ok: bool, passed: bool) -> None:
    long = {"ok": ok, "status": 200 if ok else 0, "text": "", "error": "" if ok else "no reply within 5 s", "prompt_tokens": 2000 if ok else 0}

    def api(arguments: dict[str, Any]) -> dict[str, Any]:
        return API | ({"replies": [long]} if arguments["requests"][0].get("prompt_tokens") else {})

    out = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], api, criteria={"long_prompt_tokens": 2000}).run(monkeypatch)
    assert [result["passed"] for result in out] == [passed] * 2
    if not passed:
        same_failure(out, "completion_missing", "no reply within 5 s) (a prompt of 2000 tokens)")


def test_api_that_goes_away_between_requests_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def api(arguments: dict[str, Any]) -> dict[str, Any]:
        return API if arguments["concurrency"] == 1 else API | {"replies": [], "models": [], "error": "/v1/models does not answer"}

    out = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], api, criteria={"concurrent_requests": 4}).run(monkeypatch)
    same_failure(out, "completion_missing", "/v1/models does not answer", "4 requests at once")


def test_body_of_completion_reaches_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def api(arguments: dict[str, Any]) -> dict[str, Any]:
        seen.append(arguments["requests"][0]["body"])
        return API

    body = {"chat_template_kwargs": {"enable_thinking": False}}
    Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)], api, criteria={"completion": {"prompt": "x", "body": body}}).run(monkeypatch)
    assert seen == [body]


def test_a_rank_that_is_not_in_the_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)])
    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    with pytest.raises(AnsibleActionFail, match="spark-2 is not in this run"):
        pair.instance(0).run(None, {"inventory_hostname": "spark-1", "ansible_play_batch": ["spark-1"]})


def test_rank_whose_gate_does_not_start_ends_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "JOIN_SECONDS", 0.5)
    monkeypatch.setattr(ActionBase, "run", lambda *_a, **_k: {})
    pair = Pair(tmp_path, monkeypatch, [says(BOOT), says(WORKER)])
    out = pair.instance(0).run(None, {"inventory_hostname": "spark-1", "ansible_play_batch": ["spark-1", "spark-2"]})
    assert "rank 1 on spark-2: gate_error: the gate has not started for spark-2" in out["msg"]


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
