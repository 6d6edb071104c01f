# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. sysctl.d in the order of the boot, and the plan of our drop-in: file, live values, who overrides whom. Pure.

Keys have dots (`vm.min_free_kbytes`). Values are strings as the kernel prints them, with single blanks.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._host import memory
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import first_of_name

DROP_IN = "/etc/sysctl.d/60-gb10-cluster.conf"
MARKER = "# Managed by gb10.cluster (role sysctl)"
HEADER = f"{MARKER}. Set sysctl_state: absent to remove this file."
FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
LEAVE = "leave"
AUTO = "auto"
# The kernel uses one of each pair: a write to one sets the other to 0.
PARTNERS = {"vm.dirty_ratio": "vm.dirty_bytes", "vm.dirty_background_ratio": "vm.dirty_background_bytes"}
# Keys whose variable does not have their name.
VARIABLES = dict.fromkeys(("kernel.panic", "kernel.panic_on_oops", "kernel.softlockup_panic", "vm.panic_on_oom"), "sysctl_reboot_on_panic")
# A floor above this share of the memory starves the node.
HIGHEST_FLOOR_PERCENT = 10


class SysctlError(ValueError):
    """The configuration cannot be applied. The message is for the user."""


class Entry(NamedTuple):
    """One assignment in one file."""

    path: str
    line: int
    key: str
    value: str


def dotted(key: str) -> str:
    """Return a key with dots: `vm/swappiness` and `-vm.swappiness` are `vm.swappiness`."""
    key = key.strip().lstrip("-").strip()
    slash, dot = key.find("/"), key.find(".")
    if slash >= 0 and (dot < 0 or slash < dot):
        return key.translate(str.maketrans("/.", "./"))
    return key


def proc_path(key: str) -> str:
    """Return the file of a key: /proc/sys/vm/swappiness."""
    return "/proc/sys/" + key.translate(str.maketrans("./", "/."))


def variable(key: str) -> str:
    """Return the role's variable of a key."""
    return VARIABLES.get(key) or "sysctl_" + key.partition(".")[2]


def squeeze(value: object) -> str:
    """Return a value with single blanks, to compare it."""
    return " ".join(str(value).split())


def parse_file(path: str, text: str) -> list[Entry]:
    """Return the assignments of one sysctl file."""
    entries: list[Entry] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line and line[0] not in "#;" and "=" in line:
            key, value = line.split("=", 1)
            entries.append(Entry(path, number, dotted(key), squeeze(value)))
    return entries


def reading_order(files: Mapping[str, str | None]) -> list[str]:
    """Return the paths in the order in which the boot reads them.

    Files are sorted by name. Of two with one name the file in the first folder is read; a link to /dev/null (text None) hides the name.
    `/etc/sysctl.conf` is read last, by procps' `sysctl --system`, unless a file of sysctl.d is a link to it.
    """
    order = [path for path in first_of_name(files, FOLDERS, ".conf").values() if files[path] is not None]
    if files.get("/etc/sysctl.conf") is not None:
        order.append("/etc/sysctl.conf")
    return order


def who_sets(files: Mapping[str, str | None], keys: Sequence[str]) -> dict[str, list[Entry]]:
    """Return for each key the assignments in reading order; the last one wins. Patterns such as `vm.dirty*` count."""
    found: dict[str, list[Entry]] = {key: [] for key in keys}
    for path in reading_order(files):
        for entry in parse_file(path, files[path] or ""):
            for key in keys:
                if key == entry.key or ("*" in entry.key and fnmatch.fnmatchcase(key, entry.key)):
                    found[key].append(entry._replace(key=key))
    return found


def overrides(files: Mapping[str, str | None], values: Mapping[str, str]) -> dict[str, Entry]:
    """Return {key of `values`: the assignment in a later file that replaces it}. A non-zero partner of the key replaces it too."""
    order = reading_order({**files, DROP_IN: ""})
    later = {path: files[path] for path in order[order.index(DROP_IN) + 1 :]}
    found: dict[str, Entry] = {}
    for key, value in values.items():
        partner = PARTNERS.get(key, key)
        assigned = who_sets(later, [key, partner])
        if assigned[key] and assigned[key][-1].value != squeeze(value):
            found[key] = assigned[key][-1]
        elif partner != key and assigned[partner] and assigned[partner][-1].value != "0":
            found[key] = assigned[partner][-1]
    return found


def override_message(found: Mapping[str, Entry], values: Mapping[str, str]) -> str:
    """Return one text that names the other files, their lines and the remedy."""
    parts = [f"{entry.path} line {entry.line} sets {entry.key} to {entry.value} after {DROP_IN} sets {key} to {values[key]}" for key, entry in found.items()]
    names = ", ".join(sorted({entry.path for entry in found.values()}))
    variables = ", ".join(sorted({variable(key) for key in found}))
    return f"{'; '.join(parts)}. The later file wins at each boot. Remove the line from {names}, or set {variables} to leave or to that value."


