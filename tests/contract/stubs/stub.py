# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of test_serving.py: every module that meets a Docker Engine, an engine or the agent, on files in the folder GB10_STUB.

It is installed under the name of each module. `scenario.json` has under "HOST MODULE" what goes wrong: "dark" or a message.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

OLD = "aaaaaaaaaaaa"  # the release that serves


class ActionModule(ActionBase):
    """Do what the module of this name would do to the node."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        self.folder = Path(os.environ["GB10_STUB"])
        self.host = str((task_vars or {})["inventory_hostname"])
        self.scenario = json.loads((self.folder / "scenario.json").read_text(encoding="utf-8"))
        name = str(self._task.action).rpartition(".")[2]
        fault = self.scenario.get(f"{self.host} {name}", "")
        if fault == "dark":
            (self.folder / f"{self.host}.dark").touch()
        if (self.folder / f"{self.host}.dark").exists():
            raise AnsibleConnectionFailure("Failed to connect to the host via ssh")
        if fault:
            return {"failed": True, "msg": fault}
        return dict(getattr(self, name)(self._task.args))

    def note(self, text: str) -> None:
        """Keep what was done, in order."""
        if not self._task.check_mode:
            with (self.folder / "log").open("a", encoding="utf-8") as log:
                log.write(f"{self.host} {text}\n")

    def agent(self, args: dict[str, Any]) -> dict[str, Any]:
        """Install the agent, or remove it: the only task of the role `agent` in these tests."""
        marker = self.folder / f"{self.host}.agent"
        there, wanted = marker.exists(), args["state"] == "present"
        self.note(f"agent {args['state']}")
        if not self._task.check_mode and wanted:
            marker.touch()
        elif not self._task.check_mode:
            marker.unlink(missing_ok=True)
        return {"changed": wanted != there}

    def roce_test(self, args: dict[str, Any]) -> dict[str, Any]:
        """Test the collectives, without a problem."""
        self.note(f"tests {args['container']}")
        return {"changed": False, "result": {"backend": "gloo", "transport": "tcp", "hcas": [], "rows": [], "stage": "end", "problem": "", "text": ""}}

    def gb10(self, args: dict[str, Any]) -> dict[str, Any]:
        """Answer a subcommand with what the scenario has under its name, with its first argument, or under "HOST gb10 SUBCOMMAND".

        By default no rank is down, and there is evidence.
        """
        document = {"text": f"shown by {self.host}\n", "figures": ""}
        verb = args["argv"][0]
        if verb == "want":
            self.note(f"desires {args['input'].get('state', 'serving')} {args['input'].get('release', '')}".rstrip())
            return {"changed": True, "rc": 0, "document": {"generation": 7, "joined": False}}
        given = {**self.scenario.get(verb, {}), **self.scenario.get(" ".join(args["argv"][:2]), {}), **self.scenario.get(f"{self.host} gb10 {verb}", {})}
        answer = {"changed": False, "rc": 0, "document": document, "lines": [], "problems": [], **given}
        if not answer["rc"]:
            self.note(" ".join(args["argv"]))
        return {**answer, "failed": answer["rc"] == 1}

    def vllm_rank_info(self, args: dict[str, Any]) -> dict[str, Any]:
        """Read the node."""
        rank = ("one", "two").index(self.host)
        containers = [
            {"name": f"gb10-pair1-rank{rank}", "running": True, "status": "running", "exit_code": 0, "labels": {"gb10.cluster.release": release}}
            for release in self.scenario.get("runs", [])
        ]
        agent: dict[str, Any] = {"version": "1f0c" if (self.folder / f"{self.host}.agent").exists() else "", "state": {}, "converges": False}
        return {
            "changed": False, "current": OLD, "releases": [{"id": OLD, "good": True, "time": 0, "files": {}, "image": {}}], "containers": containers,
            "engine_error": self.scenario.get(f"{self.host} engine", ""), "agent": agent, "inputs": "",
            "key": {"msg": self.scenario[f"{self.host} key"]} if f"{self.host} key" in self.scenario else {"path": "api_key", "new": False},
            "receipt": {"release": OLD, "passed": True},
            "stopped": "", "processes": {"count": 1, "fault": ""}, "image": {"exists": True, "id": "sha256:1", "name": "i", "fingerprint": "f"},
            "weights": {}, "weights_differ": [], "memory": {}, "boot_log": {}, "records": {},
            "alive": {"outcome": "serves", "text": "a completion came back in 0.1 s"} if args.get("ask") and containers else {},
            "devices": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"],
        }  # fmt: skip
