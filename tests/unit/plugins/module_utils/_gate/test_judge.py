"""One boot, judged over ranks that answer from a script, in virtual time: the way from slices to the verdict."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import jmespath
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import cases
from ansible_collections.gb10.cluster.plugins.module_utils._gate import judge as judges
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import parse_series
from ansible_collections.gb10.cluster.plugins.module_utils._pair import calls, converge
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Actor
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Store
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError, RankLost
from shared_samples import needs_shared, samples

HOSTS = ["spark-1", "spark-2"]
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
CRITERIA = {"context": 4096, "completion": {"prompt": "The capital of France is", "expect": "Paris."}}
Answer = Callable[[Mapping[str, Any]], Any]


class Time:
    """A clock that only waiting moves. Its wall clock steps by an hour at each reading."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        self.steps += 1
        return 1.7e9 + 3600.0 * self.steps

    def wait(self, seconds: float) -> None:
        self.now += max(seconds, 0.01)


class Done:
    """A job that ends after so many seconds; never, if this is None."""

    def __init__(self, clock: Time, seconds: float | None, result: Any) -> None:
        self.clock, self.end, self.found = clock, None if seconds is None else clock.now + seconds, result

    def done(self) -> bool:
        return self.end is not None and self.clock.now >= self.end

    def result(self) -> dict[str, Any]:
        if isinstance(self.found, Exception):
            raise self.found
        return dict(self.found)


class Memory(Store):
    """A store that writes nothing."""

    def save(self, name: str, data: Mapping[str, Any]) -> None:
        return

    def append(self, event: Mapping[str, Any]) -> None:
        return


class Node:
    """A rank whose slices and completions are scripted."""

    generation = 0

    def __init__(self, number: int, clock: Time, slices: Answer, api: Any) -> None:
        self.number, self.host, self.clock, self.slices, self.api = number, HOSTS[number], clock, slices, api
        self.shown: dict[str, Any] | None = None
        self.asked: list[dict[str, Any]] = []

    def begin(self, verb: str, _limit: float, /, **arguments: Any) -> Done:
        if verb == "slice":
            answer = self.slices(arguments)
            if answer is None:
                return Done(self.clock, 60.0, RankLost("no reply within 60 s"))
            if isinstance(answer, dict):
                self.shown = answer["container"]
            return Done(self.clock, 0.2, answer)
        if verb == "probe":
            self.asked.append(arguments)
            answer = self.api(arguments) if callable(self.api) else self.api
            return Done(self.clock, 1.0 if answer is not None else arguments["timeout"] + 60.0, RankLost("no reply") if answer is None else answer)
        assert verb == "look"
        return Done(self.clock, 0.1, {"containers": [self.shown] if self.shown else [], "engine_error": ""})


def state(**more: Any) -> dict[str, Any]:
    return {
        "id": "c", "name": "gb10-pair1-rank", "status": "running", "running": True, "exit_code": 0, "oom_killed": False, "error": "", "started_at": "",
        "finished_at": "", "restart_count": 0, "image": "i", "image_id": "sha256:1", "labels": {},
    } | more  # fmt: skip


DEAD = state(running=False, status="exited", exit_code=137)


def logged(*pieces: bytes, container: dict[str, Any] | None = None, gone: bool = False) -> Answer:
    """Return slices with these pieces, one after the other, then nothing more; the container is as given from the last piece on."""
    rest = list(pieces)

    def answer(arguments: Mapping[str, Any]) -> dict[str, Any]:
        data = rest.pop(0) if rest else b""
        shape = dict(state() if rest or container is None else container, name=arguments["container"])
        return {
            "log": base64.b64encode(data).decode(), "cursor": "1", "container": None if gone else shape,
            "memory": {"free_kib": 1 << 20, "available_kib": 2 << 20, "oom_kills": 0}, "http_status": 0,
        }  # fmt: skip

    return answer


