# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Set the read-ahead of a node's disks, and switch between the load phase and the steady phase."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, memory_facts, readahead
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import HostError, later_lines
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead import GUARD_RECEIPT, MARKER, RULE, Block

RECORD = "readahead"
_PLAN = ("steady_kb", "restore_after", "guard", "guard_floor_gib", "guard_interval")


class Readahead:
    """The block devices of one node. All methods raise HostError, UmaError and OSError."""

    def __init__(self, edit: Editor, python: str = sys.executable) -> None:
        """Read the record."""
        self.edit = edit
        self.node = edit.node
        self.python = python
        self.notes: list[str] = []
        self.record = edit.node.load_record(RECORD)

    def read_kb(self, device: str) -> int | None:
        """Return the live read-ahead of a device."""
        text = (self.node.read(readahead.sysfs_path(device)) or "").strip()
        return int(text) if text.isdigit() else None

    def blocks(self) -> dict[str, Block]:
        """Return all block devices."""
        found: dict[str, Block] = {}
        for name in self.node.listdir("/sys/class/block"):
            folder = f"/sys/class/block/{name}"
            target = self.node.link(folder) or name
            disk = os.path.basename(os.path.dirname(target)) if self.node.exists(f"{folder}/partition") else name
            mapper = (self.node.read(f"{folder}/dm/name") or "").strip()
            found[name] = Block(name, disk, tuple(self.node.listdir(f"{folder}/slaves")), self.read_kb(name), mapper)
        return found

    def device_of(self, path: str) -> tuple[str | None, str]:
        """Return the device of the file system that has `path` or will have it, and a description of the file system."""
        while not self.node.exists(path) and path != "/":
            path = os.path.dirname(path)
        _rc, out, _err = self.node.run(["findmnt", "--noheadings", "--output", "MAJ:MIN,FSTYPE,SOURCE", "--target", path])
        number, kind, source = (*(out.strip().splitlines() or [""])[-1].split(None, 2), "", "", "")[:3]
        link = self.node.link(f"/sys/dev/block/{number}")
        return (os.path.basename(link) if link else None), f"{kind} ({source.strip()})"

    def write_live(self, values: Mapping[str, int]) -> None:
        """Write the live read-ahead of the devices that still exist."""
        live = {device: str(kb) for device, kb in ((device, self.read_kb(device)) for device in values) if kb is not None}
        wanted = {device: str(kb) for device, kb in sorted(values.items()) if device in live}
        self.edit.write_live("live read-ahead", wanted, live, readahead.sysfs_path, " KiB")

    def write_rule(self, text: str | None) -> None:
        """Write or remove the udev rule."""
        if self.edit.write(RULE, text, f"{RULE} {'written' if text else 'removed'}"):
            self.edit.command("udevadm", "control", "--reload")

    def active(self, unit: str) -> bool:
        """Return whether a unit is active."""
        return self.node.run(["systemctl", "is-active", unit])[0] == 0

    def end_load(self) -> None:
        """Stop the guard, then the timer."""
        for unit in (f"{readahead.GUARD_UNIT}.service", f"{readahead.RESTORE_UNIT}.timer"):
            if self.active(unit):
                self.edit.step(f"{unit} stopped", "systemctl", "stop", unit)

    def present(self, params: Mapping[str, Any]) -> None:
        """Set the steady phase and keep the plan."""
        page_kb = self.node.page_kb() or memory.page_size_kb(memory.parse_meminfo(self.node.read("/proc/meminfo")), self.node.read("/proc/zoneinfo"))
        load_kb, steady_kb = (readahead.check_kb(params[name], f"readahead_{name}", page_kb) for name in ("load_kb", "steady_kb"))
        if params["restore_after"] < 60:
            raise HostError(f"readahead_restore_after is {params['restore_after']} s, expected 60 s or more.")
        blocks = self.blocks()
        devices, notes = readahead.select(blocks, params["classes"], {path: self.device_of(path) for path in params["mounts"]}, params["devices"])
        self.edit.require_own(RULE, MARKER)
        later = readahead.later_rules(later_lines(self.node, "udev/rules.d", RULE))
        self.notes += [*notes, *(f"{place} sets read-ahead after {RULE}" for place in later)]

        old = {device: kb for device, kb in self.record.get("before", {}).items() if device in blocks}
        gone = {device: kb for device, kb in old.items() if device not in devices}
        before = {device: old.get(device, blocks[device].kb) for device in devices}
        plan = {"load_kb": load_kb, "devices": devices, **{key: params[key] for key in _PLAN}}
        self.edit.save_record(RECORD, {"before": {**gone, **before}, "plan": plan})
        self.write_rule(readahead.render_rule(devices, params["classes"], blocks, steady_kb))
        if self.active(f"{readahead.RESTORE_UNIT}.timer"):  # a load phase ends with these values
            return
        steady = dict.fromkeys(devices, steady_kb)
        self.write_live({**gone, **steady})
        self.edit.save_record(RECORD, {"before": before, "plan": plan})
        problem = "" if self.edit.check_mode else readahead.mismatch_message(steady, {device: self.read_kb(device) for device in devices}, later)
        if problem:
            raise HostError(problem)

    def absent(self) -> None:
        """Restore the values from before the first run."""
        self.end_load()
        if MARKER in (self.node.read(RULE) or ""):
            self.write_rule(None)
        self.edit.write(GUARD_RECEIPT, None, f"{GUARD_RECEIPT} removed")
        self.write_live(self.record.get("before", {}))
        self.edit.save_record(RECORD, {})

    def switch(self, phase: str, least_seconds: int) -> None:
        """Switch to the phase `load`, for this time or longer, or to `steady`, by the plan of the record."""
        plan = self.record.get("plan")
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
        self.edit.step(f"load phase for at most {seconds} s", *readahead.restore_command(steady, seconds))
        self.write_live({device: int(plan["load_kb"]) for device in steady})
        if plan["guard"]:
            floor_kb = int(float(plan["guard_floor_gib"]) * memory.GIB_KB)
            total = memory.parse_meminfo(self.node.read("/proc/meminfo")).get("MemTotal", 0)
            if floor_kb > total // 2:
                floor_kb = total // 16
                self.notes.append(f"readahead_guard_floor_gib is more than half of this node's memory. The guard uses {memory.gib(floor_kb)} GiB")
            command = readahead.guard_command(self.python, floor_kb, seconds, float(plan["guard_interval"]))
            self.edit.step(f"page-cache guard started, floor {memory.gib(floor_kb)} GiB", *command)

    def skips(self) -> bool:
        """Return whether this node is a container, and note it."""
        container = memory_facts.container_reason(self.node)
        if container:
            self.notes.append(f"this node is a container ({container}), where block devices and the page cache belong to the host: nothing was changed")
        return bool(container)

    def phase(self, phase: str, least_seconds: int) -> list[str]:
        """Switch to a phase, and return what the user has to read."""
        if not self.skips():
            self.switch(phase, least_seconds)
        return self.notes

    def run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the option `state`, and return the module's result."""
        if not self.skips():
            if params["state"] == "absent":
                self.absent()
            else:
                self.present(params)
        return {**self.edit.changes.result(), "shown": ["; ".join(self.notes)] if self.notes else []}
