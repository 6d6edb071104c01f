# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read-ahead of a node's disks, and its load and steady phases."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, memory_facts, page_cache_guard, readahead
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Changes
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import FileChange, Node
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead import Block, ReadaheadError

RECORD = "readahead"


def guard_source() -> str:
    """Return the guard's own source, from wherever Ansible put it."""
    spec = importlib.util.find_spec(page_cache_guard.__name__)
    read = getattr(spec.loader, "get_source", None) if spec is not None else None
    source = read(page_cache_guard.__name__) if read is not None else None
    if not source:
        raise ReadaheadError("the page-cache guard's source did not travel with the module: set readahead_guard to false, and report this")
    return str(source)


class Readahead:
    """The block devices of one node."""

    def __init__(self, node: Node, params: Mapping[str, Any], check_mode: bool, python: str = sys.executable) -> None:
        """Keep the node and the options."""
        self.node = node
        self.params = params
        self.check_mode = check_mode
        self.python = python
        self.changes = Changes()
        self.notes: list[str] = []
        self.record = node.load_record(RECORD)

    # Reading.

    def blocks(self) -> dict[str, Block]:
        """Return all block devices."""
        found: dict[str, Block] = {}
        for name in self.node.listdir("/sys/class/block"):
            folder = f"/sys/class/block/{name}"
            target = self.node.link(folder) or name
            disk = os.path.basename(os.path.dirname(target)) if self.node.exists(f"{folder}/partition") else name
            found[name] = Block(
                name,
                disk,
                tuple(self.node.listdir(f"{folder}/slaves")),
                self.kb(name),
                (self.node.read(f"{folder}/dm/name") or "").strip(),
            )
        return found

    def kb(self, device: str) -> int | None:
        """Return a device's live read-ahead."""
        text = (self.node.read(readahead.sysfs_path(device)) or "").strip()
        return int(text) if text.isdigit() else None

    def start_of(self, path: str, blocks: Mapping[str, Block]) -> tuple[str | None, str]:
        """Return the device of the file system that holds `path`, and what that file system is."""
        mount = readahead.mount_of(path, readahead.parse_mountinfo(self.node.read("/proc/self/mountinfo")))
        if mount is None:
            return None, "no known mount"
        link = self.node.link(f"/sys/dev/block/{mount.device}")
        if link:
            return os.path.basename(link), mount.kind
        source = self.node.link(mount.source) if mount.source.startswith("/dev/") else None
        name = os.path.basename(source or mount.source)
        return (name if name in blocks else None), f"{mount.kind} ({mount.source})"

    def rules(self) -> dict[str, str]:
        """Return the udev rules files that speak of read-ahead."""
        found: dict[str, str] = {}
        for folder in readahead.RULE_FOLDERS:
            for name in self.node.listdir(folder):
                text = self.node.read(f"{folder}/{name}") or ""
                if "read_ahead_kb" in text:
                    found[f"{folder}/{name}"] = text
        return found

    def active(self, unit: str) -> bool:
        """Whether a unit is active."""
        rc, out, _err = self.node.run(["systemctl", "is-active", unit])
        return rc == 0 and out.strip() == "active"

    def loading(self) -> bool:
        """Whether a load phase runs: its timer waits."""
        return self.active(f"{readahead.RESTORE_UNIT}.timer")

    # Changing.

    def must(self, argv: Sequence[str]) -> None:
        """Run a command that has to work, unless this is check mode. Raises ReadaheadError."""
        if self.check_mode:
            return
        rc, out, err = self.node.run(argv)
        if rc != 0:
            last = ((err or out).strip().splitlines() or ["no output"])[-1]
            raise ReadaheadError(f"{argv[0]} failed (rc {rc}: {last}): {' '.join(argv)}")

    def write(self, path: str, after: str | None, said: str) -> bool:
        """Write or remove a file; whether it changed."""
        change = FileChange(path, self.node.read(path), after)
        if not change.changed:
            return False
        if path == readahead.GUARD_SCRIPT:  # a program of ours: its name says enough
            self.changes.step(said)
        else:
            self.changes.file(change, said)
        if not self.check_mode:
            self.node.apply(change)
        return True

    def set_live(self, values: Mapping[str, int]) -> None:
        """Write live values. Raises ReadaheadError."""
        live = {device: self.kb(device) for device in values}
        writes = {device: kb for device, kb in sorted(values.items()) if live[device] is not None and live[device] != kb}
        if not writes:
            return
        self.changes.live(
            "live read-ahead",
            "".join(f"{device} {live[device]} KiB\n" for device in writes),
            "".join(f"{device} {kb} KiB\n" for device, kb in writes.items()),
            (f"{device}: {live[device]} -> {kb} KiB" for device, kb in writes.items()),
        )
        if self.check_mode:
            return
        for device, kb in writes.items():
            try:
                self.node.write_live(readahead.sysfs_path(device), f"{kb}\n")
            except OSError as error:
                raise ReadaheadError(
                    f"the kernel refuses a read-ahead of {kb} KiB for {device} ({error.strerror} on {readahead.sysfs_path(device)}): "
                    "run with become, and see whether /sys is read-only"
                ) from error

    def save(self, record: Mapping[str, Any]) -> None:
        """Keep the record."""
        self.record = dict(record)
        if not self.check_mode:
            self.node.save_record(RECORD, dict(record))

    def end_load(self) -> None:
        """Stop the guard first, then the timer."""
        for unit in (f"{readahead.GUARD_UNIT}.service", f"{readahead.RESTORE_UNIT}.timer"):
            if self.active(unit):
                self.changes.step(f"{unit} stopped")
                self.must(["systemctl", "stop", unit])

    # The wishes.

    def present(self) -> dict[str, Any]:
        """Set the steady state and keep the plan. Raises ReadaheadError, RecordError, OSError."""
        params = self.params
        meminfo = memory.parse_meminfo(self.node.read("/proc/meminfo"))
        page_kb = self.node.page_kb() or memory.page_size_kb(meminfo, self.node.read("/proc/zoneinfo"))
        load_kb = readahead.check_kb(params["load_kb"], "readahead_load_kb", page_kb)
        steady_kb = readahead.check_kb(params["steady_kb"], "readahead_steady_kb", page_kb)
        restore_after = 2700 if params["restore_after"] is None else params["restore_after"]
        if restore_after < 60:
            raise ReadaheadError(f"readahead_restore_after is {restore_after} s, which no model loads in: choose 60 s or more")
        blocks = self.blocks()
        starts: dict[str, str | None] = {}
        told: dict[str, str] = {}
        for path in params["mounts"]:
            starts[path], told[path] = self.start_of(path, blocks)
        chosen = readahead.select(blocks, params["classes"], starts, params["devices"], told)
        standing = self.node.read(readahead.RULE)
        if standing is not None and readahead.MARKER not in standing:
            raise ReadaheadError(f"{readahead.RULE} exists and is not ours (it lacks our first line): move it away, then run again")
        source = guard_source() if params["guard"] else None
        later = readahead.later_rules(self.rules())
        self.notes = [*chosen.notes, *(f"{place} sets read-ahead too, and is read after {readahead.RULE}" for place in later)]

        before = {device: kb for device, kb in self.record.get("before", {}).items() if device in blocks}
        gone = {device: kb for device, kb in before.items() if device not in chosen.devices}
        for device in chosen.devices:
            before.setdefault(device, blocks[device].kb)
        plan = {"restore_after": restore_after, **{key: params[key] for key in ("guard", "guard_floor_gib", "guard_interval")}}
        wanted = dict.fromkeys(chosen.devices, steady_kb)
        self.save({**self.record, "before": before})
        if self.write(readahead.RULE, readahead.render_rule(chosen.devices, params["classes"], blocks, steady_kb), f"{readahead.RULE} written"):
            self.must(["udevadm", "control", "--reload"])
        self.write(readahead.GUARD_SCRIPT, source, f"{readahead.GUARD_SCRIPT} {'written' if source else 'removed'}")
        loading = self.loading()
        if not loading:
            self.set_live({**gone, **wanted})
        record = {
            "before": {device: kb for device, kb in before.items() if device not in gone},
            "plan": {**plan, "load_kb": load_kb, "steady_kb": steady_kb, "devices": chosen.devices},
        }
        self.save(record)
        if not self.check_mode and not loading:
            problem = readahead.mismatch_message(wanted, {device: self.kb(device) for device in wanted}, later)
            if problem:
                raise ReadaheadError(problem)
        return self.result("load" if loading else "steady", dict.fromkeys(wanted, load_kb if loading else steady_kb))

    def absent(self) -> dict[str, Any]:
        """Give everything back. Raises ReadaheadError, RecordError, OSError."""
        self.end_load()
        standing = self.node.read(readahead.RULE)
        if standing is not None and readahead.MARKER in standing and self.write(readahead.RULE, None, f"{readahead.RULE} removed"):
            self.must(["udevadm", "control", "--reload"])
        self.write(readahead.GUARD_SCRIPT, None, f"{readahead.GUARD_SCRIPT} removed")
        self.write(readahead.GUARD_RECEIPT, None, f"{readahead.GUARD_RECEIPT} removed")
        folder = os.path.dirname(readahead.GUARD_SCRIPT)
        if not self.check_mode and self.node.exists(folder) and not self.node.listdir(folder):
            os.rmdir(self.node.at(folder))
        before = self.record.get("before", {})
        self.set_live(before)
        self.save({})
        return self.result("steady", dict(before))

    def switch(self, phase: str) -> dict[str, Any]:
        """Switch the phase as the kept plan says. Raises ReadaheadError, OSError."""
        plan = self.record.get("plan")
        if not plan:
            return self.skipped("the readahead role has not run on this node, so there is no plan to switch by: run --tags readahead first")
        steady = {device: int(plan["steady_kb"]) for device in plan["devices"] if self.kb(device) is not None}
        if phase == "steady":
            self.end_load()
            self.set_live(steady)
            return self.result("steady", steady)
        load = {device: int(plan["load_kb"]) for device in steady}
        self.end_load()
        seconds = max(int(plan["restore_after"]), self.params.get("restore_after") or 0)
        self.changes.step(f"load phase for at most {seconds} s")
        # The way back first: a controller that dies now leaves a node that heals itself.
        self.must(readahead.restore_command(steady, seconds))
        self.set_live(load)
        if plan["guard"]:
            floor_kb = int(float(plan["guard_floor_gib"]) * memory.GIB_KB)
            total = memory.parse_meminfo(self.node.read("/proc/meminfo")).get("MemTotal", 0)
            if floor_kb > total // 2:
                floor_kb = total // 16
                self.notes.append(f"the guard's floor is more than half of this node's memory, so {memory.gib(floor_kb)} GiB is taken instead")
            self.changes.step(f"page-cache guard started, floor {memory.gib(floor_kb)} GiB")
            self.must(readahead.guard_command(self.python, floor_kb, seconds, float(plan["guard_interval"])))
        return self.result("load", load)

    def skipped(self, reason: str) -> dict[str, Any]:
        """Report a node that is left alone."""
        return {**self.result("steady", {}), "skipped_reason": reason}

    def run(self) -> dict[str, Any]:
        """Do what was asked. Raises ReadaheadError, RecordError, OSError."""
        container = memory_facts.container_reason(self.node)
        if container:
            return self.skipped(f"this node is a container ({container}), where block devices and the page cache belong to the host: nothing was touched")
        if self.params.get("phase"):
            return self.switch(self.params["phase"])
        return self.absent() if self.params.get("state") == "absent" else self.present()

    def result(self, phase: str, devices: Mapping[str, int]) -> dict[str, Any]:
        """Return the module's result."""
        return {
            "changed": bool(self.changes.messages),
            "changes": self.changes.messages,
            "notes": self.notes,
            "devices": dict(devices),
            "phase": phase,
            "guard_receipt": self.node.mapping(readahead.GUARD_RECEIPT),
            "skipped_reason": "",
            "diff": self.changes.diff,
        }
