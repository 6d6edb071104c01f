# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: what each rank of a serving group lacks of a model, and how it gets to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest, offers
from ansible_collections.gb10.cluster.plugins.plugin_utils.filters import raises


@raises(manifest.ManifestError)
def weights_plan(manifests: Any, hosts: Any, source: str = "auto", reserve_bytes: int = 0) -> dict[str, Any]:
    """Return the plan; see module_utils._transfer.manifest.plan."""
    hosts = [str(host) for host in hosts]
    manifests = list(manifests)
    if len(manifests) != len(hosts):
        raise AnsibleFilterError(f"weights_plan: {len(manifests)} manifests for {len(hosts)} ranks; every rank has to be in this run")
    return manifest.plan(hosts, manifests, str(source), int(reserve_bytes))


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"weights_plan": weights_plan, "weights_ways": raises(manifest.ManifestError)(offers.ways), "human_bytes": manifest.human}
