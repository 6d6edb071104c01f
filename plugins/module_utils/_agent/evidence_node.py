# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The evidence of a node besides its containers: settings, versions and records, and figures that differ at any two times.

Each command is bounded in time and bytes. One that is not installed has one line.
"""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Mapping

from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import STATE
from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import capture
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import gids_of
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Runner
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead import GUARD_RECEIPT

FILE_BYTES = 1 << 20
OUTPUT = 256 << 10  # characters of a command
SECONDS = 8.0  # of a command
EVENTS = 3600  # seconds of the events of the Docker Engine
DEVICES, PATHS = 16, 256
WATCHED = "/watch.json"
SAMPLES = "/memory.json"  # history.py returns them

LIVE_COMMANDS = {
    "GPU": ["nvidia-smi", "-q", "-d", "MEMORY,UTILIZATION,TEMPERATURE,POWER,CLOCK,PERFORMANCE"],
    "previous boot, the last kernel messages": ["journalctl", "--dmesg", "--boot=-1", "--lines=300", "--no-pager", "--output=short-iso"],
}
#: Records and versions. The files of a section that match several patterns are named in each line.
FILES = {
    "DGX OS": ["/etc/dgx-release"],
    "NVIDIA driver": ["/proc/driver/nvidia/version"],
    "board and its firmware": ["/sys/class/dmi/id/product_name", "/sys/class/dmi/id/bios_version", "/sys/class/dmi/id/ec_firmware_release"],
    "firmware of the RDMA devices": ["/sys/class/infiniband/*/fw_ver"],
    "read-ahead in KiB": ["/sys/block/*/queue/read_ahead_kb"],
    "page cache guard": [GUARD_RECEIPT],
}


def read_text(path: str) -> str:
    """Return a file's text; the reason in parentheses if it cannot be read."""
    try:
        return bounded.text(path, FILE_BYTES)
    except OSError as error:
        return f"(cannot be read: {error})"


def command_section(run: Runner, command: list[str], deadline: float) -> str:
    """Return a command's output, or why there is none."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    if not shutil.which(command[0], path=places):
        return f"({command[0]} is not installed)"
    left = min(SECONDS, deadline - time.monotonic())
    if left < 1.0:
        return "(not collected: the time limit is over)"
    code, out, err = run(["timeout", "--kill-after=1", f"{left:.0f}", *command])
    text = out + ("(cut off: the time limit is over)" if code in (124, 137) else "") or err
    return text if len(text) <= OUTPUT else f"{text[:OUTPUT]}\n(cut off: longer than {OUTPUT >> 10} KiB)"


def files_section(patterns: list[str]) -> str:
    """Return the lines of the files that match."""
    paths = [path for pattern in patterns for path in sorted(glob.glob(pattern))][:PATHS]
    lines = [f"{path}: {line}" if len(paths) > 1 else line for path in paths for line in read_text(path).splitlines()]
    return "\n".join(lines) or f"({patterns[0]} does not exist)"


def gid_table() -> str:
    """Return the used entries of the GID tables: device, port, index, GID, type and interface."""
    found = capture.read_tree("/")
    hcas = sorted(path.split("/")[3] for path in found.dirs if path.endswith("/ports/1/gids"))
    rows = [f"{hca} 1 {row.index} {row.gid} {row.type} {row.netdev}" for hca in hcas for row in gids_of(found, hca)]
    return "\n".join(rows) or "(no RDMA device has a GID)"


def rails() -> list[str]:
    """Return the network devices of the RDMA devices."""
    return sorted({os.path.basename(path) for path in glob.glob("/sys/class/infiniband/*/device/net/*")})[:DEVICES]


def events_command() -> list[str]:
    """Return the command for the events of containers in the last hour. Labels and the commands of health checks are not part of them."""
    now = int(time.time())
    shown = "{{.Time}} {{.Action}} {{.Actor.Attributes.name}} {{.Actor.Attributes.exitCode}}"
    kinds = ("create", "start", "die", "oom", "kill", "stop", "restart", "destroy", "pause", "unpause")
    filters = [word for kind in kinds for word in ("--filter", f"event={kind}")]
    window = [f"--since={now - EVENTS}", f"--until={now}"]
    return ["docker", "events", *window, "--filter", "type=container", *filters, f"--format={shown}"]


def settings(folder: str, run: Runner, deadline: float, commands: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Return what stays the same unless a person or a run changes it. `folder` is the group's folder."""
    out = [(title, command_section(run, command, deadline)) for title, command in commands.items()]
    out += [(title, files_section(pattern)) for title, pattern in FILES.items()]
    out += [(path, read_text(path)) for path in _records(folder) if not path.endswith((WATCHED, SAMPLES))]
    out.append(("GID table", gid_table()))
    for netdev in rails():
        out += [(f"{title} of {netdev}", command_section(run, ["ethtool", *words, netdev], deadline)) for title, words in (("link", []), ("driver", ["-i"]))]
    return out


def _records(folder: str) -> list[str]:
    """Return the paths of the agent's records in the group's folder."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), STATE, "*.json")))


def figures(folder: str, run: Runner, deadline: float) -> list[tuple[str, str]]:
    """Return what differs at any two times: GPU, counters of the rails, events, the end of the previous boot, what the watch has counted."""
    out = [(path, read_text(path)) for path in _records(folder) if path.endswith(WATCHED)]
    out += [(title, command_section(run, command, deadline)) for title, command in LIVE_COMMANDS.items()]
    out.append(("Docker events of the last hour", command_section(run, events_command(), deadline)))
    return out + [(f"counters of {netdev}", command_section(run, ["ethtool", "-S", netdev], deadline)) for netdev in rails()]
