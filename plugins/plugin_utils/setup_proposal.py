# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what two machines show before an inventory is written, as lines, and what follows from it. Pure.

`node` is what preflight_info returned on a machine, `fabric` what roce_info returned. Sizes are GiB.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._profile.text import AVAILABLE, availability, by_availability, facts, table

Record = Mapping[str, Any]

MAX_LINES = 8  # of a machine's configuration files of other tools


class Adopted(NamedTuple):
    """Addresses that another tool configured on the rails: the networks by rail, and each machine's addresses."""

    cidrs: list[str]
    addresses: list[list[str]]


def machine_lines(name: str, node: Record, fabric: Record) -> list[str]:
    """Return what one machine is, as lines."""
    what, gpu, dgx = node["machine"], node["driver"], node["dgx"]
    product = str(what["product"] or what["arch"] or "unknown").replace("_", " ")
    system = f"{dgx['name'] or 'DGX OS'} {dgx['ota'] or dgx['base']}" if dgx["present"] else "not DGX OS"
    lines = [f"{name}: {product}, {system}, driver {gpu['loaded'] or 'not loaded'}, kernel {node['kernel']['release']}"]
    if not what["gb10"]:
        lines.append("  It is not a GB10. The collection is made for GB10 machines.")
    path = node["fabric"]["management"]
    if path["interface"]:
        wireless = ". It is Wi-Fi: use the wired port, because a lost connection ends a run" if path["wireless"] else ""
        lines.append(f"  Reached through {path['interface']} ({path['address'] or 'no address'}){wireless}")
    lines.append(f"  {cable_line(fabric)}")
    lines += [f"  Free at {disk['path']}: {disk['free_gib']:,.0f} of {disk['total_gib']:,.0f} GiB" for disk in unique_disks(node)]
    files = list(fabric["foreign"])
    lines += [f"  Network configuration of {entry.get('writer') or 'another tool'} on the rails: {entry['path']}" for entry in files[:MAX_LINES]]
    if len(files) > MAX_LINES:
        lines.append(f"  {len(files) - MAX_LINES} more such files")
    if node["kernel"]["reboot_required"]:
        lines.append("  An update waits for a reboot. Reboot it before you run site.yml.")
    return lines


def unique_disks(node: Record) -> list[Record]:
    """Return the file systems of the Docker Engine and of the model store, each once; the last one is that of the model store."""
    found = {str(disk.get("device") or disk["path"]): disk for disk in node["disks"]}
    return list(found.values())


def linked_cages(fabric: Record) -> list[int]:
    """Return the cages with a cable and a link."""
    return sorted({int(port["cage"]) for port in fabric["ports"] if port.get("carrier") and port.get("cage") is not None})


def cable_line(fabric: Record) -> str:
    """Return which cages have a link."""
    cages = linked_cages(fabric)
    if not cages:
        linked = [str(rail["netdev"]) for rail in fabric["rails"] if rail.get("carrier")]
        return f"Link on {', '.join(linked)}" if linked else "No link on a QSFP port: no cable is plugged, or the other machine is off"
    names = {0: "the one nearest to the RJ45 socket", 1: "the one far from the RJ45 socket"}
    return "Cable with a link in QSFP port " + " and ".join(f"{cage} ({names.get(cage, 'unknown place')})" for cage in cages)


def cable_fault(names: Sequence[str], fabrics: Sequence[Record]) -> str:
    """Return what is wrong with the cable between two machines; empty if nothing is."""
    missing = [name for name, fabric in zip(names, fabrics) if not any(rail.get("carrier") for rail in fabric["rails"])]
    if missing:
        return f"{' and '.join(missing)} without a link: plug the cable into the same QSFP port of both machines before you run site.yml."
    cages = [linked_cages(fabric) for fabric in fabrics]
    if cages[0] and cages[1] and not set(cages[0]) & set(cages[1]):
        return "The cable is in different QSFP ports of the two machines. Use the same port of both before you run site.yml."
    return ""


def adoptable(fabrics: Sequence[Record]) -> Adopted | None:
    """Return the addresses that other tools gave to the rails, if both machines have one on each rail, in the same networks."""
    networks: list[list[str]] = []
    addresses: list[list[str]] = []
    for fabric in fabrics:
        given: dict[str, list[str]] = {}
        for entry in fabric["foreign"]:
            if not entry.get("parsed", True):
                return None
            for netdev, configured in (entry.get("addresses") or {}).items():
                given.setdefault(netdev, []).extend(str(each) for each in configured)
        # The role adopts what the files configure, so an address that only the kernel has does not count.
        rails = [rail for rail in fabric["rails"] if f"{rail.get('ipv4')}/{rail.get('prefix')}" in given.get(str(rail["netdev"]), [])]
        if not rails or len(rails) != len(fabric["rails"]):
            return None
        try:
            found = [ipaddress.IPv4Interface(f"{rail['ipv4']}/{rail['prefix']}") for rail in rails]
        except ValueError:
            return None
        if any(each.is_link_local or each.network.prefixlen > 31 for each in found):
            return None
        networks.append([str(each.network) for each in found])
        addresses.append([str(each.ip) for each in found])
    same = all(each == networks[0] for each in networks) and len(set(networks[0])) == len(networks[0])
    distinct = len({tuple(each) for each in addresses}) == len(addresses)
    return Adopted(networks[0], addresses) if same and distinct else None


def profile_choices(profiles: Mapping[str, Record]) -> list[str]:
    """Return the names of the profiles that a pair can serve and whose image is available, the easiest to get first."""

    def fits(profile: Record) -> bool:
        least, most = profile["ranks"]["min"], profile["ranks"]["max"]
        return least <= 2 and (most is None or most >= 2) and AVAILABLE[availability(profile["image"])][0] != "missing"

    return [name for name in by_availability(profiles) if fits(profiles[name])]


def profile_table(profiles: Mapping[str, Record], choices: Sequence[str]) -> list[str]:
    """Return the table of profiles.yml, with a number for each."""
    header, *lines = table([facts(profiles[name]) for name in choices])
    numbered = [f"{number:>2}  {line}" for number, line in enumerate(lines[: len(choices)], 1)]
    return [f"    {header}", *numbered, *lines[len(choices) + 1 :]]


def chosen(answer: str, choices: Sequence[str]) -> str:
    """Return the profile that an answer names, by its name or its number in the table."""
    text = answer.strip()
    return choices[int(text) - 1] if text.isdecimal() and len(text) < 5 and 1 <= int(text) <= len(choices) else text
