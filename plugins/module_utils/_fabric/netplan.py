# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: from the configured rails and the files of a node to what is written, moved or refused. Pure.

Addresses are `a.b.c.d/prefix`, MTU is bytes, files are {path without leading slash: text}.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan_yaml import YamlError, parse_yaml

OWN_PATH = "etc/netplan/60-gb10-cluster.yaml"
SYSCTL_PATH = "etc/sysctl.d/60-gb10-roce.conf"
MARKER = "# Managed by gb10.cluster (role roce): do not edit; roce_state=absent takes it back."
RENDERERS = ("NetworkManager", "networkd")

# file name -> who writes it
KNOWN_WRITERS = {
    "40-cx7.yaml": "NVIDIA's playbook, sparkrun or a fleet tool",
    "99-nvidia-sync-cluster.yaml": "NVIDIA Sync Cluster Assistant",
    "98-spark-vllm-docker.yaml": "spark-vllm-docker",
    "40-unsloth-cx7.yaml": "Unsloth",
    "50-cloud-init.yaml": "cloud-init",
}


# --- existing files ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """What is known of a live interface, to match netplan's `match:`."""

    name: str
    mac: str | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Claim:
    """The configuration of one interface in a file."""

    interface: str
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    dhcp4: bool = False


@dataclass(frozen=True)
class ConfigFile:
    """One configuration file: its owner, and its configuration of the given interfaces."""

    path: str
    kind: str
    own: bool
    parsed: bool
    writer: str | None = None
    error: str | None = None
    claims: tuple[Claim, ...] = ()
    others: tuple[str, ...] = ()
    renderer: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as module output; the path with its leading slash."""
        return {
            "path": "/" + self.path,
            "kind": self.kind,
            "writer": self.writer,
            "parsed": self.parsed,
            "error": self.error,
            "interfaces": [claim.interface for claim in self.claims],
            "other_interfaces": list(self.others),
            "addresses": {claim.interface: list(claim.addresses) for claim in self.claims},
            "mtu": {claim.interface: claim.mtu for claim in self.claims if claim.mtu is not None},
        }


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(str(next(iter(item), "")) if isinstance(item, dict) else str(item) for item in value)
    return (value,) if isinstance(value, str) and value not in ("", "~", "null") else ()


def _matches(key: str, body: Mapping[str, Any], device: Device) -> bool:
    match = body.get("match")
    if not isinstance(match, dict):
        return key == device.name
    if not match:  # netplan: every device of the section; NetworkManager writes it for a profile without an interface name
        return True
    if body.get("set-name") == device.name:
        return True
    tests = []
    if match.get("name"):
        tests.append(fnmatch.fnmatchcase(device.name, str(match["name"])))
    if match.get("macaddress"):
        tests.append(bool(device.mac) and str(match["macaddress"]).lower() == str(device.mac).lower())
    if match.get("driver"):
        tests.append(bool(device.driver) and any(fnmatch.fnmatchcase(str(device.driver), d) for d in _strings(match["driver"])))
    return bool(tests) and all(tests)


def _read_netplan(path: str, text: str, devices: Sequence[Device]) -> ConfigFile:
    own = path == OWN_PATH or MARKER in text
    writer = None if own else KNOWN_WRITERS.get(path.rsplit("/", 1)[-1])
    try:
        data = parse_yaml(text)
    except YamlError as exc:
        return _unparsed(path, own, writer, text, devices, str(exc))
    network = data.get("network") if isinstance(data, dict) else None
    if network is None and not text.strip():
        return ConfigFile(path, "netplan", own, True, writer)
    if not isinstance(network, dict):
        return _unparsed(path, own, writer, text, devices, "no `network:` map")
    claims: list[Claim] = []
    others: list[str] = []
    for section, entries in network.items():
        for key, body in (entries or {}).items() if isinstance(entries, dict) else ():
            body = body if isinstance(body, dict) else {}
            physical = section in ("ethernets", "nm-devices")
            hit = [d for d in devices if (_matches(key, body, d) if physical else section in ("bonds", "bridges", "vlans") and key == d.name)]
            for member in _strings(body.get("interfaces")) if section in ("bonds", "bridges") else ():
                hit += [d for d in devices if d.name == member]
            claims += [_claim(device.name, body) for device in hit]
            if not hit:
                others.append(str(key))
            elif body.get("match") == {}:
                others.append(f"every other device ({key} has an empty match)")
    renderer = str(network["renderer"]) if network.get("renderer") else None
    return ConfigFile(path, "netplan", own, True, writer, None, tuple(claims), tuple(others), renderer)


def _claim(name: str, body: Mapping[str, Any]) -> Claim:
    mtu, dhcp4 = str(body.get("mtu", "")), str(body.get("dhcp4", ""))
    return Claim(name, _strings(body.get("addresses")), int(mtu) if mtu.isdigit() else None, dhcp4.lower() in ("true", "yes", "on", "y"))


def _unparsed(path: str, own: bool, writer: str | None, text: str, devices: Sequence[Device], error: str) -> ConfigFile:
    """A file that is not understood claims every interface it names: fail closed."""
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    named = [d.name for d in devices if re.search(rf"(?<![\w-]){re.escape(d.name)}(?![\w-])", bare)]
    return ConfigFile(path, "netplan", own, False, writer, error, tuple(Claim(name) for name in named))


def _ini(text: str) -> dict[str, list[tuple[str, str]]]:
    """Read an ini file that repeats keys: {section: [(key, value)]}."""
    found: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            section = line[1:-1].strip()
        elif "=" in line:
            key, _equals, value = line.partition("=")
            found.setdefault(section, []).append((key.strip(), value.strip()))
    return found


def _read_keyfile(path: str, text: str, devices: Sequence[Device]) -> ConfigFile:
    data = {section: dict(items) for section, items in _ini(text).items()}
    wired = data.get("ethernet") or data.get("802-3-ethernet") or {}  # the second is its old name, which NetworkManager still reads
    name = data.get("connection", {}).get("interface-name", "")
    pattern = data.get("match", {}).get("interface-name", "")
    mac = wired.get("mac-address", "").lower()
    four, mtu = data.get("ipv4", {}), wired.get("mtu", "")
    addresses = tuple(v.split(",")[0] for k, v in sorted(four.items()) if re.match(r"^address\d+$", k))
    claims = [
        Claim(device.name, addresses, int(mtu) if mtu.isdigit() and mtu != "0" else None, four.get("method") == "auto")
        for device in devices
        if device.name == name or (pattern and fnmatch.fnmatchcase(device.name, pattern)) or (mac and device.mac and device.mac.lower() == mac)
    ]
    return ConfigFile(path, "NetworkManager", MARKER in text, True, claims=tuple(claims))


def _read_networkd(path: str, text: str, devices: Sequence[Device]) -> ConfigFile:
    data = _ini(text)
    match = data.get("Match", [])
    network = data.get("Network", []) + data.get("Address", [])
    names = [word for key, value in match if key == "Name" for word in value.split()]
    macs = [word.lower() for key, value in match if key in ("MACAddress", "PermanentMACAddress") for word in value.split()]
    addresses = tuple(value for key, value in network if key == "Address")
    mtu = dict(data.get("Link", [])).get("MTUBytes", "")
    claims = [
        Claim(device.name, addresses, int(mtu) if mtu.isdigit() else None, dict(network).get("DHCP") in ("yes", "ipv4"))
        for device in devices
        if any(fnmatch.fnmatchcase(device.name, word) for word in names) or (device.mac or "").lower() in macs
    ]
    return ConfigFile(path, "networkd", MARKER in text, True, claims=tuple(claims))


def _shadowed(paths: Sequence[str]) -> list[str]:
    """Return the netplan files that count: the same name in run/ hides etc/, which hides lib/."""
    best: dict[str, str] = {}
    for folder in ("lib/netplan/", "etc/netplan/", "run/netplan/"):
        for path in paths:
            if path.startswith(folder):
                best[path[len(folder) :]] = path
    return sorted(best.values(), key=lambda path: path.rsplit("/", 1)[-1])


def read_files(files: Mapping[str, str], devices: Sequence[Device]) -> list[ConfigFile]:
    """Return every configuration file, netplan's in the order netplan merges them."""
    found = [_read_netplan(path, files[path], devices) for path in _shadowed(list(files))]
    for path in sorted(files):
        if path.endswith(".nmconnection"):
            found.append(_read_keyfile(path, files[path], devices))
        elif path.endswith(".network"):
            found.append(_read_networkd(path, files[path], devices))
    return found


