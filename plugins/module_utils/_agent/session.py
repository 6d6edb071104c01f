# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The ranks as the actor calls them: jobs in threads, over OpenSSH for a worker and within the process for rank 0."""

from __future__ import annotations

import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._agent import config, protocol
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError, RankLost

GRACE = 2.0  # seconds after its timeout by which a job must have ended by itself
LINGER = 1.0  # seconds that a channel may take to close
IDLE_SECONDS = 10.0  # after which the next verb closes a channel of slices: its boot has ended
STDERR = 4096  # bytes of ssh's messages that are kept
_CAUSE = re.compile(
    r"connect(?:ion)? (?:failed|lost): [^\n]+|Permission denied \([^)\n]*\)|Host key verification failed|Connection (?:timed out|refused|reset|closed)[^\n]*"
    r"|Operation timed out|No route to host|Network is unreachable|Could not resolve hostname[^\n]*|Timeout, server [^\n]*"
)


def ssh_argv(peer: Mapping[str, Any], keys_dir: str = config.KEYS, run_dir: str = config.RUN, *, master: bool = True) -> list[str]:
    """Return ssh's argv for one channel to a worker. Without `master` it uses the agent's connection if there is one, and does not create one."""
    rank = peer["rank"]
    options = [
        "BatchMode=yes", "IdentitiesOnly=yes", "IdentityAgent=none", f"UserKnownHostsFile={keys_dir}/{config.KNOWN_HOSTS_NAME}",
        "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes", f"HostKeyAlias={config.host_alias(rank)}", f"ControlMaster={'auto' if master else 'no'}",
        f"ControlPath={run_dir}/control-{rank}", "ControlPersist=60", "ConnectTimeout=10",
        "ServerAliveInterval=3", "ServerAliveCountMax=2",  # a silent worker is noticed within 9 s; the verbs and the judge ask again for 20 s
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
    return lines[-1][:200].rstrip(".") if lines else f"ssh ended with exit code {code} and without a message"


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


class Channel:
    """One ssh process with the forced command at its other end: request lines in, reply lines out."""

    def __init__(self, argv: list[str]) -> None:
        """Start ssh. Raises RankLost."""
        try:
            # pylint: disable-next=ansible-bad-function  # the agent runs without Ansible and its run_command
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)  # noqa: S603
        except OSError as error:
            raise RankLost("ssh is not installed on this node" if isinstance(error, FileNotFoundError) else f"ssh cannot be started ({error})") from error
        self._in, self._out, self._err = (pipe.fileno() for pipe in (self._process.stdin, self._process.stdout, self._process.stderr) if pipe)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._read = bytearray()
        self._messages = b""

    def ask(self, line: bytes, deadline: float) -> bytes | None:
        """Send a line and return the reply's; None if the channel ended first. Raises RankLost if the deadline passes."""
        poll = select.poll()
        poll.register(self._in, select.POLLOUT)
        poll.register(self._out, select.POLLIN)
        poll.register(self._err, select.POLLIN)
        begin, searched = time.monotonic(), 0
        while True:
            end = self._read.find(b"\n", searched) + 1
            if end:
                break
            searched = len(self._read)
            left = deadline - time.monotonic()
            if left <= 0:
                raise RankLost(f"no reply within {max(deadline - begin, 0):.3g} s" + self._told())
            for descriptor, _event in poll.poll(left * 1000 + 1):
                if descriptor == self._in:
                    line = self._send(line)
                    if not line:
                        poll.unregister(self._in)
                elif descriptor == self._err:
                    if not self._drain():
                        poll.unregister(self._err)
                elif not self._receive():
                    return None
        reply = bytes(self._read[:end])
        del self._read[:end]
        return reply

    def _send(self, line: bytes) -> bytes:
        """Write what the pipe takes and return the rest."""
        try:
            return line[os.write(self._in, line[: 1 << 16]) :]
        except BlockingIOError:
            return line
        except OSError:  # ssh has ended: its output tells why
            return b""

    def _receive(self) -> bool:
        """Read from the pipe. Return whether the channel is still open."""
        try:
            data = os.read(self._out, 1 << 16)
        except BlockingIOError:
            return True
        self._read += data
        if len(self._read) > protocol.MAX_LINE:
            raise RankLost(f"the reply is longer than {protocol.MAX_LINE} bytes")
        return bool(data)

    def _drain(self) -> bool:
        """Keep the last of ssh's messages. Return whether there may be more."""
        try:
            data = os.read(self._err, 1 << 16)
        except BlockingIOError:
            return False
        self._messages = (self._messages + data)[-STDERR:]
        return bool(data)

    def _told(self) -> str:
        found = _CAUSE.findall(self._messages.decode("utf-8", "replace"))
        return f" ({found[-1].strip().rstrip('.')})" if found else ""

    def cause(self) -> str:
        """Return why the channel ended."""
        try:
            self._process.wait(LINGER)
        except subprocess.TimeoutExpired:
            self._process.kill()
        while self._drain():
            pass
        return cause_of(self._messages.decode("utf-8", "replace"), self._process.poll())

    def finish(self) -> None:
        """Close the input, wait briefly for the other end to close, and release everything."""
        if self._process.stdin:
            self._process.stdin.close()
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        deadline = time.monotonic() + LINGER
        while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            try:
                if not os.read(self._out, 1 << 16):
                    break
            except BlockingIOError:
                continue
        self.close()

    def close(self) -> None:
        """End ssh and release its pipes."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()
        self._process.wait()


class _Caller:
    """What Peer and Local share: the envelope of requests."""

    def __init__(self, number: int, host: str, group: str, head: str, wake: Callable[[], None] | None) -> None:
        self.number, self.host = number, host
        self.generation = 0  # set by the actor
        self._group, self._head, self._wake = group, head, wake

    def _request(self, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {**arguments, "v": protocol.PROTOCOL, "verb": verb, "group": self._group, "head": self._head, "generation": self.generation}


class Local(_Caller):
    """Rank 0, in the agent's own process. `handle` is that of a RankService."""

    def __init__(
        self, number: int, host: str, group: str, head: str, handle: Callable[[dict[str, Any]], dict[str, Any]], wake: Callable[[], None] | None = None
    ) -> None:
        """Keep the service's function."""
        super().__init__(number, host, group, head, wake)
        self._handle = handle

    def begin(self, verb: str, limit: float, /, **arguments: Any) -> ThreadJob:
        """Start a verb that may take `limit` seconds."""
        request = self._request(verb, arguments)
        return ThreadJob(lambda: protocol.reply_of(self._handle(request)), limit, self._wake)


