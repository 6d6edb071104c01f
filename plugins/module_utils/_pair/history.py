# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The memory of this node over time, as the sampler reads it: the last half hour in steps of 5 s, and the last day in minutes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._node.memory_series import Series, parse, text_of
from ansible_collections.gb10.cluster.plugins.module_utils._node.node import read_json
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.config import ADMIN_SOCKET
from ansible_collections.gb10.cluster.plugins.module_utils._pair.folder import Folder

FILE = "memory.json"
STEP, MOST = 5.0, 400
DAY_STEP, DAY_MOST = 60.0, 1440
ASK_SECONDS = 2.0  # for an answer of the agent
SAVE_SECONDS = 900.0  # a crash of the node loses as much of the day


class History:
    """Both series. Only the day survives a restart of the agent. Times are seconds since the epoch."""

    def __init__(self, state: Folder, wall: Callable[[], float] = time.time) -> None:
        """Keep the agent's folder of the group; it is read with the first sample."""
        self._state, self._wall, self._lock = state, wall, threading.Lock()
        self._recent, self._day = Series(STEP, MOST, ring=True), Series(DAY_STEP, DAY_MOST, ring=True)
        self._loaded, self._saved_at = False, 0.0

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take a reading of the sampler, and write the day to disk if that is due."""
        now = self._wall()
        with self._lock:
            if not self._loaded:
                self._load(now)
            for series in (self._recent, self._day):
                series.add(now, sample.get("memory") or {})
        if abs(now - self._saved_at) >= SAVE_SECONDS:
            self._saved_at = now
            self.save()

    def _load(self, now: float) -> None:
        self._loaded, self._saved_at = True, now
        with contextlib.suppress(OSError):
            kept = self._state.load(FILE)
            self._day.samples = parse(kept.get("day") if isinstance(kept, dict) else None, DAY_MOST)

    def shown(self) -> dict[str, str]:
        """Return both series in the compact form of _node.memory_series."""
        with self._lock:
            return {"recent": self._recent.text(), "day": self._day.text()}

    def save(self) -> None:
        """Write the day to disk, if there is one. A disk that cannot be written costs no more than the samples of a restart."""
        text = self.shown()["day"]
        if text:
            with contextlib.suppress(OSError):
                self._state.save(FILE, {"day": text})


def memory_of(state: str, socket: str = ADMIN_SOCKET) -> dict[str, str]:
    """Return the series of this node's agent, or what it wrote to its folder `state` last, and as `source` which of them: agent, file or empty."""
    try:
        found: dict[str, Any] = protocol.call("memory", socket=socket, timeout=ASK_SECONDS)
        source = "agent"
    except protocol.ERRORS:  # none is installed, or it does not answer
        found = read_json(os.path.join(state, FILE))
        source = "file" if found else ""
    return {"recent": str(found.get("recent") or ""), "day": str(found.get("day") or ""), "source": source}


def sections(memory: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return title and text of both series for evidence: no more samples than an agent keeps, and nothing else that a file has."""
    out = []
    for key, span, most in (("recent", "half hour", MOST), ("day", "day", DAY_MOST)):
        samples = parse(memory.get(key), most)
        title = f"memory of the last {span}: seconds since the epoch, MemFree, MemAvailable, SwapFree in MiB"
        out.append((title, text_of(samples) or "(no samples: the agent has kept none, or does not answer)"))
    return out
