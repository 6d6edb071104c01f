#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve named files to the other ranks on the fabric during one copy."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_serve
short_description: Serve files on the fabric during one copy
description:
  - Starts a transient systemd unit that serves only the named files, read-only over HTTP, on the given addresses, to the given
    peers, with a password for one run.
  - The unit ends with O(state=absent), after O(idle_seconds) without a request, or after O(max_seconds). So it ends even if the controller is gone.
    Until then the password is in a C(0600) file below C(/run).
  - The copy is not encrypted. On a cable between two nodes no other machine can read it.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode, nothing is started or stopped.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each call with O(state=present) starts a new unit.
options:
  name:
    description:
      - Names the unit, C(gb10-copy-NAME).
    type: str
    required: true
  state:
    description:
      - V(present) starts, V(absent) stops.
    type: str
    choices: [present, absent]
    default: present
  listen:
    description:
      - This node's fabric addresses, one for each rail.
    type: list
    elements: str
    default: []
  port:
    description:
      - TCP port, V(0) for any that is free.
    type: int
    default: 0
  allow:
    description:
      - Addresses of the peers.
    type: list
    elements: str
    default: []
  root:
    description:
      - Folder that holds the files.
    type: path
  store:
    description:
      - The folder of all models. A link between it and O(root) is refused.
    type: path
    default: ""
  files:
    description:
      - Files to serve, relative to O(root).
    type: list
    elements: str
    default: []
  user:
    description:
      - User name of this run.
    type: str
    default: gb10
  password:
    description:
      - Password of this run.
    type: str
  idle_seconds:
    description:
      - Seconds without a request after which the unit ends.
    type: int
    default: 120
  max_seconds:
    description:
      - Seconds after which the unit ends.
    type: int
    default: 14400
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Serve one shard to the other rank
  gb10.cluster.weights_serve:
    name: weights-pair1
    listen: [192.168.200.11]
    allow: [192.168.200.12]
    root: /srv/models/tiny
    files: [model.safetensors]
    password: "{{ secret_of_this_run }}"
  become: true
  register: offer
"""

RETURN = r"""
listen:
  description: Addresses and ports of the unit.
  returned: success
  type: list
  elements: dict
  sample: [{address: 192.168.200.11, port: 40123}]
total:
  description: Size of all served files.
  returned: with O(state=present), outside check mode
  type: str
  sample: 148 GiB
unit:
  description: The transient unit.
  returned: always
  type: str
  sample: gb10-copy-weights-pair1-serve.service
"""

import os
from collections.abc import Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import runner
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest, model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.plain import CopyError, open_file
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.unit_job import Job, JobError


def offered(root: str, names: Sequence[str]) -> dict[str, str]:
    """Return name -> absolute path of files in the folder, a path without links. Raises ManifestError, CopyError, OSError."""
    out = {}
    for name in names:
        manifest.check_name(name)
        out[name] = os.path.join(root, name)
        try:
            os.close(open_file(out[name]))
        except FileNotFoundError as error:
            raise ManifestError(f"{out[name]} does not exist any more: run again, so that the manifest is read again") from error
    return out


def main() -> None:
    """Start or stop."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "listen": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 0},
            "allow": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path"},
            "store": {"type": "path", "default": ""},
            "files": {"type": "list", "elements": "str", "default": []},
            "user": {"type": "str", "default": "gb10"},
            "password": {"type": "str", "no_log": True},
            "idle_seconds": {"type": "int", "default": 120},
            "max_seconds": {"type": "int", "default": 14400},
        },
        required_if=[("state", "present", ("root", "files", "password", "allow"))],
        supports_check_mode=True,
    )
    params = module.params

    job = Job(params["name"] + "-serve", runner(module))
    unit = f"{job.unit}.service"
    if params["state"] == "absent":
        there = job.active() if module.check_mode else job.stop()
        module.exit_json(changed=there, unit=unit, listen=[])
    for key in ("listen", "allow", "password"):
        if not params[key]:
            module.fail_json(msg=f"{key} is empty, and files are served to named peers only: the serving group has no fabric addresses, set gb10_fabric_cidrs")
    if module.check_mode:
        module.exit_json(changed=True, unit=unit, listen=[])
    try:
        files = offered(model_folder.place_of(os.path.normpath(params["root"]), params["store"]), params["files"])
        spec = {key: params[key] for key in ("listen", "port", "allow", "user", "password", "idle_seconds")}
        job.start_copy("serve", {**spec, "files": files}, params["max_seconds"])
        report = job.wait_ready()
    except (ManifestError, CopyError, JobError) as error:
        job.stop()
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be used ({error.strerror}): run with become")
    if report.get("error"):
        job.stop()
        module.fail_json(msg=str(report["error"]))
    module.exit_json(
        changed=True,
        unit=unit,
        listen=[{"address": address, "port": port} for address, port in report["listen"]],
        total=manifest.human(sum(os.path.getsize(path) for path in files.values())),
    )


if __name__ == "__main__":
    main()
