# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lookup: the source files of a pure-Python package of the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
name: python_sources
author:
  - The gb10.cluster authors (@gb10-cluster)
version_added: 0.1.0
short_description: The source files of a pure-Python package of the controller
description:
  - Reads the C(*.py) files of a package or module that is installed on the controller, so that M(gb10.cluster.agent) can use it on a node.
  - A package with compiled modules does not run on another machine. It counts as not installed.
options:
  _terms:
    description:
      - Names of top-level packages or modules.
    type: list
    elements: str
    required: true
seealso:
  - module: gb10.cluster.agent
"""

EXAMPLES = r"""
- name: Install the agent with JMESPath
  gb10.cluster.agent:
    group: "{{ lookup('gb10.cluster.serving_group') }}"
    head_addresses: [192.168.200.11]
    libraries: "{{ lookup('gb10.cluster.python_sources', 'jmespath') }}"
  become: true
"""

RETURN = r"""
_list:
  description:
    - One mapping for each name, relative path to text. It is empty if the package is not installed.
  type: list
  elements: dict
  sample:
    - jmespath/__init__.py: "from jmespath import parser\n"
"""

import importlib.machinery
import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase


def sources(name: str) -> dict[str, str]:
    """Return relative path -> text of a top-level package or module; empty if it is not installed or not pure Python. Raises OSError, ValueError."""
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not the name of a top-level Python package.")
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return {}
    paths = [spec.origin]
    for folder in spec.submodule_search_locations or []:
        paths = [os.path.join(where, each) for where, _folders, names in os.walk(folder) for each in names]
    if any(path.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)) for path in paths):
        return {}
    top = os.path.dirname(os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin)
    found = {}
    for path in sorted(path for path in paths if path.endswith(".py")):
        with open(path, encoding="utf-8") as handle:
            found[os.path.relpath(path, top)] = handle.read()
    return found


class LookupModule(LookupBase):
    """The lookup plugin."""

    def run(self, terms: list[Any], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the source files of each package."""
        del variables
        if kwargs:
            raise AnsibleError(f"python_sources does not support the option {', '.join(kwargs)}. It takes names of packages.")
        try:
            return [sources(str(term)) for term in terms]
        except (OSError, ValueError) as error:
            raise AnsibleError(f"python_sources: {error}") from error
