# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter: the text of a vLLM boot log to facts and a verdict."""

from __future__ import annotations

DOCUMENTATION = r"""
name: vllm_boot_log
short_description: Read the text of a vLLM boot log into facts and a verdict
author: The gb10.cluster authors (@gb10-cluster)
description:
  - Reads the log of vLLM 0.11 and later (V1 engine) on CUDA and CPU, also the logs of the GB10 forks. The log is complete, the process has ended.
  - Supports the prefixes that Docker, Compose and journald put before a line. A line that a copy has wrapped is not joined again.
  - Reads the log of one rank alone. M(gb10.cluster.kv_pool_gate) reports what only the logs of both ranks together show.
  - All values are of the last boot in the log.
  - An absent fact is V(null). A log without a banner is not a failure, it is V(unknown) or V(starting).
  - Values of keys and tokens are redacted in everything that is returned.
  - The class of a failure is explained in docs/reference/failures.md.
positional: _input
options:
  _input:
    description: The log.
    type: str
    required: true
  extra_classes:
    description: Your own failure classes. They outrank the built-in ones.
    type: list
    elements: dict
    default: []
    suboptions:
      class:
        description: Name of the class.
        type: str
        required: true
      pattern:
        description:
          - Python regular expression, searched in each line that is an error or has no level.
          - A repeat inside a repeat is refused, because it can hang on a long line.
        type: str
        required: true
      remedy:
        description: One sentence, the one thing to change. C({name}) is replaced by the named group of the pattern.
        type: str
        required: true
      anchor:
        description: Where it is documented.
        type: str
      any_level:
        description: Whether lines of levels below error count too.
        type: bool
        default: false
seealso:
  - module: gb10.cluster.kv_pool_gate
"""

EXAMPLES = r"""
- name: Read a log file of the controller without an inventory
  # ansible localhost -m debug -a "msg={{ lookup('file', 'boot.log') | gb10.cluster.vllm_boot_log }}"
  ansible.builtin.debug:
    msg: "{{ (lookup('ansible.builtin.file', 'boot.log') | gb10.cluster.vllm_boot_log).state }}"

- name: Name an error of your own plugin
  ansible.builtin.debug:
    msg: "{{ lookup('ansible.builtin.file', 'boot.log') | gb10.cluster.vllm_boot_log(extra_classes) }}"
  vars:
    extra_classes:
      - class: licence_expired
        pattern: 'licence of plugin (?P<plugin>\w+) has expired'
        remedy: Renew the licence of {plugin}.
"""

