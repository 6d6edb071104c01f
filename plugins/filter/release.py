# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over releases; see plugins/module_utils/release.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: release
short_description: The name of a release, from what all its ranks are rendered from
version_added: 0.1.0
description:
  - Names a release by its content. 12 hex digits, the same on every rank, another one for any change on any of them.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  _input:
    description: What the ranks are rendered from, one entry a rank.
    type: list
    elements: raw
    required: true
"""

EXAMPLES = r"""
- name: Name the release
  ansible.builtin.debug:
    msg: "{{ [{'argv': ['vllm', 'serve']}, {'argv': ['vllm', 'serve', '--headless']}] | gb10.cluster.release }}"
"""

RETURN = r"""
_value:
  description: The release's name.
  type: str
  sample: 4f0c61d2a9be
"""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils import release


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"release": release.release_id}
