#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read-ahead of the disks of the model store, and the page-cache guard of the load phase."""

from __future__ import annotations

DOCUMENTATION = r"""
module: readahead
short_description: Set read-ahead, and switch a node to the load phase and back
description:
  - While weights load, read-ahead and the page cache take memory that the GPU driver needs at the same time. The load phase has a small read-ahead
    and keeps MemFree above a floor by dropping the page cache. The steady phase has the usual read-ahead.
  - O(state=present) writes a udev rule and the live values, and stores the plan on the node. O(phase) then switches without further options.
  - O(phase=load) starts a transient systemd timer that restores the steady values, also if the controller is gone. A reboot restores them by the
    udev rule.
  - In a container, where block devices and the page cache belong to the host, it changes nothing and reports that in RV(skipped_reason).
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
    support: partial
    details:
      - O(phase=load) restarts the timer and the guard each time, and is always changed.
options:
  state:
    description:
      - V(present) applies the settings, V(absent) restores the earlier values. Not together with O(phase).
    type: str
    choices: [present, absent]
  phase:
    description:
      - V(load) before weights load, V(steady) after. Does nothing on a node without an earlier O(state=present).
    type: str
    choices: [load, steady]
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
      - Seconds after which the load phase ends automatically. The default is 2700.
      - With O(phase=load), the load phase lasts at least this long, also if the stored plan has less.
    type: int
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
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Set the read-ahead of the disks of the model store
  gb10.cluster.readahead:
    state: present
    mounts: [/srv/models]
  become: true

- name: Start the load phase
  gb10.cluster.readahead:
    phase: load
  become: true

- name: End the load phase
  gb10.cluster.readahead:
    phase: steady
  become: true
"""

RETURN = r"""
devices:
  description: Read-ahead in KiB by device at the end, also in check mode.
  returned: always
  type: dict
  sample: {nvme0n1: 128}
phase:
  description: V(load) during the load phase, otherwise V(steady).
  returned: always
  type: str
  sample: steady
changes:
  description: The changes, also in check mode.
  returned: always
  type: list
  elements: str
  sample: ["nvme0n1: 128 -> 8 KiB"]
notes:
  description: Paths without a read-ahead, and other udev rules that are read later.
  returned: always
  type: list
  elements: str
  sample: []
guard_receipt:
  description: Result of the last guard; sizes in KiB, times in seconds since the epoch. Empty before the first.
  returned: always
  type: dict
  sample: {drops: 12, lowest_free_kb: 8123456, freed_kb: 41234567, reason: stopped}
skipped_reason:
  description: Why nothing was changed; empty otherwise.
  returned: always
  type: str
  sample: ""
"""


from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError, runner
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead import ReadaheadError
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead_node import Readahead


def main() -> None:
    """Read, plan, apply, report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"]},
            "phase": {"type": "str", "choices": ["load", "steady"]},
            "classes": {"type": "list", "elements": "str", "default": ["nvme"]},
            "mounts": {"type": "list", "elements": "str", "default": []},
            "devices": {"type": "list", "elements": "str", "default": []},
            "load_kb": {"type": "int", "default": 8},
            "steady_kb": {"type": "int", "default": 128},
            "restore_after": {"type": "int"},
            "guard": {"type": "bool", "default": True},
            "guard_floor_gib": {"type": "float", "default": 8.0},
            "guard_interval": {"type": "float", "default": 0.1},
        },
        mutually_exclusive=[("state", "phase")],
        required_one_of=[("state", "phase")],
        supports_check_mode=True,
    )

    try:
        result = Readahead(Node("/", runner(module, optional=True)), module.params, module.check_mode).run()
    except (ReadaheadError, RecordError, memory.UmaError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be changed ({error.strerror}). Run with become, and check whether the file system is read-only.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
