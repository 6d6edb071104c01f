#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin serving_plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_plan
short_description: Take a step of the roles preflight and vllm_tp2 that meets no node
description:
  - Checks all ranks of a serving group together, renders a rank, decides for the group, or reports what a run has reached. It reads the options of the role
    P(gb10.cluster.vllm_tp2#role) and what tasks have registered on all ranks, so the decision is the same on each. It is of use to the roles
    P(gb10.cluster.preflight#role) and P(gb10.cluster.vllm_tp2#role) and their playbooks only.
  - This is an action plugin. It runs on the controller and contacts no host.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  step:
    description:
      - V(whole) fails if a rank of the serving group is not in this run, V(unit) also if one has failed in it. V(head) fails without the head.
      - V(preflight) makes the checks of preflight on what M(gb10.cluster.preflight_info) returned on every rank, prints all findings together and writes
        them as JSON on the controller. It fails on every rank of the group if there is an error.
      - V(rank) renders this rank, or fails because its node cannot take part in a start.
      - V(group) is V(unit), and decides what the run does, or fails because the run is refused or because the boot cannot pass.
      - V(check) checks what this rank was rendered to without its node (ports, KV pool, C(docker compose config)), and writes the files for C(validate.yml).
      - V(lock) compares O(pin) with the lock file next to the inventory, C(.gb10.lock.yml) or C(gb10_lock_file). It writes the entry if there is none, or
        if C(gb10_lock_update) is true, and fails if the content differs from the entry.
      - V(evidence) writes the evidence of this rank on the controller, and compares it with earlier evidence.
      - V(outcome) reports what the run has reached, or fails with the same sentence on all ranks.
      - V(doctor) makes all checks of C(doctor.yml), returns the page that it prints, and never fails because of a finding.
    type: str
    choices: [whole, unit, head, preflight, rank, check, group, evidence, outcome, doctor, lock]
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
  checks:
    description: For V(preflight) and V(doctor). Each finding has a stable ID, what was found, why it matters and the remedy.
    type: dict
    suboptions:
      file:
        description: The path of the JSON report of preflight on the controller; empty for no report.
        type: path
        default: ""
      ignore:
        description: IDs of checks of preflight whose findings are only listed in the report.
        type: list
        elements: str
        default: []
      strict:
        description: Whether warnings of preflight are errors.
        type: bool
        default: false
      needs:
        description: What the serving group requires of its nodes.
        type: dict
        default: {}
        suboptions:
          require_gb10:
            description: Whether a machine that is not a GB10 is an error.
            type: bool
            default: false
          head_ports:
            description: The ports that the head needs, each with its purpose.
            type: dict
            default: {}
          open_port:
            description: The port of an API that has no key and listens on all addresses; 0 for none.
            type: int
            default: 0
          image:
            description: The name of the image, for the messages.
            type: str
            default: ""
          image_gib:
            description: The size of the image in GiB, if it is not on the node yet.
            type: float
            default: 0
          model_gib:
            description: The size of the weights in GiB; 0 if unknown.
            type: float
            default: 0
          free_gib:
            description: The space that stays free on each file system, in GiB.
            type: float
            default: 5
          clock_skew_seconds:
            description: The highest difference between the clocks of a node and of the controller, in seconds.
            type: float
            default: 5
          known_versions:
            description: Versions that are known to fail, in addition to those of the collection. P(gb10.cluster.preflight#role) describes the keys.
            type: list
            elements: dict
            default: []
      release:
        description: The release that the inventory describes. It is empty if it was not rendered.
        type: str
        default: ""
      bandwidth_not:
        description: Why the bandwidth test that was asked for did not run; empty otherwise.
        type: str
        default: ""
      collective:
        description: The verdict of the collective test, or C(skipped) with the reason.
        type: dict
        default: {}
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

- name: Check what was read of all ranks
  gb10.cluster.serving_plan:
    step: preflight
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    checks: {file: "{{ playbook_dir }}/preflight.json"}
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
findings:
  description: The findings, errors first.
  returned: with O(step=preflight)
  type: list
  elements: dict
  sample:
    - id: kernel_parity
      area: versions
      severity: warning
      hosts: [spark-1, spark-2]
      found: "the kernel differs: 6.17.0-1032-nvidia on spark-1, 7.0.0-1019-nvidia on spark-2"
      why: memory, GIDs and hot-plug depend on the kernel version, so one rank can fail while the other does not
      remedy: update all nodes the same way, and reboot
      command: "{on} 'sudo apt update && sudo apt dist-upgrade'"
ignored:
  description: Findings of the checks in O(checks.ignore).
  returned: with O(step=preflight)
  type: list
  elements: dict
  sample: []
not_checked:
  description: Checks that were skipped, with the hosts and the reason.
  returned: with O(step=preflight)
  type: list
  elements: dict
  sample: [{id: driver_parity, area: versions, hosts: [lab-1], reason: no NVIDIA driver is loaded}]
verdict:
  description: The verdict in one sentence.
  returned: with O(step=doctor)
  type: str
  sample: "pair1: 1 error, 2 warnings."
lines:
  description: The page.
  returned: with O(step=doctor)
  type: list
  elements: str
  sample: ["pair1: no problem found. It serves."]
report:
  description: The same as data.
  returned: with O(step=doctor)
  type: dict
  contains:
    schema:
      description: The name of this form.
      type: str
      returned: with O(step=doctor)
      sample: gb10.cluster/doctor/2
    time:
      description: When the report was made.
      type: str
      returned: with O(step=doctor)
      sample: "2026-11-22T20:15:00Z"
    group:
      description: The serving group's name.
      type: str
      returned: with O(step=doctor)
      sample: pair1
    hosts:
      description: Its hosts, the head first.
      type: list
      elements: str
      returned: with O(step=doctor)
      sample: [spark-1, spark-2]
    state:
      description: The state of the group, as C(status.yml) judges it.
      type: str
      returned: with O(step=doctor)
      sample: down
    sentence:
      description: The same as a sentence.
      type: str
      returned: with O(step=doctor)
      sample: "pair1 does not serve: rank 1 on spark-2: no container exists."
    counts:
      description: The number of findings for each severity.
      type: dict
      returned: with O(step=doctor)
      sample: {error: 1, warning: 2, info: 0}
    findings:
      description: The findings, the worst first.
      type: list
      elements: dict
      returned: with O(step=doctor)
      sample:
        - id: cable
          area: fabric
          severity: error
          hosts: [spark-1]
          found: No port has a link
          why: the ranks have no rail to reach each other
          remedy: Connect the cable
          command: ssh spark-1 'ip -br link; rdma link'
    passed:
      description: What was found in each area without a finding.
      type: dict
      returned: with O(step=doctor)
      sample: {power: "spark-1: GPU 45 °C, 11 W"}
    not_checked:
      description: What was not checked, with the reason.
      type: list
      elements: dict
      returned: with O(step=doctor)
      sample: [{area: drift, hosts: [spark-1], reason: no release is current}]
"""
