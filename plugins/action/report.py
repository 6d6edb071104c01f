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
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_data, report_page, report_sources

RESULTS = ("fabric", "info")


class ActionModule(ActionBase):
    """Join what was read of all ranks with what is on the controller, and write one file."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the path, the sections and what is missing."""
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            argument_spec={
                "group": {"type": "dict", "required": True},
                "status": {"type": "dict", "default": {}},
                "registers": {"type": "dict", "required": True},
                "receipts": {"type": "path", "required": True},
                "bench": {"type": "path", "required": True},
                "dest": {"type": "path", "default": ""},
                "profile": {"type": "dict", "required": True},
                "profiles": {"type": "dict", "default": {}},
            }
        )
        name, hosts = str(args["group"]["name"]), [str(each) for each in args["group"]["hosts"]]
        folder = Path(args["receipts"]) / name
        dest = Path(args["dest"] or folder) / f"{name}.html" if args["dest"] else folder / "report.html"
        variables = (task_vars or {}).get("hostvars") or {}
        results = {host: {key: _registered(variables, host, args["registers"][key]) for key in RESULTS} for host in hosts}
        try:
            report_page.library()
            nodes = report_sources.nodes_of(hosts, results, folder)
            receipts, note = report_sources.receipts_in(folder)
            bench = report_sources.bench_in(Path(args["bench"]), name)
            boots = report_data.merged(receipts, *(nodes[host].get("receipts") or [] for host in hosts))
            estimates = report_sources.estimates_of(args["profile"], boots)
            notes = [*filter(None, [note]), *(_note(host, nodes[host]) for host in hosts if nodes[host]["problem"])]
            made = utc.stamp()[:16].replace("T", " ")
            known = report_data.Known(args["profiles"], estimates)
            page = report_data.plan(name, hosts, args["status"], nodes, receipts, known, bench, report_sources.speeds_in(folder), made, notes)
            html = report_page.render(page)
            dest.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(str(dest), html, 0o600)
        except report_page.ReportError as error:
            raise AnsibleActionFail(f"{name}: {error}") from error
        except OSError as error:
            where = error.filename or dest
            raise AnsibleActionFail(f"{name}: {where} on the controller cannot be written: {error.strerror}. Set report_dest to a folder that can.") from error
        lines = [page["sentence"], f"{name}: report {dest}", *(f"{name}: {each}" for each in notes)]
        figures = {part["id"]: len(part["figures"]) for part in page["sections"]}
        return {"changed": False, "path": str(dest), "figures": figures, "notes": notes, "lines": lines}


def _registered(variables: Any, host: str, name: str) -> dict[str, Any]:
    """Return a registered result of a host; empty if it has none."""
    found = variables[host].get(name) if host in variables else None
    return dict(found) if found else {}


def _note(host: str, node: dict[str, Any]) -> str:
    """Return the sentence about a node that was not read."""
    shown = f"What is shown of it was read at {node['read_at']}." if node.get("read_at") else "Nothing is known of it."
    return f"{host} was not read: {node['problem']}. {shown}"
