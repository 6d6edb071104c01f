#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one rank of a serving group has on its node: releases, containers, memory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_rank_info
short_description: Read what one rank of a serving group has on its node
version_added: 0.1.0
description:
  - Reads the releases that the role P(gb10.cluster.vllm_tp2#role) keeps on the node, the containers of the group, and the node's memory.
  - Answers without a Docker Engine too; RV(engine_error) then says what is missing.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  group:
    description: The serving group's name.
    type: str
    required: true
  directory:
    description: Where the role keeps the group's files on the node.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
  image:
    description: An image to look for on the node, by name; empty to look for none.
    type: str
    default: ""
  model:
    description: The model's folder on the node, plain or of a Hugging Face cache, to read its C(config.json) from; empty to read none.
    type: str
    default: ""
  free_share:
    description:
      - The share of the node's memory, V(0.0) to V(1.0), that a start wants available, while no container of the group runs.
      - RV(in_the_way) says whether it is so.
    type: float
  wait:
    description: How many seconds to wait for O(free_share); where it does not come, the module fails with a sentence. Without it, nothing is waited for.
    type: float
  docker_socket:
    description: The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Which release runs on this rank?
  gb10.cluster.vllm_rank_info:
    group: pair1
  register: rank
"""

RETURN = r"""
current:
  description: The release that C(current) points at; empty where there is none.
  type: str
  returned: always
  sample: 4f0c61d2a9be
releases:
  description:
    - The releases kept on the node, the newest first; C(good) tells that its gate has passed.
    - C(files) has mode and SHA-256 of the files that a role writes, as one string each; empty for one that cannot be read.
  type: list
  elements: dict
  returned: always
  sample: [{id: 4f0c61d2a9be, good: true, time: 1795239181, files: {compose.yaml: 0640 9f86d0..., release.json: 0640 2c26b4...}}]
containers:
  description: The group's containers on this node, stopped ones included, found by their label.
  type: list
  elements: dict
  returned: always
  sample: [{name: gb10-pair1-rank0, status: running, labels: {gb10.cluster.release: 4f0c61d2a9be}}]
receipt:
  description: The gate's receipt of the current release; empty where there is none.
  type: dict
  returned: always
  sample: {passed: true, seconds: 412.0}
image:
  description: What the node has under the name in O(image); C(exists) is false where it has nothing, or no name was given.
  type: dict
  returned: always
  sample: {exists: true, id: "sha256:8d0f...", repo_digests: ["vllm/vllm-openai@sha256:51a6..."]}
model_config:
  description: The content of the model's C(config.json), of the revision in C(refs/main) where O(model) is a cache; empty where there is none.
  type: dict
  returned: always
  sample: {num_hidden_layers: 61, num_attention_heads: 128}
devices:
  description: Which of the devices that a rank may be given exist on the node.
  type: list
  elements: str
  returned: always
  sample: [/dev/infiniband]
memory:
  description: The node's memory in KiB.
  type: dict
  returned: always
  sample: {total_kib: 127602688, free_kib: 98304000, available_kib: 99000000}
in_the_way:
  description: What is in the way of a start, a rank that runs or too little memory; empty where nothing is, or without O(free_share).
  type: str
  returned: always
  sample: gb10-pair1-rank0 still runs
engine_error:
  description: Why the Docker Engine could not be asked, as a sentence; empty where it answered.
  type: str
  returned: always
  sample: ""
"""

import hashlib
import json
import os
import socket
import stat
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils import container_log, docker_socket, layers_engine

NO_IMAGE = {"exists": False, "id": "", "repo_digests": []}
DEVICES = ("/dev/infiniband",)
FILES = ("compose.yaml", "release.json")
POLL_SECONDS = 1.0
REMEDY = (
    "See what holds it (`ps aux --sort=-rss | head`, `nvidia-smi`, playbooks/status.yml) and stop that; memory that nobody holds any more (a driver's leak)"
    " comes back with playbooks/reboot.yml. vllm_tp2_wait_available and vllm_tp2_wait_seconds set how much is waited for, and how long."
)


def read_json(path: str) -> dict[str, Any]:
    """Return a JSON file's mapping; an absent or broken one reads as empty."""
    try:
        with open(path, encoding="utf-8") as handle:
            data = json.load(handle)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def config_of(model: str) -> dict[str, Any]:
    """Return the config.json of a model's folder, of the revision that refs/main names where the folder is a cache; empty without one."""
    try:
        with open(os.path.join(model, "refs", "main"), encoding="utf-8") as handle:
            model = os.path.join(model, "snapshots", handle.read().strip())
    except OSError:
        pass  # a plain folder
    return read_json(os.path.join(model, "config.json"))


def fingerprint(path: str) -> str:
    """Return a file's mode and SHA-256, `0640 9f86d0...`; empty where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return f"{stat.S_IMODE(os.fstat(handle.fileno()).st_mode):04o} {hashlib.sha256(handle.read()).hexdigest()}"
    except OSError:
        return ""


def releases_in(folder: str) -> list[dict[str, Any]]:
    """Return the releases below a group's folder, the newest first."""
    out = []
    try:
        names = os.listdir(os.path.join(folder, "releases"))
    except OSError:
        names = []
    for name in names:
        path = os.path.join(folder, "releases", name)
        if os.path.isfile(os.path.join(path, "compose.yaml")):
            receipt = read_json(os.path.join(path, "receipt.json"))
            files = {file: fingerprint(os.path.join(path, file)) for file in FILES}
            out.append({"id": name, "good": bool(receipt.get("passed")), "time": int(os.stat(path).st_mtime), "files": files})
    return sorted(out, key=lambda release: (-release["time"], release["id"]))


def image_of(name: str, engine: str) -> dict[str, Any]:
    """Return what the node has under an image's name. Raises DockerError."""
    found = layers_engine.inspect_image(name, engine) if name else None
    if found is None:
        return dict(NO_IMAGE)
    return {"exists": True, "id": found["Id"], "repo_digests": sorted(found.get("RepoDigests") or [])}


def look(group: str, image: str, engine: str) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, int], str]:
    """Return the group's containers, the image, the memory, and why the engine could not be asked."""
    containers: list[dict[str, Any]] = []
    found: dict[str, Any] = dict(NO_IMAGE)
    problem = ""
    try:
        found = image_of(image, engine)
        for entry in docker_socket.list_containers([f"gb10.cluster.group={group}"], engine):
            state = container_log.state_of(docker_socket.inspect(entry["Id"], engine))
            if state:
                containers.append(state)
    except docker_socket.DockerError as error:
        problem = str(error)
    with open("/proc/meminfo", encoding="ascii") as handle:
        memory = container_log.memory_of(handle.read())
    return containers, found, memory, problem


