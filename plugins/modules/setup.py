#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin setup."""

from __future__ import annotations

DOCUMENTATION = r"""
module: setup
short_description: Make two machines reachable over SSH, and write their inventory
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Without O(machines), it asks for the addresses and the login of two machines and for the profile, and makes the login by key work. OpenSSH asks for an
    unknown host key and for the password of the login, C(ssh-copy-id) installs the key. A changed host key is refused.
  - With O(machines), it shows what the modules M(gb10.cluster.preflight_info) and M(gb10.cluster.roce_info) read, asks what to do if other
    tools configured the rails, and writes C(hosts.yml) and C(group_vars/gb10.yml) after it has shown them.
  - What C(-e) gives is not asked for. A file with other content is replaced as a whole, after a question, and kept with C(~) at the end of its name.
  - A password is asked for on the terminal, that of sudo can come from C(--ask-become-pass). It is not stored.
  - This is an action plugin. It runs on the controller. The playbook C(setup.yml) runs it.
options:
  inventory:
    description: The folder of the inventory.
    type: path
    required: true
  machines:
    description: The machines that this module returned without this option.
    type: list
    elements: dict
  variables:
    description: The variables of the group that this module returned without O(machines).
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
    description: All profiles, as P(gb10.cluster.profile#lookup) returns them for the term V(*). Needed without O(machines).
    type: dict
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.internal
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Reach two machines
  gb10.cluster.setup:
    inventory: inventories/mine
    profiles: "{{ lookup('gb10.cluster.profile', '*') }}"
  register: access
"""

RETURN = r"""
machines:
  description: The two machines, the head first. C(asks) is whether sudo asks for a password.
  returned: without O(machines)
  type: list
  elements: dict
  sample: [{name: spark-1, address: 192.168.1.11, user: nvidia, machine_id: "", asks: false}]
variables:
  description: The variables of the group that follow from the answers.
  returned: without O(machines)
  type: dict
  sample: {ansible_user: nvidia, gb10_profile: b12x-fp8-1m, gb10_model_store: /srv/models}
password:
  description: The password of sudo for the tasks of this run, empty if none is needed. A result with a password is hidden from all callbacks.
  returned: without O(machines)
  type: str
  sample: ""
written:
  description: The files that were written; empty if the inventory is up to date.
  returned: with O(machines)
  type: list
  elements: str
  sample: [inventories/mine/hosts.yml, inventories/mine/group_vars/gb10.yml]
"""
