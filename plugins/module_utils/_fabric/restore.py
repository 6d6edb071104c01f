# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live node during a network change, and the dead man's switch: copies of what the change touches, and a timer of systemd that restores them.

A change is pending while the folder exists: `systemctl stop` of the timer and the removal of the folder confirm it. A restart of the node ends the
timer: the interface that carries SSH is never written, so the next run reaches the node and confirms.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture, Node, find_ssh_connection, rdma_users, read_node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import RailConfig
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import management

# --- The live node during a network change: its state, commands, files and kernel values.


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


# --- The dead man's switch of a network change: a folder with copies of what it touches, and a timer of systemd that restores them.

STATE_DIR = "/var/lib/gb10-cluster/roce"
PENDING = STATE_DIR + "/pending"
RESTORED = STATE_DIR + "/restored.json"
BASELINE = STATE_DIR + "/baseline.json"
BACKUP_DIR = "/root/netplan-disabled"
TIMER = "gb10-roce-restore"
APPLY_SECONDS = 90  # for the change itself, in addition to confirm_seconds; the timer is started again when the change is complete


# The routes of interface $1, those of its networks first, without which the kernel refuses the gateways of the others. One that it refuses goes to refused.
# Not `ip route restore`: it ends at the first refusal, and the kernel refuses each route that was saved without a carrier ("linkdown" of `ip route`).
ROUTES = """routes() {
  for first in "scope link" ""; do
    grep "$first" "$1.route" | sed 's/ linkdown//; s/ dead//' | while read -r route; do
      answer=$(ip -4 route append $route dev "$1" 2>&1) && continue
      case "$first$answer" in *"File exists"*|"scope link"*) ;; *) echo " $route dev $1;" | tr -cd '[:alnum:] ./:;@_-' >>refused ;; esac
    done
  done
}"""


def save_commands(rails: Sequence[str], protected: Sequence[str]) -> list[str]:
    """Return the shell commands that save what `restore_script` restores of the interfaces, in the folder that is current."""
    saved = [f"ip -4 {what} dev {quote(name)} >{quote(name)}.{what.split()[0]}" for name in (*rails, *protected) for what in ("addr save", "route show")]
    return ["PATH=$PATH:/usr/sbin:/sbin", *saved]


def restore_script(files: Mapping[str, str | None], rails: Sequence[Interface], protected: Sequence[str]) -> str:
    """Return the shell script that restores the state before a change, from the folder of the change.

    `files`: {absolute path: name of its copy, None if the file did not exist}; `protected`: interfaces of the management path, which get back what they lost.
    """
    out = ["#!/bin/sh", f"cd {PENDING} || exit 0  # it was confirmed", f"exec >{STATE_DIR}/restore.log 2>&1", "set -x", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    out += [ROUTES]
    out += [f"rm -f {quote(path)}" if copy is None else f"cp -a {copy} {quote(path)}" for path, copy in sorted(files.items())]
    out += [
        "systemctl is-active --quiet systemd-networkd.service && timeout 60 networkctl reload",
        "systemctl is-active --quiet NetworkManager.service && timeout 60 nmcli connection reload",
        "sleep 2",
    ]
    for item in rails:
        name = quote(item.name)
        out += [f"ip link set dev {name} mtu {item.mtu}"] if item.mtu else []
        out += [f"ip -4 addr flush dev {name}", f"ip -4 addr restore <{name}.addr", f"ip link set dev {name} {'up' if item.up else 'down'}"]
        out += [f"routes {name}"]  # the flush removes the routes, and no service sets them again
    out += ["sysctl -e -q -p sysctl.conf"]
    for name in map(quote, protected):
        out += [f"ip link set dev {name} up", f"ip -4 addr restore <{name}.addr", f"routes {name}"]
    out += ['[ -s refused ] && lost=" Not restored, because the kernel refused them, are these routes:$(cat refused)"']
    out += [f'sed "s/@WHEN@/$(date -u +%Y-%m-%dT%H:%M:%SZ)/g; s|@LOST@|$lost|" record.json >{RESTORED}', f"rm -rf {PENDING}"]
    return "\n".join(out) + "\n"


class PendingChange:
    """The pending network change of a node."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.seconds: int = live.module.params["confirm_seconds"]

    def exists(self) -> bool:
        """Return whether an unconfirmed change exists."""
        return Path(PENDING).is_dir()

    def arm(self, files: Sequence[str], rails: Sequence[str], summary: str) -> None:
        """Save the current state and start the timer. An earlier change is confirmed by this run, which has reached the node."""
        live, folder = self.live, Path(STATE_DIR, "staging")
        if self.exists() and not self.confirm():
            raise RefusedError("The node restored its network after an unconfirmed change; nothing was changed. Run the roce role again.")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        os.chmod(STATE_DIR, 0o700)
        copies = {path: f"copy{number}" if Path(path).exists() else None for number, path in enumerate(files)}
        copy = [f"cp -a {quote(path)} {name}" for path, name in copies.items() if name]  # with the group, by which networkd reads its files
        live.require("/bin/sh", "-ec", "\n".join([f"cd {folder}", *copy, *save_commands(rails, live.protected)]))
        why = f"the change was not confirmed within {self.seconds} s, so the controller did not come back"
        message = f"At @WHEN@ this node put its network back as it was before ({summary}), because {why}.@LOST@"
        sysctls = "".join(f"{path[len('/proc/sys/') :]} = {value}\n" for path, value in live.sysctls(rails).items())
        live.write(str(folder / "sysctl.conf"), sysctls, 0o600)
        live.write(str(folder / "record.json"), json.dumps({"when": "@WHEN@", "message": message}) + "\n", 0o600)
        live.write(str(folder / "restore.sh"), restore_script(copies, [live.interface(name) for name in rails], live.protected), 0o700)
        os.replace(folder, PENDING)
        rc, text = self._start_timer(self.seconds + APPLY_SECONDS)
        if rc != 0:
            shutil.rmtree(PENDING)
            raise RefusedError(f"The timer that restores the network could not be started ({text}); nothing was changed. Check that systemd runs on the node.")

    def extend(self) -> None:
        """Start the timer again: the change is complete and waits for its confirmation."""
        self._start_timer(self.seconds)

    def confirm(self) -> bool:
        """Stop the timer; return whether there was a pending change. A restore that runs is waited for."""
        if not self.live.module.check_mode:
            self._stop_timer()
            end = time.monotonic() + 180
            while self.live.active(TIMER) and time.monotonic() < end:
                time.sleep(1)
        found = self.exists()
        if found and not self.live.module.check_mode:
            shutil.rmtree(PENDING)
        return found

    def restored(self) -> dict[str, Any] | None:
        """Return the record of a restore that was not reported yet, and mark it as reported (not in check mode)."""
        record = self.live.record(RESTORED)
        if record is not None and not self.live.module.check_mode:
            os.replace(RESTORED, RESTORED.replace(".json", ".reported.json"))
        return record

    def _start_timer(self, seconds: int) -> tuple[int, str]:
        """Start the timer, or start it again."""
        self._stop_timer()
        timer = ["systemd-run", f"--unit={TIMER}", f"--on-active={seconds}s", "--timer-property=AccuracySec=1s", "--collect"]
        return self.live.run(*timer, "/bin/sh", f"{PENDING}/restore.sh")

    def _stop_timer(self) -> None:
        """Stop the timer; a restore that runs already continues."""
        self.live.run("systemctl", "stop", f"{TIMER}.timer")
        self.live.run("systemctl", "reset-failed", f"{TIMER}.timer", f"{TIMER}.service")
