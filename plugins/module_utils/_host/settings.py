# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Apply what a host role wants of a node: files with a marker and values of the kernel; read them back; restore what was there before.

The record has what was there before the first change, and only of what is set now. So the undo is the same as a wish for nothing.
Values are strings with single blanks. Their names are sysctls (`vm.min_free_kbytes`) or files of the kernel (`/sys/block/sda/queue/read_ahead_kb`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import MARKER, HostError

#: What takes the files of a folder over. The last one is removed with its last file.
TAKES_OVER = {"/etc/udev/rules.d": ("udevadm", "control", "--reload"), "/etc/systemd/system.conf.d": ("systemctl", "daemon-reload")}
#: The kernel uses one of each pair: a write to one sets the other to 0.
PARTNERS = {"vm.dirty_ratio": "vm.dirty_bytes", "vm.dirty_background_ratio": "vm.dirty_background_bytes"}


class Wanted(NamedTuple):
    """What a role wants. A file without a text is removed if it has the marker. `later` is the remedy for a value that does not stay."""

    files: Mapping[str, str | None]
    values: Mapping[str, str]
    later: str = ""


def squeeze(value: object) -> str:
    """Return a value with single blanks, to compare it."""
    return " ".join(str(value).split())


def kernel_path(name: str) -> str:
    """Return the file of a value: /proc/sys/vm/swappiness."""
    return name if name.startswith("/") else "/proc/sys/" + name.translate(str.maketrans("./", "/."))


class Settings:
    """The settings of one role on a node. All methods raise HostError and OSError."""

    def __init__(self, edit: Editor, role: str) -> None:
        """Read the record."""
        self.edit = edit
        self.node = edit.node
        self.role = role
        self.record: dict[str, Any] = self.node.load_record(role)

    def save(self, **parts: Any) -> None:
        """Keep parts of the record. It is written before the change that it describes."""
        self.record = {**self.record, **parts}
        self.edit.save_record(self.role, {key: value for key, value in self.record.items() if value})

    def live(self, names: Iterable[str]) -> dict[str, str]:
        """Return the live values that the kernel has."""
        texts = {name: self.node.read(kernel_path(name)) for name in sorted(set(names))}
        return {name: squeeze(text) for name, text in texts.items() if text is not None}

    def check(self, wanted: Wanted) -> None:
        """Refuse files of others and values that the kernel does not have, before anything is changed."""
        for path, text in wanted.files.items():
            if text is not None:
                self.edit.require_own(path, MARKER)
        missing = sorted(set(wanted.values) - set(self.live(wanted.values)))
        if missing:
            raise HostError(f"This kernel has no {', '.join(missing)} ({kernel_path(missing[0])} does not exist). Correct the settings of {self.role}.")

    def apply(self, wanted: Wanted) -> None:
        """Record, write files and values, restore what is not wanted any more, and read all back."""
        self.check(wanted)
        before = dict(self.record.get("values", {}))
        live = self.live([*wanted.values, *(PARTNERS[name] for name in wanted.values if name in PARTNERS), *before])
        for name in wanted.values:
            partner = PARTNERS.get(name, name)
            if name not in before and partner not in before:
                used = partner if live.get(partner, "0") != "0" else name
                before[used] = live[used]
        self.save(values=before)
        self.set_files(wanted.files)
        pairs = {PARTNERS.get(name, name) for name in wanted.values}
        kept = {name: value for name, value in before.items() if PARTNERS.get(name, name) in pairs}
        values = {**{name: value for name, value in before.items() if name in live and name not in kept}, **dict(sorted(wanted.values.items()))}
        self.edit.write_live("live kernel", values, live, kernel_path)
        self.save(values=kept)
        self.read_back(values, wanted.later)

    def set_files(self, files: Mapping[str, str | None]) -> None:
        """Write the files, remove those without a text, and have them taken over."""
        for path, text in files.items():
            if text is None and MARKER not in (self.node.read(path) or ""):
                continue
            folder = os.path.dirname(path)
            if self.edit.write(path, text, f"{path} {'removed' if text is None else 'written'}") and folder in TAKES_OVER:
                if text is None and folder == list(TAKES_OVER)[-1]:
                    self.edit.remove_empty_folder(folder)
                self.edit.command(*TAKES_OVER[folder])

    def read_back(self, values: Mapping[str, str], later: str) -> None:
        """Compare the live values with those that were written."""
        live = self.live(values) if not self.edit.check_mode else values
        wrong = [f"{name} is {live.get(name, 'missing')}, expected {value}" for name, value in sorted(values.items()) if live.get(name) != value]
        if wrong:
            rc, _out, _err = self.node.run(["systemctl", "is-active", "tuned.service"])
            profile = (self.node.read("/etc/tuned/active_profile") or "unknown profile").strip()
            guess = f"tuned ({profile}) runs on this node and may set it." if rc == 0 else "Find the service that sets it (tuned, a cron job, rc.local)."
            raise HostError(f"The live kernel differs from what was written: {', '.join(wrong)}. {later or guess}")
