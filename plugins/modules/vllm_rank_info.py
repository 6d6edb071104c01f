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
    - C(image) is what C(release.json) records of the image, C(reference), C(id) on this node and C(fingerprint) of the content. C(gone) tells
      that the Docker Engine does not have this id any more.
  type: list
  elements: dict
  returned: always
  sample: [{id: 4f0c61d2a9be, good: true, time: 1795239181, files: {compose.yaml: 0640 9f86d0..., release.json: 0640 2c26b4...},
    image: {reference: "vllm/vllm-openai:v0.24.0", id: "sha256:8d0f...", fingerprint: 1c7f..., gone: false}}]
containers:
  description:
    - The group's containers on this node, stopped ones included, found by their label.
    - C(image_fingerprint) is the fingerprint of the content of the image that the container was started from; empty if the engine does not have it.
  type: list
  elements: dict
  returned: always
  sample: [{name: gb10-pair1-rank0, status: running, image_fingerprint: 1c7f..., labels: {gb10.cluster.release: 4f0c61d2a9be}}]
processes:
  description:
    - The engine's processes in the running containers of the group, from the node's process table.
    - C(count) is their number. C(fault) tells as a phrase which one is stopped, dead or gone although its container runs; empty if none is.
  type: dict
  returned: always
  sample: {count: 3, fault: "the engine process is stopped (PID 4711, VLLM::Worker_TP1)"}
