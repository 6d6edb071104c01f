# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all parts of the agent agree on: paths and configuration on a node, the verbs, and JSON lines with one request and one reply."""

from __future__ import annotations

import inspect
import json
import os
import socket
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads

# --- The agent's paths on a node, and its configuration.

PROGRAM = "/usr/local/sbin/gb10"
CONFIG = "/etc/gb10-cluster/agent.json"
KEYS = "/var/lib/gb10-cluster/agent"
KEY_NAME = "id_ed25519"
KNOWN_HOSTS_NAME = "known_hosts"
KEY = f"{KEYS}/{KEY_NAME}"
KNOWN_HOSTS = f"{KEYS}/{KNOWN_HOSTS_NAME}"
RUN = "/run/gb10-agent"
ADMIN_NAME = "admin.sock"
ADMIN_SOCKET = f"{RUN}/{ADMIN_NAME}"
SESSION_NAME = "session.sock"
#: On workers: the user that the head logs in as, and its group, which owns the session socket.
USER = "gb10-agent"
HOME = "/var/lib/gb10-agent"
SSH = f"{HOME}/.ssh"
AUTHORIZED = f"{SSH}/authorized_keys"
CONNECT = f"{PROGRAM} connect"
UNIT = "gb10-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
#: In the folder of the group: the folders of state and of evidence, the mark of a stop, the folder of soaks; and files of the state of every rank.
STATE, EVIDENCE, STOPPED, SOAKS = "agent", "evidence", "stopped", "soak"
API_KEY = "api_key"  # on the head: an env file with the key that the first run made
OWNER, HOLDS, FABRIC, WATCH = "owner.json", "holds.json", "fabric.json", "watch.json"


class ConfigError(Exception):
    """The agent's configuration cannot be used. The text is a sentence with the remedy."""


def load_config(path: str = CONFIG) -> dict[str, Any]:
    """Return the configuration, which root alone may read: it can hold the URL of a webhook. Raises ConfigError, PermissionError."""
    try:
        with open(path, encoding="utf-8") as handle:
            found = loads(handle.read())
    except FileNotFoundError as error:
        raise ConfigError(f"This node has no agent: {path} does not exist. Run site.yml.") from error
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Run site.yml.") from error
    return {"peers": [], "watch": {}, **found}


def group_folder(config: Mapping[str, Any]) -> str:
    """Return the folder of the serving group."""
    return os.path.join(str(config["directory"]), str(config["group"]))


def host_alias(rank: int) -> str:
    """Return the name of a worker in known_hosts."""
    return f"gb10-rank{rank}"


# --- What the agents and their clients send each other: JSON lines, one request and one reply; and the call of this node's agent by its Unix socket.

PROTOCOL = 1
#: Bytes of one line, its end included.
MAX_LINE = 8 << 20
#: Characters of a text of another process that are used.
MAX_TEXT = 4000
TIMEOUT = 60.0  # of one call
LONGEST_HOLD = 7 * 86400.0  # seconds, as the verb accepts them. More is left only by a clock that was ahead
#: Verbs that only rank 0 answers.
HEAD_VERBS = ("state", "desire", "events", "acknowledge", "peers")


