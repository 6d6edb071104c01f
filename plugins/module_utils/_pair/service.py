# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The agent's process: sockets, the loop of the actor on rank 0, and the long poll of events."""

from __future__ import annotations

import contextlib
import grp
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol, rules
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol as configuration
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Actor, Rank, Refused
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Store
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import Outside, log
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import HEAD_VERBS, READ_VERBS, SESSION_VERBS, RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._pair.session import Peer, Session

# --- A Unix socket of the agent: each connection has one request line and one reply line, in a thread of its own.

MAX_CONNECTIONS = 32
CHUNK = 1 << 16
UNUSED_SECONDS = 300.0  # after which a connection without a request is closed: its other end may no longer exist
REQUEST_SECONDS = 30.0  # from the first byte of a request to its last

Handle = Callable[[dict[str, Any]], dict[str, Any]]


def bound(path: str, mode: int, group: str = "") -> socket.socket:
    """Return a listening socket at `path`. It belongs to `group` if that group exists. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)  # before listen(), so that no other user can connect
        with contextlib.suppress(KeyError):
            if group:
                os.chown(path, -1, grp.getgrnam(group).gr_gid)
                os.chmod(path, mode)
        listening.listen(MAX_CONNECTIONS)
    except OSError:
        listening.close()
        raise
    return listening


def request_of(connection: socket.socket) -> bytes:
    """Return the request line of a connection; empty if it ends before, and longer than MAX_LINE without its end if it is too long.

    Raises OSError, also if the request does not begin within UNUSED_SECONDS, or does not end within REQUEST_SECONDS.
    """
    found, end = bytearray(), 0.0
    connection.settimeout(UNUSED_SECONDS)
    while b"\n" not in found[-CHUNK:] and len(found) <= protocol.MAX_LINE:
        if found:
            end = end or time.monotonic() + REQUEST_SECONDS
            connection.settimeout(max(0.001, end - time.monotonic()))
        data = connection.recv(CHUNK)
        if not data:
            return b""
        found += data
    return b"".join(bytes(found).partition(b"\n")[:2])


class Listener:
    """Accepts connections on one socket and answers them with `handle`, which never raises for a verb that fails."""

    def __init__(self, path: str, handle: Handle, host: str, *, mode: int = 0o600, group: str = "") -> None:
        """Open the socket and accept connections in a thread. Raises OSError."""
        self.path, self._handle, self._host = path, handle, host
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._socket = bound(path, mode, group)
        self._thread = threading.Thread(target=self._accept, daemon=True, name=f"gb10-{os.path.basename(path)}")
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._socket.accept()
            except OSError as error:
                if self._socket.fileno() < 0 or not os.path.exists(self.path):
                    return
                log(f"{self.path}: {error}")
                threading.Event().wait(0.2)  # out of file descriptors, for example
                continue
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        with self._lock:
            accepted = len(self._open) < MAX_CONNECTIONS
            if accepted:
                self._open.add(connection)
        if not accepted:
            with contextlib.suppress(OSError), connection:
                connection.sendall(protocol.encode(protocol.failure(f"The agent on {self._host} has {MAX_CONNECTIONS} connections open. Try again later.")))
            return
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="gb10-connection").start()
        except RuntimeError as error:
            log(f"{self.path}: {error}")
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):
                line = request_of(connection)
                connection.settimeout(UNUSED_SECONDS)
                if len(line) > protocol.MAX_LINE:
                    connection.sendall(protocol.encode(protocol.failure(f"A request is longer than {protocol.MAX_LINE} bytes.", "refused")))
                elif line:
                    connection.sendall(self.answer(line))
        finally:
            self._end(connection)

    def answer(self, line: bytes) -> bytes:
        """Return the reply line to a request line."""
        try:
            request = protocol.decode(line)
            if request.get("v") != protocol.PROTOCOL:
                return protocol.encode(protocol.refusal(request.get("v"), self._host))
            if not isinstance(request.get("verb"), str):
                return protocol.encode(protocol.failure("The request has no verb.", "unknown"))
            return protocol.encode(self._handle(request))
        except RankError as error:
            return protocol.encode(protocol.failure(error, error.kind))
        except Exception as error:  # noqa: BLE001  one request must not end the connection
            log(traceback.format_exc())
            return protocol.encode(protocol.failure(f"The agent on {self._host} failed: {type(error).__name__}: {error}. See `journalctl -u gb10-agent`."))

    def close(self) -> None:
        """Remove the socket and end its connections."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)
        self._socket.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


