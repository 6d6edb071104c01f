#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Download a model from a Hugging Face hub with the image that will serve it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_download
short_description: Download a model from a Hugging Face hub
description:
  - Runs C(huggingface_hub.snapshot_download) in a container of the image that serves the model, so that nothing is installed on the node.
  - Shows progress. An interrupted download resumes where it stopped. It continues if the controller is gone.
  - The token is in a C(0600) file below C(/run) that is removed with the download. It is not in a command line or a log.
  - Fails before the first byte if there is not enough disk space for the size in the profile.
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
      - It always connects to the hub. Call it if the model is not complete.
options:
  path:
    description:
      - The model's folder.
    type: path
    required: true
  store:
    description:
      - The folder that is mounted into the container. O(path) must be below it.
    type: path
    required: true
  layout:
    description:
      - V(hub) creates a Hugging Face cache folder, V(directory) a plain one.
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
      - An image on the node with Python and C(huggingface_hub).
    type: str
    required: true
  python:
    description:
      - The Python in the image.
    type: str
    default: python3
  token:
    description:
      - Access token for a private model.
    type: str
    default: ''
  endpoint:
    description:
      - URL of another hub than huggingface.co.
    type: str
    default: ''
  size_gib:
    description:
      - The model's size in GiB, for the check of the disk space. V(0) for unknown.
    type: float
    default: 0
  reserve_bytes:
    description:
      - Bytes that must stay free on the disk.
    type: int
    default: 1073741824
  name:
    description:
      - Names the unit and the container, C(gb10-copy-NAME-download).
    type: str
    default: weights
  max_seconds:
    description:
      - Seconds after which the download is ended.
    type: int
    default: 86400
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

import contextlib
import os
import posixpath
import stat
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import runner
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest, model_folder, transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._node.transfer import Job, JobError

REMEDIES = (
    ("no module named.*huggingface_hub", "set weights_download_image to an image that has huggingface_hub"),
    ("401|403|gated", "set weights_hf_token to a token that may read it, and accept the model's terms on the hub"),
    ("no such image|unable to find image", "run the image role first"),
    ("repositorynotfound|404|revisionnotfound", "check model.id and model.revision of the profile, and the token for a private model"),
    (
        "resolve|connection|max retries|network is unreachable",
        "give the node a way to the hub (HF_ENDPOINT, a proxy), or put the model on one rank yourself and set weights_download to never",
    ),
    ("no space", "free space on the disk; the next run resumes"),
)
PROGRAM = """
import os, sys
model, revision, layout, path = sys.argv[1:5]
from huggingface_hub import snapshot_download
where = {"cache_dir": os.path.dirname(path)} if layout == "hub" else {"local_dir": path}
snapshot_download(repo_id=model, revision=revision, **where)
"""


def size_of(path: str) -> int:
    """Return the bytes of all regular files below a folder. Of an unfinished file, its blocks count."""
    total = 0
    with contextlib.suppress(OSError):  # a folder that the download has removed meanwhile
        for name, entry in bounded.below(path):
            with contextlib.suppress(OSError):  # renamed by the download
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    total += info.st_blocks * 512 if name.endswith(".incomplete") else info.st_size
    return total


def forget(path: str, written: bool = False) -> None:
    """Take the files below a folder out of the page cache; `written`: to the disk before. The container can replace them: no link is followed."""
    with contextlib.suppress(OSError):
        for _name, entry in bounded.below(path):
            with contextlib.suppress(OSError, transfer.CopyError):
                descriptor = transfer.open_file(entry.path)
                try:
                    (transfer.forget_written if written else transfer.forget)(descriptor)
                finally:
                    os.close(descriptor)


def environment(params: Mapping[str, Any]) -> str:
    """Return the container's env file."""
    rows = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "0", "HOME": "/tmp"}  # noqa: S108  in the container
    if params["token"]:
        rows["HF_TOKEN"] = params["token"]
    if params["endpoint"]:
        rows["HF_ENDPOINT"] = params["endpoint"]
    for key, value in rows.items():
        if "\n" in value:
            raise ManifestError(f"{key} has a line break: remove it")
    return "".join(f"{key}={value}\n" for key, value in rows.items())


def command(params: Mapping[str, Any], path: str, name: str, env_file: str) -> list[str]:
    """Return the docker command. The token is only in the env file."""
    store = posixpath.normpath(params["store"])
    return [
        "docker", "run", "--rm", "--pull", "never", "--name", name, "--network", "host", "--env-file", env_file, "--volume", f"{store}:{store}",
        "--entrypoint", params["python"], params["image"], "-c", PROGRAM, params["model"], params["revision"], params["layout"], path,
    ]  # fmt: skip


def explain_failure(log: str, params: Mapping[str, Any]) -> str:
    """Return the last line of a failed download, with its remedy."""
    text = log.replace(params["token"], "********") if params["token"] else log
    remedy = transfer.remedy_of(text, REMEDIES, "run again, it goes on from there")
    return f"downloading {params['model']} failed ({transfer.last_line(text)}): {remedy}"


def check_place(params: Mapping[str, Any], path: str) -> None:
    """Fail if the download may not write to the folder, or if there is not enough room. Raises ManifestError."""
    if not (path + "/").startswith(posixpath.normpath(params["store"]) + "/"):
        raise ManifestError(f"{path} is not below {params['store']}, the folder that the download may write to: correct weights_path or gb10_model_store")
    size, free = int(params["size_gib"] * manifest.GIB), model_folder.free_bytes(path)
    need = max(0, size - size_of(path)) + params["reserve_bytes"]
    if size and need > free:
        raise ManifestError(
            f"{manifest.human(free)} are free on the file system of {path}, and {manifest.human(need)} are needed for {params['model']}: "
            f"free {manifest.human(need - free)}, or set gb10_model_store to a larger disk; nothing was downloaded"
        )


def start(job: Job, params: Mapping[str, Any], path: str) -> None:
    """Start the container. Raises ManifestError, JobError, OSError."""
    job.run(["docker", "rm", "-f", job.unit])
    os.makedirs(params["store"], mode=0o755, exist_ok=True)
    env_file = os.path.join(job.prepare(), "env")
    with os.fdopen(os.open(env_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as handle:
        handle.write(environment(params))
    job.start_commands([command(params, path, job.unit, env_file)], params["max_seconds"], f"download {params['model']}", ["UMask=0022"])


def main() -> None:
    """Download."""
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
            "step": transfer.STEP,
        },
        supports_check_mode=True,
    )
    params, path = module.params, posixpath.normpath(module.params["path"])
    job, total = Job(params["name"] + "-download", runner(module)), int(params["size_gib"] * manifest.GIB)

    def progress() -> dict[str, int]:
        forget(path)  # the container writes with no regard to the page cache
        return {"done": size_of(path), "total": total}

    try:
        if params["step"] != "status":
            check_place(params, path)
        if module.check_mode:
            module.exit_json(changed=True, model_bytes=size_of(path))
        transfer.follow(module, job, lambda: start(job, params, path), progress)
        rc, log = job.read().get("rc"), job.output()
        job.stop()
        if rc != 0:
            job.run(["docker", "rm", "-f", job.unit])  # it outlives a unit that was ended by its time limit
            raise JobError(explain_failure(log, params))
    except (ManifestError, JobError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path} cannot be written ({error.strerror}): run with become")
    forget(path, written=True)
    done = size_of(path)
    module.exit_json(changed=True, model_bytes=done, report={"state": "done", "done": done, "total": max(total, done)})


if __name__ == "__main__":
    main()
