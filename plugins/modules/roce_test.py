#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the rails: RDMA writes over all of them at once, or the collectives of a serving group in a container of its image."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_test
short_description: Bounded tests of the rails between nodes, by RDMA writes or by the collectives of an image
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - With O(mode=server) and O(mode=client), runs C(ib_write_bw) with each rail's resolved GID index on all rails at the same time, so that two rails
    that share one path show. Servers end by themselves, with or without a client.
  - "A few seconds, 64 KiB messages: the memory used is small and bounded, which matters on unified memory."
  - The exit code of C(ib_write_bw) is not believed. With a wrong GID index it prints a header and ends with 0; a rail counts by its result row.
  - Some links run at 13 Gb/s while every status command calls them healthy. Only a measurement shows that.
  - With O(mode=collective), runs C(all_reduce) and C(all_gather) of C(torch.distributed) with growing sizes in a short container, and checks each result.
    All ranks of the group must run it at the same time. The filter P(gb10.cluster.collective_verdict#filter) decides for the group.
  - On a GPU the backend is NCCL, with up to 256 MiB at a time and less than 1 GiB in total. Without a GPU the same code runs on gloo, with up to 16 MiB.
  - The container has the image, network, devices, limits and fabric variables of the release. It has no weights and no secret.
    It ends itself after 60 s and is removed in every case, and one that an interrupted run has left is removed first.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.rails
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
      - Every run tests again. It reports no change; what is kept is not configuration.
options:
  mode:
    description:
      - Which side of the bandwidth test this node is, or V(collective), one rank of the collectives.
    type: str
    choices: [server, client, collective]
    required: true
  addresses:
    description:
      - This node's fabric addresses with prefix, one per rail. Required unless O(mode=collective).
    type: list
    elements: str
  server:
    description:
      - The server's fabric addresses, one per rail. Required for O(mode=client).
    type: list
    elements: str
    default: []
  clients:
    description:
      - How many clients will come, one after the other (O(mode=server)).
    type: int
    default: 1
  client:
    description:
      - Which of the clients this is, counted from 0 (O(mode=client)).
    type: int
    default: 0
  port:
    description:
      - First TCP port of the test; one port per client and rail.
    type: int
    default: 18600
  seconds:
    description:
      - How long to write, in seconds.
    type: int
    default: 4
  iterations:
    description:
      - Send this many messages on each rail instead of writing for O(seconds). V(0) writes for O(seconds).
      - For emulated machines, on which a few seconds may pass without one finished message.
    type: int
    default: 0
  rail_gbps:
    description:
      - Gb/s from which on a rail is healthy while all rails write.
    type: float
    default: 85
  hotplug_low_gbps:
    description:
      - Lower end in Gb/s of what the hot-plug fault gives.
    type: float
    default: 11
  hotplug_high_gbps:
    description:
      - Upper end in Gb/s of what the hot-plug fault gives.
    type: float
    default: 15.5
  accept:
    description:
      - Classes that do not fail (O(mode=client)).
    type: list
    elements: str
    choices: [healthy, one_rail, hotplug_13g, tcp_only, unknown]
    default: [healthy]
  record:
    description:
      - Keep a result that is accepted on the node, and remove the one before if it is not (O(mode=client)).
      - With V(false), the record stays as it is. The role roce measures again if it has no record.
    type: bool
    default: true
  service:
    description: The service of the test, as the role P(gb10.cluster.vllm_tp2#role) renders it. Required for O(mode=collective).
    type: dict
  env:
    description: The fabric variables of this node.
    type: dict
    default: {}
  container:
    description: The name of the container.
    type: str
  group:
    description: The serving group's name.
    type: str
  directory:
    description: Where the role P(gb10.cluster.vllm_tp2#role) keeps the group's files on the node. A result that passes is kept there.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
  key:
    description: What the result is valid for. It is kept with the result, and M(gb10.cluster.vllm_rank_info) returns it.
    type: str
    default: ""
  minimum:
    description: The bus bandwidth in GB/s that the highest of the results must reach (O(mode=collective)).
    type: float
  rdma:
    description: Whether a result of NCCL over TCP fails (O(mode=collective)).
    type: bool
    default: true
seealso:
  - module: gb10.cluster.roce_info
"""

EXAMPLES = r"""
- name: Wait for a client on the head
  gb10.cluster.roce_test:
    mode: server
    addresses: [192.168.100.10/24, 192.168.101.10/24]
  become: true
  when: inventory_hostname == 'spark-1'

- name: Measure from the worker
  gb10.cluster.roce_test:
    mode: client
    addresses: [192.168.100.11/24, 192.168.101.11/24]
    server: [192.168.100.10, 192.168.101.10]
  become: true
  when: inventory_hostname == 'spark-2'

- name: Test the collectives
  gb10.cluster.roce_test:
    mode: collective
    service: "{{ collective_service }}"
    env: "{{ roce_env }}"
    container: gb10-pair1-rank0-collective
    group: pair1
  become: true
"""

RETURN = r"""
bandwidth_class:
  description: C(healthy), C(one_rail), C(hotplug_13g), C(tcp_only) or C(unknown).
  returned: O(mode=client)
  type: str
  sample: healthy
message:
  description: What was measured, in one sentence.
  returned: O(mode=client)
  type: str
  sample: "RDMA write over 2 rail(s) at once: 95.1 Gb/s, 94.8 Gb/s; wanted are 85 Gb/s a rail."
remedy:
  description: What to do; empty when healthy.
  returned: O(mode=client)
  type: str
  sample: ""
rails:
  description: Per rail C(netdev), C(hca), C(gid_index), C(server), C(gbps) (null without a result) and C(reason).
  returned: O(mode=client)
  type: list
  elements: dict
  sample: [{"netdev": enp1s0f0np0, "hca": rocep1s0f0, "gid_index": 3, "server": 192.168.100.10, "gbps": 95.1, "reason": null}]
result:
  description:
    - C(backend), C(transport) by NCCL's own log lines (V(rdma), V(tcp), V(plugin) or V(unknown)), C(hcas) of this rank, and C(rows), the bus bandwidth
      of each collective and size in GB/s as nccl-tests defines it.
    - C(problem) is empty if the test passed; C(stage) and C(text) tell how far it came and why it ended.
  type: dict
  returned: O(mode=collective), not in check mode
  sample: {backend: gloo, transport: tcp, hcas: [], rows: [{op: all_reduce, mib: 16, gb_s: 0.71}], stage: end, problem: "", text: ""}
"""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, text
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.bandwidth import (
    BANDWIDTH_RECEIPT,
    CLASSES,
    Thresholds,
    bandwidth_key,
    classify,
    result_of,
)
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import read_node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.problems import gather
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import DesiredState
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, releases
from ansible_collections.gb10.cluster.plugins.module_utils._profile import trial

UNIT = "gb10-roce-bandwidth"
SLACK_SECONDS = 60
DOCKER_SECONDS = 60.0  # to create, start and remove a container
MEMINFO = "/proc/meminfo"


def rails_of(module: AnsibleModule) -> list[dict[str, Any]]:
    """Return the rails; one without HCA or GID index cannot be measured and is a failure."""
    params = module.params
    facts = gather(read_node(module), DesiredState(params["addresses"], params["interfaces"], 0, 0))
    rails: list[dict[str, Any]] = facts["rails"]
    bad = [rail["netdev"] for rail in rails if rail["hca"] is None or rail["gid_index"] is None]
    if bad or not rails:
        reasons = ("no_rdma", "gid_missing", "gid_ambiguous", "no_cable")
        found = "; ".join(f"{p['message']} {p['remedy']}" for p in facts["problems"] if p["id"] in reasons)
        module.fail_json(msg=f"The RDMA bandwidth cannot be measured: {found or 'no rail has an RDMA device'}")
    return rails


def listening(ports: set[int], text: str) -> set[int]:
    """Return which of the ports are in the output of `ss --listening`."""
    return ports.intersection(map(int, re.findall(r"(?m)^LISTEN +\d+ +\d+ +\S+:(\d+) ", text)))


def command(module: AnsibleModule, tool: str, rail: dict[str, Any], port: int) -> list[str]:
    """Return the command of one rail, the same on both sides."""
    size = ["-n", str(module.params["iterations"])] if module.params["iterations"] else ["-D", str(module.params["seconds"])]
    return [tool, "-d", rail["hca"], "-x", str(rail["gid_index"]), "-p", str(port), "-s", "65536", *size, "-F", "--report_gbits"]


def serve(module: AnsibleModule, tool: str, rails: list[dict[str, Any]]) -> None:
    """Start one server per client and rail, each in a transient unit that ends by itself."""
    params = module.params
    module.run_command(["systemctl", "stop", f"{UNIT}-*"])
    limit = params["clients"] * (params["seconds"] + 20) + SLACK_SECONDS
    ports = set()
    for number in range(params["clients"]):
        for at, rail in enumerate(rails):
            port = params["port"] + number * len(rails) + at
            ports.add(port)
            argv = ["systemd-run", "--quiet", "--collect", f"--unit={UNIT}-{port}", f"--property=RuntimeMaxSec={limit}"]
            rc, _out, err = module.run_command([*argv, *command(module, tool, rail, port)])
            if rc != 0:
                why = err.strip().rstrip(".")
                module.fail_json(msg=f"The bandwidth server on port {port} could not be started: {why}. Look at `systemctl status '{UNIT}-*'`, and run again.")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        _rc, text, _err = module.run_command(["ss", "--no-header", "--tcp", "--listening", "--numeric"])
        if listening(ports, text) == ports:
            return
        time.sleep(0.3)
    missing = sorted(ports - listening(ports, text))
    _rc, out, _err = module.run_command(["journalctl", "--no-pager", "-n", "5", "-o", "cat", "-u", f"{UNIT}-{missing[0]}"])
    output = out.strip()[-300:] or "no output"
    module.fail_json(
        msg=f"ib_write_bw does not listen on port(s) {', '.join(map(str, missing))} after 30 s: {output}."
        " See what holds them (ss -ltnp), or set roce_bandwidth_port."
    )


def measure(module: AnsibleModule, tool: str, rails: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run the clients of all rails at once and read their rows."""
    params = module.params
    servers, first = params["server"], params["port"] + params["client"] * len(rails)
    lines = [[*command(module, tool, rail, first + at), servers[at].split("/")[0]] for at, rail in enumerate(rails)]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda argv: run_command(argv, params["seconds"] + 30.0), lines))
    found = []
    for rail, server, (rc, out, err) in zip(rails, servers, done):
        rate, reason = result_of(out + err, rc)
        shown = {key: rail[key] for key in ("netdev", "hca", "ipv4", "gid_index")}
        found.append({**shown, "server": server, "gbps": rate, "reason": reason})
    return found


def keep(receipt: dict[str, Any]) -> None:
    """Write the receipt at once or not at all."""
    BANDWIDTH_RECEIPT.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(str(BANDWIDTH_RECEIPT), json.dumps(receipt, indent=1, sort_keys=True) + "\n", 0o644)


def bandwidth(module: AnsibleModule) -> dict[str, Any]:
    """Start the servers, or measure as a client and keep the receipt; fail on a class that is not accepted."""
    params = module.params
    tool = module.get_bin_path("ib_write_bw")
    if tool is None:
        module.fail_json(msg="The command `ib_write_bw` is missing: `apt install perftest`, or set roce_bandwidth_test to never.")
    rails = rails_of(module)
    if params["mode"] == "server":
        serve(module, tool, rails)
        return {}
    if len(params["server"]) != len(rails):
        module.fail_json(msg=f"server has {len(params['server'])} address(es) for {len(rails)} rail(s); give one per rail.")
    found = measure(module, tool, rails)
    verdict = classify(
        [rail["gbps"] for rail in found],
        Thresholds(params["rail_gbps"], params["hotplug_low_gbps"], params["hotplug_high_gbps"]),
        [rail["reason"] for rail in found],
    )
    result = {"bandwidth_class": verdict.name, "message": verdict.message, "remedy": verdict.remedy, "rails": found}
    if verdict.name in params["accept"]:
        if params["record"]:
            keep({"key": bandwidth_key(rails), "when": text.stamp(), "class": verdict.name, "message": verdict.message, "rails": found})
        return result
    if params["record"]:
        BANDWIDTH_RECEIPT.unlink(missing_ok=True)
    why = "; ".join(f"{rail['hca']} to {rail['server']}: {rail['reason']}" for rail in found if rail["reason"])
    module.fail_json(msg=f"{verdict.name}: {verdict.message}{f' ({why})' if why else ''} {verdict.remedy}", **result)
    return result


def collective(params: dict[str, Any]) -> dict[str, Any]:
    """Return this rank's result, and keep one that passes. The container is removed before and after."""
    available = docker_api.memory_of(bounded.text(MEMINFO)).get("available_kib", 0)
    if available < trial.NEEDED_KIB:
        return trial.ended("memory_short", f"{available / 2**20:.1f} GiB are available, and {trial.NEEDED_KIB / 2**20:g} GiB are expected")
    name = params["container"]
    remove = ["docker", "rm", "--force", "--volumes", name]
    compose = ["docker", "compose", "--project-name", name, "--file", "-"]
    start = [*compose, "run", "--rm", "--no-deps", "--no-TTY", "--interactive=false", "--name", name, "test"]
    run_command(remove, DOCKER_SECONDS)
    try:
        file = trial.compose_text(params["service"], params["env"])
        code, out, err = run_command(start, trial.COLLECTIVE_SECONDS + DOCKER_SECONDS, stdin=file)
    finally:
        run_command(remove, DOCKER_SECONDS)
    result = trial.parse(out)
    if result["problem"] == "no_result" and code:
        return trial.ended("no_result", (err.strip().splitlines() or [result["text"]])[-1][:300])
    if not trial.problem_of(result, "", params["minimum"], params["rdma"])[0]:
        path = os.path.join(params["directory"], params["group"], trial.KEPT)
        releases.write_receipt(path, {"key": params["key"], "time": text.stamp(), "result": result})
    return result


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "choices": ["server", "client", "collective"], "required": True},
            "addresses": {"type": "list", "elements": "str"},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "server": {"type": "list", "elements": "str", "default": []},
            "clients": {"type": "int", "default": 1},
            "client": {"type": "int", "default": 0},
            "port": {"type": "int", "default": 18600},
            "seconds": {"type": "int", "default": 4},
            "iterations": {"type": "int", "default": 0},
            "rail_gbps": {"type": "float", "default": 85},
            "hotplug_low_gbps": {"type": "float", "default": 11},
            "hotplug_high_gbps": {"type": "float", "default": 15.5},
            "accept": {"type": "list", "elements": "str", "choices": list(CLASSES), "default": ["healthy"]},
            "record": {"type": "bool", "default": True},
            "service": {"type": "dict"},
            "env": {"type": "dict", "default": {}},
            "container": {"type": "str"},
            "group": {"type": "str"},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "key": {"type": "str", "default": "", "no_log": False},
            "minimum": {"type": "float"},
            "rdma": {"type": "bool", "default": True},
        },
        required_if=[("mode", "server", ("addresses",)), ("mode", "client", ("addresses",)), ("mode", "collective", ("service", "container", "group"))],
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False)
    if module.params["mode"] == "collective":
        module.exit_json(changed=False, result=collective(module.params))
    module.exit_json(changed=False, **bandwidth(module))


if __name__ == "__main__":
    main()
