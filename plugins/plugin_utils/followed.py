# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A long step on a node, followed from the controller: started, asked how far it is, shown, returned when done."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

SHOW_SECONDS = 10.0
LOST_AFTER = 5
RETRY_SECONDS = 2.0


class FollowedAction(ActionBase):
    """The action of a module with the steps `start`, `status` and `plain`; a subclass names the module and says how far it is."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    MODULE = ""

    def what(self) -> str:
        """Return what is under way, in a word."""
        raise NotImplementedError

    def progress(self, report: dict[str, Any]) -> str:
        """Return the text to show now; empty for nothing new."""
        raise NotImplementedError

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        args = {key: value for key, value in self._task.args.items() if key != "step"}

        def step(name: str) -> dict[str, Any]:
            return dict(self._execute_module(module_name=self.MODULE, module_args={**args, "step": name}, task_vars=variables))

        if self._task.check_mode:
            return step("plain")
        self.began = time.monotonic()
        out = step("start")
        if out.get("failed"):
            return out
        host, display = str(variables.get("inventory_hostname")), Display()
        shown_at, misses = 0.0, 0
        while True:
            out = step("status")
            report = out.get("report")
            if report is None:
                misses += 1
                if out.get("msg") and not out.get("unreachable") and not out.get("module_stderr"):
                    return out
                if misses >= LOST_AFTER:
                    return {**out, "failed": True, "msg": f"{host} does not answer; the {self.what()} goes on there by itself, run again"}
                time.sleep(RETRY_SECONDS)
                continue
            misses = 0
            if report["state"] == "done":
                return {key: value for key, value in out.items() if key != "report"}  # that was for this plugin
            now = time.monotonic()
            if now - shown_at >= SHOW_SECONDS:
                text = self.progress(report)
                if text:
                    display.display(f"  {host}: {self.what()} {text}")
                    shown_at = now
