# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter last_good; see plugins/module_utils/release.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: last_good
short_description: The newest release that passed its gate and that every rank keeps
version_added: 0.1.0
description:
  - The newest release that passed its gate and that every rank keeps.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  _input:
    description: What M(gb10.cluster.vllm_rank_info) returned, one entry a rank.
    type: list
    required: true
  but_not:
    description: A release that does not count.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read what this rank has
  gb10.cluster.vllm_rank_info:
    group: pair1
  become: true
  register: info

- name: The newest release that passed its gate and that every rank keeps
  ansible.builtin.debug:
    msg: "{{ groups['pair1'] | map('extract', hostvars, 'info') | gb10.cluster.last_good('4f0c61d2a9be') }}"
"""

RETURN = r"""
_value:
  description: The release's name; empty where there is none.
  type: str
"""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils import release


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"last_good": release.last_good}
