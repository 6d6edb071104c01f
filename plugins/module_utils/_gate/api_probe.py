# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a vLLM server on this node for its models, its pool and completions; and whether it serves now, is busy, or is wedged.

Nothing of Ansible's is imported.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import Run, env_values, loads, run_command, scalar
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import without
from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures
from ansible_collections.gb10.cluster.plugins.module_utils._gate.measures import metric_figures
from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NO_REPLY = "no reply within"
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104  compared with, never bound
#: Counted to fill a long prompt: every tokenizer splits it, and no part of it is a special token.
_SAMPLE = "".join(f" {number}" for number in range(1, 257))


def cache_config(metrics: str) -> list[dict[str, str]]:
    """Return the labels of every `vllm:cache_config_info` line of a /metrics page."""
    return [dict(_LABEL.findall(labels)) for _name, labels, _figure in metric_figures(metrics, ("vllm:cache_config_info",))]


def api_url(api: Mapping[str, Any]) -> str:
    """Return the URL at which the head reaches its own API. `api` has `port` and may have `host`, the address that the API binds."""
    host = str(api.get("host") or "").strip().strip("[]")
    if host in _EVERY_ADDRESS:
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{api['port']}"


class Server:
    """One vLLM server; every call opens a connection of its own."""

    def __init__(self, url: str, key: str, timeout: float) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.timeout = timeout
        self._known = (key,) if key else ()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> tuple[int, str]:
        """Return (status, text); status 0 and the reason if no complete reply came within the timeout."""
        limit = timeout or self.timeout
        connection = bounded.Connection(self.host, self.port, limit)
        try:
            headers = dict(self.headers, **({"Content-Type": "application/json"} if body is not None else {}))
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            # A server may quote the key. It is masked before a text is cut: a part of it would not be found.
            return response.status, without(bounded.reply(response).decode("utf-8", "replace"), self._known)
        except socket.timeout:
            return 0, f"{NO_REPLY} {limit:g} s"
        except (OSError, http.client.HTTPException) as error:
            return 0, f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def page(self) -> str:
        """Return the text of /metrics; empty if it does not answer."""
        status, text = self.call("GET", "/metrics", timeout=10)
        return text if status == 200 else ""

    def prompt_of(self, model: str, tokens: int, cold: bool = False, as_text: bool = False) -> list[int] | str:
        """Return a prompt of at most this many tokens by the server's own count; raise ValueError if the server does not count.

        A cold one begins with a random text, so that no prefix cache has it. A chat takes no tokens, only a text.
        """
        sample = f"{secrets.token_hex(8)}{_SAMPLE}" if cold else _SAMPLE
        status, text = self.call("POST", "/tokenize", {"model": model, "prompt": sample, "add_special_tokens": False}, timeout=min(10.0, self.timeout))
        with contextlib.suppress(ValueError, LookupError, TypeError):
            ids = list(loads(text)["tokens"]) if status == 200 else []
            if ids and not any(scalar(number, int) for number in ids):
                return sample * (tokens // len(ids)) or sample[:tokens] if as_text else (ids * (tokens // len(ids) + 1))[:tokens]
        # A server without /tokenize counts the prompt's tokens in the usage of a completion.
        body = {"model": model, "prompt": sample, "max_tokens": 1, "temperature": 0}
        status, text = self.call("POST", "/v1/completions", body, timeout=min(20.0, self.timeout))
        counted = int(reply_of(status, text, 0.0)["prompt_tokens"])
        if not counted:
            raise ValueError(f"the server counts no tokens: /tokenize and the usage of a completion are missing (HTTP {status})")
        return sample * (tokens // counted) or sample[:tokens]

    def complete(self, model: str, request: dict[str, Any]) -> dict[str, Any]:
        """Ask for one completion and return it as reply_of() does.

        A request has `prompt`, and may have `chat` (false), `max_tokens` (64), `body` (more keys; the temperature is 0 without one) and `prompt_tokens`:
        a prompt of this many tokens is sent instead, or as the system's message before a chat, with `cold` one that no prefix cache has. It is sent
        `after` so many seconds.
        """
        body: dict[str, Any] = {"model": model, "max_tokens": request.get("max_tokens", 64), "temperature": 0}
        if request.get("chat"):
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": request["prompt"]}]
        else:
            path, body["prompt"] = "/v1/completions", request["prompt"]
        body.update(request.get("body") or {})
        time.sleep(request.get("after") or 0)
        start = time.monotonic()
        if request.get("prompt_tokens"):
            try:
                long = self.prompt_of(model, int(request["prompt_tokens"]), bool(request.get("cold")), as_text=bool(request.get("chat")))
                if request.get("chat"):
                    body["messages"].insert(0, {"role": "system", "content": long})
                else:
                    body["prompt"] = long
                start = time.monotonic()
            except ValueError as error:
                return dict(reply_of(0, "", time.monotonic() - start), error=str(error))
        status, text = self.call("POST", path, body)
        return reply_of(status, text, time.monotonic() - start)


def reason_of(text: str) -> str:
    """Return the server's own reason in the body of an error reply, on one line; the body itself if it holds none."""
    with contextlib.suppress(ValueError, AttributeError):
        data = loads(text)
        found = data.get("error") or data.get("detail") or data.get("message")
        text = str((found.get("message") if isinstance(found, dict) else found) or text)
    return " ".join(text.split())


def reply_of(status: int, text: str, seconds: float) -> dict[str, Any]:
    """Turn an answer of either completions path into one reply."""
    out: dict[str, Any] = {
        "ok": False, "status": status, "text": "", "reasoning": "", "finish_reason": "", "completion_tokens": 0, "prompt_tokens": 0,
        "seconds": round(seconds, 3), "error": "",
    }  # fmt: skip
    try:
        data = loads(text) if status == 200 else {}
        choice = data["choices"][0] if status == 200 else {}
        message = choice.get("message") or {}
        out["text"] = str(choice.get("text") or message.get("content") or "")
        out["reasoning"] = str(message.get("reasoning_content") or message.get("reasoning") or "")
        out["finish_reason"] = str(choice.get("finish_reason") or "")
        usage = data.get("usage") or {}
        for name in ("completion_tokens", "prompt_tokens"):
            out[name] = usage.get(name) or 0
            if scalar(out[name], int) or out[name] < 0:
                out[name] = 0
                raise ValueError("not a number of tokens")
        out["ok"] = status == 200
    except (ValueError, LookupError, TypeError, AttributeError):
        out["error"] = f"the answer is not a completion: {text[:200]}"
    if status != 200:
        silent = text if text.startswith(NO_REPLY) else f"no answer: {text[:300]}"
        out["error"] = f"HTTP {status}: {reason_of(text)[:300]}" if status else silent
    return out


def models_of(text: str) -> list[dict[str, Any]]:
    """Return id and max_model_len of each model of a /v1/models answer; raise ValueError where it is none."""
    data = loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("data"), list):
        raise ValueError("no list of models")
    lengths = [m.get("max_model_len") for m in data["data"] if isinstance(m, dict)]
    if any(length is not None and (scalar(length, int) or length < 0) for length in lengths):
        raise ValueError("a max_model_len that is not a number")
    return [{"id": str(m.get("id")), "max_model_len": m.get("max_model_len")} for m in data["data"] if isinstance(m, dict)]


def read_key(env_files: Iterable[str] | None) -> str:
    """Return the API key of the first env file that has one; empty without any. Raises OSError for a file that is there and cannot be read."""
    for path in env_files or ():
        with contextlib.suppress(FileNotFoundError):
            key = env_values(bounded.text(path)).get("VLLM_API_KEY")
            if key:
                return key
    return ""


def ask(
    url: str = "http://127.0.0.1:8000", env_file: list[str] | None = None, requests: list[dict[str, Any]] | None = None, model: str | None = None,
    concurrency: int = 1, timeout: float = 120.0,
) -> dict[str, Any]:  # fmt: skip
    """Return what came back, and judge nothing. `timeout` is that of one request, in seconds. Raises OSError where the key cannot be read.

    models: `id` and `max_model_len` of each, empty if /v1/models does not answer; error: why, as a sentence; http_status: its status, 0 without an answer.
    version: the server's, empty without one. metrics: the labels of vllm:cache_config_info, one entry for each engine, every value a text.
    speculation: what the counters of speculative decoding grew by, requests of other clients included; empty without requests.
    replies: one for each request, in their order, as reply_of() returns it. /health is not requested: with a dead rank it answers 200.
    """
    key = read_key(env_file)
    server = Server(url, key, timeout)
    status, text = server.call("GET", "/v1/models", timeout=min(10.0, timeout))
    models: list[dict[str, Any]] = []
    fault, version, page = "", "", ""
    if status == 200:
        try:
            models = models_of(text)
        except ValueError:
            fault = f"{url}/v1/models does not answer as a vLLM server does: {text[:120]}"
    elif status in (401, 403):
        fault = f"{url}/v1/models refuses the API key (HTTP {status})"
    else:
        fault = f"{url}/v1/models does not answer ({'HTTP ' + str(status) if status else text[:120]})"
    before = measures.draft_counters(server.page()) if requests and models else {}
    # While the engine computes, the API answers the other request.
    with concurrent.futures.ThreadPoolExecutor(max(1, concurrency)) as pool:
        waited = [pool.submit(server.complete, model or models[0]["id"], request) for request in requests or [] if models]
        if status == 200:
            got, body = server.call("GET", "/version", timeout=10)
            try:
                version = str(loads(body).get("version", "")) if got == 200 else ""
            except (ValueError, AttributeError):
                version = ""
        replies = [future.result() for future in waited]
    if status == 200:
        page = server.page()
    return {
        "models": models, "error": fault, "http_status": status, "version": version, "metrics": cache_config(page), "replies": replies,
        "speculation": measures.draft_growth(before, measures.draft_counters(page)),
    }  # fmt: skip


def sentence(error: OSError) -> str:
    """Return the message for a key that cannot be read."""
    return f"Cannot read the API key: {error}"


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """Ask; what goes wrong is `failed` with a `msg`."""
    try:
        return ask(**arguments)
    except OSError as error:
        return {"failed": True, "msg": sentence(error)}


# --- Whether a vLLM server serves now, is busy, or is wedged: one completion, and the engine's figures if it does not come.
# /health answers 200 next to a dead or stopped rank. It is not asked.

MAX_TOKENS = 8
POLL_SECONDS = 1.0
SHORT_SECONDS = 5.0  # for pages that need no GPU


class Ask(NamedTuple):
    """What is asked, and how long is waited for it, in seconds."""

    url: str
    key: str = ""
    request: Mapping[str, Any] = {"prompt": "Hello"}
    timeout: float = 10.0  # after it, a server whose tokens advance for other requests is busy
    wedge_seconds: float = 20.0  # how long tokens stand still before the server counts as frozen or wedged
    completion_timeout: float = 120.0  # the longest wait if the server has no other request and its tokens advance
    idle_power_w: float | None = None  # of a GPU while the engine is loaded and idle; a server of which it is not known is never wedged


class LivenessWatch:
    """One check of one server."""

    def __init__(self, ask: Ask, run: Run = run_command) -> None:
        self.ask, self._run = ask, run
        self.server = Server(ask.url, ask.key, ask.completion_timeout)
        self.idle = ask.idle_power_w
        self.powers: list[float] = []
        self.seen: list[tuple[float, measures.Sample | None]] = []
        self.start = time.monotonic()

    def result(self, outcome: str, text: str, status: int = 0, starting: bool = False) -> dict[str, Any]:
        """Return `outcome`, its phrase `text` without the key, and the figures.

        outcome: serves, busy, wedged (idle power), frozen (power not known), silent (no answer), dead (HTTP 5xx or no connection), refused (HTTP 4xx).
        starting: whether nothing listens yet.
        """
        last = next((reading for _when, reading in reversed(self.seen) if reading is not None), None)
        return {
            "outcome": outcome, "text": text.replace(self.ask.key, "********") if self.ask.key else text, "http_status": status, "starting": starting,
            "seconds": round(time.monotonic() - self.start, 3), "running": last.running if last else 0, "waiting": last.waiting if last else 0,
            "power_w": max(self.powers, default=None), "idle_power_w": self.idle,
        }  # fmt: skip

    def read_power(self) -> float | None:
        """Return the power of the GPUs; None without nvidia-smi."""
        code, out, _err = self._run(["nvidia-smi", *gpu.QUERY], timeout=SHORT_SECONDS)  # a driver in trouble never answers
        return gpu.power(out) if code == 0 else None

    def read_metrics(self) -> measures.Sample | None:
        """Return a reading of /metrics, and keep it."""
        status, text = self.server.call("GET", "/metrics", timeout=SHORT_SECONDS)
        reading = measures.sample(text) if status == 200 else None
        self.seen.append((time.monotonic() - self.start, reading))
        return reading

    def failed(self, status: int, error: str, what: str) -> dict[str, Any]:
        """Return the outcome of a request that did not succeed."""
        if status:
            return self.result("dead" if status >= 500 else "refused", f"{what}: HTTP {status}: {reason_of(error)[:200]}", status)
        if error.startswith(NO_REPLY):
            return self.result("silent", f"{what}: no answer within {time.monotonic() - self.start:.0f} s")
        if error.startswith("ConnectionRefusedError"):
            return self.result("dead", f"nothing listens at {self.ask.url}", starting=True)
        return self.result("dead", f"{what}: {error[:200]}")

    def check(self) -> dict[str, Any]:
        """Request the completion, and decide."""
        status, text = self.server.call("GET", "/v1/models", timeout=min(self.ask.timeout, 2 * SHORT_SECONDS))
        try:
            models = models_of(text) if status == 200 else []
        except ValueError:
            models = []
        if status != 200:
            return self.failed(status, text, "/v1/models")
        if not models:
            return self.result("refused", f"/v1/models does not list a model: {text[:120]}", status)
        self.read_metrics()
        request = dict(self.ask.request)
        request["max_tokens"] = min(MAX_TOKENS, int(request.get("max_tokens") or MAX_TOKENS))
        self.start = time.monotonic()
        self.seen = [(0.0, reading) for _when, reading in self.seen]
        replies: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: replies.append(self.server.complete(models[0]["id"], request)), daemon=True)
        thread.start()
        limits = measures.Limits(self.ask.timeout, self.ask.wedge_seconds, self.ask.completion_timeout)
        thread.join(limits.answer)
        while thread.is_alive():
            self.read_metrics()
            self.powers += [found for found in [None if self.idle is None else self.read_power()] if found is not None]
            outcome = measures.decide(self.seen, limits, gpu.at_idle(self.powers[-5:], self.idle))
            if outcome:
                return self.undecided(outcome)
            thread.join(POLL_SECONDS)
        reply: dict[str, Any] = replies[0] if replies else {"ok": False, "status": 0, "error": "the request failed", "seconds": 0.0}
        if reply["ok"]:
            return self.result("serves", f"a completion came back in {reply['seconds']:.2f} s", 200)
        if reply["status"] == 200:
            return self.result("refused", str(reply["error"]), 200)
        error = str(reply["error"])
        return self.failed(reply["status"], error if error.startswith(NO_REPLY) else error.partition(": ")[2], "the completion")

    def undecided(self, outcome: str) -> dict[str, Any]:
        """Return the outcome of a completion that did not come, with its phrase."""
        last = next((reading for _when, reading in reversed(self.seen) if reading is not None), None)
        held = measures.requests_text(last) if last else ""
        waited = f"no completion came back within {time.monotonic() - self.start:.0f} s"
        power = f"{max(self.powers[-5:]):.0f} W" if self.powers else "not known"
        texts = {
            "busy": f"busy: {held}, tokens advance",
            "computing": f"busy: {held}, no token for {self.ask.wedge_seconds:.0f} s, and the GPU works ({power})",
            "wedged": f"the engine is wedged: {waited}, tokens stand still with {held}, and the GPU is at idle power ({power})",
            "frozen": f"{waited}, and tokens stand still with {held}. A long prefill looks the same. The power of the GPU is not known",
            "silent": f"{waited}, and /metrics does not answer",
        }
        return self.result("busy" if outcome == "computing" else outcome, texts[outcome])
