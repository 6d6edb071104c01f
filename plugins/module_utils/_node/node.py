# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one rank has on its node: releases, containers, processes, weights, memory. Reads only."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import Run, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, gpu, images, manifest
from ansible_collections.gb10.cluster.plugins.module_utils._node import images as layers_engine
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import held_by
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import RELEASE_LABEL


class Process(NamedTuple):
    """One row of the process table."""

    pid: int
    parent: int
    state: str  # one letter, as in /proc/PID/stat
    comm: str  # at most 15 characters, also present for a zombie
    command: str  # empty for a zombie
    ticks: int = 0  # of CPU time, of the kernel's clock

    @property
    def title(self) -> str:
        """The name that a person knows the process by."""
        first = self.command.split(" ", 1)[0]
        return first if first.startswith("VLLM::") else self.comm

    @property
    def engine(self) -> bool:
        """Whether the process belongs to vLLM: the API server, the engine core or a worker."""
        return self.comm.startswith("VLLM::") or "vllm" in self.command.lower() or "multiprocessing.spawn" in self.command

    @property
    def alive(self) -> bool:
        """Whether the process still exists as more than an entry of the table."""
        return self.state not in ("Z", "X", "x")


def process_of(pid: int, stat: str) -> Process | None:
    """Return the process of one /proc/PID/stat text, without its command line; None if the text is not valid. The name may hold blanks and parentheses."""
    _pid, _open, rest = stat.partition("(")
    comm, close, tail = rest.rpartition(")")
    fields = tail.split()
    if not close or len(fields) < 2 or not fields[1].isdigit():
        return None
    ticks = sum(int(field) for field in fields[11:13] if field.isdigit())
    return Process(pid, int(fields[1]), fields[0], comm, "", ticks)


def process_tree(table: Iterable[Process], main: int) -> list[Process]:
    """Return a container's main process and its descendants, the main process first; empty if it is not in the table."""
    children: dict[int, list[Process]] = {}
    out: list[Process] = []
    for process in table:
        children.setdefault(process.parent, []).append(process)
        if process.pid == main:
            out.append(process)
    for process in out:  # grows while it is read
        out.extend(each for each in children.get(process.pid, []) if each.pid != main)
    return out


def engine_fault(processes: list[Process], judged: bool) -> str:
    """Return what is wrong with the engine's processes as a phrase; empty if nothing is.

    `judged` tells that this container has passed its gate, so that its engine processes have existed.
    """
    if not processes:
        return ""
    main = processes[0]
    for process in processes:
        if process.state in ("T", "t") and (process is main or process.engine):
            return f"the engine process is stopped (PID {process.pid}, {process.title})"
        if process.state == "Z" and process.comm.startswith("VLLM::"):
            return f"the engine process is dead (PID {process.pid}, {process.title})"
    if judged and main.engine and not any(each.alive and each.engine for each in processes[1:]):
        return f"the engine process is gone, and only its parent runs (PID {main.pid}, {main.title})"
    return ""


