# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call the module of the same name, and note the controller's clock around it."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """The module's result with `clock`: a node's time lies between the two where the clocks agree, whatever the connection took."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        before = time.time()
        result.update(self._execute_module(task_vars=task_vars))
        result["clock"] = {"before": before, "after": time.time()}
        return result
