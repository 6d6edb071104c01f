# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. sysctl.d as the boot reads it, and the plan for one drop-in of our own: file, live values, who overrides whom.

No I/O. Keys are written with dots (`vm.min_free_kbytes`), values are strings as the kernel prints them (blanks squeezed).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._host import memory

DROP_IN = "/etc/sysctl.d/60-gb10-cluster.conf"
MARKER = "# Managed by gb10.cluster (role sysctl); sysctl_state: absent takes this file away again."
FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
LEAVE = "leave"
AUTO = "auto"
# The kernel keeps one of each pair: setting one zeroes the other.
TWINS = {"vm.dirty_ratio": "vm.dirty_bytes", "vm.dirty_background_ratio": "vm.dirty_background_bytes"}
# Above this share of the memory a floor starves the node instead of protecting it.
HIGHEST_FLOOR_PERCENT = 10


class SysctlError(ValueError):
    """The wishes cannot be met; the message is one sentence for the user."""


class Entry(NamedTuple):
    """One assignment in one file; `rank` orders the files as they are read, later wins."""

    path: str
    line: int
    key: str
    value: str


class Override(NamedTuple):
    """A file that is read after ours and says something else."""

    key: str
    wanted: str
    entry: Entry


class Tuning(NamedTuple):
    """What to set, why the floor is what it is, and its cost."""

    values: dict[str, str]
    floor_reason: str


def dotted(key: str) -> str:
    """Return a key with dots: `vm/swappiness` and `-vm.swappiness` are `vm.swappiness`."""
    key = key.strip().lstrip("-").strip()
    slash, dot = key.find("/"), key.find(".")
    if slash >= 0 and (dot < 0 or slash < dot):
        return key.translate(str.maketrans("/.", "./"))
    return key


def proc_path(key: str) -> str:
    """Return where a key lives: /proc/sys/vm/swappiness."""
    return "/proc/sys/" + key.translate(str.maketrans("./", "/."))


def squeeze(value: object) -> str:
    """Return a value as it is compared: blanks squeezed."""
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

    Files are sorted by name whatever their folder; of two with one name the first folder's wins, and a link to /dev/null (text None)
    hides the name. `/etc/sysctl.conf` is read last, by procps' `sysctl --system`, unless a file of sysctl.d is a link to it.
    """
    chosen: dict[str, str] = {}
    for folder in FOLDERS:
        for path in sorted(files):
            directory, _slash, name = path.rpartition("/")
            if directory == folder and name.endswith(".conf"):
                chosen.setdefault(name, path)
    order = [chosen[name] for name in sorted(chosen) if files[chosen[name]] is not None]
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


def overrides(files: Mapping[str, str | None], values: Mapping[str, str], ours: str = DROP_IN) -> list[Override]:
    """Return who sets something else after our file, our file's place being where its name sorts."""
    everything = {**files, ours: render(values)}
    order = reading_order(everything)
    later = {path: files[path] for path in order[order.index(ours) + 1 :]}
    found: list[Override] = []
    for key, wanted in values.items():
        twin = TWINS.get(key, key)
        assigned = who_sets(later, [key, twin])
        if assigned[key] and assigned[key][-1].value != squeeze(wanted):
            found.append(Override(key, wanted, assigned[key][-1]))
        elif twin != key and assigned[twin] and assigned[twin][-1].value != "0":
            found.append(Override(key, wanted, assigned[twin][-1]))
    return found


def override_message(found: Sequence[Override]) -> str:
    """Return one sentence that names the other file, its line and what to do."""
    parts = []
    for override in found:
        entry = override.entry
        parts.append(
            f"{entry.path} line {entry.line} sets {entry.key} to {entry.value}, is read after {DROP_IN} and so wins over our "
            f"{override.key} = {override.wanted} at every boot"
        )
    names = ", ".join(sorted({override.entry.path for override in found}))
    variables = ", ".join(sorted({"sysctl_" + override.key.partition(".")[2] for override in found}))
    return f"{'; '.join(parts)}: take the line out of {names}, or set {variables} to leave or to that value"


def choose_floor(wish: str, total_kb: int, by_class: Mapping[str, int], percent_other: float, stock_kb: int = 0) -> tuple[str, str]:
    """Return (vm.min_free_kbytes or leave, why). `wish` is auto, leave or a number of KiB. Raises SysctlError.

    `stock_kb` is the value before our first run: on a node of another size, auto never goes below it.
    """
    if wish == LEAVE:
        return LEAVE, "left as it is"
    if wish != AUTO:
        if not re.fullmatch(r"\d+", wish):
            raise SysctlError(f"sysctl_min_free_kbytes is {wish!r}: write auto, leave or a number of KiB, such as 3145728")
        floor, why = int(wish), "as chosen in sysctl_min_free_kbytes"
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
            f"vm.min_free_kbytes would be {floor} ({why}), more than {HIGHEST_FLOOR_PERCENT} % of this node's {total_kb} kB, which starves it: "
            f"choose at most {highest}"
        )
    return str(floor), why


