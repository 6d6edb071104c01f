# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rails of a node: which ports they are, with which address and GID index, and which interface is its management path. Pure.

A *rail* is a port that carries fabric traffic, or is configured to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import ROCE_V2, Address, Node, Port, Record, as_address


@dataclass(frozen=True)
class Problem:
    """A fault: a stable id, what was found, and the remedy."""

    id: str
    message: str
    remedy: str
    interface: str | None = None


@dataclass(frozen=True)
class DesiredState:
    """Desired fabric of a node: one entry per rail in each list. An MTU or a speed of 0 is not checked.

    With `follow_link`, addresses on a cage without a link do not count while another cage has one: the cable was moved.
    """

    addresses: Sequence[str] = ()
    cidrs: Sequence[str] = ()
    interfaces: Sequence[str] = ()
    mtu: int = 9000
    min_speed_mbps: int = 200000
    follow_link: bool = False


@dataclass(frozen=True)
class DesiredRail:
    """Desired interface, address and network of rail number `index`; each of them may be open."""

    index: int
    interface: str | None = None
    address: str | None = None
    prefix: int | None = None
    network: str | None = None


@dataclass(frozen=True)
class Rail:
    """A port as a rail, with its fabric address and the GID index of this address. `desired` is None for a rail that was found."""

    port: Port
    index: int
    desired: DesiredRail | None = None
    ipv4: str | None = None
    prefix: int | None = None
    gid_index: int | None = None
    candidates: tuple[str, ...] = ()
    matches: tuple[int, ...] = ()

    @property
    def network(self) -> Any:
        """Return the network of the fabric address, None without an address."""
        return None if self.ipv4 is None else ipaddress.ip_network(f"{self.ipv4}/{self.prefix}", strict=False)


@dataclass(frozen=True)
class Fabric:
    """What the functions judge: the node, its rails, and what is configured."""

    node: Node
    rails: Sequence[Rail]
    desired: DesiredState
    unplaced: Sequence[DesiredRail]
    management: Record
    hotplug: Record
    foreign: list[Record]


# --- management ----------------------------------------------------------------------------------------------------------------


def ssh_server_address(connection: str | None) -> str | None:
    """Return this node's own address of `SSH_CONNECTION` (client, port, server, port), with its zone if it has one."""
    words = (connection or "").split()
    return words[2] if len(words) == 4 and as_address(words[2].split("%")[0]) is not None else None


def management(node: Node, ssh_connection: str | None) -> Record:
    """Return the management path: the device of the SSH session, else of the default route with the lowest metric.

    `protected` lists every device that must not be changed: those of the session and of all default routes, with bond members and the
    parents of VLANs.
    """
    defaults = node.default_routes()
    server = ssh_server_address(ssh_connection)
    by_ssh = node.holder(server) if server and not as_address(server.split("%")[0]).is_loopback else None  # type: ignore[union-attr]  # parsed above
    interface = by_ssh or (defaults[0]["dev"] if defaults else None)
    devices = {item["dev"] for item in defaults}
    route = next((item for item in defaults if item["dev"] == interface), None)
    address = _management_address(node, interface, (server or "").split("%")[0] if by_ssh else None, route)
    return {
        "interface": interface,
        "address": address.local if address else None,
        "prefix": address.prefix if address else None,
        "gateway": route["gateway"] if route is not None else None,
        "reason": "ssh session" if by_ssh else ("default route" if defaults else None),
        "default_route_interfaces": sorted(devices),
        "protected": sorted(set().union(*(node.closure(name) for name in devices | ({by_ssh} if by_ssh else set())))),
    }


def _management_address(node: Node, interface: str | None, server: str | None, route: Record | None) -> Address | None:
    """Return the address of the session, else the one that leads to the gateway."""
    gateway, source = (as_address(route["gateway"]), as_address(route["src"])) if route is not None else (None, None)

    def rank(address: Address) -> tuple[bool, ...]:
        local = as_address(address.local)
        near = gateway is not None and gateway in ipaddress.ip_network(address.cidr, strict=False)
        used = server is not None and local == as_address(server)
        return (not used, address.family != "inet", source is None or local != source, not near, is_link_local(address.local), address.secondary)

    own = [a for a in node.addresses(interface or "") if not (a.family == "inet6" and a.scope == "link")]
    return min(own, key=rank, default=None)


