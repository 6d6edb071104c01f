"""Answers of a compromised node or Docker Engine: any bytes and any JSON end in a sentence, and a group of which one rank lies is not served as good."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

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
from hostile import ANY_JSON, FEW, MANY
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.slow


@MANY
@given(
    line=(st.binary(max_size=300) | ANY_JSON.map(lambda value: json.dumps(value).encode())).filter(lambda line: b"Error:" not in line),
    verb=st.sampled_from(sorted(replies.TYPES)),
)
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


@FEW
@given(
    answer=st.binary(max_size=200)
    | st.sampled_from([b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
)
def test_bytes_that_are_no_http_are_refused_with_a_sentence(docker: Engine, answer: bytes) -> None:
    docker.answer = answer
    use(docker.path)
