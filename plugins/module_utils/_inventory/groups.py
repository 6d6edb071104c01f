# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: serving groups and ranks of an inventory. Pure, standard library only.

``groups``
    mapping of group name to the list of its host names, in inventory order (Ansible's ``groups``).
``hosts``
    mapping of host name to its variables, templated; only ``ansible_host`` and ``gb10_*`` are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._inventory.fabric import addresses_of, networks_of
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.names import name_fault
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import ROOT_GROUP, Fault, Place, is_list, whole_number


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
    variables = {name: hosts[name] for name in serving[names[0]]}
    order, faults = ranked(list(variables), variables)
    members: list[dict[str, Any]] = []
    for rank, name in enumerate(order):
        networks, bad_networks = networks_of(names[0], variables[name])
        addresses, bad_addresses = addresses_of(names[0], name, rank, variables[name], networks)
        faults += bad_networks + bad_addresses
        members.append({"host": name, "rank": rank, "address": management_address(name, variables[name]), "fabric": addresses})
    if faults:
        raise ClusterError(f"{faults[0].place.key} {faults[0].text}")
    networks, _faults = networks_of(names[0], hosts[host])
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
