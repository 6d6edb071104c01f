#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What doctor.yml reads of one node that no other module reads."""

from __future__ import annotations

DOCUMENTATION = r"""
module: doctor_info
short_description: Read kernel logs, power, temperatures and the newest kept boot log of a node
description:
  - Searches the kernel logs of this boot and of the one before for faults, and reports whether the earlier boot ended with a shutdown.
  - Reads power, clocks and temperatures of the GPU, and the thermal zones of the node.
  - Reads the boot log in the newest evidence that the agent has kept.
  - Changes nothing. Each command ends after 15 seconds.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  group:
    description: The serving group's name.
    type: str
    required: true
  directory:
    description: Where the role P(gb10.cluster.vllm_tp2#role) keeps the group's files on the node.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
notes:
  - Run it as root (C(become=true)), else the kernel log and the evidence cannot be read.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Read the kernel logs of a node
  gb10.cluster.doctor_info:
    group: pair1
  become: true
  register: node
"""

RETURN = r"""
kernel:
  description:
    - Faults in the kernel logs. C(events) has one entry for each kind and boot, V(0) for this boot and V(-1) for the one before.
    - C(skipped) has for each log that was not read the reason. C(unclean) is the time of the last message of the previous boot if no shutdown
      ended it, otherwise empty.
  returned: always
  type: dict
  sample:
    events:
      - {id: oom_killed, boot: -1, count: 1, first: "2026-11-22T20:15:00+00:00", last: "2026-11-22T20:15:00+00:00", line: "Out of memory: Killed process 1"}
    skipped: {}
    unclean: ""
gpus:
  description: Temperature, power, utilization, SM clock and reasons of a lower clock for each GPU; null for a figure that the driver does not report.
  returned: always
  type: list
  elements: dict
  sample: [{temperature_c: 45.0, power_w: 11.2, utilization: 0.0, sm_mhz: 208.0, max_mhz: 3003.0, reasons: 1}]
gpu_error:
  description: Why there are no figures of a GPU; empty if there are.
  returned: always
  type: str
  sample: nvidia-smi is not installed
zones:
  description: The thermal zones of the kernel, in °C.
  returned: always
  type: list
  elements: dict
  sample: [{name: acpitz, temperature_c: 52.1, critical_c: 105.0}]
boot:
  description:
    - State, stage and failure of the boot log in the newest evidence, as M(gb10.cluster.vllm_boot_log_info) returns them. C(label) is empty without any.
  returned: always
  type: dict
  sample: {label: boot-7, state: failed, stage: weights, failure: {class: weights_missing, line: does not appear to have a file named config.json}}
"""

import os
from collections.abc import Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import EVIDENCE
from ansible_collections.gb10.cluster.plugins.module_utils._doctor import node
from ansible_collections.gb10.cluster.plugins.module_utils._host.command import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node


def main() -> None:
    """Read and return."""
    module = AnsibleModule(
        argument_spec={"group": {"type": "str", "required": True}, "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"}},
        supports_check_mode=True,
    )
    evidence = os.path.join(module.params["directory"], module.params["group"], EVIDENCE)

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        return run_command(argv, timeout=node.SECONDS)

    module.exit_json(changed=False, **node.gather(Node("/", run), run_command, evidence))


if __name__ == "__main__":
    main()