# --- The process: the loop of the actor, and the requests.

IDLE_SECONDS = 5.0  # between two looks of an actor that has nothing to do
PAUSE_SECONDS = 0.05  # between two steps that did something
LONGEST_WAIT = 30.0  # seconds of a long poll
GATHER_SECONDS = 2.0  # how long progress may wait for more
SOAK_SECONDS = 60.0  # to start a soak again
HELLO_SECONDS = 15.0  # for each worker, which are asked at the same time
DECISIVE = ("verdict", "settled")


class LiveClock:
    """The machine's clocks and the waits of the actor's thread: an ended job ends a wait within a step, a change also one between two steps."""

    def __init__(self) -> None:
        """Begin without a change."""
        self._any, self._change = threading.Event(), threading.Event()

    def monotonic(self) -> float:
        """Return seconds since some time before."""
        return time.monotonic()

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def job_ended(self) -> None:
        """End a wait within a step."""
        self._any.set()

    def changed(self) -> None:
        """End every wait."""
        self._change.set()
        self._any.set()

    def wait(self, seconds: float) -> None:
        """Wait within a step."""
        self._any.wait(max(0.0, seconds))
        self._any.clear()

    def idle(self, seconds: float) -> None:
        """Wait between two steps."""
        self._change.wait(max(0.0, seconds))
        self._change.clear()


class News:
    """Counts what is written to the store; a long poll waits for the next."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.count = 0
        self._condition = threading.Condition()

    def add(self) -> None:
        """Count one, and wake who waits."""
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    def wait(self, count: int, seconds: float) -> None:
        """Wait until more than `count` are counted."""
        with self._condition:
            self._condition.wait_for(lambda: self.count != count, seconds)


def notify(text: str) -> None:
    """Send a message to systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.connect("\0" + address[1:] if address.startswith("@") else address)
            connection.sendall(text.encode())


def decides(reply: Mapping[str, Any], generation: int, was_final: bool) -> bool:
    """Whether a follower of `generation` (0: of any) must hear this reply at once."""
    outcome, desired = reply["outcome"], reply["desired"]
    final = bool(outcome.get("final"))
    if any(event.get("kind") in DECISIVE for event in reply["events"]) or final != was_final:
        return True
    current = int(desired.get("generation") or 0)
    if generation in (current, *desired.get("replaces", ())):
        return final and outcome.get("generation") == current
    return 0 < generation < current


