#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download a model from a Hugging Face hub with the image that will serve it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_download
short_description: Download a model from a Hugging Face hub
version_added: 0.1.0
description:
  - Runs C(huggingface_hub.snapshot_download) in a container of the image that serves the model, so that nothing is installed on the node.
  - Shows progress. An interrupted download goes on where it stopped, and goes on by itself when the controller is gone.
  - The token is handed over in a C(0600) file below C(/run) that is removed with the download; it is in no command line and in no log.
  - Refuses before the first byte when the disk has not enough room for what the profile says.
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
      - It always asks the hub; call it when the model is not whole.
options:
  path:
    description:
      - The model's folder.
    type: path
    required: true
  store:
    description:
      - The folder that is mounted into the container; O(path) lies below it.
    type: path
    required: true
  layout:
    description:
      - V(hub) makes a Hugging Face cache folder, V(directory) a plain one.
    type: str
    choices: [directory, hub]
    default: hub
  model:
    description:
      - The model's id on the hub.
    type: str
    required: true
  revision:
    description:
      - Branch or commit.
    type: str
    default: main
  image:
    description:
      - An image with Python and C(huggingface_hub); it has to be on the node.
    type: str
    required: true
  python:
    description:
      - The Python in the image.
    type: str
    default: python3
  token:
    description:
      - Access token for a closed model.
    type: str
    default: ''
  endpoint:
    description:
      - Another hub than huggingface.co, a URL.
    type: str
    default: ''
  size_gib:
    description:
      - The model's size in GiB, for the check of the disk; V(0) for unknown.
    type: float
    default: 0
  reserve_bytes:
    description:
      - What must stay free on the disk.
    type: int
    default: 1073741824
  name:
    description:
      - Names the unit and the container, C(gb10-copy-NAME-download).
    type: str
    default: weights
  max_seconds:
    description:
      - Seconds after which the download is ended in any case.
    type: int
    default: 86400
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
- name: Download a model into a Hugging Face cache
  gb10.cluster.weights_download:
    store: /srv/models
    path: /srv/models/hub/models--Qwen--Qwen3-8B
    model: Qwen/Qwen3-8B
    image: vllm/vllm-openai:v0.24.0
    token: "{{ vault_hf_token }}"
  become: true
"""

RETURN = r"""
model_bytes:
  description: Bytes below the model's folder at the end.
  returned: success
  type: int
  sample: 16392814592
"""

import os
import posixpath
import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import runner
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest, model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.unit_job import Job, JobError

SLICE_SECONDS = 2.0
PROGRAM = """
import os, sys
model, revision, layout, path = sys.argv[1:5]
from huggingface_hub import snapshot_download
where = {"cache_dir": os.path.dirname(path)} if layout == "hub" else {"local_dir": path}
snapshot_download(repo_id=model, revision=revision, **where)
"""


def size_of(path: str) -> int:
    """Return the bytes of all regular files below a folder."""
    total = 0
    for folder, _rest, names in os.walk(path):
        for name in names:
            try:
                info = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            total += info.st_blocks * 512 if name.endswith(".incomplete") else (0 if os.path.islink(os.path.join(folder, name)) else info.st_size)
    return total


def environment(params: Mapping[str, Any]) -> str:
    """Return the container's env file."""
    rows = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "0", "HOME": "/tmp"}  # noqa: S108  in the container
    if params["token"]:
        rows["HF_TOKEN"] = params["token"]
    if params["endpoint"]:
        rows["HF_ENDPOINT"] = params["endpoint"]
    for key, value in rows.items():
        if "\n" in value:
            raise ManifestError(f"{key} holds a line break: give it without")
    return "".join(f"{key}={value}\n" for key, value in rows.items())


def command(params: Mapping[str, Any], path: str, name: str, env_file: str) -> list[str]:
    """Return docker's words; the token is only in the env file."""
    store = posixpath.normpath(params["store"])
    return [
        "docker", "run", "--rm", "--pull", "never", "--name", name, "--network", "host", "--env-file", env_file, "--volume", f"{store}:{store}",
        "--entrypoint", params["python"], params["image"], "-c", PROGRAM, params["model"], params["revision"], params["layout"], path,
    ]  # fmt: skip


