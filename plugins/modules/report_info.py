#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what a node has recorded of its serving group over time."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report_info
short_description: Read what a node has recorded of its serving group over time
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Reads the receipts of the kept releases, the last verdict, the events and the memory samples of the agent, and the last bandwidth test of the rails.
  - Works without an agent. What is missing is empty.
options:
  group:
    description: The serving group's name.
    type: str
    required: true
  directory:
    description: Where the role keeps the group's files on the node.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
  events:
    description: How many events to return at most, the newest ones.
    type: int
    default: 200
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Read the records of this rank
  gb10.cluster.report_info:
    group: pair1
  become: true
  register: records
"""

RETURN = r"""
read_at:
  description: The time on the node.
  type: str
  returned: always
  sample: "2026-11-25T08:00:00Z"
receipts:
  description: The receipts of the kept releases and of the last verdict, without log facts and checks.
  type: list
  elements: dict
  returned: always
  sample: [{release: 4f0c61d2a9be, passed: true, seconds: 412.0, ranks: [{rank: 0, host: spark-1, stages: [[load, 12.5]]}]}]
events:
  description: The newest events of the agent, the oldest first. Only the head has them.
  type: list
  elements: dict
  returned: always
  sample: [{n: 12, at: "2026-11-25T07:50:01Z", kind: verdict, text: "pair1 serves: every criterion holds.", seconds: 412.0}]
memory:
  description:
    - The samples of the agent as C(seconds MemFree MemAvailable SwapFree) in MiB, joined by C(;). The seconds count from the epoch.
    - C(recent) has the last half hour in steps of 5 s, C(day) the last day in minutes. C(source) is C(agent), C(file) if the agent does not
      answer, or empty if there is none.
  type: dict
  returned: always
  sample: {recent: "1795593600 1024 9216 16384", day: "1795593600 1024 9216 16384", source: agent}
bandwidth:
  description: The last bandwidth test that passed, as M(gb10.cluster.roce_bandwidth) recorded it; empty if this node has none.
  type: dict
  returned: always
  sample: {class: healthy, when: "2026-11-24T10:00:00Z", rails: [{hca: rocep1s0f0, server: 192.168.100.10, gbps: 92.4}]}
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._agent import history
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import STATE
from ansible_collections.gb10.cluster.plugins.module_utils._agent.store import Store
from ansible_collections.gb10.cluster.plugins.module_utils._common import utc
from ansible_collections.gb10.cluster.plugins.module_utils._release.brief import brief
from ansible_collections.gb10.cluster.plugins.module_utils._release.node import read_json, releases_in

BANDWIDTH = "/var/lib/gb10-cluster/roce/bandwidth.json"
MOST_RECEIPTS = 20


def receipts_of(folder: str, outcome: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the receipts of the kept releases, and the last verdict's if no release has it."""
    kept = [read_json(os.path.join(folder, "releases", each["id"], "receipt.json")) for each in releases_in(folder)[:MOST_RECEIPTS]]
    last = (outcome.get("verdict") or {}).get("receipt") if isinstance(outcome.get("verdict"), dict) else None
    found = [*kept, last] if isinstance(last, dict) and last not in kept else kept
    return [brief(each) for each in found if each]


def main() -> None:
    """Read, and return what is there."""
    module = AnsibleModule(
        argument_spec={
            "group": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "events": {"type": "int", "default": 200},
        },
        supports_check_mode=True,
    )
    folder = os.path.join(module.params["directory"], module.params["group"])
    store = Store(os.path.join(folder, STATE))
    count = max(0, module.params["events"])
    module.exit_json(
        changed=False,
        read_at=utc.stamp(),
        receipts=receipts_of(folder, store.load("outcome.json")),
        events=store.events()[-count:] if count else [],
        memory=history.memory_of(os.path.join(folder, STATE)),
        bandwidth=read_json(BANDWIDTH),
    )


if __name__ == "__main__":
    main()