def foreign_files(read: Sequence[ConfigFile]) -> list[ConfigFile]:
    """Return the files of others that configure the given interfaces."""
    return [item for item in read if not item.own and item.claims]


def default_renderer(read: Sequence[ConfigFile]) -> str | None:
    """Return the renderer the merged netplan files choose globally (the last one wins), None if none does."""
    return next((item.renderer for item in reversed(read) if item.renderer and not item.own), None)


# --- the plan ------------------------------------------------------------------------------------------------------------------


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
    differences: tuple[str, ...] = ()
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
    """Return the reasons to refuse this configuration.

    `protected`: interfaces with the default route or the SSH session; `known`: interfaces that exist;
    `others`: {interface that is not a rail: its addresses with prefix}.
    """
    found: list[str] = []
    networks: list[tuple[str, Any]] = []
    for number, rail in enumerate(rails):
        if rail.interface in protected:
            found.append(
                f"{rail.interface} carries the default route or this SSH session, and the roce role never changes such an interface. "
                "Move the default route to the 10 GbE port (enP7s7), or name other ports in roce_interfaces."
            )
        if rail.interface not in known:
            found.append(f"The interface {rail.interface} does not exist on this node. Correct or remove roce_interfaces (the ports are found without it).")
        if rail.interface in [other.interface for other in rails[:number]]:
            found.append(f"{rail.interface} is configured for two rails; each rail needs its own port.")
        if not 1280 <= rail.mtu <= 9978:
            found.append(f"MTU {rail.mtu} for {rail.interface} is out of range (1280 to 9978). Use 9000 on a direct cable, or 1500.")
        face = ipaddress.ip_interface(rail.address)
        if face.network.prefixlen > 30:
            found.append(f"{rail.address} for {rail.interface} has no room for a peer. Use a network with a prefix of at most 30, like /24.")
        elif face.ip in (face.network.network_address, face.network.broadcast_address):
            found.append(f"{rail.address} for {rail.interface} is the network's own or broadcast address. Use a host address of {face.network}.")
        for name, net in networks:
            if net.overlaps(face.network):
                found.append(
                    f"{rail.interface} ({rail.address}) and {name} ({net}) would be in one subnet, which leaves one of them idle. "
                    "Give gb10_fabric_cidrs one network per rail."
                )
        networks.append((rail.interface, face.network))
        found += _overlaps(rail.interface, face.network, others)
    return list(dict.fromkeys(found))


