# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: what each rank of a serving group lacks of its models, and how it gets to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest


def weights_plan(seen: Any, hosts: Any, models: Any, source: str = "auto", reserve_bytes: int = 0) -> list[dict[str, Any]]:
    """Return the plan of each model; see module_utils._node.manifest.plans."""
    hosts, models, ranks = [str(host) for host in hosts], list(models), [[each.get("manifest") for each in results] for results in seen]
    if len(ranks) != len(hosts) or any(len(each) != len(models) for each in ranks):
        raise AnsibleFilterError(f"weights_plan: {len(ranks)} results for {len(hosts)} ranks and {len(models)} models; every rank has to be in this run")
    return manifest.plans(hosts, list(zip(*ranks)), [float(each.get("size_gib") or 0) for each in models], str(source), int(reserve_bytes))


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"weights_plan": weights_plan, "human_bytes": manifest.human}
