# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of memory, kernel log and fabric: the problems that the memory and RoCE readers report, as findings."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.findings import FindingCollector, Rank, Requirements
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import LOG_SIGNS

# problem of uma_info -> (check, severity on a GB10)
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
    """The problems of uma_info."""
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
        found.add("kernel_log", "warning", rank.host, text, sign.matters, sign.remedy)


def check_fabric(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """The problems of roce_info, before the fabric is set up."""
    excluded: Mapping[str, None] = {}
    if needs.size < 2:
        excluded = dict.fromkeys(("cable", *LINKS))
        found.skip(list(excluded), rank.host, "a group of one node needs no fabric")
    elif rank.facts["container"]:
        excluded = dict.fromkeys(LINKS)
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
    """Ways from the LAN to the rails and to the API."""
    way = rank.facts.get("forwarding") or {"enabled": False, "policy": ""}  # a recording of an earlier version has none
    if needs.size > 1 and way["enabled"] and not way["policy"]:
        found.skip(["fabric_forwarding"], rank.host, "the policy of the FORWARD chain cannot be read (iptables)")
    elif needs.size > 1 and way["policy"] == "ACCEPT":
        found.add("fabric_forwarding", "warning", rank.host, "the node forwards packets (net.ipv4.ip_forward=1), and the policy of its FORWARD chain is ACCEPT")
    if needs.open_port and rank.rank == 0:
        found.add("api_open", "warning", rank.host, f"the API has no key and listens on port {needs.open_port} of all addresses (vllm_tp2_api_open)")
