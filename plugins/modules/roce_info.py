#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what the RoCE fabric of a node is, prove it to its peers, and the NCCL, GLOO and TP variables that follow from it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_info
short_description: Ports, rails, GIDs and the NCCL variables of a GB10 node
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Reads the ConnectX-7 ports of a node and returns which of them are rails, whether they work, and the NCCL variables.
  - Joins network devices, RDMA devices and cages by name, PCI address and C(phys_port_name), never by a position in a list.
  - The GID index of a rail is the one whose type is C(RoCE v2) and whose GID is C(::ffff:<the rail's IPv4 address>).
    If there is none, or more than one, there is no index, and RV(problems) has the reason.
  - A GB10 powers its ConnectX-7 down while no cable is plugged, so "no device" means "no cable".
  - With O(peers), pings every peer on every rail with packets of the full MTU that must not be fragmented. Run on all nodes, this proves both ways.
  - Changes nothing. Reads sysfs, C(ip -j -d addr), C(ip -j route), C(rdma -j link) and the network configuration files.
    RV(problems) names what is missing or unreadable. The rest is used.
  - With O(mtu=0) it judges no MTU.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
  - gb10.cluster.rails
  - gb10.cluster.rails.netplan
options:
  fabric_addresses:
    description:
      - This node's wanted fabric addresses, one per rail, with or without a prefix length.
      - Without them, the rails are the ports that have a link or an IPv4 address, with their twins.
        A bond or VLAN is a rail only if O(interfaces) names it or it has one of the addresses. While a cage carries the fabric, one without an address and
        one whose ports carry default routes are not rails.
    type: list
    elements: str
  min_speed_mbps:
    description:
      - The link speed in Mb/s below which a ConnectX port counts as degraded. V(0) judges no speed, nor the PCIe link behind it.
    type: int
    default: 200000
  fail_on:
    description:
      - Ids of RV(problems) that make the module fail. V(unusable) are all that keep it from working,
        V(without_rdma) those that leave it with TCP alone.
      - The message names the rail, the interface and the remedy of each. A peer of O(peers) that does not answer fails in any case.
    type: list
    elements: str
    default: []
  peers:
    description:
      - The other nodes, to be pinged on every rail with a link.
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
  ping_seconds:
    description:
      - Seconds to wait for an answer before a peer counts as not reachable.
    type: int
    default: 10
notes:
  - Run it as root (C(become=true)) to see netplan files of mode 0600; everything else is readable by all.
"""

EXAMPLES = r"""
- name: Read the fabric of this node
  gb10.cluster.roce_info:
  become: true
  register: fabric

- name: Show the NCCL variables
  ansible.builtin.debug:
    var: fabric.env

- name: Read the rails that the cluster wants
  gb10.cluster.roce_info:
    fabric_addresses: [192.168.100.10/24, 192.168.101.10/24]
  become: true

- name: Fail if a rail has no link
  gb10.cluster.roce_info:
    fabric_addresses: [192.168.100.10/24, 192.168.101.10/24]
    fail_on: [link_down, no_cable]
  become: true

- name: Prove the rails
  gb10.cluster.roce_info:
    fabric_addresses: [192.168.100.10/24, 192.168.101.10/24]
    fail_on: [unusable, without_rdma]
    peers:
      - host: spark-2
        fabric: [192.168.100.11, 192.168.101.11]
  become: true
"""

RETURN = r"""
rails:
  description: The rails in the order of the wanted addresses, else by cage and PCIe segment.
  returned: always
  type: list
  elements: dict
  contains:
    index: {description: Number of the rail., type: int, sample: 0}
    netdev: {description: Network device., type: str, sample: enp1s0f0np0}
    hca: {description: RDMA device; null where there is none., type: str, sample: rocep1s0f0}
    cage: {description: "Cage, 0 is the one nearest to the RJ45 socket.", type: int, sample: 0}
    pci: {description: PCI address., type: str, sample: "0000:01:00.0"}
    state: {description: RDMA state of the port; from the carrier where there is no RDMA device., type: str, sample: ACTIVE}
    carrier: {description: Whether the network device has a carrier., type: bool, sample: true}
    speed_mbps: {description: Link speed in Mb/s; null if it is unknown., type: int, sample: 200000}
    mtu: {description: MTU of the network device in bytes., type: int, sample: 9000}
    active_mtu: {description: "RDMA MTU in bytes, as the kernel derives it from the MTU.", type: int, sample: 4096}
    ipv4: {description: The fabric address without prefix; null if there is none., type: str, sample: 192.168.100.10}
    prefix: {description: Its prefix length; null if not known., type: int, sample: 24}
    addresses: {description: All addresses with prefix., type: list, elements: str, sample: [192.168.100.10/24]}
    gid_index: {description: Index of the one RoCE v2 GID that equals the fabric address; null if there is not exactly one., type: int, sample: 3}
    gids:
      description: Used entries of the GID table, by index.
      type: list
      elements: dict
      sample: [{"index": 3, "gid": "::ffff:192.168.100.10", "type": "RoCE v2", "netdev": "enp1s0f0np0", "ipv4": "192.168.100.10"}]
ports:
  description:
    - Every port of the card, with or without link, by cage and PCIe segment, with the keys of a rail and
      C(segment), C(phys_state), C(linked), C(mac), C(driver), C(master), C(lower), C(protected).
  returned: always
  type: list
  elements: dict
management:
  description:
    - The path by which this node is reached, the SSH session's interface, else that of the default route with the lowest metric.
    - C(reason) is C(ssh session) or C(default route); all are null without both.
    - C(protected) lists every interface that the roce role will not touch.
  returned: always
  type: dict
  sample:
    interface: enP7s7
    address: 10.0.1.60
    prefix: 24
    gateway: 10.0.1.1
    reason: ssh session
    default_route_interfaces: [enP7s7]
    protected: [enP7s7]
hotplug:
  description:
    - State of the card's hot-plug controller MTKP0001:00, as far as this kernel shows it.
    - C(plugged) is its state of the cable (C(debug_state)), null if it is unknown.
  returned: always
  type: dict
  sample: {present: true, plugged: true, summary: "debug_state=1, hotplug_enabled=1"}
foreign:
  description: Configuration files of others that configure the rails.
  returned: always
  type: list
  elements: dict
  sample:
    - path: /etc/netplan/40-cx7.yaml
      kind: netplan
      writer: "NVIDIA's playbook, sparkrun or a fleet tool"
      parsed: true
      error: null
      interfaces: [enp1s0f0np0]
      addresses: {enp1s0f0np0: [192.168.200.12/24]}
env:
  description:
    - This node's NCCL, GLOO and TP variables. One that cannot be decided is left out, never empty.
    - E(NCCL_IB_GID_INDEX) is there only when every rail with a link has a GID index and all are equal;
      else E(NCCL_IB_ADDR_FAMILY) and E(NCCL_IB_ROCE_VERSION_NUM) are.
    - A rail with nothing but a link-local address does not count if another rail has a real one.
  returned: always
  type: dict
  sample:
    NCCL_IB_HCA: rocep1s0f0,roceP2p1s0f0
    NCCL_IB_GID_INDEX: "3"
    NCCL_SOCKET_IFNAME: enp1s0f0np0
    GLOO_SOCKET_IFNAME: enp1s0f0np0
    TP_SOCKET_IFNAME: enp1s0f0np0
problems:
  description:
    - What is wrong, each with a stable C(id), the C(message), the C(remedy) and the C(interface) it belongs to.
    - "Ids: C(no_cable), C(link_down), C(speed_degraded), C(pcie_degraded), C(no_rdma), C(no_ipv4), C(link_local_only),
      C(gid_missing), C(gid_ambiguous), C(mtu_small),
      C(one_subnet_for_both_rails), C(subnet_of_management), C(subnet_of_another), C(rails_crossed), C(ports_asymmetric),
      C(rail_unplaced), C(rail_is_management), C(interface_missing),
      C(foreign_netplan), C(bad_input), C(unreadable)."
  returned: always
  type: list
  elements: dict
  sample:
    - id: mtu_small
      message: enp1s0f0np0 has MTU 1500, wanted is 9000 (RDMA MTU 1024 instead of 4096).
      remedy: Run the roce role; set roce_mtu to 1500 if a switch between the nodes cannot carry more.
      interface: enp1s0f0np0
pings:
  description: One entry per peer and rail, with C(host), C(rail), C(interface), C(address), C(size) (bytes of payload) and C(ok).
  returned: always
  type: list
  elements: dict
  sample: [{"host": spark-2, "rail": 0, "interface": enp1s0f0np0, "address": 192.168.100.11, "size": 8972, "ok": true}]
bandwidth:
  description: The receipt of the last bandwidth test of these rails; null if there is none.
  returned: always
  type: dict
  sample: {"class": healthy, "when": "2026-11-21T06:00:00Z"}
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.bandwidth import BANDWIDTH_RECEIPT, matching_receipt
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import find_ssh_connection, read_node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import foreign_config
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.problems import FATAL, RDMA_ONLY, gather, sentence_of
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import DesiredState

ICMP_HEADERS = 28  # IPv4 and ICMP
SHORT = {"unusable": FATAL, "without_rdma": RDMA_ONLY}  # values of fail_on that name several ids


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


def ping_all(module: AnsibleModule, rails: list[dict[str, Any]]) -> list[tuple[dict[str, Any], str]]:
    """Ping every peer on every rail with an address and a link."""
    up = {rail["index"]: rail for rail in rails if rail["ipv4"] is not None and rail["state"] == "ACTIVE"}
    pairs = [(peer["host"], index, address) for peer in module.params["peers"] for index, address in enumerate(peer["fabric"]) if index in up]
    return [ping(module, up[index], host, address.split("/")[0]) for host, index, address in pairs]


def receipt_of(rails: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the receipt of the last bandwidth test of these rails."""
    try:
        return matching_receipt(BANDWIDTH_RECEIPT.read_text(), rails)
    except (OSError, UnicodeDecodeError):
        return None


def main() -> None:
    """Run the module."""
    peer = {
        "host": {"type": "str", "required": True},
        "fabric": {"type": "list", "elements": "str", "required": True},
        "rank": {"type": "int"},
        "address": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "fabric_addresses": {"type": "list", "elements": "str"},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "mtu": {"type": "int", "default": 9000},
            "min_speed_mbps": {"type": "int", "default": 200000},
            "ssh_connection": {"type": "str"},
            "fail_on": {"type": "list", "elements": "str", "default": []},
            "peers": {"type": "list", "elements": "dict", "default": [], "options": peer},
            "ping_seconds": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    params = module.params
    capture = read_node(module)
    session = params["ssh_connection"] or find_ssh_connection()
    desired = DesiredState(params["fabric_addresses"] or (), params["interfaces"], params["mtu"], params["min_speed_mbps"])
    result = gather(capture, desired, session, foreign_config(capture))
    fatal = {each for name in params["fail_on"] for each in SHORT.get(name, (name,))}
    bad = [sentence_of(problem, result["rails"]) for problem in result["problems"] if problem["id"] in fatal]
    pings = ping_all(module, result["rails"])
    bad += [sentence for _record, sentence in pings if sentence]
    result.update(pings=[record for record, _sentence in pings], bandwidth=receipt_of(result["rails"]))
    if bad:
        module.fail_json(msg=" ".join(bad), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
