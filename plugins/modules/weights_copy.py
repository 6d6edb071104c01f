#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring files from another rank over the fabric, checked and resumable; or remove what was brought."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_copy
short_description: Bring a model's files from another rank over the fabric
version_added: 0.1.0
description:
  - Fetches the named files, several at once, from what M(gb10.cluster.weights_serve) offers on another rank, checks each against its SHA-256,
    and puts them in place together at the end, so that nobody ever sees half a file under its name.
  - Shows progress while it runs. The fetching itself is a transient systemd unit on the node; what it has brought waits in a folder
    C(.gb10-incoming-NAME) beside the model, and a run after an interruption goes on from there.
  - Refuses before the first byte when the disk has not enough room.
  - Remembers what it brought. O(state=absent) removes just that, unless it was changed since.
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
      - It changes nothing when there is nothing to fetch, link or remove.
options:
  path:
    description:
      - The model's folder.
    type: path
    required: true
  state:
    description:
      - V(present) fetches, V(absent) removes what earlier runs have brought.
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
      - What to fetch, a list of C(path), C(size) in bytes, C(sha256), C(mtime_ns) and C(provider), an index into O(providers).
    type: list
    elements: dict
    default: []
  links:
    description:
      - Links to make, targets by path.
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
      - For each provider a list of ways to it, each with C(address), C(port) and C(bind), this node's address on the same rail.
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
      - What must stay free on the disk.
    type: int
    default: 1073741824
  owner:
    description:
      - User id that the files belong to, V(-1) for the owner of the folder they come into.
    type: int
    default: -1
  group:
    description:
      - Group id that the files belong to, V(-1) for the group of the folder they come into.
    type: int
    default: -1
  max_seconds:
    description:
      - Seconds after which the fetching ends in any case.
    type: int
    default: 14400
  step:
    description:
      - The plugin on the controller calls the module for one step after the other; leave it out.
    type: str
    choices: [start, status, plain]
    default: plain
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Bring one shard from the head
  gb10.cluster.weights_copy:
    path: /srv/models/tiny
    fetch: "{{ plan.ranks[1].fetch }}"
    providers:
      - - {address: 192.168.200.11, port: 40123, bind: 192.168.200.12}
    password: "{{ secret_of_this_run }}"
  become: true

- name: Remove what was brought
  gb10.cluster.weights_copy:
    path: /srv/models/tiny
    state: absent
  become: true
"""

RETURN = r"""
copied:
  description: Paths that were fetched, or would be.
  returned: success
  type: list
  elements: str
  sample: [model-00002-of-00004.safetensors]
moved_bytes:
  description: Bytes that came over the fabric in this run, an earlier run's part not counted.
  returned: when something was fetched
  type: int
  sample: 2147483648
mb_per_second:
  description: Speed of the transfer itself, in 10^6 bytes a second.
  returned: when something was fetched
  type: int
  sample: 2410
seconds:
  description: Seconds from the first byte to the last, and the checking after it, C(total).
  returned: when something was fetched
  type: dict
  sample: {transfer: 0.9, total: 2.1}
removed:
  description: With O(state=absent), what was removed.
  returned: success
  type: list
  elements: str
  sample: []
left:
  description: With O(state=absent), what was brought and stays because it was changed since.
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
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.unit_job import Job, JobError


def check_room(params: dict[str, Any], path: str) -> None:
    """Fail if the files do not fit. Raises ManifestError."""
    problem = manifest.space_problem(path, params["fetch"], model_folder.staged(path), model_folder.free_bytes(path), params["reserve_bytes"])
    if problem:
        raise ManifestError(f"{problem}; nothing was copied")


def start(job: Job, params: dict[str, Any], path: str) -> None:
    """Start the fetch. Raises ManifestError, JobError, OSError."""
    for item in params["fetch"]:
        bad = manifest.check_path(str(item["path"]))
        if bad:
            raise ManifestError(f"{item['path']!r} {bad}: it is not copied")
    check_room(params, path)
    model_folder.Installer(path, params["owner"], params["group"]).folder(posixpath.dirname(path))
    files = [{"name": i["path"], "size": i["size"], "sha256": i["sha256"], "provider": i.get("provider", 0)} for i in params["fetch"]]
    spec = {key: params[key] for key in ("providers", "user", "password", "streams")}
    job.start_copy("fetch", {**spec, "files": files, "staging": model_folder.staging_path(path)}, params["max_seconds"])


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
            removed, left = model_folder.absent(node, path, module.check_mode)
            module.exit_json(changed=bool(removed), copied=[], removed=removed, left=left)
        if module.check_mode or not work:
            check_room(params, path)
            module.exit_json(**result)
        if params["fetch"]:
            result.update(fetch(module, job, path))
        model_folder.install(node, path, params["fetch"], params["links"], params["remove"], params["owner"], params["group"])
        job.stop()
    except (ManifestError, JobError, RecordError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path} cannot be written ({error.strerror}): run with become, and look for a read-only or full file system")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
