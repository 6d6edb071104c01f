"""The service: its sockets, the long poll, the actor's loop, and its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import cli, evidence, outside, protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair import service as module
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Refused
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError
from ansible_collections.gb10.cluster.plugins.module_utils._pair.service import Service, decides
from unit.fixtures.agent.wire import HELLO, FakeActor, FakeRank, configuration, descriptors, fake_ssh, until

LIMIT = 30.0
COLLECTIONS = Path(__file__).parents[5] / "collections"


class Node:
    """A service with a fake rank and a fake actor."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.rank, self.actor = FakeRank(), FakeActor()
        self.run = folder / "run"
        self.service = Service(configuration(folder, rank), run_dir=str(self.run), rank=self.rank, actor=self.actor)

    def call(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return protocol.call(verb, arguments, socket=str(self.run / "admin.sock"), timeout=LIMIT)

    def raw(self, line: bytes, name: str = "admin.sock") -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT)
            connection.connect(str(self.run / name))
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(line)
            return protocol.decode(connection.makefile("rb").readline())


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    node.service.start()
    yield node
    node.service.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, rank=1)
    node.service.start()
    yield node
    node.service.close()


def test_readings_of_the_sampler_become_the_history_and_the_end_writes_it(tmp_path: Path) -> None:
    node = Node(tmp_path, rank=1)
    kept = evidence.History(Folder(str(tmp_path), "agent"))
    sampler = SimpleNamespace(settings={"enabled": True}, run=lambda: None, close=lambda: None, changed=None)
    vars(node.rank).update(history=kept, sampler=sampler, asked_at=-1.0)
    node.service.start()
    sampler.changed({"memory": {"free_kib": 1 << 10, "available_kib": 2 << 10}})
    node.service.close()
    assert kept.shown()["recent"].endswith(" 1 2 0")
    assert json.loads((tmp_path / "agent/memory.json").read_text(encoding="utf-8"))["day"] == kept.shown()["day"]


def test_without_a_watch_the_metrics_of_an_earlier_agent_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "FOLDER", str(tmp_path))
    (tmp_path / "gb10_pair1.prom").touch()
    (tmp_path / "gb10_pair2.prom").touch()
    node = Node(tmp_path, rank=1)
    vars(node.rank).update(sampler=SimpleNamespace(settings={"enabled": False}))
    node.service.start()
    node.service.close()
    assert [path.name for path in tmp_path.glob("*.prom")] == ["gb10_pair2.prom"]


def test_a_notice_that_fails_is_an_event_and_in_the_state_of_the_watch(tmp_path: Path) -> None:
    service = Service({**configuration(tmp_path, 0), "watch": {"webhook": "http://127.0.0.1:1/"}}, run_dir=str(tmp_path / "run"), rank=FakeRank())
    service._build()
    assert "notices" not in service._shown()
    assert service._outside is not None
    service._outside._tell({"kind": "fault"})
    [event] = service._actor.events()
    assert event["text"].endswith("The webhook at http://127.0.0.1:1 failed: Connection refused. Correct vllm_tp2_watch, or its receiver.")
    assert service._shown()["notices"]["count"] == 1


# --- sockets


@pytest.mark.parametrize(("rank", "sockets"), [(0, ["admin.sock"]), (1, ["admin.sock", "session.sock"])], ids=["head", "worker"])
def test_only_root_and_the_group_of_the_agent_reach_the_sockets_and_the_head_has_no_session(tmp_path: Path, rank: int, sockets: list[str]) -> None:
    node = Node(tmp_path, rank)
    node.service.start()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in node.run.iterdir()}
    node.service.close()
    assert modes == dict.fromkeys(sockets, 0o600), "this machine has no group gb10-agent"


def test_the_session_socket_belongs_to_the_group_if_it_exists(tmp_path: Path) -> None:
    import grp

    name = grp.getgrgid(os.getgid()).gr_name
    listening = module.bound(str(tmp_path / "session.sock"), 0o660, name)
    listening.close()
    assert stat.S_IMODE((tmp_path / "session.sock").stat().st_mode) == 0o660


