#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pull an image, or build it in steps from sources on the node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_get
short_description: Pull an image, or build it
version_added: 0.1.0
description:
  - Pulls by digest if one is given, and tags the result. Or builds steps one after the other, installs pinned packages over the last one, and
    runs checks in the result. An image that fails a check does not get its name.
  - BuildKit is used if the node has it (C(docker buildx version)).
  - Shows progress. The work is a transient systemd unit, so that it continues if the connection breaks.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - It always pulls or builds. Call it if the image is not available.
options:
  how:
    description:
      - Whether to pull or to build.
    type: str
    choices: [pull, build]
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
      - Folder on the node with the sources, as M(gb10.cluster.image_sources) leaves it.
    type: path
  steps:
    description:
      - What is built, in this order. The last one is the image.
    type: list
    elements: dict
    default: []
    suboptions:
      context:
        description: Build context below O(context).
        type: str
        default: .
      dockerfile:
        description: Dockerfile below O(context).
        type: str
        default: Dockerfile
      args:
        description: Build arguments. Do not put secrets here, because they stay in the image's history.
        type: dict
        default: {}
      base_arg:
        description: Build argument that gets the image of the step before.
        type: str
      target:
        description: Stage of the Dockerfile.
        type: str
      tag:
        description: Name of the result if it is not the last step.
        type: str
  pins:
    description:
      - Python packages with their versions that are installed over the last step, without their dependencies.
    type: list
    elements: str
    default: []
  verify:
    description:
      - Checks in the finished image, without network and GPU, each for at most O(verify_seconds).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What it proves.
        type: str
        required: true
      command:
        description: The command with its arguments.
        type: list
        elements: str
        required: true
      expect:
        description: Text that the output must contain.
        type: str
  verify_seconds:
    description:
      - Seconds after which a check is ended.
    type: int
    default: 300
  build_args:
    description:
      - Build arguments for all steps, over theirs. Do not put secrets here, because they stay in the image's history.
    type: dict
    default: {}
  label:
    description:
      - Hash of the build data, stored as a label of the image.
    type: str
    default: ''
  labels:
    description:
      - Labels with the origin of the sources, from M(gb10.cluster.image_sources).
    type: dict
    default: {}
  name:
    description:
      - Names the unit, C(gb10-copy-NAME-get).
    type: str
    default: image
  max_seconds:
    description:
      - Seconds after which the pull or build is ended.
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

- name: Build an overlay and a stage on it
  gb10.cluster.image_get:
    how: build
    reference: vllm-dspark-runtime:mine
    context: /var/lib/gb10-cluster/build-pair1
    steps:
      - {context: recipe/overlay, dockerfile: recipe/Dockerfile.overlay}
      - {dockerfile: recipe/Dockerfile.stage-a, base_arg: BASE_IMAGE}
    pins: [nvidia-cutlass-dsl==4.5.0]
    verify:
      - {name: vLLM can be imported, command: [python3, -c, "import vllm; print(vllm.__version__)"], expect: "0.21"}
  become: true
"""

RETURN = r"""
id:
  description: The image's id.
  returned: success
  type: str
  sample: sha256:9306118e50b2...
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._docker import build_plan, images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.build_sources import check_steps
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Runner, runner
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import unit_job
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.unit_job import Job, JobError

STEP: dict[str, Any] = {
    "context": {"type": "str", "default": "."},
    "dockerfile": {"type": "str", "default": "Dockerfile"},
    "args": {"type": "dict", "default": {}},
    "base_arg": {"type": "str"},
    "target": {"type": "str"},
    "tag": {"type": "str"},
}
CHECK: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "command": {"type": "list", "elements": "str", "required": True},
    "expect": {"type": "str"},
}
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


def build_commands(params: Mapping[str, Any], run: Runner, folder: str) -> list[list[str]]:
    """Return the docker commands of a build, and write the Dockerfile of the pins into `folder`. Raises ImageError, OSError."""
    check_steps(params["context"], params["steps"], params["context"])
    pins_folder = os.path.join(folder, "pins")
    if params["pins"]:
        os.mkdir(pins_folder)
        base = build_plan.tags(params["reference"], params["steps"], params["pins"])[-2]
        with open(os.path.join(pins_folder, "Dockerfile"), "w", encoding="utf-8") as handle:
            handle.write(build_plan.pins_dockerfile(base, params["pins"]))
    return build_plan.commands(params, pins_folder, run(["docker", "buildx", "version"])[0] == 0)


