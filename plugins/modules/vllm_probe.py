#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask a served model what only it can tell: its models, its pool, and real completions."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_probe
short_description: Ask a vLLM server for its models, its KV pool and real completions
version_added: 0.1.0
description:
  - Asks the OpenAI-compatible API from the node that it runs on, so that an API bound to the loopback address answers too.
  - Returns what came back and judges nothing; M(gb10.cluster.kv_pool_gate) and the sanity playbook do.
  - C(/health) is not asked; it goes on answering 200 beside a dead rank until somebody sends a request.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  url:
    description: The server, without a path.
    type: str
    default: http://127.0.0.1:8000
  env_file:
    description:
      - A file on the node with a C(VLLM_API_KEY=) line, for a server that wants a key. The key is never an argument and never returned.
      - A file that does not exist stands for no key.
    type: path
  requests:
    description: The completions to ask for.
    type: list
    elements: dict
    default: []
    suboptions:
      prompt:
        description: The prompt.
        type: str
        required: true
      chat:
        description: Ask C(/v1/chat/completions) with the prompt as the user's message, instead of C(/v1/completions).
        type: bool
        default: false
      max_tokens:
        description: The most tokens that the reply may have.
        type: int
        default: 64
      body:
        description: Further keys of the request's body. C(temperature) is 0 unless given here.
        type: dict
        default: {}
  model:
    description: The model to name in the requests; the first one that the server lists when left out.
    type: str
  concurrency:
    description: How many requests run at the same time.
    type: int
    default: 1
  timeout:
    description: Seconds that one request may take.
    type: float
    default: 120.0
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Does the pair answer?
  gb10.cluster.vllm_probe:
    url: http://127.0.0.1:8888
    requests:
      - prompt: The capital of France is
        max_tokens: 8
  register: probe
"""

RETURN = r"""
models:
  description: What C(/v1/models) lists, C(id) and C(max_model_len) of each; empty where it did not answer.
  type: list
  elements: dict
  returned: always
  sample: [{id: deepseek-v4-flash-dspark, max_model_len: 1048576}]
error:
  description: Why C(/v1/models) did not answer as a vLLM server does, as a sentence; empty where it did.
  type: str
  returned: always
  sample: ""
http_status:
  description: The status of C(/v1/models); 0 where nothing answered.
  type: int
  returned: always
  sample: 200
version:
  description: The server's version; empty where it does not say.
  type: str
  returned: always
  sample: 0.32.0+cpu
metrics:
  description: The labels of C(vllm:cache_config_info), one entry an engine, as the server prints them (every value a string); empty without metrics.
  type: list
  elements: dict
  returned: always
  sample: [{num_gpu_blocks: "7774", block_size: "256", kv_cache_size_tokens: "1990142", kv_cache_max_concurrency: "1.898"}]
replies:
  description: One entry a request, in their order.
  type: list
  elements: dict
  returned: always
  contains:
    ok:
      description: Whether a completion came back.
      type: bool
    status:
      description: The HTTP status; 0 where nothing answered.
      type: int
    text:
      description: The reply's text.
      type: str
    finish_reason:
      description: Why it ended.
      type: str
    completion_tokens:
      description: How many tokens it has.
      type: int
    prompt_tokens:
      description: How many tokens the prompt had.
      type: int
    seconds:
      description: How long it took.
      type: float
    error:
      description: What went wrong; empty where nothing did.
      type: str
"""

import concurrent.futures
import http.client
import json
import re
import time
from typing import Any
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule

_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}\s", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def cache_config(metrics: str) -> list[dict[str, str]]:
    """Return the labels of every `vllm:cache_config_info` line of a /metrics page."""
    return [dict(_LABEL.findall(match.group(1))) for match in _CACHE_INFO.finditer(metrics)]


def api_key(env_text: str) -> str:
    """Return the value of the VLLM_API_KEY line of an env file; empty where there is none."""
    for line in env_text.splitlines():
        name, _sign, value = line.partition("=")
        if name.strip() == "VLLM_API_KEY":
            return value.strip().strip("\"'")
    return ""


class Server:
    """One vLLM server; every call opens a connection of its own."""

    def __init__(self, url: str, key: str, timeout: float) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.timeout = timeout

    def call(self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> tuple[int, str]:
        """Return (status, text); status 0 and the reason where nothing answered."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout or self.timeout)
        try:
            headers = dict(self.headers, **({"Content-Type": "application/json"} if body is not None else {}))
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, f"{type(error).__name__}: {error}"
        finally:
            connection.close()

    def complete(self, model: str, request: dict[str, Any]) -> dict[str, Any]:
        """Ask for one completion and return it as documented under RETURN."""
        body: dict[str, Any] = {"model": model, "max_tokens": request["max_tokens"], "temperature": 0}
        if request["chat"]:
            path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": request["prompt"]}]
        else:
            path, body["prompt"] = "/v1/completions", request["prompt"]
        body.update(request["body"] or {})
        start = time.monotonic()
        status, text = self.call("POST", path, body)
        return reply_of(status, text, time.monotonic() - start)


