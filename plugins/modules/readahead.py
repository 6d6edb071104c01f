#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read-ahead of the disks of the model store, and the plan of the load phase."""

from __future__ import annotations

DOCUMENTATION = r"""
module: readahead
short_description: Set the read-ahead of disks, and store the plan of the load phase
description:
  - While weights load, read-ahead and the page cache take memory that the GPU driver needs at the same time. The load phase has a small read-ahead
    and keeps MemFree above a floor by dropping the page cache. The steady phase has the usual read-ahead.
  - Writes a udev rule and the live values of the steady phase, and stores the plan by which the agent starts and ends the load phase.
  - In a container, where block devices and the page cache belong to the host, it changes nothing and reports that in RV(shown).
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Live values and units appear as pseudo files.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) applies the settings, V(absent) restores the earlier values.
    type: str
    choices: [present, absent]
    default: present
  classes:
    description:
      - Device classes, with all whole disks of each; V(nvme), V(sd), V(virtio), V(md), V(dm).
    type: list
    elements: str
    default: [nvme]
  mounts:
    description:
      - Paths, such as the model store. All devices of their file systems are set, through device mapper and md down to the disks.
    type: list
    elements: str
    default: []
  devices:
    description:
      - Further devices by kernel name, such as V(sda).
    type: list
    elements: str
    default: []
  load_kb:
    description:
      - Read-ahead in KiB while weights load.
    type: int
    default: 8
  steady_kb:
    description:
      - Read-ahead in KiB otherwise.
    type: int
    default: 128
  restore_after:
    description:
      - Seconds after which the load phase ends automatically. The agent can ask for more.
    type: int
    default: 2700
  guard:
    description:
      - Whether the load phase runs the page-cache guard.
    type: bool
    default: true
  guard_floor_gib:
    description:
      - The guard drops the page cache when MemFree falls below this, in GiB.
    type: float
    default: 8.0
  guard_interval:
    description:
      - Seconds between two checks of the guard.
      - It compacts memory once a second at most, and drops the page cache once a second if the last drop has freed less than 64 MiB.
    type: float
    default: 0.1
  look:
    description:
      - Only read, as in check mode, and report in RV(changes) what would change. The task is not changed and prints nothing.
    type: bool
    default: false
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Set the read-ahead of the disks of the model store
  gb10.cluster.readahead:
    state: present
    mounts: [/srv/models]
  become: true

- name: Restore the earlier values
  gb10.cluster.readahead:
    state: absent
  become: true
"""

RETURN = r"""
changes:
  description: The changes, also in check mode.
  returned: always
  type: list
  elements: str
  sample: ["nvme0n1: 128 -> 8 KiB"]
shown:
  description: What the user has to read, as paths without a read-ahead, rules that are read later, or why nothing was changed. The task prints it.
  returned: always
  type: list
  elements: str
  sample: []
"""


from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import run_module
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory import UmaError
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead_node import Readahead


def main() -> None:
    """Read, plan, apply, report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "classes": {"type": "list", "elements": "str", "default": ["nvme"]},
            "mounts": {"type": "list", "elements": "str", "default": []},
            "devices": {"type": "list", "elements": "str", "default": []},
            "load_kb": {"type": "int", "default": 8},
            "steady_kb": {"type": "int", "default": 128},
            "restore_after": {"type": "int", "default": 2700},
            "guard": {"type": "bool", "default": True},
            "guard_floor_gib": {"type": "float", "default": 8.0},
            "guard_interval": {"type": "float", "default": 0.1},
            "look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    run_module(module, lambda edit: Readahead(edit).run(module.params), UmaError)


if __name__ == "__main__":
    main()
