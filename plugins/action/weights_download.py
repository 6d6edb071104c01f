# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a download on its node and show the progress. See the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest
from ansible_collections.gb10.cluster.plugins.plugin_utils.followed import FollowedAction


class ActionModule(FollowedAction):
    """Download."""

    MODULE = "gb10.cluster.weights_download"
    before: tuple[float, int] = (0.0, 0)

    def what(self) -> str:
        """Return download."""
        return "download"

    def progress(self, report: dict[str, Any]) -> str:
        """Return share, size and the rate since the last line."""
        now, done = time.monotonic(), int(report.get("done") or 0)
        rate = (done - self.before[1]) / max(now - self.before[0], 1e-3) if self.before[1] else 0.0
        share = f"{100 * done // report['total']:3d} %  " if report.get("total") else ""
        self.before = (now, done)
        return f"{share}{manifest.human(done)}  {rate / 1e6:.0f} MB/s"
