# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host role wants of a node, applied, read back and undone: files with a marker, values of the kernel, units; and the sysctls of the memory policy.

The record has what was there before the first change, and only of what is set now. So the undo is the same as to want nothing.
Values are strings with single blanks. Their names are sysctls (`vm.min_free_kbytes`) or files of the kernel (`/sys/block/sda/queue/read_ahead_kb`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, Editor, HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory

#: 0 is the mark that vm.dirty_bytes is used instead. As a value it would stop all writes, so it is not restored: that takes a reboot.
RATIOS = ("vm.dirty_ratio", "vm.dirty_background_ratio")


class Unit(NamedTuple):
    """A unit that systemd has, as it is or as it is wanted. With `active` None it is started when it becomes enabled."""

    enabled: bool
    active: bool | None
    masked: bool = False


STARTED, ENABLED, STOPPED, MASKED = Unit(True, True), Unit(True, None), Unit(False, False), Unit(False, False, True)


class Wanted(NamedTuple):
    """What a role wants. A file without a text is removed if it has the marker."""

    files: Mapping[str, str | None]
    values: Mapping[str, str]
    units: Mapping[str, Unit] = MappingProxyType({})


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
        self.units: dict[str, Unit] = {}  # after `apply`

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
                self.edit.require_own(path)
        missing = sorted(set(wanted.values) - set(self.live(wanted.values)))
        if missing:
            raise HostError(f"This kernel has no {', '.join(missing)} ({kernel_path(missing[0])} does not exist). Set the variable of the role to leave.")

    def apply(self, wanted: Wanted) -> list[str]:
        """Record, write files and values, set units, restore what is not wanted any more, and read back. Return the packages that are missing."""
        self.check(wanted)
        before = dict(self.record.get("values", {}))
        live = self.live([*wanted.values, *before])
        before.update((name, live[name]) for name in wanted.values if name not in before and not (name in RATIOS and live[name] == "0"))
        self.save(values=before)
        for path, text in wanted.files.items():
            if text is not None:
                self.edit.write(path, text, f"{path} written")
            else:
                self.edit.remove_own(path)
        values = {**{name: value for name, value in before.items() if name in live}, **dict(sorted(wanted.values.items()))}
        self.edit.write_live("live kernel", values, live, kernel_path)
        self.save(values={name: value for name, value in before.items() if name in wanted.values})
        missing = self.set_units(wanted.units)
        self.read_back(values)
        return missing

    def read_units(self, names: Sequence[str]) -> dict[str, Unit]:
        """Return the units that systemd has. `systemctl show` has the state of a file from before a change until systemd is reloaded."""
        if not names:
            return {}
        _rc, files, _err = self.node.run(["systemctl", "list-unit-files", "--no-legend", *names])
        _rc, active, _err = self.node.run(["systemctl", "is-active", *names])
        runs = dict(zip(names, active.split()))
        states = {row[0]: row[1] for row in map(str.split, files.splitlines()) if len(row) > 1}
        return {
            name: Unit(state.startswith(("enabled", "generated")), runs.get(name) in ("active", "activating", "reloading"), state.startswith("masked"))
            for name, state in states.items()
        }

    def set_units(self, wanted: Mapping[str, Unit]) -> list[str]:
        """Start, stop and mask units, and restore those that are not wanted any more; return the packages that are missing.

        systemd is not reloaded: a container without CDI would lose its GPU. So a unit that was masked is not started in the same run.
        """
        recorded = {name: Unit(*state) for name, state in self.record.get("units", {}).items()}
        back = {name: state for name, state in recorded.items() if name not in wanted}
        self.units, packages = self.read_units(list(dict.fromkeys([*wanted, *back]))), []
        for name, state in {**back, **wanted}.items():
            unit = self.units.get(name)
            if unit is None:
                if state.active:
                    self.save(units={name: STOPPED, **self.record.get("units", {})})
                    self.edit.step(f"{name} enabled and started")
                    packages.append(name.partition(".")[0])
                continue
            if unit.masked and state.active and name in wanted:
                raise HostError(f"{name} is masked, so it cannot be started. Run `systemctl unmask {name}`, then run again.")
            if state.active is None:
                state = Unit(True, unit.active or not unit.enabled)
            if state.masked or unit.masked:
                state = unit._replace(masked=state.masked or name in wanted)
            if unit == state:
                continue
            self.save(units={name: unit, **self.record.get("units", {})})
            word = "as before" if name in back else "masked" if state.masked else "enabled and started" if state.active else "stopped and disabled"
            self.edit.step(f"{name} {word}")
            if unit.masked != state.masked:
                self.edit.command("systemctl", "mask" if state.masked else "unmask", "--no-reload", name)
            if unit.enabled != state.enabled:
                self.edit.command("systemctl", "enable" if state.enabled else "disable", "--no-reload", name)
            if unit.active != state.active:
                self.edit.command("systemctl", "start" if state.active else "stop", name)
            self.units[name] = state
        self.save(units={name: state for name, state in self.record.get("units", {}).items() if name in wanted})
        return packages

    def read_back(self, values: Mapping[str, str]) -> None:
        """Compare the live values with those that were written."""
        live = self.live(values) if not self.edit.check_mode else values
        wrong = [f"{name} is {live.get(name, 'missing')}, expected {value}" for name, value in sorted(values.items()) if live.get(name) != value]
        if wrong:
            rc, _out, _err = self.node.run(["systemctl", "is-active", "tuned.service"])
            profile = (self.node.read("/etc/tuned/active_profile") or "unknown profile").strip()
            guess = f"tuned ({profile}) runs on this node and may set it." if rc == 0 else "Find the service that sets it (tuned, a cron job, rc.local)."
            raise HostError(f"The live kernel differs from what was written: {', '.join(wrong)}. {guess}")


# --- The sysctls of the memory policy: what the variables ask for, the floor of a node's size, and who overrides them at boot.
# Keys have dots (`vm.min_free_kbytes`). Values are strings as the kernel prints them, with single blanks. The check of the inventory has the ranges.

SYSCTL_DROP_IN = "/etc/sysctl.d/60-gb10-cluster.conf"
SYSCTL_HEADER = f"{MARKER} (role sysctl). Set sysctl_state: absent to remove this file."
LEAVE = "leave"
AUTO = "auto"
# Keys whose variable does not have their name.
VARIABLES = dict.fromkeys(("kernel.panic", "kernel.panic_on_oops", "kernel.softlockup_panic", "vm.panic_on_oom"), "sysctl_reboot_on_panic")
# A floor above this share of the memory starves the node.
HIGHEST_FLOOR_PERCENT = 10
#: The floor of `auto`: of a node whose 128 GB appear as 119 or 121 GiB, and of a smaller one.
FLOOR_KB, FULL_SIZE_KB, SMALL_PERCENT = 3 * memory.GIB_KB, 118 * memory.GIB_KB, 2.5


def variable(key: str) -> str:
    """Return the role's variable of a key."""
    return VARIABLES.get(key) or "sysctl_" + key.partition(".")[2]


def later_lines(node: Node) -> list[tuple[str, str]]:
    """Return (`path line n`, text) of what systemd reads after our file."""
    found, path, number = [], "", 0
    _rc, out, _err = node.run(["systemd-analyze", "cat-config", "sysctl.d"])
    for line in out.splitlines():
        match = re.fullmatch(r"# (/\S+/sysctl\.d/\S+)(?: -> \S+)?", line)
        path, number = (match.group(1), 0) if match else (path, number + 1)
        if not match and os.path.basename(path) > os.path.basename(SYSCTL_DROP_IN):
            found.append((f"{path} line {number}", line))
    return found


def override_problem(lines: Sequence[tuple[str, str]], values: Mapping[str, str]) -> str:
    """Return which lines replace `values` at boot, and the remedy; empty if none does. `lines` are those that are read after our file."""
    last = {}
    for place, line in lines:
        name, _equals, value = line.partition("=")
        last[name.strip().lstrip("-")] = (place, squeeze(value))
    found = {key: last[key] for key, value in values.items() if key in last and last[key][1] != value}
    if not found:
        return ""
    parts = [f"{place} sets {key} to {value} after {SYSCTL_DROP_IN} sets it to {values[key]}" for key, (place, value) in found.items()]
    names = ", ".join(sorted({place.partition(" line ")[0] for place, _value in found.values()}))
    variables = ", ".join(sorted({variable(key) for key in found}))
    return f"{'; '.join(parts)}. The later file wins at each boot. Remove the line from {names}, or set {variables} to leave or to that value."


def choose_floor(option: str, total_kb: int, stock_kb: int = 0) -> tuple[str, str]:
    """Return (vm.min_free_kbytes or leave, the reason). `option` is auto, leave or a number of KiB. Raises HostError.

    `stock_kb` is the value before the first run: on a smaller node, auto does not go below it.
    """
    if option == LEAVE:
        return LEAVE, ""
    floor, why = FLOOR_KB, "for a node of 128 GB"
    if option != AUTO:
        floor, why = int(option), "as chosen in sysctl_min_free_kbytes"
    elif total_kb < FULL_SIZE_KB:
        floor, why = int(total_kb * SMALL_PERCENT / 100), f"{SMALL_PERCENT} % of {memory.gib(total_kb)} GiB"
        if floor < stock_kb:
            floor, why = stock_kb, f"the kernel's own value, above {why}"
    highest = total_kb * HIGHEST_FLOOR_PERCENT // 100
    if floor > highest:
        raise HostError(
            f"vm.min_free_kbytes would be {floor} ({why}), more than {HIGHEST_FLOOR_PERCENT} % of the {total_kb} kB of this node. Choose at most {highest}."
        )
    return str(floor), why


def whole(name: str, value: object) -> str:
    """Return the number of a variable as the kernel prints it (`60` for 60.0), or its word. Raises HostError."""
    text = squeeze(value)
    try:
        return text if text in (AUTO, LEAVE) else str(int(float(text)))
    except ValueError as error:
        raise HostError(f"sysctl_{name} is {text!r}, expected a whole number, auto or leave.") from error


def desired_sysctls(settings: Mapping[str, object], floor: str, swap_policy: str) -> dict[str, str]:
    """Return the values to set from the options (`vm.key: value or leave`). Raises HostError."""
    values: dict[str, str] = {}
    for key, value in {"vm.min_free_kbytes": floor, **settings}.items():
        word = squeeze(value)
        if key == "vm.swappiness" and word == AUTO:
            word = "0" if swap_policy == "swappiness0" else LEAVE
        if word != LEAVE:
            values[key] = word
    ratio, background = (int(values.get(key, default)) for key, default in (("vm.dirty_ratio", 100), ("vm.dirty_background_ratio", -1)))
    if background >= ratio:
        raise HostError(f"sysctl_dirty_background_ratio is {background}, expected less than sysctl_dirty_ratio ({ratio}).")
    return values


def panic_values(option: str) -> dict[str, str]:
    """Return the sysctls with which a panic, an oops or a locked processor reboots the node; empty for `leave`.

    Memory that runs out must not be a panic: the OOM killer stops a process instead.
    """
    return {} if option == LEAVE else {"kernel.panic": option, "kernel.panic_on_oops": "1", "kernel.softlockup_panic": "1", "vm.panic_on_oom": "0"}


def render_sysctls(values: Mapping[str, str]) -> str | None:
    """Return the text of the drop-in; None without values."""
    return "\n".join([SYSCTL_HEADER] + [f"{key} = {values[key]}" for key in sorted(values)]) + "\n" if values else None


def room_problem(meminfo: Mapping[str, int], cost_kb: int, floor: str, swap_kb: int) -> str:
    """Return why the floor cannot be raised, or swap not be switched off, now, as under a running engine; empty if both fit into memory."""
    available, wanted = meminfo.get("MemAvailable", 0), max(0, cost_kb) + swap_kb
    if not wanted or available - wanted >= min(memory.GIB_KB // 2, meminfo.get("MemTotal", 0) // 50):
        return ""
    parts = [f"vm.min_free_kbytes = {floor} takes {memory.gib(cost_kb)} GiB"] if cost_kb > 0 else []
    parts += [f"swap contains {memory.gib(swap_kb)} GiB"] if swap_kb else []
    return (
        f"Memory is short: {', '.join(parts)}, and only {memory.gib(available)} GiB are available, so the node would freeze. "
        "Stop the serving group first (playbooks/stop.yml), then run --tags sysctl again."
    )
