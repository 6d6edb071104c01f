#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch files from another rank over the fabric, checked and resumable, or remove them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_copy
short_description: Fetch a model's files from another rank over the fabric
description:
  - Fetches files that M(gb10.cluster.weights_serve) serves on another rank, several at once, and checks the SHA-256 of each. All are moved to their
    places at the end, so that no file is incomplete under its name.
  - Shows progress. A transient systemd unit on the node fetches the files into the folder C(.gb10-incoming-NAME) next to the model.
    After an interruption, the next run resumes there.
  - Fails before the first byte if there is not enough disk space.
  - Records the copied files. O(state=absent) removes those that are unchanged.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
    details:
      - It changes nothing if there is nothing to fetch, link or remove.
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
      - V(present) fetches, V(absent) removes the files that earlier runs have copied.
    type: str
    choices: [present, absent]
    default: present
  name:
    description:
      - Names the unit, C(gb10-copy-NAME).
    type: str
    default: weights
  fetch:
    description:
      - Files to fetch, a list of C(path), C(size) in bytes, C(sha256), C(mtime_ns) and C(provider), an index into O(providers), V(0) by default.
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
  providers:
    description:
      - For each provider a list of its addresses, each with C(address), C(port) and C(bind), this node's address on the same rail.
    type: list
    elements: raw
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
  streams:
    description:
      - Files to fetch at the same time.
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
      - Seconds after which the copy is ended.
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
- name: Fetch one shard from the head
  gb10.cluster.weights_copy:
    path: /srv/models/tiny
    fetch: "{{ plan.ranks[1].fetch }}"
    providers:
      - - {address: 192.168.200.11, port: 40123, bind: 192.168.200.12}
    password: "{{ secret_of_this_run }}"
  become: true

- name: Remove the copied files
  gb10.cluster.weights_copy:
    path: /srv/models/tiny
    state: absent
  become: true
"""

RETURN = r"""
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

import posixpath
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError, runner
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest, model_folder, unit_job
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.plain import CopyError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.unit_job import Job, JobError


def check_room(params: dict[str, Any], path: str) -> None:
    """Fail if the files do not fit, or if a link leads out of the store. Raises ManifestError."""
    staged = model_folder.staged(model_folder.place_of(path, params["store"]))
    problem = manifest.space_problem(path, params["fetch"], staged, model_folder.free_bytes(path), params["reserve_bytes"])
    if problem:
        raise ManifestError(f"{problem}; nothing was copied")


def start(job: Job, params: dict[str, Any], path: str) -> None:
    """Start the fetch. Raises ManifestError, CopyError, JobError, OSError."""
    for item in params["fetch"]:
        manifest.check_name(item["path"])
    check_room(params, path)
    place = model_folder.place_of(path, params["store"])
    with model_folder.Installer(posixpath.dirname(place), params["owner"], params["group"]).folder(create=True):
        pass
    files = [{"name": i["path"], "size": i["size"], "sha256": i["sha256"], "provider": i.get("provider", 0)} for i in params["fetch"]]
    spec = {key: params[key] for key in ("providers", "user", "password", "streams")}
    job.start_copy("fetch", {**spec, "files": files, "staging": model_folder.staging_path(place)}, params["max_seconds"])


def fetch(module: AnsibleModule, job: Job, path: str) -> dict[str, Any]:
    """Fetch the files and return the figures of the copy. Raises ManifestError, JobError, OSError."""
    unit_job.follow(module, job, lambda: start(job, module.params, path), job.read)
    report = job.read()
    if report.get("state") != "done":
        done, total = manifest.human(report.get("done", 0)), manifest.human(report.get("total", 0))
        ended = f"the copy was ended from outside after {done} of {total}: run again, it goes on from there (see journalctl -u {job.unit})"
        raise JobError(str(report.get("error") or ended))
    seconds = max(float(report["copy_seconds"]), 1e-3)
    return {
        "moved_bytes": report["moved"],
        "mb_per_second": int(report["moved"] / seconds / 1e6),
        "seconds": {"transfer": round(seconds, 2), "total": round(report["updated"] - report["started"], 2)},
        "report": report,
    }


def main() -> None:
    """Fetch and install, or remove."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "store": {"type": "path", "default": ""},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "name": {"type": "str", "default": "weights"},
            "fetch": {"type": "list", "elements": "dict", "default": []},
            "links": {"type": "dict", "default": {}},
            "remove": {"type": "list", "elements": "str", "default": []},
            "providers": {"type": "list", "elements": "raw", "default": []},
            "user": {"type": "str", "default": "gb10"},
            "password": {"type": "str", "no_log": True},
            "streams": {"type": "int", "default": 4},
            "reserve_bytes": {"type": "int", "default": 1073741824},
            "owner": {"type": "int", "default": -1},
            "group": {"type": "int", "default": -1},
            "max_seconds": {"type": "int", "default": 14400},
            "step": unit_job.STEP,
        },
        supports_check_mode=True,
    )
    params = module.params
    path, node, job = posixpath.normpath(params["path"]), Node("/"), Job(params["name"] + "-fetch", runner(module))
    work = bool(params["fetch"] or params["links"] or params["remove"])
    result: dict[str, Any] = {"changed": work, "copied": [item.get("path") for item in params["fetch"]], "removed": [], "left": []}
    try:
        if params["state"] == "absent":
            removed, left = model_folder.absent(node, path, module.check_mode, params["store"])
            module.exit_json(changed=bool(removed), copied=[], removed=removed, left=left)
        if module.check_mode or not work:
            check_room(params, path)
            module.exit_json(**result)
        if params["fetch"]:
            result.update(fetch(module, job, path))
        what = (params["fetch"], params["links"], params["remove"])
        model_folder.install(node, path, *what, params["owner"], params["group"], params["store"])
        job.stop()
    except (ManifestError, JobError, RecordError, CopyError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path} cannot be written ({error.strerror}): run with become, and look for a read-only or full file system")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
