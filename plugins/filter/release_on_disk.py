# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter release_on_disk; see plugins/module_utils/release.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: release_on_disk
short_description: The release whose Compose file can take the running containers down
version_added: 0.1.0
description:
  - The release whose Compose file can take the running containers down.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  _input:
    description: What M(gb10.cluster.vllm_rank_info) returned.
    type: dict
    required: true
  fallback:
    description: What to return where the node keeps none.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read what this rank has
  gb10.cluster.vllm_rank_info:
    group: pair1
  become: true
  register: info

- name: The release whose Compose file can take the running containers down
  ansible.builtin.debug:
    msg: "{{ info | gb10.cluster.release_on_disk('4f0c61d2a9be') }}"
"""

RETURN = r"""
_value:
  description: The release's name.
  type: str
"""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils import release


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"release_on_disk": release.release_on_disk}