class Trial:
    """A boot and the verdict on it."""

    def __init__(self, slices: list[Answer], api: Any = None, errors: Mapping[int, str] | None = None, kind: type[Node] = Node, **options: Any) -> None:
        self.clock = Time()
        self.nodes = [kind(number, self.clock, each, api or API) for number, each in enumerate(slices)]
        self.actor = Actor("pair1", self.nodes, Memory("/none"), self.clock)
        criteria, search = options.pop("criteria", CRITERIA), options.pop("search", jmespath.search)
        release = options.pop("release", "")
        self.way = converge.Converge(self.actor, {**self.actor.desired(), "options": options})
        judge = judges.Judge(
            "pair1", HOSTS, release, criteria, timeout=options.get("timeout", 2700.0), limits=options.get("limits"), strict=options.get("strict", False),
            weights=options.get("weights"), search=search,
        )  # fmt: skip
        for number, error in (errors or {}).items():
            judge.start_failed(number, error)
        self.verdict = calls.Boot(self.way, judge, release).follow()

    @property
    def msg(self) -> str:
        return str(self.verdict["msg"])


def test_good_boot_passes_with_a_receipt() -> None:
    trial = Trial([logged(BOOT[:60], BOOT[60:]), logged(WORKER)], release="4f0c", weights={"proof": "5c1e"})
    assert trial.verdict["passed"]
    assert trial.msg == "pair1 serves: every criterion holds."
    receipt = trial.verdict["receipt"]
    assert receipt["pool"]["effective_tokens"] == 8192
    assert (receipt["release"], receipt["image"], receipt["weights"]) == ("4f0c", "sha256:1", {"proof": "5c1e"})
    assert [rank["host"] for rank in receipt["ranks"]] == HOSTS
    lines = [event["text"] for event in trial.actor.events()]
    assert any("rank 0  spark-1" in line for line in lines)
    assert any("rank 1  spark-2" in line for line in lines)


def test_the_receipt_has_the_memory_of_all_ranks_during_the_boot_also_if_it_fails() -> None:
    for trial in (Trial([logged(BOOT[:60], BOOT[60:]), logged(WORKER)]), Trial([logged(b""), logged(WORKER, container=DEAD)])):
        for found in trial.verdict["receipt"]["ranks"]:
            series = parse_series(found["memory_series"])
            assert series
            assert series[0].seconds <= 5
            assert {each[1:] for each in series} == {(1024, 2048, 0)}


UNHAPPY = [
    ("worker: unknown flag",
     [logged(WORKER), logged(WORKER, b"vllm: error: unrecognized arguments: --nope\n", container=state(running=False, status="exited", exit_code=2))],
     {}, API, "rank 1 on spark-2: bad_argument"),
    ("worker has no container", [logged(WORKER), logged(gone=True)], {}, API, "rank 1 on spark-2: container_missing"),
    ("worker could not be started", [logged(WORKER), logged(gone=True)], {"errors": {1: "no such image: x"}}, API, "start_failed: no such image: x"),
    ("context differs", [logged(BOOT), logged(WORKER)], {"criteria": {"context": 8192}}, API, "context_differs: context: wanted 8,192, found 4,096"),
    ("ranks disagree", [logged(BOOT), logged(WORKER.replace(b"4096", b"2048"))], {}, API, "wanted equal, found rank 0: 4,096, rank 1: 2,048"),
    ("wrong answer", [logged(BOOT), logged(WORKER)], {}, API | {"replies": [dict(API["replies"][0], text=" Rome.")]}, "completion_wrong"),
    ("no reply in time", [logged(BOOT), logged(WORKER)], {}, API | {"replies": [dict(API["replies"][0], ok=False, status=0, error="no reply within 5 s")]},
     "completion_missing: a real completion: wanted Paris., found no completion came back (no reply within 5 s). Remedy: Read the logs of all ranks"),
    ("another release", [logged(BOOT), logged(WORKER, container=state(labels={"gb10.cluster.release": "5e1f"}))], {"release": "4f0c"}, API,
     "rank 1 on spark-2: other_release"),
    ("a user's own criterion", [logged(BOOT), logged(WORKER)],
     {"criteria": {"expressions": [{"name": "four at once", "expression": "pool.concurrency >= `4`", "remedy": "lower the context"}]}}, API,
     "four at once: wanted true, found False. Remedy: lower the context."),
    ("out of time", [logged(WORKER), logged(WORKER)], {"timeout": 30.0}, API, "stalled: no verdict after"),
    ("frozen head while a completion is asked for", [logged(BOOT), logged(WORKER)], {"completion_timeout": 5.0}, lambda _arguments: None,
     "api_unreachable: /v1/models answers"),
    ("node that never answers", [lambda _arguments: None, logged(WORKER)], {}, API, "rank 0 on spark-1: node_lost"),
]  # fmt: skip


