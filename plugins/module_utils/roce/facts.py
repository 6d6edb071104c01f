# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a node's RoCE fabric is. Pure: a `Capture` in, facts and problems out; nothing is ever taken from a list position.

Units: speed in Mb/s (1000000 bit/s), MTU in bytes. `gather()` is the entry; its result is what the module `roce_info` documents.
Words: a *port* is one network device of an RDMA card; a *cage* is the socket for the cable (two ports, *twins*, share it);
a *rail* is a port that carries, or is to carry, fabric traffic.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils.roce.capture import Capture

Record = dict[str, Any]

ROCE_V1 = "IB/RoCE v1"
ROCE_V2 = "RoCE v2"
OVERHEAD = 96  # bytes of RoCE v2 headers the kernel takes off the netdev's MTU before it rounds down (iboe_get_mtu)
SPARK_PORT = re.compile(r"^en(?:P(?P<segment>[0-9a-fA-F]+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d)np(?P<cage>\d)$")
BARE_PORT = re.compile(r"^en(?:P(?P<segment>2))?p1s0f(?P<function>[01])$")  # kernels and udev versions that write no npN
SPARK_HCA = re.compile(r"^roce(?:P(?P<segment>[0-9a-fA-F]+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d)$")
PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
VIRTUAL = re.compile(r"^(?:lo$|docker|br|veth|virbr|vxlan|tailscale|wg|tun|tap|cni|flannel|cali|dummy|podman|nerdctl|zt|ib|vnet|lxc|incus)")
VIRTUAL_DRIVERS = ("virtio_net", "veth", "dummy", "e1000", "e1000e", "vmxnet3")
VIRTUAL_KINDS = ("veth", "bridge", "dummy", "tun", "wireguard", "vxlan", "macvlan", "ipvlan", "ifb", "sit", "ip6tnl", "gre")
STACKED_KINDS = ("bond", "bridge", "team")  # a device of these kinds carries the addresses of its members


# --- parsing -------------------------------------------------------------------------------------------------------------------


def json_records(text: str, key: str) -> list[Record]:
    """Return every JSON object that has `key`, whatever noise (stderr lines, a cut end) stands around the document."""
    decoder = json.JSONDecoder()
    found: list[Record] = []
    at = 0
    opener = re.compile(r"[\[{]")
    for _attempt in range(_MOST_ATTEMPTS):
        match = opener.search(text, at)
        if match is None:
            break
        try:
            value, end = decoder.raw_decode(text, match.start())
        except RecursionError:
            at = _OPENERS.match(text, match.start()).end()  # type: ignore[union-attr]  # it starts with one
            continue
        except ValueError:
            at = match.start() + 1
            continue
        at = end
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, dict) and isinstance(item.get(key), str) and item[key]]
    return found


def lists_nothing(text: str) -> bool:
    """Return whether a command answered properly that there is nothing: `[]`, `[ ]`, `[{}]`."""
    start = text.find("[")
    try:
        value, _end = json.JSONDecoder().raw_decode(text, start) if start >= 0 else (None, 0)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and all(item == {} for item in value)


_MOST_ATTEMPTS = 2000  # where a document could begin; a noisy capture has a few, a hostile one a million
_OPENERS = re.compile(r"[\[{\s]+")
_RDMA_LINE = re.compile(
    r"^[ \t]*(?:\d+(?:/\d+)?:[ \t]*)?(?:link[ \t]+)?(?P<hca>[^\s/]+)/(?P<port>\d+)[: ].*?\bstate[ \t]+(?P<state>\w+)"
    r"(?:.*?\bphysical_state[ \t]+(?P<phys>\w+))?(?:.*?\bnetdev[ \t]+(?P<netdev>\S+))?",
    re.M,
)


def parse_rdma_link(text: str) -> list[Record]:
    """Return [{hca, port, state, physical_state, netdev}] of `rdma -j link`, or of its plain text form."""
    rows = []
    for record in json_records(text, "ifname"):
        name, _slash, port = str(record["ifname"]).partition("/")
        rows.append(
            {
                "hca": name,
                "port": _integer(record.get("port")) or _integer(port) or 1,
                "state": record.get("state"),
                "physical_state": record.get("physical_state"),
                "netdev": record.get("netdev"),
            }
        )
    if rows:
        return rows
    for match in _RDMA_LINE.finditer(text):
        rows.append(
            {
                "hca": match.group("hca"),
                "port": int(match.group("port")),
                "state": match.group("state"),
                "physical_state": match.group("phys"),
                "netdev": match.group("netdev"),
            }
        )
    return rows


_IP_HEAD = re.compile(r"^\d+:\s+(?P<name>[^:\s@]+)(?:@(?P<link>\S+?))?:\s+<(?P<flags>[^>]*)>\s+mtu\s+(?P<mtu>\d+)(?:.*?master\s+(?P<master>\S+))?")
_IP_INET = re.compile(r"^\s+(?P<family>inet6?)\s+(?P<local>[0-9a-fA-F.:]+)(?:\s+peer\s+\S+?)?/(?P<prefix>\d+)(?P<rest>.*)$")


def parse_ip_addr(text: str) -> list[Record]:
    """Return `ip -j -d addr` as its list of objects; the plain text form is understood as well."""
    records = json_records(text, "ifname")
    if records:
        return records
    current: Record | None = None
    for line in text.splitlines():
        head = _IP_HEAD.match(line)
        if head is not None:
            current = {
                "ifname": head.group("name"),
                "flags": head.group("flags").split(","),
                "mtu": int(head.group("mtu")),
                "addr_info": [],
            }
            for item in ("link", "master"):
                if head.group(item):
                    current[item] = head.group(item)
            records.append(current)
            continue
        inet = _IP_INET.match(line)
        if inet is None or current is None:
            continue
        rest = inet.group("rest").split()
        current["addr_info"].append(
            {
                "family": inet.group("family"),
                "local": inet.group("local"),
                "prefixlen": int(inet.group("prefix")),
                "scope": rest[rest.index("scope") + 1] if "scope" in rest[:-1] else "global",
                "secondary": "secondary" in rest,
            }
        )
    return records


_ROUTE_LINE = re.compile(r"^(?P<dst>default|[0-9a-fA-F.:]+(?:/\d+)?)\s+(?=.*\bdev\b)(?P<rest>.*)$", re.M)


def parse_ip_route(text: str) -> list[Record]:
    """Return `ip -j route` as its list of objects; the plain text form is understood as well."""
    records = json_records(text, "dst")
    if records:
        return records
    for match in _ROUTE_LINE.finditer(text):
        words = match.group("rest").split()
        record: Record = {"dst": match.group("dst")}
        for name, key in (("via", "gateway"), ("dev", "dev"), ("src", "prefsrc"), ("metric", "metric")):
            if name in words[:-1]:
                record[key] = words[words.index(name) + 1]
        records.append(record)
    return records


def parse_proc_route(text: str) -> list[Record]:
    """Return /proc/net/route in the shape of `ip -j route`."""
    records = []
    for line in text.splitlines()[1:]:
        cells = line.split()
        if len(cells) < 8:
            continue
        try:
            dst, gateway, mask = (bytes.fromhex(cells[i])[::-1] for i in (1, 2, 7))
            record: Record = {"dev": cells[0], "metric": int(cells[6])}
            network = ipaddress.IPv4Network((int.from_bytes(dst, "big"), bin(int.from_bytes(mask, "big")).count("1")), strict=False)
            via = str(ipaddress.IPv4Address(gateway))
        except ValueError:
            continue
        record["dst"] = "default" if network.prefixlen == 0 else str(network)
        if any(gateway):
            record["gateway"] = via
        records.append(record)
    return records


_DEVINFO = re.compile(r"^\s*(hca_id|port|state|active_mtu|max_mtu|fw_ver|board_id):\s*(.+?)\s*$", re.M)


def parse_ibv_devinfo(text: str) -> dict[tuple[str, int], dict[str, str]]:
    """Return {(hca, port): {state, active_mtu, fw_ver, ...}} of `ibv_devinfo`."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    hca, port = "", 0
    device: dict[str, str] = {}
    for match in _DEVINFO.finditer(text):
        key, value = match.groups()
        if key == "hca_id":
            hca, device, port = value, {}, 0
        elif key == "port" and value.isdigit():
            port = int(value)
            found[(hca, port)] = dict(device)
        elif port:
            found[(hca, port)][key] = value.split(" (")[0]
        else:
            device[key] = value
    return found


_ETHTOOL_SPEED = re.compile(r"^\s*Speed:\s*(\d+)\s*Mb/s", re.M)
_ETHTOOL_LINK = re.compile(r"^\s*Link detected:\s*(yes|no)\s*(?:\((.*)\))?", re.M)


def parse_ethtool(text: str) -> Record:
    """Return {speed_mbps, carrier, reason} of `ethtool DEV`; keys that are not there are None."""
    speed = _ETHTOOL_SPEED.search(text)
    link = _ETHTOOL_LINK.search(text)
    return {
        "speed_mbps": int(speed.group(1)) if speed else None,
        "carrier": None if link is None else link.group(1) == "yes",
        "reason": link.group(2) if link else None,
    }


def _integer(value: Any) -> int | None:
    try:
        return int(str(value).strip())
    except ValueError:
        return None


def _is_number(text: str) -> bool:
    """Return whether a file's name is a number (isdigit alone also takes digits that int() refuses)."""
    return text.isascii() and text.isdigit()