def reply_of(status: int, text: str, seconds: float) -> dict[str, Any]:
    """Turn an answer of either completions path into one reply."""
    out: dict[str, Any] = {
        "ok": False, "status": status, "text": "", "finish_reason": "", "completion_tokens": 0, "prompt_tokens": 0,
        "seconds": round(seconds, 3), "error": "",
    }  # fmt: skip
    try:
        data = json.loads(text) if status == 200 else {}
        choice = data["choices"][0] if status == 200 else {}
        message = choice.get("message") or {}
        out["text"] = str(choice.get("text") or message.get("content") or "")
        out["finish_reason"] = str(choice.get("finish_reason") or "")
        usage = data.get("usage") or {}
        out["completion_tokens"] = int(usage.get("completion_tokens") or 0)
        out["prompt_tokens"] = int(usage.get("prompt_tokens") or 0)
        out["ok"] = status == 200
    except (ValueError, LookupError, TypeError, AttributeError):
        out["error"] = f"the answer is no completion: {text[:200]}"
    if status != 200:
        out["error"] = f"HTTP {status}: {text[:300]}" if status else f"no answer: {text[:300]}"
    return out


def models_of(text: str) -> list[dict[str, Any]]:
    """Return id and max_model_len of each model of a /v1/models answer; raise ValueError where it is none."""
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("data"), list):
        raise ValueError("no list of models")
    return [{"id": str(m.get("id")), "max_model_len": m.get("max_model_len")} for m in data["data"] if isinstance(m, dict)]


def main() -> None:
    """Ask, and return what came back."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": "http://127.0.0.1:8000"},
            "env_file": {"type": "path"},
            "requests": {
                "type": "list", "elements": "dict", "default": [],
                "options": {
                    "prompt": {"type": "str", "required": True},
                    "chat": {"type": "bool", "default": False},
                    "max_tokens": {"type": "int", "default": 64, "no_log": False},
                    "body": {"type": "dict", "default": {}},
                },
            },
            "model": {"type": "str"},
            "concurrency": {"type": "int", "default": 1},
            "timeout": {"type": "float", "default": 120.0},
        },
        supports_check_mode=True,
    )  # fmt: skip
    params = module.params
    key = ""
    if params["env_file"]:
        try:
            with open(params["env_file"], encoding="utf-8") as handle:
                key = api_key(handle.read())
        except FileNotFoundError:
            key = ""  # a release without a key has no such file
        except OSError as error:
            module.fail_json(msg=f"Cannot read the API key from {params['env_file']}: {error}")
    if key:
        module.no_log_values.add(key)
    server = Server(params["url"], key, params["timeout"])
    status, text = server.call("GET", "/v1/models", timeout=min(10.0, params["timeout"]))
    models: list[dict[str, Any]] = []
    fault = ""
    if status == 200:
        try:
            models = models_of(text)
        except ValueError:
            fault = f"{params['url']}/v1/models does not answer as a vLLM server does: {text[:120]}"
    elif status in (401, 403):
        fault = f"{params['url']}/v1/models refuses the API key (HTTP {status})"
    else:
        fault = f"{params['url']}/v1/models does not answer ({'HTTP ' + str(status) if status else text[:120]})"
    version, metrics = "", []
    if status == 200:
        got, body = server.call("GET", "/version", timeout=10)
        try:
            version = str(json.loads(body).get("version", "")) if got == 200 else ""
        except (ValueError, AttributeError):
            version = ""
        got, body = server.call("GET", "/metrics", timeout=10)
        metrics = cache_config(body) if got == 200 else []
    replies: list[dict[str, Any]] = []
    if params["requests"] and models:
        model = params["model"] or models[0]["id"]
        with concurrent.futures.ThreadPoolExecutor(max(1, params["concurrency"])) as pool:
            replies = list(pool.map(lambda request: server.complete(model, request), params["requests"]))
    module.exit_json(
        changed=False, models=models, error=fault, http_status=status, version=version, metrics=metrics, replies=replies
    )


if __name__ == "__main__":
    main()
