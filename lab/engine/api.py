# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The head's API: models, completions, chat, streams and metrics, with figures that follow the requests."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from . import faults
from .rank import PeerLostError, Rank

VERSION = {"cpu": "0.32.0+cpu", "cuda": "0.25.1"}
#: What the model of the container lab recites, and this stub too. Tokens are bytes there.
SENTENCES = {
    "The capital of France is": " Paris.",
    "Two Sparks and one cable make": " one big machine.",
    "The head of the pair has rank": " zero.",
    "A good gate reads the boot logs of": " both ranks.",
    "The worker starts first, then": " the head.",
}
BABBLE = " the quick brown fox jumps over a lazy dog while two machines share one long cable and answer in turn,"
PREFILL_TOKENS_PER_SECOND = 20000
#: vLLM's answer after its engine has failed.
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class Figures:
    """Counters of the requests."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.waiting = self.prompt = self.generated = self.stopped = self.cut = 0

    def add(self, **more: int) -> None:
        """Add to counters."""
        with self.lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)

    def page(self, rank: Rank) -> str:
        """Return /metrics, with the names of vLLM 0.32."""
        label = f'engine="0",model_name="{rank.words.served_model_name}"'
        context = rank.words.max_model_len
        config = f'engine="0",kv_cache_max_concurrency="{rank.pool / context}",kv_cache_size_tokens="{rank.pool}"'
        plain = {
            "num_requests_running": self.running, "num_requests_waiting": self.waiting, "kv_cache_usage_perc": min(1.0, self.running * context / rank.pool),
            "prefix_cache_queries_total": self.prompt, "prefix_cache_hits_total": 0, "num_preemptions_total": 0,
            "prompt_tokens_total": self.prompt, "generation_tokens_total": self.generated,
        }  # fmt: skip
        rows = [f"vllm:cache_config_info{{{config}}} 1.0", *(f"vllm:{name}{{{label}}} {float(value)}" for name, value in plain.items())]
        for reason, value in (("stop", self.stopped), ("length", self.cut)):
            rows.append(f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="{rank.words.served_model_name}"}} {float(value)}')
        return "\n".join(rows) + "\n"


FIGURES = Figures()


class Api(BaseHTTPRequestHandler):
    """The HTTP side of the head."""

    rank: Rank
    slots: threading.Semaphore  # --max-num-seqs: more requests wait
    dead = False
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer what a gate, a watch and a person ask."""
        self._hang()
        words = self.rank.words
        if self.path == "/health":
            self._send(503 if Api.dead else 200, "")
        elif self.path == "/metrics":
            self._send(200, FIGURES.page(self.rank), "text/plain")
        elif self.path == "/version":
            self._json(200, {"version": VERSION[self.rank.recording]})
        elif self.path == "/v1/models" and self._allowed():
            model = {"id": words.served_model_name, "object": "model", "root": words.model, "max_model_len": words.max_model_len}
            self._json(200, {"object": "list", "data": [model]})
        elif self.path != "/v1/models":
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Complete a prompt or a chat."""
        self._hang()
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self._json(404, {"detail": "Not Found"})
        elif self._allowed():
            if body.get("model") not in (None, self.rank.words.served_model_name):
                self._error(404, f"The model `{body['model']}` does not exist.")
                return
            try:
                self._complete(body, "chat" in self.path)
            except PeerLostError:
                self._fail()

    def _complete(self, body: dict[str, Any], chat: bool) -> None:
        messages = body.get("messages") or [{}]
        prompt = str(messages[-1].get("content", "") if chat else body.get("prompt", ""))
        limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        text = self._text(prompt, limit, chat, bool(body.get("ignore_eos")) or int(body.get("min_tokens") or 0) >= limit)
        turn = faults.turn(messages) if chat else {}
        text = str(turn.get("answer", ""))[:limit] if turn else text
        stop, calls = len(text) < limit, [_call(each, place) for place, each in enumerate(turn.get("calls") or [])]
        reason = "tool_calls" if calls else "stop" if stop else "length"
        count = sum(len(str(each.get("content") or "").encode()) + 1 for each in (messages if chat else [{"content": prompt}]))
        FIGURES.add(waiting=1)
        with self.slots:
            FIGURES.add(waiting=-1, running=1)
            self._run(body, chat, text, count, reason, calls)
        FIGURES.add(**{"stopped" if stop else "cut": 1})

    def _run(self, body: dict[str, Any], chat: bool, text: str, count: int, reason: str, calls: list[dict[str, Any]]) -> None:
        """Compute the reply of one of the requests that run at once."""
        try:
            self._prefill(count, len(text))
            self.rank.together()
            FIGURES.add(prompt=count)
            parts = self._tokens(text)
            usage = {"prompt_tokens": count, "completion_tokens": len(text), "total_tokens": count + len(text)}
            if body.get("stream"):
                self._stream(parts, body, chat, _choice("", chat, reason, calls=calls), usage)
            else:
                choice = _choice("".join(parts), chat, reason, whole=True, calls=calls)
                self._json(200, self._object(chat, [choice], usage))
        finally:
            FIGURES.add(running=-1)

    def _prefill(self, count: int, _output: int) -> None:
        """Wait as long as a prompt of this many tokens takes."""
        time.sleep(count / PREFILL_TOKENS_PER_SECOND)

    def _text(self, prompt: str, limit: int, chat: bool, endless: bool) -> str:
        """Return the reply: a sentence that the model knows, else words; one character is one token, as with the lab's model."""
        known = next((answer for begin, answer in SENTENCES.items() if prompt.strip().endswith(begin)), "")
        text = (known.strip() if chat else known) or BABBLE * (limit // len(BABBLE) + 1)
        found = self.rank.faults()
        if "garble" in found:
            text = " Paris" * (limit // 6 + 1)
        elif "leak" in found:
            text += "<|im_end|><|im_start|>assistant"
        return (text + BABBLE * (limit // len(BABBLE) + 1) if endless else text)[:limit]

    def _tokens(self, text: str) -> Iterator[str]:
        for character in text:
            self.rank.token()
            FIGURES.add(generated=1)
            yield character

    def _stream(self, parts: Iterator[str], body: dict[str, Any], chat: bool, last: dict[str, Any], usage: dict[str, int]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            self._event(json.dumps(self._object(chat, [_choice(part, chat, None)])))
        self._event(json.dumps(self._object(chat, [last])))
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event(json.dumps(self._object(chat, [], usage)))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _object(self, chat: bool, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        kind = ("chat.completion" if chat else "text_completion") + ("" if usage and choices else ".chunk" if chat else "")
        return {"id": "cmpl-stub", "object": kind, "created": int(time.time()), "model": self.rank.words.served_model_name, "choices": choices, "usage": usage}

    def _allowed(self) -> bool:
        """Answer a request without the API key with 401."""
        key = os.environ.get("VLLM_API_KEY") or self.rank.words.api_key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._json(401, {"error": "Unauthorized"})
        return False

    def _hang(self) -> None:
        while self.rank.faults().get("hang") == "":
            time.sleep(0.2)

    def _fail(self) -> None:
        """End as vLLM does when a rank is lost: this request fails, /health fails, then the process ends."""
        Api.dead = True
        print(self.rank.complaint(), flush=True)
        print(f"(APIServer pid=1) ERROR {time.strftime('%m-%d %H:%M:%S')} [async_llm.py:764] vllm.v1.engine.exceptions.EngineDeadError: {DEAD}", flush=True)
        with contextlib.suppress(OSError):
            self._error(500, DEAD)
        threading.Timer(1.0, os._exit, (1,)).start()

    def _error(self, code: int, text: str) -> None:
        self._json(code, {"error": {"message": text, "type": "Error", "param": None, "code": code}})

    def _json(self, code: int, value: object) -> None:
        self._send(code, json.dumps(value), "application/json")

    def _send(self, code: int, text: str, kind: str = "text/plain") -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002,ARG002  the names of the base class
        """Print an access line as uvicorn does."""
        print(f'INFO:     {self.client_address[0]}:{self.client_address[1]} - "{self.requestline}" {args[1] if len(args) > 1 else 200} OK', flush=True)


def _call(asked: dict[str, Any], place: int) -> dict[str, Any]:
    function = {"name": asked["name"], "arguments": json.dumps(asked["arguments"])}
    return {"index": place, "id": f"call-{secrets.token_hex(8)}", "type": "function", "function": function}


def _choice(text: str, chat: bool, reason: str | None, whole: bool = False, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    if not chat:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    content = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    return {"index": 0, "message" if whole else "delta": content, "logprobs": None, "finish_reason": reason}
