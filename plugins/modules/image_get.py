#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pull an image, build it from a folder with a Dockerfile on the node, save it as an archive, or load it from one."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_get
short_description: Pull, build, save or load an image
description:
  - Pulls by digest if one is given, and tags the result. Or builds the Dockerfile of a folder. A build that fails leaves the image of this name as it is.
  - Or saves it as the archive C(image.tar) of a folder, which M(gb10.cluster.weights_copy) can offer, or loads this archive.
  - BuildKit is used if the node has it (C(docker buildx version)).
  - Shows progress. The work is a transient systemd unit, so that it continues if the connection breaks.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - It does its work on each call. Call it if the image or the archive is not available.
options:
  how:
    description:
      - What to do.
    type: str
    choices: [pull, build, save, load]
    required: true
  reference:
    description:
      - Name and tag of the image.
    type: str
    required: true
  digest:
    description:
      - Digest to pull, C(sha256:...).
    type: str
    default: ''
  context:
    description:
      - Folder on the node with the Dockerfile and what it copies.
    type: path
  folder:
    description:
      - Folder of the archive, for V(save) and V(load). V(save) empties it.
    type: path
  build_args:
    description:
      - Build arguments. Do not put secrets here, because they stay in the image's history.
    type: dict
    default: {}
  label:
    description:
      - Hash of the build, stored as a label of the image.
    type: str
    default: ''
  name:
    description:
      - Names the unit, C(gb10-copy-NAME-get).
    type: str
    default: image
  max_seconds:
    description:
      - Seconds after which the work is ended.
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
- name: Pull by digest
  gb10.cluster.image_get:
    how: pull
    reference: vllm/vllm-openai:v0.24.0
    digest: sha256:0b6a0cbb2a0b1a6a9f8b8b0a7a5d4f7d2f2b0d7e6c5b4a39281706f5e4d3c2b1
  become: true

- name: Build
  gb10.cluster.image_get:
    how: build
    reference: vllm-dspark-runtime:mine
    context: /var/lib/gb10-cluster/build-pair1
    build_args: {MAX_JOBS: "8"}
  become: true
"""

RETURN = r"""
id:
  description: The image's id.
  returned: success
  type: str
  sample: sha256:9306118e50b2...
