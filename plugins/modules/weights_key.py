#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An SSH key for one copy, made where it is used and removed with it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_key
short_description: Make an SSH key for one copy
version_added: 0.1.0
description:
  - Makes an ed25519 key below C(/run), which never leaves the node, for the tunnel of one copy, and returns its public half.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode nothing is made or removed.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each call with O(state=present) makes a new key.
options:
  name:
    description:
      - Names the copy.
    type: str
    required: true
  state:
    description:
      - V(present) makes, V(absent) removes.
    type: str
    choices: [present, absent]
    default: present
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Make a key for the copy
  gb10.cluster.weights_key:
    name: weights-pair1
  become: true
  register: key
"""

RETURN = r"""
public_key:
  description: The public half; empty with O(state=absent).
  returned: success
  type: str
  sample: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI... gb10-copy-weights-pair1
"""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.unit_job import RUN, key_folder


def main() -> None:
    """Make or remove."""
    module = AnsibleModule(
        argument_spec={"name": {"type": "str", "required": True}, "state": {"type": "str", "choices": ["present", "absent"], "default": "present"}},
        supports_check_mode=True,
    )
    folder, present = key_folder(module.params["name"]), module.params["state"] == "present"
    there = os.path.isdir(folder)
    if module.check_mode:
        module.exit_json(changed=present or there, public_key="")
    shutil.rmtree(folder, ignore_errors=True)
    if not present:
        if os.path.isdir(RUN) and not os.listdir(RUN):
            os.rmdir(RUN)
        module.exit_json(changed=there, public_key="")
    keygen = module.get_bin_path("ssh-keygen") or ""
    if not keygen or not module.get_bin_path("ssh"):
        module.fail_json(msg="ssh and ssh-keygen are not on this node, and the ssh transport needs them: install openssh-client, or set the transport to rail")
    try:
        os.makedirs(RUN, mode=0o755, exist_ok=True)
        os.mkdir(folder, 0o700)
        where = os.path.join(folder, "id")
        rc, _out, err = module.run_command([keygen, "-q", "-t", "ed25519", "-N", "", "-C", f"gb10-copy-{module.params['name']}", "-f", where])
        if rc != 0:
            module.fail_json(msg=f"ssh-keygen made no key in {folder} ({err.strip()}): run with become, and look for a full /run")
        with open(f"{where}.pub", encoding="utf-8") as handle:
            public = handle.read().strip()
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be written ({error.strerror}): run with become")
    module.exit_json(changed=True, public_key=public)


if __name__ == "__main__":
    main()
