# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The serving group of this node, as the subcommands of `gb10` use it, and what they print with."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.terminal import printable
from ansible_collections.gb10.cluster.plugins.module_utils._pair import config, protocol

if TYPE_CHECKING:
    from ansible_collections.gb10.cluster.plugins.module_utils._pair.session import Peer

DIFFERS = 2  # exit code if the group is not as desired
PARTLY = 3  # exit code if a part of the ranks cannot be read
LONGEST_CALL = 600.0


class CommandError(Exception):
    """The command cannot be carried out. The text is a sentence for the user."""


class Group:
    """The serving group as this node's agent and the sessions to the other ranks show it."""

    def __init__(
        self, path: str = config.CONFIG, admin: str = config.ADMIN_SOCKET, keys_dir: str = config.KEYS, run_dir: str = config.RUN,
        given: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Read the configuration of this node's agent. `given` has group, rank, hosts and directory of who asks. Raises ConfigError.

        Where the node has no agent, or one of another group or rank, `given` is taken in its place, and no rank can be asked through it.
        """
        self.strange = ""  # why this node's agent cannot be asked for the group, as a sentence
        try:
            self.config = config.load(path)
            place = (str(self.config["group"]), int(self.config["rank"]))
            if given and place != (given["group"], given["rank"]):
                self.strange = f"The agent of {given['hosts'][given['rank']]} is that of rank {place[1]} of {place[0]}. Run site.yml."
        except config.ConfigError as error:
            if not given:
                raise
            self.strange = str(error)
        if given and self.strange:
            self.config = {"peers": [], "head_id": "", **given}
        self.name, self.rank, self.hosts = str(self.config["group"]), int(self.config["rank"]), list(self.config["hosts"])
        self.host = str(self.hosts[self.rank])
        self.folder = config.group_folder(self.config)
        self.admin, self._keys_dir, self._run_dir = admin, keys_dir, run_dir

    @property
    def docker_socket(self) -> str:
        """Return the socket of the Docker Engine."""
        from ansible_collections.gb10.cluster.plugins.module_utils._node.client import DEFAULT_SOCKET  # most verbs need none

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
