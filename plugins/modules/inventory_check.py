#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin inventory_check."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inventory_check
short_description: Check the inventory before any host is contacted
description:
  - Reads the inventory and the extra variables on the controller. No host is contacted.
  - Fails with B(all) faults of the inventory, one sentence each, with the file, the line and the key to change.
  - Finds a missing group C(gb10), a serving group without a worker, two heads, a host in two serving groups or in none, duplicate management or
    fabric addresses, bad, overlapping or too small fabric networks, a fabric network that contains a management address, an unknown or broken
    profile, addresses of the example, misspelt variables, values of a wrong type, templates that fail,
    and a C(--limit) to a part of a serving group.
  - The variables are those of C(meta/argument_specs.yml) of the collection's roles and the cluster variables in C(docs/inventory.md).
    List other variables with their prefixes in C(gb10_foreign_variables).
  - Values of secrets are never shown. Templates that need facts of a host are not checked.
  - This is an action plugin. It runs once for all hosts of its play; C(playbooks/inventory.yml) is the play that every playbook imports first.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  examples:
    description:
      - Whether an example address (C(192.0.2.0/24), C(198.51.100.0/24), C(203.0.113.0/24)) is a fault or a warning.
      - V(warn) is for a check of the inventory alone.
    type: str
    choices: [fail, warn]
    default: fail
  group_stages:
    description:
      - Tags of the stages of this run that need all hosts of a serving group.
      - If C(--tags) and C(--skip-tags) select one of them, a run with a part of a serving group (C(--limit)) fails here.
      - If it has C(image), the folder of C(image.build) with its Dockerfile and the mods on the controller must exist.
        C(image_build_context) replaces the folder.
    type: list
    elements: str
    default: []
  extra_only:
    description: Check only the extra variables (C(-e)), for a playbook that needs no inventory.
    type: bool
    default: false
extends_documentation_fragment:
  - gb10.cluster.attributes.info
  - gb10.cluster.internal
seealso:
  - plugin: gb10.cluster.serving_group
    plugin_type: lookup
"""

EXAMPLES = r"""
- name: Inventory
  hosts: localhost
  gather_facts: false
  tags: [always]
  tasks:
    - name: Check the inventory
      gb10.cluster.inventory_check:
"""

RETURN = r"""
msg:
  description: All faults as a numbered list, or that there are none.
  type: str
  returned: always
  sample: |-
    The inventory has 1 fault; no host was touched.
    1. inventories/mine/group_vars/gb10.yml:12: vllm_tp2_contxt: is not a variable of the role vllm_tp2; did you mean vllm_tp2_context?
faults:
  description: The number of faults.
  type: int
  returned: always
  sample: 1
warned:
  description: Faults that are warnings with O(examples=warn), and unknown variables that can be those of another role.
  type: list
  elements: str
  returned: always
  sample: []
"""
