# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of the fabric: what roce_info reports, ways from the LAN to the rails, and the tests that were asked for."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import GROUP, PAIR, RANK, ROCE, Event, Group, Rank, check, skip
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import ERROR, INFO, WARNING, found

#: problem of roce_info -> check
PROBLEMS = {
    "no_cable": "cable",
    "link_down": "cable",
    "interface_missing": "cable",
    "rail_unplaced": "cable",
    "speed_degraded": "link_speed",
    "pcie_degraded": "link_speed",
    "ports_asymmetric": "twins",
    "no_rdma": "rdma",
    "rail_is_management": "fabric_is_management",
    "subnet_of_management": "fabric_subnet",
    "subnet_of_another": "fabric_subnet",
    "foreign_netplan": "foreign_network_config",
}
_LINKS = ("cable", "link_speed", "twins", "rdma")
_LINK = "{on} 'rdma link; sudo lspci -vv -d 15b3: | grep LnkSta:'"


@check("cable", "fabric", ERROR, "the ranks have no rail to reach each other", command="{on} 'ip -br link; rdma link'", looks="no link, a rail without a port")
@check("link_speed", "fabric", WARNING, "the pair runs at the speed of its slowest link", command=_LINK, physical=True, looks="a slow link (cable or PCIe)")
@check(
    "twins", "fabric", WARNING, "one function alone gives half the bandwidth", command="{on} 'ip -br address; rdma link'", physical=True,
    looks="one function of a cage without link")  # fmt: skip
@check(
    "rdma", "fabric", WARNING, "NCCL uses TCP without a message, at a tenth of the speed", command="{on} sudo modprobe -a mlx5_ib ib_uverbs", physical=True,
    looks="no RDMA device")  # fmt: skip
@check(
    "fabric_is_management", "fabric", ERROR, "a change of the fabric would cut the connection of Ansible, so the roce role refuses it",
    command="{on} ip -br address", looks="a rail that carries the default route or your SSH session")  # fmt: skip
@check(
    "fabric_subnet", "fabric", WARNING,
    "the hosts of that network reach ports of the group that have no authentication, and fabric traffic can leave the cable",
    "set gb10_fabric_cidrs to networks that no other interface has, such as 192.168.200.0/24", "{on} ip route",
    looks="an interface with an address in the network of a rail, or a management network around it: their hosts reach the rails")  # fmt: skip
@check(
    "foreign_network_config", "fabric", INFO, "two files that configure one interface conflict over its address and MTU", command="{on} sudo netplan get",
    looks="netplan files of others on the rails; the roce role has a policy for them")  # fmt: skip
def reported(rank: Rank, group: Group) -> Iterator[Event]:
    """The problems of roce_info that count before the fabric is set up, and a management network around a rail."""
    single = len(group.ranks) < 2
    for name in _LINKS if single else ():
        yield skip("a group of one node needs no fabric", name)
    seen = set()
    for problem in rank.facts["fabric"]["problems"]:
        name = PROBLEMS.get(problem["id"], "")
        if not name or (single and name in _LINKS) or (name == "rdma" and name in seen):  # RDMA fails for the node and for each rail
            continue
        seen.add(name)
        yield found(problem["message"], problem["remedy"], name=name)
    mgmt = rank.facts["fabric"]["management"]
    around = _network(mgmt.get("address"), mgmt.get("prefix"))
    for rail in rank.facts["fabric"]["rails"] if around and not single else ():
        network = _network(rail.get("ipv4"), rail.get("prefix"))
        # an address of the management inside of the rail's network is a problem of roce_info
        if network and around and network != around and network.subnet_of(around) and ipaddress.IPv4Address(mgmt["address"]) not in network:
            text = f"{network} of {rail['netdev']} is a part of {around} of {mgmt['interface']}, where the kernel answers ARP for {rail['ipv4']}"
            yield found(text, name="fabric_subnet")


def _network(address: str | None, prefix: int | None) -> ipaddress.IPv4Network | None:
    """Return the network of an address; None without one, and for what is not IPv4."""
    try:
        return ipaddress.IPv4Network(f"{address}/{prefix}", strict=False)
    except ValueError:
        return None


def _exposed(group: Group) -> list[Rank]:
    """Return the ranks of which the ways to the rails are known; none for a group of one node."""
    return group.read if len(group.ranks) > 1 else []