def _records(value: Any) -> list[Record]:
    """Return the objects of a JSON array, whatever else stands there."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    """Return the strings of a JSON array, whatever else stands there."""
    return [item for item in value if isinstance(item, str) and item] if isinstance(value, list) else []


def _word(value: Any) -> str | None:
    """Return a JSON string that is not empty."""
    return value if isinstance(value, str) and value else None


def _address(text: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(str(text).strip())
    except ValueError:
        return None


def rdma_mtu(netdev_mtu: int) -> int:
    """Return the RDMA MTU (bytes) the kernel derives from a netdev's MTU: 9000 -> 4096, 1500 -> 1024."""
    return next((size for size in (4096, 2048, 1024, 512, 256) if netdev_mtu - OVERHEAD >= size), 0)


# --- the data ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gid:
    """One entry of an HCA's GID table. `ipv4` is set for ::ffff:a.b.c.d."""

    index: int
    gid: str
    type: str | None
    netdev: str | None
    ipv4: str | None


@dataclass(frozen=True)
class Address:
    """One address of a network device."""

    family: str
    local: str
    prefix: int
    scope: str
    secondary: bool

    @property
    def cidr(self) -> str:
        """Return address/prefix."""
        return f"{self.local}/{self.prefix}"


@dataclass(frozen=True)
class Port:
    """One network device of an RDMA card, with its HCA where there is one."""

    netdev: str
    hca: str | None = None
    hca_port: int = 1
    cage: int | None = None
    pci: str | None = None
    segment: int | None = None
    state: str | None = None
    phys_state: str | None = None
    carrier: bool | None = None
    speed_mbps: int | None = None
    mtu: int | None = None
    active_mtu: int | None = None
    mac: str | None = None
    driver: str | None = None
    mellanox: bool | None = None
    link_layer: str | None = None
    soft: bool = False
    master: str | None = None
    lower: str | None = None
    addresses: tuple[Address, ...] = ()
    gids: tuple[Gid, ...] = ()

    @property
    def linked(self) -> bool:
        """Return whether the port is up: the RDMA state decides, the carrier where there is no RDMA device."""
        if self.state is not None:
            return self.state == "ACTIVE"
        return bool(self.carrier)

    @property
    def ethernet(self) -> bool:
        """Return whether the port can carry RoCE: InfiniBand mode cannot."""
        return self.link_layer is None or self.link_layer.lower() != "infiniband"

    @property
    def hca_spec(self) -> str:
        """Return the HCA as NCCL_IB_HCA names it: with its port where that is not 1."""
        return str(self.hca) if self.hca_port == 1 else f"{self.hca}:{self.hca_port}"

    @property
    def ipv4(self) -> list[Address]:
        """Return the IPv4 addresses."""
        return [a for a in self.addresses if a.family == "inet"]

    def sort_key(self) -> tuple[int, int, str, str]:
        """Order: cage, then PCIe segment, then PCI address, then name."""
        cage = 99 if self.cage is None else self.cage
        return (cage, 0xFFFF if self.segment is None else self.segment, self.pci or "", self.netdev)


@dataclass(frozen=True)
class Problem:
    """Something wrong: a stable id, what was found, and what to do."""

    id: str
    message: str
    remedy: str
    interface: str | None = None


@dataclass(frozen=True)
class Wanted:
    """What the user wants of rail number `index`: an interface, an address, a network; any of them may be open."""

    index: int
    interface: str | None = None
    address: str | None = None
    prefix: int | None = None
    network: str | None = None


@dataclass(frozen=True)
class Rail:
    """A port in its role as a rail, with the address that counts and the GID index that belongs to it."""

    port: Port
    index: int
    ipv4: str | None = None
    prefix: int | None = None
    gid_index: int | None = None
    candidates: tuple[str, ...] = ()
    matches: tuple[int, ...] = ()
    inferred: bool = False


# --- ports ---------------------------------------------------------------------------------------------------------------------


def _pci_of(capture: Capture, base: str) -> str | None:
    """Return the PCI address of a class device: device link, uevent, or the path the class link itself points to."""
    link = capture.links.get(f"{base}/device")
    match = PCI_ADDRESS.search(link.rsplit("/", 1)[-1]) if link else None
    if match is None:
        uevent = capture.text(f"{base}/device/uevent") or ""
        match = re.search(r"^PCI_SLOT_NAME=" + PCI_ADDRESS.pattern, uevent, re.M)
    if match is None:
        parts = list(PCI_ADDRESS.finditer(capture.links.get(base, "")))
        match = parts[-1] if parts else None
    if match is None:
        return None
    return "{}:{}:{}.{}".format(*(group.lower() for group in match.groups()))


def _segment(pci: str | None, *names: str | None) -> int | None:
    """Return the PCIe segment (domain) of a PCI address, else the one in a Spark's names (enP2p1s0f0np0 -> 2)."""
    if pci is not None:
        return int(pci.split(":")[0], 16)
    for name in names:
        match = (SPARK_PORT.match(name) or BARE_PORT.match(name) or SPARK_HCA.match(name)) if name else None
        if match is not None:
            return int(match.group("segment") or "0", 16)
    return None


def _cage(capture: Capture, names: Sequence[str], pci: str | None, hca: str | None) -> int | None:
    """Return the cage: phys_port_name (p0, p1), else npN of a name, else fN of a Spark's name, else the PCI function, else fN of the HCA."""
    match = re.match(r"^p(\d+)$", capture.text(f"sys/class/net/{names[0]}/phys_port_name") or "")
    match = match or next(filter(None, (re.search(r"f\d+np(\d+)$", name) for name in names)), None)
    match = match or next(filter(None, (re.match(r"^en(?:P2)?p1s0f([01])$", name) for name in names)), None)
    if match is None and pci is not None:
        match = re.search(r"\.([0-7])$", pci)
    if match is None and hca is not None:
        match = re.search(r"s\d+f(\d+)$", hca)
    return int(match.group(1)) if match else None


def _gid_text(text: str) -> tuple[str, str | None, bool]:
    """Return (canonical GID, mapped IPv4, is zero) of one gids/ entry; an unparsable one is kept as it stands."""
    value = _address(text)
    if not isinstance(value, ipaddress.IPv6Address):
        return text, None, False
    mapped = value.ipv4_mapped
    shown = f"::ffff:{mapped}" if mapped is not None else str(value)
    return shown, str(mapped) if mapped is not None else None, int(value) == 0


def _gid_type(text: str | None) -> str | None:
    """Return the type as the kernel writes it, `RoCE v2` or `IB/RoCE v1`; another text stays as it is."""
    plain = re.sub(r"[\s_-]+", "", text or "").lower()
    return {"rocev2": ROCE_V2, "ib/rocev1": ROCE_V1, "rocev1": ROCE_V1}.get(plain, text)


def _gids(capture: Capture, hca: str, port: int) -> list[Gid]:
    """Return the used entries of a GID table in the order of their index."""
    base = f"sys/class/infiniband/{hca}/ports/{port}"
    rows = []
    for name in capture.dirs.get(f"{base}/gids", []):
        text = capture.text(f"{base}/gids/{name}") if _is_number(name) else None
        if text is None:
            continue
        gid, ipv4, zero = _gid_text(text)
        if zero:
            continue
        rows.append(
            Gid(
                int(name),
                gid,
                _gid_type(capture.text(f"{base}/gid_attrs/types/{name}")),
                capture.text(f"{base}/gid_attrs/ndevs/{name}"),
                ipv4,
            )
        )
    return sorted(rows, key=lambda row: row.index)


def _link_local_of(mac: str | None) -> str | None:
    """Return the link-local address that a MAC makes (EUI-64): 02:00:00:00:00:02 -> fe80::ff:fe00:2."""
    parts = (mac or "").split(":")
    if len(parts) != 6 or not all(re.fullmatch(r"[0-9a-fA-F]{2}", part) for part in parts):
        return None
    octets = [int(part, 16) for part in parts]
    host = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]])
    return str(ipaddress.IPv6Address(b"\xfe\x80" + bytes(6) + host))


_STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
_PHYS_STATES = {1: "SLEEP", 2: "POLLING", 3: "DISABLED", 4: "PORTCONFIGURATIONTRAINING", 5: "LINKUP", 6: "LINKERRORRECOVERY", 7: "PHYTEST"}


