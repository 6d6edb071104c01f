# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: which ports of a node are rails, with which address and GID, and which interface is its management path. Pure.

A *rail* is a port that carries, or is to carry, fabric traffic.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import ROCE_V2, SPARK_PORT, VIRTUAL_KINDS, Address, Node, Port
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.parse import Record, as_address

VIRTUAL = re.compile(r"^(?:lo$|docker|br|veth|virbr|vxlan|tailscale|wg|tun|tap|cni|flannel|cali|dummy|podman|nerdctl|zt|ib|vnet|lxc|incus)")


@dataclass(frozen=True)
class Problem:
    """Something wrong: a stable id, what was found, and what to do."""

    id: str
    message: str
    remedy: str
    interface: str | None = None


@dataclass(frozen=True)
class Wanted:
    """What the user wants of rail number `index`: an interface, an address, a network; any of them may be open."""

    index: int
    interface: str | None = None
    address: str | None = None
    prefix: int | None = None
    network: str | None = None


@dataclass(frozen=True)
class Rail:
    """A port in its role as a rail, with the address that counts and the GID index that belongs to it."""

    port: Port
    index: int
    ipv4: str | None = None
    prefix: int | None = None
    gid_index: int | None = None
    candidates: tuple[str, ...] = ()
    matches: tuple[int, ...] = ()
    wanted: bool = False


# --- management ----------------------------------------------------------------------------------------------------------------


def ssh_server_address(connection: str | None) -> str | None:
    """Return this node's own address of `SSH_CONNECTION` (client, port, server, port), with its zone where it has one."""
    words = (connection or "").split()
    return words[2] if len(words) == 4 and as_address(words[2].split("%")[0]) is not None else None


def management(node: Node, ssh_connection: str | None) -> Record:
    """Return the management path: the device of the SSH session, else of the default route with the lowest metric.

    Without both it is the one addressed device that is neither a port of the card nor virtual, if there is just one; nothing hangs on
    that guess, so it protects nothing. `protected` lists every device that must not be touched: both, with bond members and the parents of VLANs.
    """
    defaults = node.default_routes()
    server = ssh_server_address(ssh_connection)
    by_ssh = node.holder(server) if server and not _is_loopback(server) else None
    alone = _only_other_interface(node) if not by_ssh and not defaults else None
    interface = by_ssh or (defaults[0]["dev"] if defaults else alone)
    protected: set[str] = set()
    for name in {item["dev"] for item in defaults} | ({by_ssh} if by_ssh else set()):
        protected |= node.closure(name)
    route = next((item for item in defaults if item["dev"] == interface), None)
    gateway = route["gateway"] if route is not None else None
    address, prefix = None, None
    if interface is not None:
        own = [a for a in node.addresses(interface) if not (a.family == "inet6" and a.scope == "link")]
        used = as_address((server or "").split("%")[0])
        first = [a for a in own if by_ssh and as_address(a.local) == used] or sorted(own, key=lambda a: _distance(a, route))
        if first:
            address, prefix = first[0].local, first[0].prefix
    return {
        "interface": interface,
        "address": address,
        "prefix": prefix,
        "gateway": gateway,
        "reason": "ssh session" if by_ssh else ("default route" if defaults else ("only addressed interface" if alone else None)),
        "default_route_interfaces": sorted({item["dev"] for item in defaults}),
        "protected": sorted(protected),
    }


def _distance(address: Address, route: Record | None) -> tuple[bool, bool, bool, bool, bool]:
    """Order a device's addresses: IPv4, the default route's source, one in the gateway's subnet, no link-local, no secondary one."""
    local, gateway = as_address(address.local), as_address(route["gateway"]) if route is not None else None
    near = gateway is not None and gateway in ipaddress.ip_network(address.cidr, strict=False)
    source = route is not None and as_address(route["src"]) == local
    return (address.family != "inet", not source, not near, is_link_local(address.local), address.secondary)


def _only_other_interface(node: Node) -> str | None:
    """Return the one device that is no port and not virtual and has an address; wired goes before Wi-Fi."""
    ports = {name for port in node.ports for name in (port.netdev, port.lower, port.master) if name is not None}
    found = []
    for name in node.netdevs:
        if name in ports or VIRTUAL.match(name) or node.kind(name) in VIRTUAL_KINDS or node.lower(name) in ports:
            continue
        if any(a.scope == "global" and not _is_loopback(a.local) for a in node.addresses(name)):
            found.append(name)
    wired = [name for name in found if not name.startswith("wl")]
    best = wired or found
    return best[0] if len(best) == 1 else None


