# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What one rank shows: its containers, releases, memory, agent and boot log, and whether its API answers. Reads only."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, with_container
from ansible_collections.gb10.cluster.plugins.module_utils._core import utc
from ansible_collections.gb10.cluster.plugins.module_utils._core.command import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, liveness
from ansible_collections.gb10.cluster.plugins.module_utils._node import client, files, node
from ansible_collections.gb10.cluster.plugins.module_utils._node import log as container_log
from ansible_collections.gb10.cluster.plugins.module_utils._node import release as releases
from ansible_collections.gb10.cluster.plugins.module_utils._node.group import RESTORES, rank_fault
from ansible_collections.gb10.cluster.plugins.module_utils._pair import api_key, config, health, history, info
from ansible_collections.gb10.cluster.plugins.module_utils._pair.folder import Store
from ansible_collections.gb10.cluster.plugins.module_utils._profile import collective

BANDWIDTH = "/var/lib/gb10-cluster/roce/bandwidth.json"
IDLE_POWER = "idle_power_w"
MOST_RECEIPTS, MOST_EVENTS = 20, 200
#: Of the facts of a boot log, what is reported of a rank.
FACTS = ("state", "stage", "failure", "kv_cache")
FULL_BYTES = 1 << 24  # free, of a file system that counts as full


def key_files(folder: str, release: str = "current") -> list[str]:
    """Return the files that can have the API key of a release in a group's folder: the first one with a key counts."""
    place = folder if release == "current" else os.path.join(folder, "releases")
    return [os.path.join(place, release, files.SECRETS), os.path.join(folder, config.API_KEY)]


def boot_log(containers: list[dict[str, Any]], engine: str = client.DEFAULT_SOCKET) -> dict[str, Any]:
    """Return the facts of the boot log of a rank's container; empty without one, and where it cannot be read."""
    log = BootLog()
    try:
        for state in containers[:1]:
            for piece in container_log.records(client.logs(state["id"], max(container_log.stamp_to_ns(state["started_at"]), 0), engine)):
                log.feed(piece.text)
            return with_container(log.facts(final=not state["running"]), state)
    except client.DockerError:  # removed meanwhile, or the engine has ended
        pass
    return {}


def health_of(folder: str) -> dict[str, Any]:
    """Return the health of this node, as module vllm_rank_info documents it. `folder` is the group's folder."""
    node_now = Node("/", lambda argv: run_command(argv, health.SECONDS))
    return health.gather(node_now, run_command, os.path.join(folder, config.EVIDENCE))


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
    with contextlib.suppress(client.DockerError):
        paths.append(str(client.parsed(client.get("/info", socket_path=engine), engine)["DockerRootDir"]))
    return [path for path in paths if os.path.isdir(path) and shutil.disk_usage(path).free < FULL_BYTES]


def alive(folder: str, ask: Mapping[str, Any], keep: bool = True) -> dict[str, Any]:
    """Request a completion of the API of this node, see liveness. `ask` has fields of liveness.Ask; `keep` whether the idle power may be stored."""
    try:
        key = api_probe.read_key(key_files(folder)) or api_key.in_use(folder, os.path.basename(folder))
    except OSError as error:
        return {"outcome": "", "text": api_probe.sentence(error)}
    given = {name: value for name, value in ask.items() if value is not None}
    found = liveness.Watch(liveness.Ask(**{"key": key, "idle_power_file": os.path.join(folder, IDLE_POWER), "keep": keep, **given})).check()
    if found["http_status"] == 401:
        found["text"] += f": {'the container has another API key than the files on the head' if key else 'the file of the API key is missing on the head'}"
    return found


def records(folder: str) -> dict[str, Any]:
    """Return what the node keeps of the group: receipts, events, memory and bandwidth, for a report."""
    store = Store(os.path.join(folder, config.STATE))
    kept = [node.read_json(os.path.join(folder, "releases", each["id"], "receipt.json")) for each in node.releases_in(folder)[:MOST_RECEIPTS]]
    verdict = store.load("outcome.json").get("verdict")
    last = verdict.get("receipt") if isinstance(verdict, dict) else None
    found = [*kept, last] if isinstance(last, dict) and last not in kept else kept
    return {
        "read_at": utc.stamp(), "receipts": [releases.brief(each) for each in found if each], "events": store.events()[-MOST_EVENTS:],
        "memory": history.memory_of(os.path.join(folder, config.STATE)), "bandwidth": node.read_json(BANDWIDTH),
    }  # fmt: skip


def read(
    group: str, directory: str, machine: Node, *, image: str = "", model: str = "", drafter: str = "", head: Mapping[str, Any] | None = None,
    engine: str = client.DEFAULT_SOCKET,
) -> dict[str, Any]:  # fmt: skip
    """Return what this rank shows, as module vllm_rank_info documents it, without `boot_log`, `alive` and `records`."""
    folder = os.path.join(directory, group)
    seen = node.look(group, folder, engine)
    found, others, problem = dict(node.NO_IMAGE), [], seen["engine_error"]
    if not problem:
        try:
            found, others = node.image_of(image, engine), node.other_groups(group, engine)
        except client.DockerError as error:
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
        "collective": str(node.read_json(os.path.join(folder, collective.KEPT)).get("key") or ""),
        "agent": info.read(machine, head, directory=directory),
    }


def may_ask(rank: Mapping[str, Any]) -> bool:
    """Return whether a completion can tell more of a head: its container runs without a fault, and its agent neither starts nor restores the group."""
    agent = rank["agent"]
    watch = str(((agent.get("state") or {}).get("watch") or {}).get("state") or "")
    return not (rank["engine_error"] or rank_fault(rank) or agent["converges"] or watch in RESTORES)
