#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin preflight_report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_report
short_description: Judge what preflight_info has read of all ranks, and report it
version_added: 0.1.0
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Joins what M(gb10.cluster.preflight_info) returned on every rank of a serving group, prints all findings in one go, writes them as JSON
    on the controller, and fails on every rank of the group where there is an error.
  - Each finding has a stable ID, what was found, why it matters and the remedy. What cannot be judged is listed with its reason.
  - This is an action plugin; it runs on the controller and touches no host. It works in check mode as it does otherwise, and never reports a change.
options:
  group:
    description: The serving group of this host, as P(gb10.cluster.serving_group#lookup) gives it.
    type: dict
    required: true
  register:
    description: The variable in which each rank's result of M(gb10.cluster.preflight_info) was registered.
    type: str
    required: true
  report:
    description: Where to write the JSON report on the controller; empty writes none.
    type: path
    default: ""
  ignore:
    description: IDs of checks whose findings are listed in the report and count for nothing.
    type: list
    elements: str
    default: []
  strict:
    description: Whether warnings are errors.
    type: bool
    default: false
  require_gb10:
    description: Whether a machine that is no GB10 is an error.
    type: bool
    default: false
  head_ports:
    description: The ports that the head needs, each with what for.
    type: dict
    default: {}
  image:
    description: The image's name, for the sentences.
    type: str
    default: ""
  image_gib:
    description: What the image takes where it is not there yet, in GiB.
    type: float
    default: 0
  model_gib:
    description: What the weights take, in GiB; 0 where that is not known.
    type: float
    default: 0
  free_gib:
    description: What has to stay free on each file system, in GiB.
    type: float
    default: 5
  clock_skew_seconds:
    description: How far a node's clock may be from the controller's.
    type: float
    default: 5
  known_versions:
    description: Versions known to hurt, beside those of the collection (P(gb10.cluster.preflight#role) says in which form).
    type: list
    elements: dict
    default: []
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Read the nodes
  gb10.cluster.preflight_info:
  become: true
  register: node
  ignore_errors: true
  ignore_unreachable: true

- name: Judge them together
  gb10.cluster.preflight_report:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    register: node
    report: "{{ playbook_dir }}/preflight.json"
"""

RETURN = r"""
findings:
  description: What counts, errors first.
  returned: always
  type: list
  elements: dict
  sample:
    - id: kernel_parity
      severity: warning
      hosts: [spark-1, spark-2]
      found: "the kernel differs: 6.17.0-1032-nvidia on spark-1, 7.0.0-1019-nvidia on spark-2"
      matters: memory, GIDs and hot-plug behave differently from kernel to kernel
      remedy: update all nodes the same way, and reboot
ignored:
  description: Findings of the checks in O(ignore).
  returned: always
  type: list
  elements: dict
  sample: []
not_checked:
  description: Checks that were left out, with the hosts and the reason.
  returned: always
  type: list
  elements: dict
  sample: [{id: driver_parity, hosts: [lab-1], reason: no NVIDIA driver is loaded}]
report:
  description: Where the JSON report is; empty where none was written.
  returned: always
  type: str
  sample: receipts/reports/preflight-pair1.json
"""
