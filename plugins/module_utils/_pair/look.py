# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one rank shows: containers, releases, memory, agent, boot log, a slice of it, whether its API answers; for doctor kernel logs and heat. Reads only."""

from __future__ import annotations

import base64
import contextlib
import glob
import os
import pwd
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, parse, with_container
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, text
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import LATE, Run, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import without
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.bandwidth import BANDWIDTH_RECEIPT
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, gpu, node, releases
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import RESTORES, rank_fault
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import container_reason
from ansible_collections.gb10.cluster.plugins.module_utils._node.node import fingerprint, read_json
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence, files, protocol, session, standing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder, Store
from ansible_collections.gb10.cluster.plugins.module_utils._profile import trial

# --- What a node knows of its agent. Reads only: a node without an agent has the same keys, without values.

TIMEOUT_SECONDS = 2.0
#: What the service is started with, and all that the role `agent` writes.
STARTED = (protocol.PROGRAM, protocol.CONFIG)
AGENT_FILES = (*STARTED, protocol.UNIT_FILE, protocol.KNOWN_HOSTS, protocol.AUTHORIZED)
HOST_KEY = re.compile(r"((?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp\d+) [A-Za-z0-9+/=]+)(?: .*)?")


def host_keys(node: Node) -> list[str]:
    """Return type and key of a node's SSH host keys; a type that is not supported, such as DSA, is left out."""
    found = (HOST_KEY.fullmatch((node.read(path) or "").strip()) for path in node.glob("/etc/ssh/ssh_host_*_key.pub"))
    return [match[1] for match in found if match]


def fingerprints(paths: tuple[str, ...], root: str = "/") -> dict[str, str]:
    """Return mode and SHA-256 of files, `0644 9f86d0...`; empty for one that is not there."""
    return {path: fingerprint(root.rstrip("/") + path) for path in paths}


def version_of(files: Mapping[str, str]) -> str:
    """Return the version of the program among fingerprints: 12 digits of its SHA-256; empty without a program."""
    return str(files.get(protocol.PROGRAM) or "").rpartition(" ")[2][:12]


def state_of(known: dict[str, Any], socket: str) -> dict[str, Any]:
    """Return what the agent on the socket reports; empty without an answer in time, and if the agent refuses. `known` is its configuration."""
    try:
        return protocol.call("hello" if known.get("rank") else "state", socket=socket, timeout=TIMEOUT_SECONDS)
    except protocol.ERRORS:
        return {}


def owners_in(directory: str) -> dict[str, str]:
    """Return the groups that own this node: group -> machine id of its head."""
    found = {path.split(os.sep)[-3]: str(read_json(path).get("head") or "") for path in glob.glob(os.path.join(directory, "*", protocol.STATE, protocol.OWNER))}
    return {group: head for group, head in sorted(found.items()) if head}


def _has_user() -> bool:
    try:
        return bool(pwd.getpwnam(protocol.USER))
    except KeyError:
        return False


def read_agent(node: Node, head: Mapping[str, Any] | None = None, socket: str = protocol.ADMIN_SOCKET, directory: str = "") -> dict[str, Any]:
    """Return files, keys, owners and state of the node's agent.

    `head` has the name and the address that the head's sessions come from; none on the head. `directory` has the folders of all serving groups.
    """
    head = head if head and head.get("name") else None
    known = read_json(node.at(protocol.CONFIG))
    state = state_of(known, socket)
    found = fingerprints(AGENT_FILES, node.root)
    rc, text = session.sshd_output(node, protocol.USER, head["name"], head["address"]) if head else session.sshd_output(node)
    return {
        "version": version_of(found),
        "files": found,
        "enabled": node.exists(f"/etc/systemd/system/multi-user.target.wants/{protocol.UNIT}"),
        "user": _has_user(),
        "place": {"group": str(known.get("group") or ""), "rank": int(known.get("rank") or 0)} if known else {},
        "owners": owners_in(node.at(directory)) if directory else {},
        "state": state,
        "converges": standing.converges(state),
        "public_key": (node.read(f"{protocol.KEY}.pub") or "").strip(),
        "head_id": (node.read("/etc/machine-id") or "").strip(),
        "host_keys": host_keys(node),
        "ssh_port": session.sshd_port(text) if rc == 0 else 22,
        "sshd_problems": session.sshd_problems_of(node, head["name"], head["address"], rc, text) if head else [],
    }