def _numbered(text: str | None, names: Mapping[int, str] = _STATES) -> str | None:
    """`4: ACTIVE` -> ACTIVE, `5: LinkUp` -> LINKUP, `4` -> ACTIVE."""
    if text is None:
        return None
    number, _colon, word = text.partition(":")
    word = word.strip()
    if not word and _is_number(number.strip()):
        return names.get(int(number))
    return (word or number).strip().upper() or None


class Node:
    """All that a capture says about devices, addresses and routes, joined by name."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        commands = capture.commands
        self.links: dict[str, Record] = {}
        for record in parse_ip_addr(commands.get("ip-addr", "")):
            self.links.setdefault(str(record["ifname"]).split("@", maxsplit=1)[0], record)
        self.have_addresses = any(_records(record.get("addr_info")) for record in self.links.values())
        self.altnames = {name: netdev for netdev, record in self.links.items() for name in self._altnames(record)}
        self.routes = parse_ip_route(commands.get("ip-route", ""))
        self.routes_from = "ip route"
        if not self.routes and capture.text("proc/net/route"):
            self.routes = parse_proc_route(capture.files["proc/net/route"])
            self.routes_from = "/proc/net/route"
        self.rdma = {(row["hca"], row["port"]): row for row in parse_rdma_link(commands.get("rdma-link", ""))}
        self.devinfo = parse_ibv_devinfo(commands.get("ibv_devinfo", ""))
        self.netdevs = self._netdevs()
        self.hca_of: dict[str, tuple[str, int]] = {}
        self.orphans: list[str] = []
        self.guessed: list[tuple[str, str]] = []
        self._join()
        self.ports = self._ports()

    @staticmethod
    def _altnames(record: Record) -> list[str]:
        return _strings(record.get("altnames"))

    def real_name(self, name: str) -> str:
        """Return a device's name for its name or one of its alternative names."""
        return name if name in self.netdevs else self.altnames.get(name, name)

    def names(self, netdev: str) -> list[str]:
        """Return a device's name and its alternative names: udev's renaming leaves the old one there."""
        return [netdev, *(name for name, owner in self.altnames.items() if owner == netdev)]

    def _netdevs(self) -> list[str]:
        """Return the names of all network devices, of sysfs and of `ip`."""
        base = "sys/class/net"
        names = [n for n in self.capture.dirs.get(base, []) if self.capture.dirs.get(f"{base}/{n}") or f"{base}/{n}" in self.capture.links]
        return sorted(set(names) | set(self.links))

    def hcas(self) -> list[tuple[str, int]]:
        """Return every (hca, port), of sysfs, rdma and ibv_devinfo, sorted."""
        found: set[tuple[str, int]] = set(self.rdma) | set(self.devinfo)
        for hca in self.capture.dirs.get("sys/class/infiniband", []):
            ports = [int(p) for p in self.capture.dirs.get(f"sys/class/infiniband/{hca}/ports", []) if _is_number(p)]
            found |= {(hca, port) for port in ports or [1]}
        return sorted(found)

    def _netdev_of(self, hca: str, port: int) -> str | None:
        """Return the netdev of an HCA's port: the first source whose device is there, else the first source that knows a name."""
        told = [self.real_name(name) for name in self._told_netdevs(hca, port)]
        for name in told:
            if name in self.netdevs:
                return name
        if told:
            return told[0]
        match = SPARK_HCA.match(hca)
        if match is not None:
            bare = f"en{hca[len('roce') :]}"
            stem = next((n for n in (f"{bare}np{match.group('function')}", bare) if n in self.netdevs), None)
            if stem is not None or not self.netdevs:
                self.guessed.append((hca, stem or f"{bare}np{match.group('function')}"))
                return self.guessed[-1][1]
        return None

    def _told_netdevs(self, hca: str, port: int) -> list[str]:
        """Return what the sources say about an HCA's netdev, the best source first."""
        capture = self.capture
        told: list[str] = []
        row = self.rdma.get((hca, port))
        if row is not None and _word(row.get("netdev")):
            told.append(str(row["netdev"]).split("@", maxsplit=1)[0])
        base = f"sys/class/infiniband/{hca}"
        here = [n for n in capture.dirs.get(f"{base}/device/net", []) if n]
        parent = capture.text(f"{base}/parent")
        if parent is not None:
            told.append(parent)
        at = f"{base}/ports/{port}/gid_attrs/ndevs/"
        attributes = sorted((int(path[len(at) :]), path) for path in capture.files if path.startswith(at) and _is_number(path[len(at) :]))
        first = [text for text in (capture.text(path) for _index, path in attributes) if text]
        told += [name for name in first if name in here] or [name for name in first if "." not in name] or first
        if len(here) == 1:
            told += here
        pci = _pci_of(capture, base)
        if pci is not None:
            twins = [n for n in self.netdevs if _pci_of(capture, f"sys/class/net/{n}") == pci]
            told += twins if len(twins) == 1 else []
        told += [n for n in self.netdevs if hca in capture.dirs.get(f"sys/class/net/{n}/device/infiniband", [])]
        return told or self._netdevs_by_gid(hca, port)

    def _netdevs_by_gid(self, hca: str, port: int) -> list[str]:
        """Return the one device that an HCA's GIDs are made from: its link-local GID from the MAC, the others from the addresses."""
        gids = _gids(self.capture, hca, port)
        base = [n for n in self.netdevs if self.lower(n) is None and self.master(n) is None]
        by_mac = {n for n in base for gid in gids if gid.gid == _link_local_of(self.mac(n))}
        if len(by_mac) == 1:
            return list(by_mac)
        holders = {self.holder(gid.ipv4) for gid in gids if gid.ipv4 is not None} - {None}
        by_address = {self.lower(str(name)) or str(name) for name in holders}
        return list(by_address) if len(by_address) == 1 else []

    def mac(self, netdev: str) -> str | None:
        """Return the hardware address of a device."""
        return _word(self.links.get(netdev, {}).get("address")) or self.capture.text(f"sys/class/net/{netdev}/address")

    def _join(self) -> None:
        for hca, port in sorted(self.hcas(), key=lambda item: (self.soft(item[0]), item)):
            netdev = self._netdev_of(hca, port)
            if netdev is None:
                self.orphans.append(hca)
            else:
                self.hca_of.setdefault(netdev, (hca, port))

    def knows_addresses(self, netdev: str) -> bool:
        """Return whether `ip addr` was read and speaks of a device; if not, other sources stand in."""
        return self.have_addresses and netdev in self.links

    def addresses(self, netdev: str) -> tuple[Address, ...]:
        """Return the addresses that `ip addr` shows on a device; where it says nothing, those that its connected routes name."""
        found = []
        for item in _records(self.links.get(netdev, {}).get("addr_info")):
            local = _address(item.get("local"))
            if local is None:
                continue
            prefix = _integer(item.get("prefixlen"))
            valid = prefix is not None and 0 <= prefix <= local.max_prefixlen
            found.append(
                Address(
                    "inet" if local.version == 4 else "inet6",
                    str(item["local"]),
                    prefix if valid and prefix is not None else local.max_prefixlen,
                    _word(item.get("scope")) or "global",
                    bool(item.get("secondary")),
                )
            )
        if found or self.knows_addresses(netdev):
            return tuple(found)
        return tuple(self._routed_addresses(netdev))

    def _routed_addresses(self, netdev: str) -> list[Address]:
        """Return the addresses that a device's connected routes name as their source."""
        found = []
        for route in self.routes:
            local = _address(route.get("prefsrc"))
            if route.get("dev") != netdev or local is None or route.get("gateway"):
                continue
            try:
                net = ipaddress.ip_network(str(route.get("dst")))
            except ValueError:
                continue
            if local in net:
                found.append(Address("inet" if local.version == 4 else "inet6", str(local), net.prefixlen, "link" if local.is_link_local else "global", False))
        return list(dict.fromkeys(found))

    def master(self, netdev: str) -> str | None:
        """Return the bond or bridge that a device is a member of; a VRF leaves a device its addresses and does not count."""
        value = _word(self.links.get(netdev, {}).get("master"))
        if value is None:
            link = self.capture.links.get(f"sys/class/net/{netdev}/master")
            value = link.rsplit("/", 1)[-1] if link else None
        return None if value is None or self.kind(value) == "vrf" else value

    def lower(self, netdev: str) -> str | None:
        """Return the device a VLAN (or macvlan) sits on."""
        record = self.links.get(netdev, {})
        kind = self.kind(netdev)
        if _word(record.get("link")) and kind in ("vlan", "macvlan", "ipvlan"):
            return str(record["link"])
        if kind in (*STACKED_KINDS, "vrf") or {"bonding", "bridge"} & set(self.capture.dirs.get(f"sys/class/net/{netdev}", [])):
            return None
        lowers = [n[len("lower_") :] for n in self.capture.dirs.get(f"sys/class/net/{netdev}", []) if n.startswith("lower_")]
        if len(lowers) == 1:
            return lowers[0]
        stem, dot, tag = netdev.rpartition(".")
        return stem if dot and tag.isdigit() and stem in self.netdevs else None

    def kind(self, netdev: str) -> str | None:
        """Return the kind of a virtual device (veth, bridge, vlan, bond, ...)."""
        info = self.links.get(netdev, {}).get("linkinfo")
        return _word(info.get("info_kind")) if isinstance(info, dict) else None

    def port(self, netdev: str) -> Port:
        """Return everything known about one device."""
        capture = self.capture
        base = f"sys/class/net/{netdev}"
        hca_port = self.hca_of.get(netdev)
        lower = self.lower(netdev)
        if hca_port is None and lower is not None:
            hca_port = self.hca_of.get(lower)
        hca, number = hca_port if hca_port is not None else (None, 1)
        at = f"sys/class/infiniband/{hca}/ports/{number}"
        pci = _pci_of(capture, base) or (_pci_of(capture, f"sys/class/infiniband/{hca}") if hca else None)
        if pci is None and lower is not None:
            pci = _pci_of(capture, f"sys/class/net/{lower}")
        record = self.links.get(netdev, {})
        flags = _strings(record.get("flags")) or None
        row = self.rdma.get((hca, number), {}) if hca else {}
        info = self.devinfo.get((hca, number), {}) if hca else {}
        ethtool = parse_ethtool(capture.commands.get(f"ethtool-{netdev}", ""))
        carrier = {"1": True, "0": False}.get(capture.text(f"{base}/carrier") or "")
        if carrier is None and flags is not None:
            carrier = "LOWER_UP" in flags
        if carrier is None:  # reading carrier fails with EINVAL while the device is not up
            carrier = {"up": True, "down": False, "lowerlayerdown": False, "notpresent": False}.get(capture.text(f"{base}/operstate") or "")
        if carrier is None:
            carrier = ethtool["carrier"]
        state = _numbered(capture.text(f"{at}/state")) if hca else None
        if state is None and row.get("state"):
            state = str(row["state"]).upper()
        if state is None and info.get("state"):
            state = info["state"].replace("PORT_", "").upper()
        phys = _numbered(capture.text(f"{at}/phys_state"), _PHYS_STATES) if hca else None
        if phys is None and row.get("physical_state"):
            phys = str(row["physical_state"]).upper().replace("_", "")
        speed = _integer(capture.text(f"{base}/speed"))
        if speed is None or speed <= 0 or speed >= 0xFFFFFFFF:
            speed = ethtool["speed_mbps"]
        driver_link = capture.links.get(f"{base}/device/driver")
        driver = driver_link.rsplit("/", 1)[-1] if driver_link else None
        if driver is None:
            match = re.search(r"^DRIVER=(\S+)", capture.text(f"{base}/device/uevent") or "", re.M)
            driver = match.group(1) if match else None
        vendor = capture.text(f"{base}/device/vendor")
        mellanox: bool | None = None
        if vendor is not None or driver is not None:
            mellanox = vendor == "0x15b3" or driver == "mlx5_core"
        elif (hca and self.soft(hca)) or (lower is None and self.kind(netdev) in VIRTUAL_KINDS):
            mellanox = False
        if speed is None and mellanox is not False and hca and (state == "ACTIVE" or state is None):
            match = re.match(r"([\d.]+) Gb/sec", capture.text(f"{at}/rate") or "")
            if match is not None and float(match.group(1)) >= 10:  # soft-RoCE says 2.5 or 10 whatever it sits on
                speed = int(float(match.group(1)) * 1000) if mellanox or not self.soft(hca) else None
        mtu = _integer(record.get("mtu")) or _integer(capture.text(f"{base}/mtu"))
        active = _integer(info.get("active_mtu"))
        return Port(
            netdev=netdev,
            hca=hca,
            hca_port=number,
            cage=_cage(capture, self.names(lower or netdev), pci if mellanox is not False else None, hca),
            pci=pci,
            segment=_segment(pci if mellanox is not False else None, *self.names(netdev), lower, hca),
            state=state,
            phys_state=phys,
            carrier=carrier,
            speed_mbps=speed,
            mtu=mtu,
            active_mtu=active if active else (rdma_mtu(mtu) if mtu and hca else None),
            mac=self.mac(netdev),
            driver=driver,
            mellanox=mellanox,
            link_layer=capture.text(f"{at}/link_layer") if hca else None,
            soft=bool(hca) and self.soft(str(hca)),
            master=self.master(netdev),
            lower=lower,
            addresses=self.addresses(netdev),
            gids=tuple(_gids(capture, hca, number)) if hca else (),
        )

    def soft(self, hca: str) -> bool:
        """Return whether an HCA is soft-RoCE: it has a parent device, or no PCI device and a GID table without any RoCE v1."""
        base = f"sys/class/infiniband/{hca}"
        if f"{base}/parent" in self.capture.files or re.match(r"^(?:rxe|siw)[\d_]", hca):
            return True
        if _pci_of(self.capture, base) is not None or "/virtual/" not in self.capture.links.get(base, "/virtual/"):
            return False
        at = f"{base}/ports/1/gid_attrs/types/"
        types = {_gid_type(self.capture.text(path)) for path in self.capture.files if path.startswith(at)}
        return types - {None} == {ROCE_V2}

    def _looks_like_port(self, netdev: str) -> bool:
        """A card's device without (visible) HCA: NVIDIA's vendor id, or a Spark's name."""
        base = f"sys/class/net/{netdev}"
        vendor = self.capture.text(f"{base}/device/vendor")
        link = self.capture.links.get(f"{base}/device/driver", "")
        if vendor == "0x15b3" or link.endswith("mlx5_core"):
            return True
        names = self.names(netdev)
        if any(SPARK_PORT.match(name) for name in names):
            return True
        return vendor is None and not link and self.kind(netdev) is None and any(BARE_PORT.match(name) for name in names)

    def _ports(self) -> list[Port]:
        names = set(self.hca_of) | {n for n in self.netdevs if self._looks_like_port(n)}
        return sorted((self.port(name) for name in names), key=Port.sort_key)

    # management

    def default_routes(self) -> list[Record]:
        """Return [{dev, gateway, metric}] of the IPv4 and IPv6 default routes, lowest metric first."""
        found = []
        for route in self.routes:
            if str(route.get("dst")) not in ("default", "0.0.0.0/0", "::/0"):
                continue
            for hop in _records(route.get("nexthops")) or [route]:
                dev = _word(hop.get("dev"))
                if dev is None or dev == "lo":
                    continue
                via = next(iter(_records([hop.get("via")])), {})  # an IPv4 route over an IPv6 gateway
                gateway = _word(hop.get("gateway")) or _word(via.get("host")) or _word(route.get("gateway"))
                flags = [*_strings(route.get("flags")), *_strings(hop.get("flags"))]
                dead = bool({"dead", "linkdown"} & set(flags))
                found.append({"dev": dev, "gateway": gateway, "metric": _integer(route.get("metric")) or 0, "src": route.get("prefsrc"), "dead": dead})
        return sorted(found, key=lambda item: (bool(item["dead"]), int(item["metric"])))

    def holder(self, address: str) -> str | None:
        """Return the device that carries an address."""
        wanted = _address(address)
        if isinstance(wanted, ipaddress.IPv6Address) and wanted.ipv4_mapped is not None:
            wanted = wanted.ipv4_mapped
        if wanted is None:
            return None
        for netdev in self.netdevs:
            if any(_address(a.local) == wanted for a in self.addresses(netdev)):
                return netdev
        return None

    def closure(self, netdev: str) -> set[str]:
        """Return a device with everything below it: bond members, the VLAN's parent."""
        found: set[str] = set()
        todo = [netdev]
        while todo:
            name = todo.pop()
            if name in found:
                continue
            found.add(name)
            todo += [other for other in self.netdevs if self.master(other) == name]
            lower = self.lower(name)
            if lower is not None:
                todo.append(lower)
        return found


