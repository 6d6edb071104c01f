# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: devices, HCAs, GIDs, addresses and routes of a node, joined by name. Pure: a `Capture` in, a `Node` of `Port`s out.

Units: speed in Mb/s (1000000 bit/s), MTU in bytes. Nothing is derived from a position in a list.
A *port* is one network device of an RDMA card. A *cage* is the socket for the cable; its two ports are *twins*.

From sysfs to the NCCL variables: capture.py reads the GID tables, `gids_of` here decodes them, rails.py (`resolve`) selects the index that
belongs to the address of a rail, and facts.py (`environment`) writes the variables.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.parse import (
    Record,
    as_address,
    as_integer,
    parse_ethtool_speed,
    parse_ibv_devinfo,
    parse_ip_addr,
    parse_ip_route,
    parse_mtu,
    parse_rdma_link,
    rdma_mtu,
)

ROCE_V2 = "RoCE v2"
SPARK_PORT = re.compile(r"^en(?:P(?P<segment>[0-9a-fA-F]+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d)np(?P<cage>\d)$")
BARE_PORT = re.compile(r"^en(?:P(?P<segment>2))?p1s0f(?P<cage>[01])$")  # kernels and versions of udev that write no npN
SPARK_HCA = re.compile(r"^roce(?:P[0-9a-fA-F]+)?p\d+s\d+f(?P<function>\d)$")
PCI_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
VIRTUAL_FUNCTION = re.compile(r"(en\S*f\d)v\d+")  # name of an SR-IOV function by systemd
REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")
VIRTUAL_NAME = re.compile(r"lo$|docker|br|veth|virbr|vxlan|tailscale|wg|tun|tap|cni|flannel|cali|dummy|podman|nerdctl|zt|ib|vnet|lxc|incus")
VIRTUAL_KINDS = ("veth", "bridge", "dummy", "tun", "wireguard", "vxlan", "macvlan", "ipvlan", "ifb", "sit", "ip6tnl", "gre")
MELLANOX = "0x15b3"


@dataclass(frozen=True)
class Gid:
    """One entry of the GID table of an HCA. `ipv4` is set for ::ffff:a.b.c.d."""

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
    """One network device of an RDMA card, with its HCA if there is one."""

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
        """Return whether the port is up: the RDMA state, or the carrier of a port without an RDMA device."""
        return self.state == "ACTIVE" if self.state is not None else bool(self.carrier)

    @property
    def ethernet(self) -> bool:
        """Return whether the port can carry RoCE: InfiniBand mode cannot."""
        return self.link_layer is None or self.link_layer.lower() != "infiniband"

    @property
    def hca_spec(self) -> str:
        """Return the HCA as NCCL_IB_HCA names it: with its port if that is not 1."""
        return str(self.hca) if self.hca_port == 1 else f"{self.hca}:{self.hca_port}"

    @property
    def usable_ipv4(self) -> list[Address]:
        """Return the IPv4 addresses without loopback addresses."""
        return [a for a in self.addresses if a.family == "inet" and not ipaddress.ip_address(a.local).is_loopback]

    def sort_key(self) -> tuple[int, int, str, str]:
        """Order: cage, then PCIe segment, then PCI address, then name."""
        cage = 99 if self.cage is None else self.cage
        return (cage, 0xFFFF if self.segment is None else self.segment, self.pci or "", self.netdev)


def _pci_of(capture: Capture, base: str) -> str | None:
    """Return the PCI address of a class device: of its uevent, or the last one in the target of the class link."""
    match = re.search(rf"^PCI_SLOT_NAME=({PCI_ADDRESS.pattern})", capture.text(f"{base}/device/uevent") or "", re.M)
    addresses = [match[1]] if match else PCI_ADDRESS.findall(capture.links.get(base, ""))
    return addresses[-1].lower() if addresses else None