@pytest.mark.parametrize(("slices", "options", "api", "sentence"), [each[1:] for each in UNHAPPY], ids=[each[0] for each in UNHAPPY])
def test_boot_fails_with_one_sentence(slices: list[Answer], options: dict[str, Any], api: Any, sentence: str) -> None:
    trial = Trial(slices, api, **options)
    assert not trial.verdict["passed"]
    assert sentence in trial.msg
    assert "Remedy: " in trial.msg
    assert trial.verdict["receipt"]["msg"] == trial.msg


def after(number: int, first: Answer, then: Callable[[], Any]) -> Answer:
    """Return slices that change after so many."""
    calls: list[int] = []

    def answer(arguments: Mapping[str, Any]) -> Any:
        calls.append(1)
        return first(arguments) if len(calls) <= number else then()

    return answer


def test_node_that_stops_answering_is_lost() -> None:
    trial = Trial([logged(WORKER), after(2, logged(WORKER), lambda: RankLost("Connection timed out"))])
    assert "rank 1 on spark-2: node_lost" in trial.msg
    assert "Connection timed out" in trial.msg
    assert 20 <= trial.clock.now <= 30


SILENT = "The Docker Engine is not running."


@pytest.mark.parametrize("answer", [RankError(SILENT), {"failed": True, "msg": SILENT, "container": None}], ids=["verb", "slice"])
def test_docker_engine_that_stops_is_not_a_lost_node(answer: Any) -> None:
    trial = Trial([logged(WORKER), after(2, logged(WORKER), lambda: answer)])
    assert "rank 1 on spark-2: rank_unreadable" in trial.msg
    assert SILENT in trial.msg


def test_worker_that_dies_during_a_completion_is_reported_before_it_ends() -> None:
    asked: list[float] = []

    def api(_arguments: Mapping[str, Any]) -> None:
        asked.append(1.0)

    alive, dead = logged(WORKER), logged(container=DEAD)

    def worker(arguments: Mapping[str, Any]) -> Any:
        return dead(arguments) if asked else alive(arguments)

    trial = Trial([logged(BOOT), worker], api)
    assert "rank 1 on spark-2: killed" in trial.msg
    assert trial.clock.now < 60


