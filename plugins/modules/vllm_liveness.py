#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Request a completion, and use the engine's metrics to tell a busy server from one that does not serve."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_liveness
short_description: Tell whether a vLLM server serves now, is busy, or is wedged
description:
  - Requests one completion from the node that it runs on. A server serves if the completion comes back.
  - If it does not come back in time, the module reads C(/metrics) again. If the tokens of the server advance, the server is busy.
    If they stand still for O(wedge_seconds), the power of the GPU decides, because a long prefill also stops the tokens for minutes.
  - Does not request C(/health), which answers 200 next to a dead or stopped rank.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  request:
    description:
      - The completion to request, with the keys C(prompt), C(chat), C(max_tokens) and C(body) of M(gb10.cluster.vllm_probe).
      - At most 8 tokens are requested.
    type: dict
    default: {prompt: Hello}
  timeout:
    description: Seconds after which a server counts as busy if its tokens advance for other requests.
    type: float
    default: 10.0
  wedge_seconds:
    description: Seconds for which the tokens stand still before the server counts as V(frozen) or V(wedged).
    type: float
    default: 20.0
  completion_timeout:
    description: The longest wait in seconds if the server has no other request and its tokens advance.
    type: float
    default: 120.0
  idle_power_w:
    description:
      - The power in W that a GPU of the node draws while the engine is loaded and idle.
      - A GPU is at idle power up to 10 % or 5 W above it, whichever is more. If it is not known, the server is never V(wedged).
    type: float
  idle_power_file:
    description:
      - A file on the node that stores the idle power. It is used if O(idle_power_w) is not set.
      - If no request runs, the module measures the power before its request and keeps the lower of both.
        It is a measurement and not configuration, so it does not count as a change.
    type: path
extends_documentation_fragment:
  - gb10.cluster.api
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Read whether the pair serves
  gb10.cluster.vllm_liveness:
    url: http://127.0.0.1:8888
    request:
      prompt: The capital of France is
  register: liveness

- name: Fail if it does not
  ansible.builtin.assert:
    that: liveness.outcome in ['serves', 'busy']
    fail_msg: "{{ liveness.text }}"
"""

RETURN = r"""
outcome:
  description:
    - V(serves) if the completion came back.
    - V(busy) if the tokens of the server advance, or stand still while its GPU works.
    - V(frozen) if the tokens stand still and the power does not tell why.
    - V(wedged) if the tokens stand still and the GPU is at idle power.
    - V(dead) if the server answers with an HTTP status of 500 or more, or refuses or ends the connection.
    - V(silent) if neither a completion nor C(/metrics) came back.
    - V(refused) if the server refuses the request, because of the API key for example.
  type: str
  returned: always
  sample: busy
text:
  description: What was found, as a phrase.
  type: str
  returned: always
  sample: "busy: 4 requests running, 7 waiting, tokens advance"
http_status:
  description: The HTTP status of the completion, or of C(/v1/models) if that failed; 0 without an answer.
  type: int
  returned: always
  sample: 200
starting:
  description: Whether nothing listens on the port, as during a boot.
  type: bool
  returned: always
  sample: false
seconds:
  description: How long the completion or the decision took.
  type: float
  returned: always
  sample: 0.21
running:
  description: The number of running requests in the last reading of C(/metrics).
  type: int
  returned: always
  sample: 4
waiting:
  description: The number of waiting requests in the last reading of C(/metrics).
  type: int
  returned: always
  sample: 7
power_w:
  description: The highest power of a GPU on the node in W; none if it was not measured.
  type: float
  returned: always
  sample: 121.3
idle_power_w:
  description: The idle power in W that was used; none if it is not known.
  type: float
  returned: always
  sample: 119.4
