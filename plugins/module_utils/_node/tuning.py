# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory policy of a node: sysctls with their floor, swap, thrashing, out-of-memory daemons; the watchdog of a frozen node; kho=off."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, Editor, FileChange, HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory, settings
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import Kernel
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import LEAVE, MASKED, STARTED, STOPPED, SYSCTL_HEADER, Settings, Unit, Wanted

# --- A frozen node reboots itself: systemd's drop-in for the hardware watchdog, and when the device cannot have it.
# Process 1 resets the watchdog at half of its time. If process 1 does not run, the device resets the node.

WATCHDOG_DROP_IN = "/etc/systemd/system.conf.d/60-gb10-cluster.conf"
WATCHDOG_DEVICE = "/sys/class/watchdog/watchdog0"
WATCHDOG_ATTRIBUTES = ("state", "timeout", "nowayout")
LEAST_SECONDS, MOST_SECONDS = 10, 3600  # a node under load may not run process 1 for a few seconds
REBOOT_SECONDS = 120  # systemd's 600 is longer than any stop of a node that answers
PANIC_MOST_SECONDS = 600
RELOAD_PROBLEM = (
    f"systemd must be reloaded to change the watchdog ({WATCHDOG_DROP_IN}), and the container of a running engine can lose its GPU then. "
    "Stop the serving group first (playbooks/stop.yml), then run --tags sysctl again."
)


def read_watchdog(node: Node) -> dict[str, str]:
    """Return the attributes of the device, empty without one, and as `armed` what systemd uses."""
    texts = {name: node.read(f"{WATCHDOG_DEVICE}/{name}") for name in WATCHDOG_ATTRIBUTES}
    found = {name: text.strip() for name, text in texts.items() if text is not None}
    _rc, out, _err = node.run(["systemctl", "show", "--property", "RuntimeWatchdogUSec", "--value"])
    return {**found, "armed": out.strip()} if found or node.exists(WATCHDOG_DEVICE) else {}


def watchdog_problem(device: Mapping[str, str], seconds: int) -> str:
    """Return why the watchdog cannot be set; empty if it can. systemd uses the nearest time that the device has, which is read back."""
    if not device:
        return (
            f"sysctl_watchdog_seconds is {seconds}, but this node has no watchdog device ({WATCHDOG_DEVICE} does not exist). Load its driver now and at boot "
            "(on a GB10: modprobe sbsa_gwdt, and sbsa_gwdt in /etc/modules-load.d), or set the variable to leave."
        )
    if device.get("nowayout") == "1":
        return "The watchdog device cannot be stopped (nowayout is 1): sysctl_state: absent would reset the node. Load its driver with nowayout=0."
    return ""


def watchdog_mismatch(device: Mapping[str, str], seconds: int) -> str:
    """Return how the device differs from the drop-in; empty if it does not."""
    state, timeout = device.get("state", "active"), device.get("timeout", str(seconds))
    if (state, timeout) == ("active", str(seconds)) and device["armed"] not in ("", "0"):
        return ""
    return (
        f"The watchdog is not as {WATCHDOG_DROP_IN} sets it: systemd uses {device['armed']}, {WATCHDOG_DEVICE} is {state} with {timeout} s, "
        f"expected {seconds} s. The device has another longest time, another program uses it, or a later drop-in wins: read `journalctl -b _PID=1 --grep "
        "watchdog` and `systemd-analyze cat-config systemd/system.conf`."
    )


# --- Kho=off on the kernel command line: what GRUB has, what the running kernel has, and what the role sysctl changes.
# The kernel's handover (KHO) of DGX OS 7.6 keeps about 9.4 GiB, see `memory.cma_problem`.

KHO_FILE = "/etc/default/grub.d/60-gb10-cluster.cfg"
KHO_TEXT = f"""{MARKER} (role sysctl). Set sysctl_kho_off: false to remove this file.
case " $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT " in
  *" kho=off "*) ;;
  *) GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX kho=off" ;;
esac
"""
GRUB_MENU = "/boot/grub/grub.cfg"
GRUB_PROGRAM = "/usr/sbin/update-grub"
REBOOT = "Reboot the node (playbooks/reboot.yml)"


class Boot(NamedTuple):
    """What sets the kernel command line of the next boot."""

    own: bool  # the role's file is there
    menu: bool | None  # GRUB's menu has kho=off; None without GRUB


def read_kho(node: Node) -> Boot:
    """Read the node."""
    menu = node.read(GRUB_MENU) if node.exists(GRUB_PROGRAM) else None
    return Boot(MARKER in (node.read(KHO_FILE) or ""), None if menu is None else re.search(r"(?m)^\s*linux\b.*\skho=off\b", menu) is not None)


