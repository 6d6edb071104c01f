# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the dead man's switch of a network change: copies of what it touches, and a timer of systemd that restores them.

A change is pending while the folder `pending/` exists. The timer runs `pending/restore.sh`, unless the change is confirmed before. Both begin with a
renaming of the folder, so only one of them happens. A restart of the node ends the timer: the interface that carries SSH is never written, so the
next run reaches the node and confirms.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.live import Interface, Live, RefusedError

STATE_DIR = "/var/lib/gb10-cluster/roce"
PENDING = STATE_DIR + "/pending"
RESTORING = STATE_DIR + "/restoring"
RESTORED = STATE_DIR + "/restored.json"
BASELINE = STATE_DIR + "/baseline.json"
BACKUP_DIR = "/root/netplan-disabled"
TIMER = "gb10-roce-restore"
APPLY_SECONDS = 90  # for the change itself, in addition to confirm_seconds; the timer is started again when the change is complete


def restore_script(files: Mapping[str, str | None], sysctls: Mapping[str, str], rails: Sequence[Interface], protected: Sequence[Interface]) -> str:
    """Return the POSIX shell script that restores the state before a change.

    `files`: {absolute path: name of its copy, None if the file did not exist}; `protected`: interfaces of the management path, which get back what they lost.
    """
    quote = shlex.quote
    out = [
        "#!/bin/sh",
        "# Written by gb10.cluster (role roce): restores the state before an unconfirmed network change.",
        f"mv -T {PENDING} {RESTORING} || exit 0  # it was confirmed",
        f"exec >{STATE_DIR}/restore.log 2>&1",
        "set -x",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    for path, copy in sorted(files.items()):
        new = quote(path + ".gb10-restore")
        out.append(f"rm -f {quote(path)}" if copy is None else f"cp -p {RESTORING}/{copy} {new} && mv -T {new} {quote(path)}")
    out += [
        "systemctl is-active --quiet systemd-networkd.service && timeout 60 networkctl reload",
        "systemctl is-active --quiet NetworkManager.service && timeout 60 nmcli connection reload",
        "sleep 2",
    ]
    for item in rails:
        dev = quote(item.name)
        out += [f"ip link set dev {dev} mtu {item.mtu}"] if item.mtu is not None else []
        out += [
            f"for a in $(ip -o -4 addr show dev {dev} | awk '{{print $4}}'); do",
            f'  case " {" ".join(item.addresses)} " in *" $a "*) ;; *) ip addr del "$a" dev {dev} ;; esac',
            "done",
            *_addresses_back(item),
            f"ip link set dev {dev} {'up' if item.up else 'down'}",
        ]
    out += [f'[ ! -e {quote(path)} ] || [ "$(cat {quote(path)})" = {quote(value)} ] || echo {quote(value)} >{quote(path)}' for path, value in sysctls.items()]
    for item in protected:
        out += [f"ip link set dev {quote(item.name)} up"] if item.up else []
        out += [*_addresses_back(item), *(f"ip route replace {shlex.join(route.split())}" for route in item.routes)]
    out += [f'sed "s/@WHEN@/$(date -u +%Y-%m-%dT%H:%M:%SZ)/g" {RESTORING}/record.json >{RESTORED}.tmp && mv {RESTORED}.tmp {RESTORED}', f"rm -rf {RESTORING}"]
    return "\n".join(out) + "\n"


def _addresses_back(item: Interface) -> list[str]:
    """Return the lines that add the addresses that an interface has lost."""
    dev = shlex.quote(item.name)
    return [f"ip addr show dev {dev} | grep -qF 'inet {a} ' || ip addr add {shlex.quote(a)} brd + dev {dev}" for a in item.addresses]


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
        if (self.exists() and not self.confirm()) or (Path(RESTORING).is_dir() and live.active(TIMER)):
            raise RefusedError("The node restores its network after an unconfirmed change; nothing was changed. Run the roce role again.")
        for old in (folder, Path(RESTORING)):
            shutil.rmtree(old, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        os.chmod(STATE_DIR, 0o700)
        copies: dict[str, str | None] = {path: f"copy{number}" if Path(path).exists() else None for number, path in enumerate(files)}
        for path, copy in copies.items():
            if copy is not None:
                shutil.copy2(path, folder / copy)
                os.chown(folder / copy, os.stat(path).st_uid, os.stat(path).st_gid)  # networkd reads its files by their group
        protected = [live.interface(name, routes=True) for name in live.protected]
        script = restore_script(copies, live.sysctls(rails), [live.interface(name) for name in rails], protected)
        why = f"the change was not confirmed within {self.seconds} s, so the controller did not come back"
        message = f"At @WHEN@ this node put its network back as it was before ({summary}), because {why}."
        live.write(str(folder / "record.json"), json.dumps({"when": "@WHEN@", "message": message}) + "\n", 0o600)
        live.write(str(folder / "restore.sh"), script, 0o700)
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
        if self.live.module.check_mode:
            return self.exists()
        self._stop_timer()
        kept = f"{STATE_DIR}/confirmed"
        shutil.rmtree(kept, ignore_errors=True)
        try:
            os.replace(PENDING, kept)
        except FileNotFoundError:
            end = time.monotonic() + 180
            while Path(RESTORING).is_dir() and self.live.active(TIMER) and time.monotonic() < end:
                time.sleep(1)
            return False
        shutil.rmtree(kept, ignore_errors=True)
        return True

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
