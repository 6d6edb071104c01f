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
  - Sets both with C(nvidia-smi -pm 1) and C(nvidia-smi -lgc), reads them back, and writes the unit C(gb10-gpu-clocks.service), which sets them at boot.
  - The driver forgets a cap at a reboot and does not report it. The SM clock is compared with the cap.
  - If the driver refuses a value, or the clock that is read back is above the cap, what this run has changed is restored, and the unit stays as it was.
  - Without C(nvidia-smi) it changes nothing and reports that in RV(skipped_reason).
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Settings of the GPU appear as pseudo files.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) applies the options, V(absent) removes the cap and the unit and restores the persistence mode from before the first run.
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
gpus:
  description: The GPUs as the driver reports them at the end. A figure that it does not report is null. Empty without C(nvidia-smi).
  returned: always
  type: list
  elements: dict
  contains:
    number:
      description: Its number.
      type: str
      returned: always
      sample: "0"
    persistence:
      description: Its persistence mode.
      type: str
      returned: always
      sample: Enabled
    sm_mhz:
      description: Its present SM clock in MHz.
      type: int
      returned: always
      sample: 1995
    max_mhz:
      description: Its highest SM clock in MHz.
      type: int
      returned: always
      sample: 3003
changes:
  description: The changes, also in check mode.
  returned: always
  type: list
  elements: str
  sample: ["GPU clocks: not capped -> at most 2000 MHz"]
notes:
  description: What could not be read back.
  returned: always
  type: list
  elements: str
  sample: []
skipped_reason:
  description: Why nothing was changed; empty otherwise.
  returned: always
  type: str
  sample: ""
"""


from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.gpu_clocks import GpuClocks, GpuError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError, runner


def main() -> None:
    """Read, apply, read back, report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "persistence_mode": {"type": "bool", "default": True},
            "max_clock_mhz": {"type": "int"},
        },
        supports_check_mode=True,
    )
    try:
        result = GpuClocks(Node("/", runner(module, optional=True)), module.params, module.check_mode).run()
    except (GpuError, RecordError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be changed ({error.strerror}). Run with become, and check whether the file system is read-only.")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
