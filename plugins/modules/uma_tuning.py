#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory policy of a node: sysctl drop-in and live values, swap, out-of-memory daemons."""

from __future__ import annotations

DOCUMENTATION = r"""
module: uma_tuning
short_description: Set the memory policy of a node with unified memory, and report its cost
description:
  - Plans and applies one drop-in, C(/etc/sysctl.d/60-gb10-cluster.conf), together with the live values, the swap policy and the
    out-of-memory policy, then reads everything back from the live system.
  - On request, it lets a frozen node reboot itself (O(watchdog_seconds), O(reboot_on_panic)).
  - If a file that is read later at boot sets another value, the module fails with its name and line, and changes nothing.
  - The values from before the first run are recorded in C(/var/lib/gb10-cluster/sysctl.json); O(state=absent) restores them.
  - In a container, where C(vm.*) belongs to the host, it changes nothing and reports that in RV(shown).
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Live values, units and swap appear as pseudo files.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) applies the settings, V(absent) restores the earlier values.
    type: str
    choices: [present, absent]
    default: present
  min_free_kbytes:
    description:
      - C(vm.min_free_kbytes) in KiB; V(auto) chooses by the node's size, V(leave) does not change it.
    type: str
    default: auto
  min_free_by_size:
    description:
      - The floor in KiB that V(auto) uses for the sizes V(121) and V(119).
    type: dict
    default: {'119': 3145728, '121': 3145728}
  min_free_percent_other:
    description:
      - The floor that V(auto) uses on a node of another size, in percent of its memory.
    type: float
    default: 2.5
  settings:
    description:
      - Further values, C(vm.key) to a number, or to V(leave). C(vm.swappiness) also takes V(auto), which is 0 with
        O(swap_policy=swappiness0), otherwise V(leave).
    type: dict
    default: {}
  extra:
    description:
      - Other sysctls.
    type: dict
    default: {}
  swap_policy:
    description:
      - V(off) switches swap off now and at boot, V(swappiness0) keeps it for emergencies, V(leave) does not change it.
      - A change from V(off) to another policy restores swap.
    type: str
    choices: ['off', swappiness0, leave]
    default: leave
  lru_gen_min_ttl_ms:
    description:
      - Milliseconds whose working set the kernel keeps in memory, otherwise the OOM killer runs (multi-generational LRU, C(min_ttl_ms)); 0 is the
        kernel's default and switches it off, V(leave) does not change it. RV(shown) reports a kernel without it.
    type: str
    default: leave
  oom_policy:
    description:
      - V(earlyoom) runs earlyoom and stops systemd-oomd, V(no_earlyoom) stops both, V(leave) does not change them.
    type: str
    choices: [leave, earlyoom, no_earlyoom]
    default: leave
  watchdog_seconds:
    description:
      - Seconds after which the hardware watchdog resets a node whose process 1 does not run, V(10) to V(3600), in
        C(/etc/systemd/system.conf.d/60-gb10-cluster.conf); V(leave) does not change it.
      - The module fails if there is no watchdog device or if it does not accept this time, and, if systemd must be reloaded, under a running engine.
    type: str
    default: leave
  reboot_on_panic:
    description:
      - Seconds from a kernel panic to the reboot, V(1) to V(600). An oops and a soft lockup are panics then, memory that runs out is not
        (C(kernel.panic), C(kernel.panic_on_oops), C(kernel.softlockup_panic), C(vm.panic_on_oom)); V(leave) does not change them.
    type: str
    default: leave
  kho_off:
    description:
      - Whether the kernel shall start with C(kho=off). The module only reads, refuses a node on which it cannot work, and returns in RV(kho) what is
        left to do. The role C(sysctl) changes GRUB.
    type: bool
    default: false
  look:
    description:
      - Only read, as in check mode, and report in RV(changes) what would change. The task is not changed and prints nothing.
    type: bool
    default: false
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: A floor under the page cache, no swap
  gb10.cluster.uma_tuning:
    min_free_kbytes: auto
    settings:
      vm.watermark_boost_factor: 0
    swap_policy: "off"
  become: true

- name: Reboot a node that is frozen or panics
  gb10.cluster.uma_tuning:
    min_free_kbytes: leave
    watchdog_seconds: 60
    reboot_on_panic: 10
  become: true

- name: Restore the earlier settings
  gb10.cluster.uma_tuning:
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
  description: What the settings cost, the highest gpu_memory_utilization that starts, and what the kernel shows of C(kho=off). The task prints it.
  returned: always
  type: list
  elements: str
  sample:
    - >-
      vm.min_free_kbytes 3145728 (for a 121 GiB node) costs 4.11 GiB of MemAvailable; vLLM from PR 35356 on (MemAvailable) starts up to
      gpu_memory_utilization 0.89, older images (MemFree) up to 0.93; swap is off
kho:
  description:
    - What C(kho=off) needs. V(write) or V(remove) V(file), and update V(menu) if one of them changes something, or if it is V(stale).
    - V(message) has what the running kernel shows, and V(reboot_required) whether the next boot changes that.
  returned: always
  type: dict
  sample:
    file: /etc/default/grub.d/60-gb10-cluster.cfg
    menu: /boot/grub/grub.cfg
    write: true
    remove: false
    stale: false
    reboot_required: false
    message: >-
      kho=off is on the kernel command line, and KHO keeps no memory: CmaFree 0 of CmaTotal 0 kB, MemFree 114.0 GiB; before: CmaFree 940604 of
      CmaTotal 0 kB, MemFree 88.0 GiB
packages:
  description: Packages that O(oom_policy) needs and that are missing. Install them and call the module again.
  returned: always
  type: list
  elements: str
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import run_module
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory import UmaError
from ansible_collections.gb10.cluster.plugins.module_utils._host.tuning import MemoryPolicy


def main() -> None:
    """Read, plan, apply, report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "min_free_kbytes": {"type": "str", "default": "auto"},
            "min_free_by_size": {"type": "dict", "default": {"119": 3145728, "121": 3145728}},
            "min_free_percent_other": {"type": "float", "default": 2.5},
            "settings": {"type": "dict", "default": {}},
            "extra": {"type": "dict", "default": {}},
            "swap_policy": {"type": "str", "choices": ["off", "swappiness0", "leave"], "default": "leave"},
            "lru_gen_min_ttl_ms": {"type": "str", "default": "leave"},
            "oom_policy": {"type": "str", "choices": ["leave", "earlyoom", "no_earlyoom"], "default": "leave"},
            "watchdog_seconds": {"type": "str", "default": "leave"},
            "reboot_on_panic": {"type": "str", "default": "leave"},
            "kho_off": {"type": "bool", "default": False},
            "look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    run_module(module, lambda edit: MemoryPolicy(edit, module.params).run(), UmaError)


if __name__ == "__main__":
    main()
