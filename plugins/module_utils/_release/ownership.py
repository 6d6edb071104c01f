# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose the nodes of a serving group are: a group that was renamed, ranks that were swapped, a head that was replaced. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def _other_group(host: str, info: Mapping[str, Any], group: str) -> str:
    """Return that another group owns a node or serves there, as a phrase; empty if none does."""
    serving = [str(each) for each in info.get("others") or []]
    owners = sorted(name for name in (info.get("agent") or {}).get("owners") or {} if name != group)
    names = list(dict.fromkeys([*serving, *owners]))
    if not names:
        return ""
    return f"{host} belongs to the group {' and '.join(names)}" + (", which runs there" if serving else "")


def _other_place(rank: int, host: str, info: Mapping[str, Any], group: str, heads: Mapping[str, str], head: str) -> str:
    """Return that a node has another rank or obeys another head than the inventory's, as a phrase; empty if not. `heads` has machine id -> host."""
    place = (info.get("agent") or {}).get("place") or {}
    if place.get("group") == group and place.get("rank") != rank:
        return f"{host} is rank {place.get('rank')} of {group}"
    owner = str(((info.get("agent") or {}).get("owners") or {}).get(group) or "")
    if not owner or not head or owner == head:
        return ""
    who = heads.get(owner)
    return f"{host} obeys {who} as its head" if who else f"{host} obeys a head that is none of these nodes (machine id {owner[:12]})"


def stranger(hello: Mapping[str, Any], group: str, head: str) -> str:
    """Return why a node does not obey a head, as sentences; empty if it does. `hello` is what its agent reports, `head` the head's machine id."""
    host, owner = hello["host"], hello.get("owner") or {}
    if hello.get("group", group) != group:
        return f"{host} belongs to the group {hello['group']}, and the request is for the group {group}. Run site.yml for both groups."
    if owner.get("head") and (owner["group"], owner["head"]) != (group, head):
        return (
            f"{host} has another owner: the head {owner['head'][:12]} of the group {owner['group']}. Found: {head[:12]} of {group}."
            " Run site.yml with -e takeover=true to change the owner."
        )
    return ""


def refusal(infos: Sequence[Mapping[str, Any]], group: str, hosts: Sequence[str]) -> str:
    """Return why a run may not take these nodes, with the ways, as one or two sentences; empty if it may.

    `infos` is what vllm_rank_info returned on each rank, the head first, `hosts` are their names.
    """
    ids = [str((info.get("agent") or {}).get("head_id") or "") for info in infos]
    heads = {each: host for each, host in zip(ids, hosts) if each}
    groups = [phrase for host, info in zip(hosts, infos) for phrase in [_other_group(host, info, group)] if phrase]
    if groups:
        return (
            f"{group}: {'; '.join(groups)}. Nothing was changed. To serve {group} there: stop the other group by its own name (vllm_tp2_state=absent),"
            " or replace it with -e takeover=true, which stops it."
        )
    found = [phrase for rank, (host, info) in enumerate(zip(hosts, infos)) for phrase in [_other_place(rank, host, info, group, heads, ids[0])] if phrase]
    if found:
        return (
            f"{group}: {'; '.join(found)}, and the inventory has {hosts[0]} as head. Nothing was changed. If the order of the hosts is a mistake, correct it."
            " If the head was replaced or is to be another node: -e takeover=true."
        )
    return ""