def _is_loopback(text: str) -> bool:
    value = as_address(text)
    return value is not None and value.is_loopback


# --- rails ---------------------------------------------------------------------------------------------------------------------


def wanted_rails(addresses: Sequence[str], cidrs: Sequence[str], interfaces: Sequence[str]) -> tuple[list[Wanted], list[Problem]]:
    """Turn the user's lists (one entry per rail) into wishes; an entry that is no IPv4 address or network becomes a problem."""
    wishes: list[Wanted] = []
    problems: list[Problem] = []

    def bad(message: str, remedy: str) -> None:
        problems.append(Problem("bad_input", message, remedy))

    for index in range(max(len(addresses), len(cidrs), len(interfaces))):
        address, network = None, None
        if index < len(cidrs):
            try:
                network = ipaddress.IPv4Network(str(cidrs[index]).strip(), strict=False)
            except ValueError:
                bad(f"fabric_cidrs[{index}] is {cidrs[index]!r}, which is no IPv4 network.", "Write it like 192.168.100.0/24.")
        if index < len(addresses):
            try:
                face = ipaddress.IPv4Interface(str(addresses[index]).strip())
                address = face.ip
                if "/" in str(addresses[index]):
                    network = face.network
                elif network is not None and address not in network:
                    bad(f"fabric_addresses[{index}] {address} is not in fabric_cidrs[{index}] {network}.", "Take one of that network, or write its prefix.")
                    network = None
            except ValueError:
                bad(f"fabric_addresses[{index}] is {addresses[index]!r}, which is no IPv4 address.", "Write it like 192.168.100.10 or 192.168.100.10/24.")
        interface = (str(interfaces[index]).strip() or None) if index < len(interfaces) else None
        if interface is not None and interface in [wish.interface for wish in wishes]:
            bad(f"interfaces[{index}] names {interface} a second time.", "Name each rail's interface once.")
        wishes.append(
            Wanted(
                index,
                interface,
                str(address) if address is not None else None,
                network.prefixlen if network is not None else None,
                str(network) if network is not None else None,
            )
        )
    return wishes, problems


def _carriers(node: Node, ports: Sequence[Port]) -> list[Port]:
    """Return the ports plus what sits on them: VLANs, a bond or a bridge, and a VLAN on that."""
    found = {port.netdev: port for port in ports}
    for _level in range(3):
        added = []
        for name in node.netdevs:
            if name in found or name == "lo":
                continue
            lower = found.get(node.lower(name) or "")
            members = [port for port in found.values() if port.master == name]
            if lower is not None:
                own = node.port(name)
                added.append(own if own.hca else _on_top(own, lower))
            elif members:
                added.append(node.port(name) if node.hca_of.get(name) else _of_bond(node, name, members))
        if not added:
            break
        found.update((port.netdev, port) for port in added)
    return list(found.values())


def _on_top(own: Port, base: Port) -> Port:
    """Return a device on top of a port as a port: its own addresses, the HCA and the place of the port below."""
    return replace(
        own,
        hca=base.hca,
        hca_port=base.hca_port,
        cage=base.cage,
        segment=base.segment,
        pci=base.pci,
        gids=base.gids,
        state=own.state or base.state,
        phys_state=base.phys_state,
        active_mtu=base.active_mtu,
        speed_mbps=own.speed_mbps or base.speed_mbps,
        mellanox=base.mellanox,
        link_layer=base.link_layer,
        soft=base.soft,
    )


def _of_bond(node: Node, name: str, members: Sequence[Port]) -> Port:
    """Return a bond or bridge as a port: its own addresses, HCA and GIDs of the member that has its GIDs, else of the first one with link."""
    own = node.port(name)
    mine = {a.local for a in own.ipv4}

    def rank(port: Port) -> tuple[bool, bool, tuple[int, int, str, str]]:
        return (not any(gid.ipv4 in mine for gid in port.gids), not port.linked, port.sort_key())

    return _on_top(own, min(members, key=rank))


