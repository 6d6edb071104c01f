#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run one rank of a bounded test of the collectives, in a short container of the image."""

from __future__ import annotations

DOCUMENTATION = r"""
module: collective_test
short_description: Test the collectives of a serving group in short containers of its image
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Runs C(all_reduce) and C(all_gather) of C(torch.distributed) with growing sizes and checks each result. All ranks of the group must run it at the same time.
  - On a GPU the backend is NCCL, with up to 256 MiB at a time and less than 1 GiB in total. Without a GPU the same code runs on gloo, with up to 16 MiB.
  - The container has the image, network, devices, limits and fabric variables of the release. It has no weights and no secret.
  - The test ends itself after 60 s. The container is removed in every case, and one that an interrupted run has left is removed first.
  - The filter P(gb10.cluster.collective_verdict#filter) decides for the group.
options:
  service:
    description: The service of the test, C(collective) of the filter P(gb10.cluster.render_rank#filter).
    type: dict
    required: true
  env:
    description: The fabric variables of this node.
    type: dict
    default: {}
  container:
    description: The name of the container.
    type: str
    required: true
  group:
    description: The serving group's name.
    type: str
    required: true
  directory:
    description: Where the role P(gb10.cluster.vllm_tp2#role) keeps the group's files on the node. A result that passes is kept there.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
  key:
    description: What the result is valid for. It is kept with the result, and M(gb10.cluster.vllm_rank_info) returns it.
    type: str
    default: ""
  minimum:
    description: The bus bandwidth in GB/s that the highest of the results must reach.
    type: float
  rdma:
    description: Whether a result of NCCL over TCP fails.
    type: bool
    default: true
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode nothing is tested.
  diff_mode:
    support: none
  idempotent:
    support: N/A
    details:
      - Every run tests again. It reports no change; the kept result is not configuration.
seealso:
  - module: gb10.cluster.roce_bandwidth
"""

EXAMPLES = r"""
- name: Test the collectives
  gb10.cluster.collective_test:
    service: "{{ rendered.collective }}"
    env: "{{ roce_env }}"
    container: gb10-pair1-rank0-collective
    group: pair1
  become: true
  vars:
    rendered: "{{ lookup('gb10.cluster.profile') | gb10.cluster.render_rank(place, {'model_store': '/srv/models'}) }}"
"""

RETURN = r"""
result:
  description:
    - C(backend), C(transport) by NCCL's own log lines (V(rdma), V(tcp), V(plugin) or V(unknown)), C(hcas) of this rank, and C(rows), the bus bandwidth
      of each collective and size in GB/s as nccl-tests defines it.
    - C(problem) is empty if the test passed; C(stage) and C(text) tell how far it came and why it ended.
  type: dict
  returned: when not in check mode
  sample: {backend: gloo, transport: tcp, hcas: [], rows: [{op: all_reduce, mib: 16, gb_s: 0.71}], stage: end, problem: "", text: ""}
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, text
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, releases
from ansible_collections.gb10.cluster.plugins.module_utils._profile import trial

DOCKER_SECONDS = 60.0  # to create, start and remove a container
MEMINFO = "/proc/meminfo"


def test(params: dict[str, Any]) -> dict[str, Any]:
    """Return this rank's result. The container is removed before and after."""
    available = docker_api.memory_of(bounded.text(MEMINFO)).get("available_kib", 0)
    if available < trial.NEEDED_KIB:
        return trial.ended("memory_short", f"{available / 2**20:.1f} GiB are available, and {trial.NEEDED_KIB / 2**20:g} GiB are expected")
    name = params["container"]
    remove = ["docker", "rm", "--force", "--volumes", name]
    compose = ["docker", "compose", "--project-name", name, "--file", "-"]
    start = [*compose, "run", "--rm", "--no-deps", "--no-TTY", "--interactive=false", "--name", name, "test"]
    run_command(remove, DOCKER_SECONDS)
    try:
        text = trial.compose_text(params["service"], params["env"])
        code, out, err = run_command(start, trial.COLLECTIVE_SECONDS + DOCKER_SECONDS, stdin=text)
    finally:
        run_command(remove, DOCKER_SECONDS)
    result = trial.parse(out)
    if result["problem"] == "no_result" and code:
        return trial.ended("no_result", (err.strip().splitlines() or [result["text"]])[-1][:300])
    return result


def main() -> None:
    """Test, and keep a result that passes."""
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "dict", "required": True},
            "env": {"type": "dict", "default": {}},
            "container": {"type": "str", "required": True},
            "group": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "key": {"type": "str", "default": "", "no_log": False},
            "minimum": {"type": "float"},
            "rdma": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=False)
    result = test(params)
    if not trial.problem_of(result, "", params["minimum"], params["rdma"])[0]:
        path = os.path.join(params["directory"], params["group"], trial.KEPT)
        releases.write_receipt(path, {"key": params["key"], "time": text.stamp(), "result": result})
    module.exit_json(changed=False, result=result)


if __name__ == "__main__":
    main()
