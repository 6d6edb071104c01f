# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report of a serving group on the controller. See the module of the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._common import utc
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_data, report_page


class ActionModule(ActionBase):
    """Join what was read of all ranks with what is on the controller, and write one file."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the path, the sections and what is missing."""
        try:
            report_page.library()
        except ImportError as error:
            raise AnsibleActionFail(f"The report cannot be drawn on this computer: {error}. Install it: python -m pip install 'pygal>=3.1,<4'") from error
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            argument_spec={
                "group": {"type": "dict", "required": True},
                "status": {"type": "dict", "default": {}},
                "registers": {"type": "dict", "required": True},
                "receipts": {"type": "path", "required": True},
                "bench": {"type": "path", "required": True},
                "dest": {"type": "path", "default": ""},
                "profiles": {"type": "dict", "default": {}},
            }
        )
        name, hosts, variables = str(args["group"]["name"]), [str(each) for each in args["group"]["hosts"]], (task_vars or {}).get("hostvars") or {}
        folder = Path(args["receipts"]) / name
        dest = Path(args["dest"]) / f"{name}.html" if args["dest"] else folder / "report.html"
        known = [host for host in hosts if host in variables]
        results = {host: {key: dict(variables[host].get(args["registers"][key]) or {}) for key in ("fabric", "info")} for host in known}
        try:
            nodes, receipts = report_data.nodes_of(hosts, results, folder), report_data.receipts_in(folder)
            bench, made = report_data.bench_in(Path(args["bench"]), name), utc.stamp()[:16].replace("T", " ")
            page = report_data.plan(name, hosts, args["status"], nodes, receipts, args["profiles"], bench, made)
            dest.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(str(dest), report_page.render(page), 0o600)
        except OSError as error:
            where = error.filename or dest
            raise AnsibleActionFail(f"{name}: {where} on the controller cannot be written: {error.strerror}. Set report_dest to a folder that can.") from error
        lines = [page["sentence"], f"{name}: report {dest}", *(f"{name}: {each}" for each in page["notes"])]
        figures = {part["id"]: len(part["figures"]) for part in page["sections"]}
        return {"changed": False, "path": str(dest), "figures": figures, "notes": page["notes"], "lines": lines}
