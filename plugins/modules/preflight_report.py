#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin preflight_report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_report
short_description: Check what preflight_info has read of all ranks, and report it
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Reads what M(gb10.cluster.preflight_info) returned on every rank of a serving group, prints all findings together and writes them as JSON
    on the controller. Fails on every rank of the group if there is an error.
  - Each finding has a stable ID, what was found, why it matters and the remedy. Checks that cannot be made are listed with their reason.
  - This is an action plugin. It runs on the controller, also in check mode, and never reports a change.
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
    description: The path of the JSON report on the controller; empty for no report.
    type: path
    default: ""
  ignore:
    description: IDs of checks whose findings are only listed in the report.
    type: list
    elements: str
    default: []
  strict:
    description: Whether warnings are errors.
    type: bool
    default: false
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

- name: Check them together
  gb10.cluster.preflight_report:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    register: node
    report: "{{ playbook_dir }}/preflight.json"
"""

RETURN = r"""
findings:
  description: The findings, errors first.
  returned: always
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
  returned: always
  type: list
  elements: dict
  sample: []
not_checked:
  description: Checks that were skipped, with the hosts and the reason.
  returned: always
  type: list
  elements: dict
  sample: [{id: driver_parity, area: versions, hosts: [lab-1], reason: no NVIDIA driver is loaded}]
report:
  description: The path of the JSON report; empty if there is none.
  returned: always
  type: str
  sample: receipts/reports/preflight-pair1.json
"""
