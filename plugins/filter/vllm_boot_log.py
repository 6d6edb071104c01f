# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter: the text of a vLLM boot log to facts and a verdict."""

from __future__ import annotations

DOCUMENTATION = r"""
name: vllm_boot_log
short_description: Read the text of a vLLM boot log into facts and a verdict
author: The gb10.cluster authors (@gb10-cluster)
description:
  - The same as M(gb10.cluster.vllm_boot_log_info) for a log that is already a string on the controller.
positional: _input
options:
  _input:
    description: The log.
    type: str
    required: true
  extra_classes:
    description: Your own failure classes, as in M(gb10.cluster.vllm_boot_log_info).
    type: list
    elements: dict
    default: []
seealso:
  - module: gb10.cluster.vllm_boot_log_info
"""

EXAMPLES = r"""
- name: Read a log file of the controller
  ansible.builtin.debug:
    msg: "{{ (lookup('ansible.builtin.file', 'boot.log') | gb10.cluster.vllm_boot_log).state }}"
"""

RETURN = r"""
_value:
  description: The return values of M(gb10.cluster.vllm_boot_log_info).
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.plugin_utils.filters import raises


@raises(ValueError)
def vllm_boot_log(log: Any, extra_classes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the facts of a log given as text or bytes."""
    if not isinstance(log, (str, bytes)):
        raise AnsibleFilterError(f"gb10.cluster.vllm_boot_log was given a {type(log).__name__}, expected the text of a log.")
    # Not at the top: looking for any filter of the collection loads this file, in the process of each task, and the parser's patterns cost 0.1 s.
    from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse

    return parse(log, extra_classes)


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by name."""
        return {"vllm_boot_log": vllm_boot_log}
