# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the kernel's guard against thrashing (multi-generational LRU, min_ttl_ms). Pure; times are milliseconds.

Without it a node that runs out of memory evicts and reads back its own programs for minutes before the OOM killer runs. With N, the OOM killer runs
as soon as what was used in the last N ms no longer fits.
"""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import LEAVE, MARKER, SysctlError

LIVE = "/sys/kernel/mm/lru_gen/min_ttl_ms"
ENABLED = "/sys/kernel/mm/lru_gen/enabled"
TMPFILES = "/etc/tmpfiles.d/60-gb10-cluster.conf"
# From here on programs are killed that merely pause.
MOST_MS = 10000


def wanted(value: str) -> str | None:
    """Return the value to set, None for `leave`. Raises SysctlError."""
    text = str(value).strip()
    if text == LEAVE:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > MOST_MS:
        raise SysctlError(f"sysctl_lru_gen_min_ttl_ms is {value}: give milliseconds from 0 (off) to {MOST_MS}, or {LEAVE}")
    return str(int(text))


def unavailable(live: str | None, enabled: str | None) -> str:
    """Return why the kernel has no such guard, empty if it has one."""
    if live is None:
        return "the kernel has no multi-generational LRU, so nothing ends thrashing early"
    try:
        off = int((enabled or "0").strip(), 16) & 1 == 0
    except ValueError:
        off = True
    return f"the kernel's multi-generational LRU is switched off ({ENABLED}), so nothing ends thrashing early" if off else ""


def render(value: str) -> str:
    """Return the tmpfiles.d file that sets the value at boot."""
    return f"{MARKER}\nw {LIVE} - - - - {value}\n"
