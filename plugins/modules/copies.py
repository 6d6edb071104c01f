#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two ends of a copy over the fabric, and the removal of what was copied."""

from __future__ import annotations

DOCUMENTATION = r"""
module: copies
short_description: Prepare and end a copy over the fabric, or remove what was copied
description:
  - The states of one copy, in order. V(prepared) on each rank that fetches makes a key. V(offered) on the rank that has the files starts an SSH server for
    these keys. Then M(gb10.cluster.job) with C(work=fetch) copies. V(closed) on all ranks ends the server and removes the keys.
  - The SSH server listens on the fabric addresses of the rank only. Its one command is C(rrsync -ro) on the folder. Each copy has new keys.
  - Both ends are transient systemd units with a memory limit, so that the page cache of the copy stays small. They see the folder, and no other
    files than the programs of the node.
  - V(absent) removes the files of O(path) that earlier copies have created and that are unchanged. Without O(path), it removes the images that
    M(gb10.cluster.job) has recorded and that no container uses.
requirements:
  - C(rsync) with C(rrsync), and OpenSSH with its server, on the nodes
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - V(prepared) and V(offered) start again on each call.
options:
  state:
    description:
      - The step of a copy, or V(absent).
    type: str
    choices: [prepared, offered, closed, absent]
    required: true
  path:
    description:
      - The folder of the files.
    type: path
  store:
    description:
      - The folder of all models. A link between it and O(path) is refused.
    type: path
    default: ""
  name:
    description:
      - Names the units, C(gb10-copy-NAME-serve) and C(gb10-copy-NAME-fetch).
    type: str
    default: weights
  fabric:
    description:
      - This node's fabric addresses, one for each rail.
    type: list
    elements: str
    default: []
  port:
    description:
      - TCP port of the SSH server, V(0) for any that is free.
    type: int
    default: 0
  allow:
    description:
      - Addresses of the ranks that may fetch.
    type: list
    elements: str
    default: []
  keys:
    description:
      - Public keys of the ranks that may fetch, as RV(public_key) of O(state=prepared).
    type: list
    elements: str
    default: []
  max_seconds:
    description:
      - Seconds after which the server is ended, if V(closed) does not end it before.
    type: int
    default: 14400
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Make a key on the rank that lacks a shard
  gb10.cluster.copies:
    state: prepared
  become: true
  register: fetching

- name: Offer the folder on the rank that has it
  gb10.cluster.copies:
    state: offered
    path: /srv/models/tiny
    fabric: [192.168.200.11]
    allow: [192.168.200.12]
    keys: ["{{ fetching.public_key }}"]
  become: true
  delegate_to: spark-1
  register: offer

- name: Remove the copied files
  gb10.cluster.copies:
    state: absent
    path: /srv/models/tiny
  become: true
"""

RETURN = r"""
public_key:
  description: The public half of the key of this copy.
  returned: with O(state=prepared), outside check mode
  type: str
  sample: ssh-ed25519 AAAAC3Nza...
listen:
  description: Addresses and ports of the SSH server, by rail.
  returned: with O(state=offered), outside check mode
  type: list
  elements: dict
  sample: [{address: 192.168.200.11, port: 40123}]
host_key:
  description: The public host key of the SSH server.
  returned: with O(state=offered), outside check mode
  type: str
  sample: ssh-ed25519 AAAAC3Nza...
removed:
  description: The removed files, or the ids of the removed images.
  returned: with O(state=absent)
  type: list
  elements: str
  sample: []
left:
  description: The copied files that stay because they were changed, or the images that stay, and why.
  returned: with O(state=absent)
  type: list
  elements: str
  sample: []
"""

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, RecordError, runner
from ansible_collections.gb10.cluster.plugins.module_utils._node import images, model_folder, transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._node.transfer import Job, JobError

READY_SECONDS = 0.5  # in which an SSH server that cannot start has ended


