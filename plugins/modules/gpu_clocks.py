#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Persistence mode and a cap on the clocks of a node's GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_clocks
short_description: Set persistence mode and cap the clocks of the GPUs
description:
  - Owners of GB10 machines report that a node powers off under load, and cap the GPU's clocks against it. Not run by us on a GB10.
  - Sets both with C(nvidia-smi -pm 1) and C(nvidia-smi -lgc), reads them back, and writes the unit C(gb10-gpu-clocks.service), which sets them at boot
    and gives them back when it is stopped.
  - The driver forgets a cap at a reboot and does not report it. The SM clock is compared with the cap.
  - If the driver refuses a value, or the clock that is read back is above the cap, what this run has changed is restored, and the unit stays as it was.
  - Without C(nvidia-smi) it changes nothing and reports that in RV(shown).
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Commands appear as a pseudo file.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) applies the options. V(absent) stops the unit, which removes the cap and restores the persistence mode from before the first run,
        and removes it.
    type: str
    choices: [present, absent]
    default: present
  persistence_mode:
    description:
      - Whether the driver stays loaded while nothing uses the GPU. V(false) restores the mode from before the first run.
    type: bool
    default: true
  max_clock_mhz:
    description:
      - The highest clock of the GPU in MHz; no cap if it is not set.
    type: int
  look:
    description:
      - Only read, as in check mode, and report in RV(changes) what would change. The task is not changed and prints nothing.
    type: bool
    default: false
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Keep the driver loaded
  gb10.cluster.gpu_clocks:
  become: true

- name: Cap the clocks at 2000 MHz
  gb10.cluster.gpu_clocks:
    max_clock_mhz: 2000
  become: true

- name: Restore the earlier settings
  gb10.cluster.gpu_clocks:
    state: absent
  become: true
"""

RETURN = r"""
changes:
  description: The changes, also in check mode.
  returned: always
  type: list
  elements: str
  sample: ["nvidia-smi -lgc 0,2000"]
shown:
  description: What the user has to read, such as why nothing was changed. The task prints it.
  returned: always
  type: list
  elements: str
  sample: ["nvidia-smi is not installed on this node: neither persistence mode nor clocks were changed"]
"""


from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import run_module
from ansible_collections.gb10.cluster.plugins.module_utils._host.gpu_clocks import GpuClocks


def main() -> None:
    """Read, apply, read back, report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "persistence_mode": {"type": "bool", "default": True},
            "max_clock_mhz": {"type": "int"},
            "look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    run_module(module, lambda edit: GpuClocks(edit, module.params).run())


if __name__ == "__main__":
    main()