class RankError(Exception):
    """A verb failed on a rank that answers. `kind` is refused, failed or unknown; `protocol` is the rank's version if it refused the version."""

    def __init__(self, message: str, kind: str = "failed", protocol: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.protocol = protocol


class RankLost(Exception):  # noqa: N818  a state of the connection
    """A rank does not answer: the connection failed or timed out. The text is the cause in one line."""


class AgentMissing(Exception):  # noqa: N818  a state of the node
    """No agent accepts connections on this node. The text is a sentence with the remedy."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(f"The agent is not running on this node ({cause}). Run site.yml, or `systemctl start gb10-agent`.")


#: What call() raises.
ERRORS = (AgentMissing, RankError, OSError)


def shortened(text: str) -> str:
    """Return a text of at most MAX_TEXT characters. Its middle is left out: the end has the remedy."""
    half = MAX_TEXT // 2 - 3
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"


def refusal(version: object, host: str) -> dict[str, Any]:
    """Return the reply to a request of a version that is not supported."""
    error = (
        f"The request has protocol version {version}. The agent on {host} supports {PROTOCOL}."
        " Run site.yml for all nodes of the group with one version of gb10.cluster."
    )
    return {"ok": False, "error": error, "kind": "refused", "protocol": PROTOCOL}


def success(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply of a verb that succeeded."""
    return {"ok": True, "result": dict(result)}


def failure(error: object, kind: str = "failed") -> dict[str, Any]:
    """Return the reply of a verb that failed."""
    return {"ok": False, "error": str(error), "kind": kind}


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line. Raises RankError if it is longer than MAX_LINE."""
    line = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(line) > MAX_LINE:
        raise RankError(f"A message of {len(line)} bytes is longer than the limit of {MAX_LINE} bytes.")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """Return the message of a line. Raises RankError if it is not a JSON object."""
    try:
        message = loads(line)
    except ValueError as error:
        raise RankError(f"A message is not valid JSON: {error}. Found {line[:80]!r}.") from error
    if not isinstance(message, dict):
        raise RankError(f"A message is not a JSON object. Found {line[:80]!r}.")
    return message


def reply_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result in a reply. Raises RankError if the verb failed, or if the message is not a reply."""
    result = message.get("result")
    if message.get("ok") is True and isinstance(result, dict):
        return result
    if message.get("ok") is not False:
        raise RankError(f"A reply has no result. Found {str(dict(message))[:80]}.")
    protocol = message.get("protocol")
    kind = message.get("kind")
    raise RankError(
        str(message.get("error") or "The rank reports a failure without a text.")[:MAX_TEXT],
        kind if kind in ("refused", "failed", "unknown") else "failed",
        protocol if isinstance(protocol, int) else None,
    )


def call(verb: str, arguments: Mapping[str, Any] | None = None, *, socket: str = ADMIN_SOCKET, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Send a verb to the agent and return its result. `timeout` bounds each read and write, in seconds.

    Raises AgentMissing, RankError, or PermissionError if this user has no access to the socket.
    """
    request = encode({"v": PROTOCOL, **(arguments or {}), "verb": verb})
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
    return reply_of(decode(line))


def _ask(path: str, timeout: float, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(path)
        try:
            connection.sendall(request)
            with connection.makefile("rb") as reader:
                return reader.readline(MAX_LINE + 1)
        except socket.timeout as error:  # not a TimeoutError before Python 3.10
            raise TimeoutError from error


# --- The verbs of a rank and how each is guarded. Their arguments are the parameters of the methods of RankService.

#: read: not guarded, and it never waits. claim: by the method itself, one at a time. work: only the owner, one at a time. local: only local root.
VERBS = {
    "hello": "read", "claim": "claim", "look": "read", "doctor": "read", "slice": "read", "probe": "read", "reclaim": "work", "phase": "work", "start": "work",
    "halt": "work", "watch": "read", "engine": "read", "record": "work", "memory": "local", "stop_here": "local", "hold": "local",
    "release_hold": "local", "own": "local",
}  # fmt: skip
#: Verbs that the head sends to a worker; session.sock accepts no other.
SESSION_VERBS = tuple(name for name, guard in VERBS.items() if guard != "local")
READ_VERBS = tuple(name for name, guard in VERBS.items() if guard == "read")
_ENVELOPE = ("v", "verb", "group", "head", "generation")


class Caller(NamedTuple):
    """Who asks: a group's head, and the generation of its desired state."""

    group: str
    head: str
    generation: int


def take_arguments(method: Callable[..., Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method in a request; None counts as not given."""
    found = inspect.signature(method).parameters
    given = {key: value for key, value in request.items() if value is not None}
    if any(each.kind is each.VAR_KEYWORD for each in found.values()):
        return {key: value for key, value in given.items() if key not in _ENVELOPE}
    return {key: given[key] for key in found if key in given}