# --- Read what doctor.yml judges of a node while it runs: kernel logs of two boots, power and temperatures, the newest boot log in the evidence.
# Reads only. Each command is bounded in time and bytes.

Record = dict[str, Any]

HEALTH_SECONDS = 15.0  # of one command
LINES = 20_000  # of the kernel log of one boot
EVIDENCE_BYTES = 16 << 20
ZONES = 64
MISSING = 127
NO_BOOT: Record = {"label": "", "file": "", "state": "", "stage": None, "failure": None}
QUERY = ("--query-gpu=temperature.gpu,power.draw,utilization.gpu,clocks.sm,clocks.max.sm", "--format=csv,noheader,nounits")
#: By itself: one field that the driver does not know fails the whole query. Drivers from 535 on accept this older name, too.
REASONS = ("--query-gpu=clocks_throttle_reasons.active", "--format=csv,noheader")
_FIELDS = ("temperature_c", "power_w", "utilization", "sm_mhz", "max_mhz")
_SECTION = re.compile(r"^== container .{1,200}: log$", re.MULTILINE)


def kernel_logs(run: Run) -> Record:
    """Return the faults of this boot and of the one before, and for each log that cannot be read why."""
    out: Record = {"events": [], "skipped": {}, "unclean": ""}
    for boot, name in ((0, "this boot"), (-1, "the previous boot")):
        words = ["journalctl", "--quiet", "--no-pager", f"--boot={boot}"]
        code, text, error = run([*words, "--dmesg", f"--lines={LINES}", "--output=short-iso"], timeout=HEALTH_SECONDS)
        if code or not text.strip():
            reason = {MISSING: "journalctl is not installed", LATE: "journalctl did not end in time"}.get(code, "")
            out["skipped"][name] = reason or (error.strip().splitlines() or ["the journal has no kernel messages of it"])[0][:200]
            continue
        out["events"] += catalogue.summarize_kernel(text, boot)
        if boot:
            code, tail, _error = run([*words, "--lines=100", "--output=short-iso"], timeout=HEALTH_SECONDS)
            if code == 0 and tail.strip() and not catalogue.ended_by_shutdown(tail):
                out["unclean"] = tail.strip().splitlines()[-1].split(" ", 1)[0][:40]
    return out


def _figure(field: str) -> float | None:
    """Return a figure; None for one that the driver does not report ([N/A])."""
    return float(field) if re.fullmatch(r"-?\d{1,7}(?:\.\d{1,4})?", field) else None


