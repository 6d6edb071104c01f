# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check all ranks of a serving group together, on the controller. See the module of the same name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._common import utc
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._preflight import checks, findings
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.catalogue import SEVERITIES
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import numbers

_IDS = {"driver": "known_bad_driver", "kernel": "known_bad_kernel", "firmware_cx7": "known_bad_firmware"}
_KNOWN_VERSION: dict[str, Any] = {
    "component": {"type": "str", "required": True, "choices": list(_IDS)},
    **{name: {"type": "str"} for name in ("match", "below", "line", "source", "id")},
    "also": {"type": "dict"},
    "unless": {"type": "list", "elements": "str"},
    "severity": {"type": "str", "required": True, "choices": list(SEVERITIES)},
    **{name: {"type": "str", "required": True} for name in ("matters", "remedy")},
}
_SPEC: dict[str, Any] = {
    "group": {"type": "dict", "required": True},
    "register": {"type": "str", "required": True},
    "report": {"type": "path", "default": ""},
    "ignore": {"type": "list", "elements": "str", "default": []},
    "strict": {"type": "bool", "default": False},
    "require_gb10": {"type": "bool", "default": False},
    "head_ports": {"type": "dict", "default": {}},
    "open_port": {"type": "int", "default": 0},
    "image": {"type": "str", "default": ""},
    "image_gib": {"type": "float", "default": 0},
    "model_gib": {"type": "float", "default": 0},
    "free_gib": {"type": "float", "default": 5},
    "clock_skew_seconds": {"type": "float", "default": 5},
    "known_versions": {"type": "list", "elements": "dict", "default": [], "options": _KNOWN_VERSION},
}


def completed(entries: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the user's known versions with their check IDs, and a sentence for each without a version."""
    faults = [
        f"preflight_known_versions[{number}] has neither match nor below with a version"
        for number, entry in enumerate(entries)
        if not numbers(str(entry.get("match") or entry.get("below") or ""))
    ]
    return [entry | {"id": _IDS[entry["component"]]} for entry in entries], faults


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
        group, host = options["group"], str(variables["inventory_hostname"])
        known, faults = completed(options["known_versions"])
        faults += checks.unknown_ids(options["ignore"])
        if faults:
            return dict(result, changed=False, failed=True, findings=[], ignored=[], not_checked=[], report="", msg=". ".join(faults) + ".")
        in_run = [str(each) for each in variables.get("ansible_play_hosts_all") or group["hosts"]]
        ranks = [_rank(variables, options["register"], each, number, each in in_run) for number, each in enumerate(group["hosts"])]
        needs = findings.Requirements(
            group=group["name"],
            size=len(group["hosts"]),
            head_ports={int(port): str(what) for port, what in options["head_ports"].items()},
            known=known,
            **{name: options[name] for name in ("require_gb10", "open_port", "model_gib", "image_gib", "image", "free_gib", "clock_skew_seconds")},
        )
        verdict = checks.judge(ranks, needs, options["ignore"], options["strict"])
        result.update(verdict, changed=False, report=options["report"])
        is_first = host == next((rank.host for rank in ranks if rank.in_run), host)
        errors = [entry for entry in verdict["findings"] if entry["severity"] == "error"]
        if is_first and options["report"]:
            try:
                _write(options["report"], group, ranks, verdict)
            except OSError as error:
                text = f"preflight_report is {options['report']}, which cannot be written on the controller ({error.strerror or error})"
                return dict(result, failed=True, report="", msg=f"{text}: choose another path, or empty for no report.")
        if is_first:
            _display(group, verdict, options["report"])
        if errors:
            names = ", ".join(dict.fromkeys(entry["id"] for entry in errors))
            head = f"{group['name']} is not ready, {_count(len(errors), 'error')} ({names}); nothing was changed."
            listed = "".join(f"\n{findings.block(entry)}" for entry in errors) if is_first else f" They are listed at {ranks[0].host}."
            return dict(result, failed=True, msg=head + listed)
        return dict(result, msg=f"{group['name']}: no error, {_count(len(verdict['findings']), 'finding')}.")


def _rank(variables: dict[str, Any], name: str, host: str, number: int, in_run: bool) -> findings.Rank:
    """Return the facts of one rank, or why there are none."""
    facts = variables["hostvars"][host].get(name) if in_run else None
    if not isinstance(facts, dict):
        return findings.Rank(host, number, {}, "it left the run before it was read" if in_run else "", in_run=in_run)
    failure = str(facts.get("found") or facts.get("msg") or "no reason given") if facts.get("failed") or facts.get("unreachable") else ""
    if failure.startswith("MODULE FAILURE"):
        failure = str(facts.get("module_stderr") or failure)
    return findings.Rank(host, number, dict(facts), failure, bool(facts.get("unreachable")))


def _display(group: dict[str, Any], verdict: dict[str, Any], report: str) -> None:
    """Print everything but errors, which are in the message of the failure."""
    found = verdict["findings"]
    errors, warnings, infos = (sum(entry["severity"] == severity for entry in found) for severity in SEVERITIES)
    display = Display()
    display.display(f"\npreflight of {group['name']}: {_count(errors, 'error')}, {_count(warnings, 'warning')}, {infos} for information")
    for entry in found:
        if entry["severity"] != "error":
            display.display(printable(findings.block(entry)), color="yellow" if entry["severity"] == "warning" else None)
    lines = [f"ignored {entry['id']} ({', '.join(entry['hosts'])}): {entry['found']}." for entry in verdict["ignored"]]
    for line in lines + findings.skipped_lines(verdict["not_checked"]) + ([f"report: {report}\n"] if report else []):
        display.display(printable(line))


def _write(path: str, group: dict[str, Any], ranks: list[findings.Rank], verdict: dict[str, Any]) -> None:
    """Write the report. Raises OSError."""
    data = {
        "schema": "gb10.cluster/preflight/1",
        "time": utc.stamp(),
        "group": group["name"],
        "hosts": list(group["hosts"]),
        "ready": not any(entry["severity"] == "error" for entry in verdict["findings"]),
        **verdict,
        "facts": {rank.host: {key: value for key, value in rank.facts.items() if key not in ("invocation", "changed", "warnings")} for rank in ranks},
    }
    target = Path(path).expanduser().absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(str(target), json.dumps(data, indent=2, sort_keys=True, default=str) + "\n", 0o600)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
