# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: read a node, or a captured tree of one, into memory. The only part of roce/ that touches files, and it only reads.

A `Capture` holds paths without a leading slash (`sys/class/net/enp1s0f0np0/mtu`) and the recorded commands by name (`ip-addr`).
Symbolic links of a captured tree are followed inside the tree only: an absolute link never leads to this machine's own /sys.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

MAX_BYTES = 1 << 20
_LINK_DEPTH = 40
_TOOL_ERROR = re.compile(r"(?:/\S*/)?(?:cat|head|tail|sed|awk|grep|cp|dd|sh|bash): ")

# name of the recorded command -> what prints it on a live node
COMMANDS: dict[str, list[str]] = {
    "ip-addr": ["ip", "-j", "-d", "addr"],
    "ip-route": ["ip", "-j", "route"],
    "rdma-link": ["rdma", "-j", "link"],
    "ibv_devinfo": ["ibv_devinfo"],
}
_NET_FILES = ("mtu", "speed", "operstate", "carrier", "address", "phys_port_name", "type", "ifindex", "iflink")
PCIE_FILES = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
_PORT_FILES = ("state", "phys_state", "rate", "link_layer", "active_mtu")  # no kernel has the last one, but who records a tree by hand may


@dataclass
class Capture:
    """What was read of one node: texts, directory listings, link targets, commands, and what could not be read (path -> why)."""

    files: dict[str, str] = field(default_factory=dict)
    dirs: dict[str, list[str]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def text(self, path: str) -> str | None:
        """Return the stripped text of a file, None if it is missing, unreadable or empty, or holds the error of the tool that recorded it."""
        value = self.files.get(path, "").strip("\x00 \t\r\n")
        return None if _TOOL_ERROR.match(value) else (value or None)


class TreeReader:
    """Read files below a root; `/` is the live node."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.live = self.root == Path("/")

    def resolve(self, relative: str) -> Path | None:
        """Return the real path of a relative one, links followed inside the root, None if it is broken."""
        todo = [part for part in relative.split("/") if part not in ("", ".")]
        done: list[str] = []
        hops = 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                done = done[:-1]
                continue
            here = self.root.joinpath(*done, part)
            try:
                mode = os.lstat(here).st_mode
            except OSError:
                return None
            if stat.S_ISLNK(mode):
                hops += 1
                if hops > _LINK_DEPTH:
                    return None
                target = os.readlink(here)
                if target.startswith("/"):
                    done = []
                todo = [piece for piece in target.split("/") if piece not in ("", ".")] + todo
            else:
                done.append(part)
        return self.root.joinpath(*done)

    def real(self, relative: str) -> Path | None:
        """Resolve; on a live node the kernel follows the links itself."""
        return self.root / relative if self.live else self.resolve(relative)

    def listdir(self, relative: str) -> tuple[list[str], str | None]:
        """Return (sorted names, error). A missing folder is no error."""
        path = self.real(relative)
        if path is None:
            return [], None
        try:
            return sorted(entry.name for entry in path.iterdir()), None
        except FileNotFoundError:
            return [], None
        except OSError as exc:
            return [], exc.strerror or str(exc)

    def read(self, relative: str) -> tuple[str | None, str | None]:
        """Return (text, error); text is None when there is no such file. Bytes that are no UTF-8 are replaced."""
        path = self.real(relative)
        if path is None:
            return None, None
        try:
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                return None, "not a regular file"  # a pipe of a captured tree would keep us waiting
            with open(path, "rb") as handle:
                data = handle.read(MAX_BYTES)
            # Windows PowerShell records what ssh prints as UTF-16
            return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace"), None
        except FileNotFoundError:
            return None, None
        except OSError as exc:
            return None, exc.strerror or str(exc)

    def link(self, relative: str) -> str | None:
        """Return where a link points (its text), None if it is none.

        Some archives (a checkout without links, a FAT disk) hold a link as a small file with its target.
        """
        parent, _sep, name = relative.rpartition("/")
        path = self.real(parent)
        for place in (self.root / relative, *([path / name] if path is not None else [])):
            try:
                return os.readlink(place)
            except OSError:
                continue
        if self.live or path is None:
            return None
        try:
            mode = os.lstat(path / name)
            if stat.S_ISREG(mode.st_mode) and mode.st_size < 512:
                text = (path / name).read_text(errors="replace").strip()
                return text if "\n" not in text and text.startswith(("../", "/sys/")) else None
        except OSError:
            return None
        return None


def _take(capture: Capture, reader: TreeReader, path: str, quiet: bool = False) -> str | None:
    text, error = reader.read(path)
    if text is not None:
        capture.files[path] = text
    elif error is not None and not quiet:
        capture.unreadable[path] = error
    return text


def _list(capture: Capture, reader: TreeReader, path: str) -> list[str]:
    names, error = reader.listdir(path)
    if error is not None:
        capture.unreadable[path] = error
    elif names or reader.real(path) is not None:
        capture.dirs[path] = names
    return names


def read_net(capture: Capture, reader: TreeReader) -> None:
    """Read sys/class/net. A virtual device refuses phys_port_name (EOPNOTSUPP) and a link that is down its speed (EINVAL): normal."""
    base = "sys/class/net"
    for name in _list(capture, reader, base):
        here = f"{base}/{name}"
        for item in _NET_FILES:
            _take(capture, reader, f"{here}/{item}", quiet=True)
        for item in ("vendor", "device", "uevent", *PCIE_FILES):
            _take(capture, reader, f"{here}/device/{item}", quiet=True)
        for item in ("", "/device", "/device/driver", "/device/physfn", "/master"):
            target = reader.link(f"{here}{item}")
            if target is not None:
                capture.links[f"{here}{item}"] = target
        names, _error = reader.listdir(here)
        capture.dirs[here] = names
        for extra in ("device/infiniband", "device/net"):
            if reader.real(f"{here}/{extra}") is not None:
                capture.dirs[f"{here}/{extra}"] = reader.listdir(f"{here}/{extra}")[0]


def read_infiniband(capture: Capture, reader: TreeReader) -> None:
    """Read sys/class/infiniband: ports, GIDs with types and netdevs. Unused indices fail with EINVAL: normal, skipped."""
    base = "sys/class/infiniband"
    for hca in _list(capture, reader, base):
        here = f"{base}/{hca}"
        for item in ("node_guid", "sys_image_guid", "fw_ver", "board_id", "parent", "node_type"):
            _take(capture, reader, f"{here}/{item}", quiet=True)
        for item in ("vendor", "device", "uevent"):
            _take(capture, reader, f"{here}/device/{item}", quiet=True)
        for item in ("", "/device"):
            target = reader.link(f"{here}{item}")
            if target is not None:
                capture.links[f"{here}{item}"] = target
        capture.dirs[f"{here}/device/net"] = reader.listdir(f"{here}/device/net")[0]
        for port in _list(capture, reader, f"{here}/ports"):
            at = f"{here}/ports/{port}"
            for item in _PORT_FILES:
                _take(capture, reader, f"{at}/{item}")
            indices = [i for i in _list(capture, reader, f"{at}/gids") if i.isdigit()]
            for index in indices:
                gid = _take(capture, reader, f"{at}/gids/{index}", quiet=True)
                if gid is None or not gid.strip("0: \t\r\n\x00"):
                    continue
                for kind in ("types", "ndevs"):
                    _take(capture, reader, f"{at}/gid_attrs/{kind}/{index}", quiet=True)
            # a capture may hold the attributes and not the GIDs
            for index in reader.listdir(f"{at}/gid_attrs/ndevs")[0]:
                if index.isdigit() and index not in indices:
                    _take(capture, reader, f"{at}/gid_attrs/ndevs/{index}", quiet=True)


def read_platform(capture: Capture, reader: TreeReader) -> None:
    """Read the hot-plug controller of the ConnectX-7 (newer kernels: pcie_hotplug; older: cx7_dbg)."""
    parents = ("sys/devices/platform", "sys/bus/platform/devices")
    for base in [f"{parent}/{name}" for parent in parents for name in reader.listdir(parent)[0] if name.startswith("MTKP0001:")]:
        names, _error = reader.listdir(base)
        if not names:
            continue
        capture.dirs["hotplug"] = names
        for folder in ("pcie_hotplug", "cx7_dbg"):
            for item in reader.listdir(f"{base}/{folder}")[0]:
                text = _take(capture, reader, f"{base}/{folder}/{item}", quiet=True)
                if text is not None:
                    capture.files[f"hotplug/{folder}/{item}"] = text
        return


CONFIG_DIRS = (
    ("lib/netplan", (".yaml",)),
    ("etc/netplan", (".yaml",)),
    ("run/netplan", (".yaml",)),
    ("etc/NetworkManager/system-connections", (".nmconnection",)),
    ("etc/systemd/network", (".network", ".netdev")),
)


def read_config(capture: Capture, reader: TreeReader) -> None:
    """Read the network configuration files: netplan, NetworkManager keyfiles, networkd."""
    for folder, endings in CONFIG_DIRS:
        for name in _list(capture, reader, folder):
            if name.endswith(endings):
                _take(capture, reader, f"{folder}/{name}")


def read_proc(capture: Capture, reader: TreeReader) -> None:
    """Read what stands in for `ip route` and `ip addr` when they are missing."""
    for item in ("proc/net/route", "proc/net/fib_trie", "proc/net/vlan/config"):
        _take(capture, reader, item, quiet=True)
    for item in ("etc/os-release", "etc/dgx-release"):
        _take(capture, reader, item, quiet=True)


def read_recorded_commands(capture: Capture, reader: TreeReader) -> None:
    """Read cmd/: `ip-addr.json`, `ip-route.json`, `rdma-link.json`, and any other recorded output beside them (`ethtool-X.txt`)."""
    for name in _list(capture, reader, "cmd"):
        text = _take(capture, reader, f"cmd/{name}")
        stem = name.rsplit(".", 1)[0] if name.endswith((".json", ".txt", ".out")) else name
        if text is not None and (stem not in capture.commands or (name.endswith(".json") and text.strip()) or not capture.commands[stem].strip()):
            capture.commands[stem] = text


def read_tree(root: str) -> Capture:
    """Read everything below root; commands only from its cmd/ (for `/` the caller runs them and fills `commands`)."""
    capture = Capture()
    reader = TreeReader(root)
    for part in (read_net, read_infiniband, read_platform, read_config, read_proc):
        part(capture, reader)
    if not reader.live:
        read_recorded_commands(capture, reader)
    return capture


def run_commands(capture: Capture, run: Callable[[list[str]], tuple[int, str, str]], find: Callable[[str], str | None]) -> None:
    """Run COMMANDS on a live node through `run(argv) -> (rc, stdout, stderr)`; `find(name)` returns a command's path or None."""
    for name, argv in COMMANDS.items():
        path = find(argv[0])
        if path is None:
            continue
        _rc, out, _err = run([path, *argv[1:]])
        capture.commands[name] = out


def find_ssh_connection(pid: int, reader: TreeReader) -> str | None:
    """Return SSH_CONNECTION of a process or of the next ancestor that has one (sudo takes it out of the environment)."""
    for _hop in range(12):
        if pid <= 1:
            return None
        text, _error = reader.read(f"proc/{pid}/environ")
        for item in (text or "").split("\x00"):
            if item.startswith("SSH_CONNECTION="):
                return item.partition("=")[2]
        status, _error = reader.read(f"proc/{pid}/stat")
        fields = (status or "").rpartition(")")[2].split()
        if len(fields) < 2 or not fields[1].isdigit():
            return None
        pid = int(fields[1])
    return None


IGNORED_RDMA_USERS = ("ibacm", "srp_daemon", "opensm", "iwpmd", "rdma-ndd")


def rdma_users(proc: Path = Path("/proc")) -> list[str]:
    """Return the processes that hold an RDMA device open, as `name (pid)`."""
    found = []
    for entry in proc.iterdir():
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
