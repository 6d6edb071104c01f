# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The head's session over OpenSSH, what sshd's configuration on a worker means for it, and what preflight judges of both.

A call is a process of ssh over the connection that an earlier one has left open (ControlMaster), so it needs no handshake of its own.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import CONNECT, USER, RankError, RankLost

# --- What the configuration of sshd on a worker means for the head's key, by the output of `sshd -T -C ...`.

SSHD_FILE = "/etc/ssh/sshd_config"
NO_RUN_DIRECTORY = "privilege separation directory"  # absent until the first connection with socket activation


def parse_sshd(text: str) -> dict[str, list[str]]:
    """Return setting -> values, one for each line; settings are in lower case."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _space, value = line.strip().partition(" ")
        if key:
            found.setdefault(key.lower(), []).append(value.strip())
    return found


def sshd_connection(user: str, host: str, address: str, local: str = "") -> str:
    """Return the argument of `sshd -T -C` for a connection; `local` is this node's address, empty if it is not known."""
    return f"user={user},host={host},addr={address}" + (f",laddr={local},lport=22" if local else "")


def sshd_unreadable(rc: int, text: str) -> str:
    """Return why `sshd -T` ended with a code other than 0, with the remedy, as one or two sentences."""
    if rc == 127:
        return "sshd is not installed on this node. The head reaches a worker by SSH: install the package openssh-server."
    return f"sshd -T failed on this node: {(text.strip().splitlines() or ['no output'])[-1]}. Correct {SSHD_FILE}."


def sshd_port(text: str) -> int:
    """Return the first port that sshd listens on; 22 if the text has none."""
    for value in parse_sshd(text).get("port", []):
        if value.isdigit() and 0 < int(value) < 65536:
            return int(value)
    return 22


#: What the head's key needs: setting, sshd's default, whether a value lets it in, and the remedy.
NEEDS: tuple[tuple[str, str, Callable[[str], bool], str], ...] = (
    ("PubkeyAuthentication", "yes", lambda value: value == "yes", f"Set PubkeyAuthentication yes in a block Match User {USER} before it"),
    (
        "AuthorizedKeysFile", ".ssh/authorized_keys", lambda value: bool({".ssh/authorized_keys", "%h/.ssh/authorized_keys"} & set(value.split())),
        "Add .ssh/authorized_keys to AuthorizedKeysFile",
    ),
    ("ForceCommand", "none", lambda value: value in ("none", CONNECT), f"Set ForceCommand none in a block Match User {USER} before it"),
    ("ChrootDirectory", "none", lambda value: value == "none", f"Set ChrootDirectory none in a block Match User {USER} before it"),
    (
        "AuthenticationMethods", "any", lambda value: bool({"any", "publickey"} & set(value.split())),
        f"Set AuthenticationMethods publickey in a block Match User {USER} before it",
    ),
    ("RefuseConnection", "no", lambda value: value == "no", f"Set RefuseConnection no in a block Match User {USER} before it"),
    (
        "PubkeyAcceptedAlgorithms", "ssh-ed25519", lambda value: any(fnmatchcase("ssh-ed25519", each) for each in value.split(",")),
        "Add ssh-ed25519 to PubkeyAcceptedAlgorithms",
    ),
)  # fmt: skip


