# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of memory, kernel log and fabric: the problems that the memory and RoCE readers report, as findings."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.findings import FindingCollector, Rank, Requirements
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import LOG_SIGNS

# problem of memory.find_problems -> (check, severity on a GB10)
MEMORY: dict[str, tuple[str, str]] = {
    "kho-cma-leak": ("kho_leak", "error"),
    "memory-stuck": ("memory_stuck", "error"),
    "memory-fragmented": ("memory_fragmented", "warning"),
    "available-is-cache": ("memory_cache", "info"),
    "watermark-boost": ("watermark_boost", "info"),
}

# problem of roce_info -> (check, severity)
FABRIC: dict[str, tuple[str, str]] = {
    "no_cable": ("cable", "error"),
    "link_down": ("cable", "error"),
    "interface_missing": ("cable", "error"),
    "rail_unplaced": ("cable", "error"),
    "speed_degraded": ("link_speed", "warning"),
    "pcie_degraded": ("link_speed", "warning"),
    "ports_asymmetric": ("twins", "warning"),
    "no_rdma": ("rdma", "warning"),
    "rdma_unreadable": ("rdma", "warning"),
    "infiniband_mode": ("rdma", "warning"),
    "rail_is_management": ("fabric_is_management", "error"),
    "subnet_of_management": ("fabric_subnet", "warning"),
    "subnet_of_another": ("fabric_subnet", "warning"),
    "foreign_netplan": ("foreign_network_config", "info"),
}
# Checks of links that a container has no counterpart of.
LINKS = ("link_speed", "twins", "rdma")


def check_memory(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """The problems of the memory."""
    for problem in rank.facts["memory"].get("problems", []):
        check, severity = MEMORY.get(problem["id"], ("", ""))
        if check:
            lowered = "warning" if severity == "error" and not rank.facts["machine"]["gb10"] else severity
            found.add(check, lowered, rank.host, problem["message"], remedy=problem["remedy"])


def check_kernel_log(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """Faults in the kernel log since the boot."""
    for entry in rank.facts["kernel_log"]:
        sign = LOG_SIGNS[entry["id"]]
        text = f"the kernel log has {entry['count']} such line(s) since the boot: {entry['line']}"
        found.add("kernel_log", "warning", rank.host, text, sign.matters, sign.preflight)


def check_suspend(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """What lets the node suspend by itself."""
    reasons = rank.facts.get("suspends")
    if reasons:
        found.add("may_suspend", "warning", rank.host, "; ".join(reasons))


def check_fabric(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """The problems of roce_info, before the fabric is set up."""
    excluded: tuple[str, ...] = LINKS if rank.facts["container"] else ()
    if needs.size < 2:
        excluded = ("cable", *LINKS)
        found.skip(excluded, rank.host, "a group of one node needs no fabric")
    reported = set()
    for problem in rank.facts["fabric"]["problems"]:
        check, severity = FABRIC.get(problem["id"], ("", ""))
        if not check or check in excluded or (check == "rdma" and check in reported):  # RDMA fails for the node and for each rail
            continue
        reported.add(check)
        found.add(check, severity, rank.host, problem["message"].rstrip("."), remedy=problem["remedy"].rstrip("."))


def check_wifi(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """The interface that Ansible connects through."""
    path = rank.facts["fabric"]["management"]
    if path["wireless"]:
        text = f"the connection to the node uses Wi-Fi ({path['interface']}, {path['reason'] or 'default route'})"
        found.add("wifi_control_path", "warning", rank.host, text)


def check_exposure(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """Ways from the LAN to the rails of this node, and to the API."""
    mgmt = rank.facts["fabric"]["management"]
    around = _network(mgmt.get("address"), mgmt.get("prefix"))
    for rail in rank.facts["fabric"]["rails"] if needs.size > 1 and around else ():
        network = _network(rail.get("ipv4"), rail.get("prefix"))
        # an address of the management inside of the rail's network is a problem of roce_info
        if network and around and network != around and network.subnet_of(around) and ipaddress.IPv4Address(mgmt["address"]) not in network:
            text = f"{network} of {rail['netdev']} is a part of {around} of {mgmt['interface']}, where the kernel answers ARP for {rail['ipv4']}"
            found.add(
                "fabric_subnet", "warning", rank.host, text, remedy="set gb10_fabric_cidrs to networks that no other interface has, such as 192.168.200.0/24"
            )
    if needs.open_port and rank.rank == 0:
        found.add("api_open", "warning", rank.host, f"the API has no key and listens on port {needs.open_port} of all addresses (vllm_tp2_api_open)")


def _network(address: str | None, prefix: int | None) -> ipaddress.IPv4Network | None:
    """Return the network of an address; None without one, and for what is not IPv4."""
    try:
        return ipaddress.IPv4Network(f"{address}/{prefix}", strict=False)
    except ValueError:
        return None


def check_reachable_rails(found: FindingCollector, ranks: Sequence[Rank], needs: Requirements) -> None:
    """Ways to the rails that one node opens to another, or that only the facts of all nodes show. The firewall of the node that is reached closes them."""
    known = ranks if needs.size > 1 else []
    macs = {mac for rank in known for mac in rank.facts["fabric"]["macs"]}
    for rank in known:
        way, guarded = rank.facts["exposure"], all(other.facts["exposure"]["firewall"] for other in known if other is not rank)
        if way["forwarding"] and not guarded and not way["policy"]:
            found.skip(["fabric_forwarding"], rank.host, "the policy of the FORWARD chain cannot be read (iptables)")
        elif way["forwarding"] and not guarded and way["policy"] == "ACCEPT":
            found.add("fabric_forwarding", "warning", rank.host, f"the node forwards packets ({way['forwarding']}), and its FORWARD chain accepts them")
        strangers = [entry for entry in way["neighbors"] if entry["mac"] not in macs]
        if strangers and len(known) == needs.size and not way["firewall"] and not rank.facts["container"]:
            shown = ", ".join(f"{entry['mac']} on {entry['netdev']}" for entry in strangers[:4])
            found.add("fabric_neighbor", "warning", rank.host, f"{len(strangers)} host(s) on a rail are not ranks of the group: {shown}")