def make_key(job: Job, name: str) -> str:
    """Make a key in the folder of the job and return its public half. Raises JobError, OSError."""
    path = os.path.join(job.folder, name)
    rc, out, err = job.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", transfer.NAME, "-f", path])
    if rc != 0:
        raise JobError(f"ssh-keygen could not make a key for this copy ({transfer.last_line(err or out)}): correct that and run again")
    with open(f"{path}.pub", encoding="ascii") as handle:
        return " ".join(handle.read().split()[:2])


def free_port(listen: list[str], port: int) -> int:
    """Return the port on which this node can listen at each address: `port`, or any if it is 0. Raises JobError."""
    for address in listen:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                raise JobError(
                    f"cannot listen on the fabric address {address} ({error.strerror}): is it set on this node (ip -br address), and is the port free?"
                ) from error
            port = port or int(probe.getsockname()[1])
    return port


def offer(job: Job, params: Mapping[str, Any]) -> dict[str, Any]:
    """Start the server of the files and return where it listens. Raises ManifestError, JobError, OSError."""
    if not params["fabric"] or not params["allow"] or not params["keys"]:
        raise JobError("files are offered to named peers only, and the serving group has no fabric addresses or no keys: set gb10_fabric_cidrs")
    root = model_folder.place_of(os.path.normpath(params["path"]), params["store"])
    port = free_port(params["fabric"], params["port"])
    folder = job.prepare()
    host_key = make_key(job, transfer.HOST_KEY)
    transfer.prepare(folder, transfer.server_files(folder, root, port, params["fabric"], params["allow"], params["keys"]))
    sandbox = transfer.sandbox(folder, [root], capabilities=transfer.SERVER_CAPABILITIES)
    job.start(transfer.server_script(folder), params["max_seconds"], "offer files on the fabric", sandbox)
    time.sleep(READY_SECONDS)
    if not job.active():
        why = transfer.last_line(job.output())
        raise JobError(f"the SSH server of this copy does not start on {', '.join(params['fabric'])}, port {port} ({why}): see journalctl -u {job.unit}")
    return {"listen": [{"address": address, "port": port} for address in params["fabric"]], "host_key": host_key}


def main() -> None:
    """Prepare, offer, close, or remove."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["prepared", "offered", "closed", "absent"], "required": True},
            "path": {"type": "path"},
            "store": {"type": "path", "default": ""},
            "name": {"type": "str", "default": "weights"},
            "fabric": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 0},
            "allow": {"type": "list", "elements": "str", "default": []},
            "keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "max_seconds": {"type": "int", "default": 14400},
        },
        required_if=[("state", "offered", ["path"])],
        supports_check_mode=True,
    )
    params, state, run, check = module.params, module.params["state"], runner(module), module.check_mode
    offers, fetches = Job(params["name"] + "-serve", run), Job(params["name"] + "-fetch", run)
    result: dict[str, Any] = {"changed": True}
    try:
        if state == "absent":
            node, path = Node("/", run), params["path"]
            removed, left = (
                model_folder.absent(node, os.path.normpath(path), check, params["store"]) if path else images.remove_imported(node, check=check)
            )
            result = {"changed": bool(removed), "removed": removed, "left": left}
        elif state == "closed":
            ended = [job.active() if check else job.stop() for job in (offers, fetches)]
            result["changed"] = any(ended)
        elif state == "prepared" and not check:
            transfer.need_programs(module.get_bin_path, *transfer.FETCHES)
            fetches.prepare()
            result["public_key"] = make_key(fetches, transfer.KEY)
        elif state == "offered" and not check:
            transfer.need_programs(module.get_bin_path, *transfer.SERVES)
            result.update(offer(offers, params))
    except (ManifestError, JobError, RecordError, DockerError) as error:
        if state == "offered":
            offers.stop()
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be written ({error.strerror}): run with become, and look for a read-only or full file system")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
