# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The subcommands of `gb10` that read."""

from __future__ import annotations

import argparse
import collections
import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.command import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import read_key
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.module_utils._pair import config, evidence, history, log_slice, logs, look, standing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.folder import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.group import PARTLY, CommandError, Group, answer, complain, show
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._pair.session import Peer

LOOK_SECONDS = 30.0
SLICE_SECONDS = 60.0


def key(group: Group, options: argparse.Namespace) -> int:
    """Print the API key of the current release."""
    group.need_head("key")
    has_key = node.read_json(os.path.join(group.folder, "current", "release.json")).get("has_key", True)
    found = read_key(look.key_files(group.folder)) if has_key else ""
    if not found:
        raise CommandError(f"The API of {group.name} has no key.")
    show(f"Authorization: Bearer {found}" if options.header else found)
    return 0


def looks(group: Group, boot_log: bool = False) -> Iterator[tuple[int, str, dict[str, Any] | None, str]]:
    """Yield number and host of each rank, what it shows, and why nothing if that is None; the head first."""
    return ask(group, "look", release="", boot_log=boot_log)


def ask(group: Group, verb: str, **arguments: Any) -> Iterator[tuple[int, str, dict[str, Any] | None, str]]:
    """Yield number and host of each rank, what it answers to a verb that reads, and why nothing if that is None; the head first."""
    jobs = [(peer, peer.begin(verb, LOOK_SECONDS, **arguments)) for peer in group.peers()]
    yield 0, group.host, group.call(verb, LOOK_SECONDS, **arguments), ""
    for peer, job in jobs:
        try:
            yield peer.number, peer.host, job.result(), ""
        except (RankError, RankLost) as error:
            yield peer.number, peer.host, None, f"no reply ({error})" if isinstance(error, RankLost) else str(error)


def events(group: Group, options: argparse.Namespace) -> int:
    """Print the last events."""
    group.need_head("events")
    found = group.call("events", since=0, wait=0.0, generation=0)["events"]
    last = found[-options.number :] if options.number > 0 else []
    answer(options, {"schema": "gb10.cluster/events/1", "group": group.name, "events": last}, [standing.event_line(event) for event in last])
    return 0


def why(group: Group, options: argparse.Namespace) -> int:
    """Print the last verdict."""
    group.need_head("why")
    reply = group.call("events", since=0, wait=0.0, generation=0)
    lines = standing.why_lines(reply["outcome"], reply["events"], group.folder)
    answer(options, {"schema": "gb10.cluster/why/1", "group": group.name, "outcome": reply["outcome"], "lines": lines}, lines)
    return 0


def print_logs(group: Group, options: argparse.Namespace) -> int:
    """Print the container logs of all ranks that this node reaches, without secrets. Its own is read without an agent."""
    try:
        since = logs.seconds_of(options.since)
        wanted = re.compile(options.grep)
    except re.error as error:
        raise CommandError(f"{options.grep!r} is not a valid regular expression: {error}.") from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    failed: list[Exception] = []
    silent: list[str] = []
    known = evidence.secrets_in(group.folder)
    asks: list[tuple[int, str, logs.Ask]] = [(group.rank, group.host, lambda **more: log_slice.run({**more, "docker_socket": group.docker_socket}, known))]
    asks += [(peer.number, peer.host, _slice_of(peer, silent)) for peer in group.peers()]
    mask = functools.partial(redact.redact, known=known)
    found = (logs.lines_of(ask, f"gb10-{group.name}-rank{number}", host, since) for number, host, ask in asks)
    sources = [logs.masked(lines, mask, wanted.search) for lines in found]
    limit, count = max(0, options.number), 0
    last: collections.deque[logs.Line] = collections.deque(maxlen=limit or None)
    for line in logs.merged(sources, failed.append):
        count += 1
        if limit or options.json:
            last.append(line)
        else:
            show(logs.shown(line))
    lines = [logs.shown(line) for line in last]
    unasked = [group.strange] if group.strange and not group.rank else []  # the sessions to the workers are those of the head's agent
    problems = [str(each) for each in (*failed, *unasked)]
    if 0 < limit < count:
        problems.insert(0, f"{count - limit} earlier lines are not shown. The limit is {limit} lines.")
    read = [host for _number, host, _ask in asks if host not in silent]
    answer(options, {"schema": logs.SCHEMA, "group": group.name, "host": group.host, "read": read, "lines": lines, "problems": problems}, lines)
    for problem in problems:
        complain(problem)
    return 1 if len(failed) == len(sources) else PARTLY if failed or unasked else 0


def _slice_of(peer: Peer, silent: list[str]) -> logs.Ask:
    def ask(**arguments: Any) -> dict[str, Any]:
        try:
            return peer.begin("slice", SLICE_SECONDS, **arguments).result()
        except RankLost as error:
            silent.append(peer.host)
            raise RankError(f"{peer.host} does not answer: {error}.") from error

    return ask


def print_evidence(group: Group, options: argparse.Namespace) -> int:
    """Print what this node shows of its rank, or what its agent has kept, without secrets. Only this node is read, and no agent is needed."""
    document = {"schema": "gb10.cluster/evidence/1", "group": group.name, "host": group.host, "rank": group.rank}
    kept = evidence.labels(group.folder) if options.list or options.label else []
    if options.list:
        answer(options, {**document, "labels": kept}, kept or [f"{group.host} keeps no evidence of {group.name}."])
        return 0
    if options.label:
        folder = Folder(group.folder, config.EVIDENCE, options.label)
        text = folder.text(evidence.file_name(group.rank, group.host)) if options.label in kept else None
        if text is None:
            raise CommandError(f"{group.host} keeps no evidence {options.label} of {group.name}. Kept: {', '.join(kept) or 'none'}.")
        answer(options, {**document, "text": text, "figures": ""}, text.splitlines())
        return 0
    memory = history.memory_of(os.path.join(group.folder, config.STATE), group.admin)
    text, figures = evidence.collect(group.name, group.folder, run_command, memory, group.docker_socket)
    answer(options, {**document, "text": text, "figures": figures}, evidence.joined(text, figures).splitlines())
    return 0
