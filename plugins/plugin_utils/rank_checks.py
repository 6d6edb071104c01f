# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Make the checks of preflight, or all of doctor.yml, on what was read of the ranks of a serving group. Controller only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._checks import judge
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import NOT_IN_RUN, Group, Rank, Requirements
from ansible_collections.gb10.cluster.plugins.module_utils._core import text
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import ERROR, INFO, counts
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import group_status
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import short
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_login import ssh_words
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import plain

# What the tasks register on each rank, and what those of doctor.yml register besides.
FACTS = "__preflight_node"
INFO_OF_RANK, DRIFT, BANDWIDTH = "__vllm_tp2_info", "__vllm_tp2_drift", "__roce_bandwidth"
SETTINGS = {"sysctl": "__sysctl_set", "readahead": "__readahead_set", "gpu": "__gpu_set", "docker": "__docker_plan"}
NEEDS: dict[str, Any] = {
    "require_gb10": {"type": "bool", "default": False},
    "head_ports": {"type": "dict", "default": {}},
    "open_port": {"type": "int", "default": 0},
    "image": {"type": "str", "default": ""},
    "image_gib": {"type": "float", "default": 0},
    "model_gib": {"type": "float", "default": 0},
    "free_gib": {"type": "float", "default": 5},
    "clock_skew_seconds": {"type": "float", "default": 5},
    "known_versions": {"type": "list", "elements": "dict", "default": []},  # argument_specs of the role has its options
}
#: The suboptions of `checks`.
SPEC: dict[str, Any] = {
    "needs": {"type": "dict", "default": {}, "apply_defaults": True, "options": NEEDS},
    "ignore": {"type": "list", "elements": "str", "default": []},
    "strict": {"type": "bool", "default": False},
    "file": {"type": "path", "default": ""},
    "release": {"type": "str", "default": ""},
    "bandwidth_not": {"type": "str", "default": ""},
    "collective": {"type": "dict", "default": {}},
}


def _group(given: Mapping[str, Any], needs: Mapping[str, Any], variables: Mapping[str, Any], for_doctor: bool) -> tuple[Group, dict[str, Mapping[str, Any]]]:
    """Return what was read of a serving group, and the variables of each host in the run."""
    in_run = set(variables.get("ansible_play_hosts_all") or given["hosts"])
    hosts = [str(each) for each in given["hosts"]]
    read = {host: variables["hostvars"][host] if host in in_run else {} for host in hosts}
    ranks = [_rank(read[host], host, number, host in in_run, for_doctor) for number, host in enumerate(hosts)]
    ports = {int(port): str(what) for port, what in needs["head_ports"].items()}
    return Group(str(given["name"]), ranks, Requirements(**{**needs, "head_ports": ports})), read


def preflight(given: Mapping[str, Any], options: Mapping[str, Any], variables: Mapping[str, Any], loader: Any) -> dict[str, Any]:
    """Return the verdict of preflight, failed if there are errors. The first host in the run prints it and writes the report."""
    group, _read = _group(given, options["needs"], variables, for_doctor=False)
    verdict, host = judge.judge(group, options["ignore"], options["strict"]), str(variables["inventory_hostname"])
    result, file = verdict.data(), options["file"]
    is_first = host == next((rank.host for rank in group.ranks if not rank.absent), host)
    errors = [each for each in verdict.findings if each.severity == ERROR]
    if is_first and file:
        try:
            _write(file, group, verdict)
        except OSError as error:
            where = f"preflight_report is {file}, which cannot be written on the controller ({error.strerror or error})"
            return {**result, "failed": True, "msg": f"{where}: choose another path, or empty for no report."}
    if is_first:
        document = _document(group, verdict) | {"report": file}
        color = "yellow" if any(each.severity != INFO for each in verdict.findings) else None
        shown.show(_text(group, verdict, file), document, shown.wants_json(loader), color)
    if errors:
        names = ", ".join(dict.fromkeys(each.id for each in errors))
        head = f"{group.name} is not ready, {_count(len(errors), 'error')} ({names}); nothing was changed."
        return {**result, "failed": True, "msg": "\n".join([head, *(each.line() for each in errors)])}
    return {**result, "msg": f"{group.name}: no error, {_count(len(verdict.findings), 'finding')}."}


