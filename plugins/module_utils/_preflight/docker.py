# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of the Docker Engine, its containers, and the ports of the head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.findings import FindingCollector, Rank, Requirements

LABEL = "gb10.cluster.group"


def check_engine(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """Whether the Docker Engine answers."""
    engine = rank.facts["docker"]
    if engine["error"]:
        found.skip(["image_store_parity", "stale_containers"], rank.host, "the Docker Engine does not answer")
        if engine["installed"]:
            found.add("docker", "warning", rank.host, engine["error"])
        else:
            found.skip(["docker"], rank.host, "the Docker Engine is not installed; the docker role installs it")


def check_memlock(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """The limit of locked memory that containers inherit."""
    limit = rank.facts["memlock"]
    if not limit["known"]:
        found.skip(["memlock"], rank.host, "the limits of the Docker daemon cannot be read")
    elif limit["bytes"] is not None and not limit["may_raise"]:
        text = f"the Docker daemon can lock {limit['bytes'] // 1024} KiB and cannot raise this limit (no CAP_SYS_RESOURCE)"
        found.add("memlock", "warning", rank.host, text)


def check_gpu_devices(found: FindingCollector, rank: Rank, _needs: Requirements) -> None:
    """Whether a running container keeps its GPU when systemd reloads its units."""
    engine = rank.facts["docker"]
    if engine["cgroup_driver"] == "systemd" and not engine["cdi"] and rank.facts["driver"]["present"]:
        found.add("gpu_reload", "warning", rank.host, "the cgroup driver of Docker is systemd, and /etc/cdi and /run/cdi have no specification of the GPU")


def _serving(rank: Rank, needs: Requirements) -> list[Mapping[str, Any]]:
    """Return the containers of the serving group that run on a rank."""
    return [each for each in rank.facts["containers"] if each["labels"].get(LABEL) == needs.group and each["state"] in ("running", "restarting")]


def check_containers(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """Containers of other owners that use the memory or the GPU, or will after a reboot."""
    for each in rank.facts["containers"]:
        name, state, group = each["name"], each["state"], each["labels"].get(LABEL)
        running = state in ("running", "restarting", "paused")
        remove = f"docker rm -f {name} (or move it to another node)"
        if group == needs.group:
            continue
        if group and running:
            text = f"the container {name} of the serving group {group} is {state} on this node, which belongs to another group"
            found.add("stale_containers", "error", rank.host, text, remedy=remove)
        elif running and each["vllm"]:
            text = f"the container {name} ({each['image']}) is {state} and looks like a vLLM that this collection does not manage"
            found.add("stale_containers", "error", rank.host, text, remedy=remove)
        elif running and each["gpu"]:
            text = f"the container {name} ({each['image']}) is {state} and uses the GPU"
            remedy = f"docker stop {name}, or lower gpu_memory_utilization by the share of this container"
            found.add("stale_containers", "warning", rank.host, text, "the engine lacks the memory that it uses", remedy)
        elif not running and each["vllm"] and each["restart"] in ("always", "unless-stopped"):
            text = f"the container {name} is {state} with the restart policy {each['restart']}"
            found.add("stale_containers", "warning", rank.host, text, "it starts at the next reboot, next to the engine", f"docker update --restart=no {name}")


def check_partial_group(found: FindingCollector, ranks: Sequence[Rank], needs: Requirements) -> None:
    """A serving group that runs on some of its ranks."""
    answering = [rank for rank in ranks if not rank.facts["docker"]["error"]]
    running = [rank.host for rank in answering if _serving(rank, needs)]
    stopped = [rank.host for rank in answering if rank.host not in running]
    if running and stopped and len(answering) == needs.size:
        text = f"the serving group {needs.group} runs on {', '.join(running)} and not on {', '.join(stopped)}"
        matters = "a rank that lost its peer holds memory and ports, and a new peer never joins it"
        found.add("stale_containers", "warning", running, text, matters, "run playbooks/stop.yml, or site.yml, which replaces it")


def check_ports(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """Ports of the head that another process uses."""
    own = [each["name"] for each in _serving(rank, needs)]
    for entry in rank.facts["listening"] if rank.rank == 0 else ():
        port, container, process = entry["port"], entry.get("container") or "", entry.get("process") or ""
        # Without a cgroup, a process that looks like an engine belongs to the rank that runs.
        if port not in needs.head_ports or container in own or (own and not container and re.search(r"vllm|python|ray", process, re.IGNORECASE)):
            continue
        user = f"the container {container}" if container else f"{process or 'a process'} (pid {entry.get('pid', '?')})"
        text = f"port {port} ({needs.head_ports[port]}) is used by {user}, which listens on {entry['address']}"
        found.add("ports_free", "error", rank.host, text)
