# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of test_recovery.py: every module that meets a Docker Engine or an engine's boot, on files in the folder GB10_STUB.

It is installed under the name of each module. `scenario.json` lists what goes wrong: "HOST MODULE[:STATE] COUNT" to "dark" or a message, and
under "gate" one outcome for each boot.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Do what the module of this name would do to the node."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result."""
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        self.folder = Path(os.environ["GB10_STUB"])
        self.host = str(task_vars["inventory_hostname"])
        name = str(self._task.action).rpartition(".")[2]
        args = self._task.args
        detail = args.get("state") or args.get("phase")
        key = f"{self.host} {name}:{detail}" if detail else f"{self.host} {name}"
        fault = self.fault(key)
        if fault == "dark":
            (self.folder / f"{self.host}.dark").touch()
        if name != "kv_pool_gate":  # the gate runs on the controller, and reports a node that does not answer
            self.answer()
        if fault:
            return {"failed": True, "msg": fault}
        return dict(getattr(self, name)(args, task_vars))

    def fault(self, key: str) -> str:
        """Return what goes wrong with this call."""
        counts_path = self.folder / f"{self.host}.counts"
        counts = json.loads(counts_path.read_text(encoding="utf-8")) if counts_path.exists() else {}
        self.count = counts[key] = counts.get(key, 0) + 1
        counts_path.write_text(json.dumps(counts), encoding="utf-8")
        self.scenario = json.loads((self.folder / "scenario.json").read_text(encoding="utf-8"))
        return str(self.scenario.get(f"{key} {self.count}", ""))

    def answer(self) -> None:
        """Fail as a node that is away does."""
        if (self.folder / f"{self.host}.dark").exists():
            raise AnsibleConnectionFailure("Failed to connect to the host via ssh")

    def note(self, text: str) -> None:
        """Keep what was done, in order."""
        with (self.folder / "log").open("a", encoding="utf-8") as log:
            log.write(f"{self.host} {text}\n")

    def containers(self) -> list[dict[str, Any]]:
        """Return the node's containers."""
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((self.folder / "containers" / self.host).iterdir())]

    def docker_compose_v2(self, args: dict[str, Any], _vars: dict[str, Any]) -> dict[str, Any]:
        """Start or remove the node's container."""
        folder = self.folder / "containers" / self.host
        if args["state"] == "absent":
            for path in folder.iterdir():
                path.unlink()
            self.note("removes")
            return {"changed": True}
        release = Path(str(args["project_src"])).name
        rank = ["one", "two"].index(self.host)
        name = f"gb10-pair1-rank{rank}"
        labels = {"gb10.cluster.release": release}
        state = {"name": name, "running": True, "status": "running", "exit_code": 0, "finished_at": "", "labels": labels}
        (folder / name).write_text(json.dumps(state), encoding="utf-8")
        self.note(f"starts {release}")
        return {"changed": True}

    def readahead(self, args: dict[str, Any], _vars: dict[str, Any]) -> dict[str, Any]:
        """Do nothing."""
        return {"changed": False, "phase": args["phase"]}

    def rank_evidence(self, args: dict[str, Any], _vars: dict[str, Any]) -> dict[str, Any]:
        """Keep which containers the evidence is of."""
        self.note("evidence of " + (", ".join(f"{c['labels']['gb10.cluster.release']} {c['status']}" for c in self.containers()) or "nothing"))
        return {"changed": False, "path": args["dest"]}

    def vllm_rank_info(self, args: dict[str, Any], _vars: dict[str, Any]) -> dict[str, Any]:
        """Read the node."""
        group = Path(args["directory"]) / args["group"]
        current = os.path.basename(os.readlink(group / "current")) if (group / "current").is_symlink() else ""
        releases = []
        for folder in sorted((group / "releases").iterdir()):
            receipt = folder / "receipt.json"
            good = receipt.is_file() and json.loads(receipt.read_text(encoding="utf-8"))["passed"]
            files = {
                name: f"{(folder / name).stat().st_mode & 0o777:04o} {hashlib.sha256((folder / name).read_bytes()).hexdigest()}"
                for name in ("compose.yaml", "release.json")
            }
            releases.append({"id": folder.name, "good": good, "time": 0, "files": files, "image": {}})
        receipt = group / "current/receipt.json"
        containers = self.containers()
        running = [c["name"] for c in containers if c["running"]]
        if running and args.get("wait") is not None:
            return {"failed": True, "msg": f"{self.host}: {running[0]} still runs"}
        return {
            "changed": False, "current": current, "releases": releases, "containers": containers, "in_the_way": "".join(running), "engine_error": "",
            "receipt": json.loads(receipt.read_text(encoding="utf-8")) if receipt.is_file() else {},
            "stopped": "", "processes": {"count": 1, "fault": ""}, "image": {"exists": True, "id": "sha256:1", "name": "i", "fingerprint": "f"},
            "weights": {}, "weights_differ": [], "devices": [], "model_config": {}, "memory": {},
        }  # fmt: skip

    def kv_pool_gate(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Return the outcome that the scenario has for this boot."""
        outcome = self.scenario["gate"][self.count - 1]
        self.note(f"gate {args['release']}")
        for host in outcome.get("dark", []):
            (self.folder / f"{host}.dark").touch()
        if outcome.get("removed"):
            for path in (self.folder / "containers" / self.host).iterdir():
                path.unlink()
        passed = outcome["passed"]
        receipt = {"release": args["release"], "passed": passed}
        return {
            "changed": False, "failed": not passed, "passed": passed, "class": outcome.get("class", ""), "receipt": receipt, "pool": {},
            "msg": outcome.get("msg", "pair1 serves: every criterion holds."),
        }  # fmt: skip