def test_admin_requests_have_the_names_of_the_configuration(worker: Node) -> None:
    worker.call("halt", label="", timeout=5)
    request = worker.rank.requests[0]
    assert request == {"v": 1, "verb": "halt", "group": "pair1", "head": "a1b2c3", "label": "", "timeout": 5, "local": True}
    worker.call("own", group="pair9", head="ffff")
    assert (worker.rank.requests[1]["group"], worker.rank.requests[1]["head"]) == ("pair9", "ffff")


@pytest.mark.parametrize(("version", "accepted"), [(5, True), (4, False), (6, False), (True, False)])
@pytest.mark.parametrize("name", ["admin.sock", "session.sock"])
def test_accepts_its_version_and_refuses_others_with_a_sentence(worker: Node, monkeypatch: pytest.MonkeyPatch, version: int, accepted: bool, name: str) -> None:
    monkeypatch.setattr(protocol, "PROTOCOL", 5)
    reply = worker.raw(protocol.encode({"v": version, "verb": "hello"}), name)
    assert reply["ok"] is accepted
    if not accepted:
        assert reply["error"].startswith(f"The request has protocol version {version}. The agent on lab-2 supports 5. Run site.yml for all nodes")
        assert (reply["kind"], reply["protocol"], worker.rank.requests) == ("refused", 5, [])


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b"{\n", b'{"verb": "hello"}\n', b'{"v": 1}\n', b'{"v": 1, "verb": []}\n', b'{"v": 1, "verb": {}}\n'])
@pytest.mark.parametrize("name", ["admin.sock", "session.sock"])
def test_answers_invalid_requests_with_an_error(worker: Node, line: bytes, name: str) -> None:
    assert worker.raw(line, name)["ok"] is False
    assert worker.call("hello")["request"]["verb"] == "hello"


def test_refuses_a_line_above_the_limit(worker: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_LINE", 1000)
    assert worker.raw(b"x" * 1001, "session.sock")["error"] == "A request is longer than 1000 bytes."


def test_bounds_the_connections_of_each_socket(worker: Node) -> None:
    with contextlib.ExitStack() as stack:
        for _number in range(module.MAX_CONNECTIONS):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(worker.run / "session.sock"))
        reply = worker.raw(protocol.encode({"v": 1, "verb": "hello"}), "session.sock")
        assert reply["error"] == "The agent on lab-2 has 32 connections open. Try again later."
        assert worker.call("hello")
    until(lambda: worker.raw(protocol.encode({"v": 1, "verb": "hello"}), "session.sock")["ok"])


@contextlib.contextmanager
def connected(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The process of `gb10 connect`, and the agent's end of its connection."""
    path = str(folder / "session.sock")
    argv = [sys.executable, "-c", f"import runpy, sys; sys.exit(runpy.run_path({cli.__file__!r})['connect']({path!r}))"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.settimeout(LIMIT)
        listening.bind(path)
        listening.listen()
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process, listening.accept()[0] as connection:
            yield process, connection


@pytest.mark.parametrize("reply", [b'{"ok":false}\n', b""])
def test_the_end_of_a_connection_before_the_request_ends_the_session_with_the_reply(tmp_path: Path, reply: bytes) -> None:
    """The agent has too many connections, or the head has lost its power: its end of the session stays open."""
    with connected(tmp_path) as (process, connection):
        connection.sendall(reply)
        connection.close()
        assert (process.wait(LIMIT), *process.communicate()) == (0, reply, b"")


def test_a_refusal_is_passed_on_when_the_request_cannot_be_sent(tmp_path: Path) -> None:
    with connected(tmp_path) as (process, connection):
        connection.shutdown(socket.SHUT_RD)
        assert process.stdin
        pipe = process.stdin.fileno()
        os.write(pipe, b'{"verb":"hello"}\n')
        until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4))  # it is read
        connection.sendall(b'{"ok":false}\n')
        assert (process.wait(LIMIT), *process.communicate()) == (0, b'{"ok":false}\n', b"")


def test_closes_its_sockets_and_connections(tmp_path: Path) -> None:
    node = Node(tmp_path, rank=1)
    before = descriptors()
    node.service.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT)
        connection.connect(str(node.run / "session.sock"))
        until(lambda: bool(node.service._listeners[1]._open))
        node.service.close()
        assert connection.recv(1) == b""
    until(lambda: descriptors() <= before)  # fewer, if what an earlier test left is closed meanwhile
    with pytest.raises(AgentMissing, match=r"^The agent is not running on this node \(.*admin\.sock: No such file or directory\)\. Run site\.yml, or"):
        node.call("hello")


