# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the dead man's switch of a network change: a folder with copies of what it touches, and a timer of systemd that restores them.

A change is pending while the folder exists: `systemctl stop` of the timer and the removal of the folder confirm it. A restart of the node ends the
timer: the interface that carries SSH is never written, so the next run reaches the node and confirms.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.live import Interface, Live, RefusedError

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
