# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The sysctls of the memory policy: what the variables ask for, the floor of a node's size, and who overrides them at boot. Pure.

Keys have dots (`vm.min_free_kbytes`). Values are strings as the kernel prints them, with single blanks. The check of the inventory has the ranges.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, HostError
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import PARTNERS, kernel_path, squeeze

DROP_IN = "/etc/sysctl.d/60-gb10-cluster.conf"
HEADER = f"{MARKER} (role sysctl). Set sysctl_state: absent to remove this file."
LEAVE = "leave"
AUTO = "auto"
# Keys whose variable does not have their name.
VARIABLES = dict.fromkeys(("kernel.panic", "kernel.panic_on_oops", "kernel.softlockup_panic", "vm.panic_on_oom"), "sysctl_reboot_on_panic")
# A floor above this share of the memory starves the node.
HIGHEST_FLOOR_PERCENT = 10


def dotted(key: str) -> str:
    """Return a key with dots: `vm/swappiness` and `-vm.swappiness` are `vm.swappiness`."""
    key = key.strip().lstrip("-").strip()
    slash, dot = key.find("/"), key.find(".")
    if slash >= 0 and (dot < 0 or slash < dot):
        return key.translate(str.maketrans("/.", "./"))
    return key


def variable(key: str) -> str:
    """Return the role's variable of a key."""
    return VARIABLES.get(key) or "sysctl_" + key.partition(".")[2]


def overrides(lines: Sequence[tuple[str, str]], values: Mapping[str, str]) -> dict[str, tuple[str, str, str]]:
    """Return {key of `values`: (place, key, value) of the assignment that replaces it}, of the lines that are read after ours.

    A pattern such as `vm.dirty*` counts, and a non-zero partner of the key.
    """
    found: dict[str, tuple[str, str, str]] = {}
    for place, line in lines:
        name, equals, value = dotted(line.partition("=")[0]), "=" in line, squeeze(line.partition("=")[2])
        for key in values if equals and line[:1] not in "#;" else ():
            partner = PARTNERS.get(key, "")
            if fnmatch.fnmatchcase(key, name):
                found[key] = (place, key, value)
            elif partner and fnmatch.fnmatchcase(partner, name) and value != "0":
                found[key] = (place, partner, value)
    return {key: each for key, each in found.items() if each[1:] != (key, values[key])}


def override_message(found: Mapping[str, tuple[str, str, str]], values: Mapping[str, str]) -> str:
    """Return one text that names the other files, their lines and the remedy."""
    parts = [f"{place} sets {name} to {value} after {DROP_IN} sets {key} to {values[key]}" for key, (place, name, value) in found.items()]
    names = ", ".join(sorted({place.partition(" line ")[0] for place, _name, _value in found.values()}))
    variables = ", ".join(sorted({variable(key) for key in found}))
    return f"{'; '.join(parts)}. The later file wins at each boot. Remove the line from {names}, or set {variables} to leave or to that value."


def choose_floor(option: str, total_kb: int, by_class: Mapping[str, int], percent_other: float, stock_kb: int = 0) -> tuple[str, str]:
    """Return (vm.min_free_kbytes or leave, the reason). `option` is auto, leave or a number of KiB. Raises HostError.

    `stock_kb` is the value before the first run: on a node of another size, auto does not go below it.
    """
    if option == LEAVE:
        return LEAVE, ""
    if option != AUTO:
        floor, why = int(option), "as chosen in sysctl_min_free_kbytes"
    else:
        size = memory.node_class(total_kb)
        if size in by_class:
            floor, why = by_class[size], f"for a {size} GiB node (sysctl_min_free_kbytes_{size})"
        else:
            floor = int(total_kb * percent_other / 100)
            why = f"{percent_other:g} % of {memory.gib(total_kb)} GiB (sysctl_min_free_percent_other)"
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
    text, words = squeeze(value), (AUTO, LEAVE) if name in ("min_free_kbytes", "swappiness") else (LEAVE,)
    if text in words:
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if number < 0 or not number.is_integer():
        raise HostError(f"sysctl_{name} is {text!r}, expected a whole number or {' or '.join(words)}.")
    return str(int(number))


def desired(settings: Mapping[str, object], floor: str, swap_policy: str, extra: Mapping[str, object]) -> dict[str, str]:
    """Return the values to set from the options (`vm.key: value or leave`). Raises HostError."""
    values: dict[str, str] = {}
    for key, value in {"vm.min_free_kbytes": floor, **settings}.items():
        word = squeeze(value)
        if key == "vm.swappiness" and word == AUTO:
            word = "0" if swap_policy == "swappiness0" else LEAVE
        if word != LEAVE:
            values[key] = word
    for key, chosen in extra.items():
        name = dotted(str(key))
        segments = kernel_path(name).split("/")[3:]
        if not re.fullmatch(r"(vm|kernel|net|fs)\.[\w./:-]+", name, re.ASCII) or any(part.strip(".") == "" for part in segments):
            raise HostError(f"sysctl_settings has the key {key!r}, expected a sysctl such as vm.compaction_proactiveness.")
        if name in values:
            raise HostError(f"sysctl_settings sets {name}, which has its own variable. Use {variable(name)}.")
        values[name] = squeeze(chosen)
    ratio, background = (int(values.get(key, default)) for key, default in (("vm.dirty_ratio", 100), ("vm.dirty_background_ratio", -1)))
    if background >= ratio:
        raise HostError(f"sysctl_dirty_background_ratio is {background}, expected less than sysctl_dirty_ratio ({ratio}).")
    return values


def panic_values(option: str) -> dict[str, str]:
    """Return the sysctls with which a panic, an oops or a locked processor reboots the node; empty for `leave`.

    Memory that runs out must not be a panic: the OOM killer stops a process instead.
    """
    return {} if option == LEAVE else {"kernel.panic": option, "kernel.panic_on_oops": "1", "kernel.softlockup_panic": "1", "vm.panic_on_oom": "0"}


def render(values: Mapping[str, str]) -> str | None:
    """Return the text of the drop-in; None without values."""
    return "\n".join([HEADER] + [f"{key} = {values[key]}" for key in sorted(values)]) + "\n" if values else None


def headroom_problem(meminfo: Mapping[str, int], cost_kb: int, floor: str) -> str:
    """Return why the floor cannot be raised now, under a running engine; empty if it can."""
    available = meminfo.get("MemAvailable", 0)
    margin = min(memory.GIB_KB // 2, meminfo.get("MemTotal", 0) // 50)
    if cost_kb <= 0 or available - cost_kb >= margin:
        return ""
    return (
        f"vm.min_free_kbytes = {floor} takes {memory.gib(cost_kb)} GiB, and only {memory.gib(available)} GiB are available, so the node would freeze. "
        "Stop the serving group first (playbooks/stop.yml), then run --tags sysctl again."
    )
