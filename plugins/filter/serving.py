# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: the estimate of a KV pool, and what roles need of a profile; documents and texts for people.

Ansible reports an error of a filter with its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, kv_estimate, text, trial
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import adjusted


def kv_pool_plan(profile: Any, ranks: Sequence[Mapping[str, Any]], version: str | None = None, allow_unsafe_memory: bool = False) -> dict[str, Any]:
    """Return the estimate; see module_utils._profile.kv_estimate.make_plan."""
    if not isinstance(profile, Mapping):
        raise AnsibleFilterError("kv_pool_plan was not given a resolved profile, expected one as lookup('gb10.cluster.profile', NAME) returns it")
    return kv_estimate.make_plan(profile, ranks, version, allow_unsafe_memory)


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "adjusted_profile": adjusted,
            "api_url": api_probe.api_url,
            "collective_verdict": trial.verdict,
            "env_file_text": compose.env_file_text,
            "kv_pool_plan": kv_pool_plan,
            "printable": lambda value: printable(str(value)),
            "profile_paths": compose.host_paths,
            "profiles_document": text.document,
        }
