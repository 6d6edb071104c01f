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
import json
import re
from dataclasses import dataclass
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture

Record = dict[str, Any]

ROCE_V2 = "RoCE v2"
SPARK_PORT = re.compile(r"^en(?:P(?P<segment>[0-9a-fA-F]+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d)np(?P<cage>\d)$")
MELLANOX = "0x15b3"
OVERHEAD = 96  # bytes of RoCE v2 headers that the kernel subtracts from the MTU of the network device before it rounds down (iboe_get_mtu)


def json_records(text: str | None, key: str) -> list[Record]:
    """Return the JSON objects that have `key`; none if the text is not a JSON list. `ip` prints empty objects for what it filters."""
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return []
    return [item for item in found if isinstance(item, dict) and isinstance(item.get(key), str)] if isinstance(found, list) else []


def as_integer(value: Any) -> int | None:
    """Return the integer of a text, None if it is not one."""
    try:
        return int(str(value).strip())
    except ValueError:
        return None


def as_address(text: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a text, None if it is not one."""
    try:
        return ipaddress.ip_address(str(text).strip())
    except ValueError:
        return None


def rdma_mtu(netdev_mtu: int) -> int:
    """Return the RDMA MTU (bytes) that the kernel derives from the MTU of a network device: 9000 -> 4096, 1500 -> 1024."""
    return next((size for size in (4096, 2048, 1024, 512, 256) if netdev_mtu - OVERHEAD >= size), 0)


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
    def usable_ipv4(self) -> list[Address]:
        """Return the IPv4 addresses without loopback addresses."""
        return [a for a in self.addresses if a.family == "inet" and not ipaddress.ip_address(a.local).is_loopback]

    def sort_key(self) -> tuple[int, int, str, str]:
        """Order: cage, then PCIe segment, then PCI address, then name."""
        cage = 99 if self.cage is None else self.cage
        return (cage, 0xFFFF if self.segment is None else self.segment, self.pci or "", self.netdev)


def gids_of(capture: Capture, hca: str) -> list[Gid]:
    """Return the used entries of a GID table in the order of their index. The kernel writes the type as `RoCE v2` or `IB/RoCE v1`."""
    base = f"sys/class/infiniband/{hca}/ports/1"
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


def _word(text: str | None) -> str:
    """Return the word of a state: `4: ACTIVE` -> ACTIVE, `5: LinkUp` -> LINKUP."""
    return (text or "").rpartition(":")[2].strip().upper()


class Node:
    """The devices, addresses and routes of a capture, joined by name."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.links = {record["ifname"]: record for record in json_records(capture.commands.get("ip-addr"), "ifname")}
        self.routes = json_records(capture.commands.get("ip-route"), "dst")
        self.rdma = {record["ifname"]: record for record in json_records(capture.commands.get("rdma-link"), "ifname")}
        self.netdevs = sorted((set(capture.dirs.get("sys/class/net", [])) | set(self.links)) - {"bonding_masters"})
        self.hca_of: dict[str, str] = {}
        for hca in sorted(self.hcas(), key=lambda name: (self.soft(name), name)):  # on a device with soft-RoCE on top, the HCA of the card counts
            netdev = self._netdev_of(hca)
            if netdev in self.netdevs:
                self.hca_of.setdefault(netdev, hca)
        names = set(self.hca_of) | {name for name in self.netdevs if self.mellanox(name) or SPARK_PORT.match(name)}
        self.ports = sorted((self.port(name) for name in names), key=Port.sort_key)

    # HCAs

    def hcas(self) -> list[str]:
        """Return every HCA of sysfs and `rdma link`."""
        return sorted(set(self.rdma) | set(self.capture.dirs.get("sys/class/infiniband", [])))

    def _netdev_of(self, hca: str) -> str:
        """Return the network device of an HCA: of `rdma link`, of soft-RoCE, of its GID table (not a VLAN); empty without one."""
        of_gids = [gid.netdev for gid in gids_of(self.capture, hca) if gid.netdev and "." not in gid.netdev]
        names = [self.rdma.get(hca, {}).get("netdev"), self.capture.text(f"sys/class/infiniband/{hca}/parent"), *of_gids]
        return next((name for name in names if name in self.netdevs), "")

    def soft(self, hca: str) -> bool:
        """Return whether an HCA is soft-RoCE: it has a parent."""
        return f"sys/class/infiniband/{hca}/parent" in self.capture.files

    def _stacked_hca(self, netdev: str) -> str | None:
        """Return the HCA whose GID table names a bond or VLAN."""
        return next((hca for hca in self.hcas() if netdev in [gid.netdev for gid in gids_of(self.capture, hca)]), None)

    # network devices

    def addresses(self, netdev: str) -> tuple[Address, ...]:
        """Return the addresses of a device."""
        found = []
        for item in self.links.get(netdev, {}).get("addr_info", []):
            text = item.get("local", "").partition("%")[0]
            local = as_address(text)
            if local is not None:
                family = "inet" if local.version == 4 else "inet6"
                found.append(Address(family, text, item["prefixlen"], item.get("scope", "global"), bool(item.get("secondary"))))
        return tuple(dict.fromkeys(found))

    def master(self, netdev: str) -> str | None:
        """Return the bond or bridge of a member."""
        return self.links.get(netdev, {}).get("master")

    def kind(self, netdev: str) -> str | None:
        """Return the kind of a virtual device (veth, bridge, vlan, bond, ...)."""
        kind: str | None = self.links.get(netdev, {}).get("linkinfo", {}).get("info_kind")
        return kind

    def lower(self, netdev: str) -> str | None:
        """Return the device below a VLAN or macvlan."""
        return self.links.get(netdev, {}).get("link") if self.kind(netdev) in ("vlan", "macvlan", "ipvlan") else None

    def _uevent(self, path: str, key: str) -> str | None:
        match = re.search(rf"^{key}=(\S+)", self.capture.text(f"{path}/device/uevent") or "", re.M)
        return match[1] if match else None

    def driver(self, netdev: str) -> str | None:
        """Return the kernel driver of a device."""
        return self._uevent(f"sys/class/net/{netdev}", "DRIVER")

    def mellanox(self, netdev: str) -> bool | None:
        """Return whether a device is a port of a ConnectX, None if it is not known: inside a container sysfs shows no device."""
        vendor, driver = self.capture.text(f"sys/class/net/{netdev}/device/vendor"), self.driver(netdev)
        if vendor is not None or driver is not None:
            return vendor == MELLANOX or driver == "mlx5_core"
        hca = self.hca_of.get(netdev)
        return False if (hca and self.soft(hca)) or self.kind(netdev) else None

    def _speed(self, netdev: str, hca: str | None, active: bool) -> int | None:
        """Return the speed of a port: of the network device, else of the RDMA device."""
        speed = as_integer(self.capture.text(f"sys/class/net/{netdev}/speed"))
        if speed is not None and 0 < speed < 0xFFFFFFFF:
            return speed
        match = re.match(r"(\d{1,6}(?:\.\d+)?) Gb/sec", self.capture.text(f"sys/class/infiniband/{hca}/ports/1/rate") or "")
        return int(float(match[1]) * 1000) if match and hca and active and self.mellanox(netdev) is not False and not self.soft(hca) else None

    def port(self, netdev: str) -> Port:
        """Return one device as a port."""
        capture, record = self.capture, self.links.get(netdev, {})
        hca = self.hca_of.get(netdev) or self._stacked_hca(netdev)
        at, row = f"sys/class/infiniband/{hca}/ports/1", self.rdma.get(str(hca), {})
        card = next((name for name, own in self.hca_of.items() if own == hca), netdev)  # below a bond or VLAN
        pci, mellanox = self._uevent(f"sys/class/net/{card}", "PCI_SLOT_NAME"), self.mellanox(card)
        name = SPARK_PORT.match(card)
        phys = re.match(r"p(\d+)$", capture.text(f"sys/class/net/{card}/phys_port_name") or "")
        of_card = pci if mellanox is not False else None
        segment = int(of_card.split(":")[0], 16) if of_card else (int(name["segment"] or "0", 16) if name else None)
        state = _word(capture.text(f"{at}/state") or row.get("state")) or None
        flags, mtu = record.get("flags"), record.get("mtu")
        return Port(
            netdev=netdev,
            hca=hca,
            cage=int(phys[1]) if phys else (int(name["cage"]) if name else None),
            pci=pci,
            segment=segment,
            state=state,
            phys_state=_word(capture.text(f"{at}/phys_state") or row.get("physical_state")).replace("_", "") or None,
            carrier="LOWER_UP" in flags if flags is not None else capture.text(f"sys/class/net/{netdev}/carrier") == "1",
            speed_mbps=self._speed(netdev, hca, state == "ACTIVE"),
            mtu=mtu,
            active_mtu=rdma_mtu(mtu) if mtu and hca else None,
            mac=record.get("address") or capture.text(f"sys/class/net/{netdev}/address"),
            driver=self.driver(netdev),
            mellanox=mellanox,
            soft=bool(hca) and self.soft(str(hca)),
            admin_up="UP" in flags if flags is not None else None,
            master=self.master(netdev),
            lower=self.lower(netdev),
            addresses=self.addresses(netdev),
            gids=tuple(gids_of(capture, hca)) if hca else (),
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
                gateway = hop.get("gateway") or hop.get("via", {}).get("host")  # via: an IPv4 route over an IPv6 gateway
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
