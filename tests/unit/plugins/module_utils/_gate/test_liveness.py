"""Whether a server serves, against a real HTTP server on the loopback address that answers as vLLM does, or does not."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import http_server
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe

PAGE = "vllm:num_requests_running {running}\nvllm:num_requests_waiting 0.0\nvllm:generation_tokens_total {tokens}\nvllm:prompt_tokens_total 3.0\n"


class Handler(http_server.Handler):
    """Answers by its class attributes."""

    models: tuple[int, str] = (200, json.dumps({"data": [{"id": "m"}]}))
    completion: tuple[int, str] = (200, json.dumps({"choices": [{"text": " Paris.", "finish_reason": "length"}]}))
    hangs = False
    metrics = True
    step = 0.0
    tokens = 400.0
    running = 0
    gone: threading.Event
    asked: list[dict[str, Any]]

    def get(self) -> None:
        if self.path == "/v1/models":
            self.answer(*self.models)
        elif self.metrics:
            type(self).tokens += self.step
            self.answer(200, PAGE.format(running=self.running, tokens=self.tokens))
        else:
            self.answer(404)

    def post(self) -> None:
        self.asked.append(self.body())
        if self.hangs:
            self.gone.wait(30)
            return
        self.answer(*self.completion)


@pytest.fixture
def server() -> Iterator[tuple[type[Handler], str]]:
    with http_server.answering(Handler, gone=threading.Event(), asked=[]) as found:
        yield found
        found[0].gone.set()


def check(**arguments: Any) -> dict[str, Any]:
    return api_probe.LivenessWatch(api_probe.Ask(**{"timeout": 0.2, "wedge_seconds": 0.6, "completion_timeout": 20, **arguments})).check()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_probe, "POLL_SECONDS", 0.05)


def test_a_completion_that_comes_back_is_service_and_is_short(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    out = check(url=url, timeout=20, request={"prompt": "The capital of France is", "max_tokens": 64})
    assert out["outcome"] == "serves"
    assert [request["max_tokens"] for request in kind.asked] == [api_probe.MAX_TOKENS]


@pytest.mark.parametrize(
    ("attributes", "outcome", "words"),
    [
        ({"hangs": True, "running": 4, "step": 80.0}, "busy", "busy: 4 requests running, tokens advance"),
        ({"hangs": True, "running": 1}, "frozen", "tokens stand still with 1 request running"),
        ({"hangs": True, "metrics": False}, "silent", "/metrics does not answer"),
        ({"completion": (500, "EngineDeadError")}, "dead", "the completion: HTTP 500: EngineDeadError"),
        ({"completion": (500, '{"error": {"message": "EngineCore\\nfailed", "code": 500}}')}, "dead", "the completion: HTTP 500: EngineCore failed"),
        ({"models": (401, '{"error": "Unauthorized"}')}, "refused", "/v1/models: HTTP 401: Unauthorized"),
        ({"completion": (404, "no such model")}, "refused", "the completion: HTTP 404: no such model"),
        ({"completion": (200, "[]")}, "refused", "the answer is no"),
        ({"models": (503, "no")}, "dead", "/v1/models: HTTP 503: no"),
        ({"models": (401, "Unauthorized")}, "refused", "/v1/models: HTTP 401"),
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
    out = check(url="http://127.0.0.1:1")
    assert (out["outcome"], out["starting"]) == ("dead", True)


def test_a_server_that_accepts_and_never_answers_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert check(url=f"http://127.0.0.1:{listening.getsockname()[1]}")["outcome"] == "silent"


def test_the_key_is_never_returned(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    kind.completion = (500, "the key is horse-battery")
    out = check(url=url, key="horse-battery", timeout=20)
    assert "the key is ********" in out["text"]
    assert "horse-battery" not in json.dumps(out)


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
