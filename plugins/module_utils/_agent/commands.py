# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The subcommands of `gb10` for people and for Ansible."""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import os
import pwd
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ansible_collections.gb10.cluster.plugins.module_utils._agent import client, config, evidence, logs, report, standing
from ansible_collections.gb10.cluster.plugins.module_utils._agent.client import AgentMissing
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._agent.session import Peer
from ansible_collections.gb10.cluster.plugins.module_utils._common import redact
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import read_key
from ansible_collections.gb10.cluster.plugins.module_utils._release import files, node
from ansible_collections.gb10.cluster.plugins.module_utils._release.release import runs

DIFFERS = 2  # exit code if the group is not as desired
PARTLY = 3  # exit code if a part of the ranks cannot be read
LOOK_SECONDS = 30.0
SLICE_SECONDS = 60.0
LONGEST_CALL = 600.0
POLL_SECONDS = 25.0  # of one long poll
RETRIES = 30  # how often an agent that restarts is asked again
RETRY_SECONDS = 1.0


class CommandError(Exception):
    """The command cannot be carried out. The text is a sentence for the user."""


class Parser(argparse.ArgumentParser):
    """Errors are one sentence and exit code 1: exit code 2 has a meaning of its own."""

    def error(self, message: str) -> NoReturn:
        """Report a usage error."""
        raise CommandError(f"{message[:1].upper()}{message[1:]}. Run `gb10 --help`.")


class Group:
    """The serving group as this node's agent and the sessions to the other ranks show it."""

    def __init__(self, path: str = config.CONFIG, admin: str = config.ADMIN_SOCKET, keys_dir: str = config.KEYS, run_dir: str = config.RUN) -> None:
        """Read the configuration. Raises ConfigError."""
        self.config = config.load(path)
        self.name, self.rank, self.hosts = str(self.config["group"]), int(self.config["rank"]), list(self.config["hosts"])
        self.host = str(self.hosts[self.rank])
        self.folder = config.group_folder(self.config)
        self.admin, self._keys_dir, self._run_dir = admin, keys_dir, run_dir

    def call(self, verb: str, timeout: float = client.TIMEOUT, **arguments: Any) -> dict[str, Any]:
        """Ask this node's agent. Raises AgentMissing, RankError, PermissionError."""
        return client.send({**arguments, "verb": verb}, socket=self.admin, timeout=timeout)

    def peers(self) -> list[Peer]:
        """Return the sessions to the other ranks; a worker has none."""
        head = str(self.config["head_id"])
        return [Peer(peer, self.name, head, keys_dir=self._keys_dir, run_dir=self._run_dir, master=False) for peer in self.config["peers"]]

    def need_head(self, what: str) -> None:
        """Raise CommandError on a worker."""
        if self.rank:
            raise CommandError(f"{self.host} is rank {self.rank} of {self.name}. Run `gb10 {what}` on the head {self.hosts[0]}.")


