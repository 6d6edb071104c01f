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
engine_error:
  description: Why the Docker Engine could not be asked, as a sentence; empty where it answered.
  type: str
  returned: always
  sample: ""
"""

import hashlib
import json
import os
import stat
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils import container_log, docker_socket, layers_engine

NO_IMAGE = {"exists": False, "id": "", "repo_digests": []}
DEVICES = ("/dev/infiniband",)
FILES = ("compose.yaml", "release.json")


def read_json(path: str) -> dict[str, Any]:
    """Return a JSON file's mapping; an absent or broken one reads as empty."""
    try:
        with open(path, encoding="utf-8") as handle:
            data = json.load(handle)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


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


def image_of(name: str, socket: str) -> dict[str, Any]:
    """Return what the node has under an image's name. Raises DockerError."""
    found = layers_engine.inspect_image(name, socket) if name else None
    if found is None:
        return dict(NO_IMAGE)
    return {"exists": True, "id": found["Id"], "repo_digests": sorted(found.get("RepoDigests") or [])}


def main() -> None:
    """Read, and return what is there."""
    module = AnsibleModule(
        argument_spec={
            "group": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "image": {"type": "str", "default": ""},
            "docker_socket": {"type": "path", "default": docker_socket.DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    folder = os.path.join(module.params["directory"], module.params["group"])
    link = os.path.join(folder, "current")
    current = os.path.basename(os.readlink(link)) if os.path.islink(link) else ""
    containers: list[dict[str, Any]] = []
    image: dict[str, Any] = dict(NO_IMAGE)
    problem = ""
    try:
        image = image_of(module.params["image"], module.params["docker_socket"])
        for entry in docker_socket.list_containers([f"gb10.cluster.group={module.params['group']}"], module.params["docker_socket"]):
            state = container_log.state_of(docker_socket.inspect(entry["Id"], module.params["docker_socket"]))
            if state:
                containers.append(state)
    except docker_socket.DockerError as error:
        problem = str(error)
    with open("/proc/meminfo", encoding="ascii") as handle:
        memory = container_log.memory_of(handle.read())
    module.exit_json(
        changed=False,
        current=current,
        releases=releases_in(folder),
        containers=containers,
        receipt=read_json(os.path.join(folder, "releases", current, "receipt.json")) if current else {},
        image=image,
        devices=[device for device in DEVICES if os.path.exists(device)],
        memory=memory,
        engine_error=problem,
    )


if __name__ == "__main__":
    main()
