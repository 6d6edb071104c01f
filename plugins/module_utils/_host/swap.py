# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Swap and the out-of-memory daemons: which units run for a policy. Pure.

All of systemd's swap, from /etc/fstab, a partition, zram or a unit, starts with swap.target, which is masked. The services switch swap on themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._host import memory

TARGET = "swap.target"
SERVICES = ("zramswap.service", "zram-config.service", "dphys-swapfile.service", "swapfile.service", "dynamic-swap.service", "swapspace.service")
EARLYOOM = "earlyoom.service"
OOMD = ("systemd-oomd.service", "systemd-oomd.socket")
UNITS = (TARGET, *SERVICES, EARLYOOM, *OOMD)


class Unit(NamedTuple):
    """A unit that systemd has, as it is recorded."""

    enabled: bool
    active: bool
    masked: bool = False


def parse_units(files: str, active: str) -> dict[str, Unit]:
    """Return the units of `systemctl list-unit-files` and, one line for each of UNITS, `systemctl is-active`.

    `systemctl show` has the state of a file from before a change until systemd is reloaded.
    """
    states = {row[0]: row[1] for row in map(str.split, files.splitlines()) if len(row) > 1}
    runs = dict(zip(UNITS, active.split()))
    return {
        name: Unit(state.startswith(("enabled", "generated")), runs.get(name) in ("active", "activating", "reloading"), state.startswith("masked"))
        for name, state in states.items()
    }


def desired(swap_policy: str, oom_policy: str) -> dict[str, bool]:
    """Return {unit: whether it must run} for the policies."""
    found = dict.fromkeys(SERVICES, False) if swap_policy == "off" else {}
    return found if oom_policy == "leave" else {**found, EARLYOOM: oom_policy == "earlyoom", OOMD[0]: False, OOMD[1]: False}


def room_problem(swaps: Sequence[memory.Swap], available_kb: int, total_kb: int) -> str:
    """Return why swap cannot be switched off now: its content must fit into memory. Empty if it fits."""
    used = sum(swap.used_kb for swap in swaps)
    if not used or available_kb - used >= min(memory.GIB_KB, total_kb // 20):
        return ""
    return (
        f"Swap contains {memory.gib(used)} GiB and only {memory.gib(available_kb)} GiB of memory are available, so swapoff would freeze the node. "
        "Stop the serving group first (playbooks/stop.yml), or set sysctl_swap_policy to swappiness0 or leave."
    )


def still_on_message(swaps: Sequence[memory.Swap]) -> str:
    """Return a message on swap that is on although it was switched off."""
    parts = [f"{swap.device} ({swap.kind}, {memory.gib(swap.size_kb)} GiB)" for swap in swaps]
    return (
        f"sysctl_swap_policy is off, but swap is on: {'; '.join(parts)}. Find the unit that starts it with `systemctl list-units --type=swap` and "
        "`journalctl -b | grep -i swap`, and disable it."
    )


def describe_oom_daemons(units: Mapping[str, Unit]) -> str:
    """Return the states of the out-of-memory daemons for a message."""
    states = [f"{name.partition('.')[0]} {'runs' if units[name].active else 'is stopped'}" for name in (EARLYOOM, OOMD[0]) if name in units]
    return ", ".join(states) or "no out-of-memory daemon is installed"