# --- management ----------------------------------------------------------------------------------------------------------------


def ssh_server_address(connection: str | None) -> str | None:
    """Return this node's own address of `SSH_CONNECTION` (client, port, server, port)."""
    words = (connection or "").split()
    return words[2].split("%")[0] if len(words) == 4 and _address(words[2].split("%")[0]) is not None else None


def management(node: Node, ssh_connection: str | None) -> Record:
    """Return the management path: the device of the SSH session, else of the default route with the lowest metric.

    Without both it is the one addressed device that is neither a port of the card nor virtual, if there is just one; nothing hangs on
    that guess, so it protects nothing. `protected` lists every device that must not be touched: both, with bond members and the parents of VLANs.
    """
    defaults = node.default_routes()
    server = ssh_server_address(ssh_connection)
    by_ssh = node.holder(server) if server and not _is_loopback(server) else None
    alone = _only_other_interface(node) if not by_ssh and not defaults else None
    interface = by_ssh or (defaults[0]["dev"] if defaults else alone)
    protected: set[str] = set()
    for name in {item["dev"] for item in defaults} | ({by_ssh} if by_ssh else set()):
        protected |= node.closure(name)
    gateway = next((item["gateway"] for item in defaults if item["dev"] == interface), None)
    address, prefix = None, None
    if interface is not None:
        own = [a for a in node.addresses(interface) if not (a.family == "inet6" and a.scope == "link")]
        first = [a for a in own if by_ssh and _address(a.local) == _address(server)] or [a for a in own if a.family == "inet"] or own
        if first:
            address, prefix = first[0].local, first[0].prefix
    return {
        "interface": interface,
        "address": address,
        "prefix": prefix,
        "gateway": gateway,
        "reason": "ssh session" if by_ssh else ("default route" if defaults else ("only addressed interface" if alone else None)),
        "default_route_interfaces": sorted({item["dev"] for item in defaults}),
        "protected": sorted(protected),
    }


