# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the network configuration files of a node: which interfaces each configures, and what is written, moved or refused for the rails. Pure.

Addresses are `a.b.c.d/prefix`, MTU is bytes, files are {path without leading slash: text}. netplan's are read with PyYAML, which netplan.io depends on;
a file that cannot be read claims every interface that it names.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

try:
    import yaml
except ImportError:
    yaml = None  # type: ignore[assignment]  # no file can be read then

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture, Node

SYSCTL_PATH = "etc/sysctl.d/60-gb10-roce.conf"
RENDERERS = ("NetworkManager", "networkd")
OWN_PATH = "etc/netplan/60-gb10-cluster.yaml"
MARKER = "# Managed by gb10.cluster (role roce): do not edit; roce_state=absent takes it back."
SPARK_PORTS = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1")

# file name -> who writes it
KNOWN_WRITERS = {
    "40-cx7.yaml": "NVIDIA's playbook, sparkrun or a fleet tool",
    "99-nvidia-sync-cluster.yaml": "NVIDIA Sync Cluster Assistant",
    "98-spark-vllm-docker.yaml": "spark-vllm-docker",
    "40-unsloth-cx7.yaml": "Unsloth",
    "50-cloud-init.yaml": "cloud-init",
}


@dataclass(frozen=True)
class Device:
    """What is known of a live interface, to match netplan's `match:`."""

    name: str
    mac: str | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Claim:
    """The addresses of one interface in a file."""

    interface: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfigFile:
    """One configuration file: its owner, and its configuration of the given interfaces. `error` is set if it is not understood."""

    path: str
    kind: str
    own: bool
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
            "parsed": self.error is None,
            "error": self.error,
            "interfaces": [claim.interface for claim in self.claims],
            "addresses": {claim.interface: list(claim.addresses) for claim in self.claims},
        }


# --- netplan ---------------------------------------------------------------------------------------------------------------------


def parse_yaml(text: str) -> Any:
    """Return the value of a netplan file, of dict, list and str. Values stay text, as netplan reads them: a MAC address is not a base-60 number.

    Raises ValueError, also for anchors, aliases, tags and duplicate keys, which hide what a file configures, and without PyYAML.
    """
    if yaml is None:
        raise ValueError("PyYAML is missing on this node: `apt install python3-yaml`")
    try:
        events: Any = yaml.parse(text, Loader=yaml.BaseLoader)
        for event in events:
            if getattr(event, "anchor", None) or getattr(event, "tag", None):  # an alias has an anchor too
                raise ValueError(f"line {event.start_mark.line + 1}: anchors, aliases and tags are not supported")
        return _plain(yaml.compose(text, Loader=yaml.BaseLoader))
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        raise ValueError(f"line {mark.line + 1 if mark else 1}: {getattr(exc, 'problem', None) or str(exc).splitlines()[0]}") from exc


def _plain(node: Any) -> Any:
    """Return the value of a YAML node."""
    if node is None or node.id == "scalar":
        return node and node.value
    if node.id == "sequence":
        return [_plain(item) for item in node.value]
    found: dict[str, Any] = {}
    for key, value in node.value:
        if key.id != "scalar" or key.value in found:
            raise ValueError(f"line {key.start_mark.line + 1}: {f'duplicate key {key.value!r}' if key.id == 'scalar' else 'a key that is not a text'}")
        found[key.value] = _plain(value)
    return found


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(str(next(iter(item), "")) if isinstance(item, dict) else str(item) for item in value)
    return (value,) if isinstance(value, str) and value not in ("", "~", "null") else ()


def _matches(key: str, body: Mapping[str, Any], device: Device) -> bool:
    match = body.get("match")
    if not isinstance(match, dict):
        return key == device.name
    if not match or body.get("set-name") == device.name:  # an empty match: every device of the section, as NetworkManager writes it
        return True
    tests = []
    if match.get("name"):
        tests.append(fnmatch.fnmatchcase(device.name, str(match["name"])))
    if match.get("macaddress"):
        tests.append(bool(device.mac) and str(match["macaddress"]).lower() == str(device.mac).lower())
    if match.get("driver"):
        tests.append(bool(device.driver) and any(fnmatch.fnmatchcase(str(device.driver), d) for d in _strings(match["driver"])))
    return bool(tests) and all(tests)


def _read_netplan(path: str, text: str, devices: Sequence[Device], live: Sequence[Device]) -> ConfigFile:
    own = path == OWN_PATH or MARKER in text
    writer = None if own else KNOWN_WRITERS.get(path.rsplit("/", 1)[-1])
    try:
        data = parse_yaml(text) or {"network": {}}
        network = data.get("network") if isinstance(data, dict) else None
        if not isinstance(network, dict):
            raise ValueError("no `network:` map")
    except ValueError as exc:  # it claims every interface that it names
        bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        named = [d.name for d in devices if yaml is None or re.search(rf"(?<![\w-]){re.escape(d.name)}(?![\w-])", bare)]
        return ConfigFile(path, "netplan", own, writer, str(exc), tuple(Claim(name) for name in named))
    claims: list[Claim] = []
    others: list[str] = []
    for section, entries in network.items():
        for key, body in (entries or {}).items() if isinstance(entries, dict) else ():
            body = body if isinstance(body, dict) else {}
            members = _strings(body.get("interfaces")) if section in ("bonds", "bridges") else ()
            matched = [d for d in (*devices, *live) if section in ("ethernets", "nm-devices") and _matches(key, body, d)]
            by_name = [d for d in (*devices, *live) if d.name in members or (section in ("bonds", "bridges", "vlans") and d.name == key)]
            claimed = matched or by_name
            claims += [Claim(device.name, _strings(body.get("addresses"))) for device in claimed if device in devices]
            others += [device.name for device in claimed if device not in devices] or ([] if claimed else [str(key)])
    return ConfigFile(path, "netplan", own, writer, None, tuple(claims), tuple(dict.fromkeys(others)), str(network.get("renderer") or "") or None)


