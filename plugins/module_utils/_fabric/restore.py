# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live node during a network change, and the dead man's switch: a folder with copies of what the change touches, and a timer that restores them.

A change is pending while the folder exists: `systemctl stop` of the timer and the removal of the folder confirm it. A restart of the node ends the
timer: the interface that carries SSH is never written, so the next run reaches the node and confirms.
The folder BEFORE has the rails as they were before the first change, in the same form, for the undo by the same script.
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

from ansible_collections.gb10.cluster.plugins.module_utils._core import node_files
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import FileChange
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture, Node, find_ssh_connection, rdma_users, read_node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import RailConfig
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
        self.files = node_files.Node("/", node_files.runner(module))
        self.notes: list[str] = []
        self.capture: Capture
        self.node: Node
        self.protected: list[str] = []

    def read(self) -> None:
        """Read the node."""
        self.capture = read_node(self.module)
        self.node = Node(self.capture)
        self.protected = management(self.node, self.ssh_connection)["protected"]

    def run(self, *argv: str) -> tuple[int, str]:
        """Run a command; return its exit code and the end of its error output or output."""
        rc, out, err = self.module.run_command(list(argv), errors="surrogate_then_replace")
        return int(rc), str(err or out).strip()[-400:]

    def require(self, *argv: str) -> None:
        """Run a command that must succeed."""
        rc, text = self.run(*argv)
        if rc != 0:
            raise RefusedError(f"`{' '.join(argv)}` failed (rc {rc}): {text or 'no output'}. Correct that on the node and run the roce role again.")

    def ip(self, *words: str) -> None:
        """Run `ip`, which must succeed."""
        self.require(self.module.get_bin_path("ip", required=True), *words)

    def active(self, unit: str) -> bool:
        """Return whether a service runs."""
        return self.run("systemctl", "is-active", "--quiet", f"{unit}.service")[0] == 0

    def write(self, path: str, text: str, mode: int) -> None:
        """Write a file atomically."""
        self.files.apply(FileChange(path, None, text, mode), keep_mode=False)

    def text(self, path: str) -> str | None:
        """Return the text of a file, None if it cannot be read."""
        return self.files.read(path)

    def interface(self, name: str) -> Interface:
        """Return the state of an interface."""
        record = self.node.links.get(name, {})
        addresses = tuple(a.cidr for a in self.node.addresses(name) if a.family == "inet")
        return Interface(name, "UP" in record.get("flags", []), record.get("mtu"), addresses)

    def fits(self, rail: RailConfig) -> bool:
        """Return whether a rail has its address and MTU."""
        live = self.interface(rail.interface)
        return rail.address in live.addresses and live.mtu == rail.mtu

    def set_rail(self, rail: RailConfig) -> None:
        """Give a rail its MTU and address; it keeps other addresses."""
        name, live = rail.interface, self.interface(rail.interface)
        if live.mtu != rail.mtu:
            self.ip("link", "set", "dev", name, "mtu", str(rail.mtu))
        if rail.address not in live.addresses:
            self.ip("addr", "add", rail.address, "brd", "+", "dev", name)
        if not live.up:
            self.ip("link", "set", "dev", name, "up")

    def refuse_in_use(self, rails: Iterable[str]) -> None:
        """Refuse a change while a process uses RDMA."""
        users = rdma_users()
        if users:
            raise RefusedError(
                f"{', '.join(users[:4])} use(s) RDMA on this node, and changing {', '.join(rails)} would break that; nothing was changed. "
                "Stop the serving group first (playbooks/stop.yml)."
            )

    def load_sysctls(self, path: str) -> None:
        """Set the kernel values of a file."""
        rc, text = self.run(self.module.get_bin_path("sysctl", required=True), "-e", "-q", "-p", path)
        if rc or text:
            self.notes.append(f"Kernel values of {path} could not be set: {text}")


# --- The dead man's switch, and the undo.

STATE_DIR = "/var/lib/gb10-cluster/roce"
PENDING = STATE_DIR + "/pending"
BEFORE = STATE_DIR + "/before"
RESTORED = STATE_DIR + "/restored.json"
BACKUP_DIR = "/root/netplan-disabled"
TIMER = "gb10-roce-restore"
APPLY_SECONDS = 90  # for the change itself, in addition to confirm_seconds; the timer is started again when the change is complete

# Restores what `save_commands` has saved in the folder $1, and removes the folder. A rail has a .link, and becomes exactly what it was; the management
# path gets back what it lost. All kernel values of a rail: netplan's renderers change more than we do.
# What the kernel refuses is in the timer's record. An undo fails with it, and keeps the folder for the next one.
# Not `ip route restore`: it ends at the first refusal, and the kernel refuses each route that was saved without a carrier ("linkdown" of `ip route`).
RESTORE = r"""#!/bin/sh
cd "$1" || exit 0  # it was confirmed
exec 3>&2 >../restore.log 2>&1
set -x
PATH=/usr/sbin:/usr/bin:/sbin:/bin
rm -f refused
refused() { echo " $*;" | tr -cd '[:alnum:] ./:;@_-' >>refused; }
if [ -e files.tar ]; then
  xargs -r -d '\n' rm -f -- <new
  tar -xPf files.tar
  systemctl is-active --quiet systemd-networkd.service && timeout 60 networkctl reload
  systemctl is-active --quiet NetworkManager.service && timeout 60 nmcli connection reload
  sleep 2
fi
for saved in *.addr; do
  name=${saved%.addr}
  [ -e "/proc/sys/net/ipv4/conf/$name" ] || continue
  [ -e "$name.link" ] && ip -4 addr flush dev "$name"
  ip -4 addr restore <"$saved" || refused "addresses of $name"
  state=$(cat "$name.link" || echo up)
  ip link set dev "$name" $state || refused "$name $state"
  for pass in 1 2; do  # a gateway needs the route of its network
    sed 's/ linkdown//; s/ dead//' "$name.route" | while read -r route; do
      answer=$(ip -4 route append $route dev "$name" 2>&1) && continue
      case $pass$answer in 1*|*"File exists"*) ;; *) refused "$route dev $name" ;; esac
    done
  done
done
set +x
cat ./*.sysctl | while IFS=: read -r path value; do read -r now <"$path"; [ "$now" = "$value" ] || echo "$value" >"$path"; done
lost=$(cat refused)
if [ -e record.json ]; then
  lost=${lost:+" Not restored, because the kernel refused it:$lost"}
  sed "s/@WHEN@/$(date -u +%Y-%m-%dT%H:%M:%SZ)/g; s|@LOST@|$lost|" record.json >../restored.json
elif [ "$lost" ]; then
  echo "not restored, because the kernel refused it:$lost" >&3
  exit 1
fi
rm -rf "$1"
"""