files:
  description: The archive, in the form of O(gb10.cluster.weights_copy#module:fetch).
  returned: with O(how=save)
  type: list
  elements: dict
  sample: [{path: image.tar, size: 1073752064, sha256: 5d1c..., mtime_ns: 1795241700000000000}]
"""

import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Runner, runner
from ansible_collections.gb10.cluster.plugins.module_utils._node import images, manifest, model_folder, transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.images import ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._node.transfer import Job, JobError

ARCHIVE = "image.tar"
RESERVE = 1 << 30
WRONG = ("error", "denied", "not found", "failed", "cannot", "no such", "no space")
REMEDIES = (
    (
        "no such host|lookup|connection|timeout",
        "give the node a way to the registry, or load the image on one rank (docker load) and the others get it from there",
    ),
    (
        "denied|unauthorized|not found|manifest unknown",
        "check image.reference of the profile, and log in on the node as root (docker login) for a private image",
    ),
    ("no space", "free space in Docker's data folder"),
)


def pull_commands(reference: str, digest: str) -> list[list[str]]:
    """Return the docker commands of a pull, in order."""
    if not digest:
        return [["docker", "pull", reference]]
    head, slash, tail = reference.rpartition("/")
    pinned = f"{head}{slash}{tail.split(':', 1)[0]}@{digest}"
    return [["docker", "pull", pinned], ["docker", "tag", pinned, reference]]


def commands(params: Mapping[str, Any], run: Runner) -> list[list[str]]:
    """Return the commands of the work, in order."""
    if params["how"] == "pull":
        return pull_commands(params["reference"], params["digest"])
    if params["how"] == "save":
        archive = os.path.join(params["folder"], ARCHIVE)
        return [["docker", "save", "--output", archive, params["reference"]], ["sha256sum", archive]]
    if params["how"] == "load":
        return [["docker", "load", "--quiet", "--input", os.path.join(params["folder"], ARCHIVE)]]
    return [images.build_command(params, buildkit=run(["docker", "buildx", "version"])[0] == 0)]


def progress(log: str) -> str:
    """Return how far it is, from the output so far."""
    layers = {line.split(":", 1)[0] for line in log.splitlines() if line.endswith((": Pulling fs layer", ": Already exists"))}
    done = {line.split(":", 1)[0] for line in log.splitlines() if line.endswith((": Pull complete", ": Already exists"))}
    step, last = images.build_step(log), transfer.last_line(log)[:100] if log.strip() else ""
    if layers and not (step and len(done) == len(layers)):
        return f"{len(done)} of {len(layers)} layers"
    return f"{step}  {last}" if step else last


def report_of(log: str) -> dict[str, Any]:
    """Return the progress for the action plugin: a text and, if it is known, the share of the layers or build steps."""
    layers = re.match(r"(\d+) of (\d+) layers", text := progress(log))
    share = 100 * int(layers[1]) // int(layers[2]) if layers else images.build_share(log)
    return {"text": text, **({"percent": share} if share is not None else {})}


def explain_failure(log: str, params: Mapping[str, Any]) -> str:
    """Return the decisive line of failed work, with its remedy."""
    if params["how"] == "build":
        return images.explain_failure(log, params["reference"])
    doing = {"pull": "pulling", "save": "saving", "load": "loading"}[params["how"]]
    wrong = [line for line in log.splitlines() if any(word in line.lower() for word in WRONG)]
    last = transfer.last_line("\n".join(wrong) or log)
    return f"{doing} {params['reference']} failed ({last}): {transfer.remedy_of(last, REMEDIES, 'run again, finished layers are kept')}"


def make_room(reference: str, folder: str) -> None:
    """Empty the folder of the archive, and check that the image fits. Raises ImageError, DockerError, OSError."""
    shutil.rmtree(folder, ignore_errors=True)
    image = images.inspect_image(reference)
    if image is None:
        raise ImageError(f"{reference} is not on this node any more: run again")
    free, need = model_folder.free_bytes(folder), int(image.get("Size") or 0) + RESERVE
    if need > free:
        raise ImageError(
            f"{manifest.human(free)} are free for {folder}, and up to {manifest.human(need)} are needed to send {reference}: "
            "free space there (docker image prune), or set image_distribution to pull"
        )
    os.makedirs(folder, mode=0o700)


def archive_of(folder: str, log: str) -> list[dict[str, Any]]:
    """Return the saved archive, with the hash that sha256sum has printed last. Raises OSError."""
    info = os.stat(os.path.join(folder, ARCHIVE))
    return [{"path": ARCHIVE, "size": info.st_size, "sha256": transfer.last_line(log).split()[0], "mtime_ns": info.st_mtime_ns}]


def main() -> None:
    """Pull, build, save or load."""
    module = AnsibleModule(
        argument_spec={
            "how": {"type": "str", "choices": ["pull", "build", "save", "load"], "required": True},
            "reference": {"type": "str", "required": True},
            "digest": {"type": "str", "default": ""},
            "context": {"type": "path"},
            "folder": {"type": "path"},
            "build_args": {"type": "dict", "default": {}},
            "label": {"type": "str", "default": ""},
            "name": {"type": "str", "default": "image"},
            "max_seconds": {"type": "int", "default": 14400},
            "step": transfer.STEP,
        },
        required_if=[("how", "build", ("context",)), *(("how", how, ("folder",)) for how in ("save", "load"))],
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=True, id="", files=[])
    run, building = runner(module), params["how"] == "build"
    job = Job(params["name"] + "-get", run)

    def start() -> None:
        if params["how"] == "save":
            make_room(params["reference"], params["folder"])
        job.prepare()
        properties = ["Environment=HOME=/root", *(transfer.BOUNDS if params["how"] in ("save", "load") else [])]
        job.start_commands(commands(params, run), params["max_seconds"], f"{params['how']} {params['reference']}", properties)

    try:
        transfer.follow(module, job, start, lambda: report_of(job.output()))
        rc, log = job.read().get("rc"), job.output()
        job.stop()
        if rc is None and building:
            where = images.build_step(log) or "its first step"
            limit = f"after {params['max_seconds']} s or from outside"
            raise ImageError(f"building {params['reference']} was ended in {where}, {limit}: set a longer image_timeout, or run again")
        if rc != 0:
            raise ImageError(explain_failure(log, params))
        image = images.inspect_image(params["reference"])
        if image is None:
            raise ImageError(f"docker succeeded, but {params['reference']} is not in the engine: see journalctl -u docker on the node")
        files = archive_of(params["folder"], log) if params["how"] == "save" else []
    except (ImageError, JobError, DockerError) as error:
        job.stop()
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be written ({error.strerror}): run with become")
    module.exit_json(changed=True, id=(image or {}).get("Id"), files=files, report={"state": "done"})


if __name__ == "__main__":
    main()
