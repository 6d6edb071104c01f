#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inventory
short_description: Check the inventory before any host is contacted, or write that of two machines
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
  - With O(pair), it writes the inventory of two machines in two steps, and checks nothing. The playbook C(setup.yml) runs them.
  - Without O(pair.machines), it asks for the addresses and the login of two machines and for the profile, and makes the login by key work. OpenSSH asks
    for an unknown host key and for the password of the login, C(ssh-copy-id) installs the key. A changed host key is refused.
  - With O(pair.machines), it shows what the modules M(gb10.cluster.preflight_info) and M(gb10.cluster.roce_info) read, asks what to do if other
    tools configured the rails, and writes C(hosts.yml) and C(group_vars/gb10.yml) after it has shown them.
  - What C(-e) gives is not asked for. A file with other content is replaced as a whole, after a question, and kept with C(~) at the end of its name.
  - A password is asked for on the terminal, that of sudo can come from C(--ask-become-pass). It is not stored.
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
  pair:
    description: Ask for two machines, make them reachable over SSH, and write their inventory.
    type: dict
    suboptions:
      folder:
        description: The folder of the inventory.
        type: path
        required: true
      machines:
        description: The machines that this module returned without this option.
        type: list
        elements: dict
      variables:
        description: The variables of the group that this module returned without O(pair.machines).
        type: dict
      nodes:
        description: What M(gb10.cluster.preflight_info) returned on each machine.
        type: list
        elements: dict
      fabrics:
        description: What M(gb10.cluster.roce_info) returned on each machine.
        type: list
        elements: dict
      profiles:
        description: All profiles, as P(gb10.cluster.profile#lookup) returns them for the term V(*). Needed without O(pair.machines).
        type: dict
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.internal
attributes:
  check_mode:
    support: partial
    details:
      - With O(pair), it fails in check mode.
  diff_mode:
    support: none
  idempotent:
    support: full
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
      gb10.cluster.inventory:

- name: Setup
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Reach two machines
      gb10.cluster.inventory:
        pair:
          folder: inventories/mine
          profiles: "{{ lookup('gb10.cluster.profile', '*') }}"
      register: access
"""

RETURN = r"""
msg:
  description: All faults as a numbered list, or that there are none.
  type: str
  returned: without O(pair)
  sample: |-
    The inventory has 1 fault; no host was touched.
    1. inventories/mine/group_vars/gb10.yml:12: vllm_tp2_contxt: is not a variable of the role vllm_tp2; did you mean vllm_tp2_context?
faults:
  description: The number of faults.
  type: int
  returned: without O(pair)
  sample: 1
warned:
  description: Faults that are warnings with O(examples=warn), and unknown variables that can be those of another role.
  type: list
  elements: str
  returned: without O(pair)
  sample: []
machines:
  description: The two machines, the head first. C(asks) is whether sudo asks for a password.
  returned: with O(pair) and without O(pair.machines)
  type: list
  elements: dict
  sample: [{name: spark-1, address: 192.168.1.11, user: nvidia, machine_id: "", asks: false}]
variables:
  description: The variables of the group that follow from the answers.
  returned: with O(pair) and without O(pair.machines)
  type: dict
  sample: {ansible_user: nvidia, gb10_profile: b12x-fp8-1m, gb10_model_store: /srv/models}
password:
  description: The password of sudo for the tasks of this run, empty if none is needed. A result with a password is hidden from all callbacks.
  returned: with O(pair) and without O(pair.machines)
  type: str
  sample: ""
written:
  description: The files that were written; empty if the inventory is up to date.
  returned: with O(pair.machines)
  type: list
  elements: str
  sample: [inventories/mine/hosts.yml, inventories/mine/group_vars/gb10.yml]
"""
