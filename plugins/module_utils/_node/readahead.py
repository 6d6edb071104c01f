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

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, Editor, HostError, later_lines
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory, page_cache_guard
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import Settings, Wanted

RULE = "/etc/udev/rules.d/61-gb10-readahead.rules"
HEADER = f"{MARKER} (role readahead). Set readahead_state: absent to remove this file."
RESTORE_UNIT = "gb10-readahead-restore"
GUARD_UNIT = "gb10-page-cache-guard"
GUARD_RECEIPT = "/var/lib/gb10-cluster/page-cache-guard.json"
CLASSES = {
    "nvme": r"nvme\d+n\d+",
    "sd": r"sd[a-z]+",
    "virtio": r"vd[a-z]+",
    "md": r"md[\w.-]+",
    "dm": r"dm-\d+",
}
UDEV_NAMES = {"nvme": "nvme[0-9]*n[0-9]*", "sd": "sd*[!0-9]", "virtio": "vd*[!0-9]", "md": "md*", "dm": "dm-*"}
HIGHEST_KB = 65536
_PLAN = ("steady_kb", "restore_after", "guard", "guard_floor_gib", "guard_interval")


def check_kb(value: int, name: str, page_kb: int) -> int:
    """Return a read-ahead that is a number of whole pages. Raises HostError."""
    if value < 0 or value > HIGHEST_KB or value % page_kb:
        raise HostError(f"{name} is {value} KiB, expected 0 to {HIGHEST_KB} and a multiple of this kernel's pages of {page_kb} KiB.")
    return value


def check_name(name: str) -> str:
    """Return a kernel or mapper name that a udev rule and a shell take as it is. Raises HostError."""
    if not re.fullmatch(r"[\w.!+-]*", name, re.ASCII):
        raise HostError(f"The block device {name!r} has a name outside of A-Z a-z 0-9 _ . ! + -. Rename it, or leave it out of the readahead options.")
    return name


def render_rule(devices: Sequence[str], classes: Sequence[str], mappers: Mapping[str, str], kb: int) -> str:
    """Return the udev rule: by class where a class covers a device, by mapper name for dm, else by kernel name."""
    head = 'ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk"'
    matches = [f'KERNEL=="{UDEV_NAMES[name]}"' for name in classes]
    for device in devices:
        mapper = mappers.get(device, "")
        if not any(re.fullmatch(CLASSES[name], device) for name in classes):
            matches.append(f'ATTR{{dm/name}}=="{check_name(mapper)}"' if mapper else f'KERNEL=="{check_name(device)}"')
    return "\n".join([HEADER, *(f'{head}, {match}, ATTR{{queue/read_ahead_kb}}="{kb}"' for match in matches)]) + "\n"


def later_rules(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return the places of the rules that set read-ahead; `lines` are those that are read after ours."""
    return [place for place, line in lines if not line.startswith("#") and re.search(r'read_ahead_kb"?\}?\s*=\s*"', line)]


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
        "; ".join([*(f"echo {kb} > {sysfs_path(check_name(device))}" for device, kb in sorted(values.items())), "true"]),
    ]


def guard_command(python: str, floor_kb: int, seconds: int, interval: float) -> list[str]:
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
        f"--interval={interval:g}",
        f"--receipt={GUARD_RECEIPT}",
    ]


class Readahead:
    """The block devices of one node. All methods raise HostError, UmaError and OSError."""

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

    def devices(self, classes: Sequence[str], mounts: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return the devices of classes, paths and names, sorted."""
        wanted = [name for name in self.node.listdir("/sys/block") if any(re.fullmatch(CLASSES[each], name) for each in classes)]
        wanted += [name for path in mounts for name in self.of_path(path)]
        for name in names:
            if not self.below(f"/dev/{name}"):
                raise HostError(f"readahead_devices has {name}, which is not a block device with a read-ahead. lsblk lists the names.")
            wanted += self.below(f"/dev/{name}")
        if not wanted:
            options = ", ".join([*classes, *mounts, *names]) or "an empty list"
            raise HostError(f"No block device with a read-ahead matches {options}. Set readahead_devices to the disk of the model store (see lsblk).")
        return sorted(set(wanted))

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
        page_kb = self.node.page_kb() or memory.page_size_kb(memory.parse_meminfo(self.node.read("/proc/meminfo")), self.node.read("/proc/zoneinfo"))
        load_kb, steady_kb = (check_kb(int(settings[name]), f"readahead_{name}", page_kb) for name in ("load_kb", "steady_kb"))
        if int(settings["restore_after"]) < 60:
            raise HostError(f"readahead_restore_after is {settings['restore_after']} s, expected 60 s or more.")
        devices = self.devices(settings["classes"], settings["mounts"], settings["devices"])
        later = later_rules(later_lines(self.node, "udev/rules.d", RULE))
        self.notes += [f"{place} sets read-ahead after {RULE}" for place in later]
        mappers = {name: (self.node.read(f"/sys/block/{name}/dm/name") or "").strip() for name in devices}
        values = {sysfs_path(name): str(steady_kb) for name in devices}
        if self.active(f"{RESTORE_UNIT}.timer"):
            values = self.settings.live(values)
        remedy = f"{', '.join(later)} is read after {RULE}. Remove that line." if later else ""
        wanted = Wanted({RULE: render_rule(devices, settings["classes"], mappers, steady_kb)}, values, remedy)
        self.settings.check(wanted)
        self.settings.save(plan={"load_kb": load_kb, "devices": devices, **{key: settings[key] for key in _PLAN}})
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
        seconds = max(int(plan["restore_after"]), least_seconds)
        # The timer starts before anything changes: without the controller the node restores itself.
        self.edit.step(f"load phase for at most {seconds} s", *restore_command(steady, seconds))
        self.write_live({device: int(plan["load_kb"]) for device in steady})
        if plan["guard"]:
            floor_kb = int(float(plan["guard_floor_gib"]) * memory.GIB_KB)
            total = memory.parse_meminfo(self.node.read("/proc/meminfo")).get("MemTotal", 0)
            if floor_kb > total // 2:
                floor_kb = total // 16
                self.notes.append(f"readahead_guard_floor_gib is more than half of this node's memory. The guard uses {memory.gib(floor_kb)} GiB")
            command = guard_command(self.python, floor_kb, seconds, float(plan["guard_interval"]))
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
