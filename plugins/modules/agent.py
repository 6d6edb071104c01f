#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install, update or remove the agent of a serving group on one node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: agent
short_description: Install the agent of a serving group on a node
version_added: 0.1.0
description:
  - Installs the agent's code below C(/opt/gb10-cluster/agent), its launcher C(/usr/local/sbin/gb10), its configuration and the systemd unit
    C(gb10-agent.service). The unit is restarted if one of them changes. A restart of the agent does not affect containers.
  - On the head (rank 0) it creates an SSH key and pins the host keys of the workers. On a worker it creates the user C(gb10-agent), who can run
    one command with the head's key, from the head's addresses.
  - Run it twice. The first run returns what the other nodes need, and the second run receives it. An option that is empty leaves what an earlier
    run stored. The unit starts as soon as the node knows all other nodes that it needs.
  - The module fails if the service does not answer within 10 seconds, or if another head owns the node.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - The service is not called. A refusal of O(takeover=false) is not predicted.
  diff_mode:
    support: full
    details:
      - Private keys and the text of the code are not shown.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) installs or updates, V(absent) removes the agent, its user, keys and state. Containers and releases stay.
    type: str
    choices: [present, absent]
    default: present
  group:
    description:
      - The serving group, with C(name), the node's C(rank), the names of all C(hosts) by rank, and C(size). Other keys are ignored.
      - With O(state=absent), the group of the node's configuration is used if this is empty.
    type: dict
    default: {}
  directory:
    description:
      - The directory of all serving groups, which has the releases.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
  docker_socket:
    description:
      - The socket of Docker Engine.
    type: path
    default: /var/run/docker.sock
  head_id:
    description:
      - RV(head_id) of the head. Empty in the first run.
    type: str
    default: ''
  head_key:
    description:
      - RV(public_key) of the head. If it is empty, C(authorized_keys) is not changed.
    type: str
    default: ''
  head_addresses:
    description:
      - Addresses that the head may connect from, the one on the first rail first. Required on a worker.
    type: list
    elements: str
    default: []
  peers:
    description:
      - The workers, for the head. Empty in the first run.
    type: list
    elements: dict
    default: []
    suboptions:
      rank:
        description: The worker's rank.
        type: int
        required: true
      host:
        description: The worker's name in the inventory.
        type: str
        required: true
      address:
        description: The worker's address on the first rail.
        type: str
        required: true
      port:
        description: RV(ssh_port) of the worker.
        type: int
        default: 22
      bind:
        description: The head's own address on the first rail.
        type: str
        default: ''
      host_keys:
        description: RV(host_keys) of the worker. If it is empty, the keys that an earlier run pinned stay.
        type: list
        elements: str
        default: []
  libraries:
    description:
      - Pure-Python libraries that the agent uses if they are there, relative path to text. See P(gb10.cluster.python_sources#lookup).
    type: dict
    default: {}
  takeover:
    description:
      - Whether this head becomes the owner of a node that another head or group owns.
    type: bool
    default: false
  watch:
    description:
      - Settings of the watch, as the role's variable C(vllm_tp2_watch) documents them, and C(enabled). C(webhook) is an option of its own.
    type: dict
    default: {}
  webhook:
    description:
      - A URL that events are sent to. It can hold a token, so it is not logged, and only root can read it on the node.
    type: str
    default: ''
  installed:
    description:
      - RV(gb10.cluster.vllm_rank_info#module:agent) of this node, read in the same run.
      - With it the module is not run where it ran before with the same code and the same options, the service answers, and no file, key or account
        that it manages, or that the SSH server reads, was touched since.
    type: dict
    default: {}
  stamp:
    description:
      - What the installation is marked with. The controller sets it.
    type: str
    default: ''
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Install the agent
  gb10.cluster.agent:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    head_addresses: [192.168.200.11]
  become: true
  register: agent

- name: Exchange the keys of the serving group
  gb10.cluster.agent:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    head_addresses: [192.168.200.11]
    head_id: "{{ hostvars['spark-1'].agent.head_id }}"
    head_key: "{{ hostvars['spark-1'].agent.public_key }}"
    peers:
      - rank: 1
        host: spark-2
        address: 192.168.200.12
        bind: 192.168.200.11
        port: "{{ hostvars['spark-2'].agent.ssh_port }}"
        host_keys: "{{ hostvars['spark-2'].agent.host_keys }}"
  become: true

- name: Remove the agent
  gb10.cluster.agent:
    state: absent
  become: true
"""

RETURN = r"""
version:
  description: The version of the installed code; empty with O(state=absent).
  returned: success
  type: str
  sample: 4f0c1d2e3f40
public_key:
  description: The public key of the head; empty on workers, and in check mode before the first run.
  returned: success
  type: str
  sample: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI... gb10-agent pair1
head_id:
  description: The node's C(/etc/machine-id).
  returned: success
  type: str
  sample: 3f7a1c0d5b9e4f6a8c2d1e0f9a8b7c6d
host_keys:
  description: Type and key of the node's SSH host keys.
  returned: success
  type: list
  elements: str
  sample: ['ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI...']
ssh_port:
  description: The port of the node's SSH server.
  returned: success
  type: int
  sample: 22
active:
  description: Whether the service runs.
  returned: success
  type: bool
changes:
  description: What was changed, or would be, one phrase each.
  returned: success
  type: list
  elements: str
  sample: ['agent none -> 4f0c1d2e3f40', gb10-agent.service started]
problems:
  description: Why the agent cannot be installed, one entry for each cause; empty on success.
  returned: always
  type: list
  elements: str
  sample: []
"""

import os
from collections.abc import Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._agent import cli, client
from ansible_collections.gb10.cluster.plugins.module_utils._agent.install import Agent
from ansible_collections.gb10.cluster.plugins.module_utils._agent.place import InstallError
from ansible_collections.gb10.cluster.plugins.module_utils._agent.sources import SourceError, collect, with_libraries
from ansible_collections.gb10.cluster.plugins.module_utils._agent.ssh_keys import KeyLineError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node

PARTS = [cli.__name__]  # it imports the rest where it needs it: Ansible sends that too, and the installation does not run it

PEER = {
    "rank": {"type": "int", "required": True},
    "host": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "default": 22},
    "bind": {"type": "str", "default": ""},
    "host_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
}


def main() -> None:
    """Install, update or remove."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "group": {"type": "dict", "default": {}},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "head_id": {"type": "str", "default": ""},
            "head_key": {"type": "str", "default": "", "no_log": False},
            "head_addresses": {"type": "list", "elements": "str", "default": []},
            "peers": {"type": "list", "elements": "dict", "default": [], "options": PEER},
            "libraries": {"type": "dict", "default": {}},
            "takeover": {"type": "bool", "default": False},
            "watch": {"type": "dict", "default": {}},
            "webhook": {"type": "str", "default": "", "no_log": True},
            "installed": {"type": "dict", "default": {}},
            "stamp": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    os.umask(0o022)

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        program = module.get_bin_path(argv[0])  # sshd requires an absolute path
        if not program:
            return 127, "", f"{argv[0]}: command not found"
        rc, out, err = module.run_command([program, *argv[1:]])
        return int(rc), str(out), str(err)

    try:
        files = with_libraries(collect(PARTS), module.params["libraries"]) if module.params["state"] == "present" else {}
        result = Agent(Node("/", run), module.params, files, client.call, module.check_mode).run()
    except InstallError as error:
        module.fail_json(msg=str(error), problems=error.problems)
    except (SourceError, KeyLineError) as error:
        module.fail_json(msg=str(error), problems=[str(error)])
    except OSError as error:
        text = f"{error.filename} cannot be changed: {error.strerror}. Run with become, and look for a full or read-only file system."
        module.fail_json(msg=text, problems=[text])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
