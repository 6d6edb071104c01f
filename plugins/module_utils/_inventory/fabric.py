# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: networks and addresses of the fabric, from the variables of a host. Controller only. Pure, standard library only.

Addresses are strings (``192.168.200.11``). The functions return what they could read, and the faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import Fault, Place, default_of, value_of, whole_number

CIDRS, ADDRESSES, FIRST = "gb10_fabric_cidrs", "gb10_fabric_addresses", "gb10_fabric_first"


def is_list(value: Any) -> bool:
    """Report whether a value is a list."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def host_count(network: IPv4Network) -> int:
    """Return how many hosts a network can have."""
    return max(network.num_addresses - 2, 0)


def networks_of(group: str, variables: Mapping[str, Any]) -> tuple[list[IPv4Network], list[Fault]]:
    """Return the networks of the rails."""
    cidrs = value_of(variables, CIDRS)
    place = Place("group", group, CIDRS)
    if not is_list(cidrs) or not cidrs:
        return [], [Fault(place, f"is {cidrs!r}, expected a list of networks such as [192.168.200.0/24], one for each rail")]
    networks, faults = [], []
    for index, cidr in enumerate(cidrs):
        try:
            networks.append(_network(str(cidr)))
        except ValueError as error:
            faults.append(Fault(place._replace(below=(index,)), f"holds {str(cidr)!r}, {error}"))
    return networks, faults


def _network(text: str) -> IPv4Network:
    example = "expected an IPv4 network such as 192.168.200.0/24"
    try:
        found = IPv4Interface(text)
    except ValueError:
        raise ValueError(example) from None
    if "/" not in text:
        raise ValueError(f"which has no prefix length, {example}")
    if found.ip != found.network.network_address:
        raise ValueError(f"which is an address in the network {found.network}, expected the network")
    return found.network


def addresses_of(
    group: str, host: str, rank: int, variables: Mapping[str, Any], networks: Sequence[IPv4Network], shared_first: bool = True
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
    small = [network for network in networks if first + rank > host_count(network)]
    if small:
        # If the default fits into all networks, the value is wrong and not the network.
        if first == default_of(FIRST) or any(default_of(FIRST) + rank > host_count(network) for network in networks):
            place = Place("group", group, CIDRS)
        text = f"{small[0]} has {host_count(small[0])} host addresses, too few for rank {rank} at number {first + rank} ({FIRST} {first} + rank)"
        return [], [Fault(place, f"{text}; use a larger network such as a /24, or a smaller {FIRST}")]
    return [str(network[first + rank]) for network in networks], []


def _given_addresses(place: Place, given: Any, networks: Sequence[IPv4Network]) -> tuple[list[str], list[Fault]]:
    if not is_list(given):
        return [], [Fault(place, f"is {given!r}, expected a list of addresses, one for each rail")]
    if len(given) != len(networks):
        return [], [Fault(place, f"holds {len(given)} addresses, expected {len(networks)}: one for each network in {CIDRS}")]
    addresses, faults = [], []
    for index, (entry, network) in enumerate(zip(given, networks)):
        text = str(entry).split("/", 1)[0]
        try:
            valid = IPv4Address(text) in network and IPv4Address(text) not in (network.network_address, network.broadcast_address)
        except ValueError:
            valid = False
        if valid:
            addresses.append(text)
        else:
            faults.append(Fault(place._replace(below=(index,)), f"holds {str(entry)!r}, expected a host address in {network}, the network of the rail"))
    return addresses, faults
