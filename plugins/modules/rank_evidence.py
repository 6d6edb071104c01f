#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of one rank, as one text without secrets."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_evidence
short_description: Collect what one rank's node shows of a serving group, without secrets
description:
  - Collects the containers' inspection and log tails, processes, memory, addresses, RDMA links and the kernel's last messages into one text.
  - Collects settings, versions and records of the node, the GID table and the driver of each rail, and, as figures of this moment, GPU, counters of
    the rails, events of the Docker Engine in the last hour, the last kernel messages of the previous boot, and the memory over the last half
    hour and the last day, as the agent samples it (at most 400 and 1440 samples).
  - Values of the releases' env files, and texts with the shape of a key or token, are masked.
  - Of each log the end is collected, at most O(tail) records and 4 MiB. The whole collection ends after O(timeout); the text names what is missing.
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
  tail:
    description: How many of the last lines of each log are collected. A line longer than 16 KiB counts once for each 16 KiB.
    type: int
    default: 2000
  timeout:
    description: How long the whole collection may take, in seconds. What is not collected by then is named in the text.
    type: float
    default: 30.0
  src:
    description: Evidence that the agent has kept, a file on the node. It is copied to O(dest), and nothing is collected.
    type: path
  dest:
    description:
      - A file on the controller that the text is written to, with mode 0600. It is returned when left out.
      - The figures of this moment are in a second file, which ends in C(.figures.txt), so that a comparison of two files shows what has changed.
    type: path
  docker_socket:
    description: The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Collect evidence
  gb10.cluster.rank_evidence:
    group: pair1
  register: evidence
"""

RETURN = r"""
path:
  description: Where the evidence was written on the controller.
  type: str
  returned: when O(dest) is given
  sample: /home/me/evidence/pair1-4f0c61d2a9be/rank0-spark-1.txt
text:
  description: The evidence, one section after another.
  type: str
  returned: without O(dest)
  sample: "== memory\nMemTotal: 127602688 kB\n"
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._agent import evidence, history
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import STATE
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import runner


def main() -> None:
    """Collect, mask and return."""
    module = AnsibleModule(
        argument_spec={
            "group": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "tail": {"type": "int", "default": 2000},
            "timeout": {"type": "float", "default": 30.0},
            "src": {"type": "path"},
            "dest": {"type": "path"},
            "docker_socket": {"type": "path", "default": client.DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    params = module.params

    folder = os.path.join(params["directory"], params["group"])
    memory = history.memory_of(os.path.join(folder, STATE))
    options = {"tail": params["tail"], "seconds": params["timeout"], "docker_socket": params["docker_socket"]}
    text = evidence.collect(params["group"], folder, runner(module), memory, **options)
    module.exit_json(changed=False, text=text)


if __name__ == "__main__":
    main()
