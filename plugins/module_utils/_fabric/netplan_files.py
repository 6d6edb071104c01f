# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the network configuration files of a node, and which interfaces each of them configures. Pure.

Files are {path without leading slash: text}. netplan's are read with PyYAML, which netplan.io depends on; a file that cannot be read claims every
interface that it names.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

try:
    import yaml
except ImportError:
    yaml = None  # type: ignore[assignment]  # no file can be read then

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import CONFIG_PREFIXES, Capture
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import Node

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
    """The configuration of one interface in a file."""

    interface: str
    addresses: tuple[str, ...] = ()
    mtu: int | None = None


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
            "other_interfaces": list(self.others),
            "addresses": {claim.interface: list(claim.addresses) for claim in self.claims},
            "mtu": {claim.interface: claim.mtu for claim in self.claims if claim.mtu is not None},
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
            claims += [_claim(device.name, body) for device in claimed if device in devices]
            others += [device.name for device in claimed if device not in devices] or ([] if claimed else [str(key)])
    return ConfigFile(path, "netplan", own, writer, None, tuple(claims), tuple(dict.fromkeys(others)), str(network.get("renderer") or "") or None)


def _claim(name: str, body: Mapping[str, Any]) -> Claim:
    mtu = str(body.get("mtu", ""))
    return Claim(name, _strings(body.get("addresses")), int(mtu) if mtu.isdigit() else None)


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
    mtu = next(iter(values("ethernet.mtu", "Link.MTUBytes")), "")
    claims = [
        Claim(device.name, addresses, int(mtu) if mtu.isdigit() and mtu != "0" else None)
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


def config_texts(capture: Capture) -> dict[str, str]:
    """Return the network configuration files of a node."""
    return {path: text for path, text in capture.files.items() if path.startswith(CONFIG_PREFIXES)}


def foreign_config(capture: Capture) -> list[dict[str, Any]]:
    """Return the files of others that configure a port of the card.

    If the card is powered down, these are the files that name the ports of a Spark.
    """
    devices = [Device(port.netdev, port.mac, port.driver) for port in Node(capture).ports]
    files = config_texts(capture)
    if not devices:
        devices = [Device(name) for name in SPARK_PORTS if any(name in text for text in files.values())]
    return [item.as_dict() for item in foreign_files(read_files(files, devices))]
