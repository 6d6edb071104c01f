# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: from the configured rails and the files of a node to what is written, moved or refused. Pure.

Addresses are `a.b.c.d/prefix`, MTU is bytes, files are {path without leading slash: text}.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan_files import MARKER, ConfigFile, default_renderer, foreign_files

SYSCTL_PATH = "etc/sysctl.d/60-gb10-roce.conf"
RENDERERS = ("NetworkManager", "networkd")


@dataclass(frozen=True)
class RailConfig:
    """Desired configuration of a rail: interface, address with prefix, MTU in bytes."""

    interface: str
    address: str
    mtu: int


@dataclass(frozen=True)
class Plan:
    """The plan of a change. With `refusals` nothing may be changed. `text` is None if our file must not exist."""

    text: str | None = None
    moves: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    ours: tuple[RailConfig, ...] = ()


def render(rails: Sequence[RailConfig], renderer: str) -> str:
    """Return our netplan file. The renderer is set for each interface, so that the global choice of the node stays."""
    out = [MARKER, "network:", "  version: 2", "  ethernets:"]
    for rail in rails:
        out += [
            f"    {rail.interface}:",
            f"      renderer: {renderer}",
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            "      link-local: []",
            "      optional: true",
            f"      mtu: {rail.mtu}",
            "      addresses:",
            f"        - {rail.address}",
        ]
    return "\n".join(out) + "\n"


def render_sysctl(interfaces: Sequence[str], ipv6: bool) -> str:
    """Return the sysctl drop-in: each rail answers ARP for its own address only, and has no IPv6 (so GIDs keep their index)."""
    return "\n".join([MARKER, *(f"-{key} = {value}" for key, value in sysctl_values(interfaces, ipv6).items())]) + "\n"


def sysctl_values(interfaces: Sequence[str], ipv6: bool) -> dict[str, str]:
    """Return {net/ipv4/conf/<rail>/arp_ignore: "1", ...}; slashes, because an interface name may contain dots."""
    values: dict[str, str] = {}
    for name in interfaces:
        values[f"net/ipv4/conf/{name}/arp_ignore"] = "1"
        values[f"net/ipv4/conf/{name}/arp_announce"] = "2"
        if not ipv6:
            values[f"net/ipv6/conf/{name}/disable_ipv6"] = "1"
    return values


def validate_rails(rails: Sequence[RailConfig], protected: Sequence[str], known: Sequence[str], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the reasons to refuse this configuration on this node. What is wrong on every node is found on the controller (inventory_check).

    `protected`: interfaces with the default route or the SSH session; `known`: interfaces that exist;
    `others`: {interface that is not a rail: its addresses with prefix}.
    """
    found: list[str] = []
    for rail in rails:
        if rail.interface in protected:
            found.append(
                f"{rail.interface} carries the default route or this SSH session, and the roce role never changes such an interface. "
                "Move the default route to the 10 GbE port (enP7s7), or name other ports in roce_interfaces."
            )
        if rail.interface not in known:
            found.append(f"The interface {rail.interface} does not exist on this node. Correct or remove roce_interfaces (the ports are found without it).")
        network = ipaddress.ip_interface(rail.address).network
        for name, text in ((name, text) for name, addresses in sorted(others.items()) for text in addresses):
            other = ipaddress.ip_interface(text).network
            if other.version == network.version and other.prefixlen and other.overlaps(network):
                found.append(
                    f"The fabric network {network} of {rail.interface} overlaps {text} on {name}. Choose another network in gb10_fabric_cidrs, "
                    "or that path breaks."
                )
    return found


def plan(rails: Sequence[RailConfig], read: Sequence[ConfigFile], policy: str, renderer: str) -> Plan:
    """Return what to do with our file and the files of others, by policy (`refuse`, `adopt`, `replace`)."""
    foreign = foreign_files(read)
    if not foreign:
        return Plan(text=render(rails, renderer) if rails else None, ours=tuple(rails))
    refusals = [
        f"/{item.path} is not understood ({item.error}) and names {', '.join(c.interface for c in item.claims)}. Nothing was changed: "
        "write the file without anchors, aliases and tags as valid YAML, or remove the rails from it."
        for item in foreign
        if item.error
    ]
    if policy == "refuse":
        refusals += [_refusal(item) for item in foreign if not item.error]
    elif policy == "replace":
        refusals += _immovable(read, foreign)
    if refusals:
        return Plan(refusals=tuple(refusals))
    if policy == "replace":
        return Plan(text=render(rails, renderer), moves=tuple(item.path for item in foreign), ours=tuple(rails))
    return _adopt(rails, foreign, renderer)


def _refusal(item: ConfigFile) -> str:
    file = f"/{item.path} ({item.writer})" if item.writer else f"/{item.path}"
    given = "; ".join(f"{claim.interface}: {', '.join(claim.addresses) or 'no address'}" for claim in item.claims)
    moved = " or `replace` (it is moved to a backup)" if item.kind == "netplan" else ""
    return f"{file} configures {given}. Nothing was changed: set roce_foreign_policy to `adopt` (the file stays in charge){moved}, or remove it."


def _adopt(rails: Sequence[RailConfig], foreign: Sequence[ConfigFile], renderer: str) -> Plan:
    """Keep the files of others if they give the configured addresses, and configure the remaining rails."""
    refusals: list[str] = []
    ours: list[RailConfig] = []
    for rail in rails:
        claims = [(item.path, claim) for item in foreign for claim in item.claims if claim.interface == rail.interface]
        if not claims:
            ours.append(rail)
            continue
        where = ", ".join(dict.fromkeys("/" + path for path, _claim in claims))
        given = [address for _path, claim in claims for address in claim.addresses]
        if rail.address not in given:
            refusals.append(
                f"{where} gives {rail.interface} {', '.join(given) or 'no address'}, expected {rail.address}. Set gb10_fabric_addresses to this address, "
                "or roce_foreign_policy to `replace`."
            )
    if refusals:
        return Plan(refusals=tuple(refusals))
    return Plan(text=render(ours, renderer) if ours else None, ours=tuple(ours))


def _immovable(read: Sequence[ConfigFile], foreign: Sequence[ConfigFile]) -> list[str]:
    """Return why files of others cannot be moved away: what they configure for other interfaces, above all the one of SSH, would go with them.

    A file of networkd or NetworkManager is never moved: its patterns can match the interface of SSH too.
    """
    found = []
    for item in foreign:
        if item.kind != "netplan" or not item.path.startswith("etc/"):
            found.append(
                f"/{item.path} configures {', '.join(c.interface for c in item.claims)} and is not a netplan file in /etc, so it cannot be moved: it may "
                "configure other interfaces too. Remove the rails from it, or remove it, then run again."
            )
        elif item.others:
            found.append(f"/{item.path} also configures {', '.join(item.others)}, so the whole file cannot be moved. Remove the rails from it.")
    before, after = default_renderer(read), default_renderer([item for item in read if item not in foreign])
    if before != after:  # with NetworkManager as the renderer of all, it manages interfaces that no file configures
        paths = ", ".join(f"/{item.path}" for item in foreign if item.renderer)
        found.append(f"{paths} also sets the renderer of the other interfaces ({before}). Set it in a netplan file without the rails, then run again.")
    return found
