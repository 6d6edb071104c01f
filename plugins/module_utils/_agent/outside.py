# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What an agent reports outside of its group: a file of metrics, and a hook or webhook for events."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._agent.listener import log
from ansible_collections.gb10.cluster.plugins.module_utils._common import utc
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._release import node
from ansible_collections.gb10.cluster.plugins.module_utils._watch import hook, textfile

FILE_SECONDS = 15.0
KINDS = ("fault", "recovered", "settled", "head_lost", "head_back")


class Outside:
    """The reports of one node."""

    def __init__(self, config: Mapping[str, Any], settings: Mapping[str, Any], folder: str, shown: Callable[[], dict[str, Any]]) -> None:
        """`shown` returns the state of the watch, empty on a worker."""
        self.group, self.rank, self.hosts = str(config["group"]), int(config["rank"]), list(config["hosts"])
        self.host = str(self.hosts[self.rank])
        self.settings, self.folder, self._shown = settings, folder, shown
        self._written, self._silent = -1e9, False
        self._problem = ""
        self.failed: dict[str, Any] = {}  # how many notices have failed since the agent's start, and the last failure
        self.warn: Callable[[str], None] = lambda _text: None  # takes each failure that is a new one
        self._lock, self._known = threading.Lock(), set[str]()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Pass an event to the hook and the webhook, without waiting for them."""
        if event.get("kind") in KINDS and (self.settings["hook"] or self.settings["webhook"]):
            threading.Thread(target=self._tell, args=({**event, "group": self.group, "host": self.host},), daemon=True, name="gb10-hook").start()

    def _tell(self, event: dict[str, Any]) -> None:
        for problem in hook.notify(self.settings, event):
            log(problem)
            with self._lock:
                self.failed = {"count": int(self.failed.get("count") or 0) + 1, "at": utc.stamp(time.time()), "text": problem}
                new = problem not in self._known
                self._known.add(problem)
            if new:
                self.warn(f"{self.group}: a notice has failed, and those that follow may fail too. {problem} Correct vllm_tp2_watch, or its receiver.")

    def sampled(self, sample: Mapping[str, Any], asked_at: float) -> None:
        """Take a reading of this rank; `asked_at` is when the head asked last, negative if it did not since this agent's start."""
        now = time.monotonic()
        if self.rank and asked_at >= 0:
            self._judge_head(now - asked_at)
        if self.settings["textfile"] and now - self._written >= FILE_SECONDS:
            self._written = now
            self._write(textfile.render(self.group, self.rank, self.host, self._shown(), dict(sample)))

    def _judge_head(self, silent: float) -> None:
        """Report that the head is gone, or back. A rank that was stopped on request expects no head."""
        gone = silent >= float(self.settings["head_seconds"]) and not node.stopped_of(self.folder)
        if gone == self._silent:
            return
        self._silent = gone
        head = self.hosts[0]
        text = f"{self.group}: the head {head} has not asked {self.host} for {silent:.0f} s" if gone else f"{self.group}: the head {head} is back"
        log(f"{text}.")
        self.tell({"kind": "head_lost" if gone else "head_back", "cause": "node_lost", "text": text, "at": utc.stamp(time.time())})

    def _write(self, text: str) -> None:
        """Replace the file of metrics. A folder that cannot be written is reported once in the journal."""
        path = os.path.join(str(self.settings["textfile"]), f"gb10_{self.group}.prom")
        try:
            write_atomically(path, text, 0o644)
            self._problem = ""
        except OSError as error:
            problem = f"The metrics cannot be written to {path}: {error.strerror}."
            if problem != self._problem:
                log(problem)
            self._problem = problem
