# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Protection against thrashing: min_ttl_ms of the kernel's multi-generational LRU, in milliseconds. Pure.

Without it a node that runs out of memory evicts and reads its own programs for minutes before the OOM killer runs. With N, the OOM killer runs
as soon as the pages that were used in the last N ms do not fit.
"""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import HEADER, LEAVE, SysctlError

LIVE = "/sys/kernel/mm/lru_gen/min_ttl_ms"
ENABLED = "/sys/kernel/mm/lru_gen/enabled"
TMPFILES = "/etc/tmpfiles.d/60-gb10-cluster.conf"
MOST_MS = 10000  # a higher value kills programs that only pause


def parse(value: str) -> str | None:
    """Return the value to set, None for `leave`. Raises SysctlError."""
    text = str(value).strip()
    if text == LEAVE:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > MOST_MS:
        raise SysctlError(f"sysctl_lru_gen_min_ttl_ms is {value}, expected milliseconds from 0 (off) to {MOST_MS}, or {LEAVE}.")
    return str(int(text))


def unavailable(live: str | None, enabled: str | None) -> str:
    """Return why the kernel does not have this protection; empty if it has."""
    if live is None:
        return "the kernel has no multi-generational LRU (min_ttl_ms)"
    try:
        off = int((enabled or "0").strip(), 16) & 1 == 0
    except ValueError:
        off = True
    return f"the kernel's multi-generational LRU is switched off ({ENABLED})" if off else ""


def render(value: str) -> str:
    """Return the tmpfiles.d file that sets the value at boot."""
    return f"{HEADER}\nw {LIVE} - - - - {value}\n"
