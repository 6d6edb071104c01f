# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the inventory before any host is contacted, or write that of two machines. See the module of the same name for its options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import summary
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_run import is_check_alone
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_survey import Survey

_PAIR: dict[str, Any] = {
    "folder": {"type": "path", "required": True},
    **{name: {"type": "list", "elements": "dict"} for name in ("machines", "nodes", "fabrics")},
    **{name: {"type": "dict"} for name in ("profiles", "variables")},
}


def selected(stages: Iterable[str], run: Sequence[str], skip: Sequence[str]) -> list[str]:
    """Return the stages, named by their tags, that --tags and --skip-tags select."""
    every = {"all", "tagged"}
    return [stage for stage in stages if every.union([stage]).intersection(run) and not every.union([stage]).intersection(skip)]


class ActionModule(ActionBase):
    """The action plugin. It runs once, on the controller, for all hosts of the play."""

    BYPASS_HOST_LOOP = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check the inventory and report all faults, or set up a pair."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _rest, options = self.validate_argument_spec(
            argument_spec={
                "examples": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
                "group_stages": {"type": "list", "elements": "str", "default": []},
                "extra_only": {"type": "bool", "default": False},
                "pair": {"type": "dict", "options": _PAIR},
            }
        )
        if options["pair"]:
            if self._task.check_mode:
                raise AnsibleActionFail("setup.yml has no check mode: it shows the files before it writes them. Run it without --check.")
            from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_pair  # few runs write one

            password = str(self._play_context.become_pass or "")
            return {**result, **setup_pair.Setup(options["pair"], load_extra_vars(self._loader), password).run()}
        variables = task_vars or {}
        stages = selected(options["group_stages"], variables.get("ansible_run_tags") or ["all"], variables.get("ansible_skip_tags") or [])
        survey = Survey(variables, load_extra_vars(self._loader), self._loader, stages, inventory_only=options["examples"] == "warn" or is_check_alone())
        found = survey.run_extra() if options["extra_only"] else survey.run()
        warnings = [each for each in found if each.warning or (each.example and options["examples"] == "warn")]
        faults = sorted((each for each in found if each not in warnings), key=lambda each: (each.file, each.line))
        for each in warnings if not faults else ():  # of a run that is refused, they are not the matter
            Display().warning(each.sentence())
        result.update(changed=False, faults=len(faults), warned=[each.sentence() for each in warnings])
        if faults:
            result.update(failed=True, msg=summary(faults, "The command line" if options["extra_only"] else "The inventory"))
        elif options["extra_only"]:
            result["msg"] = "The extra variables are valid."
        else:
            result["msg"] = f"The inventory is valid: {len(survey.hosts)} hosts."
        return result
