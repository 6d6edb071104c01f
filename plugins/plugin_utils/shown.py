# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a playbook prints for people, or as JSON with ``-e output=json``. Controller only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.module_utils._bench import tools, verdict
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.module_utils._gate import cases
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import PLAYBOOK_SPEC, type_faults
from ansible_collections.gb10.cluster.plugins.module_utils._node import group_state
from ansible_collections.gb10.cluster.plugins.module_utils._profile import text as profiles
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import plain

#: What makes text of documents, by their schema.
TEXTS: dict[str, Callable[[list[Any]], list[str]]] = {
    "gb10.cluster/status/1": group_state.status_lines,
    "gb10.cluster/releases/1": lambda found: [line for each in found for line in group_state.kept_lines(each)],
    "gb10.cluster/rollback/1": lambda found: [line for each in found for line in group_state.rollback_lines(each)],
    "gb10.cluster/validate/1": lambda found: [line for each in found for line in profiles.validated_lines(each)],
    "gb10.cluster/logs/1": lambda found: [line for each in found for line in [*each["lines"], *each["problems"]] or ["No line matches."]],
    tools.SCHEMA: lambda found: [line for each in found for line in each["lines"]],
    cases.CHECK_SCHEMA: lambda found: [line for each in found for line in cases.check_lines(each)],
    verdict.SCHEMA: lambda found: [line for each in found for line in each["lines"]],
    "gb10.cluster/import/1": lambda found: [line for each in found for line in profiles.imported_lines(each)],
    "gb10.cluster/profiles/1": lambda found: [line for each in found for line in profiles.lines(each, Display().columns)],
}


def wants_json(loader: Any) -> bool:
    """Return whether the run was started with ``-e output=json``. Raises AnsibleActionFail if ``output`` has another value than text or json."""
    value = load_extra_vars(loader).get("output", "text")
    for _path, fault in type_faults("output", value, PLAYBOOK_SPEC["output"]):
        raise AnsibleActionFail(f"The extra variable output (-e) {fault}")
    return str(value) == "json"


def text_of(data: Any) -> list[str]:
    """Return the lines of a document, or of a list of documents of one schema. Raises AnsibleActionFail if no table is known for it."""
    documents = [data] if isinstance(data, Mapping) else list(data or [])
    kinds = {str(each.get("schema")) for each in documents if isinstance(each, Mapping)}
    if len(kinds) != 1 or not kinds.issubset(TEXTS):
        raise AnsibleActionFail(f"data needs lines, or documents of one schema of {', '.join(TEXTS)}.")
    return TEXTS[kinds.pop()](documents)


def show(lines: Sequence[str], data: Any, as_json: bool, color: str | None = None) -> None:
    """Print lines, or data as one line of JSON for each document, in one piece: other hosts print at the same time. A list has several documents."""
    if as_json:
        documents = [{"schema": "gb10.cluster/text/1", "lines": list(lines)}] if data is None else data if isinstance(data, (list, tuple)) else [data]
        lines = [json.dumps(plain(each), default=str) for each in documents]  # in ASCII, so nothing in it is obeyed by a terminal
    if lines:
        Display().display("\n".join(printable(str(line)) for line in lines), color=color)
