# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Whether a profile fits its serving group: number of ranks, ports. Pure. It imports little, because every playbook begins with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import PLACEHOLDERS, human_int


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
