# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the rendered files of one rank, on the controller only. See the module of the same name for its options."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._profile import kv_estimate, values
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml


def compose_refusal(content: dict[str, Any]) -> str | None:
    """Return why Docker Compose refuses a file; empty if it accepts it, None if this computer has no Docker Compose."""
    docker = shutil.which("docker")
    if not docker:
        return None
    # The file of secrets is only on the nodes.
    services = {name: {key: value for key, value in service.items() if key != "env_file"} for name, service in content["services"].items()}
    try:
        if subprocess.run([docker, "compose", "version"], check=False, capture_output=True, timeout=60).returncode != 0:  # noqa: S603  fixed words
            return None
        words = [docker, "compose", "--project-name", "validate", "--file", "-", "config", "--quiet"]
        text = compose_yaml({"services": services})
        done = subprocess.run(words, check=False, capture_output=True, text=True, input=text, timeout=60)  # noqa: S603  fixed words, the file is stdin
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it could not be run ({error})"
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


class ActionModule(ActionBase):
    """Checks ports, KV pool and Docker Compose, then writes the files."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what was checked."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables.get("inventory_hostname", "localhost"))
        _result, args = self.validate_argument_spec(
            argument_spec={
                "group": {"type": "dict", "required": True},
                "profile": {"type": "dict", "required": True},
                "compose": {"type": "dict", "required": True},
                "env": {"type": "dict", "required": True},
                "secret_names": {"type": "list", "elements": "str", "default": [], "no_log": False},
                "memory": {"type": "dict", "required": True},
                "plan": {"type": "str", "choices": ["enforce", "report", "off"], "default": "enforce"},
                "allow_unsafe_memory": {"type": "bool", "default": False},
                "ssh_port": {"type": "int", "default": 22},
                "dest": {"type": "path"},
                "show": {"type": "bool", "default": False},
            }
        )
        # YAML cannot represent the tagged values of Ansible.
        args = json.loads(json.dumps(args))
        profile, group = args["profile"], args["group"]
        _key, clash = values.port_fault(profile, args["ssh_port"])
        if clash:
            raise AnsibleActionFail(f"{host}: {clash}: change it in the profile {profile['name']}.")
        pool, warnings = self._estimate(args)  # on every rank, so that no rank of a refused group writes its files
        refusal = compose_refusal(args["compose"])
        if refusal:
            raise AnsibleActionFail(
                f"{host}: Docker Compose refuses the file made from profile {profile['name']}: {refusal}."
                " Correct vllm_tp2_extra_args, vllm_tp2_extra_env or the profile."
            )
        checked = {
            "rank": group["rank"], "host": host, "image": profile["image"]["reference"], "secrets": args["secret_names"],
            "compose_check": "skipped, not installed here" if refusal is None else "passed", "pool": pool, "path": "",
        }  # fmt: skip
        text = compose_yaml(args["compose"])
        if args["show"]:
            checked["compose"] = text
        if args["dest"]:
            folder = Path(os.path.expanduser(args["dest"])) / group["name"] / f"rank{group['rank']}-{host}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "compose.yaml").write_text(text, encoding="utf-8")
                (folder / "environment").write_text("".join(f"{key}={value}\n" for key, value in args["env"].items()), encoding="utf-8")
            except OSError as error:
                raise AnsibleActionFail(f"The rendered files cannot be written: {error}; give another folder with -e validate_output=DIR.") from None
            checked["path"] = str(folder.parent)
        return {"changed": False, "checked": checked, "warnings": [] if group["rank"] else warnings}

    def _estimate(self, args: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the estimate and the plan's warnings. What may freeze a node is refused also if vllm_tp2_plan does not enforce the estimate."""
        ranks = [{"host": host, **args["memory"]} for host in args["group"]["hosts"]]
        try:
            plan = kv_estimate.make_plan(args["profile"], ranks, allow_unsafe=args["allow_unsafe_memory"])
        except kv_estimate.PlanError as error:
            raise AnsibleActionFail(f"{args['group']['name']}: {error}") from error
        if plan["unsafe"]:
            raise AnsibleActionFail(f"{args['group']['name']}: {plan['unsafe']}")
        if args["plan"] == "off":
            return {"expected_tokens": None, "needed_tokens": None, "text": "The KV pool is not estimated: vllm_tp2_plan is off."}, plan["warnings"]
        if plan["verdict"] == "refused" and args["plan"] == "enforce":
            raise AnsibleActionFail(
                f"{args['group']['name']}: {plan['msg']} The estimate is for the factory-default memory of the nodes. Set yours with -e validate_memory (KiB),"
                " or set vllm_tp2_plan=report."
            )
        return {"text": str(plan["msg"]), **{key: plan[key] for key in ("expected_tokens", "needed_tokens")}}, plan["warnings"]
