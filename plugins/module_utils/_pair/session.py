# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The ranks as the actor calls them: jobs in threads, over OpenSSH for a worker and within the process for rank 0.

A call is a process of ssh over the connection that an earlier one has left open (ControlMaster), so it needs no handshake of its own.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import cut
from ansible_collections.gb10.cluster.plugins.module_utils._pair import config, protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import MAX_TEXT, MAX_TEXTS, RankError, RankLost

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
#: Of a reply itself: what may be longer than a text.
LONG = ("log", "manifest", "receipt")


def ssh_argv(peer: Mapping[str, Any], keys_dir: str = config.KEYS, run_dir: str = config.RUN, *, master: bool = True) -> list[str]:
    """Return ssh's argv for one call of a worker. Without `master` it uses the agent's connection if there is one, and does not create one."""
    rank = peer["rank"]
    options = [
        "BatchMode=yes", "IdentitiesOnly=yes", "IdentityAgent=none", f"UserKnownHostsFile={keys_dir}/{config.KNOWN_HOSTS_NAME}",
        "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes", f"HostKeyAlias={config.host_alias(rank)}", f"ControlMaster={'auto' if master else 'no'}",
        f"ControlPath={run_dir}/control-{rank}", "ControlPersist=60", "ConnectTimeout=10",
        "ServerAliveInterval=2", "ServerAliveCountMax=2",  # a silent worker is noticed within 6 s; the verbs and the judge ask again for 20 s
    ]  # fmt: skip
    argv = ["ssh", "-F", "/dev/null", "-T", "-i", f"{keys_dir}/{config.KEY_NAME}"]
    for option in options:
        argv += ["-o", option]
    argv += ["-b", str(peer["bind"])] if peer.get("bind") else []
    return [*argv, "-p", str(peer.get("port") or 22), f"{peer.get('user') or config.USER}@{peer['address']}"]


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
    """Return the result of a verb, with bounded texts and numbers, because the head quotes what containers print. Raises RankError if it is not one."""
    if verb not in TYPES:
        return result
    try:
        found = dict(cut(result, MAX_TEXT, MAX_TEXTS, LONG))
    except ValueError as error:
        raise RankError(f"its reply to {verb} is not valid: {error}") from error
    places = [(found, TYPES[verb]), *([(found["hello"], _HELLO)] if verb == "watch" and isinstance(found.get("hello"), dict) else [])]
    wrong = [key for place, types in places for key, kind in types.items() if not isinstance(place.get(key), kind)]
    if wrong:
        raise RankError(f"its reply to {verb} has no valid {wrong[0]}")
    return found


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
        self, peer: Mapping[str, Any], group: str, head: str, wake: Callable[[], None] | None = None, *, keys_dir: str = config.KEYS,
        run_dir: str = config.RUN, master: bool = True,
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
