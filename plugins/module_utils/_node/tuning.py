# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The memory policy of a node: sysctls with their floor, swap, protection against thrashing, out-of-memory daemons, watchdog, and its cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, HostError, later_lines
from ansible_collections.gb10.cluster.plugins.module_utils._node import kho, memory, memory_facts, sysctl, watchdog
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import MASKED, STARTED, STOPPED, Settings, Unit, Wanted
from ansible_collections.gb10.cluster.plugins.module_utils._node.sysctl import LEAVE

VM = ("watermark_boost_factor", "watermark_scale_factor", "vfs_cache_pressure", "dirty_ratio", "dirty_background_ratio", "overcommit_memory", "swappiness")
NUMBERS = (*VM, "min_free_kbytes", "lru_gen_min_ttl_ms", "watchdog_seconds", "reboot_on_panic")
#: Protection against thrashing, milliseconds: the kernel's multi-generational LRU keeps the pages of that time, otherwise the OOM killer runs.
#: Without it a node that runs out of memory evicts and reads its own programs for minutes before the OOM killer runs.
TTL, TTL_ENABLED = "/sys/kernel/mm/lru_gen/min_ttl_ms", "/sys/kernel/mm/lru_gen/enabled"
TTL_DROP_IN = "/etc/tmpfiles.d/60-gb10-cluster.conf"
#: All of systemd's swap, from /etc/fstab, a partition, zram or a unit, starts with swap.target, which is masked. The services switch swap on themselves.
SWAP_TARGET = "swap.target"
SWAP_SERVICES = ("zramswap.service", "zram-config.service", "dphys-swapfile.service", "swapfile.service", "dynamic-swap.service", "swapspace.service")
EARLYOOM = "earlyoom.service"
OOMD = ("systemd-oomd.service", "systemd-oomd.socket")
FILES: dict[str, str | None] = dict.fromkeys((sysctl.DROP_IN, TTL_DROP_IN, watchdog.DROP_IN))


