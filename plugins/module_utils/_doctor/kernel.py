# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Faults in the kernel log of one boot, and whether that boot ended with a shutdown. Pure.

The watch classifies most lines. Here are the kinds that it does not act on, and what each kind means for a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import MASK_SLEEP
from ansible_collections.gb10.cluster.plugins.module_utils._watch.kernel_log import LEAST, classify

Record = dict[str, Any]

LINE = 200  # characters that are kept of a line
#: `journalctl --output=short-iso --dmesg`: stamp, host, message.
_STAMPED = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,6}) \S{1,255} kernel: (?P<message>.*)")
_SHUTDOWN = re.compile(r"Journal stopped|systemd-shutdown|Reached target .{0,40}(?:[Ss]hutdown|[Rr]eboot|[Pp]ower.?[Oo]ff|Final Step)")


class Kind(NamedTuple):
    """What lines of one kind mean. Fewer lines than `least` are healthy."""

    severity: str
    found: str
    matters: str
    command: str
    pattern: str = ""  # empty: the watch classifies it
    least: int = 1


_CYCLE = "{on} sudo shutdown -h now  # then unplug the power for a minute"


def _show(pattern: str) -> str:
    """Return the command that prints the lines of a boot's kernel log."""
    return f"{{on}} 'sudo journalctl -k -b {{boot}} | grep -iE \"{pattern}\"'"


KINDS: dict[str, Kind] = {
    "kernel_panic": Kind(
        "warning",
        "the kernel crashed",
        "a kernel that has crashed can hang or corrupt data until the next reboot",
        _show("panic|oops|BUG"),
        r"Kernel panic|\bOops(?: -|:)|kernel BUG at|Unable to handle kernel|BUG: unable to handle",
    ),
    "gpu_lost": Kind("error", "the GPU was lost", "an engine cannot run without the GPU, and the driver does not recover by itself", _CYCLE),
    "gpu_xid": Kind("warning", "a GPU kernel crashed (Xid)", "the engine process that caused it has ended or hangs", _show("xid")),
    "oom_killed": Kind(
        "warning",
        "the kernel killed a process because memory was exhausted",
        "a rank that is killed ends the service, and a lower kill can freeze the node",
        _show("out of memory|oom"),
    ),
    "driver_no_memory": Kind(
        "warning",
        "the NVIDIA driver could not allocate memory",
        "unified memory is exhausted or fragmented: RDMA registration and the next start fail",
        "{on} 'sudo sync && echo 3 | sudo tee /proc/sys/vm/drop_caches'",
        least=LEAST["driver_no_memory"],
    ),
    "lockup": Kind(
        "warning",
        "tasks or CPUs were blocked",
        "a node that exhausts its memory or waits for a lost disk freezes, and SSH stops first",
        _show("blocked for more|lockup|stall"),
    ),
    "pcie_error": Kind(
        "warning",
        "PCIe reported an uncorrected error",
        "if it is the slot of the ConnectX-7, RDMA hangs and the node can lock up",
        _show("AER|mlx5"),
    ),
    "mlx5_error": Kind("warning", "the ConnectX-7 reported an error", "RDMA over this port hangs or falls back to TCP", _show("mlx5")),
    "link_flap": Kind(
        "warning",
        "a link of the ConnectX-7 went down repeatedly",
        "each loss of the link ends NCCL and with it the service",
        _show("mlx5.*(link|cable)"),
        r"mlx5_core .*: Link down",
        least=5,  # a boot and one replug of a cable log two for each rail
    ),
    "thermal": Kind(
        "warning",
        "the node reached a temperature limit",
        "hot parts slow down, and the node switches itself off at the critical temperature",
        _show("thermal|temperature|throttl"),
        r"[Cc]ritical temperature reached|[Tt]emperature above threshold|clock throttled|[Hh]ardware protection shutdown|over-?temperature",
    ),
    "disk_error": Kind(
        "warning",
        "a disk reported errors",
        "weights that are read wrongly or slowly end a boot, and a file system that turns read-only ends the service",
        _show("nvme|I/O error|EXT4-fs error"),
        r"\bI/O error, dev |nvme\S* .*(?:timeout, (?:aborting|reset)|controller is down)|EXT4-fs error|Remounting filesystem read-only",
    ),
    "suspend": Kind(
        "warning", "the node suspended", "a node that suspends ends the service of all ranks, and a request does not wake it", f"{{on}} {MASK_SLEEP}"
    ),
    "wifi_oops": Kind(
        "warning", "the mt7925 Wi-Fi driver failed", "Wi-Fi drops the connection; connect over enP7s7 before you disable it and reboot", _show("mt79")
    ),
}
_NAMES = {"cuda_fault": "gpu_xid"}  # of the watch, which stands for what the engine's log shows as well
_OWN = [(name, re.compile(kind.pattern)) for name, kind in KINDS.items() if kind.pattern]


def kind_of(message: str) -> str:
    """Return the kind of a message; empty for a healthy one."""
    found = classify(message)
    if found:
        return _NAMES.get(found[0], found[0])
    return next((name for name, pattern in _OWN if pattern.search(message)), "")


def summarize(lines: Iterable[str], boot: int) -> list[Record]:
    """Return {id, boot, count, first, last, line} of each kind in the log of a boot: 0 is this one, -1 the one before. `line` is the last one."""
    found: dict[str, Record] = {}
    for text in lines:
        stamped = _STAMPED.match(text)
        message = stamped["message"] if stamped else text
        name = kind_of(message)
        if name in KINDS:
            at = stamped["at"] if stamped else ""
            entry = found.setdefault(name, {"id": name, "boot": boot, "count": 0, "first": at, "last": at, "line": ""})
            entry.update(count=entry["count"] + 1, last=at, line=message.strip()[:LINE])
    return [entry for name, entry in found.items() if entry["count"] >= KINDS[name].least]


def ended_by_shutdown(tail: str) -> bool:
    """Whether the last lines of a boot's journal show a shutdown. Without one, the power was lost, or the node froze or reset."""
    return bool(_SHUTDOWN.search(tail))
