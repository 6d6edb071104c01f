# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: read a node, or a captured tree of one, into memory. This file only reads; apply.py is the only one that writes.

A `Capture` has paths without a leading slash (`sys/class/net/enp1s0f0np0/mtu`) and the output of commands by name (`ip-addr`).
"""

from __future__ import annotations

import os
import re
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
