# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lookup: the program gb10 as one file on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
name: program
author:
  - The gb10.cluster authors (@gb10-cluster)
short_description: The program gb10 as one file
extends_documentation_fragment:
  - gb10.cluster.internal
description:
  - Makes the program that the role C(agent) copies to each rank. It is an archive of this collection's code that C(/usr/bin/python3) of the node runs.
  - The file is kept for the rest of the run. The same code makes the same file.
options:
  _terms:
    description:
      - One list with the names of pure-Python packages of the controller that the program contains, such as V(jmespath).
    type: list
    elements: list
seealso:
  - plugin: gb10.cluster.serving_group
    plugin_type: lookup
"""

EXAMPLES = r"""
- name: Copy the program
  ansible.builtin.copy:
    src: "{{ lookup('gb10.cluster.program').path }}"
    dest: /usr/local/sbin/gb10
    mode: "0755"
  become: true
"""

RETURN = r"""
_list:
  description:
    - One mapping with the C(path) of the file on the controller, and its C(sha256).
  type: list
  elements: dict
  sample:
    - path: /home/me/.ansible/tmp/ansible-local-4711/gb10
      sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gb10.cluster.plugins.plugin_utils import program


class LookupModule(LookupBase):
    """The lookup plugin."""

    def run(self, terms: list[Any], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return path and digest of the program."""
        del variables, kwargs
        libraries = [str(name) for term in terms for name in ([term] if isinstance(term, str) else term)]
        try:
            path = program.kept(libraries, constants.DEFAULT_LOCAL_TMP)
            return [{"path": path, "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}]
        except (OSError, ValueError) as error:
            raise AnsibleError(f"The program gb10 cannot be made: {error}") from error
