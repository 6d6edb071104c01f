#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin kv_pool_gate."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_pool_gate
short_description: Follow the boot of all ranks of a serving group and decide whether it passed
version_added: 0.1.0
description:
  - Runs on every rank of a serving group in the same task. Each rank's instance follows its own container's log; together they come to one verdict.
  - Fails on B(all) ranks within seconds of a failure on B(any) of them, with the decisive line, the failure's class and a remedy.
    A rank that was killed leaves no line; the container's state and the kernel's count of OOM kills tell then.
  - Passes when the head answers C(/v1/models) with the wanted context, the KV pool holds what the criteria want, all ranks agree and still run,
    and a real completion came back. C(/health) proves nothing, it stays 200 with a dead worker until someone sends a request.
  - Every wait has a limit. A node or an instance of this action that does not answer any more, also while completions are asked for, fails the
    group with class C(node_lost), and an error of the action itself with class C(gate_error).
  - Shows progress while it waits, one line for each change of stage and rank.
  - This is an action plugin. The reading on the nodes is done by M(gb10.cluster.container_log_slice) and M(gb10.cluster.vllm_probe).
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  container:
    description: The rank's container on this host.
    type: str
    required: true
  group:
    description: The serving group as P(gb10.cluster.serving_group#lookup) returns it. Needs C(name), C(rank), C(size) and C(hosts).
    type: dict
    required: true
  criteria:
    description:
      - What a good boot must show; a profile's C(gate).
      - Keys are C(context) (exact), C(effective_tokens) and C(concurrency) (each with C(min) and C(max)), C(transport) (V(rdma) or V(any)),
        C(kv_cache_dtype), C(speculative_method), C(dtype), C(quantization), C(max_restarts), C(served_names),
        C(completion) (C(prompt), C(expect), C(max_tokens), C(chat), C(body)), C(concurrent_requests), C(long_prompt_tokens) and C(expressions).
      - C(expressions) are JMESPath over C(ranks), C(head), C(pool), C(api) and C(containers), each a string or a dict of C(name), C(expression) and C(remedy).
    type: dict
    default: {}
  url:
    description: The head's API as the head itself reaches it.
    type: str
    default: http://127.0.0.1:8000
  env_file:
    description: A file on the head with a C(VLLM_API_KEY=) line, where the API wants a key.
    type: path
  timeout:
    description: Seconds that the whole boot may take.
    type: float
    default: 2700.0
  limits:
    description: Seconds that a stage may take, by the stage's name. C(total) is no stage and has no effect here, the whole boot has O(timeout).
    type: dict
    default: {}
  classes:
    description: The user's own failure classes, each with C(class), C(pattern) and C(remedy); they are tried before ours.
    type: list
    elements: dict
    default: []
  start_error:
    description: What went wrong when this rank was started; the gate then fails for all ranks with it.
    type: str
    default: ""
  receipts:
    description:
      - A folder on the controller where the receipt is kept, in a folder of the group's name. None is kept when left out.
      - Only its owner may read a receipt. One that cannot be read or written is a warning and does not change the verdict.
    type: path
  release:
    description: The release that is judged; goes into the receipt.
    type: str
    default: ""
  profile:
    description: The profile's name; goes into the receipt.
    type: str
    default: ""
  weights:
    description: What M(gb10.cluster.vllm_rank_info) returned as C(weights); goes into the receipt.
    type: dict
    default: {}
  strict:
    description: Whether a criterion that nothing is known about (a log without NCCL lines, for one) fails the gate. It is a warning otherwise.
    type: bool
    default: false
  completion_timeout:
    description: Seconds that one completion may take. A head that does not answer within 60 s more is lost.
    type: float
    default: 120.0
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode there is no boot to judge; the task is skipped.
  diff_mode:
    support: N/A
    details:
      - This action does not modify state.
  idempotent:
    support: full
    details:
      - This action does not modify state on the nodes.
seealso:
  - module: gb10.cluster.vllm_boot_log_info
    description: The same reading of a log, offline.
"""

EXAMPLES = r"""
- name: Judge the boot
  gb10.cluster.kv_pool_gate:
    container: "gb10-pair1-rank{{ (lookup('gb10.cluster.serving_group')).rank }}"
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    criteria:
      context: 1048576
      effective_tokens: {min: 1900000}
      completion: {prompt: The capital of France is, max_tokens: 8}
    url: http://127.0.0.1:8888
"""

RETURN = r"""
passed:
  description: The joint verdict, the same on every rank.
  type: bool
  returned: always
  sample: true
class:
  description: The failure's class; empty after a pass.
  type: str
  returned: always
  sample: kv_too_small
msg:
  description: The verdict as a sentence. After a failure it names group, rank, host, class, the decisive line and the remedy.
  type: str
  returned: always
  sample: "pair1 serves: every criterion holds."
seconds:
  description: Seconds from the gate's start to its verdict.
  type: float
  returned: always
  sample: 412.3
pool:
  description: The KV pool, C(tokens) as printed, C(concurrency), C(context), C(effective_tokens) (concurrency times context) and C(source).
  type: dict
  returned: always
  sample: {tokens: 1990142, concurrency: 1.9, context: 1048576, effective_tokens: 1992294, source: log}
finding:
  description: What decided a failure; null after a pass or where a criterion did not hold.
  type: dict
  returned: always
  sample: null
failed_checks:
  description: The criteria that did not hold, each with C(name), C(wanted), C(found) and C(remedy).
  type: list
  elements: dict
  returned: always
  sample: []
unknown_checks:
  description: The criteria that nothing was found about.
  type: list
  elements: str
  returned: always
  sample: [transport]
receipt:
  description: >-
    The receipt, with all facts of all ranks; its C(path) tells where it was kept, its C(warning) why it was not, or why it was not compared with the
    last good one. After a failure only C(path), C(release), C(time) and C(warning).
  type: dict
  returned: always
  sample: {passed: true, release: 4f0c61d2a9be}
"""
