# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Long work on a node, followed from the controller: start it, show the progress, return the result."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from typing import Any

from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import Pace, progress_text
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import NodeResults, plain

SHOW_SECONDS = 30.0
LOST_AFTER = 5
RETRY_SECONDS = 2.0


class FollowedAction(NodeResults):
    """The action of a module that uses `unit_job.follow`."""

    MODULE = ""

    def what(self) -> str:
        """Return the kind of the work in one word."""
        raise NotImplementedError

    def progress(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return what to show now, as arguments of `progress.text` after the host; empty for nothing."""
        raise NotImplementedError

    @functools.cached_property
    def paces(self) -> dict[str, Pace]:
        """The rates of the phases of the work, such as the copy and its check."""
        return defaultdict(Pace)

    def is_long(self) -> bool:
        """Return whether the module starts a unit."""
        return not self._task.check_mode

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        variables = task_vars or {}

        def step(name: str) -> dict[str, Any]:
            return dict(self._execute_module(module_name=self.MODULE, module_args={**self._task.args, "step": name}, task_vars=variables))

        self.began = time.monotonic()
        out = step("start" if self.is_long() else "plain")
        if out.get("failed") or not self.is_long():
            return out
        host = str(variables.get("inventory_hostname"))
        shown_at, misses = 0.0, 0
        while True:
            out = step("status")
            report = out.pop("report", None)  # only for this plugin
            if report is None:
                misses += 1
                if out.get("msg") and not out.get("unreachable") and not out.get("module_stderr"):
                    return out
                if misses >= LOST_AFTER:
                    return {**out, "failed": True, "msg": f"{host} does not answer; the {self.what()} goes on there by itself, run again"}
                time.sleep(RETRY_SECONDS)
                continue
            misses, done = 0, report["state"] == "done"
            if done or time.monotonic() - shown_at >= SHOW_SECONDS:
                values = self.progress(report)
                if values:
                    Display().display(plain(progress_text(host, **{"what": self.what(), **values})))
                    shown_at = time.monotonic()
            if done:
                return out
