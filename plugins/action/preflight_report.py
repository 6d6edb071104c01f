# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check all ranks of a serving group together, on the controller. See the module of the same name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Group
from ansible_collections.gb10.cluster.plugins.module_utils._checks.judge import Verdict, judge, skipped_lines, unknown_ids
from ansible_collections.gb10.cluster.plugins.module_utils._common import utc
from ansible_collections.gb10.cluster.plugins.module_utils._common.finding import ERROR, INFO, counts
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown
from ansible_collections.gb10.cluster.plugins.plugin_utils.preflight_ranks import NEEDS, rank_of, requirements, version_faults

SKIPPED_LINES = 2
_SPEC: dict[str, Any] = {
    **NEEDS,
    "group": {"type": "dict", "required": True},
    "register": {"type": "str", "required": True},
    "report": {"type": "path", "default": ""},
    "strict": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Each host of the group has one instance. All have the same verdict; that of the first host in the run reports it."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check, print, write the report, and fail if there are errors."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(argument_spec=_SPEC)
        variables = task_vars or {}
        wanted, host = options["group"], str(variables["inventory_hostname"])
        faults = [*version_faults(options["known_versions"]), *unknown_ids(options["ignore"])]
        if faults:
            return dict(result, changed=False, failed=True, findings=[], ignored=[], not_checked=[], report="", msg=". ".join(faults) + ".")
        in_run = [str(each) for each in variables.get("ansible_play_hosts_all") or wanted["hosts"]]
        ranks = [rank_of(variables, options["register"], each, number, each in in_run) for number, each in enumerate(wanted["hosts"])]
        group = Group(str(wanted["name"]), ranks, requirements(options))
        verdict = judge(group, options["ignore"], options["strict"])
        result.update(verdict.data(), changed=False, report=options["report"])
        is_first = host == next((rank.host for rank in ranks if rank.in_run), host)
        errors = [each for each in verdict.findings if each.severity == ERROR]
        if is_first and options["report"]:
            try:
                _write(options["report"], group, verdict)
            except OSError as error:
                text = f"preflight_report is {options['report']}, which cannot be written on the controller ({error.strerror or error})"
                return dict(result, failed=True, report="", msg=f"{text}: choose another path, or empty for no report.")
        if is_first:
            document = _document(group, verdict) | {"report": options["report"]}
            color = "yellow" if any(each.severity != INFO for each in verdict.findings) else None
            shown.show(_text(group, verdict, options["report"]), document, shown.wants_json(self._loader), color)
        if errors:
            names = ", ".join(dict.fromkeys(each.id for each in errors))
            head = f"{group.name} is not ready, {_count(len(errors), 'error')} ({names}); nothing was changed."
            listed = "".join(f"\n{each.line()}" for each in errors) if is_first else f" They are listed at {ranks[0].host}."
            return dict(result, failed=True, msg=head + listed)
        return dict(result, msg=f"{group.name}: no error, {_count(len(verdict.findings), 'finding')}.")


def _text(group: Group, verdict: Verdict, report: str) -> list[str]:
    """Return everything but errors, which are in the message of the failure."""
    number = counts(verdict.findings)
    where = f"; report: {report}" if report else ""
    out = [f"preflight of {group.name}: {_count(number['error'], 'error')}, {_count(number['warning'], 'warning')}, {number['info']} for information{where}"]
    out += [each.line() for each in verdict.findings if each.severity != ERROR]
    out += [f"ignored {each.id} ({', '.join(each.hosts)}): {each.found}." for each in verdict.ignored]
    skipped = skipped_lines(verdict.skipped)
    if len(skipped) > SKIPPED_LINES and not Display().verbosity:
        checks = len({each.id for each in verdict.skipped})
        skipped = [f"skipped: {_count(checks, 'check')}, for {len(skipped)} reasons ({'in the report' if report else '-v prints them'})"]
    return out + skipped


def _document(group: Group, verdict: Verdict) -> dict[str, Any]:
    """Return the verdict of a group for programs."""
    ready = not counts(verdict.findings)[ERROR]
    return {"schema": "gb10.cluster/preflight/2", "time": utc.stamp(), "group": group.name, "hosts": list(group.hosts), "ready": ready, **verdict.data()}


def _write(path: str, group: Group, verdict: Verdict) -> None:
    """Write the report. Raises OSError."""
    facts = {rank.host: {key: value for key, value in rank.facts.items() if key not in ("invocation", "changed", "warnings")} for rank in group.ranks}
    target = Path(os.path.expanduser(path)).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    document = {**_document(group, verdict), "facts": facts}
    write_atomically(str(target), json.dumps(document, indent=2, sort_keys=True, default=str) + "\n", 0o600)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
