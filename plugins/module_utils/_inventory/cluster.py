# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: the inventory model: cluster variables, serving groups, ranks and fabric addresses.

Pure: groups and host variables in, serving groups and faults out. Standard library only.

Shapes:

``groups``
    mapping of group name to the list of its host names, in inventory order (Ansible's ``groups``).
``hosts``
    mapping of host name to its variables, templated; only ``ansible_host`` and ``gb10_*`` are read.

Addresses are strings (``192.168.200.11``), networks CIDR strings (``192.168.200.0/24``), prefixes and ranks are numbers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

# The group that holds every host; its child groups are the serving groups.
ROOT_GROUP = "gb10"
_NOT_SERVING = ("all", "ungrouped", ROOT_GROUP)

# The single source of the cluster variables. Same keys as an option in argument_specs, so that one tool documents and checks both.
CLUSTER_SPEC: dict[str, dict[str, Any]] = {
    "gb10_profile": {
        "type": "str",
        "default": "dspark-nvfp4-1m",
        "description": [
            "What the pair serves: the name of a shipped profile, or of one of your own in C(gb10_profiles).",
        ],
    },
    "gb10_profiles": {
        "type": "dict",
        "default": {},
        "description": [
            "Profiles of your own, a mapping of names to profiles; each may extend a shipped one and say only what differs.",
        ],
    },
    "gb10_model_store": {
        "type": "path",
        "default": "/srv/models",
        "description": [
            "Directory on every node that holds the model weights: a Hugging Face cache (C(hub/models--*)), or a plain folder a model, as the profile says.",
            "Weights that C(hf download) put under C(~/.cache/huggingface) are served from there by setting that path, for a profile that reads a cache.",
        ],
    },
    "gb10_fabric_cidrs": {
        "type": "list",
        "elements": "str",
        "default": ["192.168.200.0/24", "192.168.201.0/24"],
        "description": [
            "The IPv4 networks of the QSFP link, one for each rail; the networks of two serving groups may not overlap.",
        ],
    },
    "gb10_fabric_first": {
        "type": "int",
        "default": 11,
        "description": [
            "Rank r gets the address network + C(gb10_fabric_first) + r on each rail: rank 0 is 192.168.200.11 by default.",
        ],
    },
    "gb10_fabric_addresses": {
        "type": "list",
        "elements": "str",
        "default": [],
        "description": [
            "This host's fabric addresses, one for each rail, where they do not follow from its rank; set it in C(host_vars).",
        ],
    },
    "gb10_serving_groups": {
        "type": "list",
        "elements": "str",
        "default": [],
        "description": [
            "The inventory groups that each serve one model together; empty means every group whose hosts all are in C(gb10).",
        ],
    },
    "gb10_rank": {
        "type": "int",
        "default": None,
        "description": [
            "This host's rank in its serving group, where it does not follow from the order of the hosts; rank 0 is the head.",
        ],
    },
    "gb10_receipts": {
        "type": "path",
        "default": "receipts",
        "description": [
            "Directory on the controller for the receipts of good boots; a relative path counts from where ansible-playbook runs.",
        ],
    },
    "gb10_evidence": {
        "type": "path",
        "default": "evidence",
        "description": [
            "Directory on the controller for what a failed boot left behind; a relative path counts from where ansible-playbook runs.",
        ],
    },
    "gb10_foreign_variables": {
        "type": "list",
        "elements": "str",
        "default": [],
        "description": [
            "Names (with C(*) and C(?)) of variables that look like this collection's and belong to something else, such as C(docker_users).",
        ],
    },
}

# Variables that no release reads any more: name -> (release that dropped it, what to set instead).
REMOVED_VARIABLES: dict[str, tuple[str, str]] = {}

# RFC 5737: addresses for examples, which no machine has.
EXAMPLE_NETWORKS = tuple(ipaddress.ip_network(text) for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"))


class ClusterError(Exception):
    """The inventory does not say what was asked of it; the text is one sentence for the user."""


class Place(NamedTuple):
    """Where a variable is or should be set: ``kind`` is ``host`` or ``group``, ``name`` whose, ``key`` which.

    ``below`` leads to a part of the value. With ``own`` a definition that others share will not do: it has to be set for ``name``.
    """

    kind: str
    name: str
    key: str
    below: tuple[str | int, ...] = ()
    own: bool = False


@dataclass(frozen=True)
class Fault:
    """One fault: ``place`` to change and one sentence without file and line, which the reader of the files adds.

    ``example`` marks an address of the shipped example, which a caller may treat as a warning. ``among`` are hosts that a value differs from: where
    the place's own is the group's value and one of theirs is not, theirs is the one to change.
    """

    place: Place
    text: str
    example: bool = False
    among: tuple[str, ...] = ()


def default_of(name: str) -> Any:
    """Return the default of a cluster variable."""
    return CLUSTER_SPEC[name]["default"]


def value_of(variables: Mapping[str, Any], name: str) -> Any:
    """Return a cluster variable of one host, or its default where it is unset, null or empty."""
    value = variables.get(name)
    return default_of(name) if value is None or value == "" else value


def odd_ones(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the hosts that have the value of most, and those that do not; of two values as frequent the first host's counts.

    :param values: host name to its value of one variable.
    """
    camps: list[list[str]] = []
    for host, value in values.items():
        for camp in camps:
            if values[camp[0]] == value:
                camp.append(host)
                break
        else:
            camps.append([host])
    most = max(camps, key=len, default=[])
    return most, [host for host in values if host not in most]


# --- Serving groups --------------------------------------------------------------------------------------------------


def serving_groups(groups: Mapping[str, Sequence[str]], named: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Return the serving groups, name to hosts in inventory order.

    :param groups: Ansible's ``groups``.
    :param named: ``gb10_serving_groups``; empty or None derives them from the groups inside ``gb10``.

    A group that merely repeats all of ``gb10`` is no serving group where smaller ones cover all the hosts.
    Returns an empty mapping without a ``gb10`` group or hosts in it.
    """
    root = list(groups.get(ROOT_GROUP) or [])
    if not root:
        return {}
    if named:
        return {str(name): list(groups.get(str(name)) or []) for name in named}
    everyone = set(root)
    found = {name: list(hosts) for name, hosts in groups.items() if name not in _NOT_SERVING and hosts and everyone.issuperset(hosts)}
    smaller = {name: hosts for name, hosts in found.items() if set(hosts) != everyone}
    if smaller and {host for hosts in smaller.values() for host in hosts} == everyone:
        found = smaller
    return dict(sorted(found.items())) or {ROOT_GROUP: root}


def group_names_of(host: str, serving: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the serving groups that hold a host; a sound inventory has exactly one."""
    return [name for name, hosts in serving.items() if host in hosts]


def ranked(members: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the hosts of one serving group by rank.

    ``gb10_rank`` places a host; the others fill the free ranks in inventory order.
    :raises ClusterError: two hosts with one rank, or a rank outside the group.
    """
    seats: dict[int, str] = {}
    free: list[str] = []
    for host in members:
        wish = hosts.get(host, {}).get("gb10_rank")
        if wish is None or wish == "":
            free.append(host)
            continue
        rank = _rank_number(host, wish)
        if not 0 <= rank < len(members):
            raise ClusterError(f"gb10_rank of {host} is {rank}, but its serving group of {len(members)} hosts has ranks 0 to {len(members) - 1}")
        if rank in seats:
            raise ClusterError(_same_rank(rank, seats[rank], host))
        seats[rank] = host
    queue = iter(free)
    return [seats[rank] if rank in seats else next(queue) for rank in range(len(members))]


def _rank_number(host: str, wish: Any) -> int:
    if isinstance(wish, bool) or not (isinstance(wish, int) or str(wish).isdecimal()):
        raise ClusterError(f"gb10_rank of {host} is {wish!r}, expected a whole number from 0 (the head) on")
    return int(wish)


def _same_rank(rank: int, first: str, second: str) -> str:
    if rank == 0:
        return f"{first} and {second} both claim to be the head (gb10_rank: 0); leave it on one of them"
    return f"{first} and {second} both have gb10_rank: {rank}; each host of a serving group needs a rank of its own"


# --- Fabric ----------------------------------------------------------------------------------------------------------


def fabric_networks(variables: Mapping[str, Any]) -> list[ipaddress.IPv4Network]:
    """Return the rails' networks of one host.

    :raises ClusterError: no list, or an entry that is no IPv4 network.
    """
    cidrs = value_of(variables, "gb10_fabric_cidrs")
    if isinstance(cidrs, str) or not isinstance(cidrs, Sequence) or not cidrs:
        raise ClusterError(f"gb10_fabric_cidrs is {cidrs!r}, expected a list of networks such as [192.168.200.0/24], one for each rail")
    return [_network(str(cidr)) for cidr in cidrs]


def _network(text: str) -> ipaddress.IPv4Network:
    example = "expected an IPv4 network such as 192.168.200.0/24"
    if "/" not in text:
        raise ClusterError(f"gb10_fabric_cidrs holds {text!r} without a prefix length, {example}")
    try:
        return ipaddress.IPv4Network(text)
    except ValueError:
        pass
    try:
        meant = ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        raise ClusterError(f"gb10_fabric_cidrs holds {text!r}, {example}") from None
    raise ClusterError(f"gb10_fabric_cidrs holds {text!r}, which is an address in a network; the network is {meant}")


def fabric_first(variables: Mapping[str, Any]) -> int:
    """Return the host number of rank 0 in each rail's network.

    :raises ClusterError: no whole number above 0.
    """
    first = value_of(variables, "gb10_fabric_first")
    if isinstance(first, bool) or not (isinstance(first, int) or str(first).isdecimal()) or int(first) < 1:
        raise ClusterError(f"gb10_fabric_first is {first!r}, expected a whole number from 1 on, such as 11")
    return int(first)


def fabric_addresses(variables: Mapping[str, Any], rank: int) -> list[str]:
    """Return the fabric addresses of one host, one for each rail.

    :param rank: the host's rank in its serving group.
    :raises ClusterError: a bad network or address, a network too small for the rank, or a wrong number of addresses.
    """
    networks = fabric_networks(variables)
    given = value_of(variables, "gb10_fabric_addresses")
    if given:
        return _given_addresses(given, networks)
    first = fabric_first(variables)
    for network in networks:
        if first + rank > network.num_addresses - 2:
            raise ClusterError(
                f"{network} has {max(network.num_addresses - 2, 0)} host addresses, too few for rank {rank} at number {first + rank} "
                f"(gb10_fabric_first {first} + rank); use a larger network such as a /24, or a smaller gb10_fabric_first"
            )
    return [str(network[first + rank]) for network in networks]


def _given_addresses(given: Any, networks: Sequence[ipaddress.IPv4Network]) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ClusterError(f"gb10_fabric_addresses is {given!r}, expected a list of addresses, one for each rail")
    if len(given) != len(networks):
        raise ClusterError(f"gb10_fabric_addresses holds {len(given)} addresses, expected {len(networks)}: one for each network in gb10_fabric_cidrs")
    return [_given_address(entry, network) for entry, network in zip(given, networks)]


def _given_address(entry: Any, network: ipaddress.IPv4Network) -> str:
    try:
        address = ipaddress.IPv4Address(str(entry).split("/", 1)[0])
    except ValueError:
        raise ClusterError(f"gb10_fabric_addresses holds {str(entry)!r}, expected an IPv4 address in {network}") from None
    if address not in network or address in (network.network_address, network.broadcast_address):
        raise ClusterError(f"gb10_fabric_addresses holds {entry}, which is no host address in {network}, the rail's entry in gb10_fabric_cidrs")
    return str(address)


# --- One group, derived once ------------------------------------------------------------------------------------------


def group_of(host: str, groups: Mapping[str, Sequence[str]], hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the serving group of a host, with everything that follows from the inventory.

    :param hosts: host variables; it is asked for ``host`` and for the hosts of its serving group only.
    :raises ClusterError: the host is in no serving group or in several, or a rank or address cannot be derived.

    Keys: ``name``, ``rank`` (of the host asked for), ``size``, ``head`` (name of rank 0), ``hosts`` (names by rank),
    ``members`` (by rank: ``host``, ``rank``, ``address`` for management, ``fabric``), ``fabric`` (this host's addresses by rail),
    ``cidrs`` and ``prefixes`` (by rail), ``master_addr`` (the head's address on the first rail).
    """
    if host not in (groups.get(ROOT_GROUP) or []):
        raise ClusterError(f"{host} is not in the inventory group {ROOT_GROUP}: add it to a serving group below {ROOT_GROUP}, such as pair1")
    mine = hosts[host]
    named = mine.get("gb10_serving_groups") or []
    if isinstance(named, str):
        named = [named]
    names = group_names_of(host, serving_groups(groups, named))
    if not names:
        raise ClusterError(f"{host} is in {ROOT_GROUP} but in no serving group: add it to one, such as pair1, or to gb10_serving_groups")
    if len(names) > 1:
        raise ClusterError(
            f"{host} is in {len(names)} serving groups ({', '.join(names)}): keep it in one, or name the groups that serve in gb10_serving_groups"
        )
    variables = {name: hosts[name] for name in serving_groups(groups, named)[names[0]]}
    order = ranked(list(variables), variables)
    members: list[dict[str, Any]] = [
        {"host": name, "rank": rank, "address": management_address(name, variables[name]), "fabric": fabric_addresses(variables[name], rank)}
        for rank, name in enumerate(order)
    ]
    networks = fabric_networks(mine)
    me = members[order.index(host)]
    return {
        "name": names[0],
        "rank": me["rank"],
        "size": len(order),
        "head": order[0],
        "hosts": order,
        "members": members,
        "fabric": me["fabric"],
        "cidrs": [str(network) for network in networks],
        "prefixes": [network.prefixlen for network in networks],
        "master_addr": members[0]["fabric"][0],
    }


def management_address(host: str, variables: Mapping[str, Any]) -> str:
    """Return what Ansible connects to: ``ansible_host``, or the host's name."""
    return str(variables.get("ansible_host") or host)


# --- Faults ------------------------------------------------------------------------------------------------------------


def _literal(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def faults(groups: Mapping[str, Sequence[str]], hosts: Mapping[str, Mapping[str, Any]]) -> list[Fault]:
    """Return every fault of groups, ranks and addresses, in reading order.

    :param hosts: variables of every host in ``gb10``; values of a wrong type are reported, never raised.
    """
    if ROOT_GROUP not in groups:
        return [Fault(Place("group", ROOT_GROUP, ROOT_GROUP), f"there is no group {ROOT_GROUP}; put the serving group, such as pair1, below {ROOT_GROUP}")]
    if not groups[ROOT_GROUP]:
        return [Fault(Place("group", ROOT_GROUP, ROOT_GROUP), f"the group {ROOT_GROUP} has no hosts; give it two, the first is the head")]
    serving, found = _grouping(groups, hosts)
    found += _management(groups[ROOT_GROUP], hosts)
    networks: dict[str, list[ipaddress.IPv4Network]] = {}
    owners: dict[str, tuple[str, bool]] = {}
    for name, members in serving.items():
        # A host of two groups has the variables of one of them only: what follows from that is no fault of its own.
        mine = [host for host in members if host in hosts and (len(group_names_of(host, serving)) == 1 or host == members[0])]
        found += _group_faults(name, members, mine, hosts, networks, owners)
    found += _overlaps(networks)
    found += _fabric_over_management(groups[ROOT_GROUP], hosts, networks)
    return _once(found)


def _once(found: Iterable[Fault]) -> list[Fault]:
    return list(dict.fromkeys(replace(fault, text=_without_key(fault.place.key, fault.text)) for fault in found))


def _grouping(groups: Mapping[str, Sequence[str]], hosts: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, list[str]], list[Fault]]:
    """Which hosts serve together, and who is in none or in several groups."""
    root = list(groups[ROOT_GROUP])
    key = "gb10_serving_groups"
    found: list[Fault] = []
    wishes = [hosts.get(host, {}).get(key) or [] for host in root]
    named = wishes[0]
    if isinstance(named, str) or not isinstance(named, Sequence):
        return {}, []  # a wrong type, which the check of types reports
    same, odd = odd_ones(dict(zip(root, wishes)))
    if odd:
        wish = f"set it once, for the group {ROOT_GROUP}"
        return {}, [Fault(Place("host", host, key), f"{key} differs between {same[0]} and {host}; {wish}", among=tuple(same)) for host in odd]
    for name in named:
        if str(name) not in groups:
            found.append(Fault(Place("group", ROOT_GROUP, key), f"{key} names {name}, which is no group of this inventory"))
        for host in groups.get(str(name)) or []:
            if host not in root:
                found.append(Fault(Place("group", str(name), str(name)), f"{host} is in the serving group {name} but not in {ROOT_GROUP}; put {name} below it"))
    serving = serving_groups(groups, named)
    for host in root:
        names = group_names_of(host, serving)
        if not names:
            found.append(
                Fault(
                    Place("host", host, host),
                    f"{host} is in {ROOT_GROUP} but in no serving group; move it into one of {', '.join(serving) or 'your groups'}, or into a group of its own",
                )
            )
        elif len(names) > 1:
            found.append(
                Fault(
                    Place("group", names[1], host),
                    f"{host} is in {len(names)} serving groups ({', '.join(names)}); "
                    "keep it in one, or name in gb10_serving_groups the groups that serve a model",
                )
            )
    return serving, found


def _management(root: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> list[Fault]:
    """Addresses that Ansible connects to: one machine under two names, and examples never edited."""
    found: list[Fault] = []
    seen: dict[tuple[str, str], str] = {}
    for host in root:
        variables = hosts.get(host, {})
        text = management_address(host, variables)
        address = _literal(text)
        place = Place("host", host, "ansible_host" if variables.get("ansible_host") else host)
        if address is not None and address.version == 4 and any(address in network for network in EXAMPLE_NETWORKS):
            found.append(Fault(place, f"{host} still has the example address {text}; write the address of your own machine", example=True))
        socket = (str(address or text).lower(), str(variables.get("ansible_port") or 22))
        if socket in seen:
            found.append(Fault(place, f"{seen[socket]} and {host} both have the management address {text}; each host needs its own"))
        else:
            seen[socket] = host
    return found


def _group_faults(
    name: str,
    members: Sequence[str],
    mine: Sequence[str],
    hosts: Mapping[str, Mapping[str, Any]],
    networks: dict[str, list[ipaddress.IPv4Network]],
    owners: dict[str, tuple[str, bool]],
) -> list[Fault]:
    """Ranks and fabric of one serving group, ``mine`` are the members to ask for its variables; fills ``networks`` by group, ``owners`` by fabric address."""
    found: list[Fault] = []
    if not members:
        return found
    if len(members) == 1:
        found.append(Fault(Place("group", name, name), f"the serving group {name} has no worker, only {members[0]}; a serving group needs two hosts or more"))
    found += _rank_faults(members, hosts)
    key = "gb10_fabric_cidrs"
    first_host = members[0]
    cidrs = value_of(hosts.get(first_host, {}), key)
    same, odd = odd_ones({host: value_of(hosts.get(host, {}), key) for host in mine})
    if odd:
        wish = f"set it once, for the group {name}"
        return found + [Fault(Place("host", host, key), f"{key} differs between {same[0]} and {host} of {name}; {wish}", among=tuple(same)) for host in odd]
    try:
        networks[name] = fabric_networks(hosts.get(first_host, {}))
    except ClusterError as exc:
        entries = [(each,) for each in cidrs] if isinstance(cidrs, Sequence) and not isinstance(cidrs, str) else []
        return found + _bad_entries(Place("group", name, key), entries, lambda cidr: _network(str(cidr)), exc)
    for index, network in enumerate(networks[name]):
        for other in networks[name][:index]:
            if network.overlaps(other):
                found.append(Fault(Place("group", name, key, (index,)), f"{other} and {network} overlap; each rail of {name} needs a network of its own"))
    try:
        order = ranked(members, hosts)
    except ClusterError:
        order = list(members)
    for rank, host in enumerate(order):
        said = {fault.place for fault in found}
        shared = value_of(hosts.get(host, {}), "gb10_fabric_first") == value_of(hosts.get(first_host, {}), "gb10_fabric_first")
        first = Place("group", name, "gb10_fabric_first") if shared else Place("host", host, "gb10_fabric_first")
        found += [fault for fault in _host_fabric(name, host, rank, hosts.get(host, {}), owners, first) if fault.place not in said]
    return found


def _bad_entries(place: Place, entries: Iterable[tuple[Any, ...]], read: Callable[..., Any], whole: ClusterError) -> list[Fault]:
    """One fault for each entry of a list that cannot be read; with none of those, what is wrong with the list as a whole."""
    found = []
    for index, entry in enumerate(entries):
        try:
            read(*entry)
        except ClusterError as exc:
            found.append(Fault(place._replace(below=(index,)), str(exc)))
    return found or [Fault(place, str(whole))]


def _without_key(key: str, sentence: str) -> str:
    """Drop a leading name, which the place already says."""
    said = any(sentence.startswith(f"{key} {verb} ") for verb in ("is", "holds", "differs", "names"))
    return sentence[len(key) + 1 :] if said else sentence


def _rank_faults(members: Sequence[str], hosts: Mapping[str, Mapping[str, Any]]) -> list[Fault]:
    found: list[Fault] = []
    seats: dict[int, str] = {}
    for host in members:
        wish = hosts.get(host, {}).get("gb10_rank")
        if wish is None or wish == "":
            continue
        place = Place("host", host, "gb10_rank")
        try:
            rank = _rank_number(host, wish)
        except ClusterError:
            continue  # a wrong type, which the check of types reports
        if rank in seats:
            found.append(Fault(place, _same_rank(rank, seats[rank], host)))
        elif not 0 <= rank < len(members):
            found.append(Fault(place, f"{host} has rank {rank}, but its serving group of {len(members)} hosts has ranks 0 to {len(members) - 1}"))
        seats.setdefault(rank, host)
    return found


def _host_fabric(name: str, host: str, rank: int, variables: Mapping[str, Any], owners: dict[str, tuple[str, bool]], first: Place) -> list[Fault]:
    """The fabric addresses of one host; ``first`` is where its gb10_fabric_first is set."""
    key = "gb10_fabric_addresses"
    addresses_given = value_of(variables, key)
    given = bool(addresses_given)
    try:
        addresses = fabric_addresses(variables, rank)
    except ClusterError as exc:
        networks = fabric_networks(variables)
        if given:
            fit = isinstance(addresses_given, Sequence) and len(addresses_given) == len(networks)
            return _bad_entries(Place("host", host, key), zip(addresses_given, networks) if fit else [], _given_address, exc)
        # A network in which the default would do is not the one to change.
        small = any(default_of("gb10_fabric_first") + rank > network.num_addresses - 2 for network in networks)
        chosen = value_of(variables, "gb10_fabric_first") != default_of("gb10_fabric_first")
        of_first = str(exc).startswith("gb10_fabric_first") or (chosen and not small)
        return [Fault(first if of_first else Place("group", name, "gb10_fabric_cidrs"), str(exc))]
    found = []
    for index, address in enumerate(addresses):
        other, other_given = owners.setdefault(address, (host, given))
        # Two derived addresses are equal only where networks overlap, which is said once for the networks.
        if other != host and (given or other_given):
            where = Place("host", host if given else other, key, (index,))
            found.append(Fault(where, f"{other} and {host} both have the fabric address {address}; each host needs its own on each rail"))
    return found


def _overlaps(networks: Mapping[str, Sequence[ipaddress.IPv4Network]]) -> list[Fault]:
    """Rails of one group that lie in those of another: one fault for each group, against the first it meets."""
    found = []
    names = list(networks)
    for index, name in enumerate(names):
        clashes = [(rail, other, each) for other in names[:index] for rail in networks[name] for each in networks[other] if rail.overlaps(each)]
        if clashes:
            rail, other, each = clashes[0]
            both = f"{rail}" if rail == each else f"{rail} and {each}"
            found.append(
                Fault(
                    Place("group", name, "gb10_fabric_cidrs", own=True),
                    f"{name} and {other} share the fabric network {both}; give {name} networks of its own, such as [192.168.202.0/24, 192.168.203.0/24]",
                )
            )
    return found


def _fabric_over_management(
    root: Sequence[str], hosts: Mapping[str, Mapping[str, Any]], networks: Mapping[str, Sequence[ipaddress.IPv4Network]]
) -> list[Fault]:
    found = []
    seen = set()
    for name, rails in networks.items():
        for index, rail in enumerate(rails):
            inside = [host for host in root if _inside(management_address(host, hosts.get(host, {})), rail)]
            if inside and rail not in seen:
                seen.add(rail)
                address = management_address(inside[0], hosts.get(inside[0], {}))
                found.append(
                    Fault(
                        Place("group", name, "gb10_fabric_cidrs", (index,)),
                        f"the fabric network {rail} contains {address}, the management address of {inside[0]}; use a network that nothing else uses",
                    )
                )
    return found


def _inside(text: str, network: ipaddress.IPv4Network) -> bool:
    address = _literal(text)
    return isinstance(address, ipaddress.IPv4Address) and address in network
