# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The subcommands of `gb10` for people and for Ansible."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from ansible_collections.gb10.cluster.plugins.module_utils._agent import check, client, config, status, verbs_change, verbs_read
from ansible_collections.gb10.cluster.plugins.module_utils._agent.client import AgentMissing
from ansible_collections.gb10.cluster.plugins.module_utils._agent.group import LONGEST_CALL, CommandError, Group, complain, show
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._gate.load_test import LEVELS


class Parser(argparse.ArgumentParser):
    """Errors are one sentence and exit code 1: exit code 2 has a meaning of its own."""

    def error(self, message: str) -> NoReturn:
        """Report a usage error."""
        raise CommandError(f"{message[:1].upper()}{message[1:]}. Run `gb10 --help`.")


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
    found = commands.add_parser("status", help="what the group does; exit code 2 if that is not as it should be, 3 if a rank was not read")
    found.add_argument("--json", action="store_true", help="as one JSON document")
    found.add_argument("--no-completion", action="store_false", dest="completion", help="do not ask the API")
    found.add_argument("--timeout", type=float, default=10.0, help="seconds until a completion counts as late (10)")
    found.add_argument("--completion-timeout", type=float, default=120.0, help="seconds that a completion may take (120)")
    found.add_argument("--lost", default="", help=argparse.SUPPRESS)  # why the head is not known, on a worker
    found.set_defaults(run=status.status)
    found = commands.add_parser("events", help="what the agent did")
    found.add_argument("-n", "--number", type=int, default=20, help="how many of the last events (20)")
    found.set_defaults(run=verbs_read.events)
    found = commands.add_parser("logs", help="the container logs of all ranks, by time")
    found.add_argument("--since", default="10m", help="90s, 10m, 2h, 1d (10m)")
    found.add_argument("--grep", default="", metavar="RE", help="only lines that match this regular expression")
    found.add_argument("-n", "--number", type=int, default=0, help="only the last lines, this many (0: all)")
    found.set_defaults(run=verbs_read.print_logs)
    found = commands.add_parser("key", help="the key of the API, on the head")
    found.add_argument("--header", action="store_true", help="as a header of HTTP, such as for `curl -H @-`")
    found.set_defaults(run=verbs_read.key)
    found = commands.add_parser("check", help="send prompts to the model and judge the replies; exit code 2 if one is bad")
    found.add_argument("--concurrency", default=",".join(map(str, LEVELS)), metavar="N,N", help="how many at once, one level after the other (%(default)s)")
    found.add_argument("--streams", action="store_true", help="a line for each reply instead of each level")
    found.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds that one request may take (600)")
    found.add_argument("--prompts", default="", metavar="FILE", help="a JSON list of prompts of your own; - reads standard input")
    found.add_argument("--json", action="store_true", help="print one document instead of text")
    found.set_defaults(run=check.check)
    commands.add_parser("why", help="the last verdict, its evidence, and what was done").set_defaults(run=verbs_read.why)
    for name, run, text in (("stop", verbs_change.stop, "stop the group"), ("start", verbs_change.start, "start the release that was desired last")):
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


def run(argv: Sequence[str], **places: Any) -> int:
    """Run a subcommand and return its exit code. `places` are the arguments of Group."""
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