def _only_other_interface(node: Node) -> str | None:
    """Return the one device that is no port and not virtual and has an address; wired goes before Wi-Fi."""
    ports = {name for port in node.ports for name in (port.netdev, port.lower, port.master) if name is not None}
    found = []
    for name in node.netdevs:
        if name in ports or VIRTUAL.match(name) or node.kind(name) in VIRTUAL_KINDS or node.lower(name) in ports:
            continue
        if any(a.scope == "global" and not _is_loopback(a.local) for a in node.addresses(name)):
            found.append(name)
    wired = [name for name in found if not name.startswith("wl")]
    best = wired or found
    return best[0] if len(best) == 1 else None


def _is_loopback(text: str) -> bool:
    value = _address(text)
    return value is not None and value.is_loopback


# --- rails ---------------------------------------------------------------------------------------------------------------------


def wanted_rails(addresses: Sequence[str], cidrs: Sequence[str], interfaces: Sequence[str]) -> tuple[list[Wanted], list[Problem]]:
    """Turn the user's lists (one entry per rail) into wishes; an entry that is no address or network becomes a problem."""
    wishes: list[Wanted] = []
    problems: list[Problem] = []
    for index in range(max(len(addresses), len(cidrs), len(interfaces))):
        address, prefix, network = None, None, None
        if index < len(cidrs):
            try:
                net = ipaddress.ip_network(str(cidrs[index]).strip(), strict=False)
                network, prefix = str(net), net.prefixlen
            except ValueError:
                problems.append(
                    Problem(
                        "bad_input",
                        f"fabric_cidrs[{index}] is {cidrs[index]!r}, which is no network.",
                        "Write it like 192.168.100.0/24.",
                    )
                )
        if index < len(addresses):
            try:
                face = ipaddress.ip_interface(str(addresses[index]).strip())
                address = str(face.ip)
                if "/" in str(addresses[index]):
                    prefix, network = face.network.prefixlen, str(face.network)
            except ValueError:
                problems.append(
                    Problem(
                        "bad_input",
                        f"fabric_addresses[{index}] is {addresses[index]!r}, which is no IP address.",
                        "Write it like 192.168.100.10 or 192.168.100.10/24.",
                    )
                )
        interface = (str(interfaces[index]).strip() or None) if index < len(interfaces) else None
        if interface is not None and interface in [wish.interface for wish in wishes]:
            problems.append(Problem("bad_input", f"interfaces[{index}] names {interface} a second time.", "Name each rail's interface once."))
        wishes.append(Wanted(index, interface, address, prefix, network))
    return wishes, problems


def _carriers(node: Node, ports: Sequence[Port]) -> list[Port]:
    """Return the ports plus what sits on them: VLANs, a bond or a bridge, and a VLAN on that."""
    found = {port.netdev: port for port in ports}
    for _level in range(3):
        added = []
        for name in node.netdevs:
            if name in found or name == "lo":
                continue
            lower = found.get(node.lower(name) or "")
            members = [port for port in found.values() if port.master == name]
            if lower is not None:
                own = node.port(name)
                added.append(own if own.hca else _on_top(own, lower))
            elif members:
                added.append(node.port(name) if node.hca_of.get(name) else _of_bond(node, name, members))
        if not added:
            break
        found.update((port.netdev, port) for port in added)
    return list(found.values())


def _on_top(own: Port, base: Port) -> Port:
    """Return a device on top of a port as a port: its own addresses, the HCA and the place of the port below."""
    return replace(
        own,
        hca=base.hca,
        hca_port=base.hca_port,
        cage=base.cage,
        segment=base.segment,
        pci=base.pci,
        gids=base.gids,
        state=own.state or base.state,
        phys_state=base.phys_state,
        active_mtu=base.active_mtu,
        speed_mbps=own.speed_mbps or base.speed_mbps,
        mellanox=base.mellanox,
        link_layer=base.link_layer,
        soft=base.soft,
    )


def _of_bond(node: Node, name: str, members: Sequence[Port]) -> Port:
    """Return a bond or bridge as a port: its own addresses, HCA and GIDs of the member that has its GIDs, else of the first one with link."""
    own = node.port(name)
    mine = {a.local for a in own.ipv4}

    def rank(port: Port) -> tuple[bool, bool, tuple[int, int, str, str]]:
        return (not any(gid.ipv4 in mine for gid in port.gids), not port.linked, port.sort_key())

    return _on_top(own, min(members, key=rank))


def _usable_ipv4(port: Port) -> list[Address]:
    return [a for a in port.ipv4 if not _address(a.local).is_loopback]  # type: ignore[union-attr]  # Address is parsed before


def _is_link_local(address: str) -> bool:
    value = _address(address)
    return value is not None and value.is_link_local


def assign(node: Node, wishes: Sequence[Wanted], protected: Sequence[str], follow_link: bool = False) -> list[tuple[Wanted, Port | None]]:
    """Give each wish a port: the named one, the one that has the address, one inside the network, then free ports of the best cage.

    The best cage is the one that already carries a rail, else the one with more linked ports, else the lower number.
    A protected device (default route, SSH session) is taken only if it is named or already has exactly the wanted address.
    With `follow_link`, addresses on a cage without any link do not count while another cage has one (the cable was moved).
    """
    alive = {port.cage for port in node.ports if port.linked and port.netdev not in protected}
    dark = {port.netdev for port in node.ports if follow_link and alive and port.cage not in alive and not port.linked}
    pool = _carriers(node, [port for port in node.ports if port.ethernet])
    by_name = {port.netdev: port for port in pool}
    taken: dict[int, Port] = {}

    def free() -> list[Port]:
        used = {port.netdev for port in taken.values()}
        return [port for port in pool if port.netdev not in used]

    for wish in wishes:
        if wish.interface is not None:
            name = node.real_name(wish.interface)
            taken[wish.index] = by_name.get(name) or node.port(name)
    for wish in wishes:
        if wish.index in taken or wish.address is None:
            continue
        match = [p for p in free() if p.netdev not in dark and any(_address(a.local) == _address(wish.address) for a in p.addresses)]
        if not match:
            holder = node.holder(wish.address)
            match = [node.port(holder)] if holder is not None and holder != "lo" and holder not in dark else []
        if match:
            taken[wish.index] = match[0]
    for wish in wishes:
        if wish.index in taken or wish.network is None:
            continue
        net = ipaddress.ip_network(wish.network)
        match = [p for p in free() if p.netdev not in protected and p.netdev not in dark and any(_address(a.local) in net for a in p.addresses)]
        if not match and not node.ports:
            names = [n for n in node.netdevs if n not in protected and any(_address(a.local) in net for a in node.addresses(n))]
            match = [node.port(names[0])] if len(names) == 1 else []
        if match:
            taken[wish.index] = match[0]
    carrying = {port.cage for port in taken.values()}

    def rank(port: Port) -> tuple[int, int, tuple[int, int, str, str]]:
        linked = sum(1 for p in node.ports if p.cage == port.cage and p.linked)
        return (0 if port.cage in carrying else 1, -linked, port.sort_key())

    for wish in wishes:
        if wish.index in taken:
            continue
        rest = [p for p in free() if p.netdev not in protected and p in node.ports and p.master is None]
        if rest:
            taken[wish.index] = min(rest, key=rank)
            carrying = {port.cage for port in taken.values()}
    return [(wish, taken.get(wish.index)) for wish in wishes]


def derive(node: Node, protected: Sequence[str]) -> list[Port]:
    """Return the rails of a node about which nothing is wanted: linked or addressed ports, and the twin of such a port.

    A bond or bridge stands for its members unless they have addresses of their own. An RDMA device on the NIC of the default route is a
    rail only on a machine that has no other.
    """
    pool = _carriers(node, [port for port in node.ports if port.ethernet])
    names = {port.netdev for port in pool}
    members = {p.netdev for p in pool if p.master in names and not _usable_ipv4(p)}
    masters = {p.master for p in pool if p.master is not None and p.netdev not in members}
    vlan_parents = {p.lower for p in pool if p.lower is not None and _usable_ipv4(p)}
    pool = [p for p in pool if p.netdev not in members and (p.netdev not in masters or _usable_ipv4(p))]
    active = []
    for port in pool:
        addressed = bool(_usable_ipv4(port))
        if (port.lower is not None or port.netdev in vlan_parents) and not addressed:
            continue
        if port.linked or addressed:
            active.append(port)
    fabric = [p for p in active if p.netdev not in protected or p.mellanox or _spark_name(p)]
    active = fabric or active
    cages = {p.cage for p in active if p.cage is not None and p.linked}
    names = {p.netdev for p in active}
    twins = [p for p in pool if p.netdev not in names and p.cage in cages and p.lower is None and p.netdev not in vlan_parents and p.netdev not in protected]
    return sorted(active + twins, key=Port.sort_key)