NO_IMAGE = {"exists": False, "id": "", "name": "", "fingerprint": "", "repo_digests": []}
DEVICES = ("/dev/infiniband", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs*")  # what RDMA needs; umad and issm manage a subnet
FILES = ("compose.yaml", "release.json")
POLL_SECONDS = 1.0
SMI_SECONDS = 5.0  # a driver in trouble never answers


def read_json(path: str) -> dict[str, Any]:
    """Return a JSON file's mapping; an absent or broken one reads as empty."""
    return Node("/").mapping(path)


def text_of(path: str) -> str:
    """Return the content of a small file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(1 << 16)
    except OSError:
        return ""


def process_table(root: str = "/proc") -> list[Process]:
    """Return the node's processes. One that ends meanwhile is left out."""
    found = [process_of(int(name), text_of(os.path.join(root, name, "stat"))) for name in os.listdir(root) if name.isdigit()]
    return [process for process in found if process is not None]


def command_of(pid: int, root: str) -> str:
    """Return a process's command line; empty for a zombie."""
    return text_of(os.path.join(root, str(pid), "cmdline")).replace("\0", " ").strip()


def look_at_processes(containers: list[dict[str, Any]], receipt: dict[str, Any], root: str = "/proc") -> dict[str, Any]:
    """Return the number of engine processes, their CPU time, and what is wrong with the first one that is at fault."""
    judged = docker_api.stamp_to_ns(str(receipt.get("time") or "")) if receipt.get("passed") else 0
    out: dict[str, Any] = {"count": 0, "fault": "", "cpu_seconds": 0.0}
    table = process_table(root)
    for state in containers:
        if not state["running"]:
            continue
        # The command line of a process in trouble can block its reader: only those of the container are read.
        found = [each._replace(command=command_of(each.pid, root)) for each in process_tree(table, state["pid"])]
        out["count"] += len([process for process in found if process.engine])
        out["cpu_seconds"] += sum(process.ticks for process in found) / os.sysconf("SC_CLK_TCK")
        paused = f"the container {state['name']} is paused" if state["status"] == "paused" else ""
        out["fault"] = out["fault"] or paused or engine_fault(found, judged > docker_api.stamp_to_ns(state["started_at"]))
    return out


def look_twice(containers: list[dict[str, Any]], receipt: dict[str, Any], root: str = "/proc") -> dict[str, Any]:
    """Return the same, and report only a fault that is still there a second later."""
    seen = look_at_processes(containers, receipt, root)
    if seen["fault"]:
        # A debugger stops a process for a moment, and a child that has ended is an entry of the table until its parent asks for it.
        time.sleep(POLL_SECONDS)
        seen = look_at_processes(containers, receipt, root)
    return seen


def fingerprint(path: str) -> str:
    """Return a file's mode and SHA-256, `0640 9f86d0...`; empty where it cannot be read."""
    try:
        return f"{stat.S_IMODE(os.stat(path).st_mode):04o} {hashlib.sha256(bounded.data(path)).hexdigest()}"
    except OSError:
        return ""


def releases_in(folder: str) -> list[dict[str, Any]]:
    """Return the releases below a group's folder, the newest first."""
    out = []
    try:
        names = os.listdir(os.path.join(folder, "releases"))
    except OSError:
        names = []
    for name in names:
        path = os.path.join(folder, "releases", name)
        if os.path.isfile(os.path.join(path, "compose.yaml")):
            receipt = read_json(os.path.join(path, "receipt.json"))
            files = {file: fingerprint(os.path.join(path, file)) for file in FILES}
            manifest, pool = read_json(os.path.join(path, "release.json")), receipt.get("pool")
            image = manifest.get("image")
            image = {key: str(image.get(key) or "") for key in ("reference", "id", "fingerprint")} if isinstance(image, dict) else {}
            tokens = pool.get("tokens") if isinstance(pool, dict) else None
            known = isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0
            out.append(
                {
                    "id": name, "good": bool(receipt.get("passed")), "time": int(os.stat(path).st_mtime), "files": files, "image": image,
                    "profile": str(manifest.get("profile") or ""), "pool_tokens": tokens if known else 0,
                }
            )  # fmt: skip
    return sorted(out, key=lambda release: (-release["time"], release["id"]))


def current_of(folder: str) -> str:
    """Return the release that the link `current` of a group's folder leads to; empty if there is none."""
    link = os.path.join(folder, "current")
    return os.path.basename(os.readlink(link)) if os.path.islink(link) else ""


def stopped_of(folder: str) -> str:
    """Return the text of the mark of a stop on request; empty if the group should serve."""
    return text_of(os.path.join(folder, "stopped")).strip()


def receipt_of(folder: str, candidates: list[str]) -> dict[str, Any]:
    """Return the receipt of the first of these releases that has one; empty without any."""
    for name in candidates:
        receipt = read_json(os.path.join(folder, "releases", name, "receipt.json")) if name else {}
        if receipt:
            return receipt
    return {}


def image_of(name: str, engine: str) -> dict[str, Any]:
    """Return what the node has under an image's name. Raises DockerError."""
    found = layers_engine.inspect_image(name, engine) if name else None
    if found is None:
        return dict(NO_IMAGE)
    content = images.fingerprint_of(found)
    return {"exists": True, "id": found["Id"], "name": name, "fingerprint": content, "repo_digests": sorted(found.get("RepoDigests") or [])}


def _agreed_files(model: str) -> dict[str, list[Any]]:
    """Return size on the disk and SHA-256 of the files of a model as the role weights read them last; no SHA-256 if the size differs."""
    try:
        agreed = Node("/").load_record(manifest.record_name(os.path.normpath(model))).get("agreed") or {} if model else {}
    except RecordError:
        return {}
    files = {}
    for path, (size, sha256, _mtime) in agreed.items():
        try:
            found = os.stat(os.path.join(model, path), follow_symlinks=False).st_size
        except OSError:
            found = -1
        files[path] = [found, sha256 if found == size else ""]
    return files


def weights_of(model: str, drafter: str = "") -> dict[str, Any]:
    """Return the files of a model and of its drafter as the role weights read them last, with the sizes on the disk; empty if it has not.

    The files of the drafter begin with the name of its folder.
    """
    prefix = os.path.basename(os.path.normpath(drafter))
    files = {**_agreed_files(model), **{f"{prefix}/{path}": each for path, each in _agreed_files(drafter).items()}}
    if not files:
        return {}
    proof = manifest.proof({path: {"size": size, "sha256": sha256} for path, (size, sha256) in files.items()}, {}, files)
    return {"proof": proof, "files": files, "folders": [folder for folder in (model, drafter) if folder]}


def bind(kept: list[dict[str, Any]], containers: list[dict[str, Any]], engine: str) -> None:
    """Add to each release whether its image is gone, and to each container the content of the image that it was started from. Raises DockerError."""
    seen: dict[str, dict[str, Any]] = {}

    def known(name: str) -> dict[str, Any]:
        if name not in seen:
            seen[name] = image_of(name, engine)
        return seen[name]

    for release in kept:
        if release["image"].get("id"):
            release["image"]["gone"] = not known(release["image"]["id"])["exists"]
    for container in containers:
        container["image_fingerprint"] = known(container["image_id"])["fingerprint"]


def containers_of(group: str, engine: str) -> Iterator[dict[str, Any]]:
    """Yield the state of each container of a group. One that is removed meanwhile is left out. Raises DockerError."""
    for entry in docker_api.list_containers([f"gb10.cluster.group={group}"], engine):
        state = docker_api.state_of(docker_api.inspect(entry["Id"], engine))
        if state:
            yield state


def other_groups(group: str, engine: str) -> list[str]:
    """Return the other serving groups of which a container runs on this node. Raises DockerError."""
    found = docker_api.list_containers(["gb10.cluster.group"], engine, stopped=False)
    return sorted({str((each.get("Labels") or {}).get("gb10.cluster.group") or "") for each in found} - {group, ""})


def look(group: str, folder: str, engine: str, proc: str = "/proc") -> dict[str, Any]:
    """Return what a rank shows of a group: containers, releases, memory, processes, the current release, the receipt of what runs, the mark of a stop.

    `engine_error` is why the Docker Engine could not be asked. `folder` is the group's folder.
    """
    containers: list[dict[str, Any]] = []
    releases, problem = releases_in(folder), ""
    try:
        containers.extend(containers_of(group, engine))  # what was read before an error is kept
    except docker_api.DockerError as error:
        problem = str(error)
    memory = docker_api.memory_of(bounded.text("/proc/meminfo"))
    try:
        bind(releases, containers, engine)
    except docker_api.DockerError as error:
        problem = problem or str(error)
    current = current_of(folder)
    # The current release tells of what runs, then those of the running containers.
    receipt = receipt_of(folder, [current, *(str(state["labels"].get(RELEASE_LABEL, "")) for state in containers if state["running"])])
    return {
        "containers": containers, "releases": releases, "memory": memory, "engine_error": problem, "current": current, "receipt": receipt,
        "stopped": stopped_of(folder), "processes": look_twice(containers, receipt, proc),
    }  # fmt: skip


def gpu_memory(containers: list[dict[str, Any]], run: Run = run_command, root: str = "/proc") -> dict[str, int]:
    """Return the memory of the node's GPU in KiB, as `gpu_total_kib` and `gpu_free_kib`, which leaves out what an engine needs to start; empty if
    CPU and GPU share one memory. `gpu_engine_kib` is what the running containers hold of it, if nvidia-smi lists their processes.
    """
    code, out, _err = run(["nvidia-smi", *gpu.MEMORY], timeout=SMI_SECONDS)
    found = gpu.own_memory(out) if code == 0 else None
    if found is None:
        return {}
    figures: dict[str, float | None] = {"total": found.total, "free": found.free, "engine": None}
    mains = [state["pid"] for state in containers if state["running"]]
    if mains:
        table = process_table(root)
        code, out, _err = run(["nvidia-smi", *gpu.PROCESSES], timeout=SMI_SECONDS)
        figures["engine"] = gpu.used_by(out if code == 0 else "", found.uuid, {each.pid for main in mains for each in process_tree(table, main)})
    return {f"gpu_{name}_kib": int(figure * 1024) for name, figure in figures.items() if figure is not None}


def not_free(containers: list[dict[str, Any]], memory: dict[str, int], share: float, free_only: bool, machine: Node) -> str:
    """Return what blocks a start: a rank that runs, or too little memory with what holds it; empty if nothing does. `free_only`: cache is not free."""
    running = [str(state["name"]) for state in containers if state["running"]]
    if running:
        return f"{', '.join(running)} still runs"
    wanted = share * memory["total_kib"]
    kind = "free" if free_only else "available"
    if memory[f"{kind}_kib"] >= wanted:
        return ""
    have, want, total = (value / 2**20 for value in (memory[f"{kind}_kib"], wanted, memory["total_kib"]))
    held = held_by(machine)
    return f"{have:.1f} GiB of {total:.1f} GiB of memory are {kind}{held and f' ({held})'} and {want:.1f} GiB are wanted before a start"
