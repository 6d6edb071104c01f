# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module of the same name, and add the clock of the controller before and after it."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils.node_access import NodeAction


class ActionModule(NodeAction):
    """The result of the module with `clock`. If the clocks agree, the time of the node is between the two values."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run it."""
        before = time.time()
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self.found:
            result["found"] = self.found
        result["clock"] = {"before": before, "after": time.time()}
        return result
