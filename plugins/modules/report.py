#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin report."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write the report of a serving group as one HTML file
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Writes one HTML file on the controller, without scripts and without references to other files or hosts.
  - Shows the boot timeline, the memory during the boot and since, KV pool and concurrency over the releases, measured and published speed, the rails,
    the verdicts and the last events of the agent. A sentence stands for a section without data.
  - Reads the receipts and the results of C(bench.yml) on the controller, and what M(gb10.cluster.roce_info) and M(gb10.cluster.vllm_rank_info)
    (with C(records)) returned on each rank. A rank that did not answer is shown as the last report read it, with the time.
  - This is an action plugin. It runs on the controller, also in check mode, and changes nothing on a node.
requirements:
  - pygal on the controller
options:
  group:
    description: The serving group, as P(gb10.cluster.serving_group#lookup) returns it.
    type: dict
    required: true
  status:
    description: The state of the group, as C(gb10 status --json) prints it.
    type: dict
    default: {}
  registers:
    description:
      - The variables in which the results of each rank were registered, C(fabric) of M(gb10.cluster.roce_info) and C(info) of M(gb10.cluster.vllm_rank_info).
    type: dict
    required: true
  receipts:
    description: The folder of the gate's receipts on the controller.
    type: path
    required: true
  bench:
    description: The folder of the results of C(bench.yml) on the controller.
    type: path
    required: true
  dest:
    description: The folder for the file C(GROUP.html). If it is empty, the file is C(report.html) in the group's folder of O(receipts).
    type: path
    default: ""
  profiles:
    description: All resolved profiles by name, for the published figures of each release.
    type: dict
    default: {}
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
  - gb10.cluster.internal
"""

EXAMPLES = r"""
- name: Write the report
  gb10.cluster.report:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    registers: {records: records, fabric: fabric, info: rank}
    receipts: receipts
    bench: bench
"""

RETURN = r"""
path:
  description: The file on the controller.
  type: str
  returned: always
  sample: receipts/pair1/report.html
figures:
  description: The number of figures of each section.
  type: dict
  returned: always
  sample: {boot: 1, boot-memory: 2, memory: 2, pool: 2, speed: 1, rails: 1, verdicts: 0, events: 0}
lines:
  description: The state, the path and the notes for people, to be printed with M(gb10.cluster.show).
  type: list
  elements: str
  returned: always
  sample: ["pair1 serves: a completion came back within 0.4 s, release 9b1e61d2a9be.", "pair1: report receipts/pair1/report.html"]
notes:
  description: What could not be read, one sentence each.
  type: list
  elements: str
  returned: always
  sample: ["spark-2 was not read: it is not in this run. What is shown of it was read at 2026-11-25T08:00:00Z."]
"""
