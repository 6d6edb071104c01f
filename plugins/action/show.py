# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print text for people with any callback. See the module of the same name for its options."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN


class ActionModule(ActionBase):
    """The action plugin. A callback that formats results would print a line end as two characters."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print, and return what was printed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(argument_spec={"lines": {"type": "list", "elements": "str"}, "data": {"type": "raw"}})
        given = shown.text_of(options["data"]) if options["lines"] is None else options["lines"]
        lines = [printable(each) for line in given for each in line.split("\n")]
        as_json = shown.wants_json(self._loader)
        if as_json or not RUN.shows:
            shown.show(lines, options["data"], as_json)
        return {**result, "changed": False, "lines": lines, "data": options["data"]}
