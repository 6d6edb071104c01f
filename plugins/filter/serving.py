# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: a profile to one rank's command line, environment and compose file, and to the KV pool that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, kv_estimate, trial
from ansible_collections.gb10.cluster.plugins.plugin_utils.filters import raises
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import adjusted
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError

FILTERS: dict[str, Callable[..., Any]] = {
    "adjusted_profile": adjusted,
    "collective_verdict": trial.verdict,
    "api_url": api_probe.api_url,
    "kv_pool": kv_estimate.make_plan,
    "render_rank": compose.render_rank,
    "env_file_text": compose.env_file_text,
    "profile_paths": compose.host_paths,
}


def _guard(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @raises(compose.ServingError, kv_estimate.PlanError, ProfileError)
    def run(*args: Any, **kwargs: Any) -> Any:
        for value in args[:1]:
            if not isinstance(value, (Mapping, list)):
                raise AnsibleFilterError(f"{name} needs a mapping, got {value!r}")
        return function(*args, **kwargs)

    return run


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {name: _guard(name, function) for name, function in FILTERS.items()}
