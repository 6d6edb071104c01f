#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin doctor_report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor_report
short_description: Report what is wrong with a serving group, and what to do
description:
  - Takes what earlier tasks of the play have registered on all ranks, and returns findings, what passed and what was not checked.
  - Each finding has an ID, a severity, the hosts, what was found, why it matters and a command to copy. The worst are first.
  - This is an action plugin. It runs on the controller, touches no host, prints nothing, and never fails because of a finding.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  group:
    description: The serving group, as the lookup P(gb10.cluster.serving_group#lookup) returns it.
    type: dict
    required: true
  register:
    description:
      - Names of the variables that the tasks have registered on each rank, C(preflight), C(rank), C(decision),
        C(bandwidth), and C(sysctl), C(readahead), C(gpu) and C(docker) of the roles in check mode. A rank without one was not read.
    type: dict
    required: true
  preflight:
    description: What preflight requires of the nodes, as options of M(gb10.cluster.preflight_report).
    type: dict
    default: {}
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
"""

EXAMPLES = r"""
- name: Report
  gb10.cluster.doctor_report:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    register:
      preflight: __preflight_node
      rank: rank_info
  register: report

- name: Fail if there are errors
  ansible.builtin.assert:
    that: report.report.counts.error == 0
"""

RETURN = r"""
verdict:
  description: The verdict in one sentence.
  returned: success
  type: str
  sample: "pair1: 1 error, 2 warnings."
lines:
  description: The page, at most 60 lines.
  returned: success
  type: list
  elements: str
  sample: ["pair1: no problem found. It serves."]
report:
  description: The same as data.
  returned: success
  type: dict
  contains:
    schema:
      description: The name of this form.
      type: str
      returned: success
      sample: gb10.cluster/doctor/2
    time:
      description: When the report was made.
      type: str
      returned: success
      sample: "2026-11-22T20:15:00Z"
    group:
      description: The serving group's name.
      type: str
      returned: success
      sample: pair1
    hosts:
      description: Its hosts, the head first.
      type: list
      elements: str
      returned: success
      sample: [spark-1, spark-2]
    state:
      description: The state of the group, as C(status.yml) judges it.
      type: str
      returned: success
      sample: down
    sentence:
      description: The same as a sentence.
      type: str
      returned: success
      sample: "pair1 does not serve: rank 1 on spark-2: no container exists."
    counts:
      description: The number of findings for each severity.
      type: dict
      returned: success
      sample: {error: 1, warning: 2, info: 0}
    findings:
      description: The findings, the worst first.
      type: list
      elements: dict
      returned: success
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
      returned: success
      sample: {power: "spark-1: GPU 45 °C, 11 W"}
    not_checked:
      description: What was not checked, with the reason.
      type: list
      elements: dict
      returned: success
      sample: [{area: drift, hosts: [spark-1], reason: no release is current}]
"""
