# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter group_status; see plugins/module_utils/_watch/group.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: group_status
short_description: The state of a serving group, with one sentence
version_added: 0.2.0
description:
  - Decides from what the ranks and the API of the head show whether the group serves.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  _input:
    description: What M(gb10.cluster.vllm_rank_info) returned, one entry a rank, the head first. An entry of a rank that was not read may be empty.
    type: list
    elements: dict
    required: true
  name:
    description: The serving group's name.
    type: str
    required: true
  hosts:
    description: The ranks' names, the head first.
    type: list
    elements: str
    required: true
  liveness:
    description: What M(gb10.cluster.vllm_liveness) returned on the head; none if it did not run.
    type: dict
  log:
    description: What M(gb10.cluster.vllm_boot_log_info) returned on the head; none if it did not run.
    type: dict
"""

EXAMPLES = r"""
- name: Read what this rank has
  gb10.cluster.vllm_rank_info:
    group: pair1
  become: true
  register: info

- name: Print the state of the group
  ansible.builtin.debug:
    msg: "{{ (['spark-1', 'spark-2'] | map('extract', hostvars, 'info') | gb10.cluster.group_status('pair1', ['spark-1', 'spark-2'])).sentence }}"
"""

RETURN = r"""
_value:
  description:
    - C(state) is V(serves), V(busy), V(starting), V(unserved) (no completion came back, and nothing shows why), V(down),
      V(stopped) (on request), V(absent) or V(unknown). C(sentence) tells it with its cause and remedy.
    - C(faults) has one phrase for each rank that died or stopped. C(ask) tells whether a completion can tell more.
    - C(should_serve) is true if a release is current and nobody stopped the group. C(ok) is false if the group should serve and does not.
  type: dict
"""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._watch import group


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"group_status": group.group_status}
