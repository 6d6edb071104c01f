# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a vLLM server serves now, is busy, or is wedged: one completion, and the engine's figures if it does not come.

/health answers 200 next to a dead or stopped rank. It is not asked.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.command import Run, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import FileChange, Node
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, metrics
from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu

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
    idle_power_file: str = ""  # on the node: has it if `idle_power_w` has not; the lowest reading without a request is kept there
    keep: bool = True  # whether that file may be written


class Watch:
    """One check of one server."""

    def __init__(self, ask: Ask, run: Run = run_command) -> None:
        self.ask, self._run = ask, run
        self.server = api_probe.Server(ask.url, ask.key, ask.completion_timeout)
        self.idle = ask.idle_power_w
        self.powers: list[float] = []
        self.seen: list[tuple[float, metrics.Sample | None]] = []
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

    def read_metrics(self) -> metrics.Sample | None:
        """Return a reading of /metrics, and keep it."""
        status, text = self.server.call("GET", "/metrics", timeout=SHORT_SECONDS)
        reading = metrics.sample(text) if status == 200 else None
        self.seen.append((time.monotonic() - self.start, reading))
        return reading

    def learn_idle_power(self, reading: metrics.Sample | None) -> None:
        """Take the idle power from the file; if no request runs, measure it too and keep the lower: another process may have used the GPU before."""
        path = self.ask.idle_power_file
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
        if self.ask.keep:
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
        if status:
            return self.result("dead" if status >= 500 else "refused", f"{what}: HTTP {status}: {api_probe.reason_of(error)[:200]}", status)
        if error.startswith(api_probe.NO_REPLY):
            return self.result("silent", f"{what}: no answer within {time.monotonic() - self.start:.0f} s")
        if error.startswith("ConnectionRefusedError"):
            return self.result("dead", f"nothing listens at {self.ask.url}", starting=True)
        return self.result("dead", f"{what}: {error[:200]}")

    def check(self) -> dict[str, Any]:
        """Request the completion, and decide."""
        status, text = self.server.call("GET", "/v1/models", timeout=min(self.ask.timeout, 2 * SHORT_SECONDS))
        try:
            models = api_probe.models_of(text) if status == 200 else []
        except ValueError:
            models = []
        if status != 200:
            return self.failed(status, text, "/v1/models")
        if not models:
            return self.result("refused", f"/v1/models does not list a model: {text[:120]}", status)
        self.learn_idle_power(self.read_metrics())
        request = dict(self.ask.request)
        request["max_tokens"] = min(MAX_TOKENS, int(request.get("max_tokens") or MAX_TOKENS))
        self.start = time.monotonic()
        self.seen = [(0.0, reading) for _when, reading in self.seen]
        replies: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: replies.append(self.server.complete(models[0]["id"], request)), daemon=True)
        thread.start()
        limits = metrics.Limits(self.ask.timeout, self.ask.wedge_seconds, self.ask.completion_timeout)
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
            "computing": f"busy: {held}, no token for {self.ask.wedge_seconds:.0f} s, and the GPU works ({power})",
            "wedged": f"the engine is wedged: {waited}, tokens stand still with {held}, and the GPU is at idle power ({power})",
            "frozen": f"{waited}, and tokens stand still with {held}. A long prefill looks the same. The power of the GPU is not known",
            "silent": f"{waited}, and /metrics does not answer",
        }
        return self.result("busy" if outcome == "computing" else outcome, texts[outcome])
