# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node, or a captured tree of one, in memory; and its devices, HCAs, GIDs, addresses and routes, joined by name. This file only reads; apply.py writes.

A `Capture` has paths without a leading slash (`sys/class/net/enp1s0f0np0/mtu`) and the output of commands by name (`ip-addr`).
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

MAX_BYTES = 1 << 20

# name of the recorded command -> its command line on a live node
COMMANDS: dict[str, list[str]] = {
    "ip-addr": ["ip", "-j", "-d", "addr"],
    "ip-route": ["ip", "-j", "route"],
    "rdma-link": ["rdma", "-j", "link"],
}
PCIE_FILES = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
CONFIG_PREFIXES = ("lib/netplan/", "etc/netplan/", "run/netplan/", "etc/NetworkManager/", "etc/systemd/network/")

# Files that may be unreadable in normal operation: a virtual device has no phys_port_name, a link that is down has no speed.
_OPTIONAL = (
    *(f"sys/class/net/*/{name}" for name in ("address", "carrier", "speed", "phys_port_name", "device/vendor", "device/uevent")),
    *(f"sys/class/net/*/device/{name}" for name in PCIE_FILES),
    *(f"sys/class/infiniband/*/{name}" for name in ("parent", "fw_ver")),
)
_REQUIRED = (
    *(f"sys/class/infiniband/*/ports/*/{name}" for name in ("state", "phys_state", "rate")),
    *(f"{folder}/netplan/*.yaml" for folder in ("lib", "etc", "run")),
    "etc/NetworkManager/system-connections/*.nmconnection",
    "etc/systemd/network/*.network",
)
_FOLDERS = ("sys/class/net", "sys/class/infiniband")


class Capture:
    """State of one node: file texts, folder listings, command output, and what could not be read (path -> reason).

    `root` is `/` for the live node, or a captured tree, whose cmd/ has the output of commands. A link that leads out of the root is not followed.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.files: dict[str, str] = {}
        self.commands: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self.dirs = {name: [path.rpartition("/")[2] for path in self._find(f"{name}/*")] for name in _FOLDERS if self._find(name)}
        for patterns, required in ((_OPTIONAL, False), (_REQUIRED, True)):
            for path in [path for pattern in patterns for path in self._find(pattern)]:
                self._read(path, required)
        self._read_gids()
        self._read_hotplug()
        for path in self._find("cmd/*") if root != "/" else ():
            text = self._read(path, required=True)
            if text is not None:
                self.commands[re.sub(r"\.(?:json|txt|out)$", "", path[len("cmd/") :])] = text

    def text(self, path: str) -> str | None:
        """Return the stripped text of a file, None if it is missing, unreadable or empty."""
        return self.files.get(path, "").strip("\x00 \t\r\n") or None

    def _find(self, pattern: str) -> list[str]:
        """Return the relative paths that match a pattern, sorted."""
        return sorted(str(path)[len(os.path.join(self.root, "")) :] for path in Path(self.root).glob(pattern))

    def _read(self, path: str, required: bool = False) -> str | None:
        """Keep the text of a file, or why it cannot be read if it is required. Bytes that are not UTF-8 are replaced."""
        real = os.path.realpath(os.path.join(self.root, path))
        if os.path.commonpath([real, self.root]) != self.root:
            return None
        try:
            if not os.path.isfile(real) and os.path.exists(real):
                raise OSError(0, "not a regular file")  # opening a pipe would block
            with open(real, "rb") as handle:
                self.files[path] = handle.read(MAX_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:
            return None
        except OSError as exc:
            self.unreadable.update({path: exc.strerror or str(exc)} if required else {})
        return self.files.get(path)

    def _read_gids(self) -> None:
        """Read the GID tables. Type and network device of an unused (zero) entry are not read: the kernel answers EINVAL."""
        for path in self._find("sys/class/infiniband/*/ports/*/gids/*"):
            table, _slash, index = path.rpartition("/gids/")
            if (self._read(path) or "").strip("0: \t\r\n\x00"):
                self.dirs.setdefault(f"{table}/gids", []).append(index)
                for kind in ("types", "ndevs"):
                    self._read(f"{table}/gid_attrs/{kind}/{index}")

    def _read_hotplug(self) -> None:
        """Read the hot-plug controller of the ConnectX-7 (newer kernels: pcie_hotplug; older: cx7_dbg)."""
        for path in self._find("sys/devices/platform/MTKP0001:*/*"):
            self.dirs["hotplug"] = []
            for item in self._find(f"{path}/*") if path.endswith(("/pcie_hotplug", "/cx7_dbg")) else ():
                text = self._read(item)
                if text is not None:
                    self.files["hotplug/" + "/".join(item.split("/")[-2:])] = text


def capture_of(root: str, run: Callable[[list[str]], tuple[int, str, str]], find: Callable[[str], str | None]) -> Capture:
    """Return the state below root. On the live node, COMMANDS run through `run(argv) -> (rc, stdout, stderr)`; `find(name)` is the path of a command."""
    capture = Capture(root)
    if root == "/":
        capture.commands.update({name: run([path, *argv[1:]])[1] for name, argv in COMMANDS.items() for path in [find(argv[0])] if path is not None})
    return capture


def read_node(module: Any, root: str = "/") -> Capture:
    """Return the state of the live node, or of a captured tree, read by a module."""
    return capture_of(root, lambda argv: module.run_command(argv, errors="surrogate_then_replace"), module.get_bin_path)


def find_ssh_connection(capture: Capture | None = None) -> str | None:
    """Return SSH_CONNECTION of this process or of the next ancestor that has one (sudo removes it from the environment); that of a captured tree."""
    if capture is not None and capture.root != "/":
        return capture.commands.get("ssh-connection")
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


# --- Devices, HCAs, GIDs, addresses and routes of a node, joined by name. Pure: a `Capture` in, a `Node` of `Port`s out.
# Units: speed in Mb/s (1000000 bit/s), MTU in bytes. Nothing is derived from a position in a list. A *port* is one network device of an RDMA card. A *cage*
# is the socket for the cable; its two ports are *twins*.
# From sysfs to the NCCL variables: capture.py reads the GID tables, `gids_of` here decodes them, rails.py (`resolve`) selects the index that belongs to the
# address of a rail, and `environment` there writes the variables.

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
