"""Answers of a compromised node or Docker Engine: any bytes and any JSON end in a sentence, and a group of which one rank lies is not served as good."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._agent import protocol, replies, session
from ansible_collections.gb10.cluster.plugins.module_utils._agent.listener import Listener
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError, RankLost
from ansible_collections.gb10.cluster.plugins.module_utils._agent.rank import RankService
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, images, log
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._preflight import facts
from ansible_collections.gb10.cluster.plugins.module_utils._release import node
from hostile import ANY_JSON, FEW, MANY, TEXTS, places, replaced
from hypothesis import given
from hypothesis import strategies as st
from sim.nodes import SimRank
from sim.world import World

pytestmark = pytest.mark.slow


class Liar(SimRank):
    """A rank whose answers are changed before they reach the head; they pass the same check as those of a real one."""

    def __init__(self, rank: SimRank, data: st.DataObject) -> None:
        self.__dict__.update(rank.__dict__)
        self.data = data
        self.lies = 0

    def carry_out(self, verb: str, caller: tuple[str, str, int], arguments: Mapping[str, Any]) -> dict[str, Any]:
        found = super().carry_out(verb, caller, arguments)
        if self.lies < 6 and self.data.draw(st.integers(0, 9)) < 6:
            self.lies += 1
            path = self.data.draw(st.sampled_from(places(found)))
            found = replaced(found, path, self.data.draw(ANY_JSON), bool(path) and self.data.draw(st.booleans()))
        message = protocol.decode(protocol.encode({"ok": True, "result": found}))
        return replies.checked(verb, protocol.reply_of(message))


@MANY
@given(data=st.data())
def test_a_group_with_a_rank_that_lies_ends_with_a_sentence(data: st.DataObject) -> None:
    """An exception in the agent is a violation of the simulation, or the outcome `the agent failed`."""
    world = World()
    world.add_release("old", ["good"], good=True, age=100.0)
    world.add_release("new", ["good"])
    if data.draw(st.booleans()):
        world.settled_as_serving("old")
    liar = world.ranks[1] = Liar(world.ranks[1], data)
    world.allow_errors = True  # a lie may break any promise to the owner, except for those that are asserted here
    world.run(3)
    world.desire("new")
    world.run(400, until=lambda: world.actor is not None and bool(world.actor._outcome["final"]))
    outcome = world.outcome()
    report = json.dumps([outcome.get("sentence"), outcome.get("verdict"), world.store.kept], default=str)
    assert "the agent failed" not in report
    assert "Traceback" not in report
    for error in ("KeyError", "TypeError", "AttributeError", "IndexError", "ValueError"):
        assert error not in report, (outcome, liar.lies)


@MANY
@given(line=st.binary(max_size=300) | ANY_JSON.map(lambda value: json.dumps(value).encode()), verb=st.sampled_from(sorted(replies.FORMS)))
def test_any_line_of_a_worker_is_a_result_or_one_sentence(line: bytes, verb: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "ask", lambda _argv, _line, _timeout: line + b"\n")
        peer = session.Peer({"rank": 1, "host": "two", "address": "192.0.2.2"}, "pair1", "head")
        try:
            result = peer.begin(verb, 5.0).result()
        except (RankError, RankLost) as error:
            text = str(error)
            assert "Error:" not in text
            assert 0 < len(text) <= protocol.MAX_TEXT
        else:
            assert replies.checked(verb, result) == result


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nwhile True: sys.stdout.buffer.write(b'x' * 65536)",
        "import sys, time\nsys.stdout.buffer.write(b'{'); sys.stdout.flush(); time.sleep(60)",
        "import time\ntime.sleep(60)",
        "import sys, time\nwhile True: sys.stdout.write(' '); sys.stdout.flush(); time.sleep(0.01)",
        "import sys\nsys.stderr.write('no' * 10**6)",
        "import sys\nsys.stdout.write('[' * 10**6 + chr(10))",
    ],
)
def test_a_session_ends_in_time_for_all_that_a_worker_sends(program: str) -> None:
    begin = time.monotonic()
    with pytest.raises((RankLost, RankError)) as raised:
        protocol.decode(session.ask([sys.executable, "-c", program], b"{}\n", 2.0))
    assert time.monotonic() - begin < 10
    assert len(str(raised.value)) < 500


@FEW
@given(line=st.binary(max_size=300).filter(lambda data: b"\n" not in data) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_any_request_to_the_agent_has_an_answer(line: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("rank")
    rank = RankService({"group": "pair1", "rank": 1, "hosts": ["one", "two"], "directory": str(folder)}, docker_socket=str(folder / "none.sock"))
    listener = Listener(str(folder / "s"), rank.handle, "two")
    try:
        for data in (line, json.dumps({"v": 1, "verb": "look", "release": line.decode("latin-1")}).encode()):
            answer = json.loads(listener.answer(data + b"\n"))
            assert answer["ok"] in (True, False)
            assert answer["ok"] or ("Error:" not in answer["error"] and answer["error"])
    finally:
        listener.close()
    assert sorted(os.listdir(folder)) == []


# --- Docker Engine


class Engine:
    """A unix socket that answers every request with the same bytes, in HTTP or not."""

    def __init__(self, path: str) -> None:
        self.path, self.answer = path, b""
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(path)
        self._listening.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _address = self._listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                connection.sendall(self.answer)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(str(tmp_path_factory.mktemp("docker") / "docker.sock"))
    yield engine
    engine.close()


STATE = {"Status": "running", "Running": True, "Pid": 5, "ExitCode": 0, "OOMKilled": False, "Error": "", "StartedAt": TEXTS[-1], "FinishedAt": ""}
GOOD: dict[str, Any] = {
    "version": {"ApiVersion": "1.45", "MinAPIVersion": "1.24", "Version": "26.0"},
    "list": [{"Id": "abc", "Names": ["/gb10-pair1-rank0"], "Labels": {"gb10.cluster.group": "pair1"}, "Image": "vllm", "State": "running"}],
    "inspect": {
        "Id": "abc", "Name": "/gb10-pair1-rank0", "State": STATE, "Config": {"Image": "vllm", "Labels": {"gb10.cluster.rank": "0"}, "Env": ["A=1"]},
        "RestartCount": 0, "Image": "sha256:1", "HostConfig": {"Devices": [{"PathOnHost": "/dev/x"}], "DeviceRequests": [], "RestartPolicy": {"Name": "no"}},
    },
    "image": {
        "Id": "sha256:1", "RepoTags": ["vllm:x"], "RepoDigests": ["vllm@sha256:1"], "Size": 7, "Architecture": "arm64", "Os": "linux", "Created": "",
        "RootFS": {"Layers": ["sha256:2"]}, "Config": {"Labels": {}, "Env": []},
    },
    "info": {"DriverStatus": [["driver-type", "x"]], "DockerRootDir": "/var/lib/docker", "ServerVersion": "26.0", "Driver": "overlay2"},
}  # fmt: skip


def use(path: str) -> None:
    """Call what reads the engine. Each call returns or raises DockerError."""
    calls = (
        lambda: client.version(path), lambda: log.state_of(client.inspect("abc", path)), lambda: client.list_containers(["a=b"], path),
        lambda: list(node.containers_of("pair1", path)), lambda: node.image_of("vllm", path), lambda: images.info("vllm", path),
        lambda: list(log.records(client.logs("abc", 0, path))), lambda: node.look("pair1", "/none", "vllm", path),
    )  # fmt: skip
    for call in calls:
        client._negotiated[path] = "/v1.45"
        with contextlib.suppress(DockerError):
            call()
    facts.docker(Node("/", lambda *_arguments: (1, "", "")), path, "vllm")


@MANY
@given(data=st.data())
def test_any_reply_of_the_docker_engine_is_used_or_refused_with_a_sentence(docker: Engine, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(GOOD)))
    path = data.draw(st.sampled_from(places(GOOD[kind])))
    content = replaced(GOOD[kind], path, data.draw(ANY_JSON), bool(path) and data.draw(st.booleans()))
    shapes = {"json": json.dumps(content).encode(), "empty": b"", "html": b"<html>", "binary": b"\xff\xfe", "deep": b"[" * 100000}
    body = shapes[data.draw(st.sampled_from(["json", *shapes]))]
    status = data.draw(st.sampled_from(["200 OK", "200 OK", "200 OK", "404 Not Found", "500 No"]))
    docker.answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    use(docker.path)


@FEW
@given(
    answer=st.binary(max_size=200)
    | st.sampled_from([b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
)
def test_bytes_that_are_no_http_are_refused_with_a_sentence(docker: Engine, answer: bytes) -> None:
    docker.answer = answer
    use(docker.path)