"""

import contextlib
import os
import threading
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, metrics
from ansible_collections.gb10.cluster.plugins.module_utils._host import gpu
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import FileChange, Node

MAX_TOKENS = 8
POLL_SECONDS = 1.0
SHORT_SECONDS = 5.0  # for pages that need no GPU


class Watch:
    """One check of one server."""

    def __init__(self, module: AnsibleModule, key: str) -> None:
        self.module, self.key, self.params = module, key, module.params
        self.server = api_probe.Server(self.params["url"], key, self.params["completion_timeout"])
        self.idle: float | None = self.params["idle_power_w"]
        self.powers: list[float] = []
        self.seen: list[tuple[float, metrics.Sample | None]] = []
        self.start = time.monotonic()

    def result(self, outcome: str, text: str, status: int = 0, starting: bool = False) -> dict[str, Any]:
        """Return what the module documents under RETURN."""
        last = next((reading for _when, reading in reversed(self.seen) if reading is not None), None)
        return {
            "outcome": outcome, "text": text.replace(self.key, "********") if self.key else text, "http_status": status, "starting": starting,
            "seconds": round(time.monotonic() - self.start, 3), "running": last.running if last else 0, "waiting": last.waiting if last else 0,
            "power_w": max(self.powers, default=None), "idle_power_w": self.idle,
        }  # fmt: skip

    def read_power(self) -> float | None:
        """Return the power of the GPUs; None without nvidia-smi."""
        program = self.module.get_bin_path("nvidia-smi")
        limit = self.module.get_bin_path("timeout")  # a driver in trouble never answers
        if not program or not limit:
            return None
        code, out, _err = self.module.run_command([limit, "5", program, *gpu.QUERY])
        return gpu.power(out) if code == 0 else None

    def read_metrics(self) -> metrics.Sample | None:
        """Return a reading of /metrics, and keep it."""
        status, text = self.server.call("GET", "/metrics", timeout=SHORT_SECONDS)
        reading = metrics.sample(text) if status == 200 else None
        self.seen.append((time.monotonic() - self.start, reading))
        return reading

    def learn_idle_power(self, reading: metrics.Sample | None) -> None:
        """Take the idle power from the file; if no request runs, measure it too and keep the lower: another process may have used the GPU before."""
        path = self.params["idle_power_file"]
        if self.idle is not None or not path:
            return
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as handle:  # missing or damaged: it is measured
            self.idle = float(handle.read())
        if reading is None or reading.running + reading.waiting > 0 or not os.path.isdir(os.path.dirname(path)):
            return
        found = self.measure_idle_power() if self.idle is None else self.read_power()
        if found is None or (self.idle is not None and found >= self.idle):
            return
        self.idle = found
        if not self.module.check_mode:
            with contextlib.suppress(OSError):  # the next run measures again
                Node().apply(FileChange(path, None, f"{self.idle}\n", 0o640))

    def measure_idle_power(self) -> float | None:
        """Return the lowest of three readings: the first one may still hold the power of an earlier request."""
        out = []
        for _reading in range(3):
            found = self.read_power()
            if found is None:
                return None
            out.append(found)
            time.sleep(1)
        return min(out)

    def failed(self, status: int, error: str, what: str) -> dict[str, Any]:
        """Return the outcome of a request that did not succeed."""
        if status >= 500:
            return self.result("dead", f"{what}: HTTP {status}: {api_probe.reason_of(error)[:200]}", status)
        if status:
            return self.result("refused", f"{what}: HTTP {status}: {api_probe.reason_of(error)[:200]}", status)
        if error.startswith(api_probe.NO_REPLY):
            return self.result("silent", f"{what}: no answer within {time.monotonic() - self.start:.0f} s")
        return self.result("dead", f"{what}: {error[:200]}", starting=error.startswith("ConnectionRefusedError"))

    def check(self) -> dict[str, Any]:
        """Request the completion, and decide."""
        status, text = self.server.call("GET", "/v1/models", timeout=min(self.params["timeout"], 2 * SHORT_SECONDS))
        try:
            models = api_probe.models_of(text) if status == 200 else []
        except ValueError:
            models = []
        if status != 200:
            return self.failed(status, text, "/v1/models")
        if not models:
            return self.result("refused", f"/v1/models does not list a model: {text[:120]}", status)
        self.learn_idle_power(self.read_metrics())
        request = dict(self.params["request"])
        request["max_tokens"] = min(MAX_TOKENS, int(request.get("max_tokens") or MAX_TOKENS))
        self.start = time.monotonic()
        self.seen = [(0.0, reading) for _when, reading in self.seen]
        replies: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: replies.append(self.server.complete(models[0]["id"], request)), daemon=True)
        thread.start()
        limits = metrics.Limits(self.params["timeout"], self.params["wedge_seconds"], self.params["completion_timeout"])
        thread.join(limits.answer)
        while thread.is_alive():
            self.read_metrics()
            self.powers += [found for found in [None if self.idle is None else self.read_power()] if found is not None]
            outcome = metrics.decide(self.seen, limits, gpu.at_idle(self.powers[-5:], self.idle))
            if outcome:
                return self.undecided(outcome)
            thread.join(POLL_SECONDS)
        reply: dict[str, Any] = replies[0] if replies else {"ok": False, "status": 0, "error": "the request failed", "seconds": 0.0}
        if reply["ok"]:
            return self.result("serves", f"a completion came back in {reply['seconds']:.2f} s", 200)
        if reply["status"] == 200:
            return self.result("refused", str(reply["error"]), 200)
        error = str(reply["error"])
        return self.failed(reply["status"], error if error.startswith(api_probe.NO_REPLY) else error.partition(": ")[2], "the completion")

    def undecided(self, outcome: str) -> dict[str, Any]:
        """Return the outcome of a completion that did not come, with its phrase."""
        last = next((reading for _when, reading in reversed(self.seen) if reading is not None), None)
        held = metrics.requests_text(last) if last else ""
        waited = f"no completion came back within {time.monotonic() - self.start:.0f} s"
        power = f"{max(self.powers[-5:]):.0f} W" if self.powers else "not known"
        texts = {
            "busy": f"busy: {held}, tokens advance",
            "computing": f"busy: {held}, no token for {self.params['wedge_seconds']:.0f} s, and the GPU works ({power})",
            "wedged": f"the engine is wedged: {waited}, tokens stand still with {held}, and the GPU is at idle power ({power})",
            "frozen": f"{waited}, and tokens stand still with {held}. A long prefill looks the same. The power of the GPU is not known",
            "silent": f"{waited}, and /metrics does not answer",
        }
        return self.result("busy" if outcome == "computing" else outcome, texts[outcome])


def main() -> None:
    """Check, and return what was found."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": "http://127.0.0.1:8000"},
            "env_file": {"type": "list", "elements": "path", "default": []},
            "request": {"type": "dict", "default": {"prompt": "Hello"}},
            "timeout": {"type": "float", "default": 10.0},
            "wedge_seconds": {"type": "float", "default": 20.0},
            "completion_timeout": {"type": "float", "default": 120.0},
            "idle_power_w": {"type": "float"},
            "idle_power_file": {"type": "path"},
        },
        supports_check_mode=True,
    )
    try:
        key = api_probe.read_key(module.params["env_file"])
    except OSError as error:
        module.fail_json(msg=api_probe.sentence(error))
    module.exit_json(changed=False, **Watch(module, key).check())


if __name__ == "__main__":
    main()