def kho_pending(boot: Boot, kernel: Kernel) -> str:
    """Return what the next boot changes, as a phrase; empty if the running kernel is as the files of GRUB want it."""
    if boot.own and not kernel.kho_off:
        return f"{KHO_FILE} has kho=off, and the running kernel does not"
    return "the running kernel has kho=off, and the menu of GRUB does not" if kernel.kho_off and boot.menu is False else ""


def _refuse(boot: Boot, kernel: Kernel) -> None:
    """Refuse kho=off where it cannot work."""
    if kernel.kho_off:
        return
    if boot.menu is None:
        raise HostError(
            f"sysctl_kho_off needs GRUB, and this node has no {GRUB_PROGRAM} or no {GRUB_MENU}. Add kho=off to the kernel command line in the configuration of "
            "its boot loader, or set sysctl_kho_off: false."
        )
    if kernel.crash_size != "0":
        raise HostError(
            f"kho=off is not safe here: /sys/kernel/kexec_crash_size is {kernel.crash_size}, and a crash kernel is reserved. Remove crashkernel= from the "
            "kernel command line (package kdump-tools), or set sysctl_kho_off: false."
        )


def kho_message(boot: Boot, wanted: bool, facts: memory.Facts) -> str:
    """Return what the running kernel shows, and whether a reboot changes it; empty on a node that has nothing to do with kho=off."""
    meminfo, kernel = facts.meminfo, facts.kernel
    figures = {key: meminfo.get(key, 0) for key in ("CmaFree", "CmaTotal", "MemFree")}
    shown = f"CmaFree {figures['CmaFree']} of CmaTotal {figures['CmaTotal']} kB, MemFree {memory.gib(figures['MemFree'])} GiB"
    if wanted and kernel.kho_off:
        problem = memory.cma_problem(meminfo, kernel)
        busy = " while the GPU is in use" if facts.gpu_users else ""  # MemFree does not show what an idle node has
        proof = f"kho=off is on the kernel command line, and KHO keeps no memory: {shown}{busy}"
        return f"{problem.found}: {problem.remedy}" if problem else proof
    if wanted:
        other = ". After a reboot without kho=off, find the boot loader or the entry that starts the kernel, and add it there" if boot.own and boot.menu else ""
        return f"kho=off is in {KHO_FILE}, and the running kernel does not have it: {shown}. {REBOOT}{other}"
    return f"kho=off is removed from GRUB, and the running kernel still has it. {REBOOT}" if kernel.kho_off and (boot.own or boot.menu is False) else ""


# --- The memory policy of a node: sysctls with their floor, swap, protection against thrashing, out-of-memory daemons, watchdog, and its cost.

VM = ("watermark_boost_factor", "vfs_cache_pressure", "dirty_ratio", "dirty_background_ratio", "overcommit_memory", "swappiness")
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


