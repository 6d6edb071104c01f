# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a copy on its node and show the progress. See the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest
from ansible_collections.gb10.cluster.plugins.plugin_utils.followed import FollowedAction


class ActionModule(FollowedAction):
    """Copy."""

    MODULE = "gb10.cluster.weights_copy"
    before: tuple[float, int] = (0.0, 0)

    def what(self) -> str:
        """Return what is copied: weights or image."""
        return str(self._task.args.get("name", "weights")).partition("-")[0]

    def is_long(self) -> bool:
        """Return whether there is something to fetch."""
        return super().is_long() and self._task.args.get("state", "present") == "present" and bool(self._task.args.get("fetch"))

    def progress(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return share, size, rate, files and the remaining time."""
        now, total, done = time.monotonic(), int(report.get("total") or 0), int(report.get("done") or 0)
        if report["state"] == "running" and done >= total > 0:
            return {"what": f"{self.what()} checking", "done": manifest.human(total)}
        rate = int(report.get("rate") or (done - self.before[1]) / max(now - (self.before[0] or self.began), 1e-3) / 1e6)
        self.before = (now, done)
        return {
            "percent": 100 * done // total if total else 100, "done": manifest.human(done), "total": manifest.human(total),
            "seconds_left": self.paces["copy"].seconds_left(now, done, total),
            "notes": [f"{rate} MB/s", f"{report.get('files_done', 0)} of {report.get('files', 0)} files"],
        }  # fmt: skip