def test_the_client_names_a_missing_agent(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "admin.sock"))
    with pytest.raises(AgentMissing, match=r"Connection refused.*systemctl start gb10-agent"):
        protocol.call("hello", socket=str(tmp_path / "admin.sock"))


def test_the_client_reports_an_agent_that_ends_during_a_call(worker: Node) -> None:
    def end(_request: Mapping[str, Any]) -> dict[str, Any]:
        worker.service.close()
        return {}

    worker.rank.answers["look"] = end
    with pytest.raises(AgentMissing, match="during look"):
        worker.call("look")


def test_the_client_reports_an_agent_that_does_not_answer(worker: Node) -> None:
    go_on = threading.Event()
    worker.rank.answers["look"] = lambda _request: protocol.success({"late": go_on.wait(LIMIT)})
    with pytest.raises(RankError, match=r"The agent did not answer look within 0\.05 s"):
        protocol.call("look", socket=str(worker.run / "admin.sock"), timeout=0.05)
    go_on.set()


# --- the head's verbs


def test_desire_reaches_the_actor_or_is_refused_with_its_sentence(head: Node) -> None:
    assert head.call("desire", state="serving", release="abc", takeover=True, seen=4) == {"generation": 8, "joined": False}
    assert [(each["release"], each["takeover"], each["seen"]) for each in head.actor.asked] == [("abc", True, 4)]

    def refuse(_arguments: dict[str, Any]) -> dict[str, Any]:
        raise Refused("Another run is under way.")

    head.actor.on_desire = refuse
    with pytest.raises(RankError, match=r"^Another run is under way\.$") as raised:
        head.call("desire", state="stopped")
    assert raised.value.kind == "refused"


@pytest.mark.parametrize("arguments", [{"state": "serving", "options": 5}, {"state": "serving", "reasons": 5}])
def test_an_invalid_desire_does_not_reach_the_actor(head: Node, arguments: dict[str, Any]) -> None:
    with pytest.raises(RankError):
        head.call("desire", **arguments)
    assert head.actor.asked == []


@pytest.mark.parametrize("verb", protocol.HEAD_VERBS)
def test_a_worker_names_the_head(worker: Node, verb: str) -> None:
    with pytest.raises(RankError, match=r"^lab-2 is rank 1 of pair1\. Run this on the head lab-1\.$"):
        worker.call(verb)


