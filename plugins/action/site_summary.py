# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the summary of a run. See the module of the same name."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._pair import standing
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_login import ssh_words
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN


class ActionModule(ActionBase):
    """Print and return the results that the roles exported."""

    TRANSFERS_FILES = False
    BYPASS_HOST_LOOP = True  # once, on localhost or, where --limit leaves it out, on the first host that is left
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print one paragraph for each serving group."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        self.validate_argument_spec(argument_spec={})
        times = standing.stage_times(RUN.roles, time.time())
        lines: list[str] = []
        left = set(variables.get("ansible_play_hosts_all") or ()) - set(variables.get("ansible_play_hosts") or ()) | RUN.unreachable
        for host in variables["groups"].get("gb10", []):
            values = variables["hostvars"][host]
            result = values.get("vllm_tp2_result")
            if result and host == result["head"]:
                members = [str(each) for each in variables["groups"].get(result["group"]) or [host]]
                changed = {each: RUN.changed[each] for each in members if each in RUN.changed} if RUN.kept else None
                lost = [each for each in members if each in left]
                address, login = str(values.get("ansible_host") or host), ssh_words(values, host)
                lines += ["", *standing.group_text(result, address, times, self._task.check_mode, changed, lost, brief=RUN.shows, login=login)]
        if self._task.check_mode and lines:
            lines = ["", "Check mode: nothing was changed.", *lines]
        shown.show(lines, None, shown.wants_json(self._loader))
        return {"changed": False, "lines": lines}
