# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lookup: a variable with the default that meta/argument_specs.yml has."""

from __future__ import annotations

DOCUMENTATION = r"""
name: setting
author:
  - The gb10.cluster authors (@gb10-cluster)
short_description: A variable of the cluster or of a playbook, or its default
extends_documentation_fragment:
  - gb10.cluster.internal
description:
  - Returns the value that the host has for a variable, or the default of the collection's C(meta/argument_specs.yml), in the type that is written there.
  - A variable of a role is found as well, for another role that runs without it.
options:
  _terms:
    description:
      - Names of variables.
    type: list
    elements: str
    required: true
  host:
    description:
      - Host of the inventory whose variables are read, if they can be read without a password of a vault. Without it, the host that the task runs for.
    type: str
    default: ""
seealso:
  - plugin: gb10.cluster.serving_group
    plugin_type: lookup
"""

EXAMPLES = r"""
- name: Show where the weights are
  ansible.builtin.debug:
    msg: "{{ lookup('gb10.cluster.setting', 'gb10_model_store') }}"
"""

RETURN = r"""
_list:
  description:
    - One value for each name.
  type: list
  elements: raw
  sample:
    - /srv/models
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.plugin_utils.settings import setting


class LookupModule(LookupBase):
    """The lookup plugin."""

    def run(self, terms: list[Any], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return one value for each name."""
        known, host = variables or {}, kwargs.get("host", "")
        try:
            known = known["hostvars"][host] if host else known
        except AnsibleError as error:
            if "vault" not in str(error):
                raise
            Display().warning(f"The variables of the host {host} are not read: {str(error).strip().splitlines()[0]} Add --ask-vault-pass to read them.")
        return [setting(str(name), known, self._templar) for name in terms]
