# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a download on its node and show the progress. See the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest
from ansible_collections.gb10.cluster.plugins.plugin_utils.followed import FollowedAction


class ActionModule(FollowedAction):
    """Download."""

    MODULE = "gb10.cluster.weights_download"
    before: tuple[float, int] = (0.0, 0)

    def what(self) -> str:
        """Return download."""
        return "download"

    def progress(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return share, size, the rate since the last line, and the remaining time."""
        now, done = time.monotonic(), int(report.get("done") or 0)
        rate = (done - self.before[1]) / max(now - self.before[0], 1e-3) if self.before[1] else 0.0
        self.before = (now, done)
        total = int(report.get("total") or 0)
        shown = {"done": manifest.human(done), "notes": [f"{rate / 1e6:.0f} MB/s"]}
        if not total:
            return shown
        left = self.paces["download"].seconds_left(now, done, total)
        return {**shown, "percent": 100 * done // total, "total": manifest.human(total), "seconds_left": left}