stopped:
  description: When P(gb10.cluster.vllm_tp2#role) stopped the group on request (C(playbooks/stop.yml)); empty if the group should serve.
  type: str
  returned: always
  sample: "2026-11-22T20:15:00Z"
receipt:
  description:
    - The gate's receipt of the current release, or of the release that runs if C(current) does not lead to a receipt.
    - Empty if the node has neither.
  type: dict
  returned: always
  sample: {passed: true, seconds: 412.0}
image:
  description:
    - What the node has under the name in O(image); C(exists) is false where it has nothing, or no name was given.
    - C(fingerprint) is one SHA-256 over layers and configuration, the same for the same content in any image store.
  type: dict
  returned: always
  sample: {exists: true, id: "sha256:8d0f...", fingerprint: 1c7f..., name: "vllm/vllm-openai:v0.24.0",
    repo_digests: ["vllm/vllm-openai@sha256:51a6..."]}
model_config:
  description: The content of the model's C(config.json), of the revision in C(refs/main) where O(model) is a cache; empty where there is none.
  type: dict
  returned: always
  sample: {num_hidden_layers: 61, num_attention_heads: 128}
weights:
  description:
    - The files of O(model) as all ranks agreed on them last, C(files) with size in bytes and SHA-256 by path, and C(proof), one SHA-256 over them.
    - A file whose size on the disk differs has this size and an empty SHA-256. Empty if no agreement is recorded.
  type: dict
  returned: always
  sample: {proof: 5c1e..., files: {model.safetensors: [734003200, 0a3f...]}}
weights_differ:
  description: How RV(weights) differs from the weights that RV(receipt) was judged with, one phrase for each file.
  type: list
  elements: str
  returned: always
  sample: ["model.safetensors has 734003100 bytes instead of 734003200"]
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
from ansible_collections.gb10.cluster.plugins.module_utils import image_proof, layers_engine, manifest
from ansible_collections.gb10.cluster.plugins.module_utils import release as releases
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, log
from ansible_collections.gb10.cluster.plugins.module_utils._watch import processes
from ansible_collections.gb10.cluster.plugins.module_utils.node_files import Node, RecordError

NO_IMAGE = {"exists": False, "id": "", "name": "", "fingerprint": "", "repo_digests": []}
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


def text_of(path: str) -> str:
    """Return the content of a small file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(8192)
    except OSError:
        return ""


def process_table(root: str = "/proc") -> list[processes.Process]:
    """Return the node's processes. One that ends meanwhile is left out."""
    found = [processes.parse(int(name), text_of(os.path.join(root, name, "stat"))) for name in os.listdir(root) if name.isdigit()]
    return [process for process in found if process is not None]


def command_of(pid: int, root: str) -> str:
    """Return a process's command line; empty for a zombie."""
    return text_of(os.path.join(root, str(pid), "cmdline")).replace("\0", " ").strip()


def look_at_processes(containers: list[dict[str, Any]], receipt: dict[str, Any], root: str = "/proc") -> dict[str, Any]:
    """Return the number of engine processes, and what is wrong with the first one that is at fault."""
    judged = log.stamp_to_ns(str(receipt.get("time") or "")) if receipt.get("passed") else 0
    out: dict[str, Any] = {"count": 0, "fault": ""}
    table = process_table(root)
    for state in containers:
        if not state["running"]:
            continue
        # The command line of a process in trouble can block its reader: only those of the container are read.
        found = [each._replace(command=command_of(each.pid, root)) for each in processes.tree(table, state["pid"])]
        out["count"] += len([process for process in found if process.engine])
        paused = f"the container {state['name']} is paused" if state["status"] == "paused" else ""
        out["fault"] = out["fault"] or paused or processes.fault(found, judged > log.stamp_to_ns(state["started_at"]))
    return out


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
            image = read_json(os.path.join(path, "release.json")).get("image")
            image = {key: str(image.get(key) or "") for key in ("reference", "id", "fingerprint")} if isinstance(image, dict) else {}
            out.append({"id": name, "good": bool(receipt.get("passed")), "time": int(os.stat(path).st_mtime), "files": files, "image": image})
    return sorted(out, key=lambda release: (-release["time"], release["id"]))


def receipt_of(folder: str, candidates: list[str]) -> dict[str, Any]:
    """Return the receipt of the first of these releases that has one; empty without any."""
    for name in candidates:
        receipt = read_json(os.path.join(folder, "releases", name, "receipt.json")) if name else {}
        if receipt:
            return receipt
    return {}


def image_of(name: str, engine: str) -> dict[str, Any]:
    """Return what the node has under an image's name. Raises DockerError."""
    found = layers_engine.inspect_image(name, engine) if name else None
    if found is None:
        return dict(NO_IMAGE)
    content = image_proof.fingerprint_of(found)
    return {"exists": True, "id": found["Id"], "name": name, "fingerprint": content, "repo_digests": sorted(found.get("RepoDigests") or [])}


def weights_of(model: str) -> dict[str, Any]:
    """Return the files of a model as all ranks agreed on them last, those whose size differs on the disk with this size; empty without an agreement."""
    if not model:
        return {}
    try:
        agreed = Node("/").load_record(manifest.record_name(os.path.normpath(model))).get("agreed") or {}
    except RecordError:
        return {}
    files = {}
    for path, (size, sha256, _mtime) in agreed.items():
        try:
            found = os.stat(os.path.join(model, path), follow_symlinks=False).st_size
        except OSError:
            found = -1
        files[path] = [found, sha256 if found == size else ""]
    if not files:
        return {}
    return {"proof": manifest.proof({path: {"size": size, "sha256": sha256} for path, (size, sha256) in files.items()}, {}, files), "files": files}


def bind(kept: list[dict[str, Any]], containers: list[dict[str, Any]], engine: str) -> None:
    """Add to each release whether its image is gone, and to each container the content of the image that it was started from. Raises DockerError."""
    seen: dict[str, dict[str, Any]] = {}

    def known(name: str) -> dict[str, Any]:
        if name not in seen:
            seen[name] = image_of(name, engine)
        return seen[name]

    for release in kept:
        if release["image"].get("id"):
            release["image"]["gone"] = not known(release["image"]["id"])["exists"]
    for container in containers:
        container["image_fingerprint"] = known(container["image_id"])["fingerprint"]


def look(group: str, image: str, engine: str) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, int], str]:
    """Return the group's containers, the image, the memory, and why the engine could not be asked."""
    containers: list[dict[str, Any]] = []
    found: dict[str, Any] = dict(NO_IMAGE)
    problem = ""
    try:
        found = image_of(image, engine)
        for entry in client.list_containers([f"gb10.cluster.group={group}"], engine):
            state = log.state_of(client.inspect(entry["Id"], engine))
            if state:
                containers.append(state)
    except client.DockerError as error:
        problem = str(error)
    with open("/proc/meminfo", encoding="ascii") as handle:
        memory = log.memory_of(handle.read())
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
            "docker_socket": {"type": "path", "default": client.DEFAULT_SOCKET},
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
    kept = releases_in(folder)
    try:
        bind(kept, containers, params["docker_socket"])
    except client.DockerError as error:
        problem = problem or str(error)
    receipt = receipt_of(folder, [current, *(c["labels"].get("gb10.cluster.release", "") for c in containers if c["running"])])
    weights = weights_of(params["model"])
    differ = releases.weights_differ(receipt.get("weights") or {}, weights)
    if differ:
        module.warn(
            f"{socket.gethostname()}: the weights in {params['model']} are not those that release {receipt.get('release')} was judged with:"
            f" {manifest.listing(differ, 3)}. The service is not touched. Put the files back, or judge it again with -e vllm_tp2_restart=true."
        )
    seen = look_at_processes(containers, receipt)
    if seen["fault"]:
        # A debugger stops a process for a moment, and a child that has ended is an entry of the table until its parent asks for it.
        time.sleep(POLL_SECONDS)
        seen = look_at_processes(containers, receipt)
    module.exit_json(
        changed=False,
        current=current,
        releases=kept,
        containers=containers,
        weights=weights,
        weights_differ=differ,
        processes=seen,
        stopped=text_of(os.path.join(folder, "stopped")).strip(),
        receipt=receipt,
        image=image,
        model_config=config_of(params["model"]) if params["model"] else {},
        devices=[device for device in DEVICES if os.path.exists(device)],
        memory=memory,
        in_the_way=complaint,
        engine_error=problem,
    )


if __name__ == "__main__":
    main()
