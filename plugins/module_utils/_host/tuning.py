# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Apply the memory policy of a node: files and live values of the kernel, swap, watchdog, out-of-memory daemons; and restore them.

Files are removed by the undo, and what this records before the first change is written back: live values of the kernel, states of units, swap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host import kho, memory, memory_facts, swap, sysctl, watchdog
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import HostError, later_lines

RECORD = "sysctl"


class MemoryPolicy:
    """The memory policy of one node. All methods raise HostError, UmaError and OSError."""

    def __init__(self, edit: Editor, params: Mapping[str, Any]) -> None:
        """Read the node; `params` are the options of the module uma_tuning."""
        self.node = edit.node
        self.params = params
        self.edit = edit
        self.facts = memory_facts.gather(self.node)
        self.record = self.node.load_record(RECORD)
        self.units: dict[str, swap.Unit] = {}

    def save(self, **parts: Any) -> None:
        """Keep parts of the record. It is written before the change that it describes."""
        self.record = {**self.record, **parts}
        self.edit.save_record(RECORD, {key: value for key, value in self.record.items() if value})

    def live(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the live values of the keys that the kernel has."""
        texts = {key: self.node.read(sysctl.live_path(key)) for key in sorted(set(keys))}
        return {key: sysctl.squeeze(text) for key, text in texts.items() if text is not None}

    def swaps(self) -> list[memory.Swap]:
        """Return the swap that is on now."""
        return memory.parse_swaps(self.node.read("/proc/swaps"))

    def read_units(self) -> dict[str, swap.Unit]:
        """Return the units of swap and of the out-of-memory daemons."""
        _rc, files, _err = self.node.run(["systemctl", "list-unit-files", "--no-legend", *swap.UNITS])
        _rc, active, _err = self.node.run(["systemctl", "is-active", *swap.UNITS])
        return swap.parse_units(files, active)

    def set_units(self, desired: Mapping[str, bool]) -> list[str]:
        """Start and stop units, and restore those that are not desired any more; return the packages that are missing.

        systemd is not reloaded: a container without CDI would lose its GPU.
        """
        old, packages = self.record.get("units", {}), []
        wanted = {name: tuple(state) for name, state in old.items() if name not in desired}
        for name, (enabled, active) in {**wanted, **{name: (on, on) for name, on in desired.items()}}.items():
            unit = self.units.get(name, swap.Unit(False, False))
            if (name not in self.units and not active) or unit[:2] == (enabled, active):
                continue
            self.save(units={name: unit[:2], **self.record.get("units", {})})
            self.edit.step(f"{name} {'as before' if name in wanted else 'enabled and started' if active else 'stopped and disabled'}")
            if name not in self.units:
                packages.append(name.partition(".")[0])
                continue
            if unit.enabled != enabled:
                self.edit.command("systemctl", "enable" if enabled else "disable", "--no-reload", name)
            if unit.active != active:
                self.edit.command("systemctl", "start" if active else "stop", name)
            self.units[name] = unit._replace(active=active)
        self.save(units={name: state for name, state in self.record.get("units", {}).items() if name in desired})
        return packages

    def swap_off(self) -> None:
        """Switch swap off now and at boot."""
        masked, swaps, old = self.units.get(swap.TARGET, swap.Unit(False, False)).masked, self.facts.swaps, self.record.get("swap", {})
        if swaps or not masked:
            devices = sorted({*old.get("devices", []), *(entry.device for entry in swaps)})
            self.save(swap={"masked": old.get("masked", not masked), "devices": devices})
        if not masked:
            self.edit.step(f"{swap.TARGET} masked", "systemctl", "mask", "--no-reload", swap.TARGET)
        if swaps:
            self.edit.step(f"swap off: {', '.join(entry.device for entry in swaps)}")
            for entry in self.swaps():
                self.edit.command("swapoff", entry.device)

    def swap_back(self) -> bool:
        """Restore swap, if an earlier run has switched it off; return whether any was on."""
        old = self.record.get("swap", {})
        if old.get("masked"):
            self.edit.step(f"{swap.TARGET} as before", "systemctl", "unmask", "--no-reload", swap.TARGET)
        devices = old.get("devices", [])
        if devices:
            self.edit.step(f"swap on again: {', '.join(devices)}")
            on = [entry.device for entry in self.swaps()]
            for device in devices:
                if device not in on and self.node.exists(device) and not device.startswith("/dev/zram"):
                    self.edit.command("swapon", device)
        self.save(swap={})
        return bool(devices)

    def armed(self) -> int:
        """Return the seconds of systemd's watchdog, 0 if it is off."""
        _rc, out, _err = self.node.run(["systemctl", "show", "--property", "RuntimeWatchdogUSec", "--value"])
        return watchdog.span_seconds(out) or 0

    def device(self) -> dict[str, str]:
        """Return the attributes of the watchdog device; empty without one."""
        texts = {name: self.node.read(f"{watchdog.DEVICE}/{name}") for name in watchdog.ATTRIBUTES}
        found = {name: text.strip() for name, text in texts.items() if text is not None}
        return found or ({"identity": ""} if self.node.exists(watchdog.DEVICE) else {})

    def plan_watchdog(self, option: str) -> tuple[str | None, bool]:
        """Return the drop-in (None for `leave`), and whether something must change. Refuses what cannot be done now."""
        seconds, own = watchdog.parse(option), self.node.read(watchdog.DROP_IN) or ""
        text, changes = None, sysctl.MARKER in own or bool(self.record.get("watchdog"))
        if seconds is not None:
            self.edit.require_own(watchdog.DROP_IN, sysctl.MARKER)
            device, armed = self.device(), self.armed()
            later = watchdog.later_value(later_lines(self.node, "systemd/system.conf", watchdog.DROP_IN), seconds)
            problem = watchdog.problem(device, seconds, armed, later)
            if problem:
                raise HostError(problem)
            text = watchdog.render(seconds, device)
            changes = own != text or bool(watchdog.mismatch(device, seconds, armed))
        if changes and self.facts.gpu_users:
            raise HostError(watchdog.RELOAD_PROBLEM)
        return text, changes

    def set_watchdog(self, option: str) -> str:
        """Set systemd's watchdog, or restore it for `leave`; return a phrase for the message."""
        text, changes = self.plan_watchdog(option)
        if changes:
            self.save(watchdog=True)
            self.edit.write(watchdog.DROP_IN, text, f"{watchdog.DROP_IN} {'written' if text else 'removed'}")
            if text is None:
                self.edit.remove_empty_folder(os.path.dirname(watchdog.DROP_IN))
            # Services keep running: systemd reads its files again, closes the device and opens it again.
            self.edit.step(f"systemd's watchdog: {f'{option} s' if text else 'as before'}", "systemctl", "daemon-reload")
        if not text:
            self.save(watchdog=False)
            return ""
        problem = "" if self.edit.check_mode else watchdog.mismatch(self.device(), int(option), self.armed())
        if problem:
            raise HostError(problem)
        return f"; the watchdog resets a frozen node after {option} s"

    def handover(self, wanted: bool) -> dict[str, Any]:
        """Return what the role has to do for kho=off, and keep its record. Refuses what cannot work on this node."""
        if wanted:
            self.edit.require_own(kho.FILE, sysctl.MARKER)
        plan, record = kho.plan(kho.read(self.node), wanted, self.record.get("kho", {}), self.facts.meminfo, bool(self.facts.gpu_users))
        self.save(kho=record)
        return plan

    def check(self, values: Mapping[str, str], live: Mapping[str, str], cost_kb: int) -> None:
        """Refuse what cannot be applied, before anything is changed. `cost_kb` is what MemAvailable loses in this run."""
        self.edit.require_own(sysctl.DROP_IN, sysctl.MARKER)
        if sysctl.TTL in values:
            self.edit.require_own(sysctl.TTL_DROP_IN, sysctl.MARKER)
        found = sysctl.overrides(later_lines(self.node, "sysctl.d", sysctl.DROP_IN), values)
        if found:
            raise HostError(sysctl.override_message(found, values))
        sysctl.check_known(values, live)
        self.plan_watchdog(self.params["watchdog_seconds"])
        meminfo = self.facts.meminfo
        problem = sysctl.headroom_problem(meminfo, cost_kb, values.get("vm.min_free_kbytes", ""))
        if self.params["swap_policy"] == "off" and not problem:
            problem = swap.room_problem(self.facts.swaps, meminfo.get("MemAvailable", 0) - max(0, cost_kb), meminfo.get("MemTotal", 0))
        if problem:
            raise HostError(problem)

    def desired(self, stock_floor: int) -> tuple[dict[str, str], str, str]:
        """Return the values to set, the reason of the floor, and a phrase on the protection against thrashing."""
        params = self.params
        by_size = {str(key): int(value) for key, value in params["min_free_by_size"].items()}
        floor, reason = sysctl.choose_floor(
            str(params["min_free_kbytes"]), self.facts.meminfo.get("MemTotal", 0), by_size, params["min_free_percent_other"], stock_floor
        )
        watchdog.parse(params["watchdog_seconds"])
        settings = {**params["settings"], **watchdog.panic_values(params["reboot_on_panic"])}
        values = sysctl.desired(settings, floor, params["swap_policy"], params["extra"])
        ttl, phrase = sysctl.desired_ttl(params["lru_gen_min_ttl_ms"], self.node.read(sysctl.TTL_LIVE), self.node.read(sysctl.TTL_ENABLED))
        return {**values, **({sysctl.TTL: ttl} if ttl is not None else {})}, reason, phrase

    def set_values(self, values: Mapping[str, str], before: dict[str, str], live: Mapping[str, str]) -> None:
        """Write the files and the live values, and restore the values that are not desired any more."""
        self.save(live=before)
        restored = sysctl.to_restore(before, values, live)
        for path, text in ((sysctl.DROP_IN, sysctl.render(values) if values else None), (sysctl.TTL_DROP_IN, sysctl.render_ttl(values))):
            if text is not None or sysctl.MARKER in (self.node.read(path) or ""):
                self.edit.write(path, text, f"{path} {'removed' if text is None else 'written'}")
        self.edit.write_live("live kernel", {**restored, **dict(sorted(values.items()))}, live, sysctl.live_path)
        self.save(live=sysctl.kept(before, values))

    def present(self) -> dict[str, Any]:
        """Apply the policy."""
        params, facts, recorded = self.params, self.facts, self.record.get("live", {})
        now = (facts.vm.get("min_free_kbytes", 0), facts.vm.get("watermark_scale_factor", 10))
        first = (int(recorded.get("vm.min_free_kbytes", now[0])), int(recorded.get("vm.watermark_scale_factor", now[1])))
        values, reason, others = self.desired(first[0])
        if facts.container:
            return self.skipped()
        live = self.live([*values, *(sysctl.PARTNERS[key] for key in values if key in sysctl.PARTNERS), *recorded])
        then = (int(values.get("vm.min_free_kbytes", now[0])), int(values.get("vm.watermark_scale_factor", now[1])))
        move = memory.floor_cost_kb(facts.meminfo, facts.zones, now, then)
        self.check(values, live, move)
        handover = self.handover(params["kho_off"])
        self.units = self.read_units()

        self.set_values(values, sysctl.record_before(recorded, values, live), live)
        packages = self.set_units(swap.desired(params["swap_policy"], params["oom_policy"]))
        swap_again = False
        if params["swap_policy"] == "off":
            self.swap_off()
        else:
            swap_again = self.swap_back()
        others += self.set_watchdog(params["watchdog_seconds"])
        self.read_back(values)

        cost = memory.gib(memory.floor_cost_kb(facts.meminfo, facts.zones, first, then))
        text = "vm.min_free_kbytes is left as it is"
        if reason:
            text = f"vm.min_free_kbytes {values['vm.min_free_kbytes']} ({reason}) costs {cost} GiB of MemAvailable"
        return self.result([f"{text}; {self.state_message(move, swap_again)}{others}"], handover, packages)

    def absent(self) -> dict[str, Any]:
        """Restore the values from before the first run."""
        if self.facts.container:
            return self.skipped()
        before = self.record.get("live", {})
        self.plan_watchdog(sysctl.LEAVE)
        self.units = self.read_units()
        self.set_values({}, before, self.live(before))
        self.set_units({})
        self.swap_back()
        self.set_watchdog(sysctl.LEAVE)
        self.read_back({key: before[key] for key in self.live(before)})
        handover = self.handover(False)
        self.record = {"kho": self.record.get("kho")}
        self.save()
        return self.result(["The memory settings are those from before the first run." if self.edit.changes.messages else "Nothing to restore."], handover, [])

    def read_back(self, values: Mapping[str, str]) -> None:
        """Compare the live system with the policy."""
        if self.edit.check_mode:
            return
        live = self.live(values)
        if sysctl.mismatch_message(values, live):
            rc, _out, _err = self.node.run(["systemctl", "is-active", "tuned.service"])
            tuned = (self.node.read("/etc/tuned/active_profile") or "unknown profile").strip() if rc == 0 else ""
            raise HostError(sysctl.mismatch_message(values, live, tuned))
        swaps = self.swaps() if self.params["swap_policy"] == "off" and self.params["state"] == "present" else []
        if swaps:
            raise HostError(swap.still_on_message(swaps))

    def state_message(self, move_kb: int, swap_again: bool) -> str:
        """Return what starts on the node afterwards, and the state of swap. `move_kb`: what MemAvailable loses; `swap_again`: swap is on again by this run."""
        meminfo, swaps = self.facts.meminfo, self.facts.swaps
        if not self.edit.check_mode and self.edit.changes.messages:
            meminfo, swaps, move_kb = memory.parse_meminfo(self.node.read("/proc/meminfo")), self.swaps(), 0
        held = memory.unaccounted_kb(meminfo) if self.facts.gpu_users else 0
        total = meminfo.get("MemTotal", 0)
        available = memory.highest_utilization(meminfo.get("MemAvailable", 0) - move_kb + held, total)
        free = memory.highest_utilization(meminfo.get("MemFree", 0) + held, total)
        state = "on again" if swap_again else "off"
        if swaps and self.params["swap_policy"] != "off":
            state = f"on ({memory.gib(sum(entry.size_kb for entry in swaps))} GiB)"
        when = ", estimated while the GPU is in use" if self.facts.gpu_users else ""
        return (
            f"vLLM from PR 35356 on (MemAvailable) starts up to gpu_memory_utilization {available:.2f}, "
            f"older images (MemFree) up to {free:.2f}{when}; swap is {state}; {swap.describe_oom_daemons(self.units)}"
        )

    def skipped(self) -> dict[str, Any]:
        """Return the result for a container, whose kernel is the one of the host."""
        reason = (
            f"this node is a container ({self.facts.container}), where vm.* and swap belong to the host: nothing was applied, "
            "run the sysctl role on the host itself"
        )
        return self.result([reason], kho.NOTHING, [])

    def result(self, shown: list[str], handover: Mapping[str, Any], packages: list[str]) -> dict[str, Any]:
        """Return the module's result."""
        return {**self.edit.changes.result(), "packages": packages, "kho": handover, "shown": [line for line in (*shown, handover["message"]) if line]}

    def run(self) -> dict[str, Any]:
        """Apply the option `state`, and return the module's result."""
        return self.present() if self.params["state"] == "present" else self.absent()
