# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What code on a node knows of the values of a profile, whose keys are in profiles/schema/profile.yml, and whether they fit its group. Pure.

It imports little, because every playbook begins with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# The fewest steps to a first boot: an image and weights that are downloaded, both pinned (docs/reference/profiles.md).
DEFAULT_PROFILE = "b12x-fp8-1m"

# Arguments that the collection writes itself, and the placeholder that puts them at a source's place in the order.
PLACEHOLDERS = {
    "served-model-name": "{served_names}",
    "host": "{host}",
    "port": "{port}",
    "tensor-parallel-size": "{ranks}",
    "distributed-executor-backend": "{executor}",
    "nnodes": "{ranks}",
    "node-rank": "{rank}",
    "master-addr": "{master_addr}",
    "master-port": "{master_port}",
    "headless": "{headless}",
}

SIZE = r"\d+[bkmgBKMG][bB]?"
# vLLM reads the key from VLLM_API_KEY; a key in a profile would end in compose files, process lists and logs.
SECRET_ARGS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
COMPOSE = "Docker Compose file"


def kind_of(data: Mapping[str, Any]) -> str:
    """Return what kind of recipe a file is; empty if it is none."""
    if isinstance(data.get("services"), Mapping):
        return COMPOSE
    if "model" not in data and "command" not in data:
        return ""
    eugr = str(data.get("recipe_version")) == "1" or "build_args" in data or "mods" in data
    return "recipe of eugr/spark-vllm-docker" if eugr else "recipe of sparkrun"


def human_int(value: object) -> int | None:
    """Read a count as vLLM does: 200000, "200000", "200k" (1000), "512K" (1024), "1M", "1m"; None when it is not one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", value.strip()) if isinstance(value, str) else None
    if not match:
        return None
    number, unit = match.groups()
    if "." in number and (not unit or unit.isupper()):
        return None
    factor = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[unit]
    return int(float(number) * factor) if "." in number else int(number) * factor


def store_mount(profile: Mapping[str, Any]) -> str | None:
    """Return the container path where ``{model_store}`` itself is mounted, or None."""
    mounts = (volume.split(":") for volume in profile["container"]["volumes"])
    return next((str(parts[1]) for parts in mounts if parts[0] == "{model_store}" and len(parts) > 1), None)


def group_fault(profile: Mapping[str, Any], size: int) -> str:
    """Return why a serving group of this many ranks cannot run a profile; empty if it can."""
    name, args, limits = profile["name"], profile["engine"]["args"], profile["ranks"]
    if size < limits["min"] or (limits["max"] is not None and size > limits["max"]):
        more = " or more" if limits["max"] is None else "" if limits["max"] == limits["min"] else f" to {limits['max']}"
        wanted = f"{limits['min']}{more}"
        remedy = "add hosts to the group" if size < limits["min"] else "remove hosts from the group"
        ranks = "rank" if wanted == "1" else "ranks"
        return f"profile {name} is made for {wanted} {ranks}, but the serving group has {size}: {remedy} or choose another profile"
    literal = args.get("tensor-parallel-size")
    tensor = size if literal in (None, PLACEHOLDERS["tensor-parallel-size"]) else human_int(literal)
    pipeline, data = (human_int(args.get(key, 1)) for key in ("pipeline-parallel-size", "data-parallel-size"))
    if None in (tensor, pipeline, data):
        return ""  # vLLM checks the value
    world = (tensor or 1) * (pipeline or 1)
    if world == size or data != 1:
        return ""
    return (
        f"profile {name}: tensor-parallel-size {tensor} x pipeline-parallel-size {pipeline} is {world}, but the serving group has {size} nodes "
        "with one GPU each: make them equal"
    )


def port_fault(profile: Mapping[str, Any], ssh_port: Any) -> tuple[str, str]:
    """Return the key of a port that two use on the head, and the sentence; empty if each port has one user."""
    engine = profile["engine"]
    ports = [("SSH (ansible_port)", "", ssh_port), ("the API", "engine.api.port", engine["api"]["port"]),
             ("the ranks' rendezvous", "engine.master_port", engine["master_port"])]  # fmt: skip
    if engine["executor"] == "ray":
        ports.append(("Ray", "engine.ray.port", engine["ray"]["port"]))
    seen: dict[int, str] = {}
    for user, key, port in ports:
        if int(port) in seen:
            return key, f"port {int(port)} is used by {seen[int(port)]} and by {user} ({key})"
        seen[int(port)] = f"{user} ({key})" if key else user
    return "", ""