def _segment(pci: str | None, *names: str | None) -> int | None:
    """Return the PCIe segment (domain) of a PCI address, else the one in the name of a Spark's port (enP2p1s0f0np0 -> 2)."""
    if pci is not None:
        return int(pci.split(":")[0], 16)
    match = next(filter(None, (SPARK_PORT.match(name) or BARE_PORT.match(name) for name in names if name)), None)
    return int(match["segment"] or "0", 16) if match else None


def _cage(phys_port_name: str, names: list[str], pci: str | None) -> int | None:
    """Return the cage: phys_port_name (p0, p1), else npN of a name, else fN of the name of a Spark's port, else the PCI function."""
    numbered = [re.search(r"f\d+np(?P<cage>\d+)$", name) for name in names]
    bare = [BARE_PORT.match(name) for name in names]
    candidates = [re.match(r"^p(?P<cage>\d+)$", phys_port_name), *numbered, *bare, re.search(r"\.(?P<cage>[0-7])$", pci or "")]
    match = next(filter(None, candidates), None)
    return int(match["cage"]) if match else None


def gids_of(capture: Capture, hca: str, port: int) -> list[Gid]:
    """Return the used entries of a GID table in the order of their index. The kernel writes the type as `RoCE v2` or `IB/RoCE v1`."""
    base = f"sys/class/infiniband/{hca}/ports/{port}"
    rows = []
    for name in capture.dirs.get(f"{base}/gids", []):
        text = capture.text(f"{base}/gids/{name}")
        if text is None or as_integer(name) is None:
            continue
        value = as_address(text)
        mapped = value.ipv4_mapped if isinstance(value, ipaddress.IPv6Address) else None
        gid = f"::ffff:{mapped}" if mapped is not None else str(value or text)
        kind, netdev = (capture.text(f"{base}/gid_attrs/{folder}/{name}") for folder in ("types", "ndevs"))
        rows.append(Gid(int(name), gid, kind, netdev, str(mapped) if mapped is not None else None))
    return sorted(rows, key=lambda row: row.index)


_STATES = {"0": "NOP", "1": "DOWN", "2": "INIT", "3": "ARMED", "4": "ACTIVE", "5": "ACTIVE_DEFER"}
_PHYS_STATES = {"1": "SLEEP", "2": "POLLING", "3": "DISABLED", "4": "PORTCONFIGURATIONTRAINING", "5": "LINKUP", "6": "LINKERRORRECOVERY", "7": "PHYTEST"}


def _state_word(text: str | None, names: Mapping[str, str]) -> str | None:
    """Return the word of a state in sysfs: `4: ACTIVE` -> ACTIVE, `5: LinkUp` -> LINKUP, `4` -> ACTIVE."""
    word = (text or "").rpartition(":")[2].strip()
    return names.get(word, word.upper()) or None