def _spark_name(port: Port) -> bool:
    return SPARK_PORT.match(port.lower or port.netdev) is not None


def resolve(node: Node, port: Port, index: int, wish: Wanted | None) -> Rail:
    """Find the rail's IPv4 address and the one GID index of type RoCE v2 that equals it. More or less than one: no index."""
    have = _usable_ipv4(port)
    if not have and port.master is not None:
        have = [a for a in node.addresses(port.master) if a.family == "inet"]
    chosen: list[tuple[str, int | None]] = []
    inferred = False
    if wish is not None and wish.address is not None:
        chosen = [(a.local, a.prefix) for a in have if _address(a.local) == _address(wish.address)]
    elif wish is not None and wish.network is not None:
        net = ipaddress.ip_network(wish.network)
        inside = [a for a in have if _address(a.local) in net]
        chosen = [(a.local, a.prefix) for a in ([a for a in inside if not a.secondary] or inside)]
    else:
        pool = [a for a in have if not _is_link_local(a.local)] or have
        pool = [a for a in pool if not a.secondary] or pool
        pool = [a for a in pool if a.prefix < 32] or pool  # a /32 is somebody's service address: it reaches no peer
        chosen = [(a.local, a.prefix) for a in pool]
    own = [g for g in port.gids if g.netdev in (None, port.netdev, port.master)]
    if not have and not node.knows_addresses(port.netdev) and not (port.master and node.knows_addresses(port.master)):
        from_gids = sorted({g.ipv4 for g in own if g.ipv4 is not None})
        chosen = [(text, wish.prefix if wish is not None else None) for text in from_gids]
        if wish is not None and wish.address is not None:
            chosen = [item for item in chosen if item[0] == wish.address]
        elif wish is not None and wish.network is not None:
            chosen = [item for item in chosen if _address(item[0]) in ipaddress.ip_network(wish.network)]
        inferred = bool(chosen)
    candidates = tuple(dict.fromkeys(text for text, _prefix in chosen))
    ipv4, prefix = chosen[0] if chosen else (None, None)
    matches = tuple(g.index for g in own if g.type == ROCE_V2 and g.ipv4 is not None and g.ipv4 == ipv4)
    exact = len(matches) == 1 and len(candidates) == 1
    return Rail(port, index, ipv4, prefix, matches[0] if exact else None, candidates, matches, inferred)


# --- problems ------------------------------------------------------------------------------------------------------------------

REPLUG = "Plug the QSFP cable into the same cage of both machines (either cage works), check that the other machine is on, then reboot both with the cable in."


def _rail_problems(rail: Rail, wish: Wanted | None, mtu: int, min_speed: int) -> list[Problem]:
    """Return what is wrong with one rail."""
    port, name = rail.port, rail.port.netdev
    found: list[Problem] = []

    def say(pid: str, message: str, remedy: str) -> None:
        found.append(Problem(pid, message, remedy, name))

    if port.hca is None:
        say(
            "no_rdma",
            f"{name} has no RDMA device, so NCCL falls back to TCP on it.",
            "On a GB10 load mlx5_ib (`modprobe mlx5_ib`) and look at `rdma link`; in a container pass /dev/infiniband through.",
        )
    if not port.linked:
        shown = port.state or "no carrier"
        say("link_down", f"{name} ({port.hca or 'no HCA'}) is {shown}{f', {port.phys_state}' if port.phys_state else ''}.", REPLUG)
    elif port.speed_mbps is not None and min_speed and port.speed_mbps < min_speed and port.mellanox is not False and _judge_speed(port):
        say(
            "speed_degraded",
            f"{name} runs at {port.speed_mbps} Mb/s; a GB10 cage links at {min_speed} Mb/s.",
            "Reboot both machines with the cable in; if it stays, use a 200 Gb/s QSFP56 cable or pull the power plugs for a minute.",
        )
    if rail.ipv4 is None:
        wanted = f" (wanted: {wish.address})" if wish is not None and wish.address else ""
        say("no_ipv4", f"{name} has no fabric IPv4 address{wanted}.", "Run the roce role, which gives it one: `ansible-playbook site.yml --tags roce`.")
    elif _is_link_local(rail.ipv4):
        say(
            "link_local_only",
            f"{name} has only the link-local address {rail.ipv4}, which changes at will.",
            "Run the roce role, which gives each rail an address of its own /24.",
        )
    if port.hca is not None:
        kinds = ", ".join(f"{g.index}={g.gid} {g.type or 'type unread'}" for g in port.gids) or f"empty or not readable (/sys/class/infiniband/{port.hca})"
        if len(rail.candidates) > 1:
            say(
                "gid_ambiguous",
                f"{name} has several fabric addresses ({', '.join(rail.candidates)}), so the GID of {port.hca} is not decided.",
                "Set gb10_fabric_cidrs (or gb10_fabric_addresses) to the one that counts, or remove the others.",
            )
        elif len(rail.matches) > 1:
            say(
                "gid_ambiguous",
                f"{port.hca} has {len(rail.matches)} RoCE v2 GIDs for {rail.ipv4} (indices {', '.join(map(str, rail.matches))}); one was expected.",
                f"Remove and add the address again (`ip addr del`, `ip addr add` on {name}), which the roce role does with roce_gid_repair.",
            )
        elif rail.gid_index is None:
            say(
                "gid_missing",
                f"{port.hca} has no RoCE v2 GID for {rail.ipv4 or 'an IPv4 address'} of {name}; its table: {kinds}.",
                f"Give {name} its IPv4 address with the link up; if it has one, remove and add it again (roce_gid_repair does that).",
            )
    if port.mtu is not None and mtu and port.mtu < mtu:
        say(
            "mtu_small",
            f"{name} has MTU {port.mtu}, wanted is {mtu} (RDMA MTU {port.active_mtu or '?'} instead of {rdma_mtu(mtu)}).",
            "Run the roce role; set roce_mtu to 1500 if a switch between the nodes cannot carry more.",
        )
    elif port.mtu is not None and port.active_mtu is not None and port.hca is not None and port.linked and port.active_mtu < rdma_mtu(port.mtu):
        say(
            "active_mtu_small",
            f"{port.hca} uses RDMA MTU {port.active_mtu} although {name} has MTU {port.mtu} (expected {rdma_mtu(port.mtu)}).",
            f"Set the link down and up once (`ip link set {name} down`, `up`) while nothing serves.",
        )
    return found


def _judge_speed(port: Port) -> bool:
    """Speed is judged on a ConnectX only: by vendor or driver, else by a Spark's name on no known virtual driver."""
    if port.mellanox is True:
        return True
    return port.driver not in VIRTUAL_DRIVERS and port.hca is not None and not port.soft and _spark_name(port)


def _networks(rails: Sequence[Rail]) -> list[tuple[Rail, Any]]:
    return [(rail, ipaddress.ip_network(f"{rail.ipv4}/{rail.prefix}", strict=False)) for rail in rails if rail.ipv4 is not None and rail.prefix is not None]


