#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin validate_rank."""

from __future__ import annotations

DOCUMENTATION = r"""
module: validate_rank
short_description: Check the rendered files of one rank without its node
description:
  - Checks the ports, estimates the KV pool, checks the file with Docker Compose if the controller has it, and writes the Compose
    file and the environment. The playbook C(validate.yml) runs it.
  - This is an action plugin. It runs on the controller and contacts no host.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  group:
    description: The host's serving group, from the P(gb10.cluster.serving_group#lookup) lookup.
    type: dict
    required: true
  profile:
    description: The resolved profile, with the inventory's own arguments and criteria.
    type: dict
    required: true
  compose:
    description: The rendered Compose file.
    type: dict
    required: true
  env:
    description: The rendered environment.
    type: dict
    required: true
  secret_names:
    description: The names of the secrets, which are not in these files.
    type: list
    elements: str
    default: []
  memory:
    description: The assumed C(total_kib), C(available_kib) and C(free_kib) of each node.
    type: dict
    required: true
  plan:
    description: Whether a refused estimate fails the task (V(enforce)) or is only printed (V(report)). V(off) makes none.
    type: str
    choices: [enforce, report, "off"]
    default: enforce
  allow_unsafe_memory:
    description: Make settings that owners report to freeze nodes a warning.
    type: bool
    default: false
  ssh_port:
    description: The port of the node's SSH server.
    type: int
    default: 22
  dest:
    description: A folder on the controller to write to. Without it, nothing is written.
    type: path
  show:
    description: Whether to return the text of the Compose file.
    type: bool
    default: false
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
  - gb10.cluster.internal
"""

EXAMPLES = r"""
- name: Check the rendered files of this host
  gb10.cluster.validate_rank:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    profile: "{{ lookup('gb10.cluster.profile') }}"
    compose: "{{ rendered.compose }}"
    env: "{{ rendered.env }}"
    memory: {total_kib: 127601213, available_kib: 119537664, free_kib: 118489088}
  vars:
    place: {rank: 0, size: 2, master_addr: 192.168.200.11, fabric_ip: 192.168.200.11}
    rendered: "{{ lookup('gb10.cluster.profile') | gb10.cluster.render_rank(place, {'model_store': '/srv/models'}) }}"
"""

RETURN = r"""
checked:
  description:
    - C(rank), C(host), C(image), the names of C(secrets), C(compose_check), C(pool) (the estimate, C(expected_tokens), C(needed_tokens) and C(text)),
      and C(path), the folder of the written files.
    - C(compose) is the text of the Compose file if O(show) is true.
  type: dict
  returned: success
  sample: {rank: 0, host: spark-1, secrets: [VLLM_API_KEY], compose_check: passed, path: /tmp/rendered/pair1}
"""
