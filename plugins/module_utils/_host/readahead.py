# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read-ahead: classes of block devices, the udev rule, the commands of the load phase. Pure.

Read-ahead is KiB, as in /sys/block/*/queue/read_ahead_kb (`blockdev --setra` counts sectors of half a KiB). A file system uses the value of
its own device, so all devices of a chain are set: the mapper, the array, the disks below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._host import page_cache_guard
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import MARKER, HostError

RULE = "/etc/udev/rules.d/61-gb10-readahead.rules"
HEADER = f"{MARKER} (role readahead). Set readahead_state: absent to remove this file."
RESTORE_UNIT = "gb10-readahead-restore"
GUARD_UNIT = "gb10-page-cache-guard"
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


def check_kb(value: int, name: str, page_kb: int) -> int:
    """Return a read-ahead that is a number of whole pages. Raises HostError."""
    if value < 0 or value > HIGHEST_KB or value % page_kb:
        raise HostError(f"{name} is {value} KiB, expected 0 to {HIGHEST_KB} and a multiple of this kernel's pages of {page_kb} KiB.")
    return value


def check_name(name: str) -> str:
    """Return a kernel or mapper name that a udev rule and a shell take as it is. Raises HostError."""
    if not re.fullmatch(r"[\w.!+-]*", name, re.ASCII):
        raise HostError(f"The block device {name!r} has a name outside of A-Z a-z 0-9 _ . ! + -. Rename it, or leave it out of the readahead options.")
    return name


def render_rule(devices: Sequence[str], classes: Sequence[str], mappers: Mapping[str, str], kb: int) -> str:
    """Return the udev rule: by class where a class covers a device, by mapper name for dm, else by kernel name."""
    head = 'ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk"'
    matches = [f'KERNEL=="{UDEV_NAMES[name]}"' for name in classes]
    for device in devices:
        mapper = mappers.get(device, "")
        if not any(re.fullmatch(CLASSES[name], device) for name in classes):
            matches.append(f'ATTR{{dm/name}}=="{check_name(mapper)}"' if mapper else f'KERNEL=="{check_name(device)}"')
    return "\n".join([HEADER, *(f'{head}, {match}, ATTR{{queue/read_ahead_kb}}="{kb}"' for match in matches)]) + "\n"


def later_rules(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return the places of the rules that set read-ahead; `lines` are those that are read after ours."""
    return [place for place, line in lines if not line.startswith("#") and re.search(r'read_ahead_kb"?\}?\s*=\s*"', line)]


def sysfs_path(device: str) -> str:
    """Return the file of a device's read-ahead."""
    return f"/sys/block/{device}/queue/read_ahead_kb"


def restore_command(values: Mapping[str, int], seconds: int) -> list[str]:
    """Return the systemd-run that restores the steady values after `seconds`. A device that was removed does not stop it."""
    return [
        "systemd-run",
        "--collect",
        f"--unit={RESTORE_UNIT}",
        "--description=gb10.cluster: restore the steady read-ahead",
        f"--on-active={seconds}",
        "--timer-property=AccuracySec=1s",
        "/bin/sh",
        "-c",
        "; ".join([*(f"echo {kb} > {sysfs_path(check_name(device))}" for device, kb in sorted(values.items())), "true"]),
    ]


def guard_command(python: str, floor_kb: int, seconds: int, interval: float) -> list[str]:
    """Return the systemd-run of the page-cache guard, which the OOM killer takes last. It is run from the program that runs this, with a time limit."""
    return [
        "systemd-run",
        "--collect",
        f"--unit={GUARD_UNIT}",
        "--description=gb10.cluster: page-cache guard while weights load",
        f"--property=RuntimeMaxSec={seconds + 30}",
        "--property=OOMScoreAdjust=-900",
        "--property=Nice=-10",
        f"--setenv=PYTHONPATH={page_cache_guard.__file__.partition('/ansible_collections/')[0]}",
        python,
        "-m",
        page_cache_guard.__name__,
        f"--floor-kb={floor_kb}",
        f"--seconds={seconds}",
        f"--interval={interval:g}",
        f"--receipt={GUARD_RECEIPT}",
    ]
