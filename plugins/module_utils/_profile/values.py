# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What code on a node knows of the values of a profile. The keys are in profiles/schema/profile.yml."""

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
