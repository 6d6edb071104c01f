# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: networks and addresses of the fabric, from the variables of a host. Controller only, with netaddr. Pure.

Addresses are strings (``192.168.200.11``), networks are netaddr.IPNetwork. The functions return what they could read, and the faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

try:
    from netaddr import AddrFormatError, IPAddress, IPNetwork, valid_ipv4
except ImportError:  # networks_of reports it
    IPNetwork = None

from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import Fault, Place, default_of, is_list, value_of, whole_number

Network = Any  # netaddr.IPNetwork, which has no types
CIDRS, ADDRESSES, FIRST = "gb10_fabric_cidrs", "gb10_fabric_addresses", "gb10_fabric_first"


def highest_number(network: Network) -> int:
    """Return the highest number that a host can have in a network. A /31 has none: its addresses are set in gb10_fabric_addresses."""
    return max(int(network.size) - 2, 0)


def overlap(one: Network, other: Network) -> bool:
    """Report whether two networks have an address in common."""
    return one in other or other in one


def is_inside(text: str, network: Network) -> bool:
    """Report whether a text is an address of a network."""
    return valid_ipv4(text) and IPAddress(text) in network


def networks_of(group: str, variables: Mapping[str, Any]) -> tuple[list[Network], list[Fault]]:
    """Return the networks of the rails."""
    cidrs = value_of(variables, CIDRS)
    place = Place("group", group, CIDRS)
    if not is_list(cidrs) or not cidrs:
        return [], [Fault(place, f"is {cidrs!r}, expected a list of networks such as [192.168.200.0/24], one for each rail")]
    if IPNetwork is None:
        return [], [Fault(place, "needs the Python package netaddr on this computer, which is not installed: pip install netaddr")]
    networks, faults = [], []
    for index, cidr in enumerate(cidrs):
        try:
            networks.append(_network(str(cidr)))
        except ValueError as error:
            faults.append(Fault(place._replace(below=(index,)), f"holds {str(cidr)!r}, {error}"))
    return networks, faults


def _network(text: str) -> Network:
    example = "expected an IPv4 network such as 192.168.200.0/24"
    try:
        found = IPNetwork(text, version=4)
    except AddrFormatError:
        raise ValueError(example) from None
    if "/" not in text:
        raise ValueError(f"which has no prefix length, {example}")
    if found.is_loopback() or found.is_link_local() or found.is_multicast() or found.is_reserved() or not found.first:
        raise ValueError(f"which is not a network for hosts (loopback, link-local, multicast or reserved), {example}")
    if IPAddress(found.first).is_global() or IPAddress(found.last).is_global():
        raise ValueError(f"which is in the public address space of the internet, {example}")
    if found != found.cidr or found.ip != found.network:
        raise ValueError(f"which is an address in the network {found.cidr}, expected the network")
    return found


def addresses_of(
    group: str, host: str, rank: int, variables: Mapping[str, Any], networks: Sequence[Network], shared_first: bool = True
) -> tuple[list[str], list[Fault]]:
    """Return the addresses of a host by rail.

    :param shared_first: whether ``gb10_fabric_first`` is the value of the group.
    """
    given = value_of(variables, ADDRESSES)
    if given:
        return _given_addresses(Place("host", host, ADDRESSES), given, networks)
    place = Place("group", group, FIRST) if shared_first else Place("host", host, FIRST)
    value = value_of(variables, FIRST)
    first = whole_number(value)
    if not first:
        return [], [Fault(place, f"is {value!r}, expected a whole number from 1, such as 11")]
    small = [network for network in networks if first + rank > highest_number(network)]
    if small:
        # If the default fits into all networks, the value is wrong and not the network.
        if first == default_of(FIRST) or any(default_of(FIRST) + rank > highest_number(network) for network in networks):
            place = Place("group", group, CIDRS)
        text = f"{small[0]} has too few host addresses for rank {rank} at number {first + rank} ({FIRST} {first} + rank)"
        return [], [Fault(place, f"{text}; use a larger network such as a /24, a smaller {FIRST}, or set {ADDRESSES}")]
    return [str(network[first + rank]) for network in networks], []


def _given_addresses(place: Place, given: Any, networks: Sequence[Network]) -> tuple[list[str], list[Fault]]:
    if not is_list(given):
        return [], [Fault(place, f"is {given!r}, expected a list of addresses, one for each rail")]
    if len(given) != len(networks):
        return [], [Fault(place, f"holds {len(given)} addresses, expected {len(networks)}: one for each network in {CIDRS}")]
    addresses, faults = [], []
    for index, (entry, network) in enumerate(zip(given, networks)):
        text = str(entry).split("/", 1)[0]
        edges = () if network.prefixlen == 31 else (network.network, network.broadcast)  # both addresses of a /31 are hosts: RFC 3021
        if is_inside(text, network) and IPAddress(text) not in edges:
            addresses.append(text)
        else:
            faults.append(Fault(place._replace(below=(index,)), f"holds {str(entry)!r}, expected a host address in {network}, the network of the rail"))
    return addresses, faults
