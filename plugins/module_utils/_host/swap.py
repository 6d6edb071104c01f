# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Swap and the out-of-memory daemons: what is on, what starts it at boot, and the plan to switch it off. Pure.

A unit that starts swap is masked. If its file is the user's own in /etc/systemd/system, which systemd does not mask, it gets a drop-in with a
condition that is never true. Lines of /etc/fstab are commented out with a marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._host import memory

FSTAB = "/etc/fstab"
FSTAB_MARK = "# gb10.cluster swap off: "
UNIT_MARKER = "# Managed by gb10.cluster (role sysctl): this unit would bring swap back at boot."
SERVICES = ("zramswap.service", "zram-config.service", "dphys-swapfile.service", "swapfile.service", "dynamic-swap.service", "swapspace.service")
EARLYOOM = "earlyoom.service"
OOMD = ("systemd-oomd.service", "systemd-oomd.socket")
UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/run/systemd/generator.early",
    "/run/systemd/generator.late",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)
UNIT_PROPERTIES = "Id,LoadState,ActiveState,UnitFileState,FragmentPath,SourcePath,What"


class Unit(NamedTuple):
    """A systemd unit as `systemctl show` prints it."""

    name: str
    load: str
    active: bool
    file_state: str
    fragment: str
    source: str
    what: str = ""


class Silence(NamedTuple):
    """One unit that must not start: `method` is mask or drop-in."""

    unit: str
    method: str
    active: bool


def drop_in_path(unit: str) -> str:
    """Return the path of the drop-in that disables a unit."""
    return f"/etc/systemd/system/{unit}.d/60-gb10-cluster.conf"


def drop_in_text() -> str:
    """Return a drop-in whose condition is never true."""
    return f"{UNIT_MARKER}\n[Unit]\nConditionPathExists=!/\n"


def fstab_swaps(text: str | None) -> list[tuple[int, str]]:
    """Return (line number, device) of the swap lines that are used at boot."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate((text or "").splitlines(), 1):
        words = line.split()
        if len(words) >= 3 and not words[0].startswith("#") and words[2] == "swap" and "noauto" not in (words[3:4] or [""])[0].split(","):
            found.append((number, words[0]))
    return found


def fstab_off(text: str | None) -> str | None:
    """Return fstab with its swap lines commented out with our marker."""
    if text is None:
        return None
    numbers = {number for number, _device in fstab_swaps(text)}
    lines = text.splitlines(keepends=True)
    return "".join(FSTAB_MARK + line if number in numbers else line for number, line in enumerate(lines, 1))


def fstab_on(text: str | None) -> str | None:
    """Return fstab without our comment marks."""
    if text is None:
        return None
    return "".join(line[len(FSTAB_MARK) :] if line.startswith(FSTAB_MARK) else line for line in text.splitlines(keepends=True))


def parse_units(text: str) -> list[Unit]:
    """Return the units that `systemctl show -p ...` printed, in blocks between blank lines."""
    units: list[Unit] = []
    for block in text.split("\n\n"):
        shown = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if shown.get("Id"):
            units.append(
                Unit(
                    shown["Id"],
                    shown.get("LoadState", ""),
                    shown.get("ActiveState", "") in ("active", "activating", "reloading"),
                    shown.get("UnitFileState", ""),
                    shown.get("FragmentPath", ""),
                    shown.get("SourcePath", ""),
                    shown.get("What", ""),
                )
            )
    return units


def to_silence(units: Sequence[Unit], have_drop_in: Sequence[str] = ()) -> list[Silence]:
    """Return the units that start swap at boot and are not disabled yet. Units made from /etc/fstab depend on its lines."""
    plan: dict[str, Silence] = {}
    for unit in units:
        swap = unit.name.endswith(".swap")
        if not swap and unit.name not in SERVICES and not unit.name.startswith("systemd-zram-setup@"):
            continue
        if unit.load != "loaded" or unit.name in have_drop_in or not unit.fragment or unit.source == FSTAB:
            continue
        if unit.file_state == "disabled" or (not swap and unit.file_state not in ("enabled", "enabled-runtime", "generated", "static")):
            continue
        method = "drop-in" if unit.fragment.startswith("/etc/systemd/system/") else "mask"
        plan[unit.name] = Silence(unit.name, method, unit.active)
        if unit.name.startswith("dev-zram") and swap:  # zram-generator has a second unit, which sets the device up
            setup = f"systemd-zram-setup@{unit.name[len('dev-') : -len('.swap')]}.service"
            plan.setdefault(setup, Silence(setup, "mask", False))
    return [plan[name] for name in sorted(plan)]


def room_problem(swaps: Sequence[memory.Swap], available_kb: int, total_kb: int) -> str:
    """Return why swap cannot be switched off now: its content must fit into memory. Empty if it fits."""
    used = sum(swap.used_kb for swap in swaps)
    if not used or available_kb - used >= min(memory.GIB_KB, total_kb // 20):
        return ""
    return (
        f"Swap contains {memory.gib(used)} GiB and only {memory.gib(available_kb)} GiB of memory are available, so swapoff would freeze the node. "
        "Stop the serving group first (playbooks/stop.yml), or set sysctl_swap_policy to swappiness0 or leave."
    )


def still_on_message(swaps: Sequence[memory.Swap], units: Sequence[Unit]) -> str:
    """Return a message on swap that is on although it was switched off; empty if none is."""
    parts = []
    for swap in swaps:
        owners = sorted({unit.name for unit in units if unit.active and unit.what == swap.device and unit.fragment})
        parts.append(f"{swap.device} ({swap.kind}, {memory.gib(swap.size_kb)} GiB{', started by ' + ', '.join(owners) if owners else ''})")
    if not parts:
        return ""
    return (
        f"sysctl_swap_policy is off, but swap is on: {'; '.join(parts)}. Find the unit that starts it with `systemctl list-units --type=swap` and "
        "`journalctl -b | grep -i swap`, and disable it."
    )


def oom_desired(policy: str) -> dict[str, bool]:
    """Return {unit: whether it must run} for a policy; empty for leave."""
    return {} if policy == "leave" else {EARLYOOM: policy == "earlyoom", OOMD[0]: False, OOMD[1]: False}


def installed(unit: Unit | None) -> bool:
    """Return whether systemd has the unit."""
    return unit is not None and unit.load not in ("", "not-found")


def state(unit: Unit | None) -> dict[str, bool]:
    """Return the state of a unit as it is recorded."""
    return {"enabled": unit is not None and unit.file_state.startswith("enabled"), "active": unit is not None and unit.active}


def oom_plan(policy: str, units: Mapping[str, Unit]) -> tuple[list[tuple[str, bool]], list[str]]:
    """Return ([(unit, whether to start it)], packages to install) that lead to a policy."""
    steps: list[tuple[str, bool]] = []
    packages: list[str] = []
    for name, desired in oom_desired(policy).items():
        unit = units.get(name)
        if not installed(unit):
            packages += [name.partition(".")[0]] if desired else []
            steps += [(name, True)] if desired else []
        elif any(value != desired for value in state(unit).values()):
            steps.append((name, desired))
    return steps, packages


def describe_oom_daemons(units: Mapping[str, Unit]) -> str:
    """Return the states of the out-of-memory daemons for a message."""
    states = [f"{name.partition('.')[0]} {'runs' if units[name].active else 'is stopped'}" for name in (EARLYOOM, OOMD[0]) if installed(units.get(name))]
    return ", ".join(states) or "no out-of-memory daemon is installed"
