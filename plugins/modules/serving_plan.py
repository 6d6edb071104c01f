#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin serving_plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_plan
short_description: Take a step of the role vllm_tp2 that meets no node
description:
  - Renders a rank, decides for all ranks of a serving group, or reports what a run has reached. It reads the options of the role P(gb10.cluster.vllm_tp2#role)
    and what its tasks have registered on all ranks, so the decision is the same on each. It is of use to that role and its playbooks only.
  - This is an action plugin. It runs on the controller and contacts no host.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  step:
    description:
      - V(whole) fails if a rank of the serving group is not in this run, V(unit) also if one has failed in it. V(head) fails without the head.
      - V(rank) renders this rank, or fails because its node cannot take part in a start.
      - V(group) is V(unit), and decides what the run does, or fails because the run is refused or because the boot cannot pass.
      - V(check) checks what this rank was rendered to without its node (ports, KV pool, C(docker compose config)), and writes the files for C(validate.yml).
      - V(lock) compares O(pin) with the lock file next to the inventory, C(.gb10.lock.yml) or C(gb10_lock_file). It writes the entry if there is none, or
        if C(gb10_lock_update) is true, and fails if the content differs from the entry.
      - V(evidence) writes the evidence of this rank on the controller, and compares it with earlier evidence.
      - V(outcome) reports what the run has reached, or fails with the same sentence on all ranks.
    type: str
    choices: [whole, unit, head, rank, check, group, evidence, outcome, lock]
    required: true
  group:
    description: The serving group, from the P(gb10.cluster.serving_group#lookup) lookup. Each step but V(lock) needs it.
    type: dict
  profile:
    description: The resolved profile with the changes of the inventory.
    type: dict
  infos:
    description: What is taken in place of what was read of each rank.
    type: list
    elements: dict
  enforce:
    description: Whether to fail where the run would end. Without, the step only returns what it has found.
    type: bool
    default: true
  labels:
    description: Under which labels the agent has kept evidence in this run. What cannot be read or written of it is not a failure.
    type: list
    elements: str
  read:
    description: What C(gb10 evidence) has printed on this rank's node, one result of M(gb10.cluster.gb10) for each of O(labels), or one that was asked for.
    type: list
    elements: dict
    default: []
  pin:
    description:
      - An image or a model, with C(kind) (V(images) or V(models)), C(name) (the reference or the ID) and C(found), a mapping of kinds of proof to values.
        A value can be a list, of which one must be in the entry. An empty C(found) requires that the file has an entry.
    type: dict
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
  - gb10.cluster.internal
"""

EXAMPLES = r"""
- name: Require that all ranks are in this run
  gb10.cluster.serving_plan:
    step: unit
    group: "{{ lookup('gb10.cluster.serving_group') }}"
"""

RETURN = r"""
checked:
  description:
    - With O(step=check), C(rank), C(host), C(image), the names of C(secrets), C(compose_check), C(pool) (the estimate) and C(path), the folder of the
      written files. C(compose) is the text of the Compose file if C(validate_show) is true.
  type: dict
  returned: success
  sample: {rank: 0, host: spark-1, secrets: [VLLM_API_KEY], compose_check: passed, path: /tmp/rendered/pair1}
do:
  description: With O(step=group), V(nothing), V(start), V(follow) or V(refuse). What follows from it is next to it.
  type: str
  returned: success
  sample: nothing
"""
