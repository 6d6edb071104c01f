#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pull an image, or build it from Dockerfiles that stand on one another."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_get
short_description: Pull an image, or build it
version_added: 0.1.0
description:
  - Pulls by digest where one is given and names the result as the profile does, or builds several Dockerfiles one after the other, each
    with the last one's result as the build argument C(BASE_IMAGE).
  - Shows progress. The work is a transient systemd unit, so that it goes on when the connection breaks.
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
      - It always pulls or builds; call it when the image is not there.
options:
  how:
    description:
      - Whether to pull or to build.
    type: str
    choices: [pull, build]
    required: true
  reference:
    description:
      - Name and tag that the image gets.
    type: str
    required: true
  digest:
    description:
      - Pull exactly this, C(sha256:...).
    type: str
    default: ''
  context:
    description:
      - Folder on the node with the Dockerfiles and what they copy.
    type: path
  dockerfiles:
    description:
      - Dockerfiles below O(context), in order.
    type: list
    elements: str
    default: [Dockerfile]
  build_args:
    description:
      - Build arguments for all of them. Not for secrets, they stay in the image's history.
    type: dict
    default: {}
  label:
    description:
      - Hash of the context, kept as a label of the image.
    type: str
    default: ''
  name:
    description:
      - Names the unit, C(gb10-copy-NAME-get).
    type: str
    default: image
  max_seconds:
    description:
      - Seconds after which it is ended in any case.
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
- name: Pull by digest
  gb10.cluster.image_get:
    how: pull
    reference: vllm/vllm-openai:v0.24.0
    digest: sha256:0b6a0cbb2a0b1a6a9f8b8b0a7a5d4f7d2f2b0d7e6c5b4a39281706f5e4d3c2b1
  become: true

- name: Build an overlay
  gb10.cluster.image_get:
    how: build
    reference: vllm-dspark-runtime:mine
    context: /var/lib/gb10-cluster/build/pair1
    dockerfiles: [Dockerfile.overlay, nvfp4/Dockerfile.stage-a]
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
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._docker import image_plan, images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import runner
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.unit_job import Job, JobError

SLICE_SECONDS = 2.0


def commands(params: Mapping[str, Any]) -> list[list[str]]:
    """Return docker's command lines, in order. Raises ImageError."""
    reference = params["reference"]
    if params["how"] == "pull":
        if not params["digest"]:
            return [["docker", "pull", reference]]
        head, _sep, tail = reference.rpartition("/")
        name = (head + "/" if head else "") + tail.split(":", 1)[0]
        pinned = f"{name}@{params['digest']}"
        return [["docker", "pull", pinned], ["docker", "tag", pinned, reference]]
    out = []
    files = list(params["dockerfiles"])
    for index, dockerfile in enumerate(files):
        where = os.path.join(params["context"], dockerfile)
        if os.path.isabs(dockerfile) or ".." in dockerfile.split("/") or not os.path.isfile(where):
            raise ImageError(f"{dockerfile} is not in the build context: put it there, or correct image.build.dockerfiles of the profile")
        last = index == len(files) - 1
        argv = ["docker", "build", "--network", "host", "--file", where, "--tag", reference if last else stage(reference, index)]
        arguments = {**params["build_args"], **({"BASE_IMAGE": stage(reference, index - 1)} if index else {})}
        for key, value in arguments.items():
            argv += ["--build-arg", f"{key}={value}"]
        if last and params["label"]:
            argv += ["--label", f"{image_plan.BUILD_LABEL}={params['label']}"]
        out.append([*argv, params["context"]])
    return out


def script(todo: Sequence[Sequence[str]], report: str) -> str:
    """Return a shell script that runs command after command, stops at the first that fails, and leaves output and exit code behind."""
    lines = [" ".join(shlex.quote(word) for word in argv) for argv in todo]
    return "( " + " && ".join(lines) + f" ) >{shlex.quote(report)}.log 2>&1\necho '{{\"rc\": '$?'}}' >{shlex.quote(report)}\n"


