# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subcommands of `gb10` that read: the container logs of all ranks, and the account of a group for people and status.yml, among others."""

from __future__ import annotations

import argparse
import base64
import collections
import contextlib
import functools
import heapq
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog
from ansible_collections.gb10.cluster.plugins.module_utils._core import redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import read_key
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, node
from ansible_collections.gb10.cluster.plugins.module_utils._node import group_state as documents
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import group_status
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence, look, protocol, standing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import DIFFERS, PARTLY, CommandError, Group, answer, complain, show
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._pair.session import Peer
from ansible_collections.gb10.cluster.plugins.module_utils._pair.standing import KEY_COMMAND

LOOK_SECONDS = 30.0
SLICE_SECONDS = 60.0
LOG_BYTES = 1 << 18  # of a file that are read at once


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
    group.call("hello")  # without the head's agent no worker is asked: it would report that its head is back
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


def boot(group: Group, options: argparse.Namespace) -> int:
    """Print what the log of this rank's last boot shows, or the log in a file: how far it came, what failed, and what to change."""
    facts: dict[str, Any] = {}
    if options.file:
        log = BootLog()
        with open(options.file, "rb") as handle:
            while data := handle.read(LOG_BYTES):
                log.feed(data)
        facts = log.facts(final=True)
    else:
        with contextlib.suppress(docker_api.DockerError):
            state = docker_api.state_of(docker_api.inspect(f"gb10-{group.name}-rank{group.rank}", group.docker_socket))
            facts = look.boot_log([state] if state else [], group.docker_socket)
    if not facts:
        raise CommandError(f"{group.host} has no container of {group.name} whose log can be read.")
    facts = dict(redact.masked(facts, evidence.secrets_in(group.folder)))
    failure = facts["failure"] or facts["suspicion"]
    lines = [f"{facts['state']}, at stage {facts['stage']}", *([f"{failure['class']}: {failure['line']}", f"remedy: {failure['remedy']}"] if failure else [])]
    answer(options, {"schema": "gb10.cluster/boot/1", "group": group.name, "host": group.host, **facts}, lines)
    return 0


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


# --- The subcommand `gb10 logs`: the container logs of all ranks of a group, merged by the times that the Docker Engine gave their lines.

LOGS_SCHEMA = "gb10.cluster/logs/1"
SLICE_BYTES = 1 << 20
BLOCK, AROUND = 1000, 200  # lines that are masked together, and lines before and behind them that are read with them
MOST_PIECES = 256  # more than the Docker Engine keeps with the role's settings
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

#: Takes the arguments of the verb `slice`, and returns its result.
Slice = Callable[..., dict[str, Any]]


class Line(NamedTuple):
    """One line of a rank's log: its time in ns since the epoch."""

    time: int
    host: str
    text: str


