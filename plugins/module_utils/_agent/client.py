# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Call the agent of this node through its Unix socket."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent import protocol
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import ADMIN_SOCKET
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError

TIMEOUT = 60.0


class AgentMissing(Exception):  # noqa: N818  a state of the node
    """No agent accepts connections on this node. The text is a sentence with the remedy."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"The agent is not running on this node ({cause}). Run site.yml, or `systemctl start gb10-agent`.")


#: What call() raises.
ERRORS = (AgentMissing, RankError, OSError)


def sentence(error: Exception) -> str:
    """Return one of ERRORS as a sentence for the user of a module."""
    return f"The agent's socket {ADMIN_SOCKET} cannot be used: {error.strerror}. Run with become." if isinstance(error, OSError) else str(error)


def call(verb: str, arguments: Mapping[str, Any] | None = None, *, socket: str = ADMIN_SOCKET, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Send a verb to the agent and return its result. `timeout` bounds each read and write, in seconds.

    Raises AgentMissing, RankError, or PermissionError if this user has no access to the socket.
    """
    request = protocol.encode({"v": protocol.PROTOCOL, **(arguments or {}), "verb": verb})
    try:
        line = _ask(socket, timeout, request)
    except PermissionError:
        raise
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise AgentMissing(f"{socket}: {error.strerror}") from error
    except TimeoutError as error:
        raise RankError(f"The agent did not answer {verb} within {timeout:.3g} s. See `journalctl -u gb10-agent -n 50`.") from error
    except OSError as error:
        raise AgentMissing(f"the connection failed during {verb}: {error}") from error
    if not line.endswith(b"\n"):
        raise AgentMissing(f"it closed the connection during {verb}")
    return protocol.reply_of(protocol.decode(line))


def _ask(path: str, timeout: float, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        try:
            connection.sendall(request)
            with connection.makefile("rb") as reader:
                return reader.readline(protocol.MAX_LINE + 1)
        except socket.timeout as error:  # not a TimeoutError before Python 3.10
            raise TimeoutError from error