class MemoryPolicy:
    """The memory policy of one node. All methods raise HostError and OSError."""

    def __init__(self, edit: Editor, state: str, params: Mapping[str, Any]) -> None:
        """Read the node; `params` are the variables of the role sysctl without its prefix."""
        self.edit = edit
        self.node = edit.node
        self.state = state
        # Without quotes, `off` is a boolean in YAML.
        self.params = {**params, "swap_policy": "off" if params.get("swap_policy") is False else params.get("swap_policy")}
        if state == "present":
            self.params.update({name: settings.whole(name, params[name]) for name in NUMBERS})
        self.facts = memory.gather(self.node)
        self.settings = Settings(edit, "sysctl")
        self.swap_off_wanted = state == "present" and self.params["swap_policy"] == "off"

    def swaps(self) -> list[memory.Swap]:
        """Return the swap that is on now."""
        return memory.parse_swaps(self.node.read("/proc/swaps"))

    def desired(self, stock_floor: int) -> tuple[dict[str, str], str]:
        """Return the sysctls to set, and the reason of the floor. `stock_floor` is the one before the first run."""
        params = self.params
        floor, reason = settings.choose_floor(str(params["min_free_kbytes"]), self.facts.meminfo.get("MemTotal", 0), stock_floor)
        values = {**{f"vm.{name}": params[name] for name in VM}, **settings.panic_values(str(params["reboot_on_panic"]))}
        return settings.desired_sysctls(values, floor, params["swap_policy"]), reason

    def thrashing(self) -> tuple[dict[str, str], str]:
        """Return the value that protects against thrashing, and a phrase for the message, also on a kernel without it."""
        option = str(self.params["lru_gen_min_ttl_ms"])
        if option == LEAVE:
            return {}, ""
        if not int((self.node.read(TTL_ENABLED) or "0").strip(), 16) & 1:
            return {}, f"; the kernel's multi-generational LRU is missing or switched off ({TTL_ENABLED})"
        return {TTL: option}, f"; min_ttl_ms is {option}"

    def plan_watchdog(self) -> tuple[str | None, bool]:
        """Return the text of systemd's drop-in, and whether systemd has to read it. Refuses what the device cannot do, and a change under an engine."""
        option, text = str(self.params["watchdog_seconds"]) if self.state == "present" else LEAVE, None
        own = self.node.read(WATCHDOG_DROP_IN) or ""
        due = MARKER in own
        if option != LEAVE:
            self.edit.require_own(WATCHDOG_DROP_IN)
            device = read_watchdog(self.node)
            problem = watchdog_problem(device, int(option))
            if problem:
                raise HostError(problem)
            text = f"{SYSCTL_HEADER}\n[Manager]\nRuntimeWatchdogSec={option}\nRebootWatchdogSec={REBOOT_SECONDS}\n"
            due = text != own or bool(watchdog_mismatch(device, int(option)))
        if due and self.facts.gpu_users:
            raise HostError(RELOAD_PROBLEM)
        return text, due

    def set_watchdog(self, text: str | None) -> None:
        """Have systemd read the drop-in, or its absence, and read the device back."""
        seconds = self.params.get("watchdog_seconds")
        self.edit.write(WATCHDOG_DROP_IN, text, f"{WATCHDOG_DROP_IN} {'written' if text else 'removed'}")
        if text is None:
            self.edit.remove_empty_folder(os.path.dirname(WATCHDOG_DROP_IN))
        self.edit.step(f"systemd's watchdog: {f'{seconds} s' if text else 'as before'}", "systemctl", "daemon-reload")
        problem = watchdog_mismatch(read_watchdog(self.node), int(str(seconds))) if text and not self.edit.check_mode else ""
        if problem:
            raise HostError(problem)

    def units(self) -> dict[str, Unit]:
        """Return the units that the policies of swap and of out-of-memory daemons want."""
        wanted = {**dict.fromkeys(SWAP_SERVICES, STOPPED), SWAP_TARGET: MASKED} if self.swap_off_wanted else {}
        policy = self.params["oom_policy"]
        return wanted if policy == LEAVE else {**wanted, EARLYOOM: STARTED if policy == "earlyoom" else STOPPED, OOMD[0]: STOPPED, OOMD[1]: STOPPED}

    def check(self, values: Mapping[str, str], cost_kb: int) -> None:
        """Refuse what cannot be applied, before anything is changed. `cost_kb` is what MemAvailable loses in this run."""
        found = settings.override_problem(settings.later_lines(self.node), values)
        used = sum(swap.used_kb for swap in self.facts.swaps) if self.swap_off_wanted else 0
        problem = found or settings.room_problem(self.facts.meminfo, cost_kb, values.get("vm.min_free_kbytes", ""), used)
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

    def check_kho(self, wanted: bool) -> Boot:
        """Return what GRUB has. Refuses what cannot work on this node."""
        boot = read_kho(self.node)
        if wanted:
            self.edit.require_own(KHO_FILE)
            _refuse(boot, self.facts.kernel)
        return boot

    def set_kho(self, boot: Boot, wanted: bool) -> str:
        """Have GRUB start the kernel with kho=off, or as before, and return what the user has to read. It adds nothing where another file sets kho=off.

        A run that ended before the menu was updated is repeated: a menu without kho=off is updated again, and the file is removed after the menu.
        """
        if wanted and boot.menu is not None:
            if self.edit.write(KHO_FILE, KHO_TEXT, f"{KHO_FILE} written") or not boot.menu:
                self.edit.step("menu of GRUB updated", "update-grub")
            if not self.edit.check_mode and not read_kho(self.node).menu:
                raise HostError(
                    f"{KHO_FILE} adds kho=off, and update-grub has written {GRUB_MENU} without it. Find the later file in /etc/default/grub.d that sets "
                    "GRUB_CMDLINE_LINUX, and let it append to the old value."
                )
        elif boot.own and not wanted:
            text, blank = self.node.read(KHO_FILE), f"{MARKER} (role sysctl). The next run of this role removes this file.\n"
            self.edit.changes.file(FileChange(KHO_FILE, text, None), f"{KHO_FILE} removed")
            if not self.edit.check_mode:
                self.node.apply(FileChange(KHO_FILE, text, blank))
            self.edit.step("menu of GRUB updated", "update-grub")
            if not self.edit.check_mode:
                self.node.apply(FileChange(KHO_FILE, blank, None))
        return kho_message(boot, wanted, self.facts)

    def present(self) -> dict[str, Any]:
        """Apply the policy."""
        facts, recorded = self.facts, self.settings.record.get("values", {})
        now, scale = facts.vm.get("min_free_kbytes", 0), facts.vm.get("watermark_scale_factor", 10)
        first = int(recorded.get("vm.min_free_kbytes", now))
        values, reason = self.desired(first)
        then = int(values.get("vm.min_free_kbytes", now))
        move = memory.floor_cost_kb(facts.meminfo, now, then, scale)
        ttl, phrase = self.thrashing()
        text, watchdog_due = self.plan_watchdog()
        ttl_text = f"{settings.SYSCTL_HEADER}\nw {TTL} - - - - {ttl[TTL]}\n" if ttl else None
        wanted = Wanted({settings.SYSCTL_DROP_IN: settings.render_sysctls(values), TTL_DROP_IN: ttl_text}, {**values, **ttl}, self.units())
        self.check(values, move)
        self.settings.check(wanted)
        boot = self.check_kho(bool(self.params["kho_off"]))

        packages = self.settings.apply(wanted)
        swap_again = False
        if self.swap_off_wanted:
            self.swap_off()
        else:
            swap_again = self.swap_back()
        if watchdog_due:
            self.set_watchdog(text)
        kho = self.set_kho(boot, bool(self.params["kho_off"]))

        cost = memory.gib(memory.floor_cost_kb(facts.meminfo, first, then, scale))
        watched = f"; the watchdog resets a frozen node after {self.params['watchdog_seconds']} s" if text else ""
        shown = "vm.min_free_kbytes is left as it is"
        if reason:
            shown = f"vm.min_free_kbytes {values['vm.min_free_kbytes']} ({reason}) costs {cost} GiB of MemAvailable"
        return self.result([f"{shown}; {self.state_message(move, swap_again)}{phrase}{watched}", kho], packages)

    def absent(self) -> dict[str, Any]:
        """Restore what was there before the first run."""
        text, watchdog_due = self.plan_watchdog()
        self.settings.apply(Wanted({settings.SYSCTL_DROP_IN: None, TTL_DROP_IN: None}, {}))
        if watchdog_due:
            self.set_watchdog(text)
        self.swap_back()
        kho = self.set_kho(read_kho(self.node), False)
        return self.result(["The memory settings are those from before the first run." if self.edit.changes.messages else "Nothing to restore.", kho], [])

    def state_message(self, move_kb: int, swap_again: bool) -> str:
        """Return what starts on the node afterwards, and the state of swap. `move_kb`: what MemAvailable loses; `swap_again`: swap is on again by this run."""
        meminfo, swaps = self.facts.meminfo, self.facts.swaps
        if not self.edit.check_mode and self.edit.changes.messages:
            meminfo, swaps, move_kb = memory.parse_meminfo(self.node.read("/proc/meminfo")), self.swaps(), 0
        held = memory.unaccounted_kb(meminfo) if self.facts.gpu_users else 0
        total = meminfo.get("MemTotal", 0)
        # Also of images that read MemFree: the agent drops the page cache before the start.
        highest = memory.highest_utilization(meminfo.get("MemAvailable", 0) - move_kb + held, total)
        state = "on again" if swap_again else "off"
        if swaps and not self.swap_off_wanted:
            state = f"on ({memory.gib(sum(entry.size_kb for entry in swaps))} GiB)"
        when = ", estimated while the GPU is in use" if self.facts.gpu_users else ""
        units = {**self.settings.read_units([EARLYOOM, OOMD[0]]), **self.settings.units}
        daemons = [f"{name.partition('.')[0]} {'runs' if units[name].active else 'is stopped'}" for name in (EARLYOOM, OOMD[0]) if name in units]
        return (
            f"vLLM starts up to gpu_memory_utilization {highest:.2f}{when}; swap is {state}; "
            f"{', '.join(daemons) or 'no out-of-memory daemon is installed'}"
        )

    def result(self, shown: list[str], packages: list[str]) -> dict[str, Any]:
        """Return the module's result."""
        return {**self.edit.changes.result(), "packages": packages, "shown": [line for line in shown if line]}

    def run(self) -> dict[str, Any]:
        """Apply the state, and return the module's result. A container, whose kernel is the one of the host, is not changed."""
        if not self.facts.container:
            return self.present() if self.state == "present" else self.absent()
        reason = (
            f"this node is a container ({self.facts.container}), where vm.* and swap belong to the host: nothing was applied, "
            "run the sysctl role on the host itself"
        )
        return self.result([reason], [])
