# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the facts of a rank as preflight judges them, and what the inventory requires of them. Controller only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Rank, Requirements
from ansible_collections.gb10.cluster.plugins.module_utils._checks.versions import COMPONENTS
from ansible_collections.gb10.cluster.plugins.module_utils._common.finding import SEVERITIES
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import numbers

_KNOWN_VERSION: dict[str, Any] = {
    "component": {"type": "str", "required": True, "choices": list(COMPONENTS)},
    **{name: {"type": "str"} for name in ("match", "below", "line", "source", "id")},
    "also": {"type": "dict"},
    "unless": {"type": "list", "elements": "str"},
    "severity": {"type": "str", "required": True, "choices": list(SEVERITIES)},
    **{name: {"type": "str", "required": True} for name in ("matters", "remedy")},
}
#: What an inventory requires, as options of the actions that judge it.
NEEDS: dict[str, Any] = {
    "ignore": {"type": "list", "elements": "str", "default": []},
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


def version_faults(entries: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each of the user's known versions without a version."""
    return [
        f"preflight_known_versions[{number}] has neither match nor below with a version"
        for number, entry in enumerate(entries)
        if not numbers(str(entry.get("match") or entry.get("below") or ""))
    ]


def requirements(options: Mapping[str, Any]) -> Requirements:
    """Return what a group requires, of options with the types of NEEDS."""
    wanted = {name: options[name] for name in Requirements._fields}
    return Requirements(**{**wanted, "head_ports": {int(port): str(what) for port, what in options["head_ports"].items()}})


def rank_of(variables: Mapping[str, Any], name: str, host: str, number: int, in_run: bool) -> Rank:
    """Return the facts of one rank, or why there are none. `name` is the variable that the task registered."""
    facts = variables["hostvars"][host].get(name) if in_run else None
    if not isinstance(facts, dict):
        return Rank(host, number, {}, "it left the run before it was read" if in_run else "", in_run=in_run)
    failure = str(facts.get("found") or facts.get("msg") or "no reason given") if facts.get("failed") or facts.get("unreachable") else ""
    if failure.startswith("MODULE FAILURE"):
        failure = str(facts.get("module_stderr") or failure)
    return Rank(host, number, dict(facts), failure, bool(facts.get("unreachable")), remedy=str(facts.get("remedy") or ""))
