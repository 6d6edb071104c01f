#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the Docker Engine for serving containers: limits, log rotation, live-restore, CDI."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_engine
short_description: Set the limits of Docker Engine that RDMA serving needs
description:
  - Merges a few keys into C(/etc/docker/daemon.json), writes a systemd drop-in and a limits.d file, enables the CDI refresh of the
    NVIDIA container toolkit where it is installed, and starts and enables the engine.
  - The earlier file is recorded in C(/var/lib/gb10-cluster/docker.json). O(state=absent) restores it, unless others have changed the merged file since.
  - Limits and log options take effect at the next start of the daemon. Compose gives the same settings to each serving container, so they can wait.
    O(restart) decides when the daemon restarts. It never restarts while a serving container runs.
  - O(live_restore) takes effect without a restart, because the daemon is reloaded.
  - A key whose option is on the daemon's command line is left alone, because the daemon does not start with both.
  - It never installs or replaces the engine. If RV(packages) names what is missing, nothing was changed, and the caller installs it and calls the
    module again with O(installed). It removes packages only with O(remove_packages), and only those that were installed for its caller.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) applies the settings, V(absent) restores the earlier values.
    type: str
    choices: [present, absent]
    default: present
  memlock:
    description:
      - Locked memory for containers, the daemon and login sessions. V(unlimited), bytes (V(8388608)), a size (V(64m)), or V(leave).
    type: str
    default: unlimited
  stack:
    description:
      - Stack size for containers, in the format of O(memlock).
    type: str
    default: '67108864'
  log_driver:
    description:
      - Log driver, unless the user has chosen one. V(leave) sets neither driver nor rotation.
    type: str
    choices: [json-file, local, leave]
    default: json-file
  log_opts:
    description:
      - Rotation for a driver that writes files. A key that the user has set is left alone.
    type: dict
    default: {}
  live_restore:
    description:
      - Whether containers continue to run while the daemon restarts. V(leave) does not change the key.
    type: str
    choices: [leave, 'true', 'false']
    default: leave
  cdi_refresh:
    description:
      - Enable C(nvidia-cdi-refresh) if the NVIDIA container toolkit contains it, so that running containers keep the GPU after a
        C(systemctl daemon-reload).
    type: bool
    default: true
  compose_minimum:
    description:
      - Oldest supported version of the compose plugin.
    type: str
    default: '2.18'
  packages:
    description:
      - Packages for RV(packages) if something is missing, instead of those that the module finds in apt.
    type: list
    elements: str
    default: []
  installed:
    description:
      - Packages that the caller has just installed; they are kept in the record for O(remove_packages).
    type: list
    elements: str
    default: []
  remove_packages:
    description:
      - With O(state=absent), also remove the packages that the record names as installed for this module's caller. Images and volumes stay.
    type: bool
    default: false
  serving_label:
    description:
      - Running containers with this label are serving. They prevent a restart of the daemon.
    type: str
    default: gb10.cluster.group
  restart:
    description:
      - V(idle) restarts the daemon for new settings only while no container runs. V(needed) also stops containers that are not serving.
        V(never) only reports it.
    type: str
    choices: [needed, idle, never]
    default: idle
  start_timeout:
    description:
      - Seconds to wait for the engine to answer after a start.
    type: int
    default: 120
  look:
    description:
      - Only read, as in check mode, and report in RV(changes) what would change. The task is not changed and prints nothing.
    type: bool
    default: false
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Let containers lock all memory, and limit the size of their logs
  gb10.cluster.docker_engine:
    memlock: unlimited
    log_opts:
      max-size: 50m
      max-file: "5"
  become: true
  register: engine

- name: Restore Docker's earlier settings
  gb10.cluster.docker_engine:
    state: absent
  become: true
"""

RETURN = r"""
changes:
  description: The changes, also in check mode.
  returned: always
  type: list
  elements: str
  sample: ['default-ulimits.memlock: not set -> {"Hard": -1, "Name": "memlock", "Soft": -1}']
left:
  description: What was left alone, with the reason.
  returned: always
  type: list
  elements: str
  sample: ['log-driver stays "journald", which the user has chosen']
packages:
  description: Packages that are missing; empty if an engine and a recent compose plugin are present.
  returned: always
  type: list
  elements: str
  sample: [docker.io, docker-compose]
restart_required:
  description: Whether O(restart) asks for a restart of the daemon that could not happen in this run.
  returned: always
  type: bool
restarted:
  description: Whether the daemon was restarted, or would be.
  returned: always
  type: bool
shown:
  description: Which restart waits, and for what; with O(state=absent) also what stays. The task prints it.
  returned: always
  type: list
  elements: str
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.setup import Setup
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import run_module


def main() -> None:
    """Read, plan, apply, report."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "memlock": {"type": "str", "default": "unlimited"},
            "stack": {"type": "str", "default": "67108864"},
            "log_driver": {"type": "str", "choices": ["json-file", "local", "leave"], "default": "json-file"},
            "log_opts": {"type": "dict", "default": {}},
            "live_restore": {"type": "str", "choices": ["leave", "true", "false"], "default": "leave"},
            "cdi_refresh": {"type": "bool", "default": True},
            "compose_minimum": {"type": "str", "default": "2.18"},
            "packages": {"type": "list", "elements": "str", "default": []},
            "installed": {"type": "list", "elements": "str", "default": []},
            "remove_packages": {"type": "bool", "default": False},
            "serving_label": {"type": "str", "default": "gb10.cluster.group"},
            "restart": {"type": "str", "choices": ["needed", "idle", "never"], "default": "idle"},
            "start_timeout": {"type": "int", "default": 120},
            "look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    run_module(module, lambda edit: Setup(edit, module.params).run(), DockerError)


if __name__ == "__main__":
    main()