# --- desired rails -------------------------------------------------------------------------------------------------------------


def desired_rails(desired: DesiredState) -> tuple[list[DesiredRail], list[Problem]]:
    """Return one entry per rail, and a problem for each value that is not an IPv4 address or network. The inventory check finds them before."""
    rails: list[DesiredRail] = []
    problems: list[Problem] = []
    for index in range(max(len(desired.addresses), len(desired.cidrs), len(desired.interfaces))):
        text, cidr, interface = (str(values[index]).strip() if index < len(values) else "" for values in (desired.addresses, desired.cidrs, desired.interfaces))
        address, network = None, None
        try:
            network = ipaddress.IPv4Network(cidr, strict=False) if cidr else None
            if text:
                face = ipaddress.IPv4Interface(text)
                address, network = face.ip, face.network if "/" in text else network
            if address is not None and network is not None and address not in network:
                raise ValueError(f"{address} is not in {network}")
            if interface and interface in [rail.interface for rail in rails]:
                raise ValueError(f"{interface} is named twice")
        except ValueError as exc:
            remedy = "Write an address like 192.168.100.10/24, a network like 192.168.100.0/24, and each interface once."
            problems.append(Problem("bad_input", f"Rail {index} ({', '.join(filter(None, (text, cidr, interface)))}) is not valid: {exc}.", remedy))
        prefix, net = (network.prefixlen, str(network)) if network is not None else (None, None)
        rails.append(DesiredRail(index, interface or None, str(address) if address is not None else None, prefix, net))
    return rails, problems


def is_link_local(address: str) -> bool:
    """Return whether an address is link-local."""
    return ipaddress.ip_address(address).is_link_local


def assign(node: Node, desired: Sequence[DesiredRail], protected: Sequence[str], follow_link: bool = False) -> dict[int, Port]:
    """Return {index of the rail: port}: the named port, the one with the address, one inside the network, then free ports of the best cage.

    The best cage is the one that already has a rail, else the one with more linked ports, else the lower number.
    If two ports match, the one with a link is selected: some configure both cages with the same addresses, so that either works.
    A protected device (default route, SSH session) is selected only if it is named or already has exactly the desired address.
    """
    alive = {port.cage for port in node.ports if port.linked and port.netdev not in protected}
    dark = {port.netdev for port in node.ports if follow_link and alive and port.cage not in alive and not port.linked}
    placed: dict[int, Port] = {}

    def free(*excluded: str) -> list[Port]:
        used = {port.netdev for port in placed.values()} | set(excluded)
        return sorted((port for port in node.ports if port.netdev not in used), key=lambda port: not port.linked)

    for rail in desired:
        if rail.interface is not None:
            placed[rail.index] = node.port(rail.interface)
    for rail in desired:
        if rail.index not in placed and rail.address is not None:
            match = next((port for port in free(*dark) if rail.address in [a.local for a in port.addresses]), None)
            holder = node.holder(rail.address)
            if match is None and holder not in (None, "lo", *dark):
                match = node.port(str(holder))
            if match is not None:
                placed[rail.index] = match
    for rail in desired:
        if rail.index not in placed and rail.network is not None:
            net = ipaddress.ip_network(rail.network)
            devices = free(*protected, *dark) if node.ports else [node.port(name) for name in node.netdevs if name not in protected]
            inside = [port for port in devices if any(as_address(a.local) in net for a in port.addresses)]
            if len(inside) == 1 or (inside and node.ports):
                placed[rail.index] = inside[0]
    for rail in desired:
        rest = [port for port in free(*protected) if port.master is None]
        if rail.index not in placed and rest:
            placed[rail.index] = min(rest, key=lambda port: _cage_rank(node, port, list(placed.values())))
    return placed


def _cage_rank(node: Node, port: Port, placed: Sequence[Port]) -> tuple[bool, int, tuple[int, int, str, str]]:
    linked = sum(1 for other in node.ports if other.cage == port.cage and other.linked)
    return (port.cage not in {other.cage for other in placed}, -linked, port.sort_key())