RETURN = r"""
_value:
  description: The facts of the log.
  type: dict
  contains:
    state:
      description:
        - State of the last boot in the log.
        - V(failed), a failure with no readiness after it. V(ready), readiness text or an answered request.
          V(starting), a stage was reached. V(unknown), no line of vLLM was recognised.
        - V(served_then_failed), a failure after readiness. The engine does not serve any more, also where C(/health) still answers,
          for example after the loss of the other rank (class C(peer_lost)), a fatal engine error or EngineDeadError.
        - V(failed) requires a decisive line, a second sign, or the end of the log.
        - A headless worker never reports that it is ready, so V(starting) is right for it.
        - V(ready) means that this boot became ready. RV(_value.stopped) shows whether it was shut down later.
      type: str
      sample: ready
    stage:
      description: The furthest stage, in this order, V(none), V(args), V(config), V(rendezvous), V(load), V(kv), V(graphs), V(init), V(listen), V(ready).
      type: str
      sample: ready
    stages:
      description: Each stage seen, with the line and the log's own time (month-day, the container's zone).
      type: dict
      sample: {load: {line_number: 40, time: "11-20 21:12:34"}}
    suspicion:
      description:
        - A weak line that alone does not prove a failure, such as an optional import that failed, while the process runs; V(null) without one.
        - It has the keys of RV(_value.failure) except C(also) and C(confirmed). It becomes RV(_value.failure) if the process ends.
      type: dict
      sample: {class: toolchain, line: "ModuleNotFoundError: No module named 'example'", line_number: 31}
    progress:
      description: The last progress bar, C(what) (weights or graphs), C(percent), C(done), C(total), C(line_number); V(null) without one.
      type: dict
      sample: {what: weights, percent: 25, done: 3, total: 12, line_number: 44}
    failure:
      description: The root cause, V(null) without one.
      type: dict
      contains:
        class:
          description: Class, as in docs/reference/failures.md.
          type: str
          sample: kv_too_small
        line:
          description: The line that shows it, without prefixes, secrets redacted, at most 600 characters.
          type: str
          sample: "ValueError: To serve at least one request with the model's max seq len (131072), ..."
        line_number:
          description: Its number in the log, from 1.
          type: int
          sample: 118
        remedy:
          description: The one thing to change.
          type: str
          sample: Set --max-model-len to at most 54432 (the estimate for the tightest rank), or free memory for the pool.
        anchor:
          description: Where it is explained.
          type: str
          sample: docs/reference/failures.md#kv_too_small
        kind:
          description: V(strong) (the engine cannot live after it), V(weak) (a refused setting or request), V(tail) (a symptom).
          type: str
          sample: strong
        confirmed:
          description: Whether more than one weak line alone shows it. A weak failure that is not confirmed counts because the log is complete.
          type: bool
          sample: true
        also:
          description: Further classes seen in this boot, most specific first.
          type: list
          elements: str
          sample: [worker_died, engine_failed]
        rank:
          description: The rank whose process printed it, where the log tells.
          type: int
          sample: 1
        proc:
          description: The process that printed it.
          type: str
          sample: Worker_TP1
        ip:
          description: The address that Ray prints with the process; V(null) without Ray.
          type: str
          sample: 10.77.0.2
        needs_peer:
          description: What to look for in the other rank's log; empty if nothing.
          type: str
          sample: its log and its container's state have the cause
        found:
          description: The numbers and names in the line.
          type: dict
          sample: {context: "131072", estimate: "54432"}
        after_ready:
          description: Whether it came after readiness.
          type: bool
          sample: false
        count:
          description: How many lines of this class there are.
          type: int
          sample: 3
    version:
      description: vLLM's version as printed.
      type: str
      sample: 0.25.2.dev0+g752a3a504.d20260714
    model:
      description: The model as given.
      type: str
      sample: /models/deepseek-v4-flash
    context:
      description: The context in tokens that the concurrency was computed for, else max_seq_len, else the first "Using max model len".
      type: int
      sample: 1048576
    kv_cache:
      description: The KV pool, of the engine whose pool is smallest.
      type: dict
      contains:
        tokens:
          description: Tokens as printed, smallest over the ranks. Not comparable between vLLM versions.
          type: int
          sample: 2493464
        effective_tokens:
          description: Concurrency times context; comparable between versions.
          type: int
          sample: 2495611
        max_concurrency:
          description: Requests of full length that fit at once.
          type: float
          sample: 2.38
        context:
          description: The context of that figure, in tokens.
          type: int
          sample: 1048576
        blocks:
          description: GPU blocks, where printed.
          type: int
          sample: 9526
        blocks_override:
          description: The configured number of blocks that replaced it, where printed.
          type: int
          sample: 512
        available_gib:
          description: Memory for the pool in GiB, smallest over the ranks in this log; can be negative.
          type: float
          sample: 18.08
    weights:
      description: C(gib) of the largest rank, and C(seconds) of reading.
      type: dict
      sample: {gib: 48.5, seconds: 371.35}
    load_seconds:
      description: Seconds of the whole model load, slowest rank.
      type: float
      sample: 455.9
    graphs:
      description: C(seconds) and C(gib) of graph capture, and C(eager).
      type: dict
      sample: {seconds: 11.0, gib: 0.66, eager: false}
    init_seconds:
      description: Seconds of the engine's initialisation (profile, KV cache, warm-up).
      type: float
      sample: 65.48
    compilation_seconds:
      description: Seconds of it that went into compilation, where printed.
      type: float
      sample: 31.2
    dtype:
      description: Data type of the weights.
      type: str
      sample: bfloat16
    kv_cache_dtype:
      description: Data type of the KV cache.
      type: str
      sample: fp8
    quantization:
      description: Quantization method.
      type: str
      sample: compressed-tensors
    speculative_method:
      description: Speculative decoding method.
      type: str
      sample: mtp
    attention_backend:
      description: The first attention backend named.
      type: str
      sample: FLASHINFER
    moe_backend:
      description: The first backend of the experts that the log names; V(null) without one.
      type: str
      sample: B12X
    custom_ops:
      description: The C(custom_ops) of the engine's compilation, joined by commas; V(null) if the log does not have the engine's configuration.
      type: str
      sample: none
    autotune:
      description: Whether FlashInfer tunes its kernels, by the engine's configuration; V(null) if not known.
      type: bool
      sample: true
    drafter:
      description: Whether the load of a drafter has begun.
      type: bool
      sample: true
    eager:
      description: Whether the engine runs without CUDA graphs; V(null) if not known.
      type: bool
      sample: false
    world_size:
      description: Number of ranks.
      type: int
      sample: 2
    listen:
      description: Where the API listens.
      type: str
      sample: http://0.0.0.0:8000
    nccl:
      description: C(version), C(transport) (V(rdma), V(tcp), V(plugin), V(unknown); V(unknown) is normal without NCCL_DEBUG=INFO), C(network), C(hcas).
      type: dict
      sample: {version: 2.29.7, transport: rdma, network: IB, hcas: ["rocep1s0f1:1"], via: [IB]}
    ready:
      description: The evidence of readiness, C(evidence) (V(startup), V(uvicorn), V(frontend), V(access)), C(line), C(line_number), C(time).
      type: dict
      sample: {evidence: startup, line: Application startup complete., line_number: 200, time: null}
    stopped:
      description: The first line that reports that the server or a rank shuts down; V(null) without one.
      type: dict
      sample: {line: Shutting down, line_number: 220, time: null}
    peer_lost:
      description:
        - The first line that reports that the connection to the other rank broke.
      type: dict
      sample: {line: "RuntimeError: Connection closed by peer [10.77.0.2]:29319", line_number: 187, peer: 10.77.0.2}
    args:
      description: Arguments of interest as given on the command line.
      type: dict
      sample: {max_model_len: 512, node_rank: 1}
    benign:
      description: Lines that look like failures and are not, counted by name.
      type: dict
      sample: {fd_limit: 1}
    unknown_variables:
      description: Environment variables that this vLLM does not know, so that what they select is off.
      type: list
      elements: str
      sample: [VLLM_USE_B12X_MOE]
    restarts:
      description: Boots in the log before the last one.
      type: int
      sample: 0
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError


def vllm_boot_log(log: Any, extra_classes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the facts of a log given as text or bytes."""
    if not isinstance(log, (str, bytes)):
        raise AnsibleFilterError(f"gb10.cluster.vllm_boot_log was given a {type(log).__name__}, expected the text of a log.")
    # Not at the top: looking for any filter of the collection loads this file, in the process of each task, and the parser's patterns cost 0.1 s.
    from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse

    return parse(log, extra_classes)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by name."""
        return {"vllm_boot_log": vllm_boot_log}
