# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a copy on its node and show how far it is. See the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest

MODULE = "gb10.cluster.weights_copy"
SHOW_SECONDS = 5.0
LOST_AFTER = 5


class ActionModule(ActionBase):
    """Start, follow, put in place."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        self.vars = task_vars or {}
        args = dict(self._task.args)
        args.pop("step", None)
        if self._task.check_mode or args.get("state") == "absent" or not args.get("fetch"):
            return self.step(args, "plain")
        out = self.step(args, "start")
        if out.get("failed"):
            return out
        out = self.follow(args)
        return out if out.get("failed") else self.step(args, "install")

    def step(self, args: dict[str, Any], name: str) -> dict[str, Any]:
        """Run the module for one step."""
        return dict(self._execute_module(module_name=MODULE, module_args={**args, "step": name}, task_vars=self.vars))

    def follow(self, args: dict[str, Any]) -> dict[str, Any]:
        """Show the progress until the fetch has ended; a node that does not answer for a while is asked again."""
        host, display = str(self.vars.get("inventory_hostname")), Display()
        brief = {"path": args["path"], "name": args.get("name", "weights"), "fetch": args["fetch"][:1]}
        what = str(args.get("name", "")).split("-", maxsplit=1)[0]
        shown_at, before, misses = -SHOW_SECONDS, (time.monotonic(), 0), 0
        while True:
            out = self.step(brief, "status")
            if out.get("failed") or out.get("unreachable") or "report" not in out:
                misses += 1
                if misses >= LOST_AFTER:
                    out.setdefault("msg", f"{host} does not answer; what it has fetched stays there, run again")
                    return {**out, "failed": True}
                time.sleep(1.0)
                continue
            misses, report, now = 0, out["report"], time.monotonic()
            if report.get("state") == "failed":
                return {"failed": True, "changed": False, "msg": str(report.get("error"))}
            if now - shown_at >= SHOW_SECONDS or report.get("state") == "done":
                rate = (int(report.get("moved") or 0) - before[1]) / max(now - before[0], 1e-3)
                if report.get("state") == "done":
                    rate = int(report.get("moved") or 0) / max(float(report.get("copy_seconds") or 0), 1e-3)
                display.display(f"  {manifest.progress_line(host, report, rate, what + ' ' if what else '')}")
                shown_at, before = now, (now, int(report.get("moved") or 0))
            if report.get("state") == "done":
                return {}
