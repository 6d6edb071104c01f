# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what modules return from the nodes, with printable texts. Controller only.

Texts of containers, logs and models are in the results, and Ansible and the roles show them as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable

SHOW_SECONDS = 30.0  # between two lines of progress


def plain(value: Any) -> Any:
    """Return a value with printable texts."""
    if isinstance(value, str):
        shown = printable(value)
        return value if shown == value else shown
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # warnings and errors of ansible-core
        texts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{key: plain(each) for key, each in texts.items()})
    return value


class NodeResults(ActionBase):
    """The base of all actions that run modules on nodes."""

    def _execute_module(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Run a module and return its result with printable texts."""
        try:
            return dict(plain(super()._execute_module(*args, **options)))
        except AnsibleConnectionFailure as error:  # its text has what the SSH server has sent
            if printable(str(error)) == str(error):
                raise
            raise type(error)(printable(str(error))) from None
