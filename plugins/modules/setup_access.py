#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin setup_access."""

from __future__ import annotations

DOCUMENTATION = r"""
module: setup_access
short_description: Ask for two machines and make them reachable over SSH
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Asks for the addresses and the login of two machines. An answer that is given as an option, or that the inventory has, is not asked for.
  - Shows the fingerprint of an unknown SSH host key, and stores the key in the user's known_hosts after it is confirmed. A changed key is refused.
  - Makes an SSH key if the user has none, and installs it with the password of the login. Checks sudo.
  - A password is asked for on the terminal, or is that of C(--ask-pass) and C(--ask-become-pass). It is not stored.
  - This is an action plugin. It runs on the controller. The playbook C(setup.yml) runs it.
options:
  inventory:
    description: The folder of the inventory. Machines and login that it has are used without a question.
    type: path
    required: true
  head:
    description: Name or address of the first machine, C(setup_head). C(USER@ADDRESS) sets its login.
    type: raw
  worker:
    description: Name or address of the second machine, C(setup_worker). C(USER@ADDRESS) sets its login.
    type: raw
  user:
    description: Login on both machines, C(setup_user).
    type: raw
  port:
    description: Port of SSH on both machines, C(setup_port). The default is that of the inventory or of C(~/.ssh/config).
    type: raw
  key:
    description: Private SSH key of both machines, C(setup_key). The default is that of the inventory or of C(~/.ssh/config).
    type: raw
  model_store:
    description: The folder of the model weights, C(setup_model_store).
    type: raw
  accept_host_keys:
    description: Fingerprints of host keys that are stored without a question, as a list or separated by commas, C(setup_accept_host_keys).
    type: raw
  make_key:
    description: Whether to make an SSH key if the user has none, C(setup_make_key).
    type: raw
  local:
    description: Whether a machine that is this computer is reached without SSH, C(setup_local).
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
- name: Reach two machines
  gb10.cluster.setup_access:
    inventory: inventories/mine
    head: spark-1.local
    worker: spark-2.local
    user: nvidia
  register: access
"""

RETURN = r"""
machines:
  description:
    - The two machines, the head first. C(asks) is whether sudo asks for a password, C(same_password) whether it is the same on both.
  returned: success
  type: list
  elements: dict
  sample: [{name: spark-1, address: 192.168.1.11, user: nvidia, port: "", key: "", local: false, asks: false, same_password: true}]
model_store:
  description: The folder of the model weights.
  returned: success
  type: str
  sample: /srv/models
passwords:
  description: The passwords of sudo for the tasks of this run, empty where it asks for none. A result with a password is hidden from all callbacks.
  returned: success
  type: list
  elements: str
  sample: ["", ""]
"""
