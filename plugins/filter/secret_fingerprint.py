# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter secret_fingerprint; see plugins/module_utils/release.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: secret_fingerprint
short_description: A fingerprint of secrets that names a release and gives nothing away
version_added: 0.1.0
description:
  - A fingerprint of secrets that names a release and gives nothing away.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  _input:
    description: The secrets by name.
    type: dict
    required: true
  salt:
    description: What makes the fingerprint differ between groups.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: A fingerprint of secrets that names a release and gives nothing away
  ansible.builtin.debug:
    msg: "{{ {'VLLM_API_KEY': vllm_tp2_api_key} | gb10.cluster.secret_fingerprint('pair1') }}"
"""

RETURN = r"""
_value:
  description: 12 hex digits; empty where there is no secret.
  type: str
"""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils import release


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {"secret_fingerprint": release.fingerprint}
