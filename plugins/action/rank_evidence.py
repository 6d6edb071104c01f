# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect a rank's evidence on its node, or read what the agent kept there, and keep it on the controller. See the module of the same name."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent.evidence import FIGURES
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import NodeResults, plain


class ActionModule(NodeResults):
    """Run the module, write its text into `dest` on the controller; a node that cannot be read leaves a note there instead of nothing."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result and the path."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        src, dest = arguments.pop("src", None), arguments.pop("dest", None)
        if src:
            out = dict(self._execute_module(module_name="ansible.builtin.slurp", module_args={"src": src}, task_vars=task_vars))
            content = out.pop("content", None)
            text = None if content is None else base64.b64decode(content).decode("utf-8", "replace")
        else:
            out = dict(self._execute_module(module_args=arguments, task_vars=task_vars))
            text = out.pop("text", None)
        if text is None:
            text = f"No evidence could be read: {out.get('msg') or out.get('module_stderr') or 'no reason given'}\n"
        if not dest:
            return {**out, "text": text}
        path = Path(os.path.expanduser(str(dest)))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stable, mark, live = str(text).rpartition(f"{FIGURES}\n")
        parts = {path: stable, path.with_suffix(".figures.txt"): live} if mark and not src else {path: str(text)}
        for part, content in parts.items():
            write_atomically(str(part), plain(content), 0o600)
        return {**out, "path": str(path)}
