# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a node's RoCE fabric is. Pure: a `Capture` in, facts and problems out.

`gather()` is the entry; its result is what the module `roce_info` documents. The parts: parse.py (text), node.py (devices joined by
name), rails.py (which of them are rails), problems.py (what is wrong), and here the environment and the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import Node, Port
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.parse import Record
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.problems import (
    hotplug_state,
    joint_problems,
    management_problems,
    missing_sources,
    node_problems,
    rail_problems,
)
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import (
    Problem,
    Rail,
    Wanted,
    assign,
    counted,
    derive,
    is_link_local,
    management,
    resolve,
    usable_ipv4,
    wanted_rails,
)

__all__ = ["Node", "Wishes", "environment", "gather", "repairs_of"]


# --- environment ---------------------------------------------------------------------------------------------------------------


def environment(rails: Sequence[Rail]) -> dict[str, str]:
    """Return the NCCL, GLOO and TP variables of this node; a variable that cannot be decided is left out, never empty.

    NCCL_IB_HCA lists the HCAs of the rails that count and have a link and a resolved GID, in canonical order (cage, then PCIe segment).
    The socket variables name the first such rail (without RDMA: the first rail that is up and addressed).
    """
    up = [r for r in counted(rails) if r.port.linked]
    ready = sorted((r for r in up if r.port.hca is not None and r.gid_index is not None), key=lambda r: r.port.sort_key())
    env: dict[str, str] = {}
    if ready:
        env["NCCL_IB_HCA"] = ",".join(dict.fromkeys(r.port.hca_spec for r in ready))
        indices = {r.gid_index for r in ready}
        everyone = all(r.gid_index is not None for r in up if r.port.hca is not None)
        if len(indices) == 1 and everyone:
            env["NCCL_IB_GID_INDEX"] = str(ready[0].gid_index)
        else:
            env["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
            env["NCCL_IB_ROCE_VERSION_NUM"] = "2"
    elif any(r.port.hca is not None for r in up):
        env["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
        env["NCCL_IB_ROCE_VERSION_NUM"] = "2"
    first = sorted((r for r in up if r.ipv4 is not None and (r in ready or not ready)), key=lambda r: (is_link_local(str(r.ipv4)), r.index, r.port.sort_key()))
    if first:
        port = first[0].port
        name = port.master if port.master is not None and not usable_ipv4(port) else port.netdev
        for key in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            env[key] = name
    return env


# --- the whole -----------------------------------------------------------------------------------------------------------------


def _show_port(port: Port, protected: Sequence[str]) -> Record:
    row = asdict(port)
    row["addresses"] = [a.cidr for a in port.addresses]
    row["gids"] = [asdict(g) for g in port.gids]
    row["linked"] = port.linked
    row["protected"] = port.netdev in protected
    del row["mellanox"]
    del row["soft"]
    del row["admin_up"]
    return row


def _show_rail(rail: Rail) -> Record:
    port = rail.port
    state = port.state or ("ACTIVE" if port.carrier else "DOWN")
    return {
        "index": rail.index,
        "netdev": port.netdev,
        "hca": port.hca,
        "hca_port": port.hca_port,
        "cage": port.cage,
        "pci": port.pci,
        "state": state,
        "carrier": port.carrier,
        "speed_mbps": port.speed_mbps,
        "mtu": port.mtu,
        "active_mtu": port.active_mtu,
        "ipv4": rail.ipv4,
        "prefix": rail.prefix,
        "addresses": [a.cidr for a in port.addresses],
        "gid_index": rail.gid_index,
        "gids": [asdict(g) for g in port.gids],
    }


@dataclass(frozen=True)
class Wishes:
    """The user's wishes for gather(): one entry per rail in each list; mtu and min_speed_mbps judge, 0 judges nothing."""

    addresses: Sequence[str] = field(default_factory=tuple)
    cidrs: Sequence[str] = field(default_factory=tuple)
    interfaces: Sequence[str] = field(default_factory=tuple)
    mtu: int = 9000
    min_speed_mbps: int = 200000


def gather(capture: Capture, wishes: Wishes, ssh_connection: str | None = None, foreign: Iterable[Record] = ()) -> Record:
    """Return the facts that `roce_info` documents: rails, ports, twins, management, hotplug, env, problems."""
    node = Node(capture)
    mgmt = management(node, ssh_connection)
    wanted, problems = wanted_rails(wishes.addresses, wishes.cidrs, wishes.interfaces)
    by_index: dict[int, Wanted] = {}
    rails: list[Rail] = []
    unplaced: list[Wanted] = []
    if wanted:
        for wish, port in assign(node, wanted, mgmt["protected"]):
            if port is None:
                unplaced.append(wish)
                continue
            by_index[wish.index] = wish
            rails.append(resolve(node, port, wish.index, wish))
    else:
        rails = [resolve(node, port, index, None) for index, port in enumerate(derive(node, mgmt["protected"]))]
    hotplug = hotplug_state(capture)
    problems += node_problems(node, rails, hotplug, bool(wanted))
    if unplaced and node.ports:
        shown = ", ".join(w.address or w.network or w.interface or str(w.index) for w in unplaced)
        problems.append(
            Problem(
                "rail_unplaced",
                f"{len(unplaced)} wanted rail(s) ({shown}) found no port; this node has {', '.join(p.netdev for p in node.ports)}.",
                "A cable gives two rails: list at most two networks per cable in gb10_fabric_cidrs.",
            )
        )
    for rail in rails:
        if rail.port.netdev not in node.netdevs and rail.index in by_index and by_index[rail.index].interface:
            problems.append(
                Problem(
                    "interface_missing",
                    f"The interface {rail.port.netdev} of rail {rail.index} does not exist on this node (found: {', '.join(node.netdevs) or 'none'}).",
                    "Correct or remove roce_interfaces; without it the ports are found by themselves.",
                    rail.port.netdev,
                )
            )
            continue
        problems += rail_problems(node, rail, rails, by_index.get(rail.index), wishes.mtu, wishes.min_speed_mbps)
    problems += joint_problems(rails, by_index)
    problems += management_problems(node, rails, mgmt)
    problems += missing_sources(node)
    foreign_list = list(foreign)
    rail_names = {r.port.netdev for r in rails}
    for item in foreign_list:
        hit = sorted(set(item.get("interfaces", [])) & rail_names) or sorted(item.get("interfaces", []))
        problems.append(
            Problem(
                "foreign_netplan",
                f"{item['path']} ({item.get('writer') or 'not written by gb10.cluster'}) configures {', '.join(hit)}.",
                "Choose in roce_foreign_policy: `adopt` keeps it in charge, `replace` moves it to a backup, `refuse` stops.",
                hit[0] if len(hit) == 1 else None,
            )
        )
    twins: dict[str, list[str]] = {}
    for port in node.ports:
        if port.cage is not None:
            twins.setdefault(str(port.cage), []).append(port.netdev)
    return {
        "rails": [_show_rail(rail) for rail in sorted(rails, key=lambda r: (r.index,))],
        "ports": [_show_port(port, mgmt["protected"]) for port in node.ports],
        "twins": twins,
        "management": mgmt,
        "hotplug": hotplug,
        "foreign": foreign_list,
        "env": environment(rails),
        "problems": [asdict(problem) for problem in _unique(problems)],
    }


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def repairs_of(facts: Mapping[str, Any]) -> list[Record]:
    """Return the rails whose GID comes right by removing and adding their address.

    A rail with link and address but no GID (or two), and, where the rails' indices differ, those above the lowest one.
    """
    protected = facts["management"]["protected"]
    rails = [
        rail
        for rail in facts["rails"]
        if rail["hca"] and rail["ipv4"] and rail["prefix"] is not None and rail["state"] == "ACTIVE" and rail["netdev"] not in protected
    ]
    indices = [rail["gid_index"] for rail in rails if rail["gid_index"] is not None]
    lowest = min(indices, default=None)
    return [rail for rail in rails if rail["gid_index"] is None or rail["gid_index"] != lowest]


def sentence_of(problem: Record, rails: list[Record]) -> str:
    """Return a problem with its rail and its remedy."""
    rail = next((rail for rail in rails if problem["interface"] and rail["netdev"] == problem["interface"]), None)
    where = f"Rail {rail['index']} ({rail['ipv4'] or 'no address'}) does not work: " if rail else ""
    return f"{where}{problem['message']} {problem['remedy']}"
