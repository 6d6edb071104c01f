# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subcommands of `gb10` that read; the account of a group for people and status.yml; and `gb10 check`, which sends prompts and judges the replies."""

from __future__ import annotations

import argparse
import collections
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import read_key
from ansible_collections.gb10.cluster.plugins.module_utils._node import group_state as documents
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import group_status
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence, logs, look, protocol, standing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import DIFFERS, PARTLY, CommandError, Group, answer, complain, show
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._pair.session import Peer
from ansible_collections.gb10.cluster.plugins.module_utils._pair.standing import KEY_COMMAND

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
    asks: list[tuple[int, str, logs.Ask]] = [(group.rank, group.host, lambda **more: logs.run_slice({**more, "docker_socket": group.docker_socket}, known))]
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
        folder = Folder(group.folder, protocol.EVIDENCE, options.label)
        text = folder.text(evidence.file_name(group.rank, group.host)) if options.label in kept else None
        if text is None:
            raise CommandError(f"{group.host} keeps no evidence {options.label} of {group.name}. Kept: {', '.join(kept) or 'none'}.")
        answer(options, {**document, "text": text, "figures": ""}, text.splitlines())
        return 0
    memory = evidence.memory_of(os.path.join(group.folder, protocol.STATE), group.admin)
    text, figures = evidence.collect(group.name, group.folder, run_command, memory, group.docker_socket)
    answer(options, {**document, "text": text, "figures": figures}, evidence.joined(text, figures).splitlines())
    return 0


# --- The subcommand `gb10 status`: the one account of a group, for people and for status.yml.


def status(group: Group, options: argparse.Namespace) -> int:
    """Print what the group does, and whether that is as it should be."""
    found = status_document(group, options)
    answer(options, found, documents.status_lines([found]))
    partly = found["state"] != "absent" and any(each["problem"] for each in found["ranks"])
    return DIFFERS if not found["ok"] else PARTLY if partly else 0


def status_document(group: Group, options: argparse.Namespace) -> dict[str, Any]:
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
    found = {**documents.status_document(seen, group.name, group.hosts, infos, logs), "notes": notes, "faults": seen["faults"]}
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
    for number, _host, seen, cause in looks(group, boot_log=True):
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


# --- The subcommand `gb10 check`: it sends prompts at several concurrencies to the model that serves, and judges every reply.

Prompts = Sequence[Mapping[str, Any]]
#: Sends prompts, so many at once, and returns the replies.
Ask = Callable[[Prompts, int], list[dict[str, Any]]]


def check(group: Group, options: argparse.Namespace) -> int:
    """Ask level by level, print what comes, and return 2 if a reply is bad."""
    from ansible_collections.gb10.cluster.plugins.module_utils._gate import bench

    group.need_head("check")
    prompts = prompts_in(options.prompts)
    try:
        levels = bench.prompt_levels(options.concurrency)
    except bench.SanityError as error:
        raise CommandError(str(error)) from error
    release = _release(group)
    _require_ranks(group)
    ask = _asker(group, release, options.timeout)
    found: dict[str, Any] = {"group": group.name, **{key: release.get(key) for key in ("release", "profile", "port")}, "streams": options.streams}
    rows: list[dict[str, Any]] = []
    _print(options, bench.title_lines(found))
    for level, batch in bench.batches(prompts, levels):
        rows.append(bench.prompt_row(level, batch, ask(batch, level)))
        _print(options, bench.stream_lines(rows[-1]) if options.streams else bench.prompt_table(rows)[0 if len(rows) == 1 else -1 :])
    document = bench.judged(found, rows)
    answer(options, document, bench.closing_lines(document))
    if not document["passed"]:
        complain(document["sentence"])
    return 0 if document["passed"] else DIFFERS


def prompts_in(place: str) -> list[dict[str, Any]]:
    """Return the prompts of a file with a JSON list, of standard input if it is `-`, or those of the collection if none are given. Raises CommandError."""
    from ansible_collections.gb10.cluster.plugins.module_utils._gate import bench

    try:
        own = loads(sys.stdin.read() if place == "-" else bounded.text(place)) if place else []
        if not isinstance(own, list):
            raise ValueError("a JSON list is expected")
        return bench.prompts_of(own)
    except bench.SanityError as error:
        raise CommandError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise CommandError(f"The prompts in {'standard input' if place == '-' else place} are not valid: {error}.") from error


def _release(group: Group) -> dict[str, Any]:
    """Return what is written about the release that serves. After a rollback the inventory differs from it."""
    path = os.path.join(group.folder, "current/release.json")
    try:
        return dict(loads(bounded.text(path)))
    except (FileNotFoundError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{group.name}: nothing is known to serve on {group.host} ({path}: {reason}): run site.yml first.") from error


def _require_ranks(group: Group) -> None:
    """Raise CommandError if a rank is down: a request would hang for minutes."""
    found = status_document(group, argparse.Namespace(completion=False, lost=""))
    if found["faults"]:
        raise CommandError(found["sentence"])


def _asker(group: Group, release: Mapping[str, Any], timeout: float) -> Ask:
    from ansible_collections.gb10.cluster.plugins.module_utils._gate import bench

    url, keys = api_probe.api_url({"port": 8000, **release}), look.key_files(group.folder)

    def ask(batch: Prompts, level: int) -> list[dict[str, Any]]:
        out = api_probe.run({"url": url, "requests": bench.requests_of(batch), "concurrency": level, "timeout": timeout, "env_file": keys})
        problem = out.get("msg") or out.get("error") or ("" if out.get("models") else "it lists no model")
        if problem:
            raise CommandError(f"{group.host} does not serve: {problem}. See playbooks/status.yml for the reason, and start it with site.yml.")
        return list(out["replies"])

    return ask


def _print(options: argparse.Namespace, lines: Sequence[str]) -> None:
    """Print lines, unless a document follows."""
    for line in [] if options.json else lines:
        show(line)
