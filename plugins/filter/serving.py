# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: what roles need of a profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, trial
from ansible_collections.gb10.cluster.plugins.plugin_utils.filters import raises
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import adjusted
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "adjusted_profile": raises(ProfileError)(adjusted),
            "collective_verdict": trial.verdict,
            "api_url": api_probe.api_url,
            "env_file_text": raises(compose.ServingError)(compose.env_file_text),
            "profile_paths": compose.host_paths,
        }
