# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module on its node, name what keeps it from running there, and make the texts of its result printable.

It is the action of the modules that meta/runtime.yml routes here, and has no module of its own.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._core import finding
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import ssh
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import NodeResults
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN


class ActionModule(NodeResults):
    """The action of a module that runs on a node."""

    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result, and print its `shown`.

        Sudo, Python and disk space are named in `msg` and `access` if they keep the module from running.
        """
        out: dict[str, Any] = super().run(tmp, task_vars)
        before = time.time()
        result, text, cause = self._once(task_vars)
        if cause is finding.PROMPT and getattr(self._connection, "transport", "") == "ssh":
            # A connection that was kept while a link was down blocks until TCP sends again. A new one answers if the node does.
            self._connection.reset()
            result, text, cause = self._once(task_vars)
        if cause is not None:
            found = result["access"] = finding.access_finding(cause, text)
            result.pop("exception", None)  # Ansible prints it in place of msg
            result["msg"] = finding.access_sentences(str((task_vars or {}).get("inventory_hostname")), found, cause)
            result.setdefault("failed", not result.get("unreachable"))
        if "time" in result:  # of the node: if the clocks agree, it is between these two values
            result["clock"] = {"before": before, "after": time.time()}
        if not self._task.async_val:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        if result.get("shown"):
            result["shown"] = [f"{(task_vars or {}).get('inventory_hostname')}: {line}" for line in result["shown"]]
            as_json = shown.wants_json(self._loader)
            if as_json or not RUN.shows:  # else the callback prints it
                shown.show(result["shown"], None, as_json)
        return {**out, **result}

    def _once(self, task_vars: dict[str, Any] | None) -> tuple[dict[str, Any], str, Finding | None]:
        """Run the module; return its result, what it reports of the connection, and the cause if the module did not run."""
        try:
            result = dict(self._execute_module(task_vars=task_vars, wrap_async=self._task.async_val))
        except AnsibleError as error:
            text = str(error)
            result = {"changed": False, "unreachable" if isinstance(error, AnsibleConnectionFailure) else "failed": True}
            cause = finding.cause_of(text)
            if cause is None:
                result = self._not_reached(error, task_vars or {})
                if not result:
                    raise
            return result, text, cause
        text = finding.output_of(result)
        return result, text, finding.cause_of(text)

    def _not_reached(self, error: AnsibleError, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the result for a node that SSH does not reach, with the cause and its remedy; empty if the error shows no known cause."""
        text, connection = str(error), self._connection
        is_failure = isinstance(error, AnsibleConnectionFailure) or "Host Key checking is enabled" in text
        if not is_failure or getattr(connection, "transport", "") != "ssh" or not ssh.cause(text):
            return {}
        host, address = str(variables.get("inventory_hostname")), str(connection.get_option("host") or "")
        way = (host, address, str(connection.get_option("remote_user") or ""), int(connection.get_option("port") or 22))
        what = {"found": ssh.found(text), "remedy": ssh.remedy(text, *way)}
        return {"changed": False, "unreachable": True, "msg": ssh.sentences(text, *way), **what}
