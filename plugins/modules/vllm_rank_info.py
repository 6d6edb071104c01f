#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one rank of a serving group has on its node: releases, containers, memory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_rank_info
short_description: Read what one rank of a serving group has on its node
description:
  - Reads the releases that the role P(gb10.cluster.vllm_tp2#role) keeps on the node, the containers of the group, and the node's memory.
  - Works without a Docker Engine. RV(engine_error) then reports what is missing.
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
  drafter:
    description: The drafter's folder on the node, to compare its files too; empty if the profile has none.
    type: str
    default: ""
  docker_socket:
    description: The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
  head:
    description: From where the head logs in, on a worker, to look for settings of the SSH server that refuse it; empty to look for none.
    type: dict
    default: {}
    suboptions:
      name:
        description: The head's name in the inventory.
        type: str
      address:
        description: The head's address on the first rail.
        type: str
  boot_log:
    description: Whether to read the log of the rank's container too. See RV(boot_log).
    type: bool
    default: false
  health:
    description: Whether to read kernel logs, power and temperatures of the node too, and the newest boot log that the agent has kept. See RV(health).
    type: bool
    default: false
  records:
    description: Whether to return receipts, events and memory of the past too. See RV(records).
    type: bool
    default: false
  key:
    description: Whether to look for the API key of the group, on the head. See RV(key).
    type: bool
    default: false
  ask:
    description:
      - On the head, the completion to request of its API. None is requested if the rank cannot serve, or if its agent starts or restores the group.
      - C(/health) is not requested. It answers 200 next to a dead or stopped rank.
    type: dict
    suboptions:
      url:
        description: The address of the API.
        type: str
        default: http://127.0.0.1:8000
      request:
        description: The keys C(prompt) or C(chat), C(max_tokens) and C(body) of a request. At most 8 tokens are requested.
        type: dict
        default: {prompt: Hello}
      timeout:
        description: Seconds after which a server counts as busy if its tokens advance for other requests.
        type: float
        default: 10.0
      wedge_seconds:
        description: Seconds for which the tokens stand still before the server counts as C(frozen) or C(wedged), 20 without this option.
        type: float
      completion_timeout:
        description: The longest wait in seconds if the server has no other request and its tokens advance.
        type: float
        default: 120.0
      idle_power_w:
        description:
          - The power in W that a GPU of the node draws while the engine is loaded and idle, up to 10 % or 5 W more count as idle.
          - If it is not set, what the watch of the head's agent has measured counts.
        type: float
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
    - C(pool_tokens) is the KV pool of its last boot; 0 if it is not known.
    - C(files) has mode and SHA-256 of the files that a role writes, as one string each; empty for one that cannot be read.
    - C(image) is what C(release.json) records of the image, C(reference), C(id) on this node and C(fingerprint) of the content. C(gone) tells
      that the Docker Engine does not have this id any more.
  type: list
  elements: dict
  returned: always
  sample: [{id: 4f0c61d2a9be, good: true, profile: b12x-fp8-1m, pool_tokens: 1766005, time: 1795239181,
    files: {compose.yaml: 0640 9f86d0..., release.json: 0640 2c26b4...},
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
weights:
  description:
    - The files of O(model) as the role weights read them last, C(files) with size in bytes and SHA-256 by path, and C(proof), one SHA-256 over them.
    - Those of O(drafter) are among them. Their paths begin with the name of its folder. C(folders) are O(model) and O(drafter).
    - A file whose size on the disk differs has this size and an empty SHA-256. Empty if no agreement is recorded.
  type: dict
  returned: always
  sample: {proof: 5c1e..., files: {model.safetensors: [734003200, 0a3f...]}, folders: [/srv/models/org/name]}
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
  sample: [/dev/infiniband, /dev/infiniband/rdma_cm, /dev/infiniband/uverbs0]
memory:
  description:
    - The node's memory in KiB. If its GPU has memory of its own, as nvidia-smi reports it, C(gpu_total_kib) and C(gpu_free_kib) too.
    - C(gpu_engine_kib) is what the running containers of the group hold of it, if nvidia-smi lists their processes.
  type: dict
  returned: always
  sample: {total_kib: 127602688, free_kib: 98304000, available_kib: 99000000}
engine_error:
  description: Why the Docker Engine could not be asked, as a sentence; empty where it answered.
  type: str
  returned: always
  sample: ""
settings:
  description: The profile, the image and the arguments of the engine of the current release; empty without one.
  type: dict
  returned: always
  sample: {profile: gpt-oss-120b, image: "vllm/vllm-openai:v0.11.0", max-model-len: 131072}
inputs:
  description: A hash over what the current release was rendered from; empty without a current release.
  type: str
  returned: always
  sample: 9c1f03d2a7be
collective:
  description: What the last collective test that passed on this node is valid for; empty if none has. See M(gb10.cluster.roce_test).
  type: str
  returned: always
  sample: 3b0c77a1e2d4
others:
  description: Other serving groups of which a container runs on the node. A node can serve one.
  type: list
  elements: str
  returned: always
  sample: []
agent:
  description: What the node knows of its agent. C(version) is empty and C(state) is {} if there is no agent.
  type: dict
  returned: always
  contains:
    version:
      description: The version of the installed agent.
      type: str
      returned: always
      sample: 1f0c61d2a9be
    state:
      description: On the head the desired state with C(desired), C(outcome) and C(holds), on another rank its owner, generation and holds.
      type: dict
      returned: always
      sample: {desired: {generation: 7, state: serving, release: 4f0c61d2a9be}}
    files:
      description: Mode and SHA-256 of each file that the role C(agent) writes, C(0644 9f86d0...); empty for one that is not there.
      type: dict
      returned: always
      sample: {/usr/local/sbin/gb10: 0755 9f86d081...}
    place:
      description: The group and the rank that the node's agent is configured for; empty without an agent.
      type: dict
      returned: always
      sample: {group: pair1, rank: 1}
    owners:
      description: The groups that own the node, each with the machine id of its head.
      type: dict
      returned: always
      sample: {pair1: 5c6f1d0a2b7e4c3f9d8e7a6b5c4d3e2f}
    enabled:
      description: Whether the unit starts at boot.
      type: bool
      returned: always
      sample: true
    user:
      description: Whether the node has the user that the head logs in as.
      type: bool
      returned: always
      sample: true
    sshd_problems:
      description: One sentence for each setting of the SSH server that keeps the head's key from working. Empty on the head.
      type: list
      elements: str
      returned: always
      sample: []
    converges:
      description: Whether the agent works on a desired state that it has not reached.
      type: bool
      returned: always
      sample: false
    public_key:
      description: The agent's public key; empty if it has none.
      type: str
      returned: always
      sample: ssh-ed25519 AAAAC3... gb10-agent pair1
    head_id:
      description: The node's machine id.
      type: str
      returned: always
      sample: 5c6f1d0a2b7e4c3f9d8e7a6b5c4d3e2f
    host_keys:
      description: The public keys of the node's SSH server.
      type: list
      elements: str
      returned: always
      sample: [ssh-ed25519 AAAAC3...]
    ssh_port:
      description: The port of the node's SSH server.
      type: int
      returned: always
      sample: 22
alive:
  description: What the API of the head answered; empty if it was not asked.
  type: dict
  returned: always
  contains:
    outcome:
      description:
        - C(serves) if a completion came back, C(busy) if the server computes for others, C(wedged) if tokens stand still at idle power, C(frozen) if they do
          and the power is not known, C(silent) without an answer, C(dead) after HTTP 5xx or without a connection, C(refused) after HTTP 4xx.
      type: str
      returned: always
      sample: serves
    text:
      description: What happened, as a phrase. The API key is not in it.
      type: str
      returned: always
      sample: a completion came back in 0.21 s
    starting:
      description: Whether nothing listens on the port.
      type: bool
      returned: always
      sample: false
key:
  description:
    - The API key that the group has without one in the inventory, empty without O(key). The key itself is not in it.
    - C(path) is its file, C(due) whether the file is to be written, and C(new) whether the key is a new one, or a container runs with another one.
    - Only C(msg) if the file cannot be read or is not a key.
  type: dict
  returned: always
  sample: {path: /opt/gb10-cluster/vllm_tp2/pair1/api_key, due: false, new: false}
boot_log:
  description: The facts of the container's log, as P(gb10.cluster.vllm_boot_log#filter) returns them; empty without O(boot_log) or without a container.
  type: dict
  returned: always
  sample: {state: ready, stage: ready, failure: null}
health:
  description: What the node reports of itself; empty without O(health). Each command ends after 15 seconds.
  returned: always
  type: dict
  contains:
    kernel:
      description:
        - Faults in the kernel logs. C(events) has one entry for each kind and boot, V(0) for this boot and V(-1) for the one before.
        - C(skipped) has for each log that was not read the reason. C(unclean) is the time of the last message of the previous boot if no shutdown
          ended it, otherwise empty.
      returned: always
      type: dict
      sample:
        events:
          - {id: oom_killed, boot: -1, count: 1, first: "2026-11-22T20:15:00+00:00", last: "2026-11-22T20:15:00+00:00", line: "Out of memory: Killed process 1"}
        skipped: {}
        unclean: ""
    gpus:
      description: Temperature, power, utilization, SM clock and reasons of a lower clock for each GPU; null for a figure that the driver does not report.
      returned: always
      type: list
      elements: dict
      sample: [{temperature_c: 45.0, power_w: 11.2, utilization: 0.0, sm_mhz: 208.0, max_mhz: 3003.0, reasons: 1}]
    gpu_error:
      description: Why there are no figures of a GPU; empty if there are.
      returned: always
      type: str
      sample: nvidia-smi is not installed
    zones:
      description: The thermal zones of the kernel, in °C.
      returned: always
      type: list
      elements: dict
      sample: [{name: acpitz, temperature_c: 52.1, critical_c: 105.0}]
    boot:
      description: State, stage and failure of the boot log in the newest evidence. C(label) is empty without any.
      returned: always
      type: dict
      sample: {label: boot-7, state: failed, stage: weights, failure: {class: weights_missing, line: does not appear to have a file named config.json}}
records:
  description: What the node keeps of the group; empty without O(records).
  type: dict
  returned: always
  contains:
    receipts:
      description: The verdicts of the kept releases, shortened.
      type: list
      elements: dict
      returned: always
    events:
      description: The last 200 events of the agent.
      type: list
      elements: dict
      returned: always
    memory:
      description: The memory of the node over the last half hour and the last day.
      type: dict
      returned: always
    bandwidth:
      description: The last measurement of the rails.
      type: dict
      returned: always
    soaks:
      description: The verdicts of the soaks that are kept, the newest first. See C(soak.yml).
      type: list
      elements: dict
      returned: always
    read_at:
      description: When the node was read.
      type: str
      returned: always
      sample: "2026-11-26T09:00:00Z"
"""

import os
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, runner
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, manifest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import files, look


def main() -> None:
    """Read, and return what is there."""
    asked = {
        "url": {"type": "str", "default": "http://127.0.0.1:8000"},
        "request": {"type": "dict", "default": {"prompt": "Hello"}},
        "timeout": {"type": "float", "default": 10.0},
        "wedge_seconds": {"type": "float"},
        "completion_timeout": {"type": "float", "default": 120.0},
        "idle_power_w": {"type": "float"},
    }
    module = AnsibleModule(
        argument_spec={
            "group": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "image": {"type": "str", "default": ""},
            "model": {"type": "str", "default": ""},
            "drafter": {"type": "str", "default": ""},
            "docker_socket": {"type": "path", "default": docker_api.DEFAULT_SOCKET},
            "head": {"type": "dict", "default": {}, "options": {"name": {"type": "str"}, "address": {"type": "str"}}},
            "key": {"type": "bool", "default": False, "no_log": False},
            "ask": {"type": "dict", "options": asked},
            "boot_log": {"type": "bool", "default": False},
            "health": {"type": "bool", "default": False},
            "records": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = dict(module.params)
    ask, wants_log, wants_records, engine = given.pop("ask"), given.pop("boot_log"), given.pop("records"), given.pop("docker_socket")
    wants_health, wants_key = given.pop("health"), given.pop("key")
    folder = os.path.join(given["directory"], given["group"])
    rank = look.read(machine=Node("/", runner(module, optional=True)), engine=engine, **given)
    if rank["weights_differ"]:
        where = " and ".join(filter(None, (given["model"], given["drafter"])))
        module.warn(
            f"{socket.gethostname()}: the weights in {where} are not those that release {rank['receipt'].get('release')} was judged with:"
            f" {manifest.listing(rank['weights_differ'], 3)}. The service is not touched. Put the files back, or judge it again with -e vllm_tp2_restart=true."
        )
    module.exit_json(
        changed=False,
        boot_log=look.boot_log(rank["containers"], engine) if wants_log else {},
        alive=look.alive(folder, ask) if ask and look.may_ask(rank) else {},
        health=look.health_of(folder) if wants_health else {},
        records=look.records(folder) if wants_records else {},
        key=files.keep_key(folder, given["group"], check=True) if wants_key else {},
        **rank,
    )


if __name__ == "__main__":
    main()