def _joint_problems(rails: Sequence[Rail], wishes: Mapping[int, Wanted]) -> list[Problem]:
    """Return what is wrong between rails."""
    found: list[Problem] = []
    nets = _networks(rails)
    for at, (rail, net) in enumerate(nets):
        for other, net2 in nets[at + 1 :]:
            if net.version == net2.version and net.overlaps(net2):
                found.append(
                    Problem(
                        "one_subnet_for_both_rails",
                        f"{rail.port.netdev} ({rail.ipv4}/{rail.prefix}) and {other.port.netdev} ({other.ipv4}/{other.prefix}) are in one subnet, "
                        "so the kernel sends everything over one of them.",
                        "Give each rail a /24 of its own: gb10_fabric_cidrs with one network per rail, then run the roce role.",
                    )
                )
    indices = {rail.gid_index for rail in rails if rail.gid_index is not None}
    if len(indices) > 1:
        shown = ", ".join(f"{r.port.hca}={r.gid_index}" for r in rails if r.gid_index is not None)
        found.append(
            Problem(
                "gid_index_differs",
                f"The rails' GID indices differ ({shown}), which one NCCL_IB_GID_INDEX cannot say.",
                "Nothing breaks: NCCL_IB_ADDR_FAMILY and NCCL_IB_ROCE_VERSION_NUM select the GIDs instead; roce_gid_repair evens them out.",
            )
        )
    mtus = {rail.port.mtu for rail in rails if rail.port.mtu is not None}
    if len(mtus) > 1:
        shown = ", ".join(f"{r.port.netdev}={r.port.mtu}" for r in rails)
        found.append(Problem("mtu_mismatch", f"The rails have different MTUs ({shown}).", "Run the roce role, which sets roce_mtu on every rail."))
    cages = sorted({rail.port.cage for rail in rails if rail.port.cage is not None and rail.port.linked})
    per_cage = {cage: [r for r in rails if r.port.cage == cage and r.port.linked] for cage in cages}
    for cage, members in per_cage.items():
        down = [r for r in rails if r.port.cage == cage and not r.port.linked]
        if members and down:
            found.append(
                Problem(
                    "ports_asymmetric",
                    f"Cage {cage}: {', '.join(r.port.netdev for r in members)} has link, its twin {', '.join(r.port.netdev for r in down)} has not.",
                    "Both PCIe functions of a cage share one cable; reboot with the cable in.",
                )
            )
    ordered = sorted((r for r in rails if r.index in wishes), key=lambda r: r.index)
    canonical = sorted(ordered, key=lambda r: r.port.sort_key())
    if ordered != canonical and len(cages) <= 1 and all(wishes[r.index].interface is None for r in ordered):
        shown = ", ".join(f"{r.port.netdev}={r.ipv4}" for r in ordered)
        found.append(
            Problem(
                "rails_crossed",
                f"The fabric networks sit on the twins in reverse order ({shown}); NCCL pairs HCAs across nodes by position.",
                "Let the first network be on the port of the lower PCIe segment on every node, or name both ports in roce_interfaces.",
            )
        )
    return found


def _no_device(node: Node) -> bool:
    return not node.ports and not node.hcas()


def _node_problems(node: Node, rails: Sequence[Rail], hotplug: Record, wished: bool) -> list[Problem]:
    """Return what is wrong with the node as a whole."""
    found: list[Problem] = []
    capture = node.capture
    if _no_device(node):
        if not node.netdevs and not capture.dirs.get("sys/class/infiniband"):
            found.append(
                Problem(
                    "unreadable",
                    "Neither sys/class/net nor sys/class/infiniband nor `ip addr` could be read, so nothing is known of this node's ports.",
                    "Run as root on the node, or capture sys/ and cmd/ again.",
                )
            )
        elif not rails:
            state = f"; hot-plug state: {hotplug['summary']}" if hotplug["present"] else ""
            found.append(
                Problem(
                    "no_cable",
                    f"No mlx5 device is visible although the hot-plug controller reports a cable{state}."
                    if hotplug["plugged"]
                    else f"No mlx5 device is visible. A GB10 powers its ConnectX-7 down while no cable is plugged{state}.",
                    f"{REPLUG} Never write to /sys/bus/pci/rescan while the card is powered down: the kernel panics.",
                )
            )
    elif node.ports and not any(port.linked for port in node.ports):
        dark = [p for p in node.ports if p.phys_state in (None, "DISABLED") and not p.carrier]
        if len(dark) == len(node.ports):
            found.append(
                Problem(
                    "no_cable",
                    f"No port has a link ({', '.join(p.netdev for p in node.ports)}): no cable is plugged, or its other end is off.",
                    REPLUG,
                )
            )
        elif not rails:
            shown = ", ".join(f"{p.netdev} {p.state or 'no carrier'} {p.phys_state or ''}".strip() for p in node.ports)
            found.append(Problem("link_down", f"No port has a link ({shown}).", REPLUG))
    for hca in node.orphans:
        found.append(
            Problem(
                "hca_without_netdev",
                f"{hca} has no network device in rdma link, gid_attrs/ndevs or its PCI function.",
                "Look at `rdma link`; the interface may be in another network namespace.",
            )
        )
    for port in node.ports:
        if port.hca is not None and node.netdevs and port.netdev not in node.netdevs:
            found.append(
                Problem(
                    "hca_without_netdev",
                    f"{port.hca} belongs to {port.netdev}, which this node does not show.",
                    "Look at `rdma link` and `ip link`; the interface may be in another network namespace.",
                    port.netdev,
                )
            )
        if not port.ethernet:
            found.append(
                Problem(
                    "infiniband_mode",
                    f"{port.hca} ({port.netdev}) is in InfiniBand mode, so it has no RoCE GIDs and is no rail.",
                    "Set the port to Ethernet: `mlxconfig -d <PCI address> set LINK_TYPE_P1=ETH`, then power the machine off and on.",
                    port.netdev,
                )
            )
    for hca, netdev in node.guessed:
        found.append(
            Problem(
                "netdev_by_name",
                f"{hca} was joined to {netdev} by its name only, because rdma link and sysfs do not say.",
                "Install rdma-core's `rdma` (iproute2) and run as root.",
            )
        )
    if node.ports and not node.hcas():
        found.append(
            Problem(
                "rdma_unreadable" if "sys/class/infiniband" not in capture.dirs and not capture.commands.get("rdma-link") else "no_rdma",
                f"Ports are there ({', '.join(p.netdev for p in node.ports)}) but no RDMA device.",
                "`modprobe mlx5_ib`, then `rdma link`; in a container pass /dev/infiniband and /sys through.",
            )
        )
    if len(rails) == 1 and not wished and node.ports:
        twin = [p for p in node.ports if p.cage == rails[0].port.cage and p.netdev != rails[0].port.netdev]
        if not twin and rails[0].port.mellanox:
            found.append(
                Problem(
                    "ports_asymmetric",
                    f"Only {rails[0].port.netdev} is visible; a GB10 cage has two PCIe functions (twins), and one alone gives half the bandwidth.",
                    "Reboot with the cable in; compare `lspci -d 15b3:` on both machines (four functions are expected).",
                )
            )
    return found


def _missing(node: Node) -> list[Problem]:
    """Say which sources were missing or unreadable; only those that are wanted."""
    found: list[Problem] = []
    capture = node.capture
    for name, records, what in (
        ("ip-addr", node.links, "addresses and MTU"),
        ("ip-route", node.routes if node.routes_from == "ip route" else [], "the default route"),
        ("rdma-link", node.rdma, "the RDMA links"),
    ):
        if records:
            continue
        raw = capture.commands.get(name)
        nothing = raw is not None and lists_nothing(raw)
        if name == "rdma-link" and raw is not None and not node.hcas() and (nothing or not raw.strip()):
            continue
        if name == "ip-route" and nothing and raw is not None and "{" not in raw:
            continue
        shown = (raw or "").strip()
        why = "is empty" if not shown else ("lists nothing" if nothing else f"is not understood (starts with {shown[:60]!r})")
        if raw is None:
            why = "is missing"
        found.append(
            Problem(
                "unreadable",
                f"`{' '.join(_COMMAND_WORDS[name])}` {why}, so {what} can only be taken from other sources.",
                "Install iproute2 and run as root; in a captured tree record it as cmd/" + name + ".json.",
            )
        )
    important = sorted(path for path in capture.unreadable if path.startswith(("sys/class/infiniband", "sys/class/net", "etc/netplan", "cmd")))
    if important:
        shown = ", ".join(f"/{path} ({capture.unreadable[path]})" for path in important[:4])
        more = f" and {len(important) - 4} more" if len(important) > 4 else ""
        found.append(Problem("unreadable", f"Could not read {shown}{more}.", "Run as root (`become: true`)."))
    return found


_COMMAND_WORDS = {"ip-addr": ("ip", "-j", "-d", "addr"), "ip-route": ("ip", "-j", "route"), "rdma-link": ("rdma", "-j", "link")}


def hotplug_state(capture: Capture) -> Record:
    """Return the state of the ConnectX-7's hot-plug controller MTKP0001:00: {present, enabled, files, summary}."""
    files = {path[len("hotplug/") :]: (capture.text(path) or "") for path in sorted(capture.files) if path.startswith("hotplug/")}
    enabled_text = next((text for path, text in files.items() if path.endswith("hotplug_enabled")), None)
    enabled = {"1": True, "y": True, "yes": True, "enabled": True, "0": False, "n": False, "no": False, "disabled": False}.get(
        (enabled_text or "").strip().lower()
    )
    plugged_text = next((text for path, text in files.items() if path.endswith("debug_state")), None)
    plugged = {"1": True, "0": False}.get((plugged_text or "").strip())
    interface = next((path.split("/")[0] for path in files), None)
    summary = ", ".join(f"{path.split('/')[-1]}={text.splitlines()[0] if text else '(empty)'}" for path, text in files.items())
    return {
        "present": "hotplug" in capture.dirs,
        "interface": interface,
        "enabled": enabled,
        "plugged": plugged,
        "files": files,
        "summary": summary or "not exposed by this kernel",
    }


# --- environment ---------------------------------------------------------------------------------------------------------------