def save_commands(rails: Iterable[Interface], values: Iterable[str] = (), others: Iterable[str] = (), files: Sequence[str] = ()) -> str:
    """Return the shell commands that save, in the folder that is current, what RESTORE restores.

    `rails` with everything, `values`: interfaces of which only the kernel values are saved, `others`: those of the management path, `files`: absolute paths.
    """
    out = ["PATH=$PATH:/usr/sbin:/sbin"]
    if files:
        there = [quote(path) for path in files if Path(path).exists()]
        out += [f"tar -cPf files.tar -T /dev/null {' '.join(there)}"]  # with owner and mode, by which networkd reads its files
        out += [f"printf '%s\\n' {' '.join(quote(path) for path in files if not Path(path).exists())} >new"]
    for name in (*(quote(rail.name) for rail in rails), *map(quote, others)):
        out += [f"ip -4 addr save dev {name} >{name}.addr", f"ip -4 route show dev {name} >{name}.route"]
    for name in (*(quote(rail.name) for rail in rails), *map(quote, values)):
        out += [f"grep -rs . /proc/sys/net/ipv4/conf/{name} /proc/sys/net/ipv6/conf/{name} >{name}.sysctl || true  # some cannot be read"]
    out += [f"echo {f'mtu {rail.mtu} ' if rail.mtu else ''}{'up' if rail.up else 'down'} >{quote(rail.name)}.link" for rail in rails]
    return "\n".join(out) + "\n"


class PendingChange:
    """The pending network change of a node, and what was before the first one."""

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
        files = [*files, f"{BEFORE}/moves.json", *(f"{BEFORE}/{name}.{kind}" for name in rails for kind in ("addr", "route", "sysctl", "link"))]
        self._save(folder, save_commands([live.interface(name) for name in rails], others=live.protected, files=files))
        why = f"the change was not confirmed within {self.seconds} s, so the controller did not come back"
        message = f"At @WHEN@ this node put its network back as it was before ({summary}), because {why}.@LOST@"
        live.write(str(folder / "record.json"), json.dumps({"when": "@WHEN@", "message": message}) + "\n", 0o600)
        live.write(str(folder / "restore.sh"), RESTORE, 0o700)
        os.replace(folder, PENDING)
        rc, text = self._start_timer(self.seconds + APPLY_SECONDS)
        if rc != 0:
            shutil.rmtree(PENDING)
            raise RefusedError(f"The timer that restores the network could not be started ({text}); nothing was changed. Check that systemd runs on the node.")

    def _save(self, folder: Path, commands: str) -> None:
        """Run commands that save the current state in a folder of root."""
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        os.chmod(STATE_DIR, 0o700)
        self.live.require("/bin/sh", "-ec", f"cd {folder}\n{commands}")

    def keep_first(self, ours: Sequence[str], all_rails: Sequence[str], backups: Mapping[str, str]) -> None:
        """Keep what is before the first change of each rail, for the undo: all of those that we configure, the kernel values of the others."""
        folder = Path(BEFORE)
        new = [self.live.interface(name) for name in ours if not (folder / f"{name}.link").exists()]
        values = [name for name in all_rails if name not in ours and not (folder / f"{name}.sysctl").exists()]
        self._save(folder, save_commands(new, values))
        known = self.live.files.mapping(f"{BEFORE}/moves.json")
        self.live.write(f"{BEFORE}/moves.json", json.dumps({**backups, **known}) + "\n", 0o600)

    def undo(self) -> None:
        """Make the rails what they were before their first change."""
        self.live.write(f"{BEFORE}/restore.sh", RESTORE, 0o700)
        self.live.require("/bin/sh", f"{BEFORE}/restore.sh", BEFORE)

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
        record = self.live.files.mapping(RESTORED) or None
        if record is not None and not self.live.module.check_mode:
            os.replace(RESTORED, RESTORED.replace(".json", ".reported.json"))
        return record

    def _start_timer(self, seconds: int) -> tuple[int, str]:
        """Start the timer, or start it again."""
        self._stop_timer()
        timer = ["systemd-run", f"--unit={TIMER}", f"--on-active={seconds}s", "--timer-property=AccuracySec=1s", "--collect"]
        return self.live.run(*timer, "/bin/sh", f"{PENDING}/restore.sh", PENDING)

    def _stop_timer(self) -> None:
        """Stop the timer; a restore that runs already continues."""
        self.live.run("systemctl", "stop", f"{TIMER}.timer")
        self.live.run("systemctl", "reset-failed", f"{TIMER}.timer", f"{TIMER}.service")
