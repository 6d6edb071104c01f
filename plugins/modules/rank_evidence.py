#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of one rank, as one text without secrets."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_evidence
short_description: Collect what one rank's node shows of a serving group, without secrets
version_added: 0.1.0
description:
  - Collects the containers' inspection and log tails, processes, memory, addresses, RDMA links and the kernel's last messages into one text.
  - Values of the releases' env files, and whatever has the shape of a key or token, are masked.
  - Of each log the end is collected, at most O(tail) records and 4 MiB. The whole collection ends after O(timeout); the text names what is missing.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  group:
    description: The serving group's name.
    type: str
    required: true
  directory:
    description: Where the role P(gb10.cluster.vllm_tp2#role) keeps the group's files on the node.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
  tail:
    description: How many of the last lines of each log are collected. A line longer than 16 KiB counts once for each 16 KiB.
    type: int
    default: 2000
  timeout:
    description: How long the whole collection may take, in seconds. What is not collected by then is named in the text.
    type: float
    default: 30.0
  dest:
    description: A file on the controller that the text is written to, with mode 0600. It is returned when left out.
    type: path
  docker_socket:
    description: The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: Collect evidence
  gb10.cluster.rank_evidence:
    group: pair1
  register: evidence
"""

RETURN = r"""
path:
  description: Where the evidence was written on the controller.
  type: str
  returned: when O(dest) is given
  sample: /home/me/evidence/pair1-4f0c61d2a9be/rank0-spark-1.txt
text:
  description: The evidence, one section after another.
  type: str
  returned: without O(dest)
  sample: "== memory\nMemTotal: 127602688 kB\n"
"""

import glob
import json
import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils import redact
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, log

LOG_BYTES = 4 << 20
FILE_BYTES = 1 << 20
COMMANDS = {
    "processes, by memory": ["ps", "axo", "pid,ppid,stat,etime,rss,args", "--sort=-rss"],
    "addresses": ["ip", "-details", "address"],
    "RDMA links": ["rdma", "link"],
    "kernel, the last messages": ["journalctl", "--dmesg", "--lines=150", "--no-pager", "--output=short-iso"],
    "Docker Engine": ["docker", "version"],
}


def read_text(path: str) -> str:
    """Return a file's text; an unreadable one says so."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(FILE_BYTES)
    except OSError as error:
        return f"(cannot be read: {error})"


def log_tail(container: str, tail: int, path: str, deadline: float) -> str:
    """Return the end of a container's log, or why it cannot be read."""
    try:
        data, cut = log.text_of(client.logs(container, socket_path=path, tail=tail, deadline=deadline), LOG_BYTES)
    except client.DockerError as error:
        return f"({error})"
    # A line without its beginning goes: a secret in it would not be recognised.
    return (f"(the last {LOG_BYTES >> 20} MiB)\n" + data.partition(b"\n")[2].decode("utf-8", "replace")) if cut else data.decode("utf-8", "replace")


def container_sections(group: str, tail: int, path: str, deadline: float) -> list[tuple[str, str]]:
    """Return inspection and log tail of each container of the group."""
    out: list[tuple[str, str]] = []
    try:
        for entry in client.list_containers([f"gb10.cluster.group={group}"], path, client.left(deadline)):
            inspection = client.inspect(entry["Id"], path, client.left(deadline)) or {}
            name = str(inspection.get("Name", entry["Id"])).lstrip("/")
            shown: dict[str, Any] = {key: inspection.get(key) for key in ("Id", "Name", "State", "Image", "RestartCount", "Config", "HostConfig", "Mounts")}
            out.append((f"container {name}: inspection", json.dumps(shown, indent=1, sort_keys=True)))
            out.append((f"container {name}: log", log_tail(entry["Id"], tail, path, deadline)))
    except client.DockerError as error:
        out.append(("containers", f"({error})"))
    return out


def command_section(module: AnsibleModule, command: list[str], deadline: float) -> str:
    """Return a command's output, or why there is none."""
    left = deadline - time.monotonic()
    if left < 1.0:
        return "(not collected: the time limit is over)"
    code, out, err = module.run_command(["timeout", "--kill-after=1", f"{left:.0f}", *command])
    return str(out) + ("(cut off: the time limit is over)" if code in (124, 137) else "") or str(err)


def main() -> None:
    """Collect, mask and return."""
    module = AnsibleModule(
        argument_spec={
            "group": {"type": "str", "required": True},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "tail": {"type": "int", "default": 2000},
            "timeout": {"type": "float", "default": 30.0},
            "dest": {"type": "path"},
            "docker_socket": {"type": "path", "default": client.DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    deadline = time.monotonic() + module.params["timeout"]
    folder = os.path.join(module.params["directory"], module.params["group"])
    secrets: list[str] = []
    for path in glob.glob(os.path.join(folder, "releases", "*", "secrets.env")):
        secrets += redact.values_of(read_text(path))
    sections = container_sections(module.params["group"], module.params["tail"], module.params["docker_socket"], deadline)
    sections += [(path, read_text(path)) for path in sorted(glob.glob(os.path.join(folder, "current", "*.yaml")))]
    sections += [(path, read_text(path)) for path in ("/proc/meminfo", "/proc/buddyinfo", "/proc/loadavg", "/proc/swaps")]
    for title, command in COMMANDS.items():
        if module.get_bin_path(command[0]):
            sections.append((title, command_section(module, command, deadline)))
    text = "".join(f"== {title}\n{body.rstrip()}\n\n" for title, body in sections)
    module.exit_json(changed=False, text=redact.redact(text, secrets))


if __name__ == "__main__":
    main()
