# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the pending network change of a node: its restore script, the timer that runs it, and its confirmation.

A change is pending while the folder `pending/` exists. The timer runs `pending/restore.sh` unless the change is confirmed before; after a
restart of the node a unit runs it at boot. Both end with a renaming of the folder, so only one of restore and confirmation happens.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric import commit_confirm
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.live import Live, RefusedError

APPLY_SECONDS = 90  # for the change itself, in addition to confirm_seconds; the timer is started again when the change is complete


class PendingChange:
    """Commit-confirm on the live node."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.seconds: int = live.module.params["confirm_seconds"]

    def exists(self) -> bool:
        """Return whether an unconfirmed change exists."""
        return Path(commit_confirm.PENDING).is_dir()

    @staticmethod
    def boot_id() -> str:
        """Return the kernel's id of this boot."""
        return Path("/proc/sys/kernel/random/boot_id").read_text()

    def arm(self, files: list[str], rails: list[str], summary: str) -> None:
        """Save the current state and start the timer. An earlier unconfirmed change is restored together with this one."""
        if Path(commit_confirm.RESTORING).exists():
            raise RefusedError(
                f"A restore of the network on this node is not complete ({commit_confirm.RESTORING} exists); nothing was changed."
                f" Run `sh {commit_confirm.RESTORING}/restore.sh boot` on the node or restart it, then run the roce role again."
            )
        again = self.exists()
        earlier = self._earlier() if again else None
        try:
            self._save(files, rails, summary, earlier)
        except (OSError, RefusedError):
            if again:
                self._start_timer(1)  # the earlier change has no timer now
            raise
        rc, text = self._start_timer(self.seconds + APPLY_SECONDS)
        if rc != 0:
            if not again:
                self._clear()
            raise RefusedError(f"The timer that restores the network could not be started ({text}); nothing was changed. Check that systemd runs on the node.")

    def extend(self) -> None:
        """Start the timer again: the change is complete and waits for its confirmation."""
        self._start_timer(self.seconds)

    def confirm(self) -> bool:
        """Stop the timer; return whether there was a pending change."""
        if self.live.module.check_mode:
            return self.exists()
        if self.live.text(commit_confirm.BOOT_ID) not in (None, self.boot_id()):
            # The node restarted during the change, so it must not be kept. The boot unit does the same, whichever comes first.
            self.live.run("/bin/sh", f"{commit_confirm.PENDING}/restore.sh", "boot")
        self._stop_timer()
        done = self._clear()
        end = time.monotonic() + 180
        while not done and Path(commit_confirm.RESTORING).exists() and time.monotonic() < end:
            time.sleep(1)
        return done

    def restored(self) -> dict[str, Any] | None:
        """Return the record of a restore that was not reported yet, and mark it as reported (not in check mode)."""
        try:
            record = self.live.record(commit_confirm.RESTORED)
        except RefusedError:
            record = {"when": "an unknown time", "why": "a reason that could not be read"}
        if record is not None:
            record["message"] = commit_confirm.restored_sentence(record)
            if not self.live.module.check_mode:
                os.replace(commit_confirm.RESTORED, commit_confirm.RESTORED.replace(".json", ".reported.json"))
        return record

    def _earlier(self) -> commit_confirm.Snapshot:
        """Return the state before the earlier unconfirmed change, and stop its timer."""
        self._stop_timer()
        if not self.exists():
            raise RefusedError("The node is restoring its network after an unconfirmed change; nothing was changed. Run the roce role again.")
        try:
            return commit_confirm.snapshot_of(self.live.record(commit_confirm.SNAPSHOT) or {})
        except (RefusedError, KeyError, TypeError) as exc:
            self._start_timer(1)
            raise RefusedError(
                f"{commit_confirm.SNAPSHOT} does not contain the state before the unconfirmed change, so the node restores that change now;"
                " nothing else was changed. Run the roce role again."
            ) from exc

    def _save(self, files: list[str], rails: list[str], summary: str, earlier: commit_confirm.Snapshot | None) -> None:
        """Save the current state, merged with the state before an earlier unconfirmed change."""
        live = self.live
        folder = Path(f"{commit_confirm.STATE_DIR}/staging" if earlier is None else commit_confirm.PENDING)
        if earlier is None:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "files").mkdir(parents=True, mode=0o700)
            os.chmod(commit_confirm.STATE_DIR, 0o700)
        copies: dict[str, str | None] = {}
        for path in files:
            if earlier is not None and path in earlier.files:
                continue
            copies[path] = hashlib.sha256(path.encode()).hexdigest()[:16] if Path(path).exists() else None
            if copies[path] is not None:
                shutil.copy2(path, folder / "files" / str(copies[path]))
                os.chown(folder / "files" / str(copies[path]), os.stat(path).st_uid, os.stat(path).st_gid)  # networkd reads its files by their group
        snapshot = commit_confirm.Snapshot(
            files=copies,
            sysctls=live.sysctls(rails),
            rails=[live.interface(name) for name in rails],
            protected=[live.interface(name, routes=True) for name in live.protected],
            seconds=self.seconds,
            summary=summary,
        )
        if earlier is not None:
            snapshot = commit_confirm.merge_snapshots(earlier, snapshot)
        live.write(str(folder / Path(commit_confirm.SNAPSHOT).name), commit_confirm.snapshot_text(snapshot), 0o600)
        live.write(str(folder / "restore.sh"), commit_confirm.restore_script(snapshot), 0o700)
        if earlier is None:
            os.replace(folder, commit_confirm.PENDING)
            live.write(commit_confirm.BOOT_UNIT, commit_confirm.boot_unit(), 0o644)
            wants = Path(commit_confirm.BOOT_WANTS)
            wants.parent.mkdir(parents=True, exist_ok=True)
            if not wants.is_symlink():
                wants.symlink_to(commit_confirm.BOOT_UNIT)
        live.write(commit_confirm.BOOT_ID, self.boot_id(), 0o600)

    def _start_timer(self, seconds: int) -> tuple[int, str]:
        """Start the timer, or start it again."""
        self._stop_timer()
        timer = ["systemd-run", f"--unit={commit_confirm.TIMER}", f"--on-active={seconds}s", "--timer-property=AccuracySec=1s", "--collect"]
        return self.live.run(*timer, "/bin/sh", f"{commit_confirm.PENDING}/restore.sh", "timer")

    def _stop_timer(self) -> None:
        """Stop the timer; a restore that runs already continues."""
        self.live.run("systemctl", "stop", f"{commit_confirm.TIMER}.timer")
        self.live.run("systemctl", "reset-failed", f"{commit_confirm.TIMER}.timer", f"{commit_confirm.TIMER}.service")

    def _clear(self) -> bool:
        """Remove the pending change; return False if a restore was first."""
        done = Path(commit_confirm.STATE_DIR) / "confirmed"
        shutil.rmtree(done, ignore_errors=True)
        try:
            os.replace(commit_confirm.PENDING, done)
        except FileNotFoundError:
            return False
        for path in (commit_confirm.BOOT_WANTS, commit_confirm.BOOT_UNIT):
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(done, ignore_errors=True)
        return True
