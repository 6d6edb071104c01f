# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter stale_releases; see plugins/module_utils/release.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: stale_releases
short_description: The releases to remove from a node
version_added: 0.1.0
description:
  - The releases to remove from a node.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  _input:
    description: What M(gb10.cluster.vllm_rank_info) returned.
    type: dict
    required: true
  keep:
    description: How many releases stay.
    type: int
    required: true
  protected:
    description: Releases that stay whatever their age.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Read what this rank has
  gb10.cluster.vllm_rank_info:
    group: pair1
  become: true
  register: info

- name: The releases to remove from a node
  ansible.builtin.debug:
    msg: "{{ info | gb10.cluster.stale_releases(3, ['4f0c61d2a9be']) }}"
"""

RETURN = r"""
_value:
  description: The names of the releases to remove.
  type: list
"""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils import release


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"stale_releases": release.stale_releases}
