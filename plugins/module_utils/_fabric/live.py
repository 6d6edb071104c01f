# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the live node during a network change: its state, commands, files and kernel values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture, find_ssh_connection, rdma_users, read_node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import RailConfig
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import Node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import management


@dataclass(frozen=True)
class Interface:
    """Live state of an interface: up or not, MTU in bytes, IPv4 addresses with prefix."""

    name: str
    up: bool
    mtu: int | None
    addresses: tuple[str, ...] = ()


class RefusedError(Exception):
    """The reason why the change is refused or has failed, for the user."""


class Live:
    """The node of a module run. `read()` first."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.ssh_connection = module.params["ssh_connection"] or find_ssh_connection()
        self.notes: list[str] = []
        self.capture: Capture
        self.node: Node
        self.protected: list[str] = []

    def read(self) -> None:
        """Read the node."""
        self.capture = read_node(self.module)
        self.node = Node(self.capture)
        self.protected = management(self.node, self.ssh_connection)["protected"]

    # commands

    def run(self, *argv: str) -> tuple[int, str]:
        """Run a command; return its exit code and the end of its error output or output."""
        rc, out, err = self.module.run_command(list(argv), errors="surrogate_then_replace")
        return int(rc), str(err or out).strip()[-400:]

    def require(self, *argv: str) -> None:
        """Run a command that must succeed."""
        rc, text = self.run(*argv)
        if rc != 0:
            raise RefusedError(f"`{' '.join(argv)}` failed (rc {rc}): {text or 'no output'}. Correct that on the node and run the roce role again.")

    def active(self, unit: str) -> bool:
        """Return whether a service runs."""
        return self.run("systemctl", "is-active", "--quiet", f"{unit}.service")[0] == 0

    # files

    def write(self, path: str, text: str, mode: int) -> None:
        """Write a file atomically."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text, mode)

    def text(self, path: str) -> str | None:
        """Return the text of a file, None if it does not exist."""
        try:
            return Path(path).read_text(errors="surrogateescape")
        except FileNotFoundError:
            return None

    def record(self, path: str) -> dict[str, Any] | None:
        """Return a JSON record of the earlier state, None if it does not exist."""
        text = self.text(path)
        data = None if text is None else loads(text)
        return data if isinstance(data, dict) else None

    # interfaces

    def interface(self, name: str) -> Interface:
        """Return the state of an interface."""
        record = self.node.links.get(name, {})
        addresses = tuple(a.cidr for a in self.node.addresses(name) if a.family == "inet")
        return Interface(name, "UP" in record.get("flags", []), record.get("mtu"), addresses)

    def fits(self, rail: RailConfig) -> bool:
        """Return whether a rail has its address and MTU."""
        live = self.interface(rail.interface)
        return rail.address in live.addresses and live.mtu == rail.mtu

    def set_interface(self, name: str, mtu: int | None, addresses: Iterable[str], up: bool = True) -> None:
        """Give an interface its state, MTU and addresses; it keeps other addresses."""
        ip, live = self.module.get_bin_path("ip", required=True), self.interface(name)
        if mtu and live.mtu != mtu:
            self.require(ip, "link", "set", "dev", name, "mtu", str(mtu))
        for address in addresses:
            if address not in live.addresses:
                self.require(ip, "addr", "add", address, "brd", "+", "dev", name)
        if live.up != up:
            self.require(ip, "link", "set", "dev", name, "up" if up else "down")

    def configured_addresses(self, texts: Mapping[str, str | None]) -> set[tuple[str, str]]:
        """Return the (interface, address) pairs of configuration files: our own, or those that netplan generated."""
        files = {path: text for path, text in texts.items() if text is not None}
        read = netplan.read_files(files, [netplan.Device(name) for name in self.node.netdevs])
        return {(claim.interface, address) for item in read for claim in item.claims for address in claim.addresses}

    def drop_addresses(self, pairs: set[tuple[str, str]]) -> None:
        """Remove (interface, address) pairs, never from a protected interface."""
        ip = self.module.get_bin_path("ip", required=True)
        for name, address in sorted(pairs):
            if name not in self.protected and address in self.interface(name).addresses:
                self.run(ip, "addr", "del", address, "dev", name)

    def refuse_in_use(self, rails: Iterable[str]) -> None:
        """Refuse a change while a process uses RDMA."""
        users = rdma_users()
        if users:
            raise RefusedError(
                f"{', '.join(users[:4])} use(s) RDMA on this node, and changing {', '.join(rails)} would break that; nothing was changed. "
                "Stop the serving group first (playbooks/stop.yml)."
            )

    # kernel values

    def sysctls(self, rails: Iterable[str]) -> dict[str, str]:
        """Return every kernel value of the rails that can be set (net.ipv4.conf, net.ipv6.conf): netplan's renderers change more than we do."""
        found = {}
        for folder in (Path("/proc/sys/net") / family / "conf" / name for name in rails for family in ("ipv4", "ipv6")):
            for path in sorted(folder.iterdir()) if folder.is_dir() else []:
                try:
                    if path.stat().st_mode & 0o200:  # mc_forwarding cannot be written
                        found[str(path)] = path.read_text().strip()
                except OSError:
                    continue
        return found

    def set_sysctls(self, values: Mapping[str, str]) -> None:
        """Set the kernel values that differ; one that the kernel refuses becomes a note."""
        for path, value in values.items():
            try:
                if Path(path).exists() and Path(path).read_text().strip() != value:
                    Path(path).write_text(value + "\n")
            except OSError as exc:
                self.notes.append(f"{path} could not be set to {value} ({exc.strerror}).")
