# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print text for people with any callback, the summary of a run, or where a report is. See the module of the same name for its options."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.module_utils._pair import standing
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_login import ssh_words
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN

_REPORT: dict[str, Any] = {
    "group": {"type": "dict", "required": True},
    "status": {"type": "dict", "default": {}},
    "registers": {"type": "dict", "required": True},
    "receipts": {"type": "path", "required": True},
    "bench": {"type": "path", "required": True},
    "dest": {"type": "path", "default": ""},
    "profiles": {"type": "dict", "default": {}},
}
_SPEC: dict[str, Any] = {
    "lines": {"type": "list", "elements": "str"},
    "data": {"type": "raw"},
    "summary": {"type": "bool", "default": False},
    "report": {"type": "dict", "options": _REPORT},
}


def summary(variables: Mapping[str, Any], check_mode: bool) -> Iterator[str]:
    """Yield the paragraph of each serving group that this run has started or left as it was."""
    times = standing.stage_times(RUN.roles, time.time())
    left = set(variables.get("ansible_play_hosts_all") or ()) - set(variables.get("ansible_play_hosts") or ()) | RUN.unreachable
    for host in variables["groups"].get("gb10", []):
        values = variables["hostvars"][host]
        result = values.get("vllm_tp2_result")
        if result and host == result["head"]:
            members = [str(each) for each in variables["groups"].get(result["group"]) or [host]]
            changed = {each: RUN.changed[each] for each in members if each in RUN.changed} if RUN.kept else None
            lost = [each for each in members if each in left]
            address, login = str(values.get("ansible_host") or host), ssh_words(values, host)
            yield from ["", *standing.group_text(result, address, times, check_mode, changed, lost, brief=RUN.shows, login=login)]


class ActionModule(ActionBase):
    """The action plugin. A callback that formats results would print a line end as two characters."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Print, and return what was printed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(argument_spec=_SPEC)
        variables, data, given = task_vars or {}, options["data"], options["lines"]
        if options["summary"]:
            given = list(summary(variables, self._task.check_mode))
            given = ["", "Check mode: nothing was changed.", *given] if given and self._task.check_mode else given
        elif options["report"]:
            from ansible_collections.gb10.cluster.plugins.plugin_utils import report_page  # few runs draw one

            given, data = report_page.write(options["report"], variables.get("hostvars") or {})
        elif given is None:
            given = shown.text_of(data)
        lines = [printable(each) for line in given for each in line.split("\n")]
        as_json = shown.wants_json(self._loader)
        if as_json or options["summary"] or not RUN.shows:
            shown.show(lines, data, as_json)
        return {**result, "changed": False, "lines": lines, "data": data, "summary": options["summary"]}
