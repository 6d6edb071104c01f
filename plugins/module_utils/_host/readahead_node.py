# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Set the read-ahead of a node's disks, and switch between the load phase and the steady phase."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, memory_facts, page_cache_guard, readahead
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead import GUARD_RECEIPT, GUARD_SCRIPT, MARKER, RULE, Block, ReadaheadError

RECORD = "readahead"
RESTORE_AFTER = 2700


def guard_source() -> str:
    """Return the source of the page-cache guard, which may be in the archive of the module."""
    spec = importlib.util.find_spec(page_cache_guard.__name__)
    read = getattr(spec.loader, "get_source", None) if spec is not None else None
    source = read(page_cache_guard.__name__) if read is not None else None
    if not source:
        raise ReadaheadError("The source of the page-cache guard is not in the module. Set readahead_guard to false, and report this error.")
    return str(source)


class Readahead:
    """The block devices of one node. All methods raise ReadaheadError, RecordError, UmaError and OSError."""

    def __init__(self, node: Node, params: Mapping[str, Any], check_mode: bool, python: str = sys.executable) -> None:
        """Read the record; `params` are the options of the module readahead."""
        self.node = node
        self.params = params
        self.python = python
        self.edit = Editor(node, check_mode, ReadaheadError)
        self.notes: list[str] = []
        self.record = node.load_record(RECORD)

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

    def device_of(self, path: str, blocks: Mapping[str, Block]) -> tuple[str | None, str]:
        """Return the device of the file system of `path`, and a description of the file system."""
        mount = readahead.mount_of(path, readahead.parse_mountinfo(self.node.read("/proc/self/mountinfo")))
        if mount is None:
            return None, "no known mount"
        link = self.node.link(f"/sys/dev/block/{mount.device}")
        if link:
            return os.path.basename(link), mount.kind
        source = self.node.link(mount.source) if mount.source.startswith("/dev/") else None
        name = os.path.basename(source or mount.source)
        return (name if name in blocks else None), f"{mount.kind} ({mount.source})"

    def later_rules(self) -> list[str]:
        """Return the lines of udev rules that set read-ahead after our rule."""
        paths = [f"{folder}/{name}" for folder in readahead.RULE_FOLDERS for name in self.node.listdir(folder)]
        return readahead.later_rules({path: self.node.read(path) or "" for path in paths})

    def active(self, unit: str) -> bool:
        """Return whether a unit is active."""
        return self.node.run(["systemctl", "is-active", unit])[0] == 0

    def write_live(self, values: Mapping[str, int]) -> None:
        """Write the live read-ahead of the devices that still exist."""
        live = {device: str(kb) for device, kb in ((device, self.read_kb(device)) for device in values) if kb is not None}
        wanted = {device: str(kb) for device, kb in sorted(values.items()) if device in live}
        self.edit.write_live("live read-ahead", wanted, live, readahead.sysfs_path, " KiB")

    def save(self, record: Mapping[str, Any]) -> None:
        """Keep the record. It is written before the change that it describes."""
        self.record = dict(record)
        self.edit.save_record(RECORD, record)

    def end_load(self) -> None:
        """Stop the guard, then the timer."""
        for unit in (f"{readahead.GUARD_UNIT}.service", f"{readahead.RESTORE_UNIT}.timer"):
            if self.active(unit):
                self.edit.step(f"{unit} stopped", "systemctl", "stop", unit)

    def options(self) -> tuple[int, int, int]:
        """Return (load_kb, steady_kb, restore_after) of the options."""
        page_kb = self.node.page_kb() or memory.page_size_kb(memory.parse_meminfo(self.node.read("/proc/meminfo")), self.node.read("/proc/zoneinfo"))
        load_kb, steady_kb = (readahead.check_kb(self.params[name], f"readahead_{name}", page_kb) for name in ("load_kb", "steady_kb"))
        restore_after = RESTORE_AFTER if self.params["restore_after"] is None else self.params["restore_after"]
        if restore_after < 60:
            raise ReadaheadError(f"readahead_restore_after is {restore_after} s, expected 60 s or more.")
        return load_kb, steady_kb, restore_after

    def present(self) -> dict[str, Any]:
        """Set the steady phase and keep the plan."""
        params = self.params
        load_kb, steady_kb, restore_after = self.options()
        blocks = self.blocks()
        mounts = {path: self.device_of(path, blocks) for path in params["mounts"]}
        devices, notes = readahead.select(blocks, params["classes"], mounts, params["devices"])
        self.edit.require_own(RULE, MARKER)
        source = guard_source() if params["guard"] else None
        later = self.later_rules()
        self.notes = [*notes, *(f"{place} sets read-ahead after {RULE}" for place in later)]

        before = {device: kb for device, kb in self.record.get("before", {}).items() if device in blocks}
        gone = {device: kb for device, kb in before.items() if device not in devices}
        before = {**{device: blocks[device].kb for device in devices}, **before}
        self.save({**self.record, "before": before})
        if self.edit.write(RULE, readahead.render_rule(devices, params["classes"], blocks, steady_kb), f"{RULE} written"):
            self.edit.command("udevadm", "control", "--reload")
        self.edit.write(GUARD_SCRIPT, source, f"{GUARD_SCRIPT} {'written' if source else 'removed'}")
        steady = dict.fromkeys(devices, steady_kb)
        loading = self.active(f"{readahead.RESTORE_UNIT}.timer")
        if not loading:
            self.write_live({**gone, **steady})
        plan = {"restore_after": restore_after, **{key: params[key] for key in ("guard", "guard_floor_gib", "guard_interval")}}
        plan.update({"load_kb": load_kb, "steady_kb": steady_kb, "devices": devices})
        self.save({"before": {device: kb for device, kb in before.items() if device not in gone}, "plan": plan})
        if not self.edit.check_mode and not loading:
            problem = readahead.mismatch_message(steady, {device: self.read_kb(device) for device in devices}, later)
            if problem:
                raise ReadaheadError(problem)
        return self.result("load", dict.fromkeys(devices, load_kb)) if loading else self.result("steady", steady)

    def absent(self) -> dict[str, Any]:
        """Restore the values from before the first run."""
        self.end_load()
        if self.edit.remove_own(RULE, MARKER):
            self.edit.command("udevadm", "control", "--reload")
        for path in (GUARD_SCRIPT, GUARD_RECEIPT):
            self.edit.write(path, None, f"{path} removed")
        self.edit.remove_empty_folder(os.path.dirname(GUARD_SCRIPT))
        before = self.record.get("before", {})
        self.write_live(before)
        self.save({})
        return self.result("steady", before)

    def switch(self, phase: str) -> dict[str, Any]:
        """Switch to the phase `load` or `steady` by the plan of the record."""
        plan = self.record.get("plan")
        if not plan:
            return self.skipped("the readahead role has not run on this node, so there is no plan to switch by: run --tags readahead first")
        steady = {device: int(plan["steady_kb"]) for device in plan["devices"] if self.read_kb(device) is not None}
        self.end_load()
        if phase == "steady":
            self.write_live(steady)
            return self.result("steady", steady)
        seconds = max(int(plan["restore_after"]), self.params.get("restore_after") or 0)
        # The timer starts before anything changes: without the controller the node restores itself.
        self.edit.step(f"load phase for at most {seconds} s", *readahead.restore_command(steady, seconds))
        load = {device: int(plan["load_kb"]) for device in steady}
        self.write_live(load)
        if plan["guard"]:
            floor_kb = int(float(plan["guard_floor_gib"]) * memory.GIB_KB)
            total = memory.parse_meminfo(self.node.read("/proc/meminfo")).get("MemTotal", 0)
            if floor_kb > total // 2:
                floor_kb = total // 16
                self.notes.append(f"readahead_guard_floor_gib is more than half of this node's memory. The guard uses {memory.gib(floor_kb)} GiB")
            command = readahead.guard_command(self.python, floor_kb, seconds, float(plan["guard_interval"]))
            self.edit.step(f"page-cache guard started, floor {memory.gib(floor_kb)} GiB", *command)
        return self.result("load", load)

    def skipped(self, reason: str) -> dict[str, Any]:
        """Return the result for a node that is not changed."""
        return {**self.result("steady", {}), "skipped_reason": reason}

    def run(self) -> dict[str, Any]:
        """Apply the option `phase` or `state`."""
        container = memory_facts.container_reason(self.node)
        if container:
            return self.skipped(f"this node is a container ({container}), where block devices and the page cache belong to the host: nothing was changed")
        if self.params.get("phase"):
            return self.switch(self.params["phase"])
        return self.absent() if self.params.get("state") == "absent" else self.present()

    def result(self, phase: str, devices: Mapping[str, int]) -> dict[str, Any]:
        """Return the module's result."""
        return {
            **self.edit.changes.result(),
            "notes": self.notes,
            "devices": dict(devices),
            "phase": phase,
            "guard_receipt": self.node.mapping(GUARD_RECEIPT),
            "skipped_reason": "",
        }
