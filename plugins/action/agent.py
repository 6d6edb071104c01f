# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module of the same name, except on a node where nothing was touched since it ran with the same code and the same options."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import NodeResults

PLUGINS = Path(__file__).resolve().parents[1]


def digest(options: dict[str, Any]) -> str:
    """Return a digest of the module's options and of all the code it could send."""
    found = hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode())
    for path in [PLUGINS / "modules/agent.py", *sorted((PLUGINS / "module_utils").rglob("*.py"))]:
        found.update(f"{path.relative_to(PLUGINS)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def stands(known: dict[str, Any], options: dict[str, Any], stamp: str) -> bool:
    """Whether the agent that a node reported answers, has this stamp, and obeys this head and group."""
    owner = (known.get("state") or {}).get("owner") or {}
    head = options.get("head_id") or known.get("head_id")
    return known.get("stamp") == stamp and bool(head) and owner == {"group": (options.get("group") or {}).get("name"), "head": head}


class ActionModule(NodeResults):
    """The module's result, or the same from what the node reported."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare the stamps, and run the module if they differ."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        options = dict(self._task.args)
        known = options.pop("installed", None) or {}
        if options.get("state", "present") == "present":
            stamp = digest(options)
            if stands(known, options, stamp):
                names = ("version", "public_key", "head_id", "host_keys", "ssh_port")
                return {**result, "changed": False, "changes": [], "problems": [], "active": True, **{name: known.get(name) for name in names}}
            options["stamp"] = stamp
        return {**result, **self._execute_module(module_args=options, task_vars=task_vars)}
