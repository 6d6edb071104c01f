# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the value of a variable of the cluster, of a playbook, or of another role, with its one default. Controller only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common import validation
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import CLUSTER_SPEC, PLAYBOOK_SPEC

#: Folders that modules on the controller write to. A module runs in the folder of the playbook, and a relative path starts where ansible-playbook runs.
_FOLDERS = ("gb10_bench", "gb10_evidence", "gb10_receipts")


def spec_of(name: str) -> Mapping[str, Any]:
    """Return the option that documents a variable. Raises AnsibleError if there is none."""
    found = CLUSTER_SPEC.get(name) or PLAYBOOK_SPEC.get(name)
    if not found:
        from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_files import load_specs  # few variables are of another role

        found = next((options[name] for options in load_specs().values() if name in options), None)
    if not found:
        raise AnsibleError(f"{name} is not a variable of this collection")
    return found


def typed(name: str, value: Any, kind: str, elements: str = "") -> Any:
    """Return a value in the type of its option. Raises AnsibleError."""
    if value is None or kind == "raw":
        return value
    if kind == "path":
        return os.path.join((os.environ.get("PWD") or ".") if name in _FOLDERS else "", os.path.expanduser(str(value)))
    try:
        found = getattr(validation, f"check_type_{kind}")(value)
    except (TypeError, ValueError) as error:
        raise AnsibleError(f"{name} is {value!r}, expected {kind}") from error
    return [typed(name, each, elements) for each in found] if elements else found


def setting(name: str, variables: Mapping[str, Any], templar: Any) -> Any:
    """Return the value of a variable for the host whose variables these are, or its default if it is not set, null or empty."""
    spec, value = spec_of(name), templar.template(variables.get(name))
    return typed(name, spec.get("default") if value is None or value == "" else value, str(spec.get("type") or "raw"), str(spec.get("elements") or ""))
