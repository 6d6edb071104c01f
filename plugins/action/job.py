# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow long work on its node: start it, show the progress, return the result. See the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import Pace, progress_text
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import human
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import SHOW_SECONDS, NodeResults, plain

LOST_AFTER = 5
RETRY_SECONDS = 2.0


class ActionModule(NodeResults):
    """Start and follow."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host, work, name = str(variables.get("inventory_hostname")), str(self._task.args.get("work")), str(self._task.args.get("name"))
        what = name.partition("-")[0] if work == "fetch" else work  # weights, drafter or image

        def step(name: str) -> dict[str, Any]:
            return dict(self._execute_module(module_name="gb10.cluster.job", module_args={**self._task.args, "step": name}, task_vars=variables))

        self.began = time.monotonic()
        self.before, self.pace, self.shown = (self.began, 0), Pace(), ""
        out = step("start")
        if not out.pop("started", False):
            return out
        shown_at, misses = 0.0, 0
        while True:
            out = step("status")
            report = out.pop("report", None)  # only for this plugin
            if report is None:
                misses += 1
                if out.get("msg") and not out.get("unreachable") and not out.get("module_stderr"):
                    return out
                if misses >= LOST_AFTER:
                    return {**out, "failed": True, "msg": f"{host} does not answer; the {work} goes on there by itself, run again"}
                time.sleep(RETRY_SECONDS)
                continue
            misses, done = 0, report["state"] == "done"
            if done or time.monotonic() - shown_at >= SHOW_SECONDS:
                values = self.progress(report)
                if values:
                    Display().display(plain(progress_text(host, what, **values)))
                    shown_at = time.monotonic()
            if done:
                return out

    def progress(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return what to show now, as arguments of `progress_text`; empty if it has been shown."""
        now, total, done = time.monotonic(), int(report.get("total") or 0), int(report.get("done") or 0)
        if "done" not in report:
            text = report.get("text") or ""
            if text in ("", self.shown):
                return {}
            self.shown = text
            return {"percent": report.get("percent"), "notes": [f"{now - self.began:.0f} s", text]}
        rate = int(report.get("rate") or (done - self.before[1]) / max(now - self.before[0], 1e-3) / 1e6)
        self.before = (now, done)
        found: dict[str, Any] = {"done": human(done), "notes": [f"{rate} MB/s"]}
        if total:
            found.update(percent=100 * done // total, total=human(max(total, done)), seconds_left=self.pace.seconds_left(now, done, total))
        return found