def tuning(wishes: Mapping[str, str], floor: tuple[str, str], swap_policy: str, extra: Mapping[str, object]) -> Tuning:
    """Return the values to set from the wishes (`vm.key: value or leave`). Raises SysctlError."""
    values: dict[str, str] = {}
    for key, value in {"vm.min_free_kbytes": floor[0], **wishes}.items():
        word = squeeze(value)
        if key == "vm.swappiness" and word == AUTO:
            word = "0" if swap_policy == "swappiness0" else LEAVE
        if word == LEAVE:
            continue
        if not re.fullmatch(r"\d+", word):
            raise SysctlError(f"sysctl_{key.partition('.')[2]} is {word!r}: write a whole number or leave")
        values[key] = word
    for key, chosen in extra.items():
        name = dotted(str(key))
        if not re.fullmatch(r"(vm|kernel|net|fs)\.[\w./:-]+", name):
            raise SysctlError(f"sysctl_settings has the key {key!r}, which is no sysctl: write it like vm.compaction_proactiveness")
        if name in values:
            raise SysctlError(f"sysctl_settings sets {name}, which has a variable of its own: use sysctl_{name.partition('.')[2]}")
        values[name] = squeeze(chosen)
    if "vm.dirty_ratio" in values and "vm.dirty_background_ratio" in values:
        ratio, background = int(values["vm.dirty_ratio"]), int(values["vm.dirty_background_ratio"])
        if background >= ratio:
            raise SysctlError(f"sysctl_dirty_background_ratio is {background} and sysctl_dirty_ratio {ratio}: the background one has to be the smaller")
    return Tuning(values, floor[1])


def render(values: Mapping[str, str]) -> str:
    """Return the drop-in's text."""
    return "\n".join([MARKER] + [f"{key} = {values[key]}" for key in sorted(values)]) + "\n"


def record_before(record: Mapping[str, Any], values: Mapping[str, str], live: Mapping[str, str]) -> dict[str, str]:
    """Return the live values that stood before our first run, for the keys we set now; twins that are not zero as well."""
    before: dict[str, str] = {key: str(value) for key, value in record.get("live", {}).items()}
    for key in values:
        if key not in before and key in live:
            before[key] = live[key]
            twin = TWINS.get(key)
            if twin and live.get(twin, "0") != "0":
                before[twin] = live[twin]
    return before


def given_back(before: Mapping[str, str], values: Mapping[str, str], live: Mapping[str, str]) -> dict[str, str]:
    """Return the live writes that undo what is recorded and no longer wanted. A twin that was in force replaces its ratio."""
    writes: dict[str, str] = {}
    for key, value in before.items():
        if key in values or any(twin == key and ratio in values for ratio, twin in TWINS.items()):
            continue
        if key in TWINS and before.get(TWINS[key], "0") != "0":
            continue
        if live.get(key) != value:
            writes[key] = value
    return writes


def live_writes(values: Mapping[str, str], live: Mapping[str, str]) -> dict[str, str]:
    """Return the live values to write. Raises SysctlError for keys that the kernel does not have."""
    missing = sorted(key for key in values if key not in live)
    if missing:
        raise SysctlError(
            f"this kernel has no {', '.join(missing)} ({proc_path(missing[0])} does not exist): misspelt in sysctl_settings, or set the "
            "role's variable to leave"
        )
    return {key: value for key, value in sorted(values.items()) if live[key] != value}


def mismatch_message(wanted: Mapping[str, str], live: Mapping[str, str], writers: Sequence[str] = ()) -> str:
    """Return one sentence on values that the live kernel does not show although they were written; empty when all is well."""
    wrong = [f"{key} is {live.get(key, 'missing')} where {value} was set" for key, value in sorted(wanted.items()) if live.get(key) != value]
    if not wrong:
        return ""
    guess = f": {', '.join(writers)} runs here and may set it" if writers else ": look for a service that sets it (tuned, a cron job, rc.local)"
    return f"the live kernel disagrees with {DROP_IN}, {', '.join(wrong)}{guess}"


def headroom_problem(meminfo: Mapping[str, int], cost_kb: int, floor: str) -> str:
    """Return why a floor cannot be raised right now: the node would go into reclaim under a running engine. Empty when it can."""
    available = meminfo.get("MemAvailable", 0)
    margin = min(memory.GIB_KB // 2, meminfo.get("MemTotal", 0) // 50)
    if cost_kb <= 0 or available - cost_kb >= margin:
        return ""
    return (
        f"vm.min_free_kbytes = {floor} would take {memory.gib(cost_kb)} GiB from a node with {memory.gib(available)} GiB available, which freezes it: "
        "stop the serving group first (playbooks/stop.yml), then run --tags sysctl again"
    )