# --- NetworkManager and networkd -------------------------------------------------------------------------------------------------


def _read_ini(path: str, text: str, devices: Sequence[Device]) -> ConfigFile:
    """Read a keyfile of NetworkManager (802-3-ethernet is the old name of a section) or a .network file of networkd."""
    rows: dict[str, list[str]] = {}
    section = ""
    for line in map(str.strip, text.splitlines()):
        key, equals, value = line.partition("=")
        if line.startswith("["):
            section = line.strip("[]")
        elif equals and line[0] not in "#;":
            rows.setdefault(re.sub(r"\d+\Z", "", f"{section}.{key.strip()}").replace("802-3-", ""), []).append(value.strip())

    def values(*keys: str) -> list[str]:
        return [value for key in keys for value in rows.get(key, [])]

    names = re.split(r"[\s,;]+", " ".join(values("connection.interface-name", "match.interface-name", "Match.Name")))
    macs = " ".join(values("ethernet.mac-address", "Match.MACAddress", "Match.PermanentMACAddress")).lower().split()
    addresses = tuple(value.split(",")[0] for value in values("ipv4.address", "Network.Address", "Address.Address"))
    claims = [
        Claim(device.name, addresses)
        for device in devices
        if any(fnmatch.fnmatchcase(device.name, name) for name in names) or (device.mac or "none").lower() in macs
    ]
    return ConfigFile(path, "networkd" if path.endswith(".network") else "NetworkManager", MARKER in text, claims=tuple(claims))


# --- all files -------------------------------------------------------------------------------------------------------------------


def read_files(files: Mapping[str, str], devices: Sequence[Device], live: Sequence[Device] = ()) -> list[ConfigFile]:
    """Return every configuration file with its configuration of `devices`; netplan's in the order in which netplan merges them.

    `live`: the other interfaces of the node. A netplan file that matches one of them configures others too.
    """
    best: dict[str, str] = {}  # the same name in run/ hides etc/, which hides lib/
    for folder in ("lib/netplan/", "etc/netplan/", "run/netplan/"):
        best.update({path[len(folder) :]: path for path in files if path.startswith(folder)})
    found = [_read_netplan(path, files[path], devices, live) for _name, path in sorted(best.items())]
    return found + [_read_ini(path, files[path], devices) for path in sorted(files) if path.endswith((".nmconnection", ".network"))]


def foreign_files(read: Sequence[ConfigFile]) -> list[ConfigFile]:
    """Return the files of others that configure the given interfaces."""
    return [item for item in read if not item.own and item.claims]


def default_renderer(read: Sequence[ConfigFile]) -> str | None:
    """Return the renderer that the merged netplan files choose globally (the last one wins), None if none does."""
    return next((item.renderer for item in reversed(read) if item.renderer and not item.own), None)


def foreign_config(capture: Capture) -> list[dict[str, Any]]:
    """Return the files of others that configure a port of the card.

    If the card is powered down, these are the files that name the ports of a Spark.
    """
    devices = [Device(port.netdev, port.mac, port.driver) for port in Node(capture).ports]
    files = capture.config
    if not devices:
        devices = [Device(name) for name in SPARK_PORTS if any(name in text for text in files.values())]
    return [item.as_dict() for item in foreign_files(read_files(files, devices))]


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


def render_sysctl(values: Mapping[str, str]) -> str:
    """Return the sysctl drop-in."""
    return "\n".join([MARKER, *(f"-{key} = {value}" for key, value in values.items())]) + "\n"


def sysctl_values(interfaces: Sequence[str], ipv6: bool) -> dict[str, str]:
    """Return {net/ipv4/conf/<rail>/arp_ignore: "1", ...}; slashes, because an interface name may contain dots.

    Each rail answers ARP for its own address only, and has no IPv6, so that GIDs keep their index.
    """
    values: dict[str, str] = {}
    for name in interfaces:
        values[f"net/ipv4/conf/{name}/arp_ignore"] = "1"
        values[f"net/ipv4/conf/{name}/arp_announce"] = "2"
        if not ipv6:
            values[f"net/ipv6/conf/{name}/disable_ipv6"] = "1"
    return values


def overlaps(rails: Sequence[RailConfig], others: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a sentence for each network of a rail that overlaps one of another interface. `others`: {interface: its addresses with prefix}."""
    found: list[str] = []
    for rail in rails:
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
