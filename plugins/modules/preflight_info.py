#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that preflight judges of one node, read in one go."""

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_info
short_description: Read the facts of one node for preflight
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Reads the machine, its kernel, driver, firmware, DGX OS version, memory, fabric, Docker Engine, containers, disks, ports and clock.
  - Calls the agent of a serving group, if one is installed. The agent on the head calls the workers over the rail, for at most 17 seconds.
  - Reports the problems of memory and fabric. M(gb10.cluster.serving_plan) checks all ranks.
  - Changes nothing. RV(clock) has the time of the call on the controller.
requirements:
  - PyYAML on a node with netplan files (package python3-yaml, which netplan.io depends on)
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
options:
  fabric_addresses:
    description: This node's wanted fabric addresses, one per rail, as M(gb10.cluster.roce_info) takes them.
    type: list
    elements: str
    default: []
  ports:
    description: The TCP ports to look for.
    type: list
    elements: int
    default: []
  image:
    description: The image to look for; empty looks for none.
    type: str
    default: ""
  model_store:
    description: The model store's directory; its file system is measured even where the directory is not there yet.
    type: path
    default: /srv/models
  model_path:
    description: The model's directory; what lies there need not be downloaded. Empty for none.
    type: str
    default: ""
  drafter_path:
    description: The drafter's directory, in the same way.
    type: str
    default: ""
  docker_socket:
    description: The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
notes:
  - Run it as root (C(become=true)), else other users' processes, netplan files and the Docker socket cannot be read.
"""

EXAMPLES = r"""
- name: Read a node
  gb10.cluster.preflight_info:
    ports: [8888, 25000]
  become: true
  register: node

- name: Show why it needs a reboot
  ansible.builtin.debug:
    var: node.reboot_reasons
"""

RETURN = r"""
time:
  description: The node's clock when it was read, in seconds since the epoch.
  returned: always
  type: float
  sample: 1795239181.52
clock:
  description: The controller's clock before and after the call, in seconds since the epoch.
  returned: when the action plugin called
  type: dict
  sample: {before: 1795239180.9, after: 1795239182.1}
found:
  description: What keeps the module from running on the node, if sudo, Python or disk space does.
  returned: on such a failure
  type: str
  sample: sudo asks for a password (Missing sudo password)
python:
  description: Version of the Python that the module ran on.
  returned: always
  type: str
  sample: 3.12.3
container:
  description: The container runtime when this is a container, else empty.
  returned: always
  type: str
  sample: ""
machine:
  description: Architecture, product, whether it is a GB10, what shows it, and a hash of its machine ID.
  returned: always
  type: dict
  sample: {arch: aarch64, product: NVIDIA_DGX_Spark, gb10: true, evidence: [product name NVIDIA_DGX_Spark], id: 5f70bf18a086007a}
kernel:
  description: Release, command line, whether an update waits for a reboot, and what a reboot changes of C(kho=off).
  returned: always
  type: dict
  sample: {release: 6.17.0-1032-nvidia, cmdline: quiet, reboot_required: false, reboot_packages: [], reboot_kho: ''}
dgx:
  description: C(/etc/dgx-release); C(ota) is empty before the first OTA.
  returned: always
  type: dict
  sample: {present: true, name: DGX Spark, base: 7.2.3, ota: 7.6.0}
driver:
  description: The NVIDIA driver as loaded, as on disk, its libraries, the GPUs that nvidia-smi lists, and its error.
  returned: always
  type: dict
  sample: {loaded: 580.173.02, on_disk: 580.173.02, libraries: [580.173.02], gpus: [NVIDIA GB10], error: "", present: true}
copy_missing:
  description: Programs of the copies between the ranks that are not installed.
  returned: always
  type: list
  elements: str
  sample: [rrsync]
broken_packages:
  description: Packages of driver, kernel and containers that dpkg holds for half-done.
  returned: always
  type: list
  elements: str
  sample: []
ota_check:
  description: What C(nvidia-spark-ota-check torn-score) answers, where it is there.
  returned: always
  type: dict
  sample: {}
firmware:
  description: Firmware versions by device.
  returned: always
  type: dict
  sample: {ConnectX-7: 28.45.4028, BIOS: 2.155.11}
