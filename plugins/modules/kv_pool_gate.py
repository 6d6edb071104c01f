#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin kv_pool_gate."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kv_pool_gate
short_description: Follow the start of a serving group to its verdict
description:
  - Runs on the head of a serving group. The agent there starts all ranks, judges the boot and recovers by itself. This action reads its events
    and shows its progress, one line for each change of stage and rank.
  - Fails within seconds of a failure on B(any) rank, with the decisive line, the failure's class and a remedy.
    A rank that was killed leaves no line. The container's state and the kernel's count of OOM kills tell then.
  - Returns when the agent has nothing more to do. After a failure it recovers, after a pass it keeps its records. A stop that is followed passes.
  - Passes when the head answers C(/v1/models) with the context of the criteria, the KV pool meets the criteria, all ranks agree and still run,
    and a real completion came back. C(/health) proves nothing. It stays 200 with a dead worker until a request arrives.
  - For a profile with a drafter, a published speed or a bound, it also measures the speed of one stream and the accepted draft tokens. They fail the
    boot where the profile has a bound. A speed far below the published one, and a drafter without a bound that accepts nothing, are warnings.
  - A connection that fails is tried again for two minutes. The agent continues the start without it.
  - Fails if another run has stopped the group, or has taken it over, since O(generation) was asked for.
  - This is an action plugin. It calls C(gb10 follow) on the node.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  generation:
    description: The generation of the desired state to follow, as C(gb10 want) returned it.
    type: int
    required: true
  group:
    description: The serving group's name.
    type: str
    required: true
  receipts:
    description:
      - A folder on the controller where the receipt is kept, in a folder of the group's name. None is kept when left out.
      - Only its owner may read a receipt. One that cannot be read or written is a warning and does not change the verdict.
    type: path
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
  - module: gb10.cluster.gb10
    description: Runs C(gb10 want), which sets the desired state that is followed.
  - plugin: gb10.cluster.vllm_boot_log
    plugin_type: filter
    description: The same reading of a log, offline.
"""

EXAMPLES = r"""
- name: Judge the boot
  gb10.cluster.kv_pool_gate:
    generation: "{{ asked.generation }}"
    group: pair1
    receipts: receipts
  become: true
"""

RETURN = r"""
passed:
  description: Whether the boot passed. Without a boot, whether the group serves, or is stopped on request.
  type: bool
  returned: always
  sample: true
class:
  description: The failure's class, V(connection_lost) or V(superseded); empty after a pass.
  type: str
  returned: always
  sample: kv_too_small
msg:
  description: The verdict as a sentence. After a failure it names group, rank, host, class, the decisive line, the remedy, and how the agent has recovered.
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
outcome:
  description:
    - What the agent has reached so far, C(phase), C(result), C(sentence), C(warnings), C(unserved_seconds), C(evidence) and more.
    - Empty if the connection is lost or another run has replaced the desired state.
  type: dict
  returned: always
  sample: {generation: 7, phase: settled, result: serves, release: 4f0c61d2a9be, warnings: [], unserved_seconds: 48.2}
"""
