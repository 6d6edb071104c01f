# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read-ahead of a node's disks: the udev rule, the live values, and the switch between the load phase and the steady phase.

Read-ahead is KiB, as in /sys/block/*/queue/read_ahead_kb (`blockdev --setra` counts sectors of half a KiB). A file system uses the value of
its own device, so all devices of a chain are set: the mapper, the array, the disks below.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, Editor
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory, page_cache_guard
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import Settings, Wanted

RULE = "/etc/udev/rules.d/61-gb10-readahead.rules"  # udev notices new files by itself
HEADER = f"{MARKER} (role readahead). Set readahead_state: absent to remove this file."
#: What stays at a boot, where kernel names may change; udev knows it before our rule. The UUID of an array comes after it.
IDENTITIES = ("ID_SERIAL", "ID_WWN", "DM_UUID")
RESTORE_UNIT = "gb10-readahead-restore"
GUARD_UNIT = "gb10-page-cache-guard"
GUARD_RECEIPT = "/var/lib/gb10-cluster/page-cache-guard.json"
HIGHEST_KB = 65536
LOAD_SECONDS = 2700  # a first boot takes up to 36 minutes
_PLAN = ("load_kb", "steady_kb", "guard", "guard_floor_gib")


def render_rule(matches: Sequence[str], kb: int) -> str:
    """Return the udev rule; see `Readahead.udev_match`."""
    head = 'ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk"'
    return "\n".join([HEADER, *(f'{head}, {match}, ATTR{{queue/read_ahead_kb}}="{kb}"' for match in dict.fromkeys(matches))]) + "\n"


def sysfs_path(device: str) -> str:
    """Return the file of a device's read-ahead."""
    return f"/sys/block/{device}/queue/read_ahead_kb"


def restore_command(values: Mapping[str, int], seconds: int) -> list[str]:
    """Return the systemd-run that restores the steady values after `seconds`. A device that was removed does not stop it."""
    return [
        "systemd-run",
        "--collect",
        f"--unit={RESTORE_UNIT}",
        "--description=gb10.cluster: restore the steady read-ahead",
        f"--on-active={seconds}",
        "--timer-property=AccuracySec=1s",
        "/bin/sh",
        "-c",
        "; ".join([*(f"echo {kb} > {sysfs_path(device)}" for device, kb in sorted(values.items())), "true"]),
    ]


def guard_command(python: str, floor_kb: int, seconds: int) -> list[str]:
    """Return the systemd-run of the page-cache guard, which the OOM killer takes last. It is run from the program that runs this, with a time limit."""
    return [
        "systemd-run",
        "--collect",
        f"--unit={GUARD_UNIT}",
        "--description=gb10.cluster: page-cache guard while weights load",
        f"--property=RuntimeMaxSec={seconds + 30}",
        "--property=OOMScoreAdjust=-900",
        "--property=Nice=-10",
        f"--setenv=PYTHONPATH={page_cache_guard.__file__.partition('/ansible_collections/')[0]}",
        python,
        "-m",
        page_cache_guard.__name__,
        f"--floor-kb={floor_kb}",
        f"--seconds={seconds}",
        f"--receipt={GUARD_RECEIPT}",
    ]


class Readahead:
    """The block devices of one node. All methods raise HostError and OSError."""

    def __init__(self, edit: Editor, python: str = sys.executable) -> None:
        """Read the record."""
        self.edit = edit
        self.node = edit.node
        self.python = python
        self.notes: list[str] = []
        self.settings = Settings(edit, "readahead")

    def read_kb(self, device: str) -> int | None:
        """Return the live read-ahead of a device."""
        text = (self.node.read(sysfs_path(device)) or "").strip()
        return int(text) if text.isdigit() else None

    def below(self, device: str) -> list[str]:
        """Return a device and those below it that have a read-ahead: the mapper, the array, the disks. A partition has none of its own."""
        _rc, out, _err = self.node.run(["lsblk", "--inverse", "--list", "--noheadings", "--output", "KNAME", device])
        return [name for name in dict.fromkeys(out.split()) if self.read_kb(name) is not None]

    def of_path(self, path: str) -> list[str]:
        """Return the devices of the file system that has `path` or will have it; note one without."""
        folder = path
        while not self.node.exists(folder) and folder != "/":
            folder = os.path.dirname(folder)
        _rc, out, _err = self.node.run(["findmnt", "--noheadings", "--nofsroot", "--output", "FSTYPE,SOURCE", "--target", folder])
        kind, source = (*(out.strip().splitlines() or [""])[-1].split(None, 1), "", "")[:2]
        found = self.below(source) if source.startswith("/") else []
        if not found:
            self.notes.append(f"{path} is on {kind} ({source.strip()}), which does not have a read-ahead of its own")
        return found

    def udev_match(self, device: str) -> str:
        """Return how a udev rule finds a device at each boot: by its identity, else by its kernel name.

        A disk writes its serial number itself, so one with other characters, such as quotes or those of a pattern, is not used.
        """
        _rc, out, _err = self.node.run(["udevadm", "info", "--query=property", f"--path=/sys/block/{device}"])
        known = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        usable = [f'ENV{{{key}}}=="{known[key]}"' for key in IDENTITIES if re.fullmatch(r"[\w.:+-]+", known.get(key, ""), re.ASCII)]
        return (*usable, f'KERNEL=="{device}"')[0]

    def write_live(self, values: Mapping[str, int]) -> None:
        """Write the live read-ahead of the devices that still exist."""
        wanted = {sysfs_path(name): str(kb) for name, kb in sorted(values.items())}
        live = self.settings.live(wanted)
        self.edit.write_live("live read-ahead", {path: kb for path, kb in wanted.items() if path in live}, live, str)

    def active(self, unit: str) -> bool:
        """Return whether a unit is active."""
        return self.node.run(["systemctl", "is-active", unit])[0] == 0

    def end_load(self) -> None:
        """Stop the guard, then the timer."""
        for unit in (f"{GUARD_UNIT}.service", f"{RESTORE_UNIT}.timer"):
            if self.active(unit):
                self.edit.step(f"{unit} stopped", "systemctl", "stop", unit)

    def present(self, settings: Mapping[str, Any]) -> None:
        """Set the steady phase and keep the plan. A load phase that runs ends with these values."""
        devices = sorted({name for path in settings["mounts"] for name in self.of_path(path)})
        values = {sysfs_path(name): str(int(settings["steady_kb"])) for name in devices}
        if self.active(f"{RESTORE_UNIT}.timer"):
            values = self.settings.live(values)
        matches = [self.udev_match(name) for name in devices]
        wanted = Wanted({RULE: render_rule(matches, int(settings["steady_kb"])) if devices else None}, values)
        self.settings.check(wanted)
        self.settings.save(plan={"devices": devices, **{key: settings[key] for key in _PLAN}})
        self.settings.apply(wanted)

    def absent(self) -> None:
        """Restore the values from before the first run."""
        self.end_load()
        self.edit.write(GUARD_RECEIPT, None, f"{GUARD_RECEIPT} removed")
        self.settings.save(plan=None)
        self.settings.apply(Wanted({RULE: None}, {}))

    def switch(self, phase: str, least_seconds: int) -> None:
        """Switch to the phase `load`, for this time or longer, or to `steady`, by the plan of the record."""
        plan = self.settings.record.get("plan")
        if not plan:
            self.notes.append("the readahead role has not run on this node, so there is no plan to switch by: run --tags readahead first")
            return
        steady = {device: int(plan["steady_kb"]) for device in plan["devices"] if self.read_kb(device) is not None}
        self.end_load()
        if phase == "steady":
            self.write_live(steady)
            return
        seconds = max(LOAD_SECONDS, least_seconds)
        # The timer starts before anything changes: without the controller the node restores itself.
        self.edit.step(f"load phase for at most {seconds} s", *restore_command(steady, seconds))
        self.write_live({device: int(plan["load_kb"]) for device in steady})
        if plan["guard"]:
            floor_kb = int(float(plan["guard_floor_gib"]) * memory.GIB_KB)
            total = memory.parse_meminfo(self.node.read("/proc/meminfo")).get("MemTotal", 0)
            if floor_kb > total // 2:
                floor_kb = total // 16
                self.notes.append(f"readahead_guard_floor_gib is more than half of this node's memory. The guard uses {memory.gib(floor_kb)} GiB")
            command = guard_command(self.python, floor_kb, seconds)
            self.edit.step(f"page-cache guard started, floor {memory.gib(floor_kb)} GiB", *command)

    def skips(self) -> bool:
        """Return whether this node is a container, and note it."""
        container = memory.container_reason(self.node)
        if container:
            self.notes.append(f"this node is a container ({container}), where block devices and the page cache belong to the host: nothing was changed")
        return bool(container)

    def phase(self, phase: str, least_seconds: int) -> list[str]:
        """Switch to a phase, and return what the user has to read."""
        if not self.skips():
            self.switch(phase, least_seconds)
        return self.notes

    def run(self, state: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the state, and return the module's result. `settings` are the variables of the role"""
        if not self.skips():
            if state == "absent":
                self.absent()
            else:
                self.present(settings)
        return {**self.edit.changes.result(), "shown": ["; ".join(self.notes)] if self.notes else []}
