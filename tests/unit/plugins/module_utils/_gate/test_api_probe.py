"""The probe, and whether a server serves, against a real HTTP server on the loopback address that answers as vLLM does, or does not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import http_server
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe

METRICS = (
    "# HELP vllm:cache_config_info x\n"
    'vllm:cache_config_info{{block_size="16",kv_cache_max_concurrency="195.5",kv_cache_size_tokens="400448",num_gpu_blocks="None"}} 1.0\n'
    "vllm:num_requests_running {running}\nvllm:num_requests_waiting 0.0\nvllm:generation_tokens_total {tokens}\nvllm:prompt_tokens_total 3.0\n"
)


class Handler(http_server.Handler):
    """Answers by its class attributes."""

    key = ""
    completion: tuple[int, str] = (200, json.dumps({"choices": [{"text": " Paris.", "finish_reason": "stop"}], "usage": {"completion_tokens": 7}}))
    models: tuple[int, str] = (200, json.dumps({"data": [{"id": "m", "max_model_len": 4096}, {"id": "lora"}]}))
    metrics = METRICS  # empty: the page is not there
    running, tokens, step = 0, 400.0, 0.0  # `step`: the tokens between two readings of the page
    hangs = False  # completions do not come back until the test is over
    over: threading.Event
    seen: list[dict[str, Any]]

    def answer(self, status: int, text: str = "", **headers: str) -> None:
        if self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            status, text = 401, "Unauthorized"
        super().answer(status, text, **headers)

    def page(self) -> str:
        type(self).tokens += self.step
        return self.metrics.format(running=self.running, tokens=self.tokens)

    def get(self) -> None:
        pages = {"/v1/models": self.models, "/version": (200, '{"version": "0.32.0"}'), "/metrics": (200 if self.metrics else 404, self.page())}
        self.answer(*pages[self.path])

    def post(self) -> None:
        self.seen.append({"path": self.path, **self.body()})
        if self.hangs:
            self.over.wait(30)
        else:
            self.answer(*self.completion)


@pytest.fixture
def server() -> Iterator[tuple[type[Handler], str]]:
    with http_server.answering(Handler, over=threading.Event(), seen=[]) as found:
        yield found
        found[0].over.set()


def test_models_pool_and_completion(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    out = api_probe.ask(url, requests=[{"prompt": "The capital of France is", "max_tokens": 8}])
    assert out["models"] == [{"id": "m", "max_model_len": 4096}, {"id": "lora", "max_model_len": None}]
    assert out["metrics"][0]["kv_cache_max_concurrency"] == "195.5"
    assert out["version"] == "0.32.0"
    assert out["error"] == ""
    [reply] = out["replies"]
    assert (reply["ok"], reply["text"], reply["finish_reason"], reply["completion_tokens"]) == (True, " Paris.", "stop", 7)
    assert kind.seen == [{"path": "/v1/completions", "model": "m", "max_tokens": 8, "temperature": 0, "prompt": "The capital of France is"}]


def test_a_chat_request(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    kind.completion = (200, json.dumps({"choices": [{"message": {"content": "42"}, "finish_reason": "stop"}]}))
    out = api_probe.ask(url, model="m", requests=[{"prompt": "6*7?", "chat": True, "body": {"temperature": 0.6}}])
    assert out["replies"][0]["text"] == "42"
    assert kind.seen[0]["path"] == "/v1/chat/completions"
    assert kind.seen[0]["messages"] == [{"role": "user", "content": "6*7?"}]
    assert kind.seen[0]["temperature"] == 0.6


def test_a_request_that_is_sent_later_does_not_count_its_pause(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    out = api_probe.ask(url, requests=[{"prompt": "late", "after": 0.2}, {"prompt": "early"}], concurrency=2)
    assert [request["prompt"] for request in kind.seen] == ["early", "late"]
    assert out["replies"][0]["seconds"] < 0.2


def test_the_key_is_read_on_the_node_and_never_returned(server: tuple[type[Handler], str], tmp_path: Path) -> None:
    kind, url = server
    kind.key = "horse-battery"
    kind.completion = (200, json.dumps({"choices": [{"text": "the key is horse-battery"}]}))
    env = tmp_path / "secrets.env"
    env.write_text("VLLM_API_KEY='horse-battery'\n")
    out = api_probe.ask(url, env_file=[str(env)], requests=[{"prompt": "x"}])
    assert out["replies"][0]["ok"]
    assert "horse-battery" not in json.dumps(out)


@pytest.mark.parametrize("before", [0, 285, 295])
def test_a_key_in_an_error_is_masked_before_the_error_is_cut(server: tuple[type[Handler], str], tmp_path: Path, before: int) -> None:
    kind, url = server
    kind.completion = (500, "." * before + "no horse-battery here")
    env = tmp_path / "secrets.env"
    env.write_text("VLLM_API_KEY='horse-battery'\n")
    assert "hors" not in json.dumps(api_probe.ask(url, env_file=[str(env)], requests=[{"prompt": "x"}]))


def test_slow_reply_ends_at_deadline(server: tuple[Any, str]) -> None:
    """A server that sends a byte now and then resets a socket's timeout, and not the request's."""

    def trickle(handler: Any) -> None:
        handler.answer(200)
        while not handler.over.wait(0.05):
            handler.wfile.write(b" ")

    kind, url = server
    kind.post = trickle
    out = api_probe.ask(url, requests=[{"prompt": "x"}, {"prompt": "y"}], concurrency=2, timeout=0.5)
    assert [(r["ok"], r["status"], r["error"]) for r in out["replies"]] == [(False, 0, "no reply within 0.5 s")] * 2
    assert max(r["seconds"] for r in out["replies"]) < 10
    assert out["models"]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_returned(server: tuple[type[Handler], str], key: str) -> None:
    kind, url = server
    kind.completion = (200, json.dumps({"choices": [{"message": {"content": None, key: "17 + 25 is"}, "finish_reason": "length"}]}))
    [reply] = api_probe.ask(url, requests=[{"prompt": "x", "chat": True}])["replies"]
    assert (reply["ok"], reply["text"], reply["reasoning"]) == (True, "", "17 + 25 is")


def counting(kind: Any, count: Callable[[Any], int], tokenizes: bool) -> None:
    """Let a server count the tokens of prompts, by /tokenize or in the usage of a completion alone."""

    def answer(handler: Any) -> None:
        body = handler.body()
        kind.seen.append(body)
        if handler.path == "/tokenize":
            handler.answer(*((200, json.dumps({"tokens": list(range(count(body["prompt"])))})) if tokenizes else (404, "Not Found")))
            return
        asked = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        usage = {"prompt_tokens": count(asked), "completion_tokens": 1}
        handler.answer(200, json.dumps({"choices": [{"text": "42", "message": {"content": "42"}}], "usage": usage}))

    kind.post = answer


@pytest.mark.parametrize(("digits", "tokenizes"), [(1, True), (3, True), (1, False), (3, False)])
def test_long_prompt_is_counted_by_server(server: tuple[Any, str], digits: int, tokenizes: bool) -> None:
    """The prompt has the size that was asked for, whether the tokenizer splits numbers into single digits or into threes."""
    kind, url = server
    counting(kind, lambda prompt: len(prompt) if isinstance(prompt, list) else sum(-(-len(word) // digits) for word in prompt.split()), tokenizes)
    [reply] = api_probe.ask(url, requests=[{"prompt": "Count on.", "prompt_tokens": 28000}])["replies"]
    assert reply["ok"]
    assert (reply["prompt_tokens"] == 28000) if tokenizes else (27000 < reply["prompt_tokens"] <= 28000)


@pytest.mark.parametrize("tokenizes", [True, False], ids=["by /tokenize", "by the usage"])
def test_cold_chat_has_the_long_prompt_as_the_message_of_the_system(server: tuple[Any, str], tokenizes: bool) -> None:
    kind, url = server
    counting(kind, lambda prompt: len(prompt.split()), tokenizes)
    request = {"prompt": "What is 17 + 25?", "chat": True, "prompt_tokens": 20000, "cold": True, "body": {"tools": [{"type": "function"}]}}
    replies = [api_probe.ask(url, requests=[request])["replies"][0] for _again in range(2)]
    assert all(reply["text"] == "42" and 19000 < reply["prompt_tokens"] <= 20000 for reply in replies)
    chats = [body for body in kind.seen if "messages" in body]
    assert [[message["role"] for message in chat["messages"]] for chat in chats] == [["system", "user"]] * 2
    assert chats[0]["messages"][0]["content"][:16] != chats[1]["messages"][0]["content"][:16], "no prefix cache has it"
    assert all(chat["tools"] == [{"type": "function"}] and "prompt" not in chat for chat in chats)


def test_growth_of_the_counters_of_speculation_is_returned(server: tuple[Any, str]) -> None:
    def page(handler: Any) -> None:
        asked = len(kind.seen)
        text = f"vllm:spec_decode_num_drafts_total {50 * asked}\nvllm:spec_decode_num_draft_tokens_total {100 * asked}\n"
        text += f'vllm:spec_decode_num_accepted_tokens_total {60 * asked}\nvllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {60 * asked}\n'
        pages = {"/v1/models": kind.models, "/version": (404, ""), "/metrics": (200, handler.page() + text)}
        handler.answer(*pages[handler.path])

    kind, url = server
    kind.get = page
    kind.seen.append({})  # what another client asked before
    found = api_probe.ask(url, requests=[{"prompt": "x"}])["speculation"]
    assert found == {"drafts": 50, "draft_tokens": 100, "accepted_tokens": 60, "accepted_per_position": [60], "generated_tokens": 0}
    assert api_probe.ask(url)["speculation"] == {}, "nothing was asked"


def test_server_that_counts_no_tokens_is_reported(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    kind.completion = (200, json.dumps({"choices": [{"text": " 5"}]}))
    [reply] = api_probe.ask(url, requests=[{"prompt": "Count on.", "prompt_tokens": 28000}])["replies"]
    assert not reply["ok"]
    assert "the server counts no tokens" in reply["error"]


@pytest.mark.parametrize(
    ("api", "url"),
    [
        ({"port": 8000}, "http://127.0.0.1:8000"),
        ({"host": "", "port": 1}, "http://127.0.0.1:1"),
        ({"host": "0.0.0.0", "port": 1}, "http://127.0.0.1:1"),
        ({"host": "::", "port": 1}, "http://127.0.0.1:1"),
        ({"host": None, "port": 1}, "http://127.0.0.1:1"),
        ({"host": "10.0.0.11", "port": 8888}, "http://10.0.0.11:8888"),
        ({"host": "fd00::1", "port": 8888}, "http://[fd00::1]:8888"),
        ({"host": "[fd00::1]", "port": 8888}, "http://[fd00::1]:8888"),
        ({"host": "localhost", "port": 8888}, "http://localhost:8888"),
    ],
)
def test_api_url_follows_the_address_that_the_api_binds(api: dict[str, Any], url: str) -> None:
    assert api_probe.api_url(api) == url


UNHAPPY = [
    ("key refused", {"key": "k"}, "refuses the API key (HTTP 401)", 401),
    ("another server", {"models": (200, "<html>hello</html>")}, "does not answer as a vLLM server does: <html>", 200),
    ("no list", {"models": (200, '{"data": 1}')}, "does not answer as a vLLM server does", 200),
    ("server error", {"models": (503, "no")}, "does not answer (HTTP 503)", 503),
]


@pytest.mark.parametrize(("attributes", "sentence", "status"), [u[1:] for u in UNHAPPY], ids=[u[0] for u in UNHAPPY])
def test_models_that_do_not_answer(server: tuple[type[Handler], str], attributes: dict[str, Any], sentence: str, status: int) -> None:
    kind, url = server
    for name, value in attributes.items():
        setattr(kind, name, value)
    out = api_probe.ask(url, requests=[{"prompt": "x"}])
    assert sentence in out["error"]
    assert out["http_status"] == status
    assert out["replies"] == []


# --- whether it serves


def check(**arguments: Any) -> dict[str, Any]:
    return api_probe.LivenessWatch(api_probe.Ask(**{"timeout": 0.2, "wedge_seconds": 0.6, "completion_timeout": 20, **arguments})).check()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_probe, "POLL_SECONDS", 0.05)


def test_a_completion_that_comes_back_is_service_and_is_short(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    out = check(url=url, timeout=20, request={"prompt": "The capital of France is", "max_tokens": 64})
    assert out["outcome"] == "serves"
    assert [request["max_tokens"] for request in kind.seen] == [api_probe.MAX_TOKENS]


@pytest.mark.parametrize(
    ("attributes", "outcome", "words"),
    [
        ({"hangs": True, "running": 4, "step": 80.0}, "busy", "busy: 4 requests running, tokens advance"),
        ({"hangs": True, "running": 1}, "frozen", "tokens stand still with 1 request running"),
        ({"hangs": True, "metrics": ""}, "silent", "/metrics does not answer"),
        ({"completion": (500, "EngineDeadError")}, "dead", "the completion: HTTP 500: EngineDeadError"),
        ({"completion": (500, '{"error": {"message": "EngineCore\\nfailed", "code": 500}}')}, "dead", "the completion: HTTP 500: EngineCore failed"),
        ({"models": (401, '{"error": "Unauthorized"}')}, "refused", "/v1/models: HTTP 401: Unauthorized"),
        ({"completion": (404, "no such model")}, "refused", "the completion: HTTP 404: no such model"),
        ({"completion": (200, "[]")}, "refused", "the answer is no"),
        ({"models": (503, "no")}, "dead", "/v1/models: HTTP 503: no"),
        ({"models": (200, "<html>")}, "refused", "/v1/models does not list a model"),
    ],
)
def test_a_completion_that_does_not_come_back(server: tuple[type[Handler], str], attributes: dict[str, Any], outcome: str, words: str) -> None:
    kind, url = server
    for name, value in attributes.items():
        setattr(kind, name, value)
    out = check(url=url)
    assert out["outcome"] == outcome, out["text"]
    assert words in out["text"]
    assert not out["starting"]


def test_nothing_listens() -> None:
    out = api_probe.ask("http://127.0.0.1:1", requests=[{"prompt": "x"}])
    assert "does not answer (ConnectionRefusedError" in out["error"]
    assert out["http_status"] == 0
    out = check(url="http://127.0.0.1:1")
    assert (out["outcome"], out["starting"]) == ("dead", True)


def test_a_server_that_accepts_and_never_answers_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert check(url=f"http://127.0.0.1:{listening.getsockname()[1]}")["outcome"] == "silent"


def power_of(monkeypatch: pytest.MonkeyPatch, *watts: float) -> None:
    """Replace nvidia-smi. The last reading repeats."""
    left = list(watts)
    monkeypatch.setattr(api_probe.LivenessWatch, "read_power", lambda self: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.mark.parametrize(("watts", "outcome"), [(121.0, "wedged"), (165.0, "busy")])
def test_the_power_tells_a_wedge_from_a_long_prefill(server: tuple[type[Handler], str], monkeypatch: pytest.MonkeyPatch, watts: float, outcome: str) -> None:
    kind, url = server
    kind.hangs = True
    power_of(monkeypatch, watts)
    out = check(url=url, idle_power_w=119.4)
    assert out["outcome"] == outcome
    assert f"({watts:.0f} W)" in out["text"]