def show(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()


def complain(text: object) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{printable(str(text))}\n")
    sys.stderr.flush()


# --- reading --------------------------------------------------------------------------------------------------------------------


def status(group: Group, _options: argparse.Namespace) -> int:
    """Print what the group does."""
    if group.rank:
        return _status_here(group)
    state = group.call("state")
    show(report.desired_line(group.name, state["desired"]))
    show(report.outcome_line(state["outcome"]))
    watch = standing.watch_line(state.get("watch") or {})
    if watch:
        show(watch)
    for hold in state.get("holds") or []:
        show(report.hold_line(hold))
    if _uses_made_key(group):
        show(report.key_line())
    looks = []
    for number, host, look, problem in _looks(group):
        looks.append(look)
        show(report.rank_line(number, host, look, problem))
    return 0 if report.agrees(state["desired"], state["outcome"], looks) else DIFFERS


def _uses_made_key(group: Group) -> bool:
    """Whether the current release uses the key that the head keeps, and not one of the inventory."""
    current = os.path.join(group.folder, "current")
    has_key = node.read_json(os.path.join(current, "release.json")).get("has_key")
    return bool(has_key) and not read_key([os.path.join(current, files.SECRETS)])


def key(group: Group, options: argparse.Namespace) -> int:
    """Print the API key of the current release."""
    group.need_head("key")
    current = os.path.join(group.folder, "current")
    has_key = node.read_json(os.path.join(current, "release.json")).get("has_key", True)
    found = read_key([os.path.join(current, files.SECRETS), os.path.join(group.folder, config.API_KEY)]) if has_key else ""
    if not found:
        raise CommandError(f"The API of {group.name} has no key.")
    show(f"Authorization: Bearer {found}" if options.header else found)
    return 0


def _look(group: Group) -> dict[str, Any]:
    return group.call("look", release="", free_share=0.0)


def _looks(group: Group) -> Iterator[tuple[int, str, report.Look | None, str]]:
    """Yield number and host of each rank, what it shows, and why nothing if that is None; the head first."""
    jobs = [(peer, peer.begin("look", LOOK_SECONDS, release="", free_share=0.0)) for peer in group.peers()]
    yield 0, group.host, _look(group), ""
    for peer, job in jobs:
        try:
            yield peer.number, peer.host, job.result(), ""
        except (RankError, RankLost) as error:
            yield peer.number, peer.host, None, f"no reply ({error})" if isinstance(error, RankLost) else str(error)


def _status_here(group: Group) -> int:
    """Print what a worker knows."""
    hello, look = group.call("hello"), _look(group)
    owner = hello.get("owner") or {}
    owned = f"owned by the head {str(owner['head'])[:12]} of {owner.get('group')}" if owner else "not owned by a head yet"
    show(f"{group.host} is rank {group.rank} of {group.name}, {owned}. Generation: {hello.get('generation')}. Head: {group.hosts[0]}.")
    for hold in hello.get("holds") or []:
        show(report.hold_line(hold))
    show(report.rank_line(group.rank, group.host, look))
    fits = not look.get("engine_error") and runs(look) != bool(hello.get("stopped"))
    return 0 if fits else DIFFERS


def events(group: Group, options: argparse.Namespace) -> int:
    """Print the last events."""
    group.need_head("events")
    found = group.call("events", since=0, wait=0.0, generation=0)["events"]
    for event in found[-options.number :] if options.number > 0 else []:
        show(report.event_line(event))
    return 0


def why(group: Group, _options: argparse.Namespace) -> int:
    """Print the last verdict."""
    group.need_head("why")
    reply = group.call("events", since=0, wait=0.0, generation=0)
    for line in report.why_lines(reply["outcome"], reply["events"], group.folder):
        show(line)
    return 0


def print_logs(group: Group, options: argparse.Namespace) -> int:
    """Print the container logs of all ranks that this node reaches, without secrets."""
    try:
        since = logs.seconds_of(options.since)
        wanted = re.compile(options.grep)
    except re.error as error:
        raise CommandError(f"{options.grep!r} is not a valid regular expression: {error}.") from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    problems: list[Exception] = []
    asks: list[tuple[int, str, logs.Ask]] = [(group.rank, group.host, lambda **arguments: group.call("slice", SLICE_SECONDS, **arguments))]
    asks += [(peer.number, peer.host, _slice_of(peer)) for peer in group.peers()]
    mask = functools.partial(redact.redact, known=evidence.secrets_in(group.folder))
    found = (logs.lines_of(ask, f"gb10-{group.name}-rank{number}", host, since) for number, host, ask in asks)
    sources = [logs.masked(lines, mask, wanted.search) for lines in found]
    limit, count = max(0, options.number), 0
    last: collections.deque[logs.Line] = collections.deque(maxlen=limit)
    for line in logs.merged(sources, problems.append):
        count += 1
        last.append(line)
        if not limit:
            show(logs.shown(line))
    for line in last:
        show(logs.shown(line))
    if 0 < limit < count:
        complain(f"{count - limit} earlier lines are not shown. The limit is {limit} lines.")
    for problem in problems:
        complain(problem)
    return 0 if not problems else 1 if len(problems) == len(sources) else PARTLY


def _slice_of(peer: Peer) -> logs.Ask:
    def ask(**arguments: Any) -> dict[str, Any]:
        try:
            return peer.begin("slice", SLICE_SECONDS, **arguments).result()
        except RankLost as error:
            raise RankError(f"{peer.host} does not answer: {error}.") from error

    return ask


# --- changing -------------------------------------------------------------------------------------------------------------------


def stop(group: Group, options: argparse.Namespace) -> int:
    """Stop the group, or only this rank."""
    if group.rank and options.here:
        return _stop_here(group)
    if group.rank:
        raise CommandError(
            f"{group.host} is rank {group.rank} of {group.name}. Run `gb10 stop` on the head {group.hosts[0]}, or `gb10 stop --here` if the head is down."
        )
    return _desire(group, options, "stopped", "", {}, [f"gb10 stop on {group.host}"])  # reads nothing first: a stop does not depend on it


def _stop_here(group: Group) -> int:
    result = group.call("stop_here", LONGEST_CALL, by=person())
    left = ", ".join(result.get("left") or [])
    if result.get("note"):
        complain(result["note"])
    if left:
        complain(f"{group.host}: {left} still runs.")
        return DIFFERS
    show(f"{group.host}: rank {group.rank} of {group.name} is stopped. The head does not start it again until a start is requested.")
    return 0


def start(group: Group, options: argparse.Namespace) -> int:
    """Start the release that was desired last, or the current one if that has failed. A pair that runs it is left alone."""
    group.need_head("start")
    state = group.call("state")
    desired, failed = state["desired"], state["outcome"].get("result") == "failed"
    looks = list(_looks(group))
    current = str((looks[0][2] or {}).get("current") or "")
    release = str((current if failed and current else desired.get("release")) or current)
    if not release:
        raise CommandError(f"{group.name} has no release on {group.host}. Run site.yml.")
    all_run = all(runs(look, release) for _number, _host, look, _problem in looks)
    reasons = [] if all_run else [f"gb10 start on {group.host}"]
    since = int(group.call("events", since=0, wait=0.0, generation=0)["next"])
    return _desire(group, options, "serving", release, dict(desired.get("options") or {}), reasons, since)


def _desire(group: Group, options: argparse.Namespace, state: str, release: str, settings: dict[str, Any], reasons: Sequence[str], since: int = 0) -> int:
    reply = group.call("desire", state=state, release=release, by=person(), reasons=list(reasons), options=settings, takeover=options.takeover)
    generation = int(reply["generation"])
    show(f"{group.name}: {'generation ' + str(generation) + ' is under way already' if reply.get('joined') else 'generation ' + str(generation)}.")
    if not options.wait:
        return 0
    last = _followed(group, generation, since)
    outcome, desired = last["outcome"], last["desired"]
    if not _covers(desired, generation):
        complain(f"Another state is desired now: generation {desired.get('generation')}, by {desired.get('by') or 'another process'}.")
        return DIFFERS
    expected = "serves" if state == "serving" else "stopped"
    good = outcome.get("result") == expected and (state == "stopped" or outcome.get("release") == release)
    (show if good else complain)(outcome.get("sentence") or f"{group.name}: {outcome.get('result')}.")
    with contextlib.suppress(AgentMissing):  # the outcome is known here; without this site.yml prints it once more
        group.call("acknowledge", generation=int(desired["generation"]))
    return 0 if good else DIFFERS


def _covers(desired: dict[str, Any], generation: int) -> bool:
    """Whether a generation is still the desired one; the actor may have renumbered it."""
    return generation in (desired.get("generation"), *(desired.get("replaces") or ()))


def _followed(group: Group, generation: int, since: int) -> dict[str, Any]:
    """Print events of a generation until it is final or another one is desired. Return the last reply."""
    missing = 0
    while True:
        try:
            reply = group.call("events", POLL_SECONDS + client.TIMEOUT, since=since, wait=POLL_SECONDS, generation=generation)
        except AgentMissing:
            missing += 1
            if missing > RETRIES:
                raise
            time.sleep(RETRY_SECONDS)
            continue
        missing, since = 0, int(reply["next"])
        for event in reply["events"]:
            if int(event.get("generation") or 0) >= generation:
                show(report.event_line(event))
        outcome, desired = reply["outcome"], reply["desired"]
        if not _covers(desired, generation) or (outcome.get("final") and outcome.get("generation") == desired.get("generation")):
            return reply


def person() -> str:
    """Return who runs this command, and where."""
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or ""
    if not user:
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(os.geteuid()).pw_name
    return f"{user or os.geteuid()}@{socket.gethostname()}"


# --- machines -------------------------------------------------------------------------------------------------------------------


def follow(group: Group, options: argparse.Namespace) -> int:
    """Print the reply of one long poll."""
    timeout = options.wait + client.TIMEOUT
    show(json.dumps(group.call("events", timeout, since=options.since, wait=options.wait, generation=options.generation)))
    return 0


def call(group: Group, options: argparse.Namespace) -> int:
    """Send any verb and print its result."""
    try:
        arguments = loads(options.arguments)
    except ValueError as error:
        raise CommandError(f"The arguments are not valid JSON: {error}.") from error
    if not isinstance(arguments, dict):
        raise CommandError("The arguments are not a JSON object.")
    show(json.dumps(client.send({**arguments, "verb": options.verb}, socket=group.admin, timeout=LONGEST_CALL)))
    return 0


def agent(group: Group, _options: argparse.Namespace) -> int:
    """Run the service."""
    from ansible_collections.gb10.cluster.plugins.module_utils._agent.service import Service

    return Service(group.config).run()


def parser() -> Parser:
    """Return the parser of the command line."""
    out = Parser(prog="gb10", description="The serving group of this node.")
    commands = out.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", help="what is desired, what runs; exit code 2 if they differ").set_defaults(run=status)
    found = commands.add_parser("events", help="what the agent did")
    found.add_argument("-n", "--number", type=int, default=20, help="how many of the last events (20)")
    found.set_defaults(run=events)
    found = commands.add_parser("logs", help="the container logs of all ranks, by time")
    found.add_argument("--since", default="10m", help="90s, 10m, 2h, 1d (10m)")
    found.add_argument("--grep", default="", metavar="RE", help="only lines that match this regular expression")
    found.add_argument("-n", "--number", type=int, default=0, help="only the last lines, this many (0: all)")
    found.set_defaults(run=print_logs)
    found = commands.add_parser("key", help="the key of the API, on the head")
    found.add_argument("--header", action="store_true", help="as a header of HTTP, such as for `curl -H @-`")
    found.set_defaults(run=key)
    commands.add_parser("why", help="the last verdict, its evidence, and what was done").set_defaults(run=why)
    for name, run, text in (("stop", stop, "stop the group"), ("start", start, "start the release that was desired last")):
        found = commands.add_parser(name, help=text)
        found.add_argument("--wait", action="store_true", default=True, help="follow until it is done (default)")
        found.add_argument("--no-wait", action="store_false", dest="wait", help="return at once")
        found.add_argument("--takeover", action="store_true", help="replace a change that is under way")
        found.set_defaults(run=run)
        if name == "stop":
            found.add_argument("--here", action="store_true", help="on a worker: stop only this rank, if the head is down")
    found = commands.add_parser("follow", help="one long poll of events, as JSON")
    found.add_argument("--generation", type=int, default=0)
    found.add_argument("--since", type=int, default=0)
    found.add_argument("--wait", type=float, default=0.0)
    found.set_defaults(run=follow)
    found = commands.add_parser("call", help="send a verb to the agent, and print the result as JSON")
    found.add_argument("verb")
    found.add_argument("arguments", nargs="?", default="{}", metavar="JSON")
    found.set_defaults(run=call)
    commands.add_parser("agent", help="run the service").set_defaults(run=agent)
    commands.add_parser("connect", help="copy standard input and output to the session socket")
    return out


def run(argv: Sequence[str], **places: str) -> int:
    """Run a subcommand and return its exit code. `places` are the paths of Group."""
    try:
        options = parser().parse_args(list(argv))
        return int(options.run(Group(**places), options))
    except PermissionError:
        complain("This user has no access to the agent. Run with sudo.")
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except KeyboardInterrupt:
        complain("Interrupted. The agent continues.")
    except (CommandError, AgentMissing, RankError, RankLost, config.ConfigError, OSError) as error:
        complain(error)
    return 1