@check(
    "fabric_forwarding", "fabric", WARNING,
    "vLLM's connections between the nodes have no authentication, and this node passes packets of the LAN on to the rails of the others",
    "set roce_firewall: true, or this setting to 0 if nothing needs it, or `iptables -P FORWARD DROP`, which the Docker Engine normally sets",
    "{on} sudo iptables -P FORWARD DROP")  # fmt: skip
def forwarding(rank: Rank, group: Group) -> Iterator[Event]:
    """IPv4 forwarding, of one interface too, with a FORWARD chain that accepts: the LAN reaches the rails of the other nodes through this one"""
    known = _exposed(group)
    # The firewall of the node that is reached closes the way.
    if rank not in known or all(other.facts["exposure"]["firewall"] for other in known if other is not rank):
        return
    way = rank.facts["exposure"]
    if way["forwarding"] and not way["policy"]:
        yield skip("the policy of the FORWARD chain cannot be read (iptables)")
    elif way["forwarding"] and way["policy"] == "ACCEPT":
        yield found(f"the node forwards packets ({way['forwarding']}), and its FORWARD chain accepts them")


@check(
    "fabric_neighbor", "fabric", WARNING, "vLLM's connections between the nodes have no authentication, and every host of that network reaches them",
    "connect the nodes directly, give the rails a VLAN of their own on the switch, or set roce_firewall: true", "{on} ip neigh", PAIR)  # fmt: skip
def neighbor(rank: Rank, group: Group) -> Iterator[Event]:
    """hosts on a rail that are not ranks of the group, as on a switch"""
    known = _exposed(group)
    macs = {mac for each in known for mac in each.facts["fabric"]["macs"]}
    if len(known) < len(group.ranks) or rank.container or rank.facts["exposure"]["firewall"]:
        return
    strangers = [entry for entry in rank.facts["exposure"]["neighbors"] if entry["mac"] not in macs]
    if strangers:
        shown = ", ".join(f"{entry['mac']} on {entry['netdev']}" for entry in strangers[:4])
        yield found(f"{len(strangers)} host(s) on a rail are not ranks of the group: {shown}")


@check("roce_problem", "fabric", WARNING, "NCCL does not reach the other rank, or uses TCP at a tenth of the speed", command=ROCE, of=RANK)
def rails(rank: Rank, _group: Group) -> Iterator[Event]:
    """a problem of the rails after the set-up, such as a missing GID or a wrong MTU"""
    facts: Any = rank.facts.get("fabric") or {}
    up = [rail for rail in facts.get("rails") or () if rail.get("carrier")]
    if up:
        yield f"{rank.host}: {len(up)} rails up"
    problems = facts.get("problems") or ()
    without_cable = any(PROBLEMS.get(problem["id"]) == "cable" for problem in problems)
    for problem in problems if rank.info.get("current") and not without_cable and not rank.container else ():
        if problem["id"] not in PROBLEMS:
            yield found(f"{problem['id']}: {problem['message']}", problem["remedy"])


@check("bandwidth", "fabric", WARNING, "the pair runs at the speed of its slowest rail", command="{play}doctor{end} -e doctor_bandwidth=true", of=GROUP)
def bandwidth(_head: Rank, group: Group) -> Iterator[Event]:
    """the test of the rails that was asked for"""
    for host, measured in group.bandwidth.items():
        text = str(measured.get("message") or measured.get("msg") or "no result")
        if measured.get("bandwidth_class") == "healthy" and not measured.get("failed"):
            yield text
        else:
            yield found(text, str(measured.get("remedy") or ""), hosts=[host])
    if group.bandwidth_not:
        yield skip(f"bandwidth test: {group.bandwidth_not}")


@check(
    "collective", "fabric", ERROR, "the ranks do not work together over these rails, and a boot hangs or is slow",
    command="{play}doctor{end} -e doctor_collective=true", of=GROUP)  # fmt: skip
def collective(_head: Rank, group: Group) -> Iterator[Event]:
    """the test of the collectives that was asked for; a result that is only slow is a warning"""
    tested = group.collective
    if tested.get("skipped"):
        yield skip(f"collective test: {tested['skipped']}")
    elif tested.get("class"):
        yield found(str(tested.get("msg")), severity=ERROR if tested.get("failed") else WARNING)
    elif tested:
        yield str(tested.get("msg"))
