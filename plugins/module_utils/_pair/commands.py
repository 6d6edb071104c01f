# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subcommands of `gb10`, and what they share: the group of this node, and how they print."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pwd
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError, RankLost

if TYPE_CHECKING:
    from ansible_collections.gb10.cluster.plugins.module_utils._pair.session import Peer


# --- The serving group of this node, as the subcommands of `gb10` use it, and what they print with.

DIFFERS = 2  # exit code if the group is not as desired
PARTLY = 3  # exit code if a part of the ranks cannot be read
LONGEST_CALL = 600.0


class CommandError(Exception):
    """The command cannot be carried out. The text is a sentence for the user."""


class Group:
    """The serving group as this node's agent and the sessions to the other ranks show it."""

    def __init__(
        self, path: str = protocol.CONFIG, admin: str = protocol.ADMIN_SOCKET, keys_dir: str = protocol.KEYS, run_dir: str = protocol.RUN,
        given: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Read the configuration of this node's agent. `given` has group, rank, hosts and directory of who asks. Raises ConfigError.

        Where the node has no agent, or one of another group or rank, `given` is taken in its place, and no rank can be asked through it.
        """
        self.strange = ""  # why this node's agent cannot be asked for the group, as a sentence
        try:
            self.config = protocol.load_config(path)
            place = (str(self.config["group"]), int(self.config["rank"]))
            if given and place != (given["group"], given["rank"]):
                self.strange = f"The agent of {given['hosts'][given['rank']]} is that of rank {place[1]} of {place[0]}. Run site.yml."
        except protocol.ConfigError as error:
            if not given:
                raise
            self.strange = str(error)
        if given and self.strange:
            self.config = {"peers": [], "head_id": "", **given}
        self.name, self.rank, self.hosts = str(self.config["group"]), int(self.config["rank"]), list(self.config["hosts"])
        self.host = str(self.hosts[self.rank])
        self.folder = protocol.group_folder(self.config)
        self.admin, self._keys_dir, self._run_dir = admin, keys_dir, run_dir

    @property
    def docker_socket(self) -> str:
        """Return the socket of the Docker Engine."""
        from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DEFAULT_SOCKET  # most verbs need none

        return str(self.config.get("docker_socket") or DEFAULT_SOCKET)

    def call(self, verb: str, timeout: float = protocol.TIMEOUT, **arguments: Any) -> dict[str, Any]:
        """Ask this node's agent. Raises AgentMissing, RankError, PermissionError, CommandError."""
        if self.strange:
            raise CommandError(self.strange)
        return protocol.call(verb, arguments, socket=self.admin, timeout=timeout)

    def peers(self) -> list[Peer]:
        """Return the sessions to the other ranks; a worker has none."""
        from ansible_collections.gb10.cluster.plugins.module_utils._pair.session import Peer as Session  # a verb of this node needs none

        head = str(self.config["head_id"])
        return [Session(peer, self.name, head, keys_dir=self._keys_dir, run_dir=self._run_dir, master=False) for peer in self.config["peers"]]

    def need_head(self, what: str) -> None:
        """Raise CommandError on a worker."""
        if self.rank:
            raise CommandError(f"{self.host} is rank {self.rank} of {self.name}. Run `gb10 {what}` on the head {self.hosts[0]}.")


def person() -> str:
    """Return who runs this command, and where."""
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or ""
    if not user:
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(os.geteuid()).pw_name
    return f"{user or os.geteuid()}@{socket.gethostname()}"


def show(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()


def complain(text: object) -> None:
    """Print a line on stderr."""
    sys.stderr.write(f"{printable(str(text))}\n")
    sys.stderr.flush()


def answer(options: Any, document: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print a document with --json, else its lines."""
    for line in [json.dumps(document).replace("\x7f", "\\u007f")] if options.json else lines:  # as ASCII that printable() leaves alone
        show(line)


# --- The subcommands of `gb10`. Each imports its own code: Python compiles what it reads of the archive at each start, in 0.7 s for all of it.

#: Names and settings of an argument, as argparse takes them.
Argument = tuple[tuple[str, ...], dict[str, Any]]
WANT_SECONDS = 30.0  # of each call of `gb10 want`
#: The request of `gb10 want`, on standard input: `state` serving or stopped; `reasons` for a start of what serves already; `seen`, the generation in which
#: they were found.
NOTHING: dict[str, Any] = {"state": "serving", "release": "", "by": "", "reasons": [], "options": {}, "takeover": False, "seen": 0}


class Parser(argparse.ArgumentParser):
    """Errors are one sentence and exit code 1: exit code 2 has a meaning of its own."""

    def error(self, message: str) -> NoReturn:
        """Report a usage error."""
        raise CommandError(f"{message[:1].upper()}{message[1:]}. Run `gb10 --help`.")


def want(group: Group, options: argparse.Namespace) -> int:
    """State what standard input has as JSON, and print what has changed; with --check, what would."""
    wanted = {**NOTHING, **loads(sys.stdin.read())}
    if wanted["state"] == "serving" and not wanted["release"]:
        raise CommandError("A state serving needs a release.")
    show(json.dumps(desire(wanted, options.check, group.call)))
    return 0


def desire(wanted: Mapping[str, Any], check: bool, call: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Set the desired state. Raises what `call` does. A stop does not depend on what can be read, and a check needs no agent."""
    from ansible_collections.gb10.cluster.plugins.module_utils._pair import standing

    def read() -> dict[str, Any]:
        try:
            return call("state", timeout=WANT_SECONDS)
        except (AgentMissing, CommandError):
            if not check:
                raise
        except RankError:
            if check or wanted["state"] != "stopped":
                raise
        return {}

    before = read()
    now = dict(before.get("desired") or {})
    if check:
        joined = standing.joins(before, wanted["state"], wanted["release"], wanted["reasons"])
        generation = int(now.get("generation", 0))
        adjusted = standing.differences(now.get("options") or {}, wanted["options"]) if joined and wanted["options"] else []
    else:
        reply = call("desire", timeout=WANT_SECONDS, **{key: wanted[key] for key in NOTHING})
        joined, generation, adjusted = bool(reply["joined"]), int(reply["generation"]), list(reply.get("adjusted") or [])
    was = _state_line(now)
    options = "".join(f"{phrase}\n" for phrase in adjusted)
    after = was + options if joined else _state_line(wanted) + "".join(f"because {reason}\n" for reason in wanted["reasons"])
    header = f"desired state, generation {generation}"
    return {
        "changed": not joined or bool(adjusted), "generation": generation, "joined": joined,
        "diff": {"before": was, "after": after, "before_header": header, "after_header": header},
    }  # fmt: skip


def _state_line(desired: Mapping[str, Any]) -> str:
    """Return a desired state as one line of a diff."""
    state = desired.get("state") or ""
    return "" if not state else "stopped\n" if state == "stopped" else f"serving {desired.get('release')}\n"


def follow(group: Group, options: argparse.Namespace) -> int:
    """Print the reply of one long poll."""
    timeout = options.wait + protocol.TIMEOUT
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
    show(json.dumps(protocol.call(options.verb, arguments, socket=group.admin, timeout=LONGEST_CALL)))
    return 0


def hold(group: Group, options: argparse.Namespace) -> int:
    """Keep the head from starting the group while this node is changed."""
    if not 1 <= options.seconds <= protocol.LONGEST_HOLD:
        raise CommandError(f"{options.seconds} is not a valid number of seconds. Use 1 to {protocol.LONGEST_HOLD:.0f}.")
    _patient(group, "hold", name=options.name, reason=options.reason, seconds=options.seconds, by=person())
    show(f"{group.host} has the hold {options.name} for {options.seconds} s. To end it: gb10 release {options.name}")
    return 0


def release(group: Group, options: argparse.Namespace) -> int:
    """End a hold of this node."""
    found = _patient(group, "release_hold", name=options.name)
    show(f"{group.host} {'has released' if found.get('released') else 'does not have'} the hold {options.name}.")
    return 0


def _patient(group: Group, verb: str, **arguments: Any) -> dict[str, Any]:
    """Call the agent. One that has just been started gets 10 s."""
    for _attempt in range(10):
        try:
            return group.call(verb, **arguments)
        except AgentMissing:
            time.sleep(1)
    return group.call(verb, **arguments)


def agent(group: Group, _options: argparse.Namespace) -> int:
    """Run the service."""
    from ansible_collections.gb10.cluster.plugins.module_utils._pair.service import Service

    return Service(group.config).run()


def _flag(name: str, text: str, **more: Any) -> Argument:
    return (name,), {"action": "store_true", "help": text, **more}


def _number(*names: str, default: float, text: str) -> Argument:
    return names, {"type": type(default), "default": default, "help": f"{text} ({default:g})"}


_JSON = _flag("--json", "as one JSON document")
_CHANGE = [_flag("--takeover", "replace a change that is under way"), _flag("--no-wait", "return at once", action="store_false", dest="wait")]
_ASK = [
    _number("--timeout", default=10.0, text="seconds until a completion counts as late"),
    _number("--completion-timeout", default=120.0, text="seconds that a completion may take"),
    _number("--wedge-seconds", default=20.0, text="seconds after which tokens that stand still are a fault"),
    (("--idle-power",), {"type": float, "metavar": "W", "help": "power of an idle GPU; by default what was measured"}),
]
_WAIT = _flag("--wait", "follow until it is done (default)", default=True)
#: By name: module and function that run it, its help (none for what a program calls: `gb10 --help` does not list it), and its arguments.
COMMANDS: dict[str, tuple[str, str, list[Argument]]] = {
    "status": ("_pair.verbs_read.status", "what the group does; exit code 2 if that is not as it should be, 3 if a rank was not read", [
        _JSON, _flag("--no-completion", "do not ask the API", action="store_false", dest="completion"),
        *_ASK, (("--lost",), {"default": "", "help": argparse.SUPPRESS}),  # why the head is not known, on a worker
    ]),
    "doctor": ("_checks.doctor.doctor", "what is wrong with the group, and what to do; exit code 2 if there is an error", [
        _JSON, *_ASK, _flag("--read", argparse.SUPPRESS),  # what this rank shows, for the head
    ]),
    "why": ("_pair.verbs_read.why", "the last verdict, its evidence, and what was done", [_JSON]),
    "events": ("_pair.verbs_read.events", "what the agent did", [_JSON, _number("-n", "--number", default=20, text="how many of the last events")]),
    "logs": ("_pair.verbs_read.print_logs", "the container logs of all ranks, by time", [
        _JSON, _number("-n", "--number", default=0, text="only the last lines, this many; 0 is all"),
        (("--since",), {"default": "10m", "help": "90s, 10m, 2h, 1d (10m)"}),
        (("--grep",), {"default": "", "metavar": "RE", "help": "only lines that match this regular expression"}),
    ]),
    "boot": ("_pair.verbs_read.boot", "what the log of this rank's last boot shows: its stage, the failure, and what to change", [
        _JSON, (("file",), {"nargs": "?", "default": "", "metavar": "FILE", "help": "a file with a boot log, such as the output of docker logs"}),
    ]),
    "evidence": ("_pair.verbs_read.print_evidence", "what this node shows of its rank, or what was kept of it, without secrets", [
        _JSON, _flag("--list", "the labels of what is kept, the newest first"),
        (("label",), {"nargs": "?", "default": "", "metavar": "LABEL", "help": "print what is kept under this label"}),
    ]),
    "key": ("_pair.verbs_read.key", "the key of the API, on the head", [_flag("--header", "as a header of HTTP, such as for `curl -H @-`")]),
    "check": ("_pair.verbs_measure.check", "send prompts to the model and judge the replies; exit code 2 if one is bad", [
        _JSON, _flag("--streams", "a line for each reply instead of each level"),
        (("--concurrency",), {"default": "1,2,4,6", "metavar": "N,N", "help": "how many at once, one level after the other (%(default)s)"}),
        (("--cases",), {"default": "prompts", "metavar": "NAME,NAME", "help": "prompts, victim, staggered, cold-tools (%(default)s)"}),
        _number("--cold-tokens", default=20_000, text="tokens of the prompt of cold-tools"),
        _number("--timeout", default=600.0, text="seconds that one request may take"),
        (("--prompts",), {"default": "", "metavar": "FILE", "help": "a JSON list of prompts of your own; - reads standard input"}),
    ]),
    "bench": ("_pair.verbs_measure.bench", "measure the model with the tools of the role bench; exit code 2 if that ends early", [
        _JSON, (("--suite",), {"default": "quick", "choices": ["quick", "seed", "full", "tools"], "help": "what is measured (%(default)s)"}),
        (("--cases",), {"default": "short", "metavar": "NAME,NAME", "help": "of tool-eval-bench: short, whole, hard, ifeval, needle, spec (%(default)s)"}),
        (("--given",), {"default": "", "metavar": "FILE", "help": "JSON with levels, and profile and its published figures; - reads standard input"}),
        _flag("--plan", argparse.SUPPRESS),  # what would be measured, for a playbook
        _number("--budget", default=0, text="seconds that the suite may take; 0 is the suite's own"),
        _number("--memory-floor", default=4.0, text="GiB of MemAvailable of a rank below which no other level starts"),
    ]),
    "soak": ("_pair.soak.soak", "hours of load as users make it, with a sample a minute and a verdict; exit code 2 if the verdict is failed", [
        _JSON, (("action",), {"choices": ["start", "status", "stop", "verdict", "run", "resume"], "metavar": "start|status|stop|verdict|resume"}),
        (("names",), {"nargs": "*", "metavar": "SOAK", "help": "names of soaks; verdict compares two; without one the newest"}),
        _number("--restarts", default=0, text="how many restarts by the agent, after faults that are known or caused on purpose, do not fail it"),
        _number("--hours", default=12.0, text="when it ends"), _number("--interval", default=60.0, text="seconds between two samples"),
        _number("--pause", default=15.0, text="mean seconds between two requests of a user"),
        (("--seed",), {"default": "", "help": "the same seed is the same load; by default a new one"}),
        (("--against",), {"default": "", "metavar": "RELEASE", "help": "then soak this kept release with the same load, and go back to the present one"}),
        (("--label",), {"default": "", "metavar": "TEXT", "help": "what differs in that release, for the page of both"}),
        _flag("--wait", "of verdict: wait until no soak goes on"),
    ]),
    "stop": ("_pair.verbs_change.stop", "stop the group", [*_CHANGE, _WAIT, _flag("--here", "on a worker: stop only this rank, if the head is down")]),
    "start": ("_pair.verbs_change.start", "start the release that was desired last", [*_CHANGE, _WAIT]),
    "rollback": ("_pair.verbs_change.rollback", "go to the last good release that is not current, or to another kept one", [
        *_CHANGE, _JSON, (("release",), {"nargs": "?", "default": "", "metavar": "RELEASE"}),
        _flag("--list", "list the releases that are kept, and change nothing"), _flag("--check", "print what would be done, and change nothing"),
        _flag("--again", "also if this release has failed, and nothing of it has changed"),
        (("--by",), {"default": "", "metavar": "WHO", "help": "who asks, for messages to other runs"}),
    ]),
    "hold": ("_pair.commands.hold", "keep the agent from starting the group while this node is changed", [
        (("name",), {"metavar": "NAME"}), (("--reason",), {"required": True, "help": "for status, doctor and other runs"}),
        _number("--seconds", default=3600, text="when it ends by itself"),
    ]),
    "release": ("_pair.commands.release", "end a hold", [(("name",), {"metavar": "NAME"})]),
    "want": ("_pair.commands.want", "", [_flag("--check", "print the change, and make none")]),  # what the group must do, for Ansible: JSON on standard input
    "follow": ("_pair.commands.follow", "", [  # one long poll of events, as JSON
        (("--generation",), {"type": int, "default": 0}), (("--since",), {"type": int, "default": 0}), (("--wait",), {"type": float, "default": 0.0}),
    ]),
    "call": ("_pair.commands.call", "", [  # send a verb to the agent, and print the result as JSON
        (("verb",), {}), (("arguments",), {"nargs": "?", "default": "{}", "metavar": "JSON"}),
    ]),
    "agent": ("_pair.commands.agent", "", []),  # run the service
}  # fmt: skip


def parser() -> Parser:
    """Return the parser of the command line."""
    out = Parser(prog="gb10", description="The serving group of this node.")
    commands = out.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (where, text, arguments) in COMMANDS.items():
        found = commands.add_parser(name, help=text) if text else commands.add_parser(name)
        for names, given in arguments:
            found.add_argument(*names, **given)
        found.set_defaults(run=where)
    commands.add_parser("connect")  # copy standard input and output to the session socket
    return out


def run(argv: Sequence[str], **places: Any) -> int:
    """Run a subcommand and return its exit code. `places` are the arguments of Group."""
    try:
        options = parser().parse_args(list(argv))
        module, _dot, function = options.run.rpartition(".")
        return int(getattr(importlib.import_module(f"{__name__.rpartition('._')[0]}.{module}"), function)(Group(**places), options))
    except PermissionError:
        complain("This user has no access to the agent. Run with sudo.")
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except KeyboardInterrupt:
        complain("Interrupted. The agent continues.")
    except (CommandError, AgentMissing, RankError, RankLost, protocol.ConfigError, OSError) as error:
        complain(error)
    return 1
