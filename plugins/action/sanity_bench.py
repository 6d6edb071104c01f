# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send concurrent prompts to a served model and judge the replies. See the module of the same name for its options."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import API_KEY
from ansible_collections.gb10.cluster.plugins.module_utils._common import utc
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, load_test
from ansible_collections.gb10.cluster.plugins.module_utils._release import files
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_sources, shown
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import NodeResults, plain

_PROBE = "gb10.cluster.vllm_probe"

AGENT_HINT = "If an agent still shows garbage, see docs/garble.md: its session, its fallback models, its parameters."


class ActionModule(NodeResults):
    """Find out what serves, ask it from its own node level by level, print the table."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return rows and table; failed where a reply is bad."""
        super().run(tmp, task_vars)
        self.vars = task_vars or {}
        _result, args = self.validate_argument_spec(
            argument_spec={
                "group": {"type": "str", "required": True},
                "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
                "prompts": {"type": "list", "elements": "raw", "default": []},
                "concurrency": {"type": "raw", "default": list(load_test.LEVELS)},
                "timeout": {"type": "float", "default": 600.0},
                "streams": {"type": "bool", "default": False},
                "receipts": {"type": "path", "default": ""},
            }
        )
        try:
            prompts, levels = load_test.prompts_of(args["prompts"]), load_test.levels_of(args["concurrency"])
        except load_test.SanityError as error:
            raise AnsibleActionFail(str(error)) from error
        group, folder = args["group"], f"{args['directory']}/{args['group']}"
        release = self._release(group, folder)
        as_json = shown.wants_json(self._loader)
        title = f"{group}: release {release.get('release')} of profile {release.get('profile')}, port {release['port']}"
        self._print(["", title, ""], as_json)
        rows: list[dict[str, Any]] = []
        for level, batch in load_test.batches(prompts, levels):
            rows.append(load_test.row_of(level, batch, self._ask(release, folder, batch, level, args["timeout"])))
            self._print(load_test.stream_lines(rows[-1]) if args["streams"] else load_test.table(rows)[0 if len(rows) == 1 else -1 :], as_json)
        drift = "" if args["streams"] else self._drift(release, folder, prompts, max(levels), args["timeout"])
        message = load_test.complaint(group, rows)
        lost = "" if message or not args["receipts"] or self._task.check_mode else self._keep(Path(args["receipts"]) / group, release, rows)
        verdict = message or f"{group}: {sum(row['requests'] for row in rows)} replies, none bad. {AGENT_HINT}"
        bad = load_test.fault_lines(rows)
        notes = [f"{group}: {each}" for each in (drift, load_test.cut(rows), lost) if each]
        self._print([*(["", *bad] if bad else []), "", *notes, *([] if message else [verdict])], as_json)
        if message:  # the faults are printed in full, without the good replies
            rows = [{key: value for key, value in row.items() if key != "streams"} for row in rows]
        if as_json:
            about = {"group": group, **{key: release.get(key) for key in ("release", "profile", "port")}}
            data = {"schema": "gb10.cluster/sanity/1", **about, "passed": not message, "sentence": verdict, "drift": drift, "rows": rows}
            shown.show([], data, as_json)
        return {"changed": False, "failed": bool(message), "rows": rows, "table": load_test.table(rows), "drift": drift, "msg": verdict}

    @staticmethod
    def _print(lines: list[str], as_json: bool) -> None:
        """Print lines, unless a document follows."""
        if not as_json:
            shown.show(lines, None, False)

    @staticmethod
    def _keep(folder: Path, release: dict[str, Any], rows: list[dict[str, Any]]) -> str:
        """Keep the speeds for report.yml; return a warning if they cannot be written."""
        try:
            report_sources.keep_speeds(folder, release, rows, utc.stamp())
        except OSError as error:
            return f"The speeds are not kept for report.yml: {folder} on the controller cannot be written ({error.strerror}). See vllm_tp2_receipts."
        return ""

    def _drift(self, release: dict[str, Any], folder: str, prompts: list[dict[str, Any]], level: int, timeout: float) -> str:
        """Ask one prompt without sampling, alone and among others, and compare."""
        victim = load_test.unsampled(prompts)
        others = [prompt for prompt in prompts if prompt is not victim][: level - 1]
        if victim is None or not others:
            return ""
        alone = self._ask(release, folder, [victim], 1, timeout)
        among = self._ask(release, folder, [victim, *others], level, timeout)
        return load_test.drift(alone[0], among[0], len(others)) if alone and among else ""

    def _release(self, group: str, folder: str) -> dict[str, Any]:
        """Return what the role has written about the release that serves. After a rollback the inventory differs from it."""
        path = f"{folder}/current/release.json"
        out = self._execute_module(module_name="ansible.builtin.slurp", module_args={"src": path}, task_vars=self.vars)
        if out.get("unreachable"):
            return dict(self._lost(out))
        if out.get("failed"):
            raise AnsibleActionFail(f"{group}: nothing is known to serve on {self.vars['inventory_hostname']} ({path}: {out.get('msg')}): run site.yml first.")
        release: dict[str, Any] = plain(json.loads(base64.b64decode(out["content"])))
        return release

    def _lost(self, out: dict[str, Any]) -> dict[str, Any]:
        raise AnsibleActionFail(f"{self.vars['inventory_hostname']} is not reachable: {out.get('msg')}")

    def _ask(self, release: dict[str, Any], folder: str, batch: list[Any], level: int, timeout: float) -> list[dict[str, Any]]:
        arguments: dict[str, Any] = {
            "url": api_probe.api_url(release), "requests": load_test.requests_of(batch), "concurrency": level, "timeout": timeout,
            "env_file": [f"{folder}/current/{files.SECRETS}", f"{folder}/{API_KEY}"],
        }  # fmt: skip
        out = self._execute_module(module_name=_PROBE, module_args=arguments, task_vars=self.vars)
        if out.get("unreachable"):
            self._lost(out)
        problem = out.get("msg") if out.get("failed") else out.get("error") or ("" if out.get("models") else "it lists no model")
        if problem:
            raise AnsibleActionFail(
                f"{self.vars['inventory_hostname']} does not serve: {problem}. See playbooks/status.yml for the reason, and start it with site.yml."
            )
        return list(out.get("replies") or [])
