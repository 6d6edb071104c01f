#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure a served model with `vllm bench serve` in the head's container, and sample the node's memory meanwhile."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_bench
short_description: Measure a served model with the benchmark of its own image
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Runs C(vllm bench serve) in the container of the head, one level after the other, and reads the engine's metrics before, during and after it.
  - Samples the node's memory every second. Without O(container) that is all it does, for O(seconds), on a rank without an API.
  - The benchmark takes 1 to 2 GiB of the node's memory. A level starts only while O(memory_floor_gib) is available. The agent protects the
    memory meanwhile.
  - Prompts are random tokens, so the acceptance of a drafter is lower than with text.
  - The key of the API stays in the container's environment.
options:
  levels:
    description: The levels, as the filter P(gb10.cluster.bench_levels#filter) makes them.
    type: list
    elements: dict
    default: []
  container:
    description: The head's container; empty to sample the memory alone.
    type: str
    default: ""
  tokenizer:
    description: The arguments of C(vllm bench serve) that name the tokenizer in the container.
    type: list
    elements: str
    default: []
  seconds:
    description: Repeat the levels with other prompts for so long; V(0) measures each level once.
    type: int
    default: 0
  timeout:
    description: Seconds that one level may take.
    type: int
    default: 1800
  memory_floor_gib:
    description: The GiB of MemAvailable below which no other level starts.
    type: float
    default: 4.0
extends_documentation_fragment:
  - gb10.cluster.api
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode nothing is measured.
  diff_mode:
    support: none
  idempotent:
    support: N/A
    details:
      - Every run measures again. It reports no change.
seealso:
  - module: gb10.cluster.gb10
"""

EXAMPLES = r"""
- name: Measure one and four streams
  gb10.cluster.vllm_bench:
    levels: "{{ [0, 4096] | gb10.cluster.bench_levels([1, 4], 128) }}"
    container: gb10-pair1-rank0
    tokenizer: [--tokenizer, /models/lab-tiny]
  become: true
"""

RETURN = r"""
rows:
  description:
    - The figures of each level, C(depth) and C(concurrency) as asked for, and C(completed) of C(requests).
    - C(tok_s) of all streams and C(stream_tok_s) of one, C(ttft_ms) and C(ttft_p99_ms), C(prefill_tok_s), C(itl_ms), C(acceptance_percent) of
      the drafted tokens, C(cache_hit_percent) of the prompt's tokens, the highest C(kv_usage_percent), and C(preemptions). Null is not known.
  type: list
  elements: dict
  returned: when not in check mode
  sample: [{depth: 0, concurrency: 1, requests: 2, completed: 2, tok_s: 51.2, stream_tok_s: 54.0, ttft_ms: 130.5, itl_ms: 18.5}]
memory:
  description: The lowest MemAvailable and MemFree, and MemAvailable at the end, in KiB.
  type: dict
  returned: when not in check mode
  sample: {lowest_available_kib: 8912000, lowest_free_kib: 5300000, after_kib: 9010000}
low:
  description: Why the measurement ended early, as a sentence; empty if it did not.
  type: str
  returned: when not in check mode
  sample: ""
"""

import os
import threading
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import without
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, bench
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api

MEMINFO = "/proc/meminfo"
INTERVAL = 1.0


class Watch(threading.Thread):
    """Samples the memory, and the use of the KV cache if there is a server, until `close`."""

    def __init__(self, server: api_probe.Server | None) -> None:
        super().__init__(daemon=True)
        self.server, self.ended = server, threading.Event()
        self.available = self.free = 1 << 62
        self.usage: float | None = None

    def run(self) -> None:
        """Sample until close() is called."""
        while not self.ended.wait(INTERVAL):
            self.take()

    def take(self) -> int:
        """Sample once, and return MemAvailable in KiB."""
        found = docker_api.memory_of(bounded.text(MEMINFO))
        self.available, self.free = min(self.available, found["available_kib"]), min(self.free, found["free_kib"])
        if self.server:
            usage = bench.kv_usage(self.server.call("GET", "/metrics", timeout=5.0)[1])
            self.usage = usage if self.usage is None else max(self.usage, usage or 0.0)
        return found["available_kib"]

    def close(self) -> dict[str, int]:
        """End the thread, and return what was seen of the memory."""
        self.ended.set()
        self.join(10)
        self.server = None
        after = self.take()
        return {"lowest_available_kib": self.available, "lowest_free_kib": self.free, "after_kib": after}


def measure(params: dict[str, Any], server: api_probe.Server, model: dict[str, Any], level: dict[str, Any], watch: Watch) -> dict[str, Any]:
    """Measure one level and return its row. Raises bench.BenchError."""
    limit, wanted = model.get("max_model_len"), bench.longest(level)
    if limit and wanted > limit:
        raise bench.BenchError(f"a request of the level has up to {wanted:,} tokens, and the context is {limit:,}. Use a lower value in bench_depths")
    words = bench.words(level, params["url"], model["id"], params["tokenizer"], int.from_bytes(os.urandom(4), "big") >> 1, params["timeout"])
    before = bench.counters(server.call("GET", "/metrics")[1])
    watch.usage = None
    code, out, err = run_command(["docker", "exec", params["container"], *words], params["timeout"] + 60.0)
    if code:
        raise bench.BenchError(bench.reason_of(code, err, params["timeout"]))
    return bench.row_of(level, out, before, bench.counters(server.call("GET", "/metrics")[1]), watch.usage)


def run(params: dict[str, Any], watch: Watch, server: api_probe.Server, model: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Measure all levels, again until the time is over. Return why it ended early. Raises bench.BenchError."""
    end = time.monotonic() + params["seconds"]
    while True:
        for level in params["levels"]:
            available = watch.take() / 2**20
            if available < params["memory_floor_gib"]:
                return f"{available:.1f} GiB of memory are available, and bench_memory_floor is {params['memory_floor_gib']:g} GiB"
            rows.append(measure(params, server, model, level, watch))
            if params["seconds"] and time.monotonic() >= end:
                return ""
        if time.monotonic() >= end:
            return ""


def main() -> None:
    """Measure, and return the figures."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": "http://127.0.0.1:8000"},
            "env_file": {"type": "list", "elements": "path", "default": []},
            "levels": {"type": "list", "elements": "dict", "default": []},
            "container": {"type": "str", "default": ""},
            "tokenizer": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "seconds": {"type": "int", "default": 0},
            "timeout": {"type": "int", "default": 1800},
            "memory_floor_gib": {"type": "float", "default": 4.0},
        },
        supports_check_mode=True,
    )
    params = module.params
    rows: list[dict[str, Any]] = []
    if module.check_mode:
        module.exit_json(changed=False)
    if not params["container"]:
        watch = Watch(None)
        watch.start()
        time.sleep(params["seconds"])
        module.exit_json(changed=False, rows=[], low="", memory=watch.close())
    probed = api_probe.run({"url": params["url"], "env_file": params["env_file"], "timeout": 30.0})
    problem = probed.get("msg") or probed.get("error")
    if problem or not probed.get("models"):
        text = f"The model is not served: {problem or 'the API lists none'}."
        module.fail_json(msg=f"{text} See playbooks/status.yml for the reason, and start it with site.yml.")
    key = api_probe.read_key(params["env_file"])
    server = api_probe.Server(params["url"], key, 20.0)
    watch = Watch(server)
    watch.start()
    try:
        low = run(params, watch, server, probed["models"][0], rows)
    except bench.BenchError as error:
        text = without(str(error), [key] if key else [])
        module.fail_json(msg=f"vllm bench serve in {params['container']}: {text}.", rows=rows, low="", memory=watch.close())
    module.exit_json(changed=False, rows=rows, low=low, memory=watch.close())


if __name__ == "__main__":
    main()