class Peer(_Caller):
    """A worker, over OpenSSH. `peer` is its entry in the configuration."""

    def __init__(
        self, peer: Mapping[str, Any], group: str, head: str, wake: Callable[[], None] | None = None, *, keys_dir: str = config.KEYS,
        run_dir: str = config.RUN, master: bool = True,
    ) -> None:  # fmt: skip
        """Keep the address; the first call connects."""
        super().__init__(int(peer["rank"]), str(peer["host"]), group, head, wake)
        self._argv = ssh_argv(peer, keys_dir, run_dir, master=master)
        self._version = protocol.PROTOCOL
        self._slices = threading.Lock()
        self._channel: Channel | None = None
        self._asked = 0.0  # when the last slice ended

    def begin(self, verb: str, limit: float, /, **arguments: Any) -> ThreadJob:
        """Start a verb that may take `limit` seconds."""
        request = self._request(verb, arguments)
        return ThreadJob(lambda: self._call(request, limit), limit, self._wake)

    def _call(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Return the verb's result. If the worker refuses the protocol version and this agent supports the worker's, ask again with that one."""
        deadline = time.monotonic() + timeout
        ask = self._slice if request["verb"] == "slice" else self._short
        while True:
            version = request["v"] = self._version
            line = ask(protocol.encode(request), deadline)
            try:
                reply = protocol.decode(line)
            except RankError as error:
                raise RankLost(f"the reply is not valid ({error})") from error
            try:
                return protocol.reply_of(reply)
            except RankError as error:
                if error.protocol is None or error.protocol >= version or not protocol.accepts(error.protocol):
                    raise
                self._version = error.protocol

    def _short(self, line: bytes, deadline: float) -> bytes:
        if time.monotonic() - self._asked > IDLE_SECONDS:
            self.close()
        channel = Channel(self._argv)
        try:
            reply = channel.ask(line, deadline)
            if reply is None:
                raise RankLost(channel.cause())
        except BaseException:
            channel.close()
            raise
        channel.finish()
        return reply

    def _slice(self, line: bytes, deadline: float) -> bytes:
        """Ask on the persistent channel. If it has ended since its last reply, ask once more on a new one: a slice changes nothing."""
        if not self._slices.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RankLost("an earlier slice has not ended")
        try:
            reply = self._persistent(line, deadline) if self._channel else None
            reply = reply if reply is not None else self._persistent(line, deadline)
            if reply is None:
                raise RankLost(self._cause)
            return reply
        finally:
            self._asked = time.monotonic()
            self._slices.release()

    def _persistent(self, line: bytes, deadline: float) -> bytes | None:
        self._channel = self._channel or Channel(self._argv)
        reply = None
        try:
            reply = self._channel.ask(line, deadline)
            if reply is None:
                self._cause = self._channel.cause()
        finally:
            if reply is None:
                self._channel.close()
                self._channel = None
        return reply

    def close(self) -> None:
        """End the persistent channel, unless a slice is under way."""
        if self._slices.acquire(blocking=False):
            if self._channel:
                self._channel.close()
            self._channel = None
            self._slices.release()
