# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: a node's devices, HCAs, GIDs, addresses and routes, joined by name. Pure: a `Capture` in, a `Node` of `Port`s out.

Units: speed in Mb/s (1000000 bit/s), MTU in bytes. Nothing is ever taken from a list position.
Words: a *port* is one network device of an RDMA card; a *cage* is the socket for the cable (two ports, *twins*, share it).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.parse import (
    Record,
    as_address,
    as_integer,
    as_records,
    as_strings,
    as_word,
    is_number,
    parse_ethtool,
    parse_ibv_devinfo,
    parse_ip_addr,
    parse_ip_route,
    parse_local_addresses,
    parse_mtu,
    parse_proc_route,
    parse_proc_vlan,
    parse_rdma_link,
    rdma_mtu,
)

ROCE_V1 = "IB/RoCE v1"
ROCE_V2 = "RoCE v2"
SPARK_PORT = re.compile(r"^en(?:P(?P<segment>[0-9a-fA-F]+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d)np(?P<cage>\d)$")
BARE_PORT = re.compile(r"^en(?:P(?P<segment>2))?p1s0f(?P<function>[01])$")  # kernels and udev versions that write no npN
SPARK_HCA = re.compile(r"^roce(?:P(?P<segment>[0-9a-fA-F]+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d)$")
PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
VIRTUAL_FUNCTION = re.compile(r"(en\S*f\d)v\d+")  # systemd's name of an SR-IOV function
REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")
VIRTUAL_KINDS = ("veth", "bridge", "dummy", "tun", "wireguard", "vxlan", "macvlan", "ipvlan", "ifb", "sit", "ip6tnl", "gre")
STACKED_KINDS = ("bond", "bridge", "team")  # a device of these kinds carries the addresses of its members


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
    admin_up: bool | None = None
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


def _cage(phys_port_name: str, names: Sequence[str], pci: str | None, hca: str | None) -> int | None:
    """Return the cage: phys_port_name (p0, p1), else npN of a name, else fN of a Spark's name, else the PCI function, else fN of the HCA."""
    match = re.match(r"^p(\d+)$", phys_port_name)
    match = match or next(filter(None, (re.search(r"f\d+np(\d+)$", name) for name in names)), None)
    match = match or next(filter(None, (re.match(r"^en(?:P2)?p1s0f([01])$", name) for name in names)), None)
    if match is None and pci is not None:
        match = re.search(r"\.([0-7])$", pci)
    if match is None and hca is not None:
        match = re.search(r"s\d+f(\d+)$", hca)
    return int(match.group(1)) if match else None


def _gid_text(text: str) -> tuple[str, str | None, bool]:
    """Return (canonical GID, mapped IPv4, is zero) of one gids/ entry; an unparsable one is kept as it stands."""
    value = as_address(text)
    if not isinstance(value, ipaddress.IPv6Address):
        return text, None, False
    mapped = value.ipv4_mapped
    shown = f"::ffff:{mapped}" if mapped is not None else str(value)
    return shown, str(mapped) if mapped is not None else None, int(value) == 0


def _gid_type(text: str | None) -> str | None:
    """Return the type as the kernel writes it, `RoCE v2` or `IB/RoCE v1`; another text stays as it is."""
    plain = re.sub(r"[\s_-]+", "", text or "").lower()
    return {"rocev2": ROCE_V2, "ib/rocev1": ROCE_V1, "rocev1": ROCE_V1}.get(plain, text)


def gids_of(capture: Capture, hca: str, port: int) -> list[Gid]:
    """Return the used entries of a GID table in the order of their index."""
    base = f"sys/class/infiniband/{hca}/ports/{port}"
    rows = []
    for name in capture.dirs.get(f"{base}/gids", []):
        text = capture.text(f"{base}/gids/{name}") if is_number(name) else None
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


def _numbered(text: str | None, names: Mapping[int, str]) -> str | None:
    """`4: ACTIVE` -> ACTIVE, `5: LinkUp` -> LINKUP, `4` -> ACTIVE."""
    if text is None:
        return None
    number, _colon, word = text.partition(":")
    word = word.strip()
    if not word and is_number(number.strip()):
        return names.get(int(number))
    return (word or number).strip().upper() or None


def _connected(route: Record) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network of a route that leads to a device's own link, None of any other route."""
    try:
        return None if route.get("gateway") or route.get("dst") == "default" else ipaddress.ip_network(str(route.get("dst")))
    except ValueError:
        return None


