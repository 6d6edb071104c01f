# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The evidence of one rank: collected as one text without secrets, and kept on the node."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent import evidence_node, history
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import API_KEY, EVIDENCE
from ansible_collections.gb10.cluster.plugins.module_utils._agent.evidence_node import read_text
from ansible_collections.gb10.cluster.plugins.module_utils._agent.folder import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._common import env_file, redact
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, log
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Runner
from ansible_collections.gb10.cluster.plugins.module_utils._release import files

KEPT = 8
TAIL = 2000
SECONDS = 30.0
LOG_BYTES = 4 << 20
COMMANDS = {
    "processes, by memory": ["ps", "axo", "pid,ppid,stat,etime,rss,args", "--sort=-rss"],
    "addresses": ["ip", "-details", "address"],
    "RDMA links": ["rdma", "link"],
    "kernel, the last messages": ["journalctl", "--dmesg", "--lines=150", "--no-pager", "--output=short-iso"],
    "Docker Engine": ["docker", "version"],
    "kernel version": ["uname", "-a"],
    "kernel settings of memory": ["sysctl", "--all", "--pattern", "^vm\\."],
}
#: What follows in kept evidence differs at any two times.
FIGURES = "==== figures of this moment"


def log_tail(container: str, path: str, deadline: float) -> str:
    """Return the end of a container's log, or why it cannot be read."""
    try:
        data, cut = log.text_of(client.logs(container, socket_path=path, tail=TAIL, deadline=deadline), LOG_BYTES)
    except client.DockerError as error:
        return f"({error})"
    # A line without its beginning goes: a secret in it would not be recognised.
    return (f"(the last {LOG_BYTES >> 20} MiB)\n" + data.partition(b"\n")[2].decode("utf-8", "replace")) if cut else data.decode("utf-8", "replace")


def container_sections(group: str, path: str, deadline: float, secrets: list[str]) -> list[tuple[str, str]]:
    """Return inspection and log tail of each container of the group. The inspection is masked: as a text it would show what JSON escapes."""
    out: list[tuple[str, str]] = []
    try:
        for entry in client.list_containers([f"gb10.cluster.group={group}"], path, client.left(deadline)):
            inspection = client.inspect(entry["Id"], path, client.left(deadline)) or {}
            name = str(inspection.get("Name", entry["Id"])).lstrip("/")
            shown: dict[str, Any] = {key: inspection.get(key) for key in ("Id", "Name", "State", "Image", "RestartCount", "Config", "HostConfig", "Mounts")}
            out.append((f"container {name}: inspection", json.dumps(redact.masked(shown, secrets), indent=1, sort_keys=True)))
            out.append((f"container {name}: log", log_tail(entry["Id"], path, deadline)))
    except client.DockerError as error:
        out.append(("containers", f"({error})"))
    return out


def secrets_in(folder: str) -> list[str]:
    """Return the values of the env files in a group's folder: those of all releases, and the one of the API key."""
    paths = [*glob.glob(os.path.join(glob.escape(folder), "releases", "*", files.SECRETS)), os.path.join(folder, API_KEY)]
    return [value for path in paths for value in env_file.parse(read_text(path)).values() if value]


def collect(group: str, folder: str, run: Runner, memory: Mapping[str, str], docker_socket: str = client.DEFAULT_SOCKET) -> tuple[str, str]:
    """Return the evidence of the group's rank on this node without secrets: what stays the same while nothing happens, and the figures of this moment.

    `folder` is the group's folder, `memory` what history.py returns. Each section is masked by itself: the last word of one is not the name of what the
    next one begins with.
    """
    deadline = time.monotonic() + SECONDS
    secrets = secrets_in(folder)
    sections = container_sections(group, docker_socket, deadline, secrets)
    sections += [(path, read_text(path)) for path in sorted(glob.glob(os.path.join(glob.escape(folder), "current", "*.yaml")))]
    sections += [(path, read_text(path)) for path in ("/proc/meminfo", "/proc/buddyinfo", "/proc/loadavg", "/proc/swaps")]
    sections += evidence_node.settings(folder, run, deadline, COMMANDS)
    figures = [*evidence_node.figures(folder, run, deadline), *history.sections(memory)]
    every = [*sections, *figures]
    texts = redact.redact_each([part for section in every for part in section], secrets)
    shown = [f"== {title}\n{body.rstrip()}\n\n" for title, body in zip(texts[::2], texts[1::2])]
    return "".join(shown[: len(sections)]), "".join(shown[len(sections) :])


def joined(text: str, figures: str) -> str:
    """Return both parts of collect() as one text."""
    return f"{text}{FIGURES}\n\n{figures}"


def file_name(rank: int, host: str) -> str:
    """Return the name of a rank's file in the folder of a label."""
    return f"rank{rank}-{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.txt"


def labels(folder: str) -> list[str]:
    """Return the labels of the evidence that is kept below a group's folder, the newest first. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return Folder(folder, EVIDENCE).newest()
    return []


def keep(folder: str, label: str, name: str, text: str) -> None:
    """Write evidence below a group's folder, mode 0600, and remove all labels but the newest ones. Raises OSError."""
    Folder(folder, EVIDENCE, label).write(name, text)
    Folder(folder, EVIDENCE).prune(KEPT, label)