def _link_local_of(mac: str) -> str | None:
    """Return the link-local address of a MAC address (EUI-64): 02:00:00:00:00:02 -> fe80::ff:fe00:2."""
    if re.fullmatch(r"(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", mac) is None:
        return None
    octets = bytes.fromhex(mac.replace(":", ""))
    return str(ipaddress.IPv6Address(b"\xfe\x80" + bytes([*[0] * 6, octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]))


class Node:
    """The devices, addresses and routes of a capture, joined by name."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        commands = capture.commands
        self.links: dict[str, Record] = {}
        for record in parse_ip_addr(commands.get("ip-addr", "")):
            known = self.links.setdefault(record["ifname"].partition("@")[0], {**record, "addr_info": []})
            known["addr_info"] += record.get("addr_info", [])  # `ip -4` and `ip -6` may be recorded one after the other
        self.altnames = {name: netdev for netdev, record in self.links.items() for name in record.get("altnames", [])}
        self.routes = parse_ip_route(commands.get("ip-route", ""))
        self.rdma = {(row["hca"], row["port"]): row for row in parse_rdma_link(commands.get("rdma-link", ""))}
        self.devinfo = parse_ibv_devinfo(commands.get("ibv_devinfo", ""))
        self.netdevs = sorted((set(capture.dirs.get("sys/class/net", [])) | set(self.links)) - {"bonding_masters"})
        self.hca_of: dict[str, tuple[str, int]] = {}
        self.orphans: list[str] = []
        self.guessed: list[tuple[str, str]] = []
        self._join()
        names = set(self.hca_of) | {name for name in self.netdevs if self._looks_like_port(name)}
        self.ports = sorted((self.port(name) for name in names if self.physical_function(name) is None), key=Port.sort_key)

    def real_name(self, name: str) -> str:
        """Return the name of a device that is given by its name or an alternative name."""
        return name if name in self.netdevs else self.altnames.get(name, name)

    def names(self, netdev: str) -> list[str]:
        """Return the name and the alternative names of a device: after a renaming by udev the old name is one of them."""
        return [netdev, *(name for name, owner in self.altnames.items() if owner == netdev)]

    # HCAs

    def hcas(self) -> list[tuple[str, int]]:
        """Return every (hca, port) of sysfs, `rdma link` and `ibv_devinfo`, sorted."""
        found = set(self.rdma) | set(self.devinfo)
        for hca in self.capture.dirs.get("sys/class/infiniband", []):
            ports = map(as_integer, self.capture.dirs.get(f"sys/class/infiniband/{hca}/ports", []))
            found |= {(hca, port) for port in [port for port in ports if port is not None] or [1]}
        return sorted(found)

    def _join(self) -> None:
        """Join each HCA to its network device. On a device of a card with soft-RoCE on top, the HCA of the card counts."""
        for hca, port in sorted(self.hcas(), key=lambda item: (self.soft(item[0]), item)):
            netdev = self._netdev_of(hca, port)
            if netdev is None:
                self.orphans.append(hca)
            else:
                self.hca_of.setdefault(netdev, (hca, port))

    def _netdev_of(self, hca: str, port: int) -> str | None:
        """Return the network device of a port of an HCA: the first source whose device exists, else the first source that has a name."""
        names = [self.real_name(name) for name in self._netdev_names(hca, port)]
        if names:
            return next((name for name in names if name in self.netdevs), names[0])
        if hca in self.netdevs and self.infiniband(hca):  # udev names both ibp1s0f0
            return hca
        match = SPARK_HCA.match(hca)
        bare = f"en{hca[len('roce') :]}"
        guess = next((name for name in (f"{bare}np{match['function']}", bare) if name in self.netdevs), None) if match else None
        if guess is not None:
            self.guessed.append((hca, guess))
        return guess

    def _netdev_names(self, hca: str, port: int) -> list[str]:
        """Return the names that the sources have for the network device of an HCA, the best source first."""
        capture, base = self.capture, f"sys/class/infiniband/{hca}"
        devices = capture.dirs.get(f"{base}/device/net", [])
        of_gids = [gid.netdev for gid in gids_of(capture, hca, port) if gid.netdev]
        of_card = [name for name in of_gids if name in devices] or [name for name in of_gids if "." not in name]  # not of a VLAN
        names = [self.rdma.get((hca, port), {}).get("netdev"), capture.text(f"{base}/parent"), *(of_card or of_gids)]
        found = [name for name in names if name] + (devices if len(devices) == 1 else [])
        return found or self._netdevs_by_gid(hca, port) or self._netdevs_by_index(hca, port)

    def _netdevs_by_gid(self, hca: str, port: int) -> list[str]:
        """Return the one device with the MAC address or the IPv4 addresses of the GIDs of an HCA."""
        gids = gids_of(self.capture, hca, port)
        physical = [name for name in self.netdevs if self.lower(name) is None and self.master(name) is None]
        by_mac = [name for name in physical if _link_local_of(self.mac(name) or "") in [gid.gid for gid in gids]]
        holders = {self.holder(gid.ipv4) for gid in gids if gid.ipv4 is not None} - {None}
        by_address = list({self.lower(str(name)) or str(name) for name in holders})
        return next((names for names in (by_mac, by_address) if len(names) == 1), [])

    def _netdevs_by_index(self, hca: str, port: int) -> list[str]:
        """Return the device with the interface index that `rdma link` has for this HCA and for no other."""
        index = self.rdma.get((hca, port), {}).get("netdev_index")
        if index is None or [row["netdev_index"] for row in self.rdma.values()].count(index) > 1:
            return []
        return [name for name, record in self.links.items() if record.get("ifindex") == index]

    def soft(self, hca: str) -> bool:
        """Return whether an HCA is soft-RoCE: it has a parent, or neither a PCI address nor a GID of RoCE v1."""
        base = f"sys/class/infiniband/{hca}"
        only_v2 = {gid.type for gid in gids_of(self.capture, hca, 1)} - {None} == {ROCE_V2}
        return f"{base}/parent" in self.capture.files or re.match(r"(?:rxe|siw)[\d_]", hca) is not None or (only_v2 and not _pci_of(self.capture, base))

    def infiniband_hca(self, hca: str) -> bool:
        """Return whether an HCA without a network device is in InfiniBand mode."""
        layer = self.capture.text(f"sys/class/infiniband/{hca}/ports/1/link_layer") or self.devinfo.get((hca, 1), {}).get("link_layer", "")
        return layer.lower() == "infiniband" or re.match(r"ib(?:P[0-9a-f]+)?p\d+s\d+", hca) is not None

    def infiniband(self, netdev: str) -> bool:
        """Return whether a device is IP over InfiniBand."""
        return self.links.get(netdev, {}).get("link_type") == "infiniband"

    # network devices

    def addresses(self, netdev: str) -> tuple[Address, ...]:
        """Return the addresses of a device."""
        found = []
        for item in self.links.get(netdev, {}).get("addr_info", []):
            text = item.get("local", "").partition("%")[0]
            local = as_address(text)
            if local is not None:
                prefix = min(item.get("prefixlen", local.max_prefixlen), local.max_prefixlen)
                family = "inet" if local.version == 4 else "inet6"
                found.append(Address(family, text, prefix, item.get("scope", "global"), bool(item.get("secondary"))))
        return tuple(dict.fromkeys(found))

    def master(self, netdev: str) -> str | None:
        """Return the bond or bridge of a member. A VRF and the datapath of Open vSwitch never have addresses and do not count."""
        master = self.links.get(netdev, {}).get("master")
        return None if master is None or self.kind(master) in ("vrf", "openvswitch") else str(master)

    def lower(self, netdev: str) -> str | None:
        """Return the device below a VLAN or macvlan, or the one of an SR-IOV function. `ip` without -d shows no kind."""
        link, kind = self.links.get(netdev, {}).get("link"), self.kind(netdev)
        if kind is not None:
            return link if kind in ("vlan", "macvlan", "ipvlan") else None
        if link in self.netdevs and self.links.get(link, {}).get("link") != netdev:  # the two ends of a veth name each other
            return str(link)
        stem, _dot, tag = netdev.rpartition(".")
        return self.physical_function(netdev) or (stem if tag.isdecimal() and stem in self.netdevs else None)

    def pci(self, netdev: str) -> str | None:
        """Return the PCI address of a device, of sysfs or of `ip -d`."""
        parent = self.links.get(netdev, {}).get("parentdev", "").lower()
        return _pci_of(self.capture, f"sys/class/net/{netdev}") or (parent if PCI_ADDRESS.fullmatch(parent) else None)

    def phys_port_name(self, netdev: str) -> str:
        """Return the name of a port by its driver: p0, p1, or pf0vf0 of the representor of a virtual function."""
        return self.capture.text(f"sys/class/net/{netdev}/phys_port_name") or self.links.get(netdev, {}).get("phys_port_name", "")

    def physical_function(self, netdev: str) -> str | None:
        """Return the device to which an SR-IOV function or its representor belongs."""
        representor, match = REPRESENTOR.fullmatch(self.phys_port_name(netdev)), VIRTUAL_FUNCTION.fullmatch(netdev)
        physfn = self.capture.links.get(f"sys/class/net/{netdev}/device/physfn", "").rpartition("/")[2].lower()
        pci = self.pci(netdev) if representor else physfn
        others = [name for name in self.netdevs if name != netdev and not REPRESENTOR.fullmatch(self.phys_port_name(name))] if pci or match else []
        if pci or match is None:
            return next((name for name in others if self.pci(name) == pci), None)
        return next((name for name in others if re.fullmatch(rf"{match[1]}(?:np\d+)?", name)), None)

    def mac(self, netdev: str) -> str | None:
        """Return the hardware address of a device."""
        return self.links.get(netdev, {}).get("address") or self.capture.text(f"sys/class/net/{netdev}/address")

    def carrier(self, netdev: str) -> str:
        """Return the port below a VLAN, or the member of a bond or bridge that has its GIDs, else one with a link; else the device itself."""
        device = self.lower(netdev) or netdev
        members = [name for name in self.netdevs if self.master(name) == device and name in self.hca_of]

        def rank(name: str) -> tuple[bool, bool, str]:
            hca, port = self.hca_of[name]
            state = _state_word(self.capture.text(f"sys/class/infiniband/{hca}/ports/{port}/state"), _STATES)
            return (netdev not in [gid.netdev for gid in gids_of(self.capture, hca, port)], state != "ACTIVE", name.lower())

        return min(members, key=rank, default=device)

    def kind(self, netdev: str) -> str | None:
        """Return the kind of a virtual device (veth, bridge, vlan, bond, ...)."""
        kind: str | None = self.links.get(netdev, {}).get("linkinfo", {}).get("info_kind")
        return kind

    def virtual(self, netdev: str) -> bool:
        """Return whether a device is virtual, by its name or kind."""
        return VIRTUAL_NAME.match(netdev) is not None or self.kind(netdev) in VIRTUAL_KINDS

    def driver(self, netdev: str) -> str | None:
        """Return the kernel driver of a device."""
        match = re.search(r"^DRIVER=(\S+)", self.capture.text(f"sys/class/net/{netdev}/device/uevent") or "", re.M)
        return match[1] if match else None

    def mellanox(self, netdev: str, hca: str | None) -> bool | None:
        """Return whether a device is a port of a ConnectX, None if it is not known: inside a container sysfs shows no device."""
        vendor, driver = self.capture.text(f"sys/class/net/{netdev}/device/vendor"), self.driver(netdev)
        if vendor is not None or driver is not None:
            return vendor == MELLANOX or driver == "mlx5_core"
        return False if (hca and self.soft(hca)) or self.kind(netdev) in VIRTUAL_KINDS else None

    def _looks_like_port(self, netdev: str) -> bool:
        mellanox = self.mellanox(netdev, None)
        bare = mellanox is None and self.kind(netdev) is None and any(BARE_PORT.match(name) for name in self.names(netdev))
        return mellanox is True or bare or any(SPARK_PORT.match(name) for name in self.names(netdev))

    def _speed(self, netdev: str, hca: str | None, at: str, mellanox: bool | None) -> int | None:
        """Return the speed of a port: of the network device, of recorded ethtool output, or of the RDMA device."""
        speed = as_integer(self.capture.text(f"sys/class/net/{netdev}/speed"))
        if speed is not None and 0 < speed < 0xFFFFFFFF:
            return speed
        speed = parse_ethtool_speed(self.capture.commands.get(f"ethtool-{netdev}", ""))
        match = re.match(r"(\d{1,6}(?:\.\d+)?) Gb/sec", self.capture.text(f"{at}/rate") or "")
        if speed is not None or match is None or mellanox is False or (hca and self.soft(hca)):
            return speed
        return int(float(match[1]) * 1000) if _state_word(self.capture.text(f"{at}/state"), _STATES) == "ACTIVE" else None

    def port(self, netdev: str) -> Port:
        """Return one device as a port."""
        capture, record, below = self.capture, self.links.get(netdev, {}), self.carrier(netdev)
        hca, number = self.hca_of.get(netdev) or self.hca_of.get(below) or (None, 1)
        at = f"sys/class/infiniband/{hca}/ports/{number}"
        row, info = self.rdma.get((str(hca), number), {}), self.devinfo.get((str(hca), number), {})
        pci = self.pci(netdev) or self.pci(below) or (_pci_of(capture, f"sys/class/infiniband/{hca}") if hca else None)
        mellanox = self.mellanox(below, hca)
        of_card = pci if mellanox is not False else None
        flags = record.get("flags")
        mtu, carrier, operstate = (capture.text(f"sys/class/net/{netdev}/{name}") for name in ("mtu", "carrier", "operstate"))
        mtu_bytes = record.get("mtu") or as_integer(mtu)
        active_mtu = parse_mtu(info.get("active_mtu")) or parse_mtu(capture.text(f"{at}/active_mtu"))
        state = _state_word(capture.text(f"{at}/state"), _STATES) or row.get("state") or info.get("state", "").partition(" ")[0]
        phys_state = _state_word(capture.text(f"{at}/phys_state"), _PHYS_STATES) or str(row.get("physical_state") or "").upper().replace("_", "")
        return Port(
            netdev=netdev,
            hca=hca,
            hca_port=number,
            cage=_cage(self.phys_port_name(below), self.names(below), of_card),
            pci=pci,
            segment=_segment(of_card, *self.names(below)),
            state=state.upper().replace("PORT_", "") or None,
            phys_state=phys_state or None,
            carrier="LOWER_UP" in flags if flags is not None else (carrier == "1" if carrier else operstate == "up"),
            speed_mbps=self._speed(netdev, hca, at, mellanox),
            mtu=mtu_bytes,
            active_mtu=active_mtu or (rdma_mtu(mtu_bytes) if mtu_bytes and hca else None),
            mac=self.mac(netdev),
            driver=self.driver(netdev),
            mellanox=mellanox,
            link_layer=capture.text(f"{at}/link_layer") or info.get("link_layer") or ("InfiniBand" if self.infiniband(netdev) else None),
            soft=bool(hca) and self.soft(str(hca)),
            admin_up="UP" in flags if flags is not None else None,
            master=self.master(netdev),
            lower=self.lower(netdev),
            addresses=self.addresses(netdev),
            gids=tuple(gids_of(capture, hca, number)) if hca else (),
        )

    # routes

    def default_routes(self) -> list[Record]:
        """Return [{dev, gateway, metric, src, dead}] of the default routes: routes with a link first, then the lowest metric."""
        found = []
        for route in self.routes:
            if route["dst"] not in ("default", "0.0.0.0/0", "::/0"):
                continue
            for hop in route.get("nexthops") or [route]:
                if hop.get("dev") in (None, "lo"):
                    continue
                gateway = hop.get("gateway") or hop.get("via", {}).get("host") or route.get("gateway")  # via: an IPv4 route over an IPv6 gateway
                dead = bool({"dead", "linkdown"} & {*route.get("flags", []), *hop.get("flags", [])})
                found.append({"dev": hop["dev"], "gateway": gateway, "metric": route.get("metric", 0), "src": route.get("prefsrc"), "dead": dead})
        return sorted(found, key=lambda item: (item["dead"], item["metric"]))

    def holder(self, address: str) -> str | None:
        """Return the device with an address; of a link-local address with a zone (fe80::1%enP7s7), the device of the zone."""
        address, _percent, zone = address.partition("%")
        wanted = as_address(address)
        if isinstance(wanted, ipaddress.IPv6Address) and wanted.ipv4_mapped is not None:
            wanted = wanted.ipv4_mapped
        devices = [zone] if zone else self.netdevs
        return next((name for name in devices if any(as_address(a.local) == wanted for a in self.addresses(name))), None)

    def closure(self, netdev: str) -> set[str]:
        """Return a device with everything below it: members of a bond, the parent of a VLAN."""
        found: set[str] = set()
        todo = [netdev]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                lower = self.lower(name)
                todo += [other for other in self.netdevs if self.master(other) == name] + ([lower] if lower else [])
        return found
