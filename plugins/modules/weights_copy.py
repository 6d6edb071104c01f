#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copy files from one rank to another over the fabric with rsync, checked and resumable, or remove them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_copy
short_description: Copy a model's files from another rank over the fabric
description:
  - Copies files with parallel C(rsync) over SSH, and checks the SHA-256 of each once. All are moved to their places at the end, so that no file is
    incomplete under its name.
  - The states of one copy, in order. V(prepared) on each rank that fetches makes a key. V(offered) on each rank that has files starts an SSH server for
    these keys. V(present) fetches. V(closed) on all ranks ends the server and removes the keys.
  - The SSH server listens on the fabric addresses of the rank only. Its one command is C(rrsync -ro) on the folder. Each copy has new keys.
  - Both ends are transient systemd units with a memory limit, so that the page cache of the copy stays small. They see the folder, and no other
    files than the programs of the node.
  - Shows progress. The files arrive in the folder C(.gb10-incoming-NAME) next to the model. After an interruption, the next run resumes there.
  - Fails before the first byte if there is not enough disk space.
  - Records the copied files. O(state=absent) removes those that are unchanged.
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
      - It changes nothing if there is nothing to fetch, link or remove. V(prepared) and V(offered) start again on each call.
options:
  path:
    description:
      - The model's folder.
    type: path
    required: true
  store:
    description:
      - The folder of all models. A link between it and O(path) is refused.
    type: path
    default: ""
  state:
    description:
      - V(prepared), V(offered), V(present) and V(closed) are the steps of a copy. V(absent) removes the files that earlier runs have copied.
    type: str
    choices: [prepared, offered, present, closed, absent]
    default: present
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
  fetch:
    description:
      - Files to fetch, a list of C(path), C(size) in bytes, C(sha256) and C(mtime_ns).
    type: list
    elements: dict
    default: []
  links:
    description:
      - Links to create, targets by path.
    type: dict
    default: {}
  remove:
    description:
      - Paths to remove.
    type: list
    elements: str
    default: []
  provider:
    description:
      - The result of O(state=offered) of the rank that has the files.
    type: dict
    default: {}
  streams:
    description:
      - Processes of C(rsync).
    type: int
    default: 4
  reserve_bytes:
    description:
      - Bytes that must stay free on the disk.
    type: int
    default: 1073741824
  owner:
    description:
      - User id that the files belong to, V(-1) for the owner of their folder.
    type: int
    default: -1
  group:
    description:
      - Group id that the files belong to, V(-1) for the group of their folder.
    type: int
    default: -1
  max_seconds:
    description:
      - Seconds after which a unit is ended. The server also ends after ten minutes without a connection.
    type: int
    default: 14400
  step:
    description:
      - Internal. The action plugin sets it.
    type: str
    choices: [start, status, plain]
    default: plain
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Make a key on the rank that lacks a shard
  gb10.cluster.weights_copy:
    path: /srv/models/tiny
    state: prepared
  become: true
  register: fetching

- name: Offer the folder on the rank that has it
  gb10.cluster.weights_copy:
    path: /srv/models/tiny
    state: offered
    fabric: [192.168.200.11]
    allow: [192.168.200.12]
    keys: ["{{ fetching.public_key }}"]
  become: true
  delegate_to: spark-1
  register: offer

- name: Fetch the shard
  gb10.cluster.weights_copy:
    path: /srv/models/tiny
    fetch: "{{ plan.ranks[1].fetch }}"
    provider: "{{ offer }}"
    fabric: [192.168.200.12]
  become: true

- name: Remove the copied files
  gb10.cluster.weights_copy:
    path: /srv/models/tiny
    state: absent
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
copied:
  description: Paths that were fetched, in check mode those that would be fetched.
  returned: success
  type: list
  elements: str
  sample: [model-00002-of-00004.safetensors]
moved_bytes:
  description: Bytes that were copied over the fabric in this run.
  returned: when files were fetched
  type: int
  sample: 2147483648
mb_per_second:
  description: Speed of the transfer itself, in 10^6 bytes a second.
  returned: when files were fetched
  type: int
  sample: 2410
seconds:
  description: Seconds of the transfer, and C(total) with the check of the hashes.
  returned: when files were fetched
  type: dict
  sample: {transfer: 0.9, total: 2.1}