# --- rails without a desired state ---------------------------------------------------------------------------------------------


def derive(node: Node, protected: Sequence[str]) -> list[Port]:
    """Return the rails of a node without a desired state: ports with a link or an address, and the twins of such ports.

    A bond or a VLAN is a rail only if it is named. A cage with a port of the management path is left out if another one has real addresses.
    """
    active = [p for p in node.ports if p.usable_ipv4 or (p.linked and p.master is None)]
    active = [p for p in active if p.netdev not in protected or p.card] or active
    office = {p.cage for p in node.ports if p.netdev in protected and p.cage is not None}
    rest = [p for p in active if p.cage not in office]
    active = rest if any(p.linked and not is_link_local(a.local) for p in rest for a in p.usable_ipv4) else active
    cages = {p.cage for p in active if p.cage is not None and p.linked}
    names = {p.netdev for p in active} | set(protected)
    return sorted(active + [p for p in node.ports if p.netdev not in names and p.cage in cages], key=Port.sort_key)


# --- GID index -----------------------------------------------------------------------------------------------------------------


def resolve(port: Port, index: int, desired: DesiredRail | None) -> Rail:
    """Return the rail with its IPv4 address and the index of the one RoCE v2 GID of this address. More or less than one: no index."""
    chosen = _fabric_addresses(port.usable_ipv4, desired)
    candidates = tuple(dict.fromkeys(a.local for a in chosen))
    ipv4 = candidates[0] if candidates else None
    own = [g for g in port.gids if g.netdev in (None, port.netdev, port.master)]
    matches = tuple(g.index for g in own if g.type == ROCE_V2 and g.ipv4 is not None and g.ipv4 == ipv4)
    exact = len(matches) == len(candidates) == 1
    return Rail(port, index, desired, ipv4, chosen[0].prefix if chosen else None, matches[0] if exact else None, candidates, matches)


def _fabric_addresses(have: list[Address], desired: DesiredRail | None) -> list[Address]:
    """Return the addresses of a port that can be its fabric address."""
    if desired is not None and desired.address is not None:
        return [a for a in have if a.local == desired.address]
    if desired is not None and desired.network is not None:
        have = [a for a in have if as_address(a.local) in ipaddress.ip_network(desired.network)]
        return [a for a in have if not a.secondary] or have
    have = [a for a in have if not is_link_local(a.local)] or have
    have = [a for a in have if not a.secondary] or have
    return [a for a in have if a.prefix < 32] or have  # a /32 is a service address, which reaches no peer


def _is_real(rail: Rail) -> bool:
    return rail.ipv4 is not None and not is_link_local(rail.ipv4)


def counted(rails: Sequence[Rail]) -> list[Rail]:
    """Return the rails that count for NCCL: no unused second cable, and no link-local address if another rail has a real one that works.

    169.254 is configured automatically on every port, so no peer is there; and NCCL pairs HCAs by their position.
    """
    spare = spare_cages(rails)
    real = any(r.port.linked and r.gid_index is not None and _is_real(r) for r in rails)
    return [r for r in rails if r.port.cage not in spare and (not real or r.ipv4 is None or _is_real(r))]


def spare_cages(rails: Sequence[Rail]) -> set[int]:
    """Return the cages of an unused second cable: not desired, without a real IPv4 address, while a linked rail has one."""
    if not any(r.port.linked and _is_real(r) for r in rails):
        return set()
    used = {r.port.cage for r in rails if r.desired is not None or _is_real(r)}
    return {r.port.cage for r in rails if r.port.cage is not None} - used


# --- what is returned of rails -----------------------------------------------------------------------------------------------------

_PRIVATE_KEYS = ("card", "admin_up")
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


def port_row(port: Port, protected: Sequence[str]) -> Record:
    """Return a port as roce_info returns it."""
    row = {key: value for key, value in asdict(port).items() if key not in _PRIVATE_KEYS}
    return {**row, "addresses": [a.cidr for a in port.addresses], "gids": list(row["gids"]), "linked": port.linked, "protected": port.netdev in protected}


def rail_row(rail: Rail) -> Record:
    """Return a rail as roce_info returns it."""
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