def host_match(host: str, address: str, pattern: str) -> bool:
    """Whether a host part of AllowUsers matches the host's name or address; it may be a network."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return any(fnmatchcase(each.lower(), pattern.lower()) for each in (host, address))


def sshd_problems(text: str, groups: Sequence[str], host: str, address: str) -> list[str]:
    """Return one sentence for each setting that keeps the head's key from working, with the remedy."""
    settings = parse_sshd(text)

    def user_matches(pattern: str) -> bool:
        name, at, where = pattern.rpartition("@")
        return fnmatchcase(USER, name) and host_match(host, address, where) if at else fnmatchcase(USER, pattern)

    def group_matches(pattern: str) -> bool:
        return any(fnmatchcase(group, pattern) for group in groups)

    found: list[tuple[str, str]] = []
    for kind, who, matches in (("Users", USER, user_matches), ("Groups", f"the group {USER}", group_matches)):
        allowed, denied = (" ".join(settings.get(f"{word}{kind.lower()}", [])).split() for word in ("allow", "deny"))
        found += [(f"Deny{kind} {pattern}", f"Change Deny{kind} so that it does not match {who}") for pattern in filter(matches, denied)]
        if allowed and not any(map(matches, allowed)):
            found.append((f"Allow{kind} {' '.join(allowed)}", f"Add {who} to Allow{kind}"))
    values = {name: settings.get(name.lower(), [default])[0] for name, default, _fits, _remedy in NEEDS}
    found += [(f"{name} {values[name]}", remedy) for name, _default, fits, remedy in NEEDS if not fits(values[name])]
    return [f"sshd has {what} for user {USER} from {host} ({address}). {remedy} in {SSHD_FILE}, and reload sshd." for what, remedy in found]


def source_address(address: str) -> str:
    """Return this node's address towards another one, from the routing table; empty if there is no route. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def sshd_output(node: Node, user: str = "", host: str = "", address: str = "") -> tuple[int, str]:
    """Return the code of `sshd -T`, for one connection if there is a user, and its output or its error text."""
    local = source_address(address) if address and node.root == "/" else ""
    rc, out, err = node.run(["sshd", "-T", *(["-C", sshd_connection(user, host, address, local)] if user else [])])
    return rc, out if rc == 0 else (err.strip() or out)


def sshd_problems_of(node: Node, host: str, address: str, rc: int, text: str) -> list[str]:
    """Return one sentence for each setting of a worker's sshd that keeps the head's key from working. `rc` and `text` are of output()."""
    if rc != 0:
        return [] if NO_RUN_DIRECTORY in text else [sshd_unreadable(rc, text)]
    code, names, _err = node.run(["id", "-nG", USER])
    return sshd_problems(text, names.split() if code == 0 else [USER], host, address)


# --- What preflight judges of this node's agent: whether it answers, and the head's path to the workers.
# Reads only.

Record = dict[str, Any]
Call = Callable[..., Record]

HELLO_SECONDS = 5.0
PEERS_SECONDS = 20.0  # more than the agent gives its workers


def head_address(text: str) -> str:
    """Return the first address in from= of the agent's authorized_keys; empty if there is none."""
    match = re.search(r'from="([^",]+)', text)
    try:
        return str(ipaddress.ip_address(match[1])) if match else ""
    except ValueError:
        return ""


def sshd_problems_here(node: Node, head: str) -> list[str]:
    """Return one sentence for each setting of a worker's sshd that keeps the head's key from working."""
    address = head_address(node.read(protocol.AUTHORIZED) or "")
    if not address:
        return []
    return sshd_problems_of(node, head, address, *sshd_output(node, protocol.USER, head, address))


