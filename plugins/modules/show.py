#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin show."""

from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Print text for people with any callback, or JSON; the summary of a run; a report as one HTML file
description:
  - Prints lines as they are, with any stdout callback and any format of results. Control characters are written out.
  - With C(-e output=json) it prints O(data) instead, one line of JSON for each document.
  - With O(summary), it prints for each serving group its endpoint, model, KV pool and concurrency, what changed, the time of each role, the receipt
    and a curl line. A group with a host that failed or was unreachable is not reported as serving. Changed tasks and times are those of the callback
    C(gb10_tally), which Ansible loads for the playbooks of the collection.
  - With O(report), it writes one HTML file on the controller, without scripts and without references to other files or hosts, and prints where it is.
  - This is an action plugin of the playbooks of the collection. It runs on the controller and contacts no host.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  lines:
    description: The lines. Without them, the text of O(data), if that has a schema with a table.
    type: list
    elements: str
  data:
    description: The document, or a list of documents. Without it, the document has O(lines).
    type: raw
  summary:
    description: Print the summary of the run, from the results that the roles exported.
    type: bool
    default: false
  report:
    description:
      - Write the boot timeline, the memory during the boot and since, KV pool and concurrency over the releases, measured and published speed, the
        rails, the verdicts and the last events of the agent. A sentence stands for a section without data.
      - It has the receipts and the results of C(bench.yml) on the controller, and what M(gb10.cluster.roce_info) and M(gb10.cluster.vllm_rank_info)
        (with C(records)) returned on each rank. A rank that did not answer is shown as the last report read it, with the time.
    type: dict
    suboptions:
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
          - The variables in which the results of each rank were registered, C(fabric) of M(gb10.cluster.roce_info) and C(info) of
            M(gb10.cluster.vllm_rank_info).
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
        description: The folder for the file C(GROUP.html). If it is empty, the file is C(report.html) in the group's folder of O(report.receipts).
        type: path
        default: ""
      profiles:
        description: All resolved profiles by name, for the published figures of each release.
        type: dict
        default: {}
requirements:
  - pygal on the controller, for O(report)
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
  - gb10.cluster.internal
"""

EXAMPLES = r"""
- name: Print two lines
  gb10.cluster.show:
    lines:
      - "pair1 serves."
      - "Endpoint: http://spark-1:8000/v1"
    data: {group: pair1, serves: true}

- name: Sum up
  gb10.cluster.show:
    summary: true
  run_once: true

- name: Write the report
  gb10.cluster.show:
    report:
      group: "{{ lookup('gb10.cluster.serving_group') }}"
      registers: {fabric: fabric, info: rank}
      receipts: receipts
      bench: bench
"""

RETURN = r"""
lines:
  description: The lines.
  type: list
  elements: str
  returned: success
  sample: [pair1 serves.]
data:
  description: The document or documents. For O(report) the path, the number of figures of each section, and notes on what could not be read.
  type: raw
  returned: success
  sample: {schema: gb10.cluster/report/1, group: pair1, path: receipts/pair1/report.html, figures: {boot: 1, pool: 2}, notes: []}
summary:
  description: Whether the lines are the summary of the run.
  type: bool
  returned: success
  sample: false
"""
