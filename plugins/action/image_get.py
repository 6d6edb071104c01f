# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follow a pull or build on its node and show the progress. See the module of the same name for its options."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils.followed import FollowedAction


class ActionModule(FollowedAction):
    """Pull or build."""

    MODULE = "gb10.cluster.image_get"
    shown = ""

    def what(self) -> str:
        """Return pull or build."""
        return str(self._task.args.get("how"))

    def progress(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return the last output of docker if it is new."""
        text = report.get("text") or ""
        if text == self.shown:
            return {}
        self.shown = text
        return {"percent": report.get("percent"), "notes": [f"{time.monotonic() - self.began:.0f} s", text]} if text else {}
