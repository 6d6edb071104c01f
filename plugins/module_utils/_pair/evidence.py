# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The evidence of one rank: collected as one text without secrets, and kept on the node; with the memory of the node over time.

Each command is bounded in time and bytes. One that is not installed has one line.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Runner
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import capture
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import gids_of
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, releases
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import Series, parse_series, series_text
from ansible_collections.gb10.cluster.plugins.module_utils._node.node import read_json
from ansible_collections.gb10.cluster.plugins.module_utils._node.readahead import GUARD_RECEIPT
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import ADMIN_SOCKET, API_KEY, EVIDENCE, STATE

# --- The memory of this node over time, as the sampler reads it: the last half hour in steps of 5 s, and the last day in minutes.

MEMORY_FILE = "memory.json"
STEP, MOST = 5.0, 400
DAY_STEP, DAY_MOST = 60.0, 1440
ASK_SECONDS = 2.0  # for an answer of the agent
SAVE_SECONDS = 900.0  # a crash of the node loses as much of the day


class History:
    """Both series. Only the day survives a restart of the agent. Times are seconds since the epoch."""

    def __init__(self, state: Folder, wall: Callable[[], float] = time.time) -> None:
        """Keep the agent's folder of the group; it is read with the first sample."""
        self._state, self._wall, self._lock = state, wall, threading.Lock()
        self._recent, self._day = Series(STEP, MOST, ring=True), Series(DAY_STEP, DAY_MOST, ring=True)
        self._loaded, self._saved_at = False, 0.0

    def add(self, sample: Mapping[str, Any]) -> None:
        """Take a reading of the sampler, and write the day to disk if that is due."""
        now = self._wall()
        with self._lock:
            if not self._loaded:
                self._load(now)
            for series in (self._recent, self._day):
                series.add(now, sample.get("memory") or {})
        if abs(now - self._saved_at) >= SAVE_SECONDS:
            self._saved_at = now
            self.save()

    def _load(self, now: float) -> None:
        self._loaded, self._saved_at = True, now
        with contextlib.suppress(OSError):
            kept = self._state.load(MEMORY_FILE)
            self._day.samples = parse_series(kept.get("day") if isinstance(kept, dict) else None, DAY_MOST)

    def shown(self) -> dict[str, str]:
        """Return both series in the compact form of _node.memory."""
        with self._lock:
            return {"recent": self._recent.text(), "day": self._day.text()}

    def save(self) -> None:
        """Write the day to disk, if there is one. A disk that cannot be written costs no more than the samples of a restart."""
        text = self.shown()["day"]
        if text:
            with contextlib.suppress(OSError):
                self._state.save(MEMORY_FILE, {"day": text})


def memory_of(state: str, socket: str = ADMIN_SOCKET) -> dict[str, str]:
    """Return the series of this node's agent, or what it wrote to its folder `state` last, and as `source` which of them: agent, file or empty."""
    try:
        found: dict[str, Any] = protocol.call("memory", socket=socket, timeout=ASK_SECONDS)
        source = "agent"
    except protocol.ERRORS:  # none is installed, or it does not answer
        found = read_json(os.path.join(state, MEMORY_FILE))
        source = "file" if found else ""
    return {"recent": str(found.get("recent") or ""), "day": str(found.get("day") or ""), "source": source}


