# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The subcommand `gb10 status`: the one account of a group, for people and for status.yml."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import redact
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.module_utils._node import status as documents
from ansible_collections.gb10.cluster.plugins.module_utils._node.group import group_status
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence, look, standing, verbs_read
from ansible_collections.gb10.cluster.plugins.module_utils._pair.group import DIFFERS, PARTLY, CommandError, Group, answer
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError
from ansible_collections.gb10.cluster.plugins.module_utils._pair.summary import KEY_COMMAND


def status(group: Group, options: argparse.Namespace) -> int:
    """Print what the group does, and whether that is as it should be."""
    found = document(group, options)
    answer(options, found, documents.lines([found]))
    partly = found["state"] != "absent" and any(each["problem"] for each in found["ranks"])
    return DIFFERS if not found["ok"] else PARTLY if partly else 0


def document(group: Group, options: argparse.Namespace) -> dict[str, Any]:
    """Return the state of the group as this node sees it, without secrets."""
    state, problem = _state(group)
    infos = _infos(group, state, problem, options.lost)
    never = bool(group.strange) and not infos[group.rank]["containers"] and not infos[group.rank]["current"]
    # A node without an agent cannot ask the other ranks, and they have nothing either.
    seen = group_status([infos[group.rank]] if never else infos, group.name, [group.host] if never else group.hosts)
    if options.completion and not group.rank and seen["ask"]:
        infos[0]["alive"] = look.alive(group.folder, ask_of(group, options))
        seen = group_status(infos, group.name, group.hosts)
    logs = [info.get("boot_log") or {} for info in infos]
    notes = [] if never else [problem] if problem else list(_notes(group, state))
    found = {**documents.document(seen, group.name, group.hosts, infos, logs), "notes": notes, "faults": seen["faults"]}
    masked = dict(redact.masked(found, evidence.secrets_in(group.folder)))
    key = not group.rank and not never and _uses_made_key(group)
    return {**masked, "notes": [*masked["notes"], *([f"API key: {KEY_COMMAND}"] if key else [])]}


def ask_of(group: Group, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is asked of the API of the current release, see liveness.Ask."""
    release = node.read_json(os.path.join(group.folder, "current", "release.json"))
    given = (release.get("criteria") or {}).get("completion") or {}
    return {
        "url": api_probe.api_url({"host": "", "port": 8000, **release}),
        "request": {key: given[key] for key in ("prompt", "chat", "max_tokens", "body") if key in given} or {"prompt": "Hello"},
        "timeout": options.timeout, "wedge_seconds": options.wedge_seconds, "completion_timeout": options.completion_timeout,
        "idle_power_w": options.idle_power,
    }  # fmt: skip


def _state(group: Group) -> tuple[dict[str, Any], str]:
    """Return what the agent of this node reports of itself, and why nothing if it does not."""
    try:
        return group.call("hello" if group.rank else "state"), ""
    except (CommandError, AgentMissing, RankError) as error:
        return {}, str(error)


def _infos(group: Group, state: dict[str, Any], problem: str, lost: str) -> list[dict[str, Any]]:
    """Return what each rank shows, by rank; a rank that was not read has `msg`. `lost` is why the head is not known, for a worker."""
    agent = {"version": "installed" if not group.strange else "", "state": state, "converges": bool(not group.rank and standing.converges(state))}
    if problem:
        own = {**look.in_short(group.name, group.folder, group.docker_socket), "agent": agent}
        cause = f"it is read through the agent of {group.host}, which does not answer"
        return [own if number == group.rank else {"msg": cause} for number in range(len(group.hosts))]
    if group.rank:
        own = {**group.call("look", boot_log=True), "agent": agent}
        return [own if number == group.rank else {"msg": lost or "a worker does not ask the other ranks"} for number in range(len(group.hosts))]
    found = []
    for number, _host, seen, cause in verbs_read.looks(group, boot_log=True):
        about = agent if number == 0 else {"version": "installed", "state": {"rank": number}}
        found.append({**seen, "agent": about} if seen is not None else {"msg": cause})
    return found


def _notes(group: Group, state: dict[str, Any]) -> Iterator[str]:
    """Yield what the agent works on, what keeps it from that, and where the key of the API is."""
    if group.rank:
        owner = state.get("owner") or {}
        owned = f"owned by the head {str(owner['head'])[:12]} of {owner.get('group')}" if owner else "not owned by a head yet"
        yield f"{group.host} is rank {group.rank}, {owned}. Generation: {state.get('generation')}. Head: {group.hosts[0]}."
    else:
        yield standing.desired_line(state["desired"])
        yield standing.outcome_line(state["outcome"])
        watch = standing.watch_line(state.get("watch") or {})
        if watch:
            yield watch
    for hold in state.get("holds") or []:
        yield f"hold {hold.get('name')}{f' by {by}' if (by := hold.get('by')) else ''}: {hold.get('reason')}"


def _uses_made_key(group: Group) -> bool:
    """Whether the current release uses the key that the head keeps, and not one of the inventory."""
    has_key = node.read_json(os.path.join(group.folder, "current", "release.json")).get("has_key")
    return bool(has_key) and not api_probe.read_key(look.key_files(group.folder)[:1])
