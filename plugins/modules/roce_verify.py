#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove that the rails work: link, address, MTU, GID, and full-size packets to every peer."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_verify
short_description: Prove the rails of a node, repair GIDs that drifted
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Reads the node as M(gb10.cluster.roce_info) does and fails on what keeps the fabric from working, with the remedy in the message.
  - Pings every peer on every rail with packets of the full MTU that must not be fragmented. Run on all nodes, this proves both ways.
  - A GID that is missing, or whose index differs between the rails, is repaired by removing and adding the rail's address,
    but only while no process uses RDMA.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode no GID is repaired, and what is wrong is returned in RV(failures) instead of failing.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  addresses:
    description:
      - This node's fabric addresses with prefix, one per rail.
    type: list
    elements: str
    required: true
  interfaces:
    description:
      - The network devices that are the rails, in order. Empty finds them.
    type: list
    elements: str
    default: []
  peers:
    description:
      - The other nodes.
    type: list
    elements: dict
    default: []
    suboptions:
      host:
        description:
          - Name for messages.
        type: str
        required: true
      fabric:
        description:
          - The peer's fabric addresses, one per rail.
        type: list
        elements: str
        required: true
      rank:
        description:
          - Not used; a member of P(gb10.cluster.serving_group#lookup) can be given as it is.
        type: int
      address:
        description:
          - Not used; a member of P(gb10.cluster.serving_group#lookup) can be given as it is.
        type: str
  mtu:
    description:
      - MTU of the rails in bytes.
    type: int
    default: 9000
  min_speed_mbps:
    description:
      - The link speed in Mb/s below which RV(problems) names a rail.
    type: int
    default: 200000
  gid_repair:
    description:
      - Whether to repair GIDs.
    type: bool
    default: true
  require_rdma:
    description:
      - Whether a rail without RDMA device or GID is a failure.
    type: bool
    default: true
  ping_seconds:
    description:
      - Seconds to wait for an answer before a peer counts as not reachable.
    type: int
    default: 10
  ssh_connection:
    description:
      - The value of E(SSH_CONNECTION) of this session. Without it, it is found.
    type: str
seealso:
  - module: gb10.cluster.roce_info
  - module: gb10.cluster.roce_bandwidth
"""

EXAMPLES = r"""
- name: Prove the rails
  gb10.cluster.roce_verify:
    addresses: [192.168.100.10/24, 192.168.101.10/24]
    peers:
      - host: spark-2
        fabric: [192.168.100.11, 192.168.101.11]
  become: true
  register: fabric
"""

RETURN = r"""
rails:
  description: As M(gb10.cluster.roce_info) returns them.
  returned: always
  type: list
  elements: dict
env:
  description: This node's NCCL, GLOO and TP variables, as M(gb10.cluster.roce_info) returns them.
  returned: always
  type: dict
  sample: {NCCL_IB_HCA: "rocep1s0f0,roceP2p1s0f0", NCCL_IB_GID_INDEX: "3"}
problems:
  description: As M(gb10.cluster.roce_info) returns them.
  returned: always
  type: list
  elements: dict
failures:
  description: The sentences that make this node fail.
  returned: always
  type: list
  elements: str
  sample: []
pings:
  description: One entry per peer and rail, with C(host), C(rail), C(interface), C(address), C(size) (bytes of payload) and C(ok).
  returned: always
  type: list
  elements: dict
  sample: [{"host": spark-2, "rail": 0, "interface": enp1s0f0np0, "address": 192.168.100.11, "size": 8972, "ok": true}]
repaired:
  description: Rails whose address was removed and added again, with the GID index before and after.
  returned: always
  type: list
  elements: dict
  sample: [{"interface": enp1s0f0np0, "before": 5, "after": 3}]
bandwidth:
  description: The receipt of the last bandwidth test of these rails; null if there is none.
  returned: always
  type: dict
  sample: {"class": healthy, "when": "2026-11-21T06:00:00Z"}
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import find_ssh_connection, rdma_users, read_node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.facts import DesiredState, gather, repairs_of
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.problems import failures_of
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import BANDWIDTH_RECEIPT, matching_receipt

ICMP_HEADERS = 28  # IPv4 and ICMP


def read(module: AnsibleModule) -> dict[str, Any]:
    """Read the node."""
    params = module.params
    desired = DesiredState(params["addresses"], (), params["interfaces"], params["mtu"], params["min_speed_mbps"])
    return gather(read_node(module), desired, params["ssh_connection"] or find_ssh_connection())


def repair(module: AnsibleModule, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Remove and add the address of rails whose GID drifted; return what was done. The GIDs of a rail in use stay."""
    wanted = repairs_of(facts)
    users = rdma_users() if wanted else []
    if users:
        names = ", ".join(rail["netdev"] for rail in wanted)
        module.warn(f"The GIDs of {names} were left as they are, because {', '.join(users[:4])} use(s) RDMA.")
        return []
    ip = module.get_bin_path("ip", required=True)
    for rail in wanted if not module.check_mode else ():
        cidr = f"{rail['ipv4']}/{rail['prefix']}"
        module.run_command([ip, "addr", "del", cidr, "dev", rail["netdev"]])
        rc, _out, err = module.run_command([ip, "addr", "replace", cidr, "brd", "+", "dev", rail["netdev"]])
        if rc != 0:
            module.fail_json(msg=f"The address {cidr} could not be put back on {rail['netdev']}: {err.strip()}. Run the roce role again.")
    return [{"interface": rail["netdev"], "before": rail["gid_index"], "after": None} for rail in wanted]


def ping(module: AnsibleModule, rail: dict[str, Any], host: str, address: str) -> tuple[dict[str, Any], str]:
    """Send full-size packets; return the record and the sentence of a failure."""
    mtu, name = module.params["mtu"], rail["netdev"]
    size = mtu - ICMP_HEADERS
    record = {"host": host, "rail": rail["index"], "interface": name, "address": address, "size": size, "ok": False}
    path = module.get_bin_path("ping")
    if path is None:
        return record, "The command `ping` is missing: install iputils-ping."
    end = time.monotonic() + module.params["ping_seconds"]
    while True:
        rc, out, err = module.run_command([path, "-n", "-q", "-I", name, "-M", "do", "-s", str(size), "-c", "2", "-i", "0.2", "-W", "2", address])
        if rc == 0:
            return {**record, "ok": True}, ""
        small, _out, _err = module.run_command([path, "-n", "-q", "-I", name, "-c", "1", "-W", "2", address])
        if (small == 0 and "too long" in out + err) or time.monotonic() > end:
            break
        time.sleep(1)
    if small == 0:
        return record, (
            f"{host} answers on rail {rail['index']} ({name} to {address}) but not to {size} bytes unfragmented: "
            f"an MTU on the way is smaller than {mtu}. Compare `ip link` of both nodes and the switch, or set roce_mtu to 1500."
        )
    return record, (
        f"{host} does not answer on rail {rail['index']} ({name} to {address}). "
        "Check that the cable sits in the same cage on both nodes and that the roce role ran on both."
    )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "addresses": {"type": "list", "elements": "str", "required": True},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "peers": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "host": {"type": "str", "required": True},
                    "fabric": {"type": "list", "elements": "str", "required": True},
                    "rank": {"type": "int"},
                    "address": {"type": "str"},
                },
            },
            "mtu": {"type": "int", "default": 9000},
            "min_speed_mbps": {"type": "int", "default": 200000},
            "gid_repair": {"type": "bool", "default": True},
            "require_rdma": {"type": "bool", "default": True},
            "ping_seconds": {"type": "int", "default": 10},
            "ssh_connection": {"type": "str"},
        },
        supports_check_mode=True,
    )
    facts = read(module)
    repaired = repair(module, facts) if module.params["gid_repair"] else []
    if repaired and not module.check_mode:
        time.sleep(1)
        facts = read(module)
        after = {rail["netdev"]: rail["gid_index"] for rail in facts["rails"]}
        repaired = [{**each, "after": after.get(each["interface"])} for each in repaired]
    failures = failures_of(facts["problems"], module.params["require_rdma"])
    pings = []
    up = {rail["index"]: rail for rail in facts["rails"] if rail["ipv4"] is not None and rail["state"] == "ACTIVE"}
    for peer in module.params["peers"]:
        for index, address in enumerate(peer["fabric"]):
            if index in up:
                record, sentence = ping(module, up[index], peer["host"], address.split("/")[0])
                pings.append(record)
                failures += [sentence] if sentence else []
    try:
        receipt = matching_receipt(BANDWIDTH_RECEIPT.read_text(), facts["rails"])
    except (OSError, UnicodeDecodeError):
        receipt = None
    result = {key: facts[key] for key in ("rails", "env", "problems")}
    result.update(failures=failures, pings=pings, repaired=repaired, bandwidth=receipt)
    if failures and not module.check_mode:
        module.fail_json(msg=" ".join(failures), changed=bool(repaired), **result)
    module.exit_json(changed=bool(repaired), **result)


if __name__ == "__main__":
    main()
