# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read-ahead: which block devices a path or a class means, the udev rule, the two phases, the commands that give back.

No I/O. Read-ahead is KiB, as in /sys/block/*/queue/read_ahead_kb (`blockdev --setra` counts sectors of half a KiB). A file system
reads ahead as its own device says, so every device of a chain counts: the mapper, the array, the disks below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

RULE = "/etc/udev/rules.d/61-gb10-readahead.rules"
MARKER = "# Managed by gb10.cluster (role readahead); readahead_state: absent takes this file away again."
RULE_FOLDERS = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d")
RESTORE_UNIT = "gb10-readahead-restore"
GUARD_UNIT = "gb10-page-cache-guard"
GUARD_SCRIPT = "/usr/local/lib/gb10-cluster/page_cache_guard.py"
GUARD_RECEIPT = "/var/lib/gb10-cluster/page-cache-guard.json"
CLASSES = {
    "nvme": r"nvme\d+n\d+",
    "sd": r"sd[a-z]+",
    "virtio": r"vd[a-z]+",
    "md": r"md[\w.-]+",
    "dm": r"dm-\d+",
}
UDEV_NAMES = {"nvme": "nvme[0-9]*n[0-9]*", "sd": "sd*[!0-9]", "virtio": "vd*[!0-9]", "md": "md*", "dm": "dm-*"}
HIGHEST_KB = 65536


class ReadaheadError(ValueError):
    """The wishes cannot be met; the message is one sentence for the user."""


class Block(NamedTuple):
    """One block device of /sys/class/block. `disk` is the whole disk of a partition, else its own name; `kb` its read-ahead."""

    name: str
    disk: str
    slaves: tuple[str, ...]
    kb: int | None
    mapper: str = ""


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    point: str
    device: str
    kind: str
    source: str


class Selection(NamedTuple):
    """The devices to set, in the order of their names, and sentences on what has none."""

    devices: list[str]
    notes: list[str]


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def parse_mountinfo(text: str | None) -> list[Mount]:
    """Return the mounts; `device` is major:minor."""
    mounts: list[Mount] = []
    for line in (text or "").splitlines():
        left, dash, right = line.partition(" - ")
        words, rest = left.split(), right.split()
        if dash and len(words) >= 5 and len(rest) >= 2:
            mounts.append(Mount(_unescape(words[4]), words[2], rest[0], _unescape(rest[1])))
    return mounts


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that holds `path`: the deepest one, and of several on one point the last."""
    best: Mount | None = None
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def chain(start: str, blocks: Mapping[str, Block]) -> list[str]:
    """Return the device and everything below it down to the disks, partitions as their disks."""
    found: list[str] = []
    todo = [start]
    while todo:
        name = todo.pop(0)
        block = blocks.get(name)
        if block is None:
            continue
        if block.disk != name:
            todo.append(block.disk)
            continue
        if name not in found:
            found.append(name)
            todo.extend(block.slaves)
    return found


def select(blocks: Mapping[str, Block], classes: Sequence[str], starts: Mapping[str, str | None], extra: Sequence[str], told: Mapping[str, str]) -> Selection:
    """Return the devices that classes, paths and names mean. Raises ReadaheadError.

    `starts` maps each path to the device of its mount (None: it has none), `told` says for those what the mount is instead.
    """
    wanted: set[str] = set()
    notes: list[str] = []
    unknown = sorted(set(classes) - set(CLASSES))
    if unknown:
        raise ReadaheadError(f"readahead_classes has {', '.join(unknown)}, which is none of {', '.join(CLASSES)}")
    for name in classes:
        wanted.update(block for block in blocks if re.fullmatch(CLASSES[name], block) and blocks[block].disk == block)
    for path, start in starts.items():
        below = chain(start, blocks) if start else []
        if not below:
            notes.append(f"{path} lies on {told.get(path, 'no block device')}, which has no read-ahead of its own to set")
        wanted.update(below)
    missing = sorted(set(extra) - set(blocks))
    if missing:
        raise ReadaheadError(f"readahead_devices names {', '.join(missing)}, and /sys/class/block has no such device: take the name from lsblk")
    for name in extra:
        wanted.update(chain(name, blocks))
    devices = sorted(name for name in wanted if blocks[name].kb is not None)
    if not devices:
        asked = ", ".join([*classes, *starts, *extra]) or "nothing"
        raise ReadaheadError(
            f"no block device with a read-ahead matches {asked} on this node: name the disk of the model store in readahead_devices (see lsblk)"
        )
    return Selection(devices, notes)


def check_kb(value: int, name: str, page_kb: int) -> int:
    """Return a read-ahead that the kernel can keep: whole pages. Raises ReadaheadError."""
    if value < 0 or value > HIGHEST_KB:
        raise ReadaheadError(f"{name} is {value}: read-ahead is KiB, from 0 (none) to {HIGHEST_KB}")
    if value % page_kb:
        raise ReadaheadError(
            f"{name} is {value} KiB, and this kernel's pages are {page_kb} KiB: it would be cut to {value // page_kb * page_kb}, so choose a multiple"
        )
    return value


def render_rule(devices: Sequence[str], classes: Sequence[str], blocks: Mapping[str, Block], kb: int) -> str:
    """Return the udev rule: by class where a class covers a device, by mapper name for dm, else by kernel name."""
    lines = [MARKER]
    head = 'ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk"'
    lines.extend(f'{head}, KERNEL=="{UDEV_NAMES[name]}", ATTR{{queue/read_ahead_kb}}="{kb}"' for name in classes)
    for device in devices:
        if any(re.fullmatch(CLASSES[name], device) for name in classes):
            continue
        mapper = blocks[device].mapper
        match = f'ATTR{{dm/name}}=="{mapper}"' if mapper else f'KERNEL=="{device}"'
        lines.append(f'{head}, {match}, ATTR{{queue/read_ahead_kb}}="{kb}"')
    return "\n".join(lines) + "\n"


def later_rules(files: Mapping[str, str]) -> list[str]:
    """Return the rules files that set read-ahead and are read after ours, as `path line n`."""
    ours = RULE.rpartition("/")[2]
    seen: dict[str, str] = {}
    for folder in RULE_FOLDERS:
        for path in sorted(files):
            directory, _slash, name = path.rpartition("/")
            if directory == folder and name.endswith(".rules"):
                seen.setdefault(name, path)
    found = []
    for name, path in sorted(seen.items()):
        if name <= ours:
            continue
        for number, line in enumerate(files[path].splitlines(), 1):
            if "read_ahead_kb" in line and not line.lstrip().startswith("#") and re.search(r'read_ahead_kb"?\}?\s*=\s*"', line):
                found.append(f"{path} line {number}")
    return found


def sysfs_path(device: str) -> str:
    """Return where a device's read-ahead lives."""
    return f"/sys/block/{device}/queue/read_ahead_kb"


def restore_script(values: Mapping[str, int]) -> str:
    """Return the shell line that gives the steady values back; a device that is gone is no reason to stop."""
    return "; ".join([*(f"echo {kb} > {sysfs_path(device)}" for device, kb in sorted(values.items())), "true"])


def restore_command(values: Mapping[str, int], seconds: int) -> list[str]:
    """Return the systemd-run that gives the steady values back after `seconds`, whatever became of the controller."""
    return [
        "systemd-run",
        "--collect",
        f"--unit={RESTORE_UNIT}",
        "--description=gb10.cluster: steady read-ahead comes back",
        f"--on-active={seconds}",
        "--timer-property=AccuracySec=1s",
        "/bin/sh",
        "-c",
        restore_script(values),
    ]


def guard_command(python: str, floor_kb: int, seconds: int, interval: float) -> list[str]:
    """Return the systemd-run of the page-cache guard: killed last, ended by time whatever happens."""
    return [
        "systemd-run",
        "--collect",
        f"--unit={GUARD_UNIT}",
        "--description=gb10.cluster: page-cache guard while weights load",
        f"--property=RuntimeMaxSec={seconds + 30}",
        "--property=OOMScoreAdjust=-900",
        "--property=Nice=-10",
        python,
        GUARD_SCRIPT,
        f"--floor-kb={floor_kb}",
        f"--seconds={seconds}",
        f"--interval={interval:g}",
        f"--receipt={GUARD_RECEIPT}",
    ]


def mismatch_message(wanted: Mapping[str, int], live: Mapping[str, int | None], later: Sequence[str]) -> str:
    """Return one sentence on values that the live devices do not show; empty when all is well."""
    wrong = [f"{device} reads ahead {live.get(device)} KiB where {kb} was set" for device, kb in sorted(wanted.items()) if live.get(device) != kb]
    if not wrong:
        return ""
    guess = f"{', '.join(later)} sets it too and is read after {RULE}: remove that line" if later else "look for what sets it (tuned, a udev rule, rc.local)"
    return f"{', '.join(wrong)}: {guess}"