def why(log: str, params: Mapping[str, Any]) -> str:
    """Return the decisive line of a failed download, with its remedy."""
    text = log.replace(params["token"], "********") if params["token"] else log
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "no output"
    low = text.lower()
    remedy = "run again, it goes on from there"
    if "no module named" in low and "huggingface_hub" in low:
        remedy = "set weights_download_image to an image that has huggingface_hub"
    elif "401" in low or "403" in low or "gatedrepo" in low or "gated" in low:
        remedy = "set weights_hf_token to a token that may read it, and accept the model's terms on the hub"
    elif "no such image" in low or "unable to find image" in low:
        remedy = "run the image role first"
    elif "repositorynotfound" in low or "404" in low or "revisionnotfound" in low:
        remedy = "check model.id and model.revision of the profile, and the token for a closed model"
    elif "resolve" in low or "connection" in low or "max retries" in low or "network is unreachable" in low:
        remedy = "give the node a way to the hub (HF_ENDPOINT, a proxy), or put the model on one rank yourself and set weights_download to never"
    elif "no space" in low:
        remedy = "make room on the disk; it goes on from there"
    return f"downloading {params['model']} did not end well ({last}): {remedy}"


def main() -> None:
    """Do one step, or all."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "store": {"type": "path", "required": True},
            "layout": {"type": "str", "choices": ["directory", "hub"], "default": "hub"},
            "model": {"type": "str", "required": True},
            "revision": {"type": "str", "default": "main"},
            "image": {"type": "str", "required": True},
            "python": {"type": "str", "default": "python3"},
            "token": {"type": "str", "default": "", "no_log": True},
            "endpoint": {"type": "str", "default": ""},
            "size_gib": {"type": "float", "default": 0},
            "reserve_bytes": {"type": "int", "default": 1073741824},
            "name": {"type": "str", "default": "weights"},
            "max_seconds": {"type": "int", "default": 86400},
            "step": {"type": "str", "choices": ["start", "status", "plain"], "default": "plain"},
        },
        supports_check_mode=True,
    )
    params = module.params
    path = posixpath.normpath(params["path"])

    run = runner(module)
    job = Job(params["name"] + "-download", run)
    total = int(params["size_gib"] * manifest.GIB)
    try:
        if not (path + "/").startswith(posixpath.normpath(params["store"]) + "/"):
            raise ManifestError(
                f"{path} is not below {params['store']}, the folder that the download may write to: correct weights_path or weights_model_store"
            )
        need = max(0, total - size_of(path)) + params["reserve_bytes"]
        free = model_folder.free_bytes(path)
        if params["step"] != "status" and total and need > free:
            raise ManifestError(
                f"{manifest.human(free)} are free on the file system of {path}, and {manifest.human(need)} are needed for {params['model']}: "
                f"make {manifest.human(need - free)} of room, or point gb10_model_store to a larger disk; nothing was downloaded"
            )
        if module.check_mode:
            module.exit_json(changed=True, model_bytes=size_of(path))
        if params["step"] in ("start", "plain"):
            os.makedirs(params["store"], mode=0o755, exist_ok=True)
            folder = job.prepare()
            env_file = os.path.join(folder, "env")
            with os.fdopen(os.open(env_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as handle:
                handle.write(environment(params))
            run(["docker", "rm", "-f", job.unit])
            # The shell keeps the container's output and exit code for the next step, which may come from another run.
            shell = ["/bin/sh", "-c", 'report=$1; shift; "$@" >"$report.log" 2>&1; echo "{\\"rc\\": $?}" >"$report"', "sh", job.report]
            job.launch([*shell, *command(params, path, job.unit, env_file)], params["max_seconds"], f"download {params['model']}", ["UMask=0022"])
        if params["step"] == "start":
            module.exit_json(changed=False, model_bytes=0)
        end = time.monotonic() + (SLICE_SECONDS if params["step"] == "status" else params["max_seconds"])
        while job.active() and time.monotonic() < end:
            time.sleep(0.2)
        have = size_of(path)
        if job.active():
            module.exit_json(changed=False, model_bytes=have, report={"state": "running", "done": have, "moved": have, "total": total})
        report = job.read()
        log = ""
        if os.path.exists(job.report + ".log"):
            with open(job.report + ".log", encoding="utf-8", errors="replace") as handle:
                log = handle.read()[-20000:]
            os.unlink(job.report + ".log")
        job.stop()
        if report.get("rc") != 0:
            raise JobError(why(log, params))
    except (ManifestError, JobError) as error:
        if params["step"] != "status" and not module.check_mode:
            run(["docker", "rm", "-f", job.unit])
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path} cannot be written ({error.strerror}): run with become")
    module.exit_json(changed=True, model_bytes=have, report={"state": "done", "done": have, "moved": have, "total": max(total, have)})


if __name__ == "__main__":
    main()
