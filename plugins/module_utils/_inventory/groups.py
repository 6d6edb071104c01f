# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serving groups of an inventory: networks and addresses of the fabric, groups and ranks, and their check. Controller only. Pure.

``groups``
    mapping of group name to the list of its host names, in inventory order (Ansible's ``groups``).
``hosts``
    mapping of host name to its variables, templated; only ``ansible_host`` and ``gb10_*`` are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean, nearest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import (
    ROOT_GROUP,
    TRUE,
    Fault,
    Place,
    default_of,
    is_list,
    name_fault,
    split_by_majority,
    value_of,
    whole_number,
)

try:
    from netaddr import AddrFormatError, IPAddress, IPNetwork, valid_ipv4
except ImportError:  # networks_of reports it
    IPNetwork = None


# --- Networks and addresses of the fabric, from the variables of a host. Controller only, with netaddr.
# Addresses are strings (``192.168.200.11``), networks are netaddr.IPNetwork. The functions return what they could read, and the faults.

Network = Any  # netaddr.IPNetwork, which has no types
Groups = Mapping[str, Sequence[str]]
Hosts = Mapping[str, Mapping[str, Any]]
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


# --- Serving groups and ranks of an inventory.


class ClusterError(Exception):
    """The serving group of a host cannot be derived; the text is one sentence for the user."""


def serving_groups(groups: Mapping[str, Sequence[str]], named: Any = None) -> dict[str, list[str]]:
    """Return the serving groups, name to hosts in inventory order; empty without hosts in ``gb10``.

    :param named: ``gb10_serving_groups``. If it is empty or not a list, the groups whose hosts are all in ``gb10`` are the serving groups.

    A group that has all hosts of ``gb10`` is not a serving group if smaller groups have all of them.
    """
    root = list(groups.get(ROOT_GROUP) or [])
    if not root:
        return {}
    if named and is_list(named):
        return {str(name): list(groups.get(str(name)) or []) for name in named}
    inside = {name: list(hosts) for name, hosts in groups.items() if name not in ("all", "ungrouped", ROOT_GROUP) and hosts and set(hosts) <= set(root)}
    smaller = {name: hosts for name, hosts in inside.items() if set(hosts) != set(root)}
    if {host for hosts in smaller.values() for host in hosts} == set(root):
        inside = smaller
    return dict(sorted(inside.items())) or {ROOT_GROUP: root}


def group_names_of(host: str, serving: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the serving groups of a host; a valid inventory has exactly one."""
    return [name for name, hosts in serving.items() if host in hosts]


def management_address(host: str, variables: Mapping[str, Any]) -> str:
    """Return the address that Ansible connects to: ``ansible_host``, or the host's name."""
    return str(variables.get("ansible_host") or host)


def ranked(members: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[Fault]]:
    """Return the hosts of one serving group by rank, and the faults of ``gb10_rank``. Hosts without it fill the free ranks in inventory order."""
    placed: dict[int, str] = {}
    faults: list[Fault] = []
    for host in members:
        given = hosts.get(host, {}).get("gb10_rank")
        if given is None or given == "":
            continue
        rank, text = whole_number(given), ""
        if rank is None:
            text = f"is {given!r}, expected a whole number from 0 (the head)"
        elif rank >= len(members):
            text = f"is {rank} for {host}; the ranks of a serving group of {len(members)} hosts are 0 to {len(members) - 1}"
        elif rank in placed:
            text = f"is {rank}{' (the head)' if rank == 0 else ''} for both {placed[rank]} and {host}; each host of a serving group needs its own rank"
        else:
            placed[rank] = host
        if text:
            faults.append(Fault(Place("host", host, "gb10_rank"), text))
    free = iter([host for host in members if host not in placed.values()])
    return [placed[rank] if rank in placed else next(free) for rank in range(len(members))], faults


def fabric_of(group: str, members: Sequence[str], own: Sequence[str], hosts: Hosts) -> tuple[list[str], list[Network], dict[str, list[str]], list[Fault]]:
    """Return the hosts of a serving group by rank, its networks, the addresses of each host by rail, and the faults of all of them.

    :param own: the members whose variables are those of this group.
    """
    order, faults = ranked(members, hosts)
    faults += equal_faults(CIDRS, {host: value_of(hosts.get(host, {}), CIDRS) for host in own}, group)
    if any(fault.place.key == CIDRS for fault in faults):
        return order, [], {}, faults
    first = hosts.get(members[0], {})
    networks, bad = networks_of(group, first)
    if bad:
        return order, [], {}, faults + bad
    fabric: dict[str, list[str]] = {}
    for rank, host in enumerate(order):
        variables = hosts.get(host, {})
        fabric[host], bad = addresses_of(group, host, rank, variables, networks, value_of(variables, FIRST) == value_of(first, FIRST))
        faults += [fault for fault in bad if fault.place not in [each.place for each in faults]]  # a value of the group is one fault, and not one of each rank
    return order, networks, fabric, faults


def group_of(host: str, groups: Mapping[str, Sequence[str]], hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the serving group of a host, with everything that the inventory determines.

    :param hosts: host variables; only those of ``host`` and of the hosts of its serving group are read.
    :raises ClusterError: the host is not in exactly one serving group, or a rank or an address cannot be derived.

    Keys: ``name``, ``rank`` (of the host asked for), ``size``, ``head`` (name of rank 0), ``hosts`` (names by rank),
    ``members`` (by rank: ``host``, ``rank``, ``address`` for management, ``fabric``), ``fabric`` (this host's addresses by rail),
    ``cidrs`` and ``prefixes`` (by rail), ``master_addr`` (the head's address on the first rail).
    """
    if host not in (groups.get(ROOT_GROUP) or []):
        raise ClusterError(f"{host} is not in the inventory group {ROOT_GROUP}. Add it to a serving group below {ROOT_GROUP}, such as pair1")
    named = hosts[host].get("gb10_serving_groups") or []
    serving = serving_groups(groups, [named] if isinstance(named, str) else named)
    names = group_names_of(host, serving)
    if len(names) != 1:
        listed = f" ({', '.join(names)})" if names else ""
        raise ClusterError(f"{host} is in {len(names)} serving groups{listed}, expected one. Change its groups, or set gb10_serving_groups")
    bad = name_fault("group", names[0]) or next(filter(None, (name_fault("host", name) for name in serving[names[0]])), "")
    if bad:
        raise ClusterError(f"the inventory {bad}")
    variables = {name: hosts[name] for name in serving[names[0]]}  # the lookup reads a host when it is indexed
    order, networks, fabric, faults = fabric_of(names[0], list(variables), list(variables), variables)
    if faults:
        raise ClusterError(f"{faults[0].place.key} {faults[0].text}")
    return {
        "name": names[0],
        "rank": order.index(host),
        "size": len(order),
        "head": order[0],
        "hosts": order,
        "members": [
            {"host": name, "rank": rank, "address": management_address(name, variables[name]), "fabric": fabric[name]} for rank, name in enumerate(order)
        ],
        "fabric": fabric[host],
        "cidrs": [str(network) for network in networks],
        "prefixes": [network.prefixlen for network in networks],
        "master_addr": fabric[order[0]][0],
    }


# --- The check of groups, ranks and addresses of an inventory. Controller only.

# RFC 5737: addresses for documentation.
EXAMPLES = ("192.0.2.", "198.51.100.", "203.0.113.")
NAMED = "gb10_serving_groups"

# (host, its addresses by rail, whether they are set in the inventory)
Owner = tuple[str, list[str], bool]


def group_faults(groups: Groups, hosts: Hosts) -> list[Fault]:
    """Return every fault of groups, ranks and addresses, in reading order.

    :param hosts: variables of every host in ``gb10``; values of a wrong type are reported, never raised.
    """
    root = groups.get(ROOT_GROUP)
    if not root:
        known = {each.lower(): each for each in groups if each not in ("all", "ungrouped")}
        near = nearest(ROOT_GROUP, known)
        hint = f"; {known[near]} has nearly its name" if near else ""
        text = f"there is no group {ROOT_GROUP}{hint}. Put the serving group, such as pair1, below {ROOT_GROUP}"
        if root is not None:
            text = f"the group {ROOT_GROUP} has no hosts. Add two, the first is the head"
        return [Fault(Place("group", ROOT_GROUP, ROOT_GROUP), text)]
    serving, found = _check_groups(groups, hosts)
    networks: dict[str, list[Network]] = {}
    owners: list[Owner] = []
    for name, members in serving.items():
        # The variables of a host in two groups are those of one of them, so it is only checked as the first of a group.
        own = [host for host in members if host in hosts and (len(group_names_of(host, serving)) == 1 or host == members[0])]
        if len(members) == 1:
            text = f"the serving group {name} has no worker, only {members[0]}. A serving group needs two hosts or more"
            found.append(Fault(Place("group", name, name), text))
        if members:
            order, rails, fabric, faults = fabric_of(name, members, own, hosts)
            networks[name] = rails
            owners += [(host, fabric[host], bool(value_of(hosts.get(host, {}), ADDRESSES))) for host in order if host in fabric]
            found += faults
    found += _check_addresses(root, hosts, owners)
    found += _check_networks(networks, serving, root, hosts)
    return list(dict.fromkeys(found))


def _check_groups(groups: Groups, hosts: Hosts) -> tuple[dict[str, list[str]], list[Fault]]:
    """Return the serving groups, and the faults of their names and of hosts that are not in exactly one of them."""
    root = list(groups[ROOT_GROUP])
    values = {host: hosts.get(host, {}).get(NAMED) or [] for host in root}
    named = values[root[0]]
    if not is_list(named):
        return {}, []  # a wrong type, which the check of types reports
    found = equal_faults(NAMED, values, ROOT_GROUP)
    if found:
        return {}, found
    for name in map(str, named):
        if name not in groups:
            known = [each for each in groups if each not in ("all", "ungrouped", ROOT_GROUP)]
            found.append(Fault(Place("group", ROOT_GROUP, NAMED), f"names {name}, which is not a group of this inventory{did_you_mean(name, known)}"))
        for host in groups.get(name) or []:
            if host not in root:
                found.append(Fault(Place("group", name, name), f"{host} is in the serving group {name} but not in {ROOT_GROUP}. Put {name} below it"))
    serving = serving_groups(groups, named)
    if not set(map(str, named)) <= groups.keys():  # hosts without a serving group follow from it
        return {}, found
    names_of = [("group", name) for name in serving] + [("host", host) for host in root]
    found += [Fault(Place(kind, name, name), name_fault(kind, name)) for kind, name in names_of if name_fault(kind, name)]
    for host in root:
        names = group_names_of(host, serving)
        if not names:
            text = f"{host} is in {ROOT_GROUP} but not in a serving group. Move it into one of {', '.join(serving) or 'your groups'}, or into a new group"
            found.append(Fault(Place("host", host, host), text))
        elif len(names) > 1:
            text = f"{host} is in {len(names)} serving groups ({', '.join(names)}). Keep it in one, or name the groups that serve a model in {NAMED}"
            found.append(Fault(Place("group", names[1], host), text))
    return serving, found


def equal_faults(key: str, values: Mapping[str, Any], group: str) -> list[Fault]:
    """Return a fault for each host whose value differs from that of most hosts of the group."""
    same, odd = split_by_majority(values)
    return [Fault(Place("host", host, key), f"differs between {same[0]} and {host} of {group}. Set it once, for the group {group}") for host in odd]


def _check_addresses(root: Sequence[str], hosts: Hosts, owners: Sequence[Owner]) -> list[Fault]:
    """Addresses of the example, and addresses of two hosts. Two derived ones are equal only if networks overlap, which is another fault."""
    found: list[Fault] = []
    seen: dict[tuple[str, str], tuple[str, Place, bool]] = {}
    pairs: set[tuple[str, str, str]] = set()  # two rails of two hosts are one mistake
    used: list[tuple[str, str, str, Place, bool]] = []  # host, what, address, place, whether it is set in the inventory
    for host in root:
        variables = hosts.get(host, {})
        text, place = management_address(host, variables), Place("host", host, "ansible_host" if variables.get("ansible_host") else host)
        used.append((host, f"management address{'' if (port := str(variables.get('ansible_port') or 22)) == '22' else f' and port {port}'}", text, place, True))
        if text.startswith(EXAMPLES):
            found.append(Fault(place, f"{host} has the example address {text}. Set the address of your machine", example=True))
    used += [(host, "fabric address", each, Place("host", host, ADDRESSES, (index,)), given) for host, own, given in owners for index, each in enumerate(own)]
    for host, what, text, place, given in used:
        other, its_place, its_given = seen.setdefault((what, text.lower()), (host, place, given))
        if other != host and (given or its_given) and (what, other, host) not in pairs:
            pairs.add((what, other, host))
            found.append(Fault(place if given else its_place, f"{other} and {host} have the same {what} {text}. Each host needs its own"))
    return found


def _check_networks(networks: Mapping[str, Sequence[Network]], serving: Groups, root: Sequence[str], hosts: Hosts) -> list[Fault]:
    """Rails that overlap, in a group or with another group, and rails that contain an address that Ansible connects to.

    A host in two groups is another fault, from which an overlap of the two follows. A group has one fault about others, a network one about its content.
    """
    found: dict[tuple[str, ...], Fault] = {}
    rails = [(name, index, rail) for name, each in networks.items() for index, rail in enumerate(each)]
    for number, (name, index, rail) in enumerate(rails):
        place = Place("group", name, CIDRS, (index,))
        for other, _index, each in rails[:number]:
            if overlap(rail, each) and other == name:
                clash = f"{rail} is set twice" if rail == each else f"{each} and {rail} overlap"
                found[name, str(index), str(each)] = Fault(place, f"{clash}. Each rail of {name} needs its own network")
            elif overlap(rail, each) and not set(serving[other]) & set(serving[name]):
                shared = f"{rail}" if rail == each else f"{rail} and {each}"
                text = f"{name} and {other} share the fabric network {shared}. Set others in group_vars/{name}.yml, such as [10.1.2.0/24, 10.1.3.0/24]"
                found.setdefault((name,), Fault(Place("group", name, CIDRS), text))
        inside = [(host, address) for host in root if is_inside(address := management_address(host, hosts.get(host, {})), rail)]
        for host, address in inside[:1]:
            text = f"the fabric network {rail} contains {address}, the management address of {host}. Use a network that nothing else uses"
            found.setdefault(("", str(rail)), Fault(place, text))
    return list(found.values())


def combination_faults(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (variable, sentence) of values of a host that are valid alone and not together. Those of a wrong type are reported by the rules."""
    own, environment = values.get("vllm_tp2_api_key"), values.get("vllm_tp2_secret_env")
    other = environment.get("VLLM_API_KEY") if isinstance(environment, Mapping) else None
    if own and other and str(own) != str(other):
        yield "vllm_tp2_api_key", "is not the key that vllm_tp2_secret_env has as VLLM_API_KEY; remove one of them"
    if str(values.get("vllm_tp2_api_open") or "no").lower() in TRUE and (own or other):
        where = "vllm_tp2_api_key" if own else "VLLM_API_KEY in vllm_tp2_secret_env"
        yield "vllm_tp2_api_open", f"is true, and {where} sets a key; remove one of them"
    given, cidrs = values.get("roce_interfaces"), value_of(values, "gb10_fabric_cidrs")
    if is_list(given) and is_list(cidrs) and len(given or ()) not in (0, len(cidrs)):
        text = f"has {len(given or ())} interfaces, expected {len(cidrs)}: one for each network in gb10_fabric_cidrs, or none to find them"
        yield "roce_interfaces", text