def gpus(text: str, reasons: str) -> list[Record]:
    """Return the GPUs in the output of nvidia-smi with QUERY, each with its reasons. A message of the driver is not a GPU."""
    bits = [int(line.strip(), 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", line.strip()) else 0 for line in reasons.splitlines()]
    found: list[Record] = []
    for row in gpu.rows(text, len(_FIELDS)):
        figures = [_figure(field) for field in row]
        if any(figure is not None for figure in figures):
            found.append({**dict(zip(_FIELDS, figures)), "reasons": bits[len(found)] if len(found) < len(bits) else 0})
    return found


def zone(name: str, temperature: str, trips: Mapping[str, str]) -> Record | None:
    """Return a thermal zone of /sys/class/thermal in °C; None if it has no temperature. `trips` are the temperatures of its trip points by type."""
    now = _figure(temperature.strip())
    critical = _figure(trips.get("critical", "").strip())
    return None if now is None else {"name": name.strip()[:40], "temperature_c": now / 1000, "critical_c": critical / 1000 if critical else None}


def temperatures(node: Node) -> list[Record]:
    """Return the thermal zones of the kernel."""
    found = []
    for folder in node.glob("/sys/class/thermal/thermal_zone*")[:ZONES]:
        trips = {(node.read(path) or "").strip(): node.read(path[: -len("type")] + "temp") or "" for path in node.glob(f"{folder}/trip_point_*_type")}
        found.append(zone(node.read(f"{folder}/type") or "", node.read(f"{folder}/temp") or "", trips))
    return [each for each in found if each is not None]


def gpu_power(run: Run) -> tuple[list[Record], str]:
    """Return the GPUs, and why there are none."""
    code, text, error = run(["nvidia-smi", *QUERY], timeout=HEALTH_SECONDS)
    if code:
        reason = {MISSING: "nvidia-smi is not installed", LATE: "nvidia-smi did not answer in time"}.get(code)
        return [], reason or f"nvidia-smi: {(text.strip() or error.strip() or f'exit code {code}').splitlines()[0][:200]}"
    code, reasons, _error = run(["nvidia-smi", *REASONS], timeout=HEALTH_SECONDS)
    found = gpus(text, reasons if code == 0 else "")
    return found, "" if found else "nvidia-smi lists no GPU"


def kept_boot_log(place: str) -> Record:
    """Return state and failure of the boot log in the newest evidence of a folder; the label is empty without any."""
    try:
        with os.scandir(place) as entries:
            labels = [(entry.stat(follow_symlinks=False).st_mtime, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        label = max(labels)[1]
        files = [(name, bounded.text(os.path.join(place, label, name), EVIDENCE_BYTES)) for name in sorted(os.listdir(os.path.join(place, label)))[:8]]
    except (OSError, ValueError):
        return dict(NO_BOOT)
    for name, content in files:
        section = _SECTION.search(content)
        if section:
            facts = parse(content[section.end() + 1 :].partition("\n\n== ")[0])
            return {"label": label, "file": os.path.join(place, label, name), **{key: facts[key] for key in ("state", "stage", "failure")}}
    return dict(NO_BOOT)


def gather_health(node: Node, run: Run, evidence: str) -> Record:
    """Return `health` of the module vllm_rank_info; `evidence` is the folder of the evidence."""
    container = container_reason(node)
    if container:
        reason = f"a container ({container}) has the kernel of its host"
        logs: Record = {"events": [], "skipped": {"this boot": reason, "the previous boot": reason}, "unclean": ""}
    else:
        logs = kernel_logs(run)
    found, error = gpu_power(run)
    return {"kernel": logs, "gpus": found, "gpu_error": error, "zones": [] if container else temperatures(node), "boot": kept_boot_log(evidence)}


# --- What one rank shows: its containers, releases, memory, agent and boot log, and whether its API answers.

MOST_RECEIPTS, MOST_EVENTS = 20, 200
#: Of the facts of a boot log, what is reported of a rank.
FACTS = ("state", "stage", "failure", "kv_cache")
FULL_BYTES = 1 << 24  # free, of a file system that counts as full


def key_files(folder: str, release: str = "current") -> list[str]:
    """Return the files that can have the API key of a release in a group's folder: the first one with a key counts."""
    place = folder if release == "current" else os.path.join(folder, "releases")
    return [os.path.join(place, release, releases.SECRETS), os.path.join(folder, protocol.API_KEY)]


def boot_log(containers: list[dict[str, Any]], engine: str = docker_api.DEFAULT_SOCKET) -> dict[str, Any]:
    """Return the facts of the boot log of a rank's container; empty without one, and where it cannot be read."""
    log = BootLog()
    try:
        for state in containers[:1]:
            for piece in docker_api.log_records(docker_api.logs(state["id"], max(docker_api.stamp_to_ns(state["started_at"]), 0), engine)):
                log.feed(piece.text)
            return with_container(log.facts(final=not state["running"]), state)
    except docker_api.DockerError:  # removed meanwhile, or the engine has ended
        pass
    return {}


def health_of(folder: str) -> dict[str, Any]:
    """Return the health of this node, as module vllm_rank_info documents it. `folder` is the group's folder."""
    node_now = Node("/", lambda argv: run_command(argv, HEALTH_SECONDS))
    return gather_health(node_now, run_command, os.path.join(folder, protocol.EVIDENCE))


def brief_log(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the account of a group uses of the facts of a boot log."""
    return {key: facts[key] for key in FACTS if key in facts}


def in_short(group: str, folder: str, engine: str, proc: str = "/proc") -> dict[str, Any]:
    """Return what the account of a group uses of this rank."""
    seen = node.look(group, folder, engine, proc)
    return {**seen, "boot_log": brief_log(boot_log(seen["containers"], engine)), "full": full(folder, engine)}


def full(folder: str, engine: str) -> list[str]:
    """Return which of the folder of a group and the data of the Docker Engine are on a full file system."""
    paths = [folder]
    with contextlib.suppress(docker_api.DockerError):
        paths.append(str(docker_api.parsed(docker_api.get("/info", socket_path=engine), engine)["DockerRootDir"]))
    return [path for path in paths if os.path.isdir(path) and shutil.disk_usage(path).free < FULL_BYTES]


def alive(folder: str, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Request a completion of the API of this node. `ask` has fields of api_probe.Ask; the watch of this node has measured the idle power."""
    try:
        key = api_probe.read_key(key_files(folder)) or files.key_in_use(folder, os.path.basename(folder))
    except OSError as error:
        return {"outcome": "", "text": api_probe.sentence(error)}
    given = {name: value for name, value in ask.items() if value is not None}
    idle = node.read_json(os.path.join(folder, protocol.STATE, protocol.WATCH)).get("idle_power_w")
    found = api_probe.LivenessWatch(api_probe.Ask(**{"key": key, "idle_power_w": idle, **given})).check()
    if found["http_status"] == 401:
        found["text"] += f": {'the container has another API key than the files on the head' if key else 'the file of the API key is missing on the head'}"
    return found


PLAN, SOAKED = "plan.json", "verdict.json"  # of a soak: its plan and its receipt


def soak_names(folder: str) -> list[str]:
    """Return the names of the soaks that are kept in a group's folder, the newest first: their names are times."""
    try:
        return sorted(Folder(folder, protocol.SOAKS).newest(), reverse=True)
    except OSError:
        return []


def soak_that_goes_on(folder: Folder) -> dict[str, Any]:
    """Return the plan of a soak; empty if it was stopped, has ended, or was removed."""
    plan: dict[str, Any] = folder.load(PLAN) or {}
    return plan if plan.get("wanted") and not folder.exists(SOAKED) else {}


def soaking(folder: str) -> list[dict[str, Any]]:
    """Return the plans of the soaks that go on."""
    return [plan for name in soak_names(folder) if (plan := soak_that_goes_on(Folder(folder, protocol.SOAKS, name)))]


def soaks(folder: str) -> list[dict[str, Any]]:
    """Return the receipts of the soaks that have ended, the newest first."""
    found = (node.read_json(Folder(folder, protocol.SOAKS, name).path(SOAKED)) for name in soak_names(folder))
    return [each for each in found if each.get("verdict")]


def records(folder: str) -> dict[str, Any]:
    """Return what the node keeps of the group: receipts, events, memory and bandwidth, for a report."""
    store = Store(os.path.join(folder, protocol.STATE))
    kept = [node.read_json(os.path.join(folder, "releases", each["id"], "receipt.json")) for each in node.releases_in(folder)[:MOST_RECEIPTS]]
    verdict = store.load("outcome.json").get("verdict")
    last = verdict.get("receipt") if isinstance(verdict, dict) else None
    found = [*kept, last] if isinstance(last, dict) and last not in kept else kept
    return {
        "read_at": text.stamp(), "receipts": [releases.brief(each) for each in found if each], "events": store.events()[-MOST_EVENTS:],
        "memory": evidence.memory_of(os.path.join(folder, protocol.STATE)), "bandwidth": node.read_json(str(BANDWIDTH_RECEIPT)),
        "soaks": soaks(folder),
    }  # fmt: skip


def read(
    group: str, directory: str, machine: Node, *, image: str = "", model: str = "", drafter: str = "", head: Mapping[str, Any] | None = None,
    engine: str = docker_api.DEFAULT_SOCKET,
) -> dict[str, Any]:  # fmt: skip
    """Return what this rank shows, as module vllm_rank_info documents it, without `boot_log`, `alive` and `records`."""
    folder = os.path.join(directory, group)
    seen = node.look(group, folder, engine)
    found, others, problem = dict(node.NO_IMAGE), [], seen["engine_error"]
    if not problem:
        try:
            found, others = node.image_of(image, engine), node.other_groups(group, engine)
        except docker_api.DockerError as error:
            problem = str(error)
    weights = node.weights_of(model, drafter)
    release = node.read_json(os.path.join(folder, "current", "release.json"))
    return {
        **seen,
        "engine_error": problem,
        "weights": weights,
        "weights_differ": releases.weights_differ(seen["receipt"].get("weights") or {}, weights),
        "image": found,
        "devices": [device for pattern in node.DEVICES for device in sorted(glob.glob(pattern))],
        "memory": {**seen["memory"], **node.gpu_memory(seen["containers"])},
        "others": others,
        "inputs": str(release.get("inputs") or ""),
        "settings": release.get("settings") or {},
        "collective": str(node.read_json(os.path.join(folder, trial.KEPT)).get("key") or ""),
        "agent": read_agent(machine, head, directory=directory),
    }


def may_ask(rank: Mapping[str, Any]) -> bool:
    """Return whether a completion can tell more of a head: its container runs without a fault, and its agent neither starts nor restores the group."""
    agent = rank["agent"]
    watch = str(((agent.get("state") or {}).get("watch") or {}).get("state") or "")
    return not (rank["engine_error"] or rank_fault(rank) or agent["converges"] or watch in RESTORES)


# --- One slice of a container's log, with its state and the node's memory: what the agent's verb slice returns.

POLL_SECONDS = 0.25
LOG_SECONDS = 60.0  # for one read of the log; a backlog of 150 MB takes 1 s
#: What may be decisive: a slice that holds one of these is returned at once, other news may gather for a while.
_DECISIVE = re.compile(rb"(?i)error|exception|traceback|startup complete|uvicorn running|ready to accept|killed|abort|fatal|usage:")


def take_slice(
    container: str, cursor: object = "", known_state: str = "", wait: float = 2.0, gather: float = 0.0, limit: int = 262144, url: str = "",
    docker_socket: str = docker_api.DEFAULT_SOCKET, stamps: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return a slice as soon as there is news, at the latest after `wait` seconds. Raises DockerError.

    log: the bytes since `cursor`, in base64. cursor: for the next slice. container: its state, None without one. http_status: of `url`; 0 without a reply.
    """
    start = time.monotonic()
    data, status = b"", 0
    while True:
        state = docker_api.state_of(docker_api.inspect(container, docker_socket))
        if state is not None and state["status"] != "created" and limit > len(data):
            reader = docker_api.LogReader(cursor, docker_api.stamp_to_ns(state["started_at"]))
            data += reader.read(docker_api.logs(state["id"], reader.since, docker_socket, deadline=time.monotonic() + LOG_SECONDS), limit - len(data), stamps)
            cursor = reader.cursor
        if url and not status:
            status = api_probe.Server(url, "", 2.0).call("GET", urlsplit(url).path or "/")[0]
        seconds = time.monotonic() - start
        changed = (state["status"] if state else "absent") != known_state
        full = len(data) >= limit
        if changed or status or full or seconds >= wait or (data and (seconds >= gather or _DECISIVE.search(data))):
            break
        time.sleep(POLL_SECONDS)
    return {
        "log": base64.b64encode(data).decode(),
        "cursor": str(cursor or ""),
        "container": state,
        "memory": docker_api.memory_of(node.text_of("/proc/meminfo"), node.text_of("/proc/vmstat")),
        "http_status": status,
    }


def run_slice(arguments: dict[str, Any], secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Return a slice without these values; `failed` and `msg` if the Docker Engine does not answer."""
    try:
        out = take_slice(**arguments)
        if secrets and out.get("log"):
            text = base64.b64decode(out["log"]).decode("utf-8", "surrogateescape")
            out["log"] = base64.b64encode(without(text, secrets).encode("utf-8", "surrogateescape")).decode("ascii")
        return out
    except docker_api.DockerError as error:
        return {"failed": True, "msg": f"Cannot follow the container {arguments['container']}: {error}"}