memory:
  description: MemTotal in KiB, and problems with a message and a remedy.
  returned: always
  type: dict
  sample: {total_kb: 127600000, problems: []}
fabric:
  description: Rails, management path, configuration of others and problems, as M(gb10.cluster.roce_info) gives them.
  returned: always
  type: dict
  sample: {ports: 4, rails: [], management: {interface: enP7s7, reason: ssh session, wireless: false}, foreign: [], problems: []}
exposure:
  description:
    - The setting that forwards IPv4 packets, and what the FORWARD chain does with them; each is empty if there is none or it is not known.
    - Whether the table of C(roce_firewall) is loaded, and the MAC addresses of hosts that answered on a rail.
  returned: always
  type: dict
  sample: {forwarding: net.ipv4.ip_forward=1, policy: DROP, firewall: false, neighbors: [{netdev: enp1s0f0np0, mac: "4c:bb:47:00:00:11"}]}
docker:
  description: The Docker Engine's version, storage driver, image store (V(graphdriver) or V(containerd)), folder, and its error.
  returned: always
  type: dict
  sample:
    {version: 28.3.3, driver: overlay2, image_store: graphdriver, root: /var/lib/docker, cgroup_driver: systemd, cdi: true, error: "", installed: true,
     image_present: true}
containers:
  description: All containers, with what matters here.
  returned: always
  type: list
  elements: dict
  sample: [{name: gb10-pair1-rank0, image: "vllm:1", state: running, labels: {gb10.cluster.group: pair1}, vllm: true, gpu: true, restart: "no"}]
disks:
  description: Free and total GiB of the file systems of the Docker Engine and the model store.
  returned: always
  type: list
  elements: dict
  sample: [{path: /var/lib/docker, device: "259:2", free_gib: 2519.9, total_gib: 3666.5, read_only: false}]
model:
  description: How much of the model and its drafter is there, in GiB.
  returned: always
  type: dict
  sample: {path: /srv/models/org/name, present_gib: 148.2}
listening:
  description: Who listens on the ports asked for.
  returned: always
  type: list
  elements: dict
  sample: [{port: 8888, address: "*", pid: 4711, process: vllm, container: gb10-pair1-rank0}]
memlock:
  description: The Docker daemon's hard limit of locked memory in bytes (null is unlimited), and whether it may raise it.
  returned: always
  type: dict
  sample: {known: true, bytes: null, may_raise: true}
agent:
  description:
    - What is known of the agent of a serving group. A node without one has C(installed) alone.
    - C(active) is null if the module has not run as root. C(error) has the reason of an agent that does not answer.
    - C(peers) has on the head what each worker answered to a call over the rail. C(sshd_problems) has on a worker one sentence for each setting of
      sshd that keeps the head's key from working.
  returned: always
  type: dict
  sample:
    installed: true
    group: pair1
    rank: 0
    active: true
    error: ""
    peers: [{rank: 1, host: spark-2, address: 192.168.200.12, ok: true, error: "", protocol: 1}]
    sshd_problems: []
kernel_log:
  description: What the kernel has logged of lost links, GPUs and Wi-Fi since the boot.
  returned: always
  type: list
  elements: dict
  sample: []
suspends:
  description: Why this node may suspend by itself, each as a few words. Empty if C(sleep.target) is masked.
  returned: always
  type: list
  elements: str
  sample: [logind has IdleAction=suspend]
reboot_reasons:
  description: Why this node needs a reboot, each as a few words.
  returned: always
  type: list
  elements: str
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._node import facts
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DEFAULT_SOCKET
from ansible_collections.gb10.cluster.plugins.module_utils._pair import session


def main() -> None:
    """Read and report."""
    module = AnsibleModule(
        argument_spec={
            "fabric_addresses": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "image": {"type": "str", "default": ""},
            "model_store": {"type": "path", "default": "/srv/models"},
            "model_path": {"type": "str", "default": ""},
            "drafter_path": {"type": "str", "default": ""},
            "docker_socket": {"type": "path", "default": DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    node = facts.live_node(module.get_bin_path)
    module.exit_json(changed=False, agent=session.read_for_preflight(node), **facts.read(node, module.get_bin_path, module.params))


if __name__ == "__main__":
    main()
