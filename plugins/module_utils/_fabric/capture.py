# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node as `rdma -j link`, `ip -j addr`, `ip -j route` and sysfs show it: its ports, HCAs, GIDs, addresses and routes, joined by name. Only reads.

A `Capture` is the live node, or a captured tree with paths as below / (`sys/class/net/enp1s0f0np0/speed`) and the output of the commands below cmd/.
Units: speed in Mb/s (1000000 bit/s), MTU in bytes. Nothing is derived from a position in a list. A *port* is one network device of an RDMA card. A *cage*
is the socket for the cable; its two ports are *twins*.
From sysfs to the NCCL variables: `gids_of` reads a GID table, rails.py (`resolve`) selects the index that belongs to the address of a rail, and
`environment` there writes the variables.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

Record = dict[str, Any]

MAX_BYTES = 1 << 20
# name of the recorded command -> its command line on a live node
COMMANDS: dict[str, list[str]] = {
    "ip-addr": ["ip", "-j", "-d", "addr"],
    "ip-route": ["ip", "-j", "route"],
    "rdma-link": ["rdma", "-j", "link"],
}
CONFIG = (
    *(f"{folder}/netplan/*.yaml" for folder in ("lib", "etc", "run")),
    "etc/NetworkManager/system-connections/*.nmconnection",
    "etc/systemd/network/*.network",
)


class Capture:
    """The state of a node: its network configuration and the output of commands; other files are read when they are first asked for, and kept.

    `config`: {path without leading slash: text}, `unreadable`: {path: reason} of those that could not be read.
    """

    def __init__(self, root: str, commands: dict[str, str] | None = None) -> None:
        self.root = os.path.realpath(root)
        self.commands = dict(commands or {})
        self.config: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self._texts: dict[str, str | None] = {}
        for path in self.find("cmd/*") if root != "/" else ():
            self.commands[re.sub(r"\.(?:json|txt|out)$", "", path[len("cmd/") :])] = self.text(path) or ""
        for path in [path for pattern in CONFIG for path in self.find(pattern)]:
            try:
                self.config[path] = self._read(path)
            except FileNotFoundError:
                continue
            except OSError as exc:
                self.unreadable[path] = exc.strerror or str(exc)

    def text(self, path: str) -> str | None:
        """Return the stripped text of a file, None if it is missing, empty or unreadable: a virtual device has no phys_port_name."""
        if path not in self._texts:
            try:
                self._texts[path] = self._read(path).strip("\x00 \t\r\n") or None
            except OSError:
                self._texts[path] = None
        return self._texts[path]

    def find(self, pattern: str) -> list[str]:
        """Return the relative paths that match a pattern, sorted."""
        return sorted(str(path)[len(os.path.join(self.root, "")) :] for path in Path(self.root).glob(pattern))

    def hcas(self) -> list[str]:
        """Return the HCAs of sysfs."""
        return [path.rpartition("/")[2] for path in self.find("sys/class/infiniband/*")]

    def _read(self, path: str) -> str:
        """Return the text of a file. Bytes that are not UTF-8 are replaced. Raises OSError."""
        real = os.path.join(self.root, path)
        if not os.path.isfile(real) and os.path.exists(real):
            raise OSError(0, "not a regular file")  # opening a pipe would block
        with open(real, "rb") as handle:
            return handle.read(MAX_BYTES).decode("utf-8", "replace")


def capture_of(root: str, run: Callable[[list[str]], tuple[int, str, str]], find: Callable[[str], str | None]) -> Capture:
    """Return the state below root. On the live node, COMMANDS run through `run(argv) -> (rc, stdout, stderr)`; `find(name)` is the path of a command."""
    if root != "/":
        return Capture(root)
    return Capture(root, {name: run([path, *argv[1:]])[1] for name, argv in COMMANDS.items() for path in [find(argv[0])] if path is not None})


def read_node(module: Any) -> Capture:
    """Return the state of the live node, read by a module."""
    return capture_of("/", lambda argv: module.run_command(argv, errors="surrogate_then_replace"), module.get_bin_path)


