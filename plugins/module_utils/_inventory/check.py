# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: the check of groups, ranks and addresses of an inventory. Controller only. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.words import did_you_mean, nearest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.fabric import (
    ADDRESSES,
    CIDRS,
    FIRST,
    Network,
    addresses_of,
    is_inside,
    networks_of,
    overlap,
)
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.groups import group_names_of, management_address, ranked, serving_groups
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.names import name_fault
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.value_types import TRUE
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import ROOT_GROUP, Fault, Place, is_list, split_by_majority, value_of

# RFC 5737: addresses for documentation.
EXAMPLES = ("192.0.2.", "198.51.100.", "203.0.113.")
NAMED = "gb10_serving_groups"

Groups = Mapping[str, Sequence[str]]
Hosts = Mapping[str, Mapping[str, Any]]
# (host, its addresses by rail, whether they are set in the inventory)
Owner = tuple[str, list[str], bool]


def faults(groups: Groups, hosts: Hosts) -> list[Fault]:
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
    found += _check_management(root, hosts)
    networks: dict[str, list[Network]] = {}
    owners: list[Owner] = []
    for name, members in serving.items():
        # The variables of a host in two groups are those of one of them, so it is only checked as the first of a group.
        own = [host for host in members if host in hosts and (len(group_names_of(host, serving)) == 1 or host == members[0])]
        if members:
            found += _check_group(name, members, own, hosts, networks, owners)
    found += _check_owners(owners)
    found += _check_shared_networks(networks, serving)
    found += _check_management_inside(root, hosts, networks)
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
    return [
        Fault(Place("host", host, key), f"differs between {same[0]} and {host} of {group}. Set it once, for the group {group}", among=tuple(same))
        for host in odd
    ]


def _check_management(root: Sequence[str], hosts: Hosts) -> list[Fault]:
    """Addresses that Ansible connects to: one machine with two names, and addresses of the example."""
    found: list[Fault] = []
    owners: dict[tuple[str, str], str] = {}
    for host in root:
        variables = hosts.get(host, {})
        text = management_address(host, variables)
        place = Place("host", host, "ansible_host" if variables.get("ansible_host") else host)
        if text.startswith(EXAMPLES):
            found.append(Fault(place, f"{host} has the example address {text}. Set the address of your machine", example=True))
        owner = owners.setdefault((text.lower(), str(variables.get("ansible_port") or 22)), host)
        if owner != host:
            found.append(Fault(place, f"{owner} and {host} have the same management address {text}. Each host needs its own"))
    return found


def _check_group(name: str, members: Sequence[str], own: Sequence[str], hosts: Hosts, networks: dict[str, list[Network]], owners: list[Owner]) -> list[Fault]:
    """Check ranks and fabric of one serving group; adds to ``networks`` and ``owners``.

    :param own: the members whose variables are those of this group.
    """
    found: list[Fault] = []
    if len(members) == 1:
        text = f"the serving group {name} has no worker, only {members[0]}. A serving group needs two hosts or more"
        found.append(Fault(Place("group", name, name), text))
    order, bad_ranks = ranked(members, hosts)
    found += bad_ranks
    different = equal_faults(CIDRS, {host: value_of(hosts.get(host, {}), CIDRS) for host in own}, name)
    if different:
        return found + different
    first = hosts.get(members[0], {})
    rails, bad_networks = networks_of(name, first)
    if bad_networks:
        return found + bad_networks
    networks[name] = rails
    for index, rail in enumerate(rails):
        for other in rails[:index]:
            if overlap(rail, other):
                clash = f"{rail} is set twice" if rail == other else f"{other} and {rail} overlap"
                text = f"{clash}. Each rail of {name} needs its own network"
                found.append(Fault(Place("group", name, CIDRS, (index,)), text))
    reported = {fault.place for fault in found}
    for rank, host in enumerate(order):
        variables = hosts.get(host, {})
        shared = value_of(variables, FIRST) == value_of(first, FIRST)
        addresses, bad_addresses = addresses_of(name, host, rank, variables, rails, shared)
        owners.append((host, addresses, bool(value_of(variables, ADDRESSES))))
        found += [fault for fault in bad_addresses if fault.place not in reported]
        reported.update(fault.place for fault in bad_addresses)
    return found


def _check_owners(owners: Sequence[Owner]) -> list[Fault]:
    """Fabric addresses of two hosts. Two derived addresses are equal only if networks overlap, which is another fault."""
    found = []
    seen: dict[str, tuple[str, bool]] = {}
    pairs: set[tuple[str, str]] = set()  # two rails of two hosts are one mistake
    for host, addresses, given in owners:
        for index, address in enumerate(addresses):
            other, other_given = seen.setdefault(address, (host, given))
            if other != host and (given or other_given) and (other, host) not in pairs:
                pairs.add((other, host))
                text = f"{other} and {host} have the same fabric address {address}. Each host needs its own on each rail"
                found.append(Fault(Place("host", host if given else other, ADDRESSES, (index,)), text))
    return found


def _check_shared_networks(networks: Mapping[str, Sequence[Network]], serving: Groups) -> list[Fault]:
    """Rails of two groups that overlap: one fault for each group. A host in both groups is another fault, from which this one follows."""
    found = []
    names = list(networks)
    for index, name in enumerate(names):
        apart = [other for other in names[:index] if not set(serving[other]) & set(serving[name])]
        clashes = [(rail, other, each) for other in apart for rail in networks[name] for each in networks[other] if overlap(rail, each)]
        if clashes:
            rail, other, each = clashes[0]
            shared = f"{rail}" if rail == each else f"{rail} and {each}"
            text = f"{name} and {other} share the fabric network {shared}. Set other networks for {name}, such as [192.168.202.0/24, 192.168.203.0/24]"
            found.append(Fault(Place("group", name, CIDRS, own=True), text))
    return found


def _check_management_inside(root: Sequence[str], hosts: Hosts, networks: Mapping[str, Sequence[Network]]) -> list[Fault]:
    """Rails that contain an address that Ansible connects to; a rail of several groups is reported once."""
    found: dict[Network, Fault] = {}
    for name, rails in networks.items():
        for index, rail in enumerate(rails):
            inside = [host for host in root if is_inside(management_address(host, hosts.get(host, {})), rail)]
            if inside:
                address = management_address(inside[0], hosts.get(inside[0], {}))
                text = f"the fabric network {rail} contains {address}, the management address of {inside[0]}. Use a network that nothing else uses"
                found.setdefault(rail, Fault(Place("group", name, CIDRS, (index,)), text))
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
