# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge all ranks of a serving group together, on the controller. See the module of the same name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._common import utc
from ansible_collections.gb10.cluster.plugins.module_utils._preflight import checks
from ansible_collections.gb10.cluster.plugins.plugin_utils import receipts

_SPEC: dict[str, Any] = {
    "group": {"type": "dict", "required": True},
    "register": {"type": "str", "required": True},
    "report": {"type": "path", "default": ""},
    "ignore": {"type": "list", "elements": "str", "default": []},
    "strict": {"type": "bool", "default": False},
    "require_gb10": {"type": "bool", "default": False},
    "head_ports": {"type": "dict", "default": {}},
    "image": {"type": "str", "default": ""},
    "image_gib": {"type": "float", "default": 0},
    "model_gib": {"type": "float", "default": 0},
    "free_gib": {"type": "float", "default": 5},
    "clock_skew_seconds": {"type": "float", "default": 5},
    "known_versions": {"type": "list", "elements": "dict", "default": []},
}
_ENTRY = {"component": str, "severity": str, "matters": str, "remedy": str}
_IDS = {"driver": "known_bad_driver", "kernel": "known_bad_kernel", "firmware_cx7": "known_bad_firmware"}


def checked_entries(entries: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the user's known versions, completed, and a sentence for each that cannot be used."""
    good, faults = [], []
    for number, entry in enumerate(entries):
        name = f"preflight_known_versions[{number}]"
        missing = [key for key in _ENTRY if not isinstance(entry.get(key), str)]
        if missing:
            faults.append(f"{name} has no {', '.join(missing)}")
        elif entry["component"] not in _IDS:
            faults.append(f"{name}.component is {entry['component']!r}; known are {', '.join(_IDS)}")
        elif entry["severity"] not in checks.SEVERITIES:
            faults.append(f"{name}.severity is {entry['severity']!r}; known are {', '.join(checks.SEVERITIES)}")
        elif not checks.numbers(str(entry.get("match") or entry.get("below") or "")):
            faults.append(f"{name} has neither match nor below with a version in it")
        else:
            good.append(dict(entry, id=_IDS[entry["component"]]))
    return good, faults


def write_json(path: str, data: dict[str, Any]) -> None:
    """Write a file atomically, with its folder. Raises OSError."""
    target = Path(path).expanduser().absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    receipts.write(target, json.dumps(data, indent=2, sort_keys=True, default=str) + "\n", 0o644)


class ActionModule(ActionBase):
    """One instance a host: all come to the same verdict, the first host in the run says it."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Judge, say, write, fail."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(argument_spec=_SPEC)
        variables = task_vars or {}
        group, here = options["group"], str(variables["inventory_hostname"])
        known, faults = checked_entries(options["known_versions"])
        faults += checks.unknown_ids(options["ignore"])
        if faults:
            return dict(result, changed=False, failed=True, findings=[], ignored=[], not_checked=[], report="", msg=". ".join(faults) + ".")
        in_run = [str(host) for host in variables.get("ansible_play_hosts_all") or group["hosts"]]
        ranks = [self._rank(variables, options["register"], host, number, host in in_run) for number, host in enumerate(group["hosts"])]
        wishes = checks.Wishes(
            group["name"],
            len(group["hosts"]),
            options["require_gb10"],
            {int(port): str(what) for port, what in options["head_ports"].items()},
            options["model_gib"],
            options["image_gib"],
            options["image"],
            options["free_gib"],
            options["clock_skew_seconds"],
            known=known,
        )
        verdict = checks.judge(ranks, wishes, options["ignore"], options["strict"])
        result.update(verdict, changed=False, report=options["report"])
        speaks = here == next((rank.host for rank in ranks if rank.asked), here)
        if speaks and options["report"]:
            problem = self._write(options["report"], group, ranks, verdict)
            if problem:
                return dict(result, failed=True, report="", msg=problem)
        errors = [entry for entry in verdict["findings"] if entry["severity"] == "error"]
        if speaks:
            self._say(group, verdict, options["report"])
        if errors:
            names = ", ".join(dict.fromkeys(entry["id"] for entry in errors))
            head = f"{group['name']} is not ready, {_count(len(errors), 'error')} ({names}); nothing was changed."
            text = [head, *(checks.block(entry) for entry in errors)] if speaks else [f"{head} They are listed at {ranks[0].host}."]
            return dict(result, failed=True, msg="\n".join(text))
        return dict(result, msg=f"{group['name']}: no error, {_count(len(verdict['findings']), 'finding')}.")

    @staticmethod
    def _rank(variables: dict[str, Any], name: str, host: str, number: int, asked: bool) -> checks.Rank:
        """What is known of one rank."""
        facts = variables["hostvars"][host].get(name) if asked else None
        if not isinstance(facts, dict):
            return checks.Rank(host, number, {}, "" if not asked else "it left the run before it was read", asked=asked)
        facts = dict(facts)
        failure = str(facts.get("found") or facts.get("msg") or "no reason given") if facts.get("failed") or facts.get("unreachable") else ""
        detail = str(facts.get("module_stderr") or "") if failure.startswith("MODULE FAILURE") else ""
        return checks.Rank(host, number, facts, detail or failure, bool(facts.get("unreachable")))

    @staticmethod
    def _say(group: dict[str, Any], verdict: dict[str, Any], report: str) -> None:
        """Print everything but errors, which the failure shows."""
        display = Display()
        found = verdict["findings"]
        counts = [_count(sum(entry["severity"] == severity for entry in found), severity) for severity in ("error", "warning")]
        display.display(f"\npreflight of {group['name']}: {', '.join(counts)}, {sum(entry['severity'] == 'info' for entry in found)} for information")
        for entry in found:
            if entry["severity"] != "error":
                display.display(checks.block(entry), color="yellow" if entry["severity"] == "warning" else None)
        for entry in verdict["ignored"]:
            display.display(f"ignored {entry['id']} ({', '.join(entry['hosts'])}): {entry['found']}.")
        for line in checks.skipped_text(verdict["not_checked"]):
            display.display(line)
        if report:
            display.display(f"report: {report}\n")

    @staticmethod
    def _write(path: str, group: dict[str, Any], ranks: list[checks.Rank], verdict: dict[str, Any]) -> str:
        """Write the report; return why it could not be written."""
        data = {
            "schema": "gb10.cluster/preflight/1",
            "time": utc.stamp(),
            "group": group["name"],
            "hosts": list(group["hosts"]),
            "ready": not any(entry["severity"] == "error" for entry in verdict["findings"]),
            **verdict,
            "facts": {rank.host: {key: rank.facts[key] for key in rank.facts if key not in ("invocation", "changed", "warnings")} for rank in ranks},
        }
        try:
            write_json(path, data)
        except OSError as error:
            return f"preflight_report is {path}, which cannot be written on the controller ({error.strerror or error}): choose another path, or empty for none."
        return ""


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
