#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin checks_report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: checks_report
short_description: Check what was read of all ranks of a serving group, and report it
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Makes the checks of preflight on what M(gb10.cluster.preflight_info) returned on every rank of a serving group, prints all findings together and writes
    them as JSON on the controller. Fails on every rank of the group if there is an error.
  - With O(doctor), makes all checks of C(doctor.yml), returns the page that it prints, and never fails because of a finding.
  - Each finding has a stable ID, what was found, why it matters and the remedy. Checks that cannot be made are listed with their reason.
  - This is an action plugin. It runs on the controller, also in check mode, and never reports a change.
options:
  group:
    description: The serving group of this host, as P(gb10.cluster.serving_group#lookup) gives it.
    type: dict
    required: true
  register:
    description:
      - Names of the variables that the tasks have registered on each rank, C(preflight) of M(gb10.cluster.preflight_info). For O(doctor) also C(rank) of
        M(gb10.cluster.vllm_rank_info), C(decision), C(bandwidth), and C(sysctl), C(readahead), C(gpu) and C(docker) of the roles in check mode.
        A rank without one was not read.
    type: dict
    required: true
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
  doctor:
    description: What C(doctor.yml) knows besides; without it, the checks of preflight are made.
    type: dict
    suboptions:
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
- name: Read the nodes
  gb10.cluster.preflight_info:
  become: true
  register: node
  ignore_errors: true
  ignore_unreachable: true

- name: Check them together
  gb10.cluster.checks_report:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    register: {preflight: node}
    file: "{{ playbook_dir }}/preflight.json"
"""

RETURN = r"""
findings:
  description: The findings, errors first.
  returned: for preflight
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
  description: Findings of the checks in O(ignore).
  returned: for preflight
  type: list
  elements: dict
  sample: []
not_checked:
  description: Checks that were skipped, with the hosts and the reason.
  returned: for preflight
  type: list
  elements: dict
  sample: [{id: driver_parity, area: versions, hosts: [lab-1], reason: no NVIDIA driver is loaded}]
verdict:
  description: The verdict in one sentence.
  returned: with O(doctor)
  type: str
  sample: "pair1: 1 error, 2 warnings."
lines:
  description: The page.
  returned: with O(doctor)
  type: list
  elements: str
  sample: ["pair1: no problem found. It serves."]
report:
  description: The same as data.
  returned: with O(doctor)
  type: dict
  contains:
    schema:
      description: The name of this form.
      type: str
      returned: with O(doctor)
      sample: gb10.cluster/doctor/2
    time:
      description: When the report was made.
      type: str
      returned: with O(doctor)
      sample: "2026-11-22T20:15:00Z"
    group:
      description: The serving group's name.
      type: str
      returned: with O(doctor)
      sample: pair1
    hosts:
      description: Its hosts, the head first.
      type: list
      elements: str
      returned: with O(doctor)
      sample: [spark-1, spark-2]
    state:
      description: The state of the group, as C(status.yml) judges it.
      type: str
      returned: with O(doctor)
      sample: down
    sentence:
      description: The same as a sentence.
      type: str
      returned: with O(doctor)
      sample: "pair1 does not serve: rank 1 on spark-2: no container exists."
    counts:
      description: The number of findings for each severity.
      type: dict
      returned: with O(doctor)
      sample: {error: 1, warning: 2, info: 0}
    findings:
      description: The findings, the worst first.
      type: list
      elements: dict
      returned: with O(doctor)
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
      returned: with O(doctor)
      sample: {power: "spark-1: GPU 45 °C, 11 W"}
    not_checked:
      description: What was not checked, with the reason.
      type: list
      elements: dict
      returned: with O(doctor)
      sample: [{area: drift, hosts: [spark-1], reason: no release is current}]
"""
