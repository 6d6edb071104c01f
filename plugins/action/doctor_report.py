# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what was read of all ranks of a serving group, on the controller. See the module of the same name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._checks import page
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Group, Rank
from ansible_collections.gb10.cluster.plugins.module_utils._checks.judge import judge
from ansible_collections.gb10.cluster.plugins.module_utils._common import utc
from ansible_collections.gb10.cluster.plugins.module_utils._release.group import group_status
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import short
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_login import ssh_words
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import plain
from ansible_collections.gb10.cluster.plugins.plugin_utils.preflight_ranks import NEEDS, rank_of, requirements

_ROLES = ("sysctl", "readahead", "gpu", "docker")
_NAMES = ("preflight", "rank", "decision", "bandwidth", *_ROLES)
_SPEC: dict[str, Any] = {
    "group": {"type": "dict", "required": True},
    "register": {"type": "dict", "required": True, "options": {name: {"type": "str", "default": ""} for name in _NAMES}},
    "preflight": {"type": "dict", "default": {}, "apply_defaults": True, "options": NEEDS},
    "release": {"type": "str", "default": ""},
    "bandwidth_not": {"type": "str", "default": ""},
    "collective": {"type": "dict", "default": {}},
}


class ActionModule(ActionBase):
    """One instance reports its serving group."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Judge and return."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(argument_spec=_SPEC)
        variables = task_vars or {}
        wanted, names = options["group"], options["register"]
        hosts = [str(each) for each in wanted["hosts"]]
        in_run = set(variables.get("ansible_play_hosts_all") or hosts)
        read = {host: variables["hostvars"][host] if host in in_run else {} for host in hosts}
        ranks = [_rank(rank_of(variables, names["preflight"], host, number, host in in_run), read[host], names) for number, host in enumerate(hosts)]
        measured = {host: _ran(read[host], names["bandwidth"]) for host in hosts}
        name = str(wanted["name"])
        group = Group(
            name=name,
            ranks=ranks,
            needs=requirements(options["preflight"]),
            status=group_status([rank.info for rank in ranks], name, hosts),
            liveness=ranks[0].info.get("alive") or {},
            named=options["release"],
            bandwidth={host: each for host, each in measured.items() if "bandwidth_class" in each or each.get("failed")},
            bandwidth_not=options["bandwidth_not"],
            collective=options["collective"],
        )
        places = page.Places(*_inventory(variables), {host: ssh_words(variables["hostvars"][host], host) for host in hosts})
        verdict = judge(group, options["preflight"]["ignore"], preflight=False)
        report = plain(page.report(group, verdict, places, utc.stamp()))
        result.update(changed=False, verdict=page.verdict(report), lines=page.lines(report), report=report)
        return result


def _ran(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a task registered; empty if it did not run."""
    result = values.get(name) if name else None
    return dict(result) if isinstance(result, Mapping) and not result.get("skipped") else {}


def _rank(rank: Rank, values: Mapping[str, Any], names: Mapping[str, str]) -> Rank:
    """Return a rank with what the other readers returned. Why the first one failed stands for the others, which did not run."""
    first, info = _ran(values, names["preflight"]), _ran(values, names["rank"])
    return rank._replace(
        info=info or (first if first.get("unreachable") or first.get("failed") else {}),
        repairs=[str(each) for each in _ran(values, names["decision"]).get("repairs") or []],
        settings={role: _ran(values, names[role]) for role in _ROLES},
    )


def _inventory(variables: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the inventories as a user types them, and whether the playbooks are those of a checkout that is the current directory."""
    sources = [str(each) for each in variables.get("ansible_inventory_sources") or ()]
    shown = [short(Path(each)) if os.path.isabs(each) else each for each in sources]
    return shown, Path("playbooks/doctor.yml").is_file() and Path("site.yml").is_file()