def read_for_preflight(node: Node, call: Call | None = None) -> Record:
    """Return the facts of the agent; `call` stands in for the socket. A node without an agent has no other key than `installed`."""
    try:
        known = node.mapping(protocol.CONFIG)
        group, rank, head = str(known["group"]), int(known["rank"]), str(known["hosts"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        return {"installed": False}
    if not node.exists(protocol.UNIT_FILE):
        return {"installed": False}
    found: Record = {
        "installed": True, "group": group, "rank": rank, "active": True, "error": "", "peers": [], "sshd_problems": [],
    }  # fmt: skip
    call = call or protocol.call
    try:
        if rank:
            call("hello", timeout=HELLO_SECONDS)
        else:
            found["peers"] = list(call("peers", timeout=PEERS_SECONDS).get("peers") or [])
    except PermissionError:
        return {**found, "active": None, "error": "only root may ask the agent"}
    except protocol.AgentMissing as error:
        found.update(active=False, error=error.cause)
    except RankError as error:
        # An agent that refuses is running.
        if error.kind == "failed":
            found.update(active=False, error=str(error).rstrip("."))
    if rank:
        found["sshd_problems"] = sshd_problems_here(node, head)
    return found


# --- The ranks as the actor calls them: jobs in threads, over OpenSSH for a worker and within the process for rank 0.

GRACE = 2.0  # seconds after its timeout by which a job must have ended by itself
STDERR = 4096  # bytes of ssh's messages that are read
_CAUSE = re.compile(
    r"connect(?:ion)? (?:failed|lost): [^\n]+|Permission denied \([^)\n]*\)|Host key verification failed|Connection (?:timed out|refused|reset|closed)[^\n]*"
    r"|Operation timed out|No route to host|Network is unreachable|Could not resolve hostname[^\n]*|Timeout, server [^\n]*"
)

_HELLO = {"host": str, "owner": dict, "generation": int, "stopped": str, "stop_generation": int}
#: What the head checks of a reply: the types of what it reads, by verb. A verb that is missing here is asked of rank 0 only, which is the agent itself.
TYPES: dict[str, dict[str, type]] = {
    "hello": _HELLO, "claim": _HELLO, "slice": {}, "watch": {"hello": dict, "sample": dict}, "phase": {}, "reclaim": {"note": str},
    "start": {}, "halt": {"left": list}, "doctor": {"facts": dict, "info": dict},
    "look": {
        "containers": list, "engine_error": str, "memory": dict, "current": str, "releases": list, "stopped": str, "processes": dict, "missing": list,
        "blocked": str,
    },
}  # fmt: skip


def ssh_argv(peer: Mapping[str, Any], keys_dir: str = protocol.KEYS, run_dir: str = protocol.RUN, *, master: bool = True) -> list[str]:
    """Return ssh's argv for one call of a worker. Without `master` it uses the agent's connection if there is one, and does not create one."""
    rank = peer["rank"]
    options = [
        "BatchMode=yes", "IdentitiesOnly=yes", "IdentityAgent=none", f"UserKnownHostsFile={keys_dir}/{protocol.KNOWN_HOSTS_NAME}",
        "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes", f"HostKeyAlias={protocol.host_alias(rank)}",
        f"ControlMaster={'auto' if master else 'no'}",
        f"ControlPath={run_dir}/control-{rank}", "ControlPersist=60", "ConnectTimeout=10",
        "ServerAliveInterval=2", "ServerAliveCountMax=2",  # a silent worker is noticed within 6 s; the verbs and the judge ask again for 20 s
    ]  # fmt: skip
    argv = ["ssh", "-F", "/dev/null", "-T", "-i", f"{keys_dir}/{protocol.KEY_NAME}"]
    for option in options:
        argv += ["-o", option]
    argv += ["-b", str(peer["bind"])] if peer.get("bind") else []
    return [*argv, "-p", str(peer.get("port") or 22), f"{peer.get('user') or protocol.USER}@{peer['address']}"]


def cause_of(stderr: str, code: int | None) -> str:
    """Return why ssh ended, in one line without a full stop."""
    found = _CAUSE.findall(stderr)
    if found:
        return str(found[-1]).strip().rstrip(".")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][:200].rstrip(".") if lines else f"its connection over the rail has ended, exit code {code} of ssh"


class ThreadJob:
    """A call in a daemon thread. It counts as lost if it has not ended GRACE seconds after its timeout."""

    def __init__(self, work: Callable[[], dict[str, Any]], timeout: float, wake: Callable[[], None] | None) -> None:
        """Start the call; `wake` is called when it ends."""
        self._work, self._timeout, self._wake = work, timeout, wake
        self._deadline = time.monotonic() + timeout + GRACE
        self._ended = threading.Event()
        self._result: dict[str, Any] = {}
        self._error: Exception | None = None
        try:
            threading.Thread(target=self._run, daemon=True, name="gb10-job").start()
        except RuntimeError as error:  # no more threads
            self._error = RankLost(f"the agent cannot start a thread ({error})")
            self._ended.set()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except (RankError, RankLost) as error:
            self._error = error
        except Exception as error:  # noqa: BLE001  the actor receives it as the rank's failure
            self._error = RankError(f"{type(error).__name__}: {error}")
        self._ended.set()
        if self._wake:
            self._wake()

    def done(self) -> bool:
        """Whether `result` returns at once."""
        return self._ended.is_set() or time.monotonic() >= self._deadline

    def result(self) -> dict[str, Any]:
        """Return the result; wait for it if the job is not done. Raises RankError, RankLost."""
        if not self._ended.wait(max(0.0, self._deadline - time.monotonic())):
            raise RankLost(f"no reply within {self._timeout:.3g} s")
        if self._error is not None:
            raise self._error
        return self._result


def ask(argv: list[str], line: bytes, timeout: float) -> bytes:
    """Send a request line through ssh, whose forced command answers it, and return the reply line. Raises RankLost."""
    try:
        # pylint: disable-next=ansible-bad-function  # the agent runs without Ansible and its run_command
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S603
    except OSError as error:
        raise RankLost("ssh is not installed on this node" if isinstance(error, FileNotFoundError) else f"ssh cannot be started ({error})") from error
    reply, messages, ended = bounded.converse(
        process, line, timeout, (protocol.MAX_LINE + 1, STDERR), lambda out: out.endswith(b"\n") or len(out) > protocol.MAX_LINE
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(bounded.LINGER if ended else 0)
    process.kill()
    process.wait()
    text = messages.decode("utf-8", "replace")
    if len(reply) > protocol.MAX_LINE:
        raise RankLost(f"the reply is longer than {protocol.MAX_LINE} bytes")
    if reply.endswith(b"\n"):
        return reply
    if not ended:
        found = _CAUSE.findall(text)
        raise RankLost(f"no reply within {timeout:.3g} s" + (f" ({found[-1].strip().rstrip('.')})" if found else ""))
    raise RankLost(cause_of(text, process.returncode))


def checked(verb: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a verb. Raises RankError if a part of it that the head reads is missing or of another type, as that of another version can be."""
    if verb not in TYPES:
        return result
    places = [(result, TYPES[verb]), *([(result["hello"], _HELLO)] if verb == "watch" and isinstance(result.get("hello"), dict) else [])]
    wrong = [key for place, types in places for key, kind in types.items() if not isinstance(place.get(key), kind)]
    if wrong:
        raise RankError(f"its reply to {verb} has no valid {wrong[0]}")
    return result


class Session:
    """The calls of one rank: the envelope of requests, and the thread of a call. `send` takes a request and its timeout, and returns the reply."""

    def __init__(
        self, number: int, host: str, group: str, head: str, send: Callable[[dict[str, Any], float], dict[str, Any]], wake: Callable[[], None] | None = None
    ) -> None:
        """`wake` is called at the end of each call."""
        self.number, self.host = number, host
        self.generation = 0  # set by the actor
        self._group, self._head, self._send, self._wake = group, head, send, wake

    def begin(self, verb: str, limit: float, /, **arguments: Any) -> ThreadJob:
        """Start a verb that may take `limit` seconds."""
        request = {**arguments, "v": protocol.PROTOCOL, "verb": verb, "group": self._group, "head": self._head, "generation": self.generation}
        return ThreadJob(lambda: checked(verb, protocol.reply_of(self._send(request, limit))), limit, self._wake)


class Peer(Session):
    """A worker, over OpenSSH. `peer` is its entry in the configuration."""

    def __init__(
        self, peer: Mapping[str, Any], group: str, head: str, wake: Callable[[], None] | None = None, *, keys_dir: str = protocol.KEYS,
        run_dir: str = protocol.RUN, master: bool = True,
    ) -> None:  # fmt: skip
        """Keep the address; each call is a process of ssh."""
        super().__init__(int(peer["rank"]), str(peer["host"]), group, head, self._ask, wake)
        self._argv = ssh_argv(peer, keys_dir, run_dir, master=master)

    def _ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        line = ask(self._argv, protocol.encode(request), timeout)
        try:
            return protocol.decode(line)
        except RankError as error:
            raise RankLost(f"the reply is not valid ({error})") from error