class Node:
    """All that a capture says about devices, addresses and routes, joined by name."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        commands = capture.commands
        self.links: dict[str, Record] = {}
        for record in parse_ip_addr(commands.get("ip-addr", "")):
            first = self.links.setdefault(str(record["ifname"]).split("@", maxsplit=1)[0], record)
            if first is not record:  # `ip -4` and `ip -6` recorded one after the other
                first["addr_info"] = as_records(first.get("addr_info")) + as_records(record.get("addr_info"))
        self.have_addresses = any(as_records(record.get("addr_info")) for record in self.links.values())
        self.altnames = {name: netdev for netdev, record in self.links.items() for name in self._altnames(record)}
        self.routes = parse_ip_route(commands.get("ip-route", ""))
        self.routes_from = "ip route"
        if not self.routes and capture.text("proc/net/route"):
            self.routes = parse_proc_route(capture.files["proc/net/route"])
            self.routes_from = "/proc/net/route"
        self.local = parse_local_addresses(capture.files.get("proc/net/fib_trie", ""))
        self.vlans = parse_proc_vlan(capture.files.get("proc/net/vlan/config", ""))
        self.rdma = {(row["hca"], row["port"]): row for row in parse_rdma_link(commands.get("rdma-link", ""))}
        self.devinfo = parse_ibv_devinfo(next((commands[name] for name in ("ibv_devinfo", "ibv_devinfo-v", "ibv-devinfo") if name in commands), ""))
        self.netdevs = self._netdevs()
        self.hca_of: dict[str, tuple[str, int]] = {}
        self.orphans: list[str] = []
        self.guessed: list[tuple[str, str]] = []
        self._join()
        self.ports = self._ports()

    @staticmethod
    def _altnames(record: Record) -> list[str]:
        return as_strings(record.get("altnames"))

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
            ports = [int(p) for p in self.capture.dirs.get(f"sys/class/infiniband/{hca}/ports", []) if is_number(p)]
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
        if hca in self.netdevs and self.infiniband(hca):  # udev gives both the name ibp1s0f0
            return hca
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
        if row is not None and as_word(row.get("netdev")):
            told.append(str(row["netdev"]).split("@", maxsplit=1)[0])
        base = f"sys/class/infiniband/{hca}"
        here = [n for n in capture.dirs.get(f"{base}/device/net", []) if n]
        parent = capture.text(f"{base}/parent")
        if parent is not None:
            told.append(parent)
        at = f"{base}/ports/{port}/gid_attrs/ndevs/"
        attributes = sorted((int(path[len(at) :]), path) for path in capture.files if path.startswith(at) and is_number(path[len(at) :]))
        first = [text for text in (capture.text(path) for _index, path in attributes) if text]
        told += [name for name in first if name in here] or [name for name in first if "." not in name] or first
        if len(here) == 1:
            told += here
        pci = _pci_of(capture, base)
        if pci is not None:
            twins = [n for n in self.netdevs if self.pci(n) == pci and self.lower(n) is None]
            told += twins if len(twins) == 1 else []
        told += [n for n in self.netdevs if hca in capture.dirs.get(f"sys/class/net/{n}/device/infiniband", [])]
        return told or self._netdevs_by_gid(hca, port) or self._netdevs_by_index(hca, port)

    def _netdevs_by_index(self, hca: str, port: int) -> list[str]:
        """Return the device whose interface index `rdma link` gives to this HCA and to no other."""
        index = self.rdma.get((hca, port), {}).get("netdev_index")
        if index is None or [row["netdev_index"] for row in self.rdma.values()].count(index) > 1:
            return []
        known = {n: (self.links.get(n, {}).get("ifindex"), self.capture.text(f"sys/class/net/{n}/ifindex")) for n in self.netdevs}
        return [name for name, texts in known.items() if index in map(as_integer, texts)]

    def _netdevs_by_gid(self, hca: str, port: int) -> list[str]:
        """Return the one device that an HCA's GIDs are made from: its link-local GID from the MAC, the others from the addresses."""
        gids = gids_of(self.capture, hca, port)
        base = [n for n in self.netdevs if self.lower(n) is None and self.master(n) is None]
        by_mac = {n for n in base for gid in gids if gid.gid == _link_local_of(self.mac(n))}
        if len(by_mac) == 1:
            return list(by_mac)
        holders = {self.holder(gid.ipv4) for gid in gids if gid.ipv4 is not None} - {None}
        by_address = {self.lower(str(name)) or str(name) for name in holders}
        return list(by_address) if len(by_address) == 1 else []

    def pci(self, netdev: str) -> str | None:
        """Return the PCI address of a device, of sysfs or of `ip -d` (parentdev)."""
        parent = as_word(self.links.get(netdev, {}).get("parentdev")) or ""
        return _pci_of(self.capture, f"sys/class/net/{netdev}") or (parent.lower() if PCI_ADDRESS.fullmatch(parent) else None)

    def phys_port_name(self, netdev: str) -> str:
        """Return what the driver calls the port: p0, p1, or pf0vf0 for the representor of a virtual function."""
        return self.capture.text(f"sys/class/net/{netdev}/phys_port_name") or as_word(self.links.get(netdev, {}).get("phys_port_name")) or ""

    def physical_function(self, netdev: str) -> str | None:
        """Return the device whose virtual function or representor a device is."""
        link = self.capture.links.get(f"sys/class/net/{netdev}/device/physfn", "")
        pci = self.pci(netdev) if REPRESENTOR.fullmatch(self.phys_port_name(netdev)) else link.rsplit("/", 1)[-1].lower()
        match = VIRTUAL_FUNCTION.fullmatch(netdev)
        if not pci and match is not None:
            return next((n for n in self.netdevs if n != netdev and re.fullmatch(re.escape(match.group(1)) + r"(?:np\d+)?", n)), None)
        return next((n for n in self.netdevs if pci and n != netdev and self.pci(n) == pci and not REPRESENTOR.fullmatch(self.phys_port_name(n))), None)

    def mac(self, netdev: str) -> str | None:
        """Return the hardware address of a device."""
        return as_word(self.links.get(netdev, {}).get("address")) or self.capture.text(f"sys/class/net/{netdev}/address")

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
        for item in as_records(self.links.get(netdev, {}).get("addr_info")):
            text = str(item.get("local")).partition("%")[0]  # a zone is no part of the address
            local = as_address(text)
            if local is None:
                continue
            prefix = as_integer(item.get("prefixlen"))
            valid = prefix is not None and 0 <= prefix <= local.max_prefixlen
            found.append(
                Address(
                    "inet" if local.version == 4 else "inet6",
                    text,
                    prefix if valid and prefix is not None else local.max_prefixlen,
                    as_word(item.get("scope")) or "global",
                    bool(item.get("secondary")),
                )
            )
        if found or self.knows_addresses(netdev):
            return tuple(dict.fromkeys(found))
        return tuple(self._routed_addresses(netdev))

    def _routed_addresses(self, netdev: str) -> list[Address]:
        """Return the addresses that a device's connected routes name as their source."""
        found = []
        for route in self.routes:
            local = as_address(route.get("prefsrc"))
            net = _connected(route)
            if route.get("dev") == netdev and local is not None and net is not None and local in net:
                found.append(Address("inet" if local.version == 4 else "inet6", str(local), net.prefixlen, "link" if local.is_link_local else "global", False))
        return list(dict.fromkeys(found)) or self._local_addresses(netdev)

    def _local_addresses(self, netdev: str) -> list[Address]:
        """Return the addresses of /proc/net/fib_trie that belong to a device by the most specific connected route."""
        nets = [(net, as_word(route.get("dev"))) for route in self.routes for net in [_connected(route)] if net is not None]
        found = []
        for text in self.local:
            local = ipaddress.ip_address(text)
            around = [(net.prefixlen, dev) for net, dev in nets if local in net]
            longest = max(around, key=lambda item: item[0], default=(0, None))
            if {dev for prefix, dev in around if prefix == longest[0]} == {netdev}:
                found.append(Address("inet", text, longest[0], "link" if local.is_link_local else "global", False))
        return found

    def master(self, netdev: str) -> str | None:
        """Return the bond or bridge that a device is a member of; a VRF and Open vSwitch's datapath never have its addresses and do not count."""
        value = as_word(self.links.get(netdev, {}).get("master"))
        if value is None:
            link = self.capture.links.get(f"sys/class/net/{netdev}/master")
            value = link.rsplit("/", 1)[-1] if link else None
        return None if value is None or self.kind(value) in ("vrf", "openvswitch") else value

    def lower(self, netdev: str) -> str | None:
        """Return the device a VLAN (or macvlan) sits on."""
        link = as_word(self.links.get(netdev, {}).get("link"))
        kind = self.kind(netdev)
        if link is not None and kind in ("vlan", "macvlan", "ipvlan"):
            return link
        if netdev in self.vlans:
            return self.vlans[netdev]
        if link in self.netdevs and kind is None and self.links.get(link, {}).get("link") != netdev:
            return link  # without -d `ip` says no kind; the two ends of a veth name each other
        if kind in (*STACKED_KINDS, "vrf") or {"bonding", "bridge"} & set(self.capture.dirs.get(f"sys/class/net/{netdev}", [])):
            return None
        function = self.physical_function(netdev)
        if function is not None:
            return function
        lowers = [n[len("lower_") :] for n in self.capture.dirs.get(f"sys/class/net/{netdev}", []) if n.startswith("lower_")]
        if len(lowers) == 1:
            return lowers[0]
        stem, dot, tag = netdev.rpartition(".")
        return stem if dot and tag.isdigit() and stem in self.netdevs else None

    def kind(self, netdev: str) -> str | None:
        """Return the kind of a virtual device (veth, bridge, vlan, bond, ...)."""
        info = self.links.get(netdev, {}).get("linkinfo")
        return as_word(info.get("info_kind")) if isinstance(info, dict) else None

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
        pci = self.pci(netdev) or (_pci_of(capture, f"sys/class/infiniband/{hca}") if hca else None) or (self.pci(lower) if lower is not None else None)
        record = self.links.get(netdev, {})
        flags = as_strings(record.get("flags")) or None
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
        state = _numbered(capture.text(f"{at}/state"), _STATES) if hca else None
        if state is None and row.get("state"):
            state = str(row["state"]).upper().removeprefix("PORT_")
        if state is None and info.get("state"):
            state = info["state"].replace("PORT_", "").upper()
        phys = _numbered(capture.text(f"{at}/phys_state"), _PHYS_STATES) if hca else None
        if phys is None and row.get("physical_state"):
            phys = str(row["physical_state"]).upper().replace("_", "")
        speed = as_integer(capture.text(f"{base}/speed"))
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
        mtu = as_integer(record.get("mtu")) or as_integer(capture.text(f"{base}/mtu"))
        active = parse_mtu(info.get("active_mtu")) or (parse_mtu(capture.text(f"{at}/active_mtu")) if hca else None)
        return Port(
            netdev=netdev,
            hca=hca,
            hca_port=number,
            cage=_cage(self.phys_port_name(lower or netdev), self.names(lower or netdev), pci if mellanox is not False else None, hca),
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
            link_layer=(capture.text(f"{at}/link_layer") if hca else None) or info.get("link_layer") or ("InfiniBand" if self.infiniband(netdev) else None),
            soft=bool(hca) and self.soft(str(hca)),
            admin_up="UP" in flags if flags is not None else None,
            master=self.master(netdev),
            lower=lower,
            addresses=self.addresses(netdev),
            gids=tuple(gids_of(capture, hca, number)) if hca else (),
        )

    def infiniband_hca(self, hca: str) -> bool:
        """Return whether an HCA without a network device is in InfiniBand mode."""
        said = self.capture.text(f"sys/class/infiniband/{hca}/ports/1/link_layer") or self.devinfo.get((hca, 1), {}).get("link_layer", "")
        return said.lower() == "infiniband" or re.match(r"ib(?:P[0-9a-f]+)?p\d+s\d+", hca) is not None

    def infiniband(self, netdev: str) -> bool:
        """Return whether a device is IP over InfiniBand: ARPHRD_INFINIBAND is 32."""
        return self.links.get(netdev, {}).get("link_type") == "infiniband" or self.capture.text(f"sys/class/net/{netdev}/type") == "32"

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
        return sorted((self.port(name) for name in names if self.physical_function(name) is None), key=Port.sort_key)

    # management

    def default_routes(self) -> list[Record]:
        """Return [{dev, gateway, metric}] of the IPv4 and IPv6 default routes, lowest metric first."""
        found = []
        for route in self.routes:
            if str(route.get("dst")) not in ("default", "0.0.0.0/0", "::/0"):
                continue
            for hop in as_records(route.get("nexthops")) or [route]:
                dev = as_word(hop.get("dev"))
                if dev is None or dev == "lo":
                    continue
                via = next(iter(as_records([hop.get("via")])), {})  # an IPv4 route over an IPv6 gateway
                gateway = as_word(hop.get("gateway")) or as_word(via.get("host")) or as_word(route.get("gateway"))
                flags = [*as_strings(route.get("flags")), *as_strings(hop.get("flags"))]
                dead = bool({"dead", "linkdown"} & set(flags))
                found.append({"dev": dev, "gateway": gateway, "metric": as_integer(route.get("metric")) or 0, "src": route.get("prefsrc"), "dead": dead})
        return sorted(found, key=lambda item: (bool(item["dead"]), int(item["metric"])))

    def holder(self, address: str) -> str | None:
        """Return the device that carries an address; of a link-local one with its zone (fe80::1%enP7s7), that zone's."""
        address, _percent, zone = address.partition("%")
        wanted = as_address(address)
        if isinstance(wanted, ipaddress.IPv6Address) and wanted.ipv4_mapped is not None:
            wanted = wanted.ipv4_mapped
        if wanted is None:
            return None
        for netdev in [zone] if zone else self.netdevs:
            if any(as_address(a.local) == wanted for a in self.addresses(netdev)):
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
