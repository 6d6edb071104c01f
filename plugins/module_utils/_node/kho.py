# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. kho=off on the kernel command line: what GRUB has, what the running kernel has, and what the role sysctl changes.

The kernel's handover (KHO) of DGX OS 7.6 keeps about 9.4 GiB, see `memory.cma_problem`. The role writes the file and runs update-grub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, RECORDS, HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory

FILE = "/etc/default/grub.d/60-gb10-cluster.cfg"
MENU = "/boot/grub/grub.cfg"
PROGRAM = "/usr/sbin/update-grub"
#: What the role does on a node that it leaves as it is.
NOTHING: dict[str, Any] = {"file": FILE, "menu": MENU, "write": False, "remove": False, "stale": False, "reboot_required": False, "message": ""}
_WORD = r"(?<![\w.=-])kho=off(?![\w.=-])"


class Boot(NamedTuple):
    """The kernel command line of a node, and what sets it."""

    live: bool  # the running kernel has kho=off
    own: bool  # the role's file is there
    other: str  # file and line of another tool that sets kho=off
    menu: bool | None  # GRUB's menu has kho=off; None without GRUB
    crash: str  # memory that a crash kernel holds
    boot: str  # the number of this boot
    kernel: str


def read(node: Node) -> Boot:
    """Read the node."""
    other = ""
    for path in ("/etc/default/grub", *node.glob("/etc/default/grub.d/*.cfg")):
        for number, line in enumerate((node.read(path) or "").splitlines() if path != FILE else (), 1):
            if re.match(rf"\s*(?:export\s+)?GRUB_CMDLINE_LINUX(?:_DEFAULT)?\+?=.*{_WORD}", line):
                other = f"{path}:{number}"
    menu = node.read(MENU) if node.exists(PROGRAM) else None
    return Boot(
        "kho=off" in (node.read("/proc/cmdline") or "").split(),
        MARKER in (node.read(FILE) or ""),
        other,
        None if menu is None else re.search(rf"(?m)^\s*linux\b.*{_WORD}", menu) is not None,
        (node.read("/sys/kernel/kexec_crash_size") or "0").strip(),
        (node.read("/proc/sys/kernel/random/boot_id") or "").strip(),
        (node.read("/proc/sys/kernel/osrelease") or "").strip(),
    )


def pending(node: Node) -> str:
    """Return what the next boot changes, as a phrase; empty if the running kernel is as the role has left the node."""
    boot = read(node)
    if boot.own and not boot.live:
        return f"{FILE} has kho=off, and the running kernel does not"
    if boot.live and not boot.own and not boot.other and node.mapping(f"{RECORDS}/sysctl.json").get("kho"):
        return f"the running kernel has kho=off, and {FILE} is removed"
    return ""


def _refuse(boot: Boot, write: bool, stale: bool, record: Mapping[str, Any]) -> None:
    """Refuse kho=off where it cannot work, before anything is written."""
    if not write or boot.live:
        return
    if boot.menu is None:
        raise HostError(
            f"sysctl_kho_off needs GRUB, and this node has no {PROGRAM} or no {MENU}. Add kho=off to the kernel command line in the configuration of "
            "its boot loader, or set sysctl_kho_off: false."
        )
    if boot.crash != "0":
        raise HostError(
            f"kho=off is not safe here: /sys/kernel/kexec_crash_size is {boot.crash}, and a crash kernel is reserved. Remove crashkernel= from the kernel "
            "command line (package kdump-tools), or set sysctl_kho_off: false."
        )
    if boot.own and not stale and record.get("boot", boot.boot) != boot.boot:
        raise HostError(
            f"{FILE} and {MENU} have kho=off, and the kernel that was started since then does not (/proc/cmdline). Find the boot loader or the entry that "
            "started it and add kho=off there, or set sysctl_kho_off: false."
        )


def _figures(meminfo: Mapping[str, int]) -> dict[str, int]:
    return {key: meminfo.get(key, 0) for key in ("CmaTotal", "CmaFree", "MemFree")}


def _shown(figures: Mapping[str, int]) -> str:
    return f"CmaFree {figures['CmaFree']} of CmaTotal {figures['CmaTotal']} kB, MemFree {memory.gib(figures['MemFree'])} GiB"


def _proof(boot: Boot, record: Mapping[str, Any], meminfo: Mapping[str, int], busy: bool) -> str:
    """Return what the running kernel shows of kho=off."""
    problem = memory.cma_problem(meminfo, boot.kernel, "kho=off")
    if problem:
        return f"{problem.found}: {problem.remedy}"
    before = f"; before: {_shown(record['before'])}" if "before" in record and record.get("boot") != boot.boot else ""
    by = "" if boot.own else f" (set by {boot.other or 'another tool'}, so the role adds nothing)"
    engine = " while the GPU is in use" if busy else ""
    return f"kho=off is on the kernel command line{by}, and KHO keeps no memory: {_shown(_figures(meminfo))}{engine}{before}"


def plan(boot: Boot, wanted: bool, record: Mapping[str, Any], meminfo: Mapping[str, int], busy: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the role has to do, and the record to keep while the running kernel can have our kho=off. Raises HostError.

    :param record: what this function returned in the run before.
    :param busy: a process uses the GPU, so that MemFree does not show what an idle node has.
    """
    write = wanted and not boot.other and not (boot.live and boot.menu is None)
    stale = bool(boot.own or record) and boot.menu is not None and boot.menu != (write or bool(boot.other))
    _refuse(boot, write, stale, record)
    done = {**NOTHING, "write": write, "remove": boot.own and not write, "stale": stale}
    reboot = "Reboot the node (playbooks/reboot.yml)"
    if wanted and boot.live:
        done["message"] = _proof(boot._replace(own=boot.own or write), record, meminfo, busy)
    elif write:
        done["message"] = f"kho=off is in {FILE}, and the running kernel does not have it: {_shown(_figures(meminfo))}. {reboot}"
    elif wanted:
        update = "" if boot.menu else ", run update-grub"
        done["message"] = f"kho=off is in {boot.other}, so the role adds nothing. The running kernel does not have it{update}. {reboot}"
    elif boot.live and not boot.other and (boot.own or record):
        done["message"] = f"kho=off is removed from GRUB, and the running kernel still has it. {reboot}"
    done["reboot_required"] = bool(done["message"]) and boot.live != wanted
    if write:
        before = {} if boot.live else {"before": _figures(meminfo)}
        return done, {"boot": boot.boot, **before} if stale or not boot.own or not record else dict(record)
    return done, (dict(record) or {"boot": boot.boot}) if done["reboot_required"] and not wanted else {}