def memory_sections(memory: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return title and text of both series for evidence: no more samples than an agent keeps, and nothing else that a file has."""
    out = []
    for key, span, most in (("recent", "half hour", MOST), ("day", "day", DAY_MOST)):
        samples = parse_series(memory.get(key), most)
        title = f"memory of the last {span}: seconds since the epoch, MemFree, MemAvailable, SwapFree in MiB"
        out.append((title, series_text(samples) or "(no samples: the agent has kept none, or does not answer)"))
    return out


# --- The evidence of one rank: collected as one text without secrets, and kept on the node.

KEPT = 8
TAIL = 2000
SECONDS = 30.0
LOG_BYTES = 4 << 20
FILE_BYTES = 1 << 20
OUTPUT = 256 << 10  # characters of a command
COMMAND_SECONDS = 8.0
EVENTS = 3600  # seconds of the events of the Docker Engine
DEVICES, PATHS = 16, 256
WATCHED = "/watch.json"
SAMPLES = f"/{MEMORY_FILE}"  # History returns them
COMMANDS = {
    "processes, by memory": ["ps", "axo", "pid,ppid,stat,etime,rss,args", "--sort=-rss"],
    "addresses": ["ip", "-details", "address"],
    "RDMA links": ["rdma", "link"],
    "kernel, the last messages": ["journalctl", "--dmesg", "--lines=150", "--no-pager", "--output=short-iso"],
    "Docker Engine": ["docker", "version"],
    "kernel version": ["uname", "-a"],
    "kernel settings of memory": ["sysctl", "--all", "--pattern", "^vm\\."],
}
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
#: What follows in kept evidence differs at any two times.
FIGURES = "==== figures of this moment"


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
    left = min(COMMAND_SECONDS, deadline - time.monotonic())
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
    found = capture.Capture("/")
    rows = [f"{hca} 1 {row.index} {row.gid} {row.type} {row.netdev}" for hca in found.hcas() for row in gids_of(found, hca)]
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


def settings(folder: str, run: Runner, deadline: float) -> list[tuple[str, str]]:
    """Return what stays the same unless a person or a run changes it. `folder` is the group's folder."""
    out = [(title, command_section(run, command, deadline)) for title, command in COMMANDS.items()]
    out += [(title, files_section(pattern)) for title, pattern in FILES.items()]
    out += [(path, read_text(path)) for path in _records(folder) if not path.endswith((WATCHED, SAMPLES))]
    out.append(("GID table", gid_table()))
    for netdev in rails():
        out += [(f"{title} of {netdev}", command_section(run, ["ethtool", *words, netdev], deadline)) for title, words in (("link", []), ("driver", ["-i"]))]
    return out


def _records(folder: str) -> list[str]:
    """Return the paths of the agent's records in the group's folder."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), STATE, "*.json")))


def figures_of(folder: str, run: Runner, deadline: float) -> list[tuple[str, str]]:
    """Return what differs at any two times: GPU, counters of the rails, events, the end of the previous boot, what the watch has counted."""
    out = [(path, read_text(path)) for path in _records(folder) if path.endswith(WATCHED)]
    out += [(title, command_section(run, command, deadline)) for title, command in LIVE_COMMANDS.items()]
    out.append(("Docker events of the last hour", command_section(run, events_command(), deadline)))
    return out + [(f"counters of {netdev}", command_section(run, ["ethtool", "-S", netdev], deadline)) for netdev in rails()]


def log_tail(container: str, path: str, deadline: float) -> str:
    """Return the end of a container's log, or why it cannot be read."""
    try:
        data, cut = docker_api.log_text(docker_api.logs(container, socket_path=path, tail=TAIL, deadline=deadline), LOG_BYTES)
    except docker_api.DockerError as error:
        return f"({error})"
    # A line without its beginning goes: a secret in it would not be recognised.
    return (f"(the last {LOG_BYTES >> 20} MiB)\n" + data.partition(b"\n")[2].decode("utf-8", "replace")) if cut else data.decode("utf-8", "replace")


def container_sections(group: str, path: str, deadline: float, secrets: list[str]) -> list[tuple[str, str]]:
    """Return inspection and log tail of each container of the group. The inspection is masked: as a text it would show what JSON escapes."""
    out: list[tuple[str, str]] = []
    try:
        for entry in docker_api.list_containers([f"gb10.cluster.group={group}"], path, docker_api.left(deadline)):
            inspection = docker_api.inspect(entry["Id"], path, docker_api.left(deadline)) or {}
            name = str(inspection.get("Name", entry["Id"])).lstrip("/")
            shown: dict[str, Any] = {key: inspection.get(key) for key in ("Id", "Name", "State", "Image", "RestartCount", "Config", "HostConfig", "Mounts")}
            out.append((f"container {name}: inspection", json.dumps(redact.masked(shown, secrets), indent=1, sort_keys=True)))
            out.append((f"container {name}: log", log_tail(entry["Id"], path, deadline)))
    except docker_api.DockerError as error:
        out.append(("containers", f"({error})"))
    return out


def secrets_in(folder: str) -> list[str]:
    """Return the values of the env files in a group's folder: those of all releases, and the one of the API key."""
    paths = [*glob.glob(os.path.join(glob.escape(folder), "releases", "*", releases.SECRETS)), os.path.join(folder, API_KEY)]
    return [value for path in paths for value in bounded.env_values(read_text(path)).values() if value]


def collect(group: str, folder: str, run: Runner, memory: Mapping[str, str], docker_socket: str = docker_api.DEFAULT_SOCKET) -> tuple[str, str]:
    """Return the evidence of the group's rank on this node without secrets: what stays the same while nothing happens, and the figures of this moment.

    `folder` is the group's folder, `memory` the two series of History. Each section is masked by itself: the last word of one is not the name of what the
    next one begins with.
    """
    deadline = time.monotonic() + SECONDS
    secrets = secrets_in(folder)
    sections = container_sections(group, docker_socket, deadline, secrets)
    sections += [(path, read_text(path)) for path in sorted(glob.glob(os.path.join(glob.escape(folder), "current", "*.yaml")))]
    sections += [(path, read_text(path)) for path in ("/proc/meminfo", "/proc/buddyinfo", "/proc/loadavg", "/proc/swaps")]
    sections += settings(folder, run, deadline)
    figures = [*figures_of(folder, run, deadline), *memory_sections(memory)]
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