def choose_floor(option: str, total_kb: int, by_class: Mapping[str, int], percent_other: float, stock_kb: int = 0) -> tuple[str, str]:
    """Return (vm.min_free_kbytes or leave, the reason). `option` is auto, leave or a number of KiB. Raises SysctlError.

    `stock_kb` is the value before the first run: on a node of another size, auto does not go below it.
    """
    if option == LEAVE:
        return LEAVE, ""
    if option != AUTO:
        if not re.fullmatch(r"\d+", option):
            raise SysctlError(f"sysctl_min_free_kbytes is {option!r}, expected auto, leave or a number of KiB, such as 3145728.")
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
        raise SysctlError(
            f"vm.min_free_kbytes would be {floor} ({why}), more than {HIGHEST_FLOOR_PERCENT} % of the {total_kb} kB of this node. Choose at most {highest}."
        )
    return str(floor), why


def desired(settings: Mapping[str, object], floor: str, swap_policy: str, extra: Mapping[str, object]) -> dict[str, str]:
    """Return the values to set from the options (`vm.key: value or leave`). Raises SysctlError."""
    values: dict[str, str] = {}
    for key, value in {"vm.min_free_kbytes": floor, **settings}.items():
        word = squeeze(value)
        if key == "vm.swappiness" and word == AUTO:
            word = "0" if swap_policy == "swappiness0" else LEAVE
        if word == LEAVE:
            continue
        if not re.fullmatch(r"\d+", word):
            raise SysctlError(f"{variable(key)} is {word!r}, expected a whole number or leave.")
        values[key] = word
    for key, chosen in extra.items():
        name = dotted(str(key))
        segments = proc_path(name).split("/")[3:]
        if not re.fullmatch(r"(vm|kernel|net|fs)\.[\w./:-]+", name, re.ASCII) or any(part.strip(".") == "" for part in segments):
            raise SysctlError(f"sysctl_settings has the key {key!r}, expected a sysctl such as vm.compaction_proactiveness.")
        if name in values:
            raise SysctlError(f"sysctl_settings sets {name}, which has its own variable. Use {variable(name)}.")
        values[name] = squeeze(chosen)
    ratio, background = (int(values.get(key, default)) for key, default in (("vm.dirty_ratio", 100), ("vm.dirty_background_ratio", -1)))
    if background >= ratio:
        raise SysctlError(f"sysctl_dirty_background_ratio is {background}, expected less than sysctl_dirty_ratio ({ratio}).")
    return values


def render(values: Mapping[str, str]) -> str:
    """Return the text of the drop-in."""
    return "\n".join([HEADER] + [f"{key} = {values[key]}" for key in sorted(values)]) + "\n"


def record_before(record: Mapping[str, Any], values: Mapping[str, str], live: Mapping[str, str]) -> dict[str, str]:
    """Return the live values from before the first run for the keys that are set now, and for partners that are not zero."""
    before: dict[str, str] = {key: str(value) for key, value in record.get("live", {}).items()}
    for key in values:
        if key not in before and key in live:
            before[key] = live[key]
            partner = PARTNERS.get(key)
            if partner and live.get(partner, "0") != "0":
                before[partner] = live[partner]
    return before


def to_restore(before: Mapping[str, str], values: Mapping[str, str], live: Mapping[str, str]) -> dict[str, str]:
    """Return the live writes that restore what is recorded and not desired any more. A partner that was in use is restored instead of its ratio."""
    writes: dict[str, str] = {}
    for key, value in before.items():
        if key in values or any(partner == key and ratio in values for ratio, partner in PARTNERS.items()):
            continue
        if key in PARTNERS and before.get(PARTNERS[key], "0") != "0":
            continue
        if live.get(key) != value:
            writes[key] = value
    return writes


def check_known(values: Mapping[str, str], live: Mapping[str, str]) -> None:
    """Refuse keys that the kernel does not have. Raises SysctlError."""
    missing = sorted(key for key in values if key not in live)
    if missing:
        raise SysctlError(
            f"This kernel has no {', '.join(missing)} ({proc_path(missing[0])} does not exist). Correct sysctl_settings, or set the variable of the role "
            "to leave."
        )


def mismatch_message(values: Mapping[str, str], live: Mapping[str, str], tuned: str = "") -> str:
    """Return a message on values that were written and that the kernel does not have; empty if it has all. `tuned` is its active profile."""
    wrong = [f"{key} is {live.get(key, 'missing')}, expected {value}" for key, value in sorted(values.items()) if live.get(key) != value]
    if not wrong:
        return ""
    guess = f"tuned ({tuned}) runs on this node and may set it." if tuned else "Find the service that sets it (tuned, a cron job, rc.local)."
    return f"The live kernel differs from {DROP_IN}: {', '.join(wrong)}. {guess}"


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