def seconds_of(text: str) -> float:
    """Return the seconds in 90s, 10m, 2h or 1d. Raises ValueError with a sentence."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not match:
        raise ValueError(f"{text!r} is not a duration. Use a number with a unit, such as 90s, 10m, 2h or 1d.")
    return float(match[1]) * _UNITS[match[2]]


def lines_of(ask: Slice, container: str, host: str, since: float) -> Iterator[Line]:
    """Yield the lines of a container of the last `since` seconds. Raises RankError, RankLost."""
    cursor = f"{max(0, int((time.time() - since) * 10**9))}:0"
    moment = 0
    for _piece in range(MOST_PIECES):
        piece = ask(container=container, cursor=cursor, wait=0.0, limit=SLICE_BYTES, stamps=True)
        if piece.get("failed"):
            raise RankError(str(piece.get("msg")))
        if piece.get("container") is None:
            raise RankError(f"There is no container {container} on {host}.")
        data = base64.b64decode(piece["log"])
        for raw in data.decode("utf-8", "replace").splitlines():
            stamp, _blank, text = raw.partition(" ")
            found = docker_api.stamp_to_ns(stamp)
            moment = found or moment
            yield Line(moment, host, text if found else raw)  # a carriage return within a line leaves a part without a stamp
        if len(data) < SLICE_BYTES:
            return
        cursor = piece["cursor"]
    raise RankError(f"The log of {container} on {host} is longer than {MOST_PIECES * SLICE_BYTES >> 20} MiB: the rest is left out. Use a shorter time.")


def masked(lines: Iterable[Line], mask: Callable[[str], str], wanted: Callable[[str], Any]) -> Iterator[Line]:
    """Yield the masked lines of one rank whose own text is wanted. A line is masked with those around it: a key or an argument can begin on an earlier one."""
    kept: list[Line] = []
    done = 0  # how many of them are behind us: they are there to be read only
    failure: Exception | None = None
    source, ended = iter(lines), False
    while not ended:
        before = len(kept)
        try:
            for line in itertools.islice(source, BLOCK):
                kept.append(line)  # those before an error stay
        except Exception as error:  # noqa: BLE001  the lines before it are shown first
            failure = error
        ended = len(kept) < before + BLOCK
        end = len(kept) if ended else len(kept) - AROUND
        texts = mask("\n".join(line.text for line in kept)).split("\n")
        for line, text in list(zip(kept, texts))[done:end]:
            if wanted(line.text):
                yield line._replace(text=text)
        first = max(0, end - AROUND)
        kept, done = kept[first:], end - first
    if failure is not None:
        raise failure


def merged(sources: Iterable[Iterator[Line]], problem: Callable[[Exception], None]) -> Iterator[Line]:
    """Yield the lines of all ranks by time. A rank that cannot be read is reported to `problem`, and the others go on."""
    return heapq.merge(*(_guarded(log, problem) for log in sources), key=lambda line: line.time)


def _guarded(log: Iterator[Line], problem: Callable[[Exception], None]) -> Iterator[Line]:
    try:
        yield from log
    except Exception as error:  # noqa: BLE001  one rank must not end the output of the others
        problem(error)


def shown(line: Line) -> str:
    """Return a line as it is printed."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line.time // 10**9)) + f".{line.time // 10**6 % 1000:03d}Z"
    return f"{stamp} {line.host} | {line.text}"


def print_logs(group: Group, options: argparse.Namespace) -> int:
    """Print the container logs of all ranks that this node reaches, without secrets. Its own is read without an agent."""
    try:
        since = seconds_of(options.since)
        wanted = re.compile(options.grep)
    except re.error as error:
        raise CommandError(f"{options.grep!r} is not a valid regular expression: {error}.") from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    failed: list[Exception] = []
    silent: list[str] = []
    known = evidence.secrets_in(group.folder)
    asks: list[tuple[int, str, Slice]] = [(group.rank, group.host, lambda **more: look.run_slice({**more, "docker_socket": group.docker_socket}, known))]
    asks += [(peer.number, peer.host, _slice_of(peer, silent)) for peer in group.peers()]
    mask = functools.partial(redact.redact, known=known)
    found = (lines_of(ask, f"gb10-{group.name}-rank{number}", host, since) for number, host, ask in asks)
    sources = [masked(lines, mask, wanted.search) for lines in found]
    limit, count = max(0, options.number), 0
    last: collections.deque[Line] = collections.deque(maxlen=limit or None)
    for line in merged(sources, failed.append):
        count += 1
        if limit or options.json:
            last.append(line)
        else:
            show(shown(line))
    lines = [shown(line) for line in last]
    unasked = [group.strange] if group.strange and not group.rank else []  # the sessions to the workers are those of the head's agent
    problems = [str(each) for each in (*failed, *unasked)]
    if 0 < limit < count:
        problems.insert(0, f"{count - limit} earlier lines are not shown. The limit is {limit} lines.")
    read = [host for _number, host, _ask in asks if host not in silent]
    answer(options, {"schema": LOGS_SCHEMA, "group": group.name, "host": group.host, "read": read, "lines": lines, "problems": problems}, lines)
    for problem in problems:
        complain(problem)
    return 1 if len(failed) == len(sources) else PARTLY if failed or unasked else 0


def _slice_of(peer: Peer, silent: list[str]) -> Slice:
    def ask(**arguments: Any) -> dict[str, Any]:
        try:
            return peer.begin("slice", SLICE_SECONDS, **arguments).result()
        except RankLost as error:
            silent.append(peer.host)
            raise RankError(f"{peer.host} does not answer: {error}.") from error

    return ask


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
    notes = [] if never else [problem] if problem else list(_notes(group, state))
    notes += [f"The soak {plan['name']} loads it for {plan['hours']:g} h. See `gb10 soak status`." for plan in look.soaking(group.folder)]
    notes += next(([each["sentence"].partition(": ")[2]] for each in look.soaks(group.folder) if each["release"] == seen["release"]), [])
    found = {
        **documents.status_document(seen, group.name, group.hosts, infos, [info.get("boot_log") or {} for info in infos]),
        "notes": notes,
        "faults": seen["faults"],
    }
    masked = dict(redact.masked(found, evidence.secrets_in(group.folder)))
    key = not group.rank and not never and _uses_made_key(group)
    return {**masked, "notes": [*masked["notes"], *([f"API key: {KEY_COMMAND}"] if key else [])]}


def ask_of(group: Group, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is asked of the API of the current release, see api_probe.Ask."""
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
