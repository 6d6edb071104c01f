# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what two machines show before setup.yml writes an inventory, what follows from it, and the two files. Controller only.

`node` is what preflight_info returned on a machine, `fabric` what roce_info returned. Sizes are GiB. The files follow inventories/spark-pair.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile.text import AVAILABLE, availability, by_availability, facts, table
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_login import plain_description

Record = Mapping[str, Any]
VARIABLES = ("ansible_user", "gb10_profile", "gb10_model_store", "gb10_fabric_cidrs", "roce_foreign_policy")  # of the group
_HOSTS_TEXT = """---
# Your two machines, written by playbooks/setup.yml.
# The first host is the head (rank 0, serves the API), the second is the worker. pair1 is a serving group: the hosts that serve one model together.
"""
_GROUP_TEXT = """---
# What you want of the pair, written by playbooks/setup.yml.
# docs/inventory.md has all variables, `ansible-doc -t role gb10.cluster.<role>` those of a role.
# The first run makes a key for the API, and keeps it on the head. For your own: ansible-vault encrypt_string --stdin-name vllm_tp2_api_key
"""


def machine_lines(name: str, node: Record, fabric: Record) -> list[str]:
    """Return what one machine is, as lines."""
    what, gpu, dgx, path = node["machine"], node["driver"], node["dgx"], node["fabric"]["management"]
    product = str(what["product"] or what["arch"] or "unknown").replace("_", " ")
    system = f"{dgx['name'] or 'DGX OS'} {dgx['ota'] or dgx['base']}" if dgx["present"] else "not DGX OS"
    lines = [f"{name}: {product}, {system}, driver {gpu['loaded'] or 'not loaded'}, kernel {node['kernel']['release']}"]
    if not what["gb10"]:
        lines.append("  It is not a GB10. The collection is made for GB10 machines.")
    if path["interface"]:
        wireless = ". It is Wi-Fi: use the wired port, because a lost connection ends a run" if path["wireless"] else ""
        lines.append(f"  Reached through {path['interface']} ({path['address'] or 'no address'}){wireless}")
    disks = {str(disk.get("device") or disk["path"]): disk for disk in node["disks"]}  # each file system once
    lines += [f"  {cable_line(fabric)}", *(f"  Free at {disk['path']}: {disk['free_gib']:,.0f} of {disk['total_gib']:,.0f} GiB" for disk in disks.values())]
    lines += [f"  Network configuration of {entry.get('writer') or 'another tool'} on the rails: {entry['path']}" for entry in fabric["foreign"][:8]]
    return lines + (["  An update waits for a reboot. Reboot it before you run site.yml."] if node["kernel"]["reboot_required"] else [])


def cages(fabric: Record) -> set[int]:
    """Return the QSFP ports with a cable and a link."""
    return {int(port["cage"]) for port in fabric["ports"] if port.get("carrier") and port.get("cage") is not None}


def cable_line(fabric: Record) -> str:
    """Return which QSFP ports have a link."""
    places = [f"QSFP port {cage} (the one {'far from' if cage else 'nearest to'} the RJ45 socket)" for cage in sorted(cages(fabric))]
    linked = places or [str(rail["netdev"]) for rail in fabric["rails"] if rail.get("carrier")]
    return f"Cable with a link in {' and '.join(linked)}" if linked else "No link on a QSFP port: no cable is plugged, or the other machine is off"


def cable_fault(names: Sequence[str], fabrics: Sequence[Record]) -> str:
    """Return what is wrong with the cable between two machines; empty if nothing is."""
    missing = [name for name, fabric in zip(names, fabrics) if not any(rail.get("carrier") for rail in fabric["rails"])]
    if missing:
        return f"{' and '.join(missing)} without a link: plug the cable into the same QSFP port of both machines before you run site.yml."
    differ = cages(fabrics[0]) and cages(fabrics[1]) and not cages(fabrics[0]) & cages(fabrics[1])
    return "The cable is in different QSFP ports of the two machines. Use the same port of both before you run site.yml." if differ else ""


def adoptable(fabrics: Sequence[Record]) -> tuple[list[str], list[list[str]]] | None:
    """Return networks by rail and addresses of each machine that other tools configured, if both have one on each rail, in the same networks."""
    machines = []
    for fabric in fabrics:
        # The role adopts what the files configure, so an address that only the kernel has does not count.
        given = {(netdev, str(each)) for entry in fabric["foreign"] for netdev, found in (entry.get("addresses") or {}).items() for each in found}
        rails = [(str(rail["netdev"]), f"{rail.get('ipv4')}/{rail.get('prefix')}") for rail in fabric["rails"]]
        if not rails or not given.issuperset(rails) or not all(entry.get("parsed", True) for entry in fabric["foreign"]):
            return None
        machines.append([ipaddress.IPv4Interface(address) for _netdev, address in rails])
    networks = [[str(each.network) for each in machine] for machine in machines]
    distinct = len({tuple(machine) for machine in machines}) == len(machines) and len(set(networks[0])) == len(networks[0])
    hosts = all(not each.is_link_local and each.network.prefixlen <= 31 for machine in machines for each in machine)
    same = all(each == networks[0] for each in networks)
    return (networks[0], [[str(each.ip) for each in machine] for machine in machines]) if same and distinct and hosts else None


def profile_choices(profiles: Mapping[str, Record]) -> list[str]:
    """Return the names of the profiles that a pair can serve and whose image is available, the easiest to get first."""
    serve = [name for name, profile in profiles.items() if profile["ranks"]["min"] <= 2 <= (profile["ranks"]["max"] or 2)]
    return [name for name in by_availability(profiles) if name in serve and AVAILABLE[availability(profiles[name]["image"])][0] != "missing"]


def profile_table(profiles: Mapping[str, Record], choices: Sequence[str]) -> list[str]:
    """Return the table of profiles.yml, with a number for each."""
    header, *lines = table([facts(profiles[name]) for name in choices])
    return [f"    {header}", *(f"{number:>2}  {line}" for number, line in enumerate(lines[: len(choices)], 1)), *lines[len(choices) + 1 :]]


def chosen(answer: str, choices: Sequence[str]) -> str:
    """Return the profile that an answer names, by its name or its number in the table."""
    return dict(zip(map(str, range(1, len(choices) + 1)), choices)).get(answer.strip(), answer.strip())


def host_names(found: Sequence[str]) -> list[str]:
    """Return the names of two machines in the inventory: their own if they are valid and differ, else spark-1 and spark-2."""
    short = [name.partition(".")[0].lower() for name in found]
    valid = all(re.fullmatch(r"(?!(?:localhost|gb10|pair1|all|ungrouped)$)[a-z0-9][a-z0-9-]{0,59}", name) for name in short)
    return short if valid and short[0] != short[1] else ["spark-1", "spark-2"]


def files(hosts: Mapping[str, Record], values: Record) -> dict[str, str]:
    """Return the two files of an inventory; `values` has the variables of the group that are set, and the head comes first in `hosts`."""
    words = {name: plain_description(name, first=True) if name != "ansible_user" else "The user to log in as over SSH." for name in VARIABLES}
    group = "".join(f"\n# {words[name]}\n{compose_yaml({name: values[name]})}" for name in VARIABLES if name in values)
    return {"hosts.yml": _HOSTS_TEXT + compose_yaml({"gb10": {"children": {"pair1": {"hosts": hosts}}}}), "group_vars/gb10.yml": _GROUP_TEXT + group}
