# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter start_reasons; see plugins/module_utils/release.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: start_reasons
short_description: Why a rank needs a (re)start
version_added: 0.1.0
description:
  - Why a rank needs a (re)start.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  _input:
    description: What M(gb10.cluster.vllm_rank_info) returned.
    type: dict
    required: true
  release:
    description: The release that is wanted.
    type: str
    required: true
  rank:
    description: The rank and its host, as the phrases name them.
    type: str
    required: true
  probe:
    description: What M(gb10.cluster.vllm_liveness) returned on the head. Only V(dead) and V(wedged) are a reason.
    type: dict
  forced:
    description: Whether the user asks for a restart.
    type: bool
    default: false
  judged:
    description:
      - What P(gb10.cluster.judged_receipt#filter) returned for this release. A rank that runs it does not need a start if only C(current) is lost.
    type: dict
"""

EXAMPLES = r"""
- name: Read what this rank has
  gb10.cluster.vllm_rank_info:
    group: pair1
  become: true
  register: info

- name: Why a rank needs a (re)start
  ansible.builtin.debug:
    msg: "{{ info | gb10.cluster.start_reasons('4f0c61d2a9be', 'rank 0 on spark-1') }}"
"""

RETURN = r"""
_value:
  description: One phrase for each reason; empty where nothing needs a start.
  type: list
"""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils import release


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"start_reasons": release.start_reasons}
