# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter rank_status; see plugins/module_utils/summary.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rank_status
short_description: The state of one rank, as lines
version_added: 0.1.0
description:
  - Returns container, release, engine, memory, pool and last verdict of one rank.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  _input:
    description: What M(gb10.cluster.vllm_rank_info) returned.
    type: dict
    required: true
  rank:
    description: The rank.
    type: int
    required: true
  group:
    description: The serving group's name.
    type: str
    required: true
  log:
    description: What M(gb10.cluster.vllm_boot_log_info) returned; none where the rank has no container.
    type: dict
  liveness:
    description: What M(gb10.cluster.vllm_liveness) returned on the head; none elsewhere.
    type: dict
  state:
    description: The state of the group, as P(gb10.cluster.group_status#filter) returns it.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Read what this rank has
  gb10.cluster.vllm_rank_info:
    group: pair1
  become: true
  register: info

- name: Say how rank 0 is
  ansible.builtin.debug:
    msg: "{{ info | gb10.cluster.rank_status(0, 'pair1') }}"
"""

RETURN = r"""
_value:
  description: The lines.
  type: list
  elements: str
"""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils import summary


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"rank_status": summary.rank_status}