def room_problem(used_kb: int, available_kb: int, total_kb: int) -> str:
    """Return why swap cannot be switched off now: its content must fit into memory. Empty if it fits."""
    if not used_kb or available_kb - used_kb >= min(memory.GIB_KB, total_kb // 20):
        return ""
    return (
        f"Swap contains {memory.gib(used_kb)} GiB and only {memory.gib(available_kb)} GiB of memory are available, so swapoff would freeze the node. "
        "Stop the serving group first (playbooks/stop.yml), or set sysctl_swap_policy to swappiness0 or leave."
    )


class MemoryPolicy:
    """The memory policy of one node. All methods raise HostError, UmaError and OSError."""

    def __init__(self, edit: Editor, state: str, params: Mapping[str, Any]) -> None:
        """Read the node; `params` are the variables of the role sysctl without its prefix."""
        self.edit = edit
        self.node = edit.node
        self.state = state
        # Without quotes, `off` is a boolean in YAML.
        self.params = {**params, "swap_policy": "off" if params.get("swap_policy") is False else params.get("swap_policy")}
        if state == "present":
            self.params.update({name: sysctl.whole(name, params[name]) for name in NUMBERS})
        self.facts = memory_facts.gather(self.node)
        self.settings = Settings(edit, "sysctl")
        self.rearm = False
        self.swap_off_wanted = state == "present" and self.params["swap_policy"] == "off"

    def swaps(self) -> list[memory.Swap]:
        """Return the swap that is on now."""
        return memory.parse_swaps(self.node.read("/proc/swaps"))

    def desired(self, stock_floor: int) -> tuple[dict[str, str], str]:
        """Return the sysctls to set, and the reason of the floor. `stock_floor` is the one before the first run."""
        params = self.params
        by_size = {size: int(params[f"min_free_kbytes_{size}"]) for size in ("121", "119")}
        total, percent = self.facts.meminfo.get("MemTotal", 0), float(params["min_free_percent_other"])
        floor, reason = sysctl.choose_floor(str(params["min_free_kbytes"]), total, by_size, percent, stock_floor)
        settings = {**{f"vm.{name}": params[name] for name in VM}, **sysctl.panic_values(str(params["reboot_on_panic"]))}
        return sysctl.desired(settings, floor, params["swap_policy"], params["settings"]), reason

    def thrashing(self) -> tuple[dict[str, str], str]:
        """Return the value that protects against thrashing, and a phrase for the message, also on a kernel without it."""
        option = str(self.params["lru_gen_min_ttl_ms"])
        if option == LEAVE:
            return {}, ""
        if self.node.read(TTL) is None:
            return {}, "; the kernel has no multi-generational LRU (min_ttl_ms)"
        if re.fullmatch(r"0x[0-9a-f]*[13579bdf]", (self.node.read(TTL_ENABLED) or "").strip().lower()) is None:
            return {}, f"; the kernel's multi-generational LRU is switched off ({TTL_ENABLED})"
        return {TTL: option}, f"; min_ttl_ms is {option}"

    def drop_in_of_systemd(self) -> tuple[str | None, str]:
        """Return the text of the watchdog's drop-in, and a phrase for the message. Refuses what the device cannot do, and a change under an engine."""
        option, text = str(self.params["watchdog_seconds"]) if self.state == "present" else LEAVE, None
        own = self.node.read(watchdog.DROP_IN) or ""
        if option != LEAVE:
            self.edit.require_own(watchdog.DROP_IN)
            device = watchdog.read(self.node)
            problem = watchdog.problem(device, int(option))
            if problem:
                raise HostError(problem)
            text = watchdog.render(int(option), device)
            # As after a run that has named a later drop-in, which is removed now. A running engine is not reloaded for it.
            self.rearm = text == own and bool(watchdog.mismatch(device, int(option), ())) and not self.facts.gpu_users
        if self.facts.gpu_users and (text or "") != own and (text or MARKER in own):
            raise HostError(watchdog.RELOAD_PROBLEM)
        return text, f"; the watchdog resets a frozen node after {option} s" if text else ""

    def units(self) -> dict[str, Unit]:
        """Return the units that the policies of swap and of out-of-memory daemons want."""
        wanted = {**dict.fromkeys(SWAP_SERVICES, STOPPED), SWAP_TARGET: MASKED} if self.swap_off_wanted else {}
        policy = self.params["oom_policy"]
        return wanted if policy == LEAVE else {**wanted, EARLYOOM: STARTED if policy == "earlyoom" else STOPPED, OOMD[0]: STOPPED, OOMD[1]: STOPPED}

    def check(self, values: Mapping[str, str], cost_kb: int) -> None:
        """Refuse what cannot be applied, before anything is changed. `cost_kb` is what MemAvailable loses in this run."""
        found = sysctl.overrides(later_lines(self.node, "sysctl.d", sysctl.DROP_IN), values)
        if found:
            raise HostError(sysctl.override_message(found, values))
        meminfo = self.facts.meminfo
        problem = sysctl.headroom_problem(meminfo, cost_kb, values.get("vm.min_free_kbytes", ""))
        if self.swap_off_wanted and not problem:
            used = sum(swap.used_kb for swap in self.facts.swaps)
            problem = room_problem(used, meminfo.get("MemAvailable", 0) - max(0, cost_kb), meminfo.get("MemTotal", 0))
        if problem:
            raise HostError(problem)

    def swap_off(self) -> None:
        """Switch swap off."""
        if self.facts.swaps:
            devices = [swap.device for swap in self.facts.swaps]
            self.settings.save(swap=sorted({*self.settings.record.get("swap", []), *devices}))
            self.edit.step(f"swap off: {', '.join(devices)}")
            for swap in self.swaps():  # without those that ended with their service
                self.edit.command("swapoff", swap.device)
        if self.swaps() and not self.edit.check_mode:
            parts = [f"{swap.device} ({swap.kind}, {memory.gib(swap.size_kb)} GiB)" for swap in self.swaps()]
            raise HostError(
                f"sysctl_swap_policy is off, but swap is on: {'; '.join(parts)}. Find the unit that starts it with `systemctl list-units --type=swap` and "
                "`journalctl -b | grep -i swap`, and disable it."
            )

    def swap_back(self) -> bool:
        """Restore swap, if an earlier run has switched it off; return whether any was on."""
        devices = self.settings.record.get("swap", [])
        if devices:
            self.edit.step(f"swap on again: {', '.join(devices)}")
            on = [swap.device for swap in self.swaps()]
            for device in devices:
                if device not in on and self.node.exists(device) and not device.startswith("/dev/zram"):
                    self.edit.command("swapon", device)
        self.settings.save(swap=None)
        return bool(devices)

    def handover(self, wanted: bool) -> dict[str, Any]:
        """Return what the role has to do for kho=off, and keep its record. Refuses what cannot work on this node."""
        if wanted:
            self.edit.require_own(kho.FILE)
        record = self.settings.record.get("kho", {})
        plan, record = kho.plan(kho.read(self.node), wanted, record, self.facts.meminfo, bool(self.facts.gpu_users))
        self.settings.save(kho=record)
        return plan

    def present(self) -> dict[str, Any]:
        """Apply the policy."""
        facts, recorded = self.facts, self.settings.record.get("values", {})
        now = (facts.vm.get("min_free_kbytes", 0), facts.vm.get("watermark_scale_factor", 10))
        first = (int(recorded.get("vm.min_free_kbytes", now[0])), int(recorded.get("vm.watermark_scale_factor", now[1])))
        values, reason = self.desired(first[0])
        then = (int(values.get("vm.min_free_kbytes", now[0])), int(values.get("vm.watermark_scale_factor", now[1])))
        move = memory.floor_cost_kb(facts.meminfo, facts.zones, now, then)
        ttl, phrase = self.thrashing()
        text, watched = self.drop_in_of_systemd()
        ttl_text = f"{sysctl.HEADER}\nw {TTL} - - - - {ttl[TTL]}\n" if ttl else None
        files = {sysctl.DROP_IN: sysctl.render(values), TTL_DROP_IN: ttl_text, watchdog.DROP_IN: text}
        wanted = Wanted(files, {**values, **ttl}, "", self.units())
        self.check(values, move)
        self.settings.check(wanted)
        handover = self.handover(bool(self.params["kho_off"]))

        packages = self.settings.apply(wanted)
        swap_again = False
        if self.swap_off_wanted:
            self.swap_off()
        else:
            swap_again = self.swap_back()
        if self.rearm:
            self.edit.step(f"systemd's watchdog: {self.params['watchdog_seconds']} s", "systemctl", "daemon-reload")
        if text and not self.edit.check_mode:
            later = later_lines(self.node, "systemd/system.conf", watchdog.DROP_IN)
            problem = watchdog.mismatch(watchdog.read(self.node), int(self.params["watchdog_seconds"]), later)
            if problem:
                raise HostError(problem)

        cost = memory.gib(memory.floor_cost_kb(facts.meminfo, facts.zones, first, then))
        shown = "vm.min_free_kbytes is left as it is"
        if reason:
            shown = f"vm.min_free_kbytes {values['vm.min_free_kbytes']} ({reason}) costs {cost} GiB of MemAvailable"
        return self.result([f"{shown}; {self.state_message(move, swap_again)}{phrase}{watched}"], handover, packages)

    def absent(self) -> dict[str, Any]:
        """Restore what was there before the first run."""
        self.drop_in_of_systemd()
        self.settings.apply(Wanted(FILES, {}))
        self.swap_back()
        handover = self.handover(False)
        return self.result(["The memory settings are those from before the first run." if self.edit.changes.messages else "Nothing to restore."], handover, [])

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
        if swaps and not self.swap_off_wanted:
            state = f"on ({memory.gib(sum(entry.size_kb for entry in swaps))} GiB)"
        when = ", estimated while the GPU is in use" if self.facts.gpu_users else ""
        units = {**self.settings.read_units([EARLYOOM, OOMD[0]]), **self.settings.units}
        daemons = [f"{name.partition('.')[0]} {'runs' if units[name].active else 'is stopped'}" for name in (EARLYOOM, OOMD[0]) if name in units]
        return (
            f"vLLM from PR 35356 on (MemAvailable) starts up to gpu_memory_utilization {available:.2f}, "
            f"older images (MemFree) up to {free:.2f}{when}; swap is {state}; {', '.join(daemons) or 'no out-of-memory daemon is installed'}"
        )

    def result(self, shown: list[str], handover: Mapping[str, Any], packages: list[str]) -> dict[str, Any]:
        """Return the module's result."""
        return {**self.edit.changes.result(), "packages": packages, "kho": handover, "shown": [line for line in (*shown, handover["message"]) if line]}

    def run(self) -> dict[str, Any]:
        """Apply the state, and return the module's result. A container, whose kernel is the one of the host, is not changed."""
        if not self.facts.container:
            return self.present() if self.state == "present" else self.absent()
        reason = (
            f"this node is a container ({self.facts.container}), where vm.* and swap belong to the host: nothing was applied, "
            "run the sysctl role on the host itself"
        )
        return self.result([reason], kho.NOTHING, [])