removed:
  description: With O(state=absent), the removed files.
  returned: success
  type: list
  elements: str
  sample: []
left:
  description: With O(state=absent), the copied files that stay because they were changed.
  returned: success
  type: list
  elements: str
  sample: []
"""

import os
import posixpath
import socket
import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, RecordError, runner
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest, model_folder, transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._node.transfer import CopyError, Job, JobError

READY_SECONDS = 20.0


def need_programs(module: AnsibleModule, *names: str) -> None:
    """Fail if a program of the copy is not installed. Raises JobError."""
    missing = [name for name in names if not module.get_bin_path(name)]
    if missing:
        raise JobError(f"{', '.join(missing)} is not installed on this node: install the packages rsync and openssh (apt install rsync openssh-server)")


def make_key(job: Job, name: str) -> str:
    """Make a key in the folder of the job and return its public half. Raises JobError, OSError."""
    path = posixpath.join(job.folder, name)
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


def offer(module: AnsibleModule, job: Job, path: str) -> dict[str, Any]:
    """Start the server of the files and return where it listens. Raises ManifestError, CopyError, JobError, OSError."""
    params = module.params
    if not params["fabric"] or not params["allow"] or not params["keys"]:
        raise JobError("files are offered to named peers only, and the serving group has no fabric addresses or no keys: set gb10_fabric_cidrs")
    need_programs(module, *transfer.SERVES)
    root = model_folder.place_of(path, params["store"])
    os.close(transfer.open_folder(root))
    port = free_port(params["fabric"], params["port"])
    folder = job.prepare()
    host_key = make_key(job, transfer.HOST_KEY)
    transfer.prepare(folder, transfer.server_files(folder, root, port, params["fabric"], params["allow"], params["keys"]))
    sandbox = transfer.sandbox(folder, [root], capabilities=transfer.SERVER_CAPABILITIES)
    job.start_script(transfer.server_script(folder), params["max_seconds"], "offer files on the fabric", sandbox)
    end = time.monotonic() + READY_SECONDS
    for address in params["fabric"]:
        while True:
            try:
                socket.create_connection((address, port), 1).close()
                break
            except OSError as error:
                if time.monotonic() > end or not job.active():
                    why = transfer.last_line(job.output() or str(error))
                    raise JobError(f"the SSH server of this copy does not answer on {address}:{port} ({why}): see journalctl -u {job.unit}") from error
                time.sleep(0.05)
    return {"listen": [{"address": address, "port": port} for address in params["fabric"]], "host_key": host_key}


def check_room(params: Mapping[str, Any], path: str) -> None:
    """Fail if the files do not fit, or if a link leads out of the store. Raises ManifestError."""
    staged = model_folder.staged(model_folder.place_of(path, params["store"]))
    problem = manifest.space_problem(path, params["fetch"], staged, model_folder.free_bytes(path), params["reserve_bytes"])
    if problem:
        raise ManifestError(f"{problem}; nothing was copied")


def start(job: Job, params: Mapping[str, Any], path: str) -> None:
    """Start the fetch. Raises ManifestError, CopyError, JobError, OSError."""
    manifest.check_tree({str(item["path"]) for item in params["fetch"]}, params["links"])
    for item in params["fetch"]:
        manifest.check_name(item["path"])
        if not manifest.SHA256.fullmatch(str(item["sha256"])):
            raise ManifestError(f"{item['path']!r} has no valid SHA-256 in the manifest of the node that has it: nothing was copied")
    check_room(params, path)
    place = model_folder.place_of(path, params["store"])
    with model_folder.Installer(posixpath.dirname(place), params["owner"], params["group"]).folder(create=True):
        pass
    staging = model_folder.staging_path(place)
    transfer.Staging(staging, create=True).close()
    if not os.path.isfile(posixpath.join(job.folder, transfer.KEY)):
        raise JobError("this copy has no key: call the module with state=prepared before, and give its public_key to the ranks that offer files")
    if not params["provider"].get("listen"):
        raise JobError("the rank that has the files does not offer them: see its message, correct that and run again")
    parts = transfer.shares(params["fetch"], params["streams"])
    transfer.prepare(job.folder, transfer.client_files(job.folder, parts, params["provider"], params["fabric"]))
    script = transfer.client_script(job.folder, staging, len(parts), len(params["provider"]["listen"]))
    job.start_script(script, params["max_seconds"], "fetch files on the fabric", transfer.sandbox(job.folder, writes=[posixpath.dirname(staging)]))


def fetch(module: AnsibleModule, job: Job, path: str) -> dict[str, Any]:
    """Fetch the files and return the figures of the copy. Raises ManifestError, JobError, OSError."""
    items, place = module.params["fetch"], model_folder.place_of(path, module.params["store"])
    total = sum(int(item["size"]) for item in items)

    def progress() -> dict[str, int]:
        sizes = model_folder.staged(place)
        arrived = [min(sizes.get(str(item["path"]), 0), int(item["size"])) for item in items]
        complete = sum(size == int(item["size"]) for size, item in zip(arrived, items))
        return {"done": sum(arrived), "total": total, "files": len(items), "files_done": complete}

    transfer.follow(module, job, lambda: start(job, module.params, path), progress)
    rc, log, now = job.read().get("rc"), job.output(), progress()
    if rc != 0:
        arrived = f"{manifest.human(now['done'])} of {manifest.human(total)}"
        ended = f"the copy was ended from outside after {arrived}: run again, it goes on from there (see journalctl -u {job.unit})"
        raise JobError(ended if rc is None else transfer.failure(log, arrived))
    found = transfer.figures(log)
    return {**found, "report": {**now, "state": "done", "rate": found["mb_per_second"]}}


def main() -> None:
    """Prepare, offer, fetch and install, or remove."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "store": {"type": "path", "default": ""},
            "state": {"type": "str", "choices": ["prepared", "offered", "present", "closed", "absent"], "default": "present"},
            "name": {"type": "str", "default": "weights"},
            "fabric": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 0},
            "allow": {"type": "list", "elements": "str", "default": []},
            "keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "fetch": {"type": "list", "elements": "dict", "default": []},
            "links": {"type": "dict", "default": {}},
            "remove": {"type": "list", "elements": "str", "default": []},
            "provider": {"type": "dict", "default": {}},
            "streams": {"type": "int", "default": 4},
            "reserve_bytes": {"type": "int", "default": 1073741824},
            "owner": {"type": "int", "default": -1},
            "group": {"type": "int", "default": -1},
            "max_seconds": {"type": "int", "default": 14400},
            "step": transfer.STEP,
        },
        supports_check_mode=True,
    )
    params, run = module.params, runner(module)
    path, node, state = posixpath.normpath(params["path"]), Node("/"), params["state"]
    offers, fetches = Job(params["name"] + "-serve", run), Job(params["name"] + "-fetch", run)
    work = bool(params["fetch"] or params["links"] or params["remove"])
    result: dict[str, Any] = {"changed": work, "copied": [item.get("path") for item in params["fetch"]], "removed": [], "left": []}
    try:
        if state == "absent":
            removed, left = model_folder.absent(node, path, module.check_mode, params["store"])
            module.exit_json(changed=bool(removed), copied=[], removed=removed, left=left)
        if state == "closed":
            stopped = [job.active() if module.check_mode else job.stop() for job in (offers, fetches)]
            module.exit_json(changed=any(stopped))
        if state in ("prepared", "offered") and module.check_mode:
            module.exit_json(changed=True)
        if state == "prepared":
            need_programs(module, *transfer.FETCHES, "sha256sum")
            fetches.prepare()
            module.exit_json(changed=True, public_key=make_key(fetches, transfer.KEY))
        if state == "offered":
            module.exit_json(changed=True, **offer(module, offers, path))
        if module.check_mode or not work:
            check_room(params, path)
            module.exit_json(**result)
        if params["fetch"]:
            result.update(fetch(module, fetches, path))
        what = (params["fetch"], params["links"], params["remove"])
        model_folder.install(node, path, *what, params["owner"], params["group"], params["store"])
        fetches.stop()
    except (ManifestError, JobError, RecordError, CopyError) as error:
        if state == "offered":
            offers.stop()
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path} cannot be written ({error.strerror}): run with become, and look for a read-only or full file system")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