def usable_ipv4(port: Port) -> list[Address]:
    return [a for a in port.ipv4 if not as_address(a.local).is_loopback]  # type: ignore[union-attr]  # Address is parsed before


def is_link_local(address: str) -> bool:
    value = as_address(address)
    return value is not None and value.is_link_local


def assign(node: Node, wishes: Sequence[Wanted], protected: Sequence[str], follow_link: bool = False) -> list[tuple[Wanted, Port | None]]:
    """Give each wish a port: the named one, the one that has the address, one inside the network, then free ports of the best cage.

    The best cage is the one that already carries a rail, else the one with more linked ports, else the lower number.
    Of two that match, the one with link is it: some give both cages the same addresses, so that either works.
    A protected device (default route, SSH session) is taken only if it is named or already has exactly the wanted address.
    With `follow_link`, addresses on a cage without any link do not count while another cage has one (the cable was moved).
    """
    alive = {port.cage for port in node.ports if port.linked and port.netdev not in protected}
    dark = {port.netdev for port in node.ports if follow_link and alive and port.cage not in alive and not port.linked}
    pool = _carriers(node, [port for port in node.ports if port.ethernet])
    by_name = {port.netdev: port for port in pool}
    taken: dict[int, Port] = {}

    def free() -> list[Port]:
        used = {port.netdev for port in taken.values()}
        return sorted((port for port in pool if port.netdev not in used), key=lambda port: not port.linked)

    for wish in wishes:
        if wish.interface is not None:
            name = node.real_name(wish.interface)
            taken[wish.index] = by_name.get(name) or node.port(name)
    for wish in wishes:
        if wish.index in taken or wish.address is None:
            continue
        match = [p for p in free() if p.netdev not in dark and any(as_address(a.local) == as_address(wish.address) for a in p.addresses)]
        if not match:
            holder = node.holder(wish.address)
            match = [node.port(holder)] if holder is not None and holder != "lo" and holder not in dark else []
        if match:
            taken[wish.index] = match[0]
    for wish in wishes:
        if wish.index in taken or wish.network is None:
            continue
        net = ipaddress.ip_network(wish.network)
        match = [p for p in free() if p.netdev not in protected and p.netdev not in dark and any(as_address(a.local) in net for a in p.addresses)]
        if not match and not node.ports:
            names = [n for n in node.netdevs if n not in protected and any(as_address(a.local) in net for a in node.addresses(n))]
            match = [node.port(names[0])] if len(names) == 1 else []
        if match:
            taken[wish.index] = match[0]
    carrying = {port.cage for port in taken.values()}

    def rank(port: Port) -> tuple[int, int, tuple[int, int, str, str]]:
        linked = sum(1 for p in node.ports if p.cage == port.cage and p.linked)
        return (0 if port.cage in carrying else 1, -linked, port.sort_key())

    for wish in wishes:
        if wish.index in taken:
            continue
        rest = [p for p in free() if p.netdev not in protected and p in node.ports and p.master is None]
        if rest:
            taken[wish.index] = min(rest, key=rank)
            carrying = {port.cage for port in taken.values()}
    return [(wish, taken.get(wish.index)) for wish in wishes]


def derive(node: Node, protected: Sequence[str]) -> list[Port]:
    """Return the rails of a node about which nothing is wanted: linked or addressed ports, and the twin of such a port.

    A bond or bridge stands for its members unless they have addresses of their own, and what sits on an addressed port (a VLAN beside it, a
    container's macvlan, a virtual function) is no rail, for an HCA counts once. An RDMA device on the NIC of the default route is a
    rail only on a machine that has no other; nor is a cage that leads to the office while another one carries the fabric.
    """
    pool = _carriers(node, [port for port in node.ports if port.ethernet])
    pool = [p for p in pool if p.lower is None or p.netdev not in protected]  # the office's VLAN on a rail
    names = {port.netdev for port in pool}
    members = {p.netdev for p in pool if p.master in names and not usable_ipv4(p)}
    masters = {p.master for p in pool if p.master is not None and p.netdev not in members}
    vlan_parents = {p.lower for p in pool if p.lower is not None and usable_ipv4(p)}
    pool = [p for p in pool if p.netdev not in members and (p.netdev not in masters or usable_ipv4(p))]
    active = []
    for port in pool:
        addressed = bool(usable_ipv4(port))
        if (port.lower is not None or port.netdev in vlan_parents) and not addressed:
            continue
        if port.linked or addressed:
            active.append(port)
    settled = {p.netdev for p in active if _has_real_address(p)}
    below = {p.lower for p in active if p.netdev in settled}
    active = [p for p in active if p.lower not in settled and (p.netdev not in below or p.netdev in settled)]
    fabric = [p for p in active if p.netdev not in protected or p.mellanox or has_spark_name(p)]
    active = _without_office(node, fabric or active)
    cages = {p.cage for p in active if p.cage is not None and p.linked}
    names = {p.netdev for p in active}
    twins = [p for p in pool if p.netdev not in names and p.cage in cages and p.lower is None and p.netdev not in vlan_parents and p.netdev not in protected]
    return sorted(active + twins, key=Port.sort_key)