class Service:
    """The agent of one node. `rank` and `actor` stand in for the real ones in tests."""

    def __init__(self, config: Mapping[str, Any], *, run_dir: str = configuration.RUN, rank: Any = None, actor: Any = None) -> None:
        """Keep the configuration; `start` opens the sockets."""
        self.config = dict(config)
        self.number = int(config["rank"])
        self.host = str(config["hosts"][self.number])
        self._names = {"group": self.config["group"], "head": self.config["head_id"]}
        self._run_dir, self._rank, self._actor = run_dir, rank, actor
        self.clock, self.news = LiveClock(), News()
        self.store = Store(os.path.join(configuration.group_folder(self.config), configuration.STATE), self.news.add)
        self._step: Callable[[], bool] = getattr(actor, "step", bool)
        self._watch: Any = None
        self._sampler: Any = None
        self._outside: Outside | None = None
        self._listeners: list[Listener] = []
        self._peers: list[Peer] = []
        self._stopping = threading.Event()

    # --- life -----------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the sockets and start the actor's loop. Raises OSError."""
        self._build()
        os.makedirs(self._run_dir, mode=0o755, exist_ok=True)
        self._listeners.append(Listener(os.path.join(self._run_dir, configuration.ADMIN_NAME), self.admin, self.host))
        self._start_sampler()
        if self.number:
            path = os.path.join(self._run_dir, configuration.SESSION_NAME)
            self._listeners.append(Listener(path, self.session, self.host, mode=0o660, group=configuration.USER))
        else:
            threading.Thread(target=self._loop, daemon=True, name="gb10-actor").start()
            if os.path.isdir(os.path.join(configuration.group_folder(self.config), configuration.SOAKS)):  # its unit does not outlive a reboot
                words = [configuration.PROGRAM, "soak", "resume"]
                threading.Thread(target=run_command, args=(words, SOAK_SECONDS), daemon=True, name="gb10-soak").start()

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT. Containers are left alone."""
        reading, writing = os.pipe()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: os.write(writing, b"x"))
        self.start()
        notify("READY=1")
        log(f"{self.host}: the agent of rank {self.number} of {self.config['group']} is ready.")
        os.read(reading, 1)
        notify("STOPPING=1")
        self.close()
        return 0

    def close(self) -> None:
        """End the loop after its step, and close the sockets."""
        self._stopping.set()
        if self._sampler is not None:
            self._sampler.close()
            self._rank.history.save()
        self.clock.changed()
        self.news.add()
        for listener in self._listeners:
            listener.close()

    def _build(self) -> None:
        if self._rank is None:
            from ansible_collections.gb10.cluster.plugins.module_utils._pair import rank

            self._rank = rank.RankService(self.config)
        chosen = rules.with_defaults(self.config.get("watch"))
        self._outside = Outside(self.config, chosen, configuration.group_folder(self.config), self._shown)
        if self.number:
            return
        group, head = str(self.config["group"]), str(self.config["head_id"])
        self._peers = [Peer(peer, group, head, self.clock.job_ended, run_dir=self._run_dir) for peer in self.config["peers"]]
        if self._actor is None:
            from ansible_collections.gb10.cluster.plugins.module_utils._pair import converge
            from ansible_collections.gb10.cluster.plugins.module_utils._pair.watch import Watch

            handle = self._rank.handle
            own = Session(0, self.host, group, head, lambda request, _timeout: dict(handle(request)), self.clock.job_ended)  # it bounds its verbs itself
            ranks: list[Rank] = [own, *self._peers]
            self._actor = Actor(group, ranks, self.store, self.clock, search=_search())
            watch = self._watch = Watch(self._actor, chosen)
            self._actor.listener, self._outside.warn = self._outside.tell, lambda text: self._actor.event("warning", text)
            self._step = lambda: converge.step(self._actor, watch)

    def _start_sampler(self) -> None:
        """Observe this rank in a thread of its own, if the group is watched."""
        sampler, outside = getattr(self._rank, "sampler", None), self._outside
        if sampler is None or outside is None:
            return
        if not sampler.settings["enabled"]:
            outside.withdraw()
            return
        history = self._rank.history

        def changed(sample: dict[str, Any]) -> None:
            history.add(sample)
            outside.sampled(sample, self._rank.asked_at)

        sampler.changed, sampler.report = changed, log
        self._sampler = sampler
        threading.Thread(target=sampler.run, daemon=True, name="gb10-sampler").start()

    def _loop(self) -> None:
        last = ""
        while not self._stopping.is_set():
            acted = False
            try:
                acted = self._step()
                last = ""
            except Exception as error:  # noqa: BLE001  the actor converges again
                last = self._failed(error, last)
            self.clock.idle(PAUSE_SECONDS if acted else IDLE_SECONDS)

    def _failed(self, error: Exception, last: str) -> str:
        """Report an exception of the actor: each time in the journal, once as an event."""
        log(traceback.format_exc())
        text = f"The agent failed and tries again: {type(error).__name__}: {error}. See `journalctl -u gb10-agent`."
        if text != last:
            self._actor.event("warning", text)
        return text

    # --- requests ---------------------------------------------------------------------------------------------------------------

    def session(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer the head of the group."""
        verb = request.get("verb")
        if verb not in SESSION_VERBS:
            return protocol.failure(f"The verb {verb!r} is not available to the head. Supported: {', '.join(SESSION_VERBS)}.", "unknown")
        return dict(self._rank.handle(request))

    def admin(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer local root. Group and head default to those of the configuration."""
        verb = request.get("verb")
        if verb in HEAD_VERBS:
            return self._head(str(verb), request)
        reply = dict(self._rank.handle({**self._names, **request}, local=True))
        if verb not in READ_VERBS:
            self.clock.changed()
        return reply

    def _head(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if self.number:
            sentence = f"{self.host} is rank {self.number} of {self.config['group']}. Run this on the head {self.config['hosts'][0]}."
            return protocol.failure(sentence, "refused")
        try:
            if verb == "state":
                return protocol.success(self._state())
            if verb == "desire":
                return self._desire(request)
            if verb == "peers":
                return protocol.success({"peers": self._hellos()})
            if verb == "acknowledge":
                self._actor.acknowledge(int(request["generation"]))
                return protocol.success({})
            return self._events(int(request.get("since") or 0), float(request.get("wait") or 0.0), int(request.get("generation") or 0))
        except (KeyError, TypeError, ValueError) as error:
            log(traceback.format_exc())
            return protocol.failure(f"The verb {verb} failed: {type(error).__name__}: {error}.")

    def _state(self) -> dict[str, Any]:
        """Return what the actor knows, and what is stored on this node."""
        hello = self._rank.handle({**self._names, "v": protocol.PROTOCOL, "verb": "hello"}, local=True).get("result") or {}
        here = {"holds": hello.get("holds") or [], "owner": hello.get("owner") or {}, "running": hello.get("running") or {}}
        return {**here, **self._actor.state(), "watch": self._shown()}

    def _shown(self) -> dict[str, Any]:
        notices = {"notices": self._outside.failed} if self._outside is not None and self._outside.failed else {}
        return {**self._watch.shown, **notices} if self._watch is not None else {}

    def _hellos(self) -> list[dict[str, Any]]:
        """Call `hello` on every worker over its session. Return one entry for each."""
        jobs = [peer.begin("hello", HELLO_SECONDS) for peer in self._peers]
        found = []
        for peer, entry, job in zip(self._peers, self.config["peers"], jobs):
            answer: dict[str, Any] = {"ok": True, "error": "", "protocol": 0}
            try:
                answer["protocol"] = int(job.result().get("protocol") or 0)
            except (RankError, RankLost) as error:
                answer.update(ok=False, error=str(error), protocol=int(getattr(error, "protocol", None) or 0))
            found.append({"rank": peer.number, "host": peer.host, "address": str(entry["address"]), **answer})
        return found

    def _desire(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            reply = self._actor.desire(
                state=str(request.get("state")), release=str(request.get("release") or ""), by=str(request.get("by") or ""),
                reasons=list(request.get("reasons") or []), options=dict(request.get("options") or {}), takeover=bool(request.get("takeover")),
                seen=int(request.get("seen") or 0),
            )  # fmt: skip
        except Refused as error:
            return protocol.failure(error, "refused")
        self.clock.changed()
        return protocol.success(reply)

    def _events(self, since: int, wait: float, generation: int) -> dict[str, Any]:
        """Return events after `since` as soon as they decide, others after GATHER_SECONDS, none after `wait` seconds."""
        until = time.monotonic() + min(max(wait, 0.0), LONGEST_WAIT)
        gathering = False
        was_final: bool | None = None
        while True:
            count = self.news.count
            reply = self._news(since, generation)
            was_final = bool(reply["outcome"].get("final")) if was_final is None else was_final
            now = time.monotonic()
            if reply["events"] and not gathering:
                gathering, until = True, min(until, now + GATHER_SECONDS)
            if now >= until or self._stopping.is_set() or decides(reply, generation, was_final):
                return protocol.success(reply)
            self.news.wait(count, until - now)

    def _news(self, since: int, generation: int) -> dict[str, Any]:
        """Return the events after `since`, from a generation on. They are read after the state, so that a final outcome never comes without its events."""
        state = self._actor.state()
        events = self._actor.events(since)
        last = max([since, *(event["n"] for event in events)])
        events = [event for event in events if int(event.get("generation") or 0) >= generation]
        return {"events": events, "next": last, "outcome": state["outcome"], "desired": state["desired"]}


def _search() -> Callable[[str, Any], Any] | None:
    """Return jmespath.search; None if the library is not installed with the agent."""
    try:
        import jmespath
    except ImportError:
        return None
    found: Callable[[str, Any], Any] = jmespath.search
    return found