def stage(reference: str, index: int) -> str:
    """Return the name of an intermediate result."""
    return f"{reference if ':' in reference.rsplit('/', 1)[-1] else reference + ':latest'}-step{index + 1}"


def progress(log: str) -> str:
    """Return how far it is, from the output so far."""
    layers = {line.split(":", 1)[0] for line in log.splitlines() if line.endswith((": Pulling fs layer", ": Already exists"))}
    done = {line.split(":", 1)[0] for line in log.splitlines() if line.endswith((": Pull complete", ": Already exists"))}
    if layers:
        return f"{len(done)} of {len(layers)} layers"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:100] if lines else ""


def why(log: str, params: Mapping[str, Any]) -> str:
    """Return the decisive line of a failed pull or build, with its remedy."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = [line for line in lines if re.search(r"error|denied|not found|failed|cannot|no such|no space", line, re.IGNORECASE)]
    last = (wrong or lines or ["no output"])[-1][:300]
    if params["how"] == "build":
        return f"building {params['reference']} did not end well ({last}): correct the Dockerfiles in image_build_context; finished steps are kept"
    low = last.lower()
    remedy = "run again, finished layers are kept"
    if "no such host" in low or "lookup" in low or "connection" in low or "timeout" in low:
        remedy = "give the node a way to the registry, or load the image on one rank (docker load) and the others get it from there"
    elif "denied" in low or "unauthorized" in low or "not found" in low or "manifest unknown" in low:
        remedy = "check image.reference of the profile, and log in on the node as root (docker login) for a closed one"
    elif "no space" in low:
        remedy = "make room where Docker keeps its data"
    return f"pulling {params['reference']} did not end well ({last}): {remedy}"


def main() -> None:
    """Do one step, or all."""
    module = AnsibleModule(
        argument_spec={
            "how": {"type": "str", "choices": ["pull", "build"], "required": True},
            "reference": {"type": "str", "required": True},
            "digest": {"type": "str", "default": ""},
            "context": {"type": "path"},
            "dockerfiles": {"type": "list", "elements": "str", "default": ["Dockerfile"]},
            "build_args": {"type": "dict", "default": {}},
            "label": {"type": "str", "default": ""},
            "name": {"type": "str", "default": "image"},
            "max_seconds": {"type": "int", "default": 14400},
            "step": {"type": "str", "choices": ["start", "status", "plain"], "default": "plain"},
        },
        required_if=[("how", "build", ("context",))],
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=True, id="")

    job = Job(params["name"] + "-get", runner(module))
    log_path = job.report + ".log"

    def log() -> str:
        try:
            with open(log_path, encoding="utf-8", errors="replace") as handle:
                return handle.read()
        except OSError:
            return ""

    try:
        if params["step"] in ("start", "plain"):
            todo = commands(params)
            program = os.path.join(job.prepare(), "run.sh")
            with open(program, "w", encoding="utf-8") as handle:
                handle.write(script(todo, job.report))
            job.launch(["/bin/sh", program], params["max_seconds"], f"{params['how']} {params['reference']}", ["Environment=HOME=/root"])
        if params["step"] == "start":
            module.exit_json(changed=False, id="")
        end = time.monotonic() + (SLICE_SECONDS if params["step"] == "status" else params["max_seconds"])
        while job.active() and time.monotonic() < end:
            time.sleep(0.1)
        if job.active():
            module.exit_json(changed=False, id="", report={"state": "running", "says": progress(log())})
        report, text = job.read(), log()
        if os.path.exists(log_path):
            os.unlink(log_path)
        job.stop()
        if report.get("rc") != 0:
            raise ImageError(why(text, params))
        image = images.inspect_image(params["reference"])
        if image is None:
            raise ImageError(f"docker said that it has {params['reference']} and does not know it: look at journalctl -u docker on the node")
    except (ImageError, JobError, DockerError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be written ({error.strerror}): run with become")
    module.exit_json(changed=True, id=(image or {}).get("Id"), report={"state": "done", "says": ""})


if __name__ == "__main__":
    main()