@pytest.fixture
def pair(head: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    fake_ssh(monkeypatch, tmp_path, tmp_path / "worker/run/session.sock")
    node = Node(tmp_path / "worker", rank=1)
    node.rank.answers["hello"] = lambda _request: protocol.success({**HELLO, "protocol": protocol.PROTOCOL, "host": "lab-2"})
    node.service.start()
    yield head, node
    node.service.close()


def test_peers_calls_each_worker_and_changes_nothing(pair: tuple[Node, Node]) -> None:
    head, worker = pair
    until(lambda: head.actor.steps == 1)
    assert head.call("peers") == {"peers": [{"rank": 1, "host": "lab-2", "address": "192.168.200.12", "ok": True, "error": "", "protocol": protocol.PROTOCOL}]}
    assert [request["verb"] for request in worker.rank.requests] == ["hello"]
    assert (head.actor.steps, head.actor.asked, head.rank.requests) == (1, [], [])


def test_peers_waits_for_a_silent_worker_only_until_the_limit(pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SSH_MODE", "silent")
    monkeypatch.setattr(module, "HELLO_SECONDS", 0.2)
    (entry,) = pair[0].call("peers")["peers"]
    assert entry["ok"] is False
    assert entry["error"].startswith("no reply within 0.")


def test_peers_has_the_sentence_and_the_protocol_of_a_worker_that_refuses(pair: tuple[Node, Node]) -> None:
    head, worker = pair
    worker.rank.answers["hello"] = lambda _request: protocol.refusal(protocol.PROTOCOL, "lab-2") | {"protocol": protocol.PROTOCOL + 5}
    (entry,) = head.call("peers")["peers"]
    assert (entry["ok"], entry["protocol"]) == (False, protocol.PROTOCOL + 5)
    assert entry["error"].startswith("The request has protocol version")


def test_a_change_on_the_node_ends_the_actors_wait_and_a_read_does_not(head: Node) -> None:
    until(lambda: head.actor.steps == 1)
    head.call("look")
    head.call("state")
    head.call("release_hold", name="reboot")
    until(lambda: head.actor.steps >= 2)
    assert head.actor.steps == 2


# --- the long poll


def test_returns_what_there_is_without_a_wait(head: Node) -> None:
    head.actor.event("progress")
    head.actor.event("step")
    found = head.call("events", since=1)
    assert ([event["n"] for event in found["events"]], found["next"]) == ([2], 2)
    assert head.call("events", since=2)["next"] == 2
    assert found["outcome"]["generation"] == found["desired"]["generation"] == 7


def test_gathers_progress_for_a_short_time(head: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", 0.05)
    head.actor.event("progress")
    assert len(head.call("events", since=0, wait=LIMIT, generation=7)["events"]) == 1


def test_writes_of_the_actor_end_the_wait(head: Node) -> None:
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(head.call("events", since=0, wait=LIMIT, generation=7)))
    waiting.start()
    until(lambda: bool(head.service._listeners[0]._open))
    head.actor.outcome.update(final=True, result="serves")
    head.service.store.save("outcome.json", head.actor.outcome)
    waiting.join(LIMIT)
    assert found[0]["outcome"]["result"] == "serves"


# --- the loop


def test_an_exception_of_the_actor_is_one_warning_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    node = Node(tmp_path)
    node.actor.todo = [lambda: bool(1 // 0)] * 3
    node.service.start()
    until(lambda: node.actor.steps > 3)
    node.service.close()
    events = node.actor.recorded
    assert [(event["kind"], event["n"]) for event in events] == [("warning", 1)]
    assert events[0]["text"] == "The agent failed and tries again: ZeroDivisionError: integer division or modulo by zero. See `journalctl -u gb10-agent`."
    assert capfd.readouterr().err.count("ZeroDivisionError") == 3


# --- systemd


def test_sigterm_ends_the_process_cleanly(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path[:0] = [{str(COLLECTIONS)!r}, {str(Path(__file__).parents[4])!r}]
from pathlib import Path
from unit.fixtures.agent.wire import FakeActor, FakeRank, configuration
from ansible_collections.gb10.cluster.plugins.module_utils._pair.service import Service
actor = FakeActor()
actor.todo = [lambda: __import__("time").sleep(60)]
folder = Path({str(tmp_path)!r})
sys.exit(Service(configuration(folder), run_dir=str(folder / "run"), rank=FakeRank(), actor=actor).run())
"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(LIMIT)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE) as process:
            assert systemd.recv(100) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            _out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert err.decode() == "lab-1: the agent of rank 0 of pair1 is ready.\n"
    assert os.listdir(tmp_path / "run") == []


# --- When a long poll of events returns at once.


def reply(generation: int = 7, final: bool = False, kinds: tuple[str, ...] = (), desired: int = 7, **more: Any) -> dict[str, Any]:
    return {"events": [{"kind": kind} for kind in kinds], "outcome": {"generation": generation, "final": final}, "desired": {"generation": desired, **more}}


@pytest.mark.parametrize(
    ("found", "generation", "was_final", "expected"),
    [
        (reply(), 7, False, False),
        (reply(kinds=("progress", "step", "hold", "warning")), 7, False, False),
        (reply(kinds=("progress", "verdict")), 7, False, True),
        (reply(kinds=("settled",)), 0, False, True),
        (reply(final=True), 0, False, True),
        (reply(final=True), 0, True, False),
        (reply(final=True), 7, True, True),
        (reply(desired=8), 7, False, True),
        (reply(desired=8), 0, False, False),
        (reply(generation=6, final=True), 7, True, False),
        (reply(generation=9, desired=9, replaces=[7]), 7, False, False),
        (reply(generation=9, desired=9, replaces=[7], final=True), 7, True, True),
        (reply(desired=7), 8, False, False),
    ],
)
def test_decides_whether_a_follower_must_hear_at_once(found: dict[str, Any], generation: int, was_final: bool, expected: bool) -> None:
    assert decides(found, generation, was_final) is expected