def _without_office(node: Node, ports: Sequence[Port]) -> list[Port]:
    """Leave out the cages of the default routes, if nothing else in them and something linked in another cage has a real address."""
    way = {name for route in node.default_routes() for name in node.closure(route["dev"])}
    office = {p.cage for p in ports if p.cage is not None and p.netdev in way}
    office -= {p.cage for p in ports if p.netdev not in way and _has_real_address(p)}
    other = [p for p in ports if p.cage not in office]
    return other if any(p.linked and _has_real_address(p) for p in other) else list(ports)


def _has_real_address(port: Port) -> bool:
    return any(not is_link_local(a.local) for a in usable_ipv4(port))


def has_spark_name(port: Port) -> bool:
    return SPARK_PORT.match(port.lower or port.netdev) is not None


def resolve(node: Node, port: Port, index: int, wish: Wanted | None) -> Rail:
    """Find the rail's IPv4 address and the one GID index of type RoCE v2 that equals it. More or less than one: no index."""
    have = usable_ipv4(port)
    if not have and port.master is not None:
        have = [a for a in node.addresses(port.master) if a.family == "inet"]
    chosen: list[tuple[str, int | None]] = []
    if wish is not None and wish.address is not None:
        chosen = [(a.local, a.prefix) for a in have if as_address(a.local) == as_address(wish.address)]
    elif wish is not None and wish.network is not None:
        net = ipaddress.ip_network(wish.network)
        inside = [a for a in have if as_address(a.local) in net]
        chosen = [(a.local, a.prefix) for a in ([a for a in inside if not a.secondary] or inside)]
    else:
        pool = [a for a in have if not is_link_local(a.local)] or have
        pool = [a for a in pool if not a.secondary] or pool
        pool = [a for a in pool if a.prefix < 32] or pool  # a /32 is somebody's service address: it reaches no peer
        chosen = [(a.local, a.prefix) for a in pool]
    own = [g for g in port.gids if g.netdev is None or node.real_name(g.netdev) in (port.netdev, port.master)]
    candidates = tuple(dict.fromkeys(text for text, _prefix in chosen))
    ipv4, prefix = chosen[0] if chosen else (None, None)
    matches = tuple(g.index for g in own if g.type == ROCE_V2 and g.ipv4 is not None and g.ipv4 == ipv4)
    exact = len(matches) == 1 and len(candidates) == 1
    return Rail(port, index, ipv4, prefix, matches[0] if exact else None, candidates, matches, wish is not None)


def _is_real(rail: Rail) -> bool:
    return rail.ipv4 is not None and not is_link_local(rail.ipv4)


def counted(rails: Sequence[Rail]) -> list[Rail]:
    """Return the rails that count for NCCL: no second cable without addresses, and no link-local address beside a real one that works.

    169.254 is autoconfigured on every port, so no peer is there; and NCCL pairs HCAs by their position.
    """
    spare = spare_cages(rails)
    real = any(r.port.linked and r.gid_index is not None and _is_real(r) for r in rails)
    return [r for r in rails if r.port.cage not in spare and (not real or r.ipv4 is None or _is_real(r))]


def spare_cages(rails: Sequence[Rail]) -> set[int]:
    """Return the cages that nobody wants and that have no real IPv4 address, beside a linked rail with one: a second cable."""
    if not any(r.port.linked and _is_real(r) for r in rails):
        return set()
    used = {r.port.cage for r in rails if r.wanted or _is_real(r)}
    return {r.port.cage for r in rails if r.port.cage is not None} - used