def find_ssh_connection() -> str | None:
    """Return SSH_CONNECTION of this process or of the next ancestor that has one (sudo removes it from the environment)."""
    pid = os.getpid()
    for _hop in range(12):
        if pid <= 1:
            return None
        for item in _of_process(pid, "environ").split("\x00"):
            if item.startswith("SSH_CONNECTION="):
                return item.partition("=")[2]
        fields = _of_process(pid, "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return None


def _of_process(pid: int, name: str) -> str:
    """Return a file of a process; empty if it has ended or, as the environment of sudo, belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


IGNORED_RDMA_USERS = ("ibacm", "srp_daemon", "opensm", "iwpmd", "rdma-ndd")


def rdma_users() -> list[str]:
    """Return the processes with an open RDMA device, as `name (pid)`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            links = [os.readlink(link) for link in (entry / "fd").iterdir()]
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if name not in IGNORED_RDMA_USERS and any(link.startswith("/dev/infiniband/uverbs") for link in links):
            found.append(f"{name} ({entry.name})")
    return sorted(found)


# --- Devices, HCAs, GIDs, addresses and routes of a node, joined by name. Pure but for the files of the capture.

ROCE_V2 = "RoCE v2"
SPARK_PORT = re.compile(r"^en(?:P(?P<segment>[0-9a-fA-F]+))?p(?P<bus>\d+)s(?P<slot>\d+)f(?P<function>\d)np(?P<cage>\d)$")
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
    """One network device of an RDMA card, with its HCA if there is one. `card`: it is a ConnectX, not soft-RoCE or virtual."""

    netdev: str
    hca: str | None = None
    cage: int | None = None
    pci: str | None = None
    segment: int | None = None
    state: str | None = None
    phys_state: str | None = None
    carrier: bool = False
    speed_mbps: int | None = None
    mtu: int | None = None
    active_mtu: int | None = None
    mac: str | None = None
    driver: str | None = None
    card: bool = False
    admin_up: bool | None = None
    master: str | None = None
    lower: str | None = None
    addresses: tuple[Address, ...] = ()
    gids: tuple[Gid, ...] = ()

    @property
    def linked(self) -> bool:
        """Return whether the port is up: the RDMA state, or the carrier of a port without an RDMA device."""
        return self.state == "ACTIVE" if self.state is not None else self.carrier

    @property
    def usable_ipv4(self) -> list[Address]:
        """Return the IPv4 addresses without loopback addresses."""
        return [a for a in self.addresses if a.family == "inet" and not ipaddress.ip_address(a.local).is_loopback]

    def sort_key(self) -> tuple[int, int, str, str]:
        """Order: cage, then PCIe segment, then PCI address, then name."""
        cage = 99 if self.cage is None else self.cage
        return (cage, 0xFFFF if self.segment is None else self.segment, self.pci or "", self.netdev)


@functools.lru_cache(maxsize=8)  # a table has up to 1024 entries
def gids_of(capture: Capture, hca: str) -> tuple[Gid, ...]:
    """Return the used entries of a GID table in the order of their index. The kernel writes the type as `RoCE v2` or `IB/RoCE v1`.

    Type and network device of an unused (zero) entry are not read: the kernel answers EINVAL.
    """
    base, rows = f"sys/class/infiniband/{hca}/ports/1", []
    for path in capture.find(f"{base}/gids/*"):
        text, name = capture.text(path) or "", path.rpartition("/")[2]
        if not text.strip("0:") or not name.isdigit():
            continue
        value = as_address(text)
        mapped = value.ipv4_mapped if isinstance(value, ipaddress.IPv6Address) else None
        gid = f"::ffff:{mapped}" if mapped is not None else str(value or text)
        kind, netdev = (capture.text(f"{base}/gid_attrs/{folder}/{name}") for folder in ("types", "ndevs"))
        rows.append(Gid(int(name), gid, kind, netdev, str(mapped) if mapped is not None else None))
    return tuple(sorted(rows, key=lambda row: row.index))


class Node:
    """The devices, addresses and routes of a capture, joined by name."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.links = {record["ifname"]: record for record in json_records(capture.commands.get("ip-addr"), "ifname")}
        self.routes = json_records(capture.commands.get("ip-route"), "dst")
        self.rdma = {record["ifname"]: record for record in json_records(capture.commands.get("rdma-link"), "ifname")}
        self.gids = {hca: gids_of(capture, hca) for hca in self.rdma}
        self.hca_of: dict[str, str] = {}
        for hca in sorted(self.rdma, key=lambda name: (self._soft(name), name)):  # on a device with soft-RoCE on top, the HCA of the card counts
            if self.rdma[hca].get("netdev"):
                self.hca_of.setdefault(self.rdma[hca]["netdev"], hca)
        self.netdevs = sorted({*self.links, *self.hca_of})
        self.ports = sorted((self.port(name) for name in self.netdevs if name in self.hca_of or SPARK_PORT.match(name)), key=Port.sort_key)

    def _soft(self, hca: str | None) -> bool:
        """Return whether an HCA is soft-RoCE: it has a parent."""
        return self.capture.text(f"sys/class/infiniband/{hca}/parent") is not None

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

    def port(self, netdev: str) -> Port:
        """Return one device as a port. A bond or VLAN has the HCA whose GID table names it, and the place of that HCA's port."""
        record = self.links.get(netdev, {})
        hca = self.hca_of.get(netdev) or next((hca for hca, gids in self.gids.items() if netdev in [gid.netdev for gid in gids]), None)
        row, card = self.rdma.get(str(hca), {}), next((name for name, own in self.hca_of.items() if own == hca), netdev)
        at, flags, mtu = f"sys/class/net/{card}", record.get("flags", []), record.get("mtu")
        uevent = dict(line.split("=", 1) for line in (self.capture.text(f"{at}/device/uevent") or "").splitlines() if "=" in line)
        pci, driver, name = uevent.get("PCI_SLOT_NAME"), uevent.get("DRIVER"), SPARK_PORT.match(card)
        cage = re.match(r"p(\d+)$", self.capture.text(f"{at}/phys_port_name") or "") or re.search(r"np(\d)$", card if name else "")
        speed = as_integer(self.capture.text(f"sys/class/net/{netdev}/speed"))
        return Port(
            netdev=netdev,
            hca=hca,
            cage=int(cage[1]) if cage else None,
            pci=pci,
            segment=int(name["segment"] or "0", 16) if name else (int(pci.split(":")[0], 16) if pci else None),
            state=row.get("state"),
            phys_state=str(row.get("physical_state", "")).replace("_", "") or None,
            carrier="LOWER_UP" in flags,
            speed_mbps=speed if speed is not None and 0 < speed < 0xFFFFFFFF else None,
            mtu=mtu,
            active_mtu=rdma_mtu(mtu) if mtu and hca else None,
            mac=record.get("address"),
            driver=driver,
            card=driver == "mlx5_core" if driver else bool(name and not self.kind(card) and not self._soft(hca)),
            admin_up="UP" in flags if record else None,
            master=self.master(netdev),
            lower=self.lower(netdev),
            addresses=self.addresses(netdev),
            gids=self.gids.get(str(hca), ()),
        )

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