def _overlaps(interface: str, network: Any, others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the addresses of other interfaces whose network overlaps the one of a rail."""
    found = []
    for name, text in ((name, text) for name, addresses in sorted(others.items()) for text in addresses):
        other = ipaddress.ip_interface(text).network
        if other.version == network.version and other.prefixlen and other.overlaps(network):
            found.append(
                f"The fabric network {network} of {interface} overlaps {text} on {name}. Choose another network in gb10_fabric_cidrs, or that path breaks."
            )
    return found


def _differences(rail: RailConfig, where: str, claims: Sequence[Claim], given: Sequence[str]) -> list[str]:
    """Return how the files `where`, which give these addresses, differ from the configuration of a rail."""
    notes: list[str] = []
    extra = [a for a in given if a != rail.address]
    if extra:
        notes.append(f"{where} also gives {rail.interface} {', '.join(extra)}")
    mtus = [claim.mtu for claim in claims if claim.mtu is not None]
    if (mtus[-1] if mtus else None) != rail.mtu:
        notes.append(f"{where} sets MTU {mtus[-1] if mtus else '(none)'} on {rail.interface}, expected {rail.mtu}")
    if any(claim.dhcp4 for claim in claims):
        notes.append(f"{where} asks for DHCP on {rail.interface}")
    return notes


def plan(rails: Sequence[RailConfig], read: Sequence[ConfigFile], policy: str, renderer: str) -> Plan:
    """Return what to do with our file and the files of others, by policy (`refuse`, `adopt`, `replace`)."""
    foreign = foreign_files(read)
    if not foreign:
        return Plan(text=render(rails, renderer) if rails else None, ours=tuple(rails))
    if policy == "adopt":
        return _adopt(rails, foreign, renderer)
    if policy == "replace":
        return _replace(rails, foreign, renderer)
    return Plan(refusals=tuple(_refusal(item) for item in foreign))


_PLAIN = "write the file without anchors, aliases and tags as valid YAML, or remove the rails from it."


def _refusal(item: ConfigFile) -> str:
    file = f"/{item.path} ({item.writer})" if item.writer else f"/{item.path}"
    if not item.parsed:
        return f"{file} is not understood ({item.error}) and names {', '.join(c.interface for c in item.claims)}. Nothing was changed: {_PLAIN}"
    given = "; ".join(f"{claim.interface}: {', '.join(claim.addresses) or 'no address'}" for claim in item.claims)
    moved = " or `replace` (it is moved to a backup)" if item.kind == "netplan" else ""
    return f"{file} configures {given}. Nothing was changed: set roce_foreign_policy to `adopt` (the file stays in charge){moved}, or remove it."


def _adopt(rails: Sequence[RailConfig], foreign: Sequence[ConfigFile], renderer: str) -> Plan:
    """Keep the files of others if they give the configured addresses, and configure the remaining rails."""
    refusals = [f"/{item.path} is not understood ({item.error}), so it cannot be adopted. Nothing was changed: {_PLAIN}" for item in foreign if not item.parsed]
    differences: list[str] = []
    ours: list[RailConfig] = []
    for rail in rails:
        claims = [(item.path, claim) for item in foreign for claim in item.claims if claim.interface == rail.interface]
        if not claims:
            ours.append(rail)
            continue
        where = ", ".join(dict.fromkeys("/" + path for path, _claim in claims))
        given = [address for _path, claim in claims for address in claim.addresses]
        differences += _differences(rail, where, [claim for _path, claim in claims], given)
        if rail.address not in given and not refusals:
            refusals.append(
                f"{where} gives {rail.interface} {', '.join(given) or 'no address'}, expected {rail.address}. Set gb10_fabric_addresses to this address, "
                "or roce_foreign_policy to `replace`."
            )
    if refusals:
        return Plan(refusals=tuple(refusals), differences=tuple(differences))
    return Plan(text=render(ours, renderer) if ours else None, differences=tuple(differences), ours=tuple(ours))


def _replace(rails: Sequence[RailConfig], foreign: Sequence[ConfigFile], renderer: str) -> Plan:
    """Move the netplan files of others to a backup. A file that is not understood, configures another interface or is outside of /etc stays.

    So does a file of networkd or NetworkManager: its patterns can match the interface of the SSH session too, and netplan does not show what it did.
    """
    refusals = [
        f"/{item.path} is not understood ({item.error}), so it may configure other interfaces and cannot be moved. Nothing was changed: {_PLAIN}"
        for item in foreign
        if not item.parsed
    ]
    refusals += [
        f"/{item.path} also configures {', '.join(item.others)}, so the whole file cannot be moved. Remove the rails from it."
        for item in foreign
        if item.others
    ]
    refusals += [
        f"/{item.path} configures {', '.join(c.interface for c in item.claims)} and is not a netplan file in /etc, so it cannot be moved: it may configure "
        "other interfaces too. Remove the rails from it, or remove it, then run again."
        for item in foreign
        if item.kind != "netplan" or not item.path.startswith("etc/")
    ]
    if refusals:
        return Plan(refusals=tuple(refusals))
    return Plan(text=render(rails, renderer), moves=tuple(item.path for item in foreign), ours=tuple(rails))
