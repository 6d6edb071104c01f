# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gb10 doctor`: what is wrong with the group, by the checks of doctor.yml, as this node and the agents of the other ranks show it. Reads only.

A node does not know the inventory. What a rank is compared with is the release that is current there.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._checks import judge
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Group as Checked
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Rank, Requirements
from ansible_collections.gb10.cluster.plugins.module_utils._core import redact, text
from ansible_collections.gb10.cluster.plugins.module_utils._node import facts, node
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import group_status
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence, look, session, verbs_read
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import DIFFERS, Group, answer, show
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError, RankLost

SECONDS = 160.0  # of one rank, which takes no longer than DOCTOR_SECONDS
_find = functools.partial(shutil.which, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]))
_REMEDY = "check that the node is on; the finding agent_path has the remedy if its SSH server or its agent does not answer"


def doctor(group: Group, options: argparse.Namespace) -> int:
    """Print what is wrong with the group; with --read what this rank shows, for the head."""
    if options.read:
        show(json.dumps(reading(group)))
        return 0
    found = report(group, options)
    answer(options, found, judge.lines(found))
    return DIFFERS if found["counts"]["error"] else 0


def reading(group: Group) -> dict[str, Any]:
    """Return what this rank shows: `facts` as module preflight_info documents them, `info` as module vllm_rank_info does."""
    release = _release(group)
    model, drafter, image = (str(release.get(key) or "") for key in ("model", "drafter", "reference"))
    wanted = {
        "fabric_addresses": (release.get("fabric") or {}).get("addresses") or [], "ports": list(_ports(release)), "image": image,
        "model_store": model, "model_path": model, "drafter_path": drafter, "docker_socket": group.docker_socket,
    }  # fmt: skip
    machine = facts.live_node(_find)
    found = {**facts.read(machine, _find, wanted), "agent": session.read_for_preflight(machine)}
    info = look.read(group.name, str(group.config["directory"]), machine, image=image, model=model, drafter=drafter, engine=group.docker_socket)
    del info["weights"]  # as long as the list of files, and no check reads them
    return {"facts": found, "info": {**info, "boot_log": look.boot_log(info["containers"], group.docker_socket), "health": look.health_of(group.folder)}}


def report(group: Group, options: argparse.Namespace) -> dict[str, Any]:
    """Return the report of doctor.yml, as far as this node can make it, without secrets."""
    ranks = [*_ranks(group)]
    head = dict(ranks[0].info)
    if not group.rank and look.may_ask(head):
        head["alive"] = look.alive(group.folder, verbs_read.ask_of(group, options))
    infos = [head, *(rank.info for rank in ranks[1:])]
    release = _release(group)
    ports = _ports(release)
    found = Checked(
        name=group.name,
        ranks=[rank._replace(info=info) for rank, info in zip(ranks, infos)],
        needs=Requirements(head_ports=ports, image=str(release.get("reference") or "")),
        status=group_status(infos, group.name, group.hosts),
        liveness=head.get("alive") or {},
    )
    ssh = {str(peer["host"]): [str(peer["address"])] for peer in group.config["peers"]}
    made = judge.report(found, judge.judge(found, preflight=False), judge.Places([], True, ssh), text.stamp())
    return dict(redact.masked(made, evidence.secrets_in(group.folder)))


def _ranks(group: Group) -> list[Rank]:
    """Return what each rank shows. A worker does not ask the others."""
    jobs = [(peer, peer.begin("doctor", SECONDS)) for peer in group.peers()]
    own = reading(group)
    found = [Rank(host, number, absent="a worker does not ask the other ranks") for number, host in enumerate(group.hosts)]
    found[group.rank] = Rank(group.host, group.rank, own["facts"], info=own["info"])
    for peer, job in jobs:
        try:
            seen = job.result()
            found[peer.number] = Rank(peer.host, peer.number, seen["facts"], info=seen["info"])
        except (RankError, RankLost) as error:
            text = f"no reply ({error})" if isinstance(error, RankLost) else str(error)
            found[peer.number] = Rank(peer.host, peer.number, {}, text, isinstance(error, RankLost), remedy=_REMEDY, info={"msg": text})
    return found


def _release(group: Group) -> Mapping[str, Any]:
    """Return the manifest of the release that is current on this node, with the name of its image."""
    manifest = node.read_json(os.path.join(group.folder, "current", "release.json"))
    return {**manifest, "reference": (manifest.get("image") or {}).get("reference")}


def _ports(release: Mapping[str, Any]) -> dict[int, str]:
    return {int(release["port"]): "the API"} if release.get("port") else {}