def test_worker_that_dies_after_its_last_slice_does_not_pass() -> None:
    asked: list[float] = []

    def api(_arguments: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(1.0)
        return API

    class Late(Node):
        def begin(self, verb: str, limit: float, /, **arguments: Any) -> Done:
            if asked and self.number == 1:
                if verb == "slice":
                    return Done(self.clock, None, {})
                self.shown = dict(DEAD, name="gb10-pair1-rank1")
            return super().begin(verb, limit, **arguments)

    assert "rank 1 on spark-2: killed" in Trial([logged(BOOT), logged(WORKER)], api, kind=Late).msg


@pytest.mark.parametrize("expression", ["length(pool.tokens) > `1`", "pool.["], ids=["at run time", "syntax"])
def test_expression_that_raises_is_a_failed_check(expression: str) -> None:
    trial = Trial([logged(BOOT), logged(WORKER)], criteria={"expressions": [expression]})
    assert "the expression cannot be evaluated" in trial.msg
    assert "Remedy: Correct gate.expressions in the profile." in trial.msg


def test_expressions_without_jmespath_name_the_remedy() -> None:
    [check] = judges.evaluate(["pool.concurrency"], {}, None)
    assert check["ok"] is False
    assert "Install jmespath on the controller" in check["remedy"]
    assert judges.evaluate([], {}, None) == []


def test_reply_of_reasoning_alone_passes_and_leaves_the_known_answer_open() -> None:
    thinks = dict(API["replies"][0], text="", reasoning="The user asks for a capital.", finish_reason="length")
    verdict = Trial([logged(BOOT), logged(WORKER)], API | {"replies": [thinks]}).verdict
    assert verdict["passed"]
    assert "the known answer" in [check["name"] for check in verdict["checks"] if check["ok"] is None]


@pytest.mark.parametrize(("context", "asked"), [(4096, 4096 - 4 - 64), (65536, 28000), (1024, None)], ids=["capped", "whole", "no room"])
def test_long_prompt_fits_the_served_context(context: int, asked: int | None) -> None:
    trial = Trial([logged(BOOT), logged(WORKER)], API | {"models": [{"id": "m", "max_model_len": context}]}, criteria={"long_prompt_tokens": 28000})
    assert trial.verdict["passed"]
    assert [request.get("prompt_tokens") for call in trial.nodes[0].asked for request in call["requests"]] == [None] + [asked] * (asked is not None)
    assert ("a long prompt" in [check["name"] for check in trial.verdict["checks"] if check["ok"] is None]) is (asked is None)


@pytest.mark.parametrize("ok", [True, False], ids=["any text", "no reply"])
def test_long_prompt_needs_a_reply_of_any_text(ok: bool) -> None:
    long = {"ok": ok, "status": 200 if ok else 0, "text": "", "error": "" if ok else "no reply within 5 s", "prompt_tokens": 2000 if ok else 0}

    def api(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return API | ({"replies": [long]} if arguments["requests"][0].get("prompt_tokens") else {})

    trial = Trial([logged(BOOT), logged(WORKER)], api, criteria={"long_prompt_tokens": 2000})
    assert trial.verdict["passed"] is ok
    assert ok or "no reply within 5 s) (a prompt of 2000 tokens)" in trial.msg


def test_api_that_goes_away_between_requests_does_not_pass() -> None:
    def api(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return API if arguments["concurrency"] == 1 else API | {"replies": [], "models": [], "error": "/v1/models does not answer"}

    trial = Trial([logged(BOOT), logged(WORKER)], api, criteria={"concurrent_requests": 4})
    assert "completion_missing" in trial.msg
    assert "4 requests at once" in trial.msg


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
def test_recordings_of_a_real_pair(name: str, sentence: str) -> None:
    """What only both logs together show is found: each rank's recording is fed in pieces, and its container then ends as the recording did."""
    logs = [(samples() / "recorded" / f"{name}-{who}.log").read_bytes() for who in ("head", "worker")]
    ended = None if "disagree" in name else state(running=False, status="exited", exit_code=1)
    slices = [logged(*[log[i : i + 2000] for i in range(0, len(log), 2000)], container=ended) for log in logs]
    assert sentence in Trial(slices, criteria={}).msg


# --- what is measured


CODE = API["replies"][0] | {"text": "class Account:", "seconds": 8.0, "finish_reason": "length", "completion_tokens": 256, "prompt_tokens": 40}
DRAFTS = {"drafts": 100, "draft_tokens": 200, "accepted_tokens": 120, "accepted_per_position": [80, 40], "generated_tokens": 130}


def measuring(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Answer at 32 tokens/s, with a drafter that works."""
    replies = [CODE if request.get("max_tokens", 16) > 64 or request.get("cold") else API["replies"][0] for request in arguments["requests"]]
    return API | {"replies": replies, "speculation": DRAFTS}


def measured(criteria: Mapping[str, Any], api: Any = measuring, **options: Any) -> Trial:
    return Trial([logged(BOOT), logged(WORKER)], api, criteria={**CRITERIA, **criteria}, **options)


def test_nothing_more_is_asked_without_a_reason() -> None:
    trial = measured({"decode_tok_s": {"min": None}, "acceptance": {"min": None, "positions_active": None}, "engine": {"eager": None}})
    assert trial.verdict["passed"]
    assert len(trial.nodes[0].asked) == 1
    assert trial.verdict["warnings"] == []


def test_speed_and_accepted_drafts_are_in_the_receipt() -> None:
    trial = measured(
        {"speculative_method": "mtp", "completion": {"prompt": "The capital of France is", "chat": True, "body": {"x": 1}}, "published_tok_s": 34.0}
    )
    assert trial.verdict["passed"]
    [_first, decode] = [call["requests"] for call in trial.nodes[0].asked]
    assert decode[0]["chat"]
    assert (decode[0]["max_tokens"], decode[0]["body"]) == (256, {"x": 1, "ignore_eos": True})
    found = trial.verdict["receipt"]["measured"]
    assert found["decode_tok_s"] == 32.0
    assert (found["speculation"]["acceptance"], found["speculation"]["accepted_per_position"]) == (0.6, [160, 80])
    assert trial.verdict["warnings"] == []


def test_first_long_reply_that_compiles_kernels_does_not_count_as_slow() -> None:
    """The lab's engine with an n-gram drafter: 47.7 tokens/s for the first reply of 256 tokens, 238.4 for the second."""
    speeds = [5.37, 1.07]

    def api(arguments: Mapping[str, Any]) -> dict[str, Any]:
        long = arguments["requests"][0].get("max_tokens") == 256
        return measuring(arguments) | ({"replies": [CODE | {"seconds": speeds.pop(0)}]} if long else {})

    trial = measured({"decode_tok_s": {"min": 100}, "published_tok_s": 240}, api)
    assert trial.verdict["passed"]
    assert trial.verdict["warnings"] == []
    assert trial.verdict["receipt"]["measured"]["decode_tok_s"] == 239.25
    assert speeds == []


def test_cold_prompt_is_asked_once_with_time_for_its_length() -> None:
    served = API | {"models": [{"id": "m", "max_model_len": 131072}]}
    trial = Trial(
        [logged(BOOT), logged(WORKER)], lambda arguments: served | {"replies": measuring(arguments)["replies"]}, criteria={"cold_prefill_tokens": 112000},
        completion_timeout=60.0,
    )  # fmt: skip
    assert trial.verdict["passed"]
    [_first, cold] = trial.nodes[0].asked
    assert [(request["prompt_tokens"], request["cold"]) for request in cold["requests"]] == [(112000, True)]
    assert cold["timeout"] == 60.0 * 4
    assert trial.verdict["receipt"]["measured"] == {"prefill_tokens": 40, "prefill_tok_s": 5.0}


def test_cold_prompt_with_tools_is_a_chat_whose_reply_is_judged() -> None:
    """Garble of cold prompts: the reply begins in the middle of the prompt, or with a tool's schema (docs/tuning.md)."""
    criteria = {"cold_prefill_tokens": 20000, "cold_prefill_tools": True}

    def api(text: str) -> Any:
        served = API | {"models": [{"id": "m", "max_model_len": 131072}]}
        return lambda arguments: served | ({"replies": [API["replies"][0] | {"text": text}]} if arguments["requests"][0].get("cold") else {})

    good = Trial([logged(BOOT), logged(WORKER)], api(API["replies"][0]["text"]), criteria=criteria)
    assert good.verdict["passed"], good.msg
    [cold] = good.nodes[0].asked[-1]["requests"]
    assert (cold["prompt_tokens"], cold["cold"], cold["chat"]) == (20000, True, True)
    assert {tool["function"]["name"] for tool in cold["body"]["tools"]} >= {"send_mail", "get_weather"}
    assert cold["prompt"] == good.nodes[0].asked[0]["requests"][0]["prompt"]
    bad = Trial([logged(BOOT), logged(WORKER)], api('</tool> <tool_call>{"name": "send_mail"}'), criteria=criteria)
    assert bad.verdict["class"] == "completion_wrong"
    assert "a cold prompt of 20000 tokens with tools" in bad.msg


def test_long_replies_are_asked_at_once_and_judged() -> None:
    def garbled(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return measuring(arguments) | ({"replies": [CODE, CODE | {"text": "\u7684" * 300}]} if len(arguments["requests"]) > 1 else {})

    assert measured({"long_replies": 4}).verdict["passed"]
    trial = measured({"long_replies": 2}, garbled)
    [_first, many] = trial.nodes[0].asked
    assert (many["concurrency"], [request["max_tokens"] for request in many["requests"]]) == (2, [800, 800])
    assert many["requests"][0]["prompt"] != many["requests"][1]["prompt"]
    assert trial.verdict["class"] == "completion_wrong"
    assert "2 replies of 800 tokens at once" in trial.msg


@pytest.mark.parametrize(("again", "exact", "passes"), [("It keeps a time.", True, True), ("It keeps one.", False, True), ("It keeps one.", True, False)])
def test_the_cases_of_the_profile_are_asked_and_judged(again: str, exact: bool, passes: bool) -> None:
    known = {each["prompt"]: each.get("expect") or "It is so." for each in [*cases.PROMPTS, *cases.cases_of(["cold-tools"], cases.PROMPTS, [], 9)[0][1]]}

    def api(arguments: Mapping[str, Any]) -> dict[str, Any]:
        asked = [request["prompt"] for request in arguments["requests"]]
        texts = [known.get(each, (again if len(asked) > 2 else "It keeps a time.") if "cache" in each else " Paris.") for each in asked]
        return API | {"replies": [API["replies"][0] | {"text": each} for each in texts]}

    trial = measured({"cases": ["victim", "cold-tools"], "batch_invariant": exact}, api)
    assert [(call["concurrency"], len(call["requests"])) for call in trial.nodes[0].asked][1:] == [(1, 1), (7, 19), *[(1, 1)] * passes]
    assert trial.verdict["passed"] is passes
    cold = trial.nodes[0].asked[-1]["requests"][0]
    assert not passes or (cold["body"]["tools"] and cold["prompt_tokens"] + 256 + 1024 <= API["models"][0]["max_model_len"])
    assert passes or "from character 10 on: 'one.', not 'a time.' (case victim)" in trial.msg
    notes = [check for check in trial.verdict["checks"] if check["name"] == "a reply next to others"]
    assert [(check["ok"], check["warning"]) for check in notes] == ([(None, True)] if passes and again != "It keeps a time." else [])


def test_measures_are_open_to_expressions() -> None:
    assert measured({"decode_tok_s": {"min": 1}, "expressions": ["measured.decode_tok_s > `30`"]}).verdict["passed"]
    unknown = BOOT.replace(b"INFO:     App", b"WARNING 11-21 05:00:01 [envs.py:1] Unknown vLLM environment variable detected: VLLM_USE_B12X_MOE\nINFO:     App")
    for log, passes in ((BOOT, True), (unknown, False)):
        trial = Trial([logged(log), logged(WORKER)], measuring, criteria={**CRITERIA, "expressions": ["!(head.unknown_variables)"]})
        assert trial.verdict["passed"] is passes