def verify(params: Mapping[str, Any], run: Runner) -> None:
    """Run the checks in the image that was built. Raises ImageError."""
    container = f"gb10-verify-{params['name']}"
    for check in params["verify"]:
        run(["docker", "rm", "--force", container])
        rc, out, err = run(build_plan.verify_command(build_plan.candidate(params["reference"]), container, check["command"]))
        if rc == 0:
            ended, out, _err = run(["timeout", str(params["verify_seconds"]), "docker", "wait", container])
            code = out.strip() if ended == 0 else ""
            _rc, out, err = run(["docker", "logs", "--tail", "1000", container])
        else:
            code = str(rc)
        run(["docker", "rm", "--force", container])
        fault = build_plan.verify_fault(check, code, out + err)
        if fault:
            raise ImageError(
                f"{params['reference']} was built, but {fault}: it stays {build_plan.candidate(params['reference'])} on this node; correct image.build of "
                "the profile and run again"
            )


def name_it(params: Mapping[str, Any], run: Runner) -> None:
    """Give a verified image its name. Raises ImageError."""
    made = build_plan.candidate(params["reference"])
    rc, out, err = run(["docker", "tag", made, params["reference"]])
    if rc != 0:
        raise ImageError(f"docker cannot tag {params['reference']} ({unit_job.last_line(err or out)}): see journalctl -u docker on the node")
    run(["docker", "rmi", made])


def progress(log: str) -> str:
    """Return how far it is, from the output so far."""
    layers = {line.split(":", 1)[0] for line in log.splitlines() if line.endswith((": Pulling fs layer", ": Already exists"))}
    done = {line.split(":", 1)[0] for line in log.splitlines() if line.endswith((": Pull complete", ": Already exists"))}
    if layers:
        return f"{len(done)} of {len(layers)} layers"
    step, last = build_plan.step_of(log), unit_job.last_line(log)[:100] if log.strip() else ""
    return last if not step or last.endswith(step) else f"{step}  {last}"


def report_of(log: str) -> dict[str, Any]:
    """Return the progress for the action plugin: a text and, if it is known, the share of the layers or build steps."""
    layers = re.match(r"(\d+) of (\d+) layers", text := progress(log))
    share = 100 * int(layers[1]) // int(layers[2]) if layers else build_plan.share_of(log)
    return {"text": text, **({"percent": share} if share is not None else {})}


def explain_failure(log: str, params: Mapping[str, Any]) -> str:
    """Return the decisive line of a failed pull or build, with its remedy."""
    if params["how"] == "build":
        return build_plan.explain_failure(log, params["reference"])
    wrong = [line for line in log.splitlines() if any(word in line.lower() for word in WRONG)]
    last = unit_job.last_line("\n".join(wrong) or log)
    return f"pulling {params['reference']} failed ({last}): {unit_job.remedy_of(last, REMEDIES, 'run again, finished layers are kept')}"


def main() -> None:
    """Pull or build."""
    module = AnsibleModule(
        argument_spec={
            "how": {"type": "str", "choices": ["pull", "build"], "required": True},
            "reference": {"type": "str", "required": True},
            "digest": {"type": "str", "default": ""},
            "context": {"type": "path"},
            "steps": {"type": "list", "elements": "dict", "default": [], "options": STEP},
            "pins": {"type": "list", "elements": "str", "default": []},
            "verify": {"type": "list", "elements": "dict", "default": [], "options": CHECK},
            "verify_seconds": {"type": "int", "default": 300},
            "build_args": {"type": "dict", "default": {}},
            "label": {"type": "str", "default": ""},
            "labels": {"type": "dict", "default": {}},
            "name": {"type": "str", "default": "image"},
            "max_seconds": {"type": "int", "default": 14400},
            "step": unit_job.STEP,
        },
        required_if=[("how", "build", ("context", "steps"))],
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=True, id="")
    run, building = runner(module), params["how"] == "build"
    job = Job(params["name"] + "-get", run)

    def start() -> None:
        folder = job.prepare()
        todo = build_commands(params, run, folder) if building else pull_commands(params["reference"], params["digest"])
        job.start_commands(todo, params["max_seconds"], f"{params['how']} {params['reference']}", ["Environment=HOME=/root"])

    try:
        unit_job.follow(module, job, start, lambda: report_of(job.output()))
        rc, log = job.read().get("rc"), job.output()
        if rc == 0 and building:
            verify(params, run)
            name_it(params, run)
        job.stop()
        if rc is None and building:
            where = build_plan.step_of(log) or "its first step"
            limit = f"after {params['max_seconds']} s or from outside"
            raise ImageError(f"building {params['reference']} was ended in {where}, {limit}: set a longer image_timeout, or run again")
        if rc != 0:
            raise ImageError(explain_failure(log, params))
        image = images.inspect_image(params["reference"])
        if image is None:
            raise ImageError(f"docker succeeded, but {params['reference']} is not in the engine: see journalctl -u docker on the node")
    except (ImageError, JobError, DockerError) as error:
        job.stop()
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be written ({error.strerror}): run with become")
    module.exit_json(changed=True, id=(image or {}).get("Id"), report={"state": "done"})


if __name__ == "__main__":
    main()