def not_free(containers: list[dict[str, Any]], memory: dict[str, int], share: float) -> str:
    """Say what is in the way of a start: a rank that runs, or too little memory; empty where nothing is."""
    running = [str(state["name"]) for state in containers if state["running"]]
    if running:
        return f"{', '.join(running)} still runs"
    wanted = share * memory["total_kib"]
    if memory["available_kib"] >= wanted:
        return ""
    have, want, total = (value / 2**20 for value in (memory["available_kib"], wanted, memory["total_kib"]))
    return f"{have:.1f} GiB of {total:.1f} GiB of memory are available and {want:.1f} GiB are wanted before a start"


def main() -> None:
    """Read, and return what is there."""
    module = AnsibleModule(
        argument_spec={
            "group": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "image": {"type": "str", "default": ""},
            "model": {"type": "str", "default": ""},
            "free_share": {"type": "float"},
            "wait": {"type": "float"},
            "docker_socket": {"type": "path", "default": docker_socket.DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    params = module.params
    folder = os.path.join(params["directory"], params["group"])
    link = os.path.join(folder, "current")
    current = os.path.basename(os.readlink(link)) if os.path.islink(link) else ""
    deadline = time.monotonic() + (params["wait"] or 0.0)
    while True:
        containers, image, memory, problem = look(params["group"], params["image"], params["docker_socket"])
        complaint = "" if params["free_share"] is None else not_free(containers, memory, params["free_share"])
        if not complaint or time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    if complaint and params["wait"] is not None:
        module.fail_json(msg=f"{socket.gethostname()}: {complaint}, {params['wait']:.0f} s after the group was stopped. {REMEDY}")
    module.exit_json(
        changed=False,
        current=current,
        releases=releases_in(folder),
        containers=containers,
        receipt=read_json(os.path.join(folder, "releases", current, "receipt.json")) if current else {},
        image=image,
        model_config=config_of(params["model"]) if params["model"] else {},
        devices=[device for device in DEVICES if os.path.exists(device)],
        memory=memory,
        in_the_way=complaint,
        engine_error=problem,
    )


if __name__ == "__main__":
    main()
