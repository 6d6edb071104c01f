# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the RoCE facts of a node. Pure: a `Capture` in, facts and problems out.

`gather()` returns what the module `roce_info` documents. Its parts: node.py (devices joined by name), rails.py (which of
them are rails), problems.py (faults), and `environment()` here (the NCCL variables).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture, Node, Port, Record
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.problems import find_problems, hotplug_state
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import (
    DesiredState,
    Fabric,
    Rail,
    assign,
    counted,
    derive,
    desired_rails,
    is_link_local,
    management,
    resolve,
)

__all__ = ["DesiredState", "Node", "environment", "gather", "repairs_of", "sentence_of"]

_PRIVATE_KEYS = ("mellanox", "soft", "admin_up")
_RAIL_KEYS = ("netdev", "hca", "cage", "pci", "carrier", "speed_mbps", "mtu", "active_mtu")


def environment(rails: Sequence[Rail]) -> dict[str, str]:
    """Return the NCCL, GLOO and TP variables of this node; a variable that cannot be decided is omitted, never empty.

    NCCL_IB_HCA lists the HCAs of the rails that count and have a link and a resolved GID, in canonical order (cage, then PCIe segment).
    The socket variables name the first such rail (without RDMA: the first rail with a link and an address).
    """
    up = [r for r in counted(rails) if r.port.linked]
    with_hca = [r for r in up if r.port.hca is not None]
    ready = sorted((r for r in with_hca if r.gid_index is not None), key=lambda r: r.port.sort_key())
    env: dict[str, str] = {}
    if ready:
        env["NCCL_IB_HCA"] = ",".join(dict.fromkeys(str(r.port.hca) for r in ready))
    if ready and len({r.gid_index for r in with_hca}) == 1:
        env["NCCL_IB_GID_INDEX"] = str(ready[0].gid_index)
    elif with_hca:
        env["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
        env["NCCL_IB_ROCE_VERSION_NUM"] = "2"
    addressed = [r for r in ready or up if r.ipv4 is not None]
    if addressed:
        first = min(addressed, key=lambda r: (is_link_local(str(r.ipv4)), r.index, r.port.sort_key()))
        env.update(dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), first.port.netdev))
    return env


def _port_row(port: Port, protected: Sequence[str]) -> Record:
    row = {key: value for key, value in asdict(port).items() if key not in _PRIVATE_KEYS}
    return {**row, "addresses": [a.cidr for a in port.addresses], "gids": list(row["gids"]), "linked": port.linked, "protected": port.netdev in protected}


def _rail_row(rail: Rail) -> Record:
    port = rail.port
    return {
        "index": rail.index,
        **{key: getattr(port, key) for key in _RAIL_KEYS},
        "state": port.state or ("ACTIVE" if port.carrier else "DOWN"),
        "ipv4": rail.ipv4,
        "prefix": rail.prefix,
        "addresses": [a.cidr for a in port.addresses],
        "gid_index": rail.gid_index,
        "gids": [asdict(g) for g in port.gids],
    }


def gather(capture: Capture, desired: DesiredState, ssh_connection: str | None = None, foreign: Iterable[Record] = ()) -> Record:
    """Return the facts that `roce_info` documents: rails, ports, twins, management, hotplug, env, problems."""
    node = Node(capture)
    mgmt = management(node, ssh_connection)
    wanted, bad_input = desired_rails(desired)
    placed = assign(node, wanted, mgmt["protected"], desired.follow_link)
    if wanted:
        rails = [resolve(placed[rail.index], rail.index, rail) for rail in wanted if rail.index in placed]
    else:
        rails = [resolve(port, index, None) for index, port in enumerate(derive(node, mgmt["protected"]))]
    unplaced = [rail for rail in wanted if rail.index not in placed]
    fabric = Fabric(node, rails, desired, unplaced, mgmt, hotplug_state(capture), list(foreign))
    twins: dict[str, list[str]] = {}
    for port in node.ports:
        if port.cage is not None:
            twins.setdefault(str(port.cage), []).append(port.netdev)
    return {
        "rails": [_rail_row(rail) for rail in rails],
        "ports": [_port_row(port, mgmt["protected"]) for port in node.ports],
        "twins": twins,
        "management": mgmt,
        "hotplug": fabric.hotplug,
        "foreign": fabric.foreign,
        "env": environment(rails),
        "problems": [asdict(problem) for problem in dict.fromkeys([*bad_input, *find_problems(fabric)])],
    }


def repairs_of(facts: Mapping[str, Any]) -> list[Record]:
    """Return the rails whose GID is corrected when their address is removed and added.

    A rail with a link and an address but without a GID (or with two), and, if the indices of the rails differ, those above the lowest one.
    """
    protected = facts["management"]["protected"]
    rails = [
        rail
        for rail in facts["rails"]
        if rail["hca"] and rail["ipv4"] and rail["prefix"] is not None and rail["state"] == "ACTIVE" and rail["netdev"] not in protected
    ]
    lowest = min((rail["gid_index"] for rail in rails if rail["gid_index"] is not None), default=None)
    return [rail for rail in rails if rail["gid_index"] is None or rail["gid_index"] != lowest]


def sentence_of(problem: Record, rails: list[Record]) -> str:
    """Return a problem with its rail and its remedy."""
    rail = next((rail for rail in rails if problem["interface"] and rail["netdev"] == problem["interface"]), None)
    where = f"Rail {rail['index']} ({rail['ipv4'] or 'no address'}) does not work: " if rail else ""
    return f"{where}{problem['message']} {problem['remedy']}"