def doctor(given: Mapping[str, Any], options: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the page of doctor.yml."""
    group, read = _group(given, options["needs"], variables, for_doctor=True)
    infos = [rank.info for rank in group.ranks]
    measured = {host: _ran(values, BANDWIDTH) for host, values in read.items()}
    group = group._replace(
        status=group_status(infos, group.name, group.hosts),
        liveness=infos[0].get("alive") or {},
        named=options["release"],
        bandwidth={host: each for host, each in measured.items() if "bandwidth_class" in each or each.get("failed")},
        bandwidth_not=options["bandwidth_not"],
        collective=options["collective"],
    )
    sources = [str(each) for each in variables.get("ansible_inventory_sources") or ()]
    checkout = Path("playbooks/doctor.yml").is_file() and Path("site.yml").is_file()
    typed = [short(Path(each)) if os.path.isabs(each) else each for each in sources]
    places = judge.Places(typed, checkout, {host: ssh_words(variables["hostvars"][host], host) for host in group.hosts})
    report = plain(judge.report(group, judge.judge(group, options["ignore"], preflight=False), places, text.stamp()))
    return {"verdict": judge.verdict(report), "lines": judge.lines(report), "report": report}


def _ran(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a task registered; empty if it did not run."""
    result = values.get(name)
    return dict(result) if isinstance(result, Mapping) and not result.get("skipped") else {}


def _rank(values: Mapping[str, Any], host: str, number: int, in_run: bool, for_doctor: bool) -> Rank:
    """Return what was read of a rank, or why nothing. Why the first reader failed stands for the others, which did not run."""
    facts, more = _ran(values, FACTS), values if for_doctor else {}
    failed = bool(facts.get("failed") or facts.get("unreachable"))
    failure = str(facts.get("found") or facts.get("access") or facts.get("msg") or "no reason given") if failed else ""
    if failure.startswith("MODULE FAILURE"):
        failure = str(facts.get("module_stderr") or failure)
    return Rank(
        host,
        number,
        facts,
        failure if facts or not in_run else "it left the run before it was read",
        bool(facts.get("unreachable")),
        "" if in_run else NOT_IN_RUN,
        str(facts.get("remedy") or ""),
        _ran(more, INFO_OF_RANK) or (facts if failed else {}),
        [str(each) for each in _ran(more, DRIFT).get("repairs") or []],
        {role: _ran(more, name) for role, name in SETTINGS.items()},
    )


def _text(group: Group, verdict: judge.Verdict, report: str) -> list[str]:
    """Return everything but errors, which are in the message of the failure."""
    number = counts(verdict.findings)
    where = f"; report: {report}" if report else ""
    out = [f"preflight of {group.name}: {_count(number['error'], 'error')}, {_count(number['warning'], 'warning')}, {number['info']} for information{where}"]
    out += [each.line() for each in verdict.findings if each.severity != ERROR]
    out += [f"ignored {each.id} ({', '.join(each.hosts)}): {each.found}." for each in verdict.ignored]
    checks, reasons = ({each.id for each in verdict.skipped}, {(each.reason, each.hosts) for each in verdict.skipped})
    where = "in the report" if report else "-e output=json prints them"
    return out + ([f"skipped: {_count(len(checks), 'check')}, for {_count(len(reasons), 'reason')} ({where})"] if reasons else [])


def _document(group: Group, verdict: judge.Verdict) -> dict[str, Any]:
    """Return the verdict of a group for programs."""
    ready = not counts(verdict.findings)[ERROR]
    return {"schema": "gb10.cluster/preflight/2", "time": text.stamp(), "group": group.name, "hosts": list(group.hosts), "ready": ready, **verdict.data()}


def _write(path: str, group: Group, verdict: judge.Verdict) -> None:
    """Write the report. Raises OSError."""
    facts = {rank.host: {key: value for key, value in rank.facts.items() if key not in ("invocation", "changed", "warnings")} for rank in group.ranks}
    target = Path(os.path.expanduser(path)).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    document = {**_document(group, verdict), "facts": facts}
    write_atomically(str(target), json.dumps(document, indent=2, sort_keys=True, default=str) + "\n", 0o600)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
