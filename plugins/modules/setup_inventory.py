#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin setup_inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: setup_inventory
short_description: Propose and write the inventory of two machines
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Shows what M(gb10.cluster.preflight_info) and M(gb10.cluster.roce_info) read on two machines, asks for the profile and, if other tools
    configured the rails, what to do with that, and writes C(hosts.yml) and C(group_vars/gb10.yml) after it has shown them.
  - An inventory that is there is edited. Only values that were asked for or given change, all other lines stay. The change is shown as a diff.
  - This is an action plugin. It runs on the controller. The playbook C(setup.yml) runs it.
options:
  inventory:
    description: The folder of the inventory.
    type: path
    required: true
  machines:
    description: The machines that M(gb10.cluster.setup_access) returned.
    type: list
    elements: dict
    required: true
  nodes:
    description: What M(gb10.cluster.preflight_info) returned on each machine.
    type: list
    elements: dict
    required: true
  fabrics:
    description: What M(gb10.cluster.roce_info) returned on each machine.
    type: list
    elements: dict
    required: true
  profiles:
    description: All profiles, as P(gb10.cluster.profile#lookup) returns them for the term V(*).
    type: dict
    required: true
  profile:
    description: The profile, C(setup_profile).
    type: raw
  model_store:
    description: The folder of the model weights that RV(gb10.cluster.setup_access#module:model_store) names.
    type: str
    required: true
  foreign_policy:
    description: What to do with network configuration of other tools on the rails, C(setup_foreign_policy).
    type: raw
  write:
    description: Whether to write the files without a question, C(setup_write).
    type: raw
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Write the inventory
  gb10.cluster.setup_inventory:
    inventory: inventories/mine
    machines: "{{ access.machines }}"
    nodes: "{{ access.machines | map(attribute='name') | map('extract', hostvars, 'node') | list }}"
    fabrics: "{{ access.machines | map(attribute='name') | map('extract', hostvars, 'fabric') | list }}"
    profiles: "{{ lookup('gb10.cluster.profile', '*') }}"
"""

RETURN = r"""
written:
  description: The files that were written; empty if the inventory is up to date.
  returned: success
  type: list
  elements: str
  sample: [inventories/mine/hosts.yml, inventories/mine/group_vars/gb10.yml]
answers:
  description: The variables that were asked for or given.
  returned: success
  type: dict
  sample: {gb10_profile: b12x-fp8-1m, gb10_model_store: /srv/models}
"""