def environment(rails: Sequence[Rail]) -> dict[str, str]:
    """Return the NCCL, GLOO and TP variables of this node; a variable that cannot be decided is left out, never empty.

    NCCL_IB_HCA lists the HCAs of the rails that have a link and a resolved GID, in canonical order (cage, then PCIe segment).
    A rail with a link-local address only does not count beside one with a real address: the peer is not there (169.254 is autoconfigured
    on every port), and NCCL pairs HCAs by their position.
    The socket variables name the first such rail (without RDMA: the first rail that is up and addressed).
    """
    real = [r for r in rails if r.port.linked and r.gid_index is not None and r.ipv4 is not None and not _is_link_local(r.ipv4)]
    counted = [r for r in rails if not real or r.ipv4 is None or not _is_link_local(r.ipv4)]
    up = [r for r in counted if r.port.linked]
    ready = sorted((r for r in up if r.port.hca is not None and r.gid_index is not None), key=lambda r: r.port.sort_key())
    env: dict[str, str] = {}
    if ready:
        env["NCCL_IB_HCA"] = ",".join(dict.fromkeys(r.port.hca_spec for r in ready))
        indices = {r.gid_index for r in ready}
        everyone = all(r.gid_index is not None for r in counted if r.port.hca is not None)
        if len(indices) == 1 and everyone:
            env["NCCL_IB_GID_INDEX"] = str(ready[0].gid_index)
        else:
            env["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
            env["NCCL_IB_ROCE_VERSION_NUM"] = "2"
    elif any(r.port.hca is not None for r in up):
        env["NCCL_IB_ADDR_FAMILY"] = "AF_INET"
        env["NCCL_IB_ROCE_VERSION_NUM"] = "2"
    first = sorted((r for r in up if r.ipv4 is not None and (r in ready or not ready)), key=lambda r: (_is_link_local(str(r.ipv4)), r.index, r.port.sort_key()))
    if first:
        port = first[0].port
        name = port.master if port.master is not None and not _usable_ipv4(port) and not first[0].inferred else port.netdev
        for key in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            env[key] = name
    return env


# --- the whole -----------------------------------------------------------------------------------------------------------------


def _show_port(port: Port, protected: Sequence[str]) -> Record:
    row = asdict(port)
    row["addresses"] = [a.cidr for a in port.addresses]
    row["gids"] = [asdict(g) for g in port.gids]
    row["linked"] = port.linked
    row["protected"] = port.netdev in protected
    del row["mellanox"]
    del row["soft"]
    return row


def _show_rail(rail: Rail) -> Record:
    port = rail.port
    state = port.state or ("ACTIVE" if port.carrier else "DOWN")
    return {
        "index": rail.index,
        "netdev": port.netdev,
        "hca": port.hca,
        "hca_port": port.hca_port,
        "cage": port.cage,
        "pci": port.pci,
        "state": state,
        "carrier": port.carrier,
        "speed_mbps": port.speed_mbps,
        "mtu": port.mtu,
        "active_mtu": port.active_mtu,
        "ipv4": rail.ipv4,
        "prefix": rail.prefix,
        "addresses": [a.cidr for a in port.addresses],
        "gid_index": rail.gid_index,
        "gids": [asdict(g) for g in port.gids],
    }


@dataclass(frozen=True)
class Wishes:
    """The user's wishes for gather(): one entry per rail in each list; mtu and min_speed_mbps judge, 0 judges nothing."""

    addresses: Sequence[str] = field(default_factory=tuple)
    cidrs: Sequence[str] = field(default_factory=tuple)
    interfaces: Sequence[str] = field(default_factory=tuple)
    mtu: int = 9000
    min_speed_mbps: int = 200000


def gather(capture: Capture, wishes: Wishes, ssh_connection: str | None = None, foreign: Iterable[Record] = ()) -> Record:
    """Return the facts that `roce_info` documents: rails, ports, twins, management, hotplug, env, problems."""
    node = Node(capture)
    mgmt = management(node, ssh_connection)
    wanted, problems = wanted_rails(wishes.addresses, wishes.cidrs, wishes.interfaces)
    by_index: dict[int, Wanted] = {}
    rails: list[Rail] = []
    unplaced: list[Wanted] = []
    if wanted:
        for wish, port in assign(node, wanted, mgmt["protected"]):
            if port is None:
                unplaced.append(wish)
                continue
            by_index[wish.index] = wish
            rails.append(resolve(node, port, wish.index, wish))
    else:
        rails = [resolve(node, port, index, None) for index, port in enumerate(derive(node, mgmt["protected"]))]
    hotplug = hotplug_state(capture)
    problems += _node_problems(node, rails, hotplug, bool(wanted))
    if unplaced and node.ports:
        shown = ", ".join(w.address or w.network or w.interface or str(w.index) for w in unplaced)
        problems.append(
            Problem(
                "rail_unplaced",
                f"{len(unplaced)} wanted rail(s) ({shown}) found no port; this node has {', '.join(p.netdev for p in node.ports)}.",
                "A cable gives two rails: list at most two networks per cable in gb10_fabric_cidrs.",
            )
        )
    for rail in rails:
        if rail.port.netdev not in node.netdevs and rail.index in by_index and by_index[rail.index].interface:
            problems.append(
                Problem(
                    "interface_missing",
                    f"The interface {rail.port.netdev} of rail {rail.index} does not exist on this node (found: {', '.join(node.netdevs) or 'none'}).",
                    "Correct or remove roce_interfaces; without it the ports are found by themselves.",
                    rail.port.netdev,
                )
            )
            continue
        problems += _rail_problems(rail, by_index.get(rail.index), wishes.mtu, wishes.min_speed_mbps)
        if rail.port.netdev in mgmt["protected"]:
            problems.append(
                Problem(
                    "rail_is_management",
                    f"{rail.port.netdev} carries the {mgmt['reason'] if rail.port.netdev == mgmt['interface'] else 'default route'}, "
                    "so the roce role will not touch it.",
                    "Move the default route to the 10 GbE port (enP7s7), or give the other ports in roce_interfaces.",
                    rail.port.netdev,
                )
            )
    problems += _joint_problems(rails, by_index)
    problems += _missing(node)
    foreign_list = list(foreign)
    rail_names = {r.port.netdev for r in rails}
    for item in foreign_list:
        hit = sorted(set(item.get("interfaces", [])) & rail_names) or sorted(item.get("interfaces", []))
        problems.append(
            Problem(
                "foreign_netplan",
                f"{item['path']} ({item.get('writer') or 'not written by gb10.cluster'}) configures {', '.join(hit)}.",
                "Choose in roce_foreign_policy: `adopt` keeps it in charge, `replace` moves it to a backup, `refuse` stops.",
                hit[0] if len(hit) == 1 else None,
            )
        )
    twins: dict[str, list[str]] = {}
    for port in node.ports:
        if port.cage is not None:
            twins.setdefault(str(port.cage), []).append(port.netdev)
    return {
        "rails": [_show_rail(rail) for rail in sorted(rails, key=lambda r: (r.index,))],
        "ports": [_show_port(port, mgmt["protected"]) for port in node.ports],
        "twins": twins,
        "management": mgmt,
        "hotplug": hotplug,
        "foreign": foreign_list,
        "env": environment(rails),
        "problems": [asdict(problem) for problem in _unique(problems)],
    }


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


# what keeps a fabric from working; the rest of the problems are for the reader
FATAL = (
    "no_cable",
    "link_down",
    "no_ipv4",
    "mtu_small",
    "mtu_mismatch",
    "one_subnet_for_both_rails",
    "interface_missing",
    "rail_unplaced",
    "bad_input",
    "gid_ambiguous",
    "gid_missing",
    "no_rdma",
    "rdma_unreadable",
)
RDMA_ONLY = ("gid_ambiguous", "gid_missing", "no_rdma", "rdma_unreadable")


def failures_of(problems: Sequence[Mapping[str, Any]], require_rdma: bool) -> list[str]:
    """Return the sentences (what and remedy) of the problems that keep the fabric from working; `problems` as gather() gives them."""
    return [f"{problem['message']} {problem['remedy']}" for problem in problems if problem["id"] in FATAL and (require_rdma or problem["id"] not in RDMA_ONLY)]


def repairs_of(facts: Mapping[str, Any]) -> list[Record]:
    """Return the rails whose GID comes right by removing and adding their address.

    A rail with link and address but no GID (or two), and, where the rails' indices differ, those above the lowest one.
    """
    protected = facts["management"]["protected"]
    rails = [
        rail
        for rail in facts["rails"]
        if rail["hca"] and rail["ipv4"] and rail["prefix"] is not None and rail["state"] == "ACTIVE" and rail["netdev"] not in protected
    ]
    indices = [rail["gid_index"] for rail in rails if rail["gid_index"] is not None]
    lowest = min(indices, default=None)
    return [rail for rail in rails if rail["gid_index"] is None or rail["gid_index"] != lowest]
