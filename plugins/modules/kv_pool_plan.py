#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimate the KV pool of a boot from the profile and the measured memory of the nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_pool_plan
short_description: Estimate the KV pool of a boot, and refuse one that cannot pass
description:
  - A large model takes 8 to 36 minutes to boot and then dies, or serves with half the pool, because a node has 2 GiB too little. This
    module reports it in a second, from the profile's figures and each rank's measured memory.
  - It computes vLLM's start check (C(gpu_memory_utilization) times the total against the free memory) and the pool that the rank with the least
    memory leaves, with its stated error, and names the one change that would fit.
  - Without a figure the pool is not estimated, the verdict is V(unknown), and the gate judges the boot.
  - A C(gpu-memory-utilization) above 0.82 with a KV size that the profile pins is accepted if its figures show that enough memory stays free.
  - It reads nothing but its arguments and changes nothing. Run it on the controller, once for a serving group.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
options:
  profile:
    description:
      - A resolved profile, from the P(gb10.cluster.profile#lookup) lookup.
    type: dict
    required: true
  ranks:
    description:
      - One entry for each rank, in order. V(total_kib), V(available_kib) and V(free_kib) are C(MemTotal), C(MemAvailable) and C(MemFree) in KiB.
        RV(gb10.cluster.preflight_info#module:memory) can be passed as it is.
      - V(gpu_total_kib) and V(gpu_free_kib) replace them if the GPU has its own memory. V(gpu_engine_kib) is what the old engine holds of it.
        RV(gb10.cluster.vllm_rank_info#module:memory) has them.
      - V(host) names the node in messages. V(engine_running) is true while this group's old engine still holds its memory, and leaves the
        start check for later.
    type: list
    elements: dict
    required: true
  version:
    description:
      - The image's vLLM version where it is known. Since 0.20 the start check reads C(MemAvailable) on a GB10, before that C(MemFree).
    type: str
  enforce:
    description:
      - Fail when the verdict is V(refused), or the boot is RV(unsafe). With V(false) the module only reports.
    type: bool
    default: true
  allow_unsafe_memory:
    description:
      - Make settings that owners report to freeze nodes a warning.
    type: bool
    default: false
seealso:
  - module: gb10.cluster.preflight_info
  - module: gb10.cluster.kv_pool_gate
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Refuse a boot that cannot pass, before anything stops
  gb10.cluster.kv_pool_plan:
    profile: "{{ lookup('gb10.cluster.profile') }}"
    ranks:
      - {host: spark-a, total_kib: 127601213, available_kib: 119537664, free_kib: 118489088}
      - {host: spark-b, total_kib: 125441146, available_kib: 117440512, free_kib: 116391936}
  delegate_to: localhost
  run_once: true

- name: Read each node's memory
  gb10.cluster.preflight_info:
  become: true
  register: facts

- name: Look at what another context would give
  gb10.cluster.kv_pool_plan:
    profile: "{{ lookup('gb10.cluster.profile', 'dspark-nvfp4-500k') }}"
    ranks: "{{ groups['pair1'] | map('extract', hostvars, ['facts', 'memory']) }}"
    enforce: false
  delegate_to: localhost
  run_once: true
  register: plan
"""

RETURN = r"""
verdict:
  description: V(ok), V(refused) or V(unknown).
  returned: always
  type: str
  sample: refused
msg:
  description: The verdict in one sentence, with figures and the one change that would fit. With a pinned KV size, a second one with what stays free.
  returned: always
  type: str
  sample: >-
    dspark-nvfp4-1m: Estimated KV pool: 1,762,995 tokens (+-6.8 %), at least 1,890,000 are needed. spark-b (rank 1) has the least memory:
    12.8 GiB for the KV cache of 95.7 GiB after 75.0 GiB of weights and 7.9 GiB reserve: set gpu-memory-utilization to 0.81.
unsafe:
  description: Why the boot may freeze a node, with the memory that would remain for the host; null if it is not known to.
  returned: always
  type: str
  sample: >-
    mine: gpu-memory-utilization 0.92 is above 0.82, the highest that the sources report to serve. Of 121.7 GiB on spark-a, 9.7 GiB stay for the host,
    which uses about 16.9: nothing remains free. A node without free memory freezes until it is power-cycled. Set gpu-memory-utilization
    (vllm_tp2_gpu_memory_utilization) to 0.82 or less, or accept the risk with vllm_tp2_allow_unsafe_memory: true.
warnings_found:
  description: Warnings about a boot that is not refused.
  returned: always
  type: list
  elements: str
  sample: ["spark-b decides: the other ranks have up to 1.6 GiB more for the KV cache."]
expected_tokens:
  description: Effective tokens (maximum concurrency times context) that the tightest rank leaves; null when unknown.
  returned: always
  type: int
  sample: 1762995
low_tokens:
  description: RV(expected_tokens) less the stated error.
  returned: always
  type: int
  sample: 1643586
high_tokens:
  description: RV(expected_tokens) plus the stated error. Less than RV(needed_tokens) refuses the boot.
  returned: always
  type: int
  sample: 1882403
error_percent:
  description:
    - The stated error. It grows where the profile's arguments differ from those of the measured boot, and where less than the measured pool is left,
      since what varies from boot to boot are GiB, not percent of the rest.
  returned: always
  type: float
  sample: 6.8
needed_tokens:
  description: What the gate asks for, and at least one request of full length; null when nothing is asked.
  returned: always
  type: int
  sample: 1890000
short_rank:
  description: The rank that decides; null when unknown.
  returned: always
  type: int
  sample: 1
remedy:
  description: The one change that would fit; null when none is needed.
  returned: always
  type: str
  sample: set gpu-memory-utilization to 0.81
utilization:
  description: The C(gpu_memory_utilization) of the estimate.
  returned: always
  type: float
  sample: 0.8
kv_bytes_per_token:
  description: Bytes per effective token and rank; null when unknown.
  returned: always
  type: float
  sample: 7786
ranks:
  description:
    - For each rank its memory, V(budget_gib), V(weights_gib), V(reserve_gib), V(kv_gib), V(tokens) and V(start_check), in GiB.
    - V(memory) is V(GPU memory) if these are the figures of a GPU with its own memory.
    - V(start_check) is V(ok), V(refused), V(skipped) (the image does not check), V(later) (the old engine still runs) or V(unknown).
  returned: always
  type: list
  elements: dict
  sample:
    - rank: 1
      host: spark-b
      memory: memory
      total_gib: 119.63
      available_gib: 112.0
      free_gib: 111.0
      engine_running: false
      budget_gib: 95.7
      weights_gib: 75.0
      reserve_gib: 7.92
      kv_gib: 12.78
      start_check: ok
      start_check_gib: 112.0
      tokens: 1762995
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._profile import kv_estimate


def main() -> None:
    """Plan and report."""
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "dict", "required": True},
            "ranks": {"type": "list", "elements": "dict", "required": True},
            "version": {"type": "str"},
            "enforce": {"type": "bool", "default": True},
            "allow_unsafe_memory": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        plan = kv_estimate.make_plan(params["profile"], params["ranks"], params["version"], params["allow_unsafe_memory"])
    except (kv_estimate.PlanError, KeyError, TypeError, ValueError) as error:
        module.fail_json(msg=f"A resolved profile and the memory of each rank are expected: {error}")
    plan["warnings_found"] = plan.pop("warnings")
    for text in plan["warnings_found"]:
        module.warn(text)
    if params["enforce"] and (plan["unsafe"] or plan["verdict"] == "refused"):
        module.fail_json(changed=False, **{**plan, "msg": plan["unsafe"] or plan["msg"]})
    module.exit_json(changed=False, **plan)


if __name__ == "__main__":
    main()
