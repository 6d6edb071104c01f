# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: a profile to one rank's command line, environment and compose file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, trial
from ansible_collections.gb10.cluster.plugins.plugin_utils.filters import raises
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import adjusted
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError


def _guard(function: Callable[..., Any]) -> Callable[..., Any]:
    @raises(compose.ServingError, ProfileError)
    def run(*args: Any, **kwargs: Any) -> Any:
        for value in args[:1]:
            if not isinstance(value, (Mapping, list)):
                raise AnsibleFilterError(f"{function.__name__} needs a mapping, got {value!r}")
        return function(*args, **kwargs)

    return run


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "adjusted_profile": _guard(adjusted),
            "collective_verdict": _guard(trial.verdict),
            "api_url": _guard(api_probe.api_url),
            "render_rank": _guard(compose.render_rank),
            "env_file_text": _guard(compose.env_file_text),
            "profile_paths": _guard(compose.host_paths),
        }
