#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles docker, gpu, readahead and sysctl set on a node: files, values of the kernel, units."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_settings
short_description: Apply the settings of one host role to a node, read them back, and undo them
description:
  - The module of the roles C(docker), C(gpu), C(readahead) and C(sysctl). Each plans what a node needs, and this module applies it in the same way.
  - Files have a marker; a file of that name without it is not replaced. Live values and units are recorded in C(/var/lib/gb10-cluster) before their
    first change. O(state=absent) removes the files and restores what is recorded.
  - What is set is read back from the live system.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Live values, units and commands appear as pseudo files.
  idempotent:
    support: full
options:
  role:
    description:
      - The role whose settings these are.
    type: str
    choices: [docker, gpu, readahead, sysctl]
    required: true
  state:
    description:
      - V(present) applies the settings, V(absent) restores what was there before the first run.
    type: str
    choices: [present, absent]
    default: present
  settings:
    description:
      - The variables of the role without its prefix, all of them, in their types. The role documents them.
    type: dict
    default: {}
  look:
    description:
      - Only read, as in check mode, and report in RV(changes) what would change. The task is not changed and prints nothing.
    type: bool
    default: false
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Restore the earlier settings of the GPU
  gb10.cluster.host_settings:
    role: gpu
    state: absent
  become: true
"""

RETURN = r"""
changes:
  description: The changes, also in check mode.
  returned: always
  type: list
  elements: str
  sample: ["vm.min_free_kbytes: 45167 -> 3145728"]
shown:
  description: What the user has to read, such as what the settings cost, or why nothing was changed. The task prints it.
  returned: always
  type: list
  elements: str
  sample:
    - >-
      vm.min_free_kbytes 3145728 (for a 121 GiB node) costs 4.11 GiB of MemAvailable; vLLM starts up to gpu_memory_utilization 0.89; swap is off
packages:
  description: Packages that are missing. Install them and call the module again.
  returned: with the roles docker and sysctl
  type: list
  elements: str
  sample: []
"""

from collections.abc import Mapping
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, run_module
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_setup import Setup
from ansible_collections.gb10.cluster.plugins.module_utils._node.gpu import GpuClocks
from ansible_collections.gb10.cluster.plugins.module_utils._node.readahead import Readahead
from ansible_collections.gb10.cluster.plugins.module_utils._node.tuning import MemoryPolicy

ROLES: dict[str, Callable[[Editor, str, Mapping[str, Any]], dict[str, Any]]] = {
    "docker": lambda edit, state, settings: Setup(edit, state, settings).run(),
    "gpu": lambda edit, state, settings: GpuClocks(edit, state, settings).run(),
    "readahead": lambda edit, state, settings: Readahead(edit).run(state, settings),
    "sysctl": lambda edit, state, settings: MemoryPolicy(edit, state, settings).run(),
}


def main() -> None:
    """Read, plan, apply, read back, report."""
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "choices": sorted(ROLES), "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "settings": {"type": "dict", "default": {}},
            "look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    run_module(module, lambda edit: ROLES[params["role"]](edit, params["state"], params["settings"]), DockerError)


if __name__ == "__main__":
    main()
