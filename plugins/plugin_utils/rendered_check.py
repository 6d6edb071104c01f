# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: check what one rank is rendered to, without its node: ports, KV pool, Docker Compose. Controller only."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._profile import kv_estimate, values
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.serving_plan import Place, estimate


def compose_refusal(content: Mapping[str, Any]) -> str | None:
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


def pool_of(place: Place, memory: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the estimate for nodes with this memory, and warnings. Raises AnsibleActionFail if it refuses the boot."""
    name, remedy = place.group["name"], ""
    try:
        plan, refused = estimate(place, [{"host": host, **memory} for host in place.hosts])
    except kv_estimate.PlanError as error:
        raise AnsibleActionFail(f"{name}: {error}") from error
    if refused:
        if not plan["unsafe"]:
            remedy = " The estimate is for the factory-default memory of the nodes. Set yours with -e validate_memory (KiB), or set vllm_tp2_plan=report."
        raise AnsibleActionFail(f"{name}: {refused}{remedy}")
    if place.options["plan"] in ("off", False):
        return {"expected_tokens": None, "needed_tokens": None, "text": "The KV pool is not estimated: vllm_tp2_plan is off."}, plan["warnings"]
    return {"text": str(plan["msg"]), **{key: plan[key] for key in ("expected_tokens", "needed_tokens")}}, plan["warnings"]


def check(place: Place, host: str, rendered: Mapping[str, Any], memory: Mapping[str, Any], ssh_port: int, dest: str) -> tuple[dict[str, Any], list[str]]:
    """Return what was checked of a rank, with the text of its Compose file, and warnings. Write the files if `dest` is a folder.

    :param rendered: what `rank_of` returned.
    :param memory: the assumed ``total_kib`` and ``available_kib`` of each node.
    :raises AnsibleActionFail: the rank is refused. Nothing is written then.
    """
    profile, group = place.profile, place.group
    _key, clash = values.port_fault(profile, ssh_port)
    if clash:
        raise AnsibleActionFail(f"{host}: {clash}: change it in the profile {profile['name']}.")
    pool, warnings = pool_of(place, memory)  # on every rank, so that no rank of a refused group writes its files
    refusal = compose_refusal(rendered["compose"])
    if refusal:
        raise AnsibleActionFail(
            f"{host}: Docker Compose refuses the file made from profile {profile['name']}: {refusal}."
            " Correct vllm_tp2_extra_args, vllm_tp2_extra_env or the profile."
        )
    checked = {
        "rank": group["rank"], "host": host, "image": profile["image"]["reference"], "secrets": rendered["secret_names"],
        "compose_check": "skipped, not installed here" if refusal is None else "passed", "pool": pool, "path": "", "compose": compose_yaml(rendered["compose"]),
    }  # fmt: skip
    if dest:
        folder = Path(dest) / group["name"] / f"rank{group['rank']}-{host}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "compose.yaml").write_text(checked["compose"], encoding="utf-8")
            (folder / "environment").write_text("".join(f"{key}={value}\n" for key, value in rendered["env"].items()), encoding="utf-8")
        except OSError as error:
            raise AnsibleActionFail(f"The rendered files cannot be written: {error}; give another folder with -e validate_output=DIR.") from None
        checked["path"] = str(folder.parent)
    return checked, [] if group["rank"] else warnings
