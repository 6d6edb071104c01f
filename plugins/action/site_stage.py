# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mark that a stage of a run begins. See the module of the same name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase

MARKS = "gb10-stages.json"


def read_marks() -> list[tuple[str, float]]:
    """Return the marks of this Ansible run."""
    path = Path(constants.DEFAULT_LOCAL_TMP) / MARKS
    if not path.exists():
        return []
    return [(str(name), float(when)) for name, when in json.loads(path.read_text(encoding="utf-8"))]


class ActionModule(ActionBase):
    """Write the mark; nothing leaves the controller."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Append (name, now) to the run's marks."""
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(argument_spec={"name": {"type": "str", "required": True}})
        path = Path(constants.DEFAULT_LOCAL_TMP) / MARKS
        path.write_text(json.dumps([*read_marks(), (args["name"], time.time())]), encoding="utf-8")
        return {"changed": False}
