# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Apply the memory policy of a node: sysctl drop-in and live values, swap, thrashing, out-of-memory daemons; and restore them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host import kho, memory, memory_facts, mglru, swap, sysctl, watchdog
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, first_of_name
from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import SysctlError

RECORD = "sysctl"


class MemoryPolicy:
    """The memory policy of one node. All methods raise SysctlError, RecordError and OSError."""

    def __init__(self, node: Node, params: Mapping[str, Any], check_mode: bool) -> None:
        """Read the node; `params` are the options of the module uma_tuning."""
        self.node = node
        self.params = params
        self.edit = Editor(node, check_mode, SysctlError)
        self.facts = memory_facts.gather(node)
        self.record = node.load_record(RECORD)
        self.units: dict[str, swap.Unit] = {}

    def save(self, **parts: Any) -> None:
        """Keep parts of the record. It is written before the change that it describes."""
        self.record = {**self.record, **parts}
        self.edit.save_record(RECORD, {key: value for key, value in self.record.items() if value})

    def live(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the live values of the keys that the kernel has."""
        texts = {key: self.node.read(sysctl.proc_path(key)) for key in sorted(set(keys))}
        return {key: sysctl.squeeze(text) for key, text in texts.items() if text is not None}

    def live_of(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the live values of what is set, of its partners and of what is recorded."""
        return self.live([*values, *(sysctl.PARTNERS[key] for key in values if key in sysctl.PARTNERS), *self.record.get("live", {})])

    def swaps(self) -> list[memory.Swap]:
        """Return the swap that is on now."""
        return memory.parse_swaps(self.node.read("/proc/swaps"))

    def read_units(self) -> dict[str, swap.Unit]:
        """Return the units of swap and of the out-of-memory daemons."""
        found = {os.path.basename(path) for folder in swap.UNIT_FOLDERS for path in self.node.glob(f"{folder}/*.swap")}
        names = sorted(found | {*swap.SERVICES, swap.EARLYOOM, *swap.OOMD} | set(self.record.get("swap", {}).get("silenced", {})))
        rc, out, _err = self.node.run(["systemctl", "show", "-p", swap.UNIT_PROPERTIES, "--", *names])
        return {unit.name: unit for unit in swap.parse_units(out)} if rc == 0 else {}

    def thrash(self, option: str) -> str:
        """Set min_ttl_ms, or restore it for `leave`; return a phrase for the message."""
        old, text = self.record.get("thrash", {}), self.node.read(mglru.LIVE)
        live, desired = (text or "").strip(), mglru.parse(option)
        problem = mglru.unavailable(text, self.node.read(mglru.ENABLED))
        if desired is None or problem:
            self.edit.remove_own(mglru.TMPFILES, sysctl.MARKER)
            if "before" in old and text is not None:
                self.write_thrash(old["before"], live)
            self.save(thrash={})
            return f"; {problem}" if desired is not None else ""
        self.save(thrash={"before": old.get("before", live)})
        self.edit.write(mglru.TMPFILES, mglru.render(desired), f"{mglru.TMPFILES} written")
        self.write_thrash(desired, live)
        return f"; min_ttl_ms is {desired}"

    def write_thrash(self, value: str, live: str) -> None:
        """Write min_ttl_ms and read it back."""
        self.edit.write_live(mglru.LIVE, {"min_ttl_ms": value}, {"min_ttl_ms": live}, lambda _name: mglru.LIVE)
        found = (self.node.read(mglru.LIVE) or "").strip()
        if not self.edit.check_mode and found != value:
            raise SysctlError(f"{mglru.LIVE} is {found}, expected {value}. Find the service that writes it, or set sysctl_lru_gen_min_ttl_ms to leave.")

    def armed(self) -> int:
        """Return the seconds of systemd's watchdog, 0 if it is off."""
        _rc, out, _err = self.node.run(["systemctl", "show", "--property", "RuntimeWatchdogUSec", "--value"])
        return watchdog.span_seconds(out) or 0

    def device(self) -> dict[str, str]:
        """Return the attributes of the watchdog device; empty without one."""
        texts = {name: self.node.read(f"{watchdog.DEVICE}/{name}") for name in watchdog.ATTRIBUTES}
        found = {name: text.strip() for name, text in texts.items() if text is not None}
        return found or ({"identity": ""} if self.node.exists(watchdog.DEVICE) else {})

    def plan_watchdog(self, option: str) -> tuple[str | None, int, bool]:
        """Return the drop-in (None for `leave`), the seconds that systemd uses now, and whether it must change. Refuses what cannot be done now."""
        seconds, own = watchdog.parse(option), self.node.read(watchdog.DROP_IN) or ""
        text, armed, changes = None, 0, sysctl.MARKER in own or "watchdog" in self.record
        if seconds is not None:
            self.edit.require_own(watchdog.DROP_IN, sysctl.MARKER)
            paths = [path for folder in watchdog.FOLDERS for path in self.node.glob(f"{folder}/*.conf")]
            files = {path: self.node.read(path) or "" for path in first_of_name(paths, watchdog.FOLDERS, ".conf").values()}
            device, armed = self.device(), self.armed()
            problem = watchdog.problem(device, seconds, armed, watchdog.later_value(files, seconds))
            if problem:
                raise SysctlError(problem)
            text = watchdog.render(seconds, device)
            changes = own != text or bool(watchdog.mismatch(device, seconds, armed))
        if changes and self.facts.gpu_users:
            raise SysctlError(watchdog.RELOAD_PROBLEM)
        return text, armed, changes

    def set_watchdog(self, option: str) -> str:
        """Set systemd's watchdog, or restore it for `leave`; return a phrase for the message."""
        text, armed, changes = self.plan_watchdog(option)
        folder, old = os.path.dirname(watchdog.DROP_IN), self.record.get("watchdog")
        if changes and text:
            self.save(watchdog=old or {"folder": self.node.exists(folder)})
            self.edit.write(watchdog.DROP_IN, text, f"{watchdog.DROP_IN} written")
        elif changes:
            self.edit.remove_own(watchdog.DROP_IN, sysctl.MARKER)
            if old and not old["folder"]:
                self.edit.remove_empty_folder(folder)
        if changes:
            # Services keep running: systemd reads its files again, closes the device and opens it again.
            self.edit.step(f"systemd's watchdog: {f'{armed} s -> {option} s' if text else 'as before'}", "systemctl", "daemon-reload")
        if not text:
            self.save(watchdog={})
            return ""
        problem = "" if self.edit.check_mode else watchdog.mismatch(self.device(), int(option), self.armed())
        if problem:
            raise SysctlError(problem)
        return f"; the watchdog resets a frozen node after {option} s"

    def handover(self, wanted: bool) -> dict[str, Any]:
        """Return what the role has to do for kho=off, and keep its record. Refuses what cannot work on this node."""
        if wanted:
            self.edit.require_own(kho.FILE, sysctl.MARKER)
        plan, record = kho.plan(kho.read(self.node), wanted, self.record.get("kho", {}), self.facts.meminfo, bool(self.facts.gpu_users))
        self.save(kho=record)
        return plan

    def reload(self) -> None:
        """Reload systemd, except under a running engine: a container without CDI would lose its GPU. The next boot reads the units in any case."""
        if not self.facts.gpu_users:
            self.edit.command("systemctl", "daemon-reload")

    def swap_off(self) -> None:
        """Switch swap off, and everything that starts it at boot."""
        disabled = [
            name
            for name in self.units
            if self.node.read(swap.drop_in_path(name)) == swap.drop_in_text() or self.node.link(f"/etc/systemd/system/{name}") == "/dev/null"
        ]
        plan = swap.to_silence(list(self.units.values()), disabled)
        fstab, swaps, old = self.node.read(swap.FSTAB), self.facts.swaps, self.record.get("swap", {})
        silenced = {**old.get("silenced", {}), **{step.unit: {"method": step.method, "active": step.active} for step in plan}}
        self.save(swap={"silenced": silenced, "devices": sorted({*old.get("devices", []), *(entry.device for entry in swaps)})})
        changed = self.edit.write(swap.FSTAB, swap.fstab_off(fstab), "swap commented out in /etc/fstab")
        for step in plan:
            if step.active:  # before it is masked: systemd cannot stop a unit whose file it does not read
                self.edit.command("systemctl", "stop", step.unit)
        for step in plan:
            if step.method == "mask":
                self.edit.step(f"{step.unit} masked", "systemctl", "mask", "--no-reload", step.unit)
            else:
                self.edit.write(swap.drop_in_path(step.unit), swap.drop_in_text(), f"{step.unit} disabled by a drop-in")
        if plan or changed:
            self.reload()
        if swaps:
            self.edit.step(f"swap off: {', '.join(entry.device for entry in swaps)}")
            for entry in self.swaps():
                self.edit.command("swapoff", entry.device)

    def swap_back(self) -> bool:
        """Restore swap, if an earlier run has switched it off; return whether any was on. A unit that was removed since is not started."""
        old = self.record.get("swap")
        if not old:
            return False
        self.edit.write(swap.FSTAB, swap.fstab_on(self.node.read(swap.FSTAB)), "swap restored in /etc/fstab")
        for unit, how in sorted(old.get("silenced", {}).items()):
            self.edit.step(f"{unit} as before")
            if how["method"] == "mask":
                self.edit.command("systemctl", "unmask", "--no-reload", unit)
            else:
                self.edit.write(swap.drop_in_path(unit), None, f"drop-in of {unit} removed")
                self.edit.remove_empty_folder(os.path.dirname(swap.drop_in_path(unit)))
        self.reload()
        for unit, how in sorted(old.get("silenced", {}).items()):
            if how["active"] and (unit not in self.units or swap.installed(self.units[unit])):
                self.edit.command("systemctl", "start", unit)
        devices = old.get("devices", [])
        if devices:
            self.edit.step(f"swap on again: {', '.join(devices)}")
            on = [entry.device for entry in self.swaps()]
            for device in devices:
                if device not in on and self.node.exists(device) and not device.startswith("/dev/zram"):
                    self.edit.command("swapon", device)
        self.save(swap={})
        return bool(devices)

    def oom(self, policy: str) -> list[str]:
        """Start and stop the out-of-memory daemons; return the packages that are missing."""
        old, desired = self.record.get("oom", {}), swap.oom_desired(policy)
        steps, packages = swap.oom_plan(policy, self.units)
        record = {**{name: swap.state(self.units.get(name)) for name, _on in steps}, **old}
        self.save(oom=record)
        for name, on in steps:
            self.edit.step(f"{name} {'enabled and started' if on else 'stopped and disabled'}")
            if name.partition(".")[0] not in packages:
                self.edit.command("systemctl", "enable" if on else "disable", "--now", name)
                self.units[name] = self.units[name]._replace(active=on)
        for name, state in old.items():
            unit = self.units.get(name)
            if name in desired or unit is None or swap.state(unit) == state:
                continue
            self.edit.step(f"{name} as before", "systemctl", "enable" if state["enabled"] else "disable", name)
            self.edit.command("systemctl", "start" if state["active"] else "stop", name)
            self.units[name] = unit._replace(active=state["active"])
        self.save(oom={name: state for name, state in record.items() if name in desired})
        return packages

    def check(self, values: Mapping[str, str], live: Mapping[str, str], cost_kb: int) -> None:
        """Refuse what cannot be applied, before anything is changed. `cost_kb` is what MemAvailable loses in this run."""
        self.edit.require_own(sysctl.DROP_IN, sysctl.MARKER)
        if mglru.parse(self.params["lru_gen_min_ttl_ms"]) is not None:
            self.edit.require_own(mglru.TMPFILES, sysctl.MARKER)
        found = sysctl.overrides(self.facts.files, values)
        if found:
            raise SysctlError(sysctl.override_message(found, values))
        sysctl.check_known(values, live)
        self.plan_watchdog(self.params["watchdog_seconds"])
        meminfo = self.facts.meminfo
        problem = sysctl.headroom_problem(meminfo, cost_kb, values.get("vm.min_free_kbytes", ""))
        if self.params["swap_policy"] == "off" and not problem:
            problem = swap.room_problem(self.facts.swaps, meminfo.get("MemAvailable", 0) - max(0, cost_kb), meminfo.get("MemTotal", 0))
        if problem:
            raise SysctlError(problem)

    def present(self) -> dict[str, Any]:
        """Apply the policy."""
        params, facts = self.params, self.facts
        now = (facts.vm.get("min_free_kbytes", 0), facts.vm.get("watermark_scale_factor", 10))
        recorded = self.record.get("live", {})
        first = (int(recorded.get("vm.min_free_kbytes", now[0])), int(recorded.get("vm.watermark_scale_factor", now[1])))
        by_size = {str(key): int(value) for key, value in params["min_free_by_size"].items()}
        floor, reason = sysctl.choose_floor(
            str(params["min_free_kbytes"]), facts.meminfo.get("MemTotal", 0), by_size, params["min_free_percent_other"], first[0]
        )
        watchdog.parse(params["watchdog_seconds"])
        settings = {**params["settings"], **watchdog.panic_values(params["reboot_on_panic"])}
        values = sysctl.desired(settings, floor, params["swap_policy"], params["extra"])
        if facts.container:
            return self.skipped(values)
        live = self.live_of(values)
        then = (int(values.get("vm.min_free_kbytes", now[0])), int(values.get("vm.watermark_scale_factor", now[1])))
        move = memory.floor_cost_kb(facts.meminfo, facts.zones, now, then)
        self.check(values, live, move)
        handover = self.handover(params["kho_off"])
        self.units = self.read_units()

        before = sysctl.record_before(self.record, values, live)
        self.save(live=before)
        restored = sysctl.to_restore(before, values, live)
        self.edit.write(sysctl.DROP_IN, sysctl.render(values), f"{sysctl.DROP_IN} written")
        self.edit.write_live("live kernel", {**restored, **dict(sorted(values.items()))}, live, sysctl.proc_path)
        swap_again = False
        if params["swap_policy"] == "off":
            self.swap_off()
        else:
            swap_again = self.swap_back()
        others = self.thrash(params["lru_gen_min_ttl_ms"]) + self.set_watchdog(params["watchdog_seconds"])
        packages = self.oom(params["oom_policy"])
        self.save(live={key: value for key, value in before.items() if key not in restored})
        self.read_back(values)

        cost = memory.gib(memory.floor_cost_kb(facts.meminfo, facts.zones, first, then))
        highest = self.utilization(move)
        text = f"vm.min_free_kbytes {floor} ({reason}) costs {cost} GiB of MemAvailable" if reason else "vm.min_free_kbytes is left as it is"
        return self.result(values, f"{text}; {self.state_message(highest, swap_again)}{others}", highest, packages=packages, floor_cost_gib=cost, kho=handover)

    def absent(self) -> dict[str, Any]:
        """Restore the values from before the first run."""
        if self.facts.container:
            return self.skipped({})
        before = self.record.get("live", {})
        live = self.live(before)
        self.plan_watchdog(sysctl.LEAVE)
        self.units = self.read_units()
        self.edit.remove_own(sysctl.DROP_IN, sysctl.MARKER)
        writes = sysctl.to_restore(before, {}, live)
        self.edit.write_live("live kernel", writes, live, sysctl.proc_path)
        self.swap_back()
        self.thrash(sysctl.LEAVE)
        self.set_watchdog(sysctl.LEAVE)
        self.oom("leave")
        problem = "" if self.edit.check_mode else sysctl.mismatch_message(writes, self.live(writes))
        if problem:
            raise SysctlError(problem)
        handover = self.handover(False)
        self.record = {"kho": self.record.get("kho")}
        self.save()
        changed = bool(self.edit.changes.messages)
        text = "The memory settings are those from before the first run." if changed else "Nothing to restore."
        return self.result({}, text, self.utilization(0), kho=handover)

    def read_back(self, values: Mapping[str, str]) -> None:
        """Compare the live system with the policy."""
        if self.edit.check_mode:
            return
        live = self.live(values)
        if sysctl.mismatch_message(values, live):
            rc, _out, _err = self.node.run(["systemctl", "is-active", "tuned.service"])
            tuned = (self.node.read("/etc/tuned/active_profile") or "unknown profile").strip() if rc == 0 else ""
            raise SysctlError(sysctl.mismatch_message(values, live, tuned))
        swaps = self.swaps() if self.params["swap_policy"] == "off" else []
        if swaps:
            raise SysctlError(swap.still_on_message(swaps, list(self.read_units().values())))

    def utilization(self, move_kb: int) -> dict[str, Any]:
        """Return the highest utilization that starts after MemAvailable has lost `move_kb`; an estimate while the GPU is in use."""
        meminfo = self.facts.meminfo
        if not self.edit.check_mode and self.edit.changes.messages:
            meminfo, move_kb = memory.parse_meminfo(self.node.read("/proc/meminfo")), 0
        total = meminfo.get("MemTotal", 0)
        held = memory.unaccounted_kb(meminfo) if self.facts.gpu_users else 0
        return {
            "memavailable": memory.highest_utilization(meminfo.get("MemAvailable", 0) - move_kb + held, total),
            "memfree": memory.highest_utilization(meminfo.get("MemFree", 0) + held, total),
            "estimate": bool(self.facts.gpu_users),
        }

    def state_message(self, highest: Mapping[str, Any], swap_again: bool) -> str:
        """Return what starts on the node afterwards, and the state of swap. `swap_again`: swap is switched on again in this run."""
        swaps = self.facts.swaps if self.edit.check_mode else self.swaps()
        state = "on again" if swap_again else "off"
        if swaps and self.params["swap_policy"] != "off":
            state = f"on ({memory.gib(sum(entry.size_kb for entry in swaps))} GiB)"
        when = ", estimated while the GPU is in use" if highest["estimate"] else ""
        return (
            f"vLLM from PR 35356 on (MemAvailable) starts up to gpu_memory_utilization {highest['memavailable']:.2f}, "
            f"older images (MemFree) up to {highest['memfree']:.2f}{when}; swap is {state}; {swap.describe_oom_daemons(self.units)}"
        )

    def skipped(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the result for a container, whose kernel is the one of the host."""
        reason = (
            f"this node is a container ({self.facts.container}), where vm.* and swap belong to the host: nothing was applied, "
            "run the sysctl role on the host itself"
        )
        return self.result(values, reason, {"memavailable": 0.0, "memfree": 0.0, "estimate": False}, skipped_reason=reason)

    def result(self, values: Mapping[str, str], message: str, highest: Mapping[str, Any], **others: Any) -> dict[str, Any]:
        """Return the module's result."""
        return {
            **self.edit.changes.result(),
            "sysctl": dict(values),
            "packages": [],
            "skipped_reason": "",
            "floor_cost_gib": 0.0,
            "highest_utilization": dict(highest),
            "message": message,
            "kho": kho.NOTHING,
            **others,
        }
