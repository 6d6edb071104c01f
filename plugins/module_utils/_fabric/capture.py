# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: read a node, or a captured tree of one, into memory. This file only reads; apply.py is the only one that writes.

A `Capture` has paths without a leading slash (`sys/class/net/enp1s0f0np0/mtu`) and the output of commands by name (`ip-addr`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
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


@dataclass
class Capture:
    """State of one node: file texts, folder listings, command output, and what could not be read (path -> reason)."""

    files: dict[str, str] = field(default_factory=dict)
    dirs: dict[str, list[str]] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def text(self, path: str) -> str | None:
        """Return the stripped text of a file, None if it is missing, unreadable or empty."""
        return self.files.get(path, "").strip("\x00 \t\r\n") or None


class TreeReader:
    """Read files below a root; `/` is the live node. A link that leads out of the root is not followed."""

    def __init__(self, root: str) -> None:
        self._real_root = os.path.realpath(root)
        self.root = Path(self._real_root)

    def find(self, pattern: str) -> list[str]:
        """Return the relative paths that match a pattern, sorted."""
        prefix = len(os.path.join(self._real_root, ""))
        return sorted(str(path)[prefix:] for path in self.root.glob(pattern))

    def read(self, relative: str) -> tuple[str | None, str | None]:
        """Return (text, error); both are None if there is no such file. Bytes that are not UTF-8 are replaced."""
        real = os.path.realpath(os.path.join(self._real_root, relative))
        if os.path.commonpath([real, self._real_root]) != self._real_root:
            return None, None
        try:
            if not os.path.isfile(real) and os.path.exists(real):
                return None, "not a regular file"  # opening a pipe would block
            with open(real, "rb") as handle:
                return handle.read(MAX_BYTES).decode("utf-8", "replace"), None
        except FileNotFoundError:
            return None, None
        except OSError as exc:
            return None, exc.strerror or str(exc)


def _read(capture: Capture, reader: TreeReader, path: str, required: bool = False) -> str | None:
    text, error = reader.read(path)
    if text is not None:
        capture.files[path] = text
    elif error is not None and required:
        capture.unreadable[path] = error
    return text


def _read_gids(capture: Capture, reader: TreeReader) -> None:
    """Read the GID tables. Type and network device of an unused (zero) entry are not read: the kernel answers EINVAL."""
    for path in reader.find("sys/class/infiniband/*/ports/*/gids/*"):
        table, _slash, index = path.rpartition("/gids/")
        gid = _read(capture, reader, path) or ""
        if gid.strip("0: \t\r\n\x00"):
            capture.dirs.setdefault(f"{table}/gids", []).append(index)
            for kind in ("types", "ndevs"):
                _read(capture, reader, f"{table}/gid_attrs/{kind}/{index}")


def _read_hotplug(capture: Capture, reader: TreeReader) -> None:
    """Read the hot-plug controller of the ConnectX-7 (newer kernels: pcie_hotplug; older: cx7_dbg)."""
    for path in reader.find("sys/devices/platform/MTKP0001:*/*"):
        capture.dirs["hotplug"] = []
        for item in reader.find(f"{path}/*") if path.endswith(("/pcie_hotplug", "/cx7_dbg")) else ():
            text = _read(capture, reader, item)
            if text is not None:
                capture.files["hotplug/" + "/".join(item.split("/")[-2:])] = text


def _read_recorded_commands(capture: Capture, reader: TreeReader) -> None:
    """Read cmd/ of a captured tree: `ip-addr.json`, `ip-route.json`, `rdma-link.json`."""
    for path in reader.find("cmd/*"):
        text = _read(capture, reader, path, required=True)
        if text is not None:
            capture.commands[re.sub(r"\.(?:json|txt|out)$", "", path[len("cmd/") :])] = text


def read_tree(root: str) -> Capture:
    """Return the state below root; commands only from its cmd/ (for `/`, run_commands() adds them)."""
    capture = Capture()
    reader = TreeReader(root)
    for pattern in _FOLDERS:
        for folder in reader.find(pattern):
            capture.dirs[folder] = [path.rpartition("/")[2] for path in reader.find(f"{folder}/*")]
    for patterns, required in ((_OPTIONAL, False), (_REQUIRED, True)):
        for pattern in patterns:
            for path in reader.find(pattern):
                _read(capture, reader, path, required)
    _read_gids(capture, reader)
    _read_hotplug(capture, reader)
    if root != "/":
        _read_recorded_commands(capture, reader)
    return capture


def run_commands(capture: Capture, run: Callable[[list[str]], tuple[int, str, str]], find: Callable[[str], str | None]) -> None:
    """Run COMMANDS on a live node through `run(argv) -> (rc, stdout, stderr)`; `find(name)` returns the path of a command or None."""
    for name, argv in COMMANDS.items():
        path = find(argv[0])
        if path is not None:
            capture.commands[name] = run([path, *argv[1:]])[1]


def read_node(module: Any) -> Capture:
    """Return the state of the live node, read by a module."""
    capture = read_tree("/")
    run_commands(capture, lambda argv: module.run_command(argv, errors="surrogate_then_replace"), module.get_bin_path)
    return capture


def find_ssh_connection() -> str | None:
    """Return SSH_CONNECTION of this process or of the next ancestor that has one (sudo removes it from the environment)."""
    pid, reader = os.getpid(), TreeReader("/")
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
