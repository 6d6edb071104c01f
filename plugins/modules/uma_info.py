#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts on the unified memory of a node, and what vLLM's start check reads."""

from __future__ import annotations

DOCUMENTATION = r"""
module: uma_info
short_description: Read a node's unified memory, and what vLLM's start check reads
version_added: 0.1.0
description:
  - On a GB10 the GPU and the processor share one memory, and the usual tools do not show what the driver holds. This module reads
    C(/proc) and C(/sys) and returns the free memory, the watermarks, what a failed run has left, and the highest
    C(gpu_memory_utilization) with which vLLM starts.
  - Requires root only to find the processes that use the GPU.
extends_documentation_fragment:
  - gb10.cluster.attributes.info
options:
  root:
    description:
      - Read a captured tree with C(proc/), C(sys/) and C(etc/) in it instead of the live node.
    type: path
    default: /
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Read the memory
  gb10.cluster.uma_info:
  become: true
  register: uma

- name: Fail if there is a problem
  ansible.builtin.assert:
    that: uma.problems | length == 0
    fail_msg: "{{ uma.problems | map(attribute='message') | join('; ') }}"
"""

RETURN = r"""
total_kb:
  description: MemTotal in KiB.
  returned: always
  type: int
  sample: 127600000
free_kb:
  description: MemFree in KiB; what vLLM before PR 35356 and raw CUDA see.
  returned: always
  type: int
  sample: 119537664
available_kb:
  description: MemAvailable in KiB; what vLLM since PR 35356 sees on an integrated GPU.
  returned: always
  type: int
  sample: 118489088
size_class:
  description: V(121) or V(119), the two sizes of a GB10 with 128 GB, otherwise V(other).
  returned: always
  type: str
  sample: "121"
page_size_kb:
  description: Page size in KiB.
  returned: always
  type: int
  sample: 4
container:
  description: The container runtime in a container, where C(vm.*) belongs to the host; otherwise null.
  returned: always
  type: str
  sample: null
kernel:
  description: Kernel release.
  returned: always
  type: str
  sample: 6.17.0-1032-nvidia
swap:
  description: Swap (sizes in KiB), and what starts it at boot.
  returned: always
  type: dict
  sample:
    "on": true
    total_kb: 16777212
    used_kb: 3670016
    devices: [{device: /swap.img, kind: file, size_kb: 16777212, used_kb: 3670016, priority: -2, zram: false}]
    comes_back_by: ["/etc/fstab line 7: /swap.img"]
vm:
  description: The live C(vm.*) values, the files that set each in reading order, and the one that wins.
  returned: always
  type: dict
  sample:
    vm.min_free_kbytes:
      live: "45167"
      set_by: []
      wins: null
watermarks:
  description: Watermarks in KiB, in total and by zone.
  returned: always
  type: dict
  sample: {min_kb: 45164, low_kb: 172752, high_kb: 300340, boost_kb: 0, zones: []}
floor_cost_gib:
  description: Cost of C(vm.min_free_kbytes) in GiB of MemAvailable, compared with a floor of zero.
  returned: always
  type: float
  sample: 4.37
fragmentation:
  description: Free blocks of the largest zone by order, and how many of 1 MiB and 4 MiB or more.
  returned: always
  type: dict
  sample: {zone: Normal, free_kb: 118489088, blocks: [12, 8, 4], blocks_1mib: 3909, blocks_4mib: 24, largest_kb: 4096}
cma:
  description: The contiguous memory area in KiB; more free than total is the KHO leak.
  returned: always
  type: dict
  sample: {total_kb: 0, free_kb: 0}
unaccounted_kb:
  description: Memory of no process and no cache, in KiB; on a GB10 the driver holds it.
  returned: always
  type: int
  sample: 2097152
gpu_users:
  description: Processes that use the GPU.
  returned: always
  type: list
  elements: str
  sample: ["VLLM::Worker_TP (4711)"]
vllm_start:
  description: What vLLM's start check reads in GiB, and the highest gpu_memory_utilization that starts, for both checks.
  returned: always
  type: dict
  sample:
    total_gib: 121.69
    memavailable: {free_gib: 113.0, highest_utilization: 0.92}
    memfree: {free_gib: 114.0, highest_utilization: 0.93}
problems:
  description: Problems, each with an ID, a message and a remedy.
  returned: always
  type: list
  elements: dict
  sample:
    - id: kho-cma-leak
      message: CmaFree is 940604 kB with CmaTotal 0 kB on kernel 7.0.0-1019-nvidia
      remedy: add kho=off to the kernel command line and reboot, or boot kernel 6.17.0-1032 or a later fixed one
"""


from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, memory_facts
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, no_commands, runner


def main() -> None:
    """Read and report."""
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    root = module.params["root"]

    node = Node(root, runner(module, optional=True) if root == "/" else no_commands)
    try:
        result = memory_facts.report(node, memory_facts.gather(node))
    except memory.UmaError as error:
        module.fail_json(msg=f"{error} (read below {root})")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
