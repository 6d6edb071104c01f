"""Each read has a limit in bytes and in seconds (point 9, L3, M11): logs, folders, files, replies, sockets, sessions and commands."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import socketserver
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, model_folder, node, transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol, service, session

pytestmark = pytest.mark.slow

LIMIT = 20.0  # seconds; a read that ends by its own limit takes less than one
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
RECORD = b"2026-11-24T05:00:00.000000000Z a line of a log\n"
FRAME = b"\x01\0\0\0" + len(RECORD).to_bytes(4, "big") + RECORD


@contextlib.contextmanager
def serving(family: type[socketserver.BaseServer], where: Any, send: Callable[[socket.socket], None]) -> Iterator[Any]:
    """A server that reads one request of each connection and then sends what it likes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            with contextlib.suppress(OSError):
                send(self.request)

    server = family(where, Handler)
    server.daemon_threads = True  # type: ignore[attr-defined]  # of both servers with threads
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def dripping(first: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Send a piece every 20 ms, so that no single read is late."""

    def send(connection: socket.socket) -> None:
        connection.sendall(first)
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            connection.sendall(piece)
            time.sleep(0.02)

    return send


@contextlib.contextmanager
def docker(tmp_path: Path, send: Callable[[socket.socket], None]) -> Iterator[str]:
    path = str(tmp_path / "docker.sock")
    docker_api._negotiated[path] = "/v1.41"
    with serving(socketserver.ThreadingUnixStreamServer, path, send):
        yield path


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


# Replies.


def test_a_log_that_drips_ends_at_its_deadline(tmp_path: Path) -> None:
    with docker(tmp_path, dripping(HEAD, FRAME)) as path, within(LIMIT / 2), pytest.raises(DockerError, match="no reply within"):
        list(docker_api.logs("abc", 0, path, deadline=time.monotonic() + 0.5))


def test_a_reply_of_the_docker_engine_that_drips_ends(tmp_path: Path) -> None:
    with docker(tmp_path, dripping(HEAD, b" ")) as path, within(LIMIT / 2), pytest.raises(DockerError, match="no reply within"):
        docker_api.get("/info", socket_path=path, timeout=0.5)


@pytest.mark.parametrize(("first", "piece"), [(HEAD, b" "), (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")], ids=["body", "headers"])
def test_a_reply_of_the_api_that_drips_ends(first: bytes, piece: bytes) -> None:
    with serving(socketserver.ThreadingTCPServer, ("127.0.0.1", 0), dripping(first, piece)) as server, within(LIMIT / 2):
        status, text = api_probe.Server(f"http://127.0.0.1:{server.server_address[1]}", "", 0.5).call("GET", "/v1/models")
    assert (status, text) == (0, f"{api_probe.NO_REPLY} 0.5 s") or (status == 0 and "headers" in text)  # at most 100 headers are read


def test_a_reply_of_the_api_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "REPLY", 1 << 20)
    with serving(socketserver.ThreadingTCPServer, ("127.0.0.1", 0), lambda to: to.sendall(HEAD + b"x" * (2 << 20))) as server:
        status, text = api_probe.Server(f"http://127.0.0.1:{server.server_address[1]}", "", LIMIT).call("GET", "/v1/models")
    assert status == 0
    assert "longer than 1 MiB" in text


def test_a_reply_that_is_cut_is_not_a_reply() -> None:
    with serving(socketserver.ThreadingTCPServer, ("127.0.0.1", 0), lambda to: to.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}")) as server:
        connection = bounded.Connection("127.0.0.1", server.server_address[1], LIMIT)
        connection.request("GET", "/")
        with pytest.raises(http.client.IncompleteRead):
            bounded.reply(connection.getresponse())
        connection.close()


def test_an_image_may_take_long_but_not_pause(tmp_path: Path) -> None:
    with docker(tmp_path, dripping(HEAD, b"")) as path, within(LIMIT / 2):
        connection = docker_api.connect(path, LIMIT, 0.3)
        connection.request("GET", "/")
        with pytest.raises(socket.timeout):
            connection.getresponse().read()
        connection.close()


# Logs.


def peak(work: Callable[[], object]) -> int:
    """Return the bytes that a function has allocated at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("pattern", "size"), [("\u200b", 4 << 20), ("%41", 1 << 19), ("\\u0041", 1 << 19), ("token=a1b2c3d4 ", 1 << 19), ("&quot;\n", 1 << 19)]
)
def test_masking_a_long_text_takes_little_memory(pattern: str, size: int) -> None:
    text = pattern * (size // len(pattern))
    assert peak(lambda: redact.redact(text, ["known-value"])) < 24 << 20, "a log of the evidence has 4 MiB, and is masked when the memory has run out"


def backlog(records: int, taken: list[int]) -> Iterator[bytes]:
    piece = FRAME * 1000
    for _each in range(records // 1000):
        taken.append(len(piece))
        yield piece


def test_a_look_at_a_long_log_reads_no_more_than_its_limit() -> None:
    taken: list[int] = []
    reader = docker_api.LogReader()
    used = peak(lambda: reader.read(backlog(1_000_000, taken), 1 << 16))
    assert sum(taken) < 1 << 20, "the rest of 55 MB stays with the engine"
    assert used < 2 << 20


def test_a_look_passes_over_what_was_read_without_keeping_it() -> None:
    taken: list[int] = []
    reader = docker_api.LogReader("0:20000")
    assert peak(lambda: reader.read(backlog(20_000, taken), 1 << 18)) < 600_000, "20,000 records of one time"


def test_the_end_of_a_long_log_uses_twice_its_limit() -> None:
    taken: list[int] = []
    found: list[tuple[bytes, bool]] = []
    used = peak(lambda: found.append(docker_api.log_text(backlog(40_000, taken), 1 << 16)))
    text, cut = found[0]
    assert (len(text), cut) == (1 << 16, True)
    assert text.endswith(b"a line of a log\n")
    assert used < 8 << 16, "640 kB of text, and the piece of 55 kB in hand"


def test_the_output_of_a_job_is_its_last_mib(tmp_path: Path) -> None:
    job = transfer.Job("weights-download", lambda *_words: (0, "", ""), str(tmp_path))
    Path(job.log).parent.mkdir(exist_ok=True)
    Path(job.log).write_bytes(b"x" * (3 << 20) + b"the last line\n")
    found = job.output()
    assert (len(found), found[-14:]) == (1 << 20, "the last line\n")


# Files and folders.


def test_a_pipe_and_a_long_file_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b"x" * 2000)
    (tmp_path / "receipt.json").write_bytes(b'{"a": 1}' + b" " * 2000)
    for name, reason in (("pipe", "not a regular file"), ("long", "longer than 1000 bytes")):
        with within(LIMIT / 2), pytest.raises(OSError, match=reason):
            bounded.data(str(tmp_path / name), 1000)
    assert bounded.data(str(tmp_path / "long"), 2000) == b"x" * 2000
    assert Node(str(tmp_path)).read("/pipe") is None
    assert Node("/").read("/proc/sys/kernel/osrelease") == f"{os.uname().release}\n"
    assert node.read_json(str(tmp_path / "pipe")) == {}


def test_a_folder_with_too_many_files_is_refused(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/x").touch()
    assert len(list(bounded.below(str(tmp_path), 24))) == 12
    with pytest.raises(OSError, match="more than 23 files and folders"):
        list(bounded.below(str(tmp_path), 23))


def test_hashing_ends_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * (16 << 20))
    monkeypatch.setattr(model_folder, "HASH_SECONDS", -1)
    with pytest.raises(ManifestError, match="could not be hashed in"):
        model_folder.hash_files(str(tmp_path), model_folder.walk(str(tmp_path))[0], {}, fresh=True)


def test_refuses_a_sparse_file_before_it_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "sha256_file", lambda path: pytest.fail(f"hashes {path}"))
    place = tmp_path / "model.safetensors"
    place.touch()
    os.truncate(place, 64 << 30)
    with pytest.raises(ManifestError, match="is sparse"):
        model_folder.hash_files(str(tmp_path), {place.name: place.stat()}, {}, True)


# Commands and sessions.


def test_a_command_that_prints_without_end_is_cut() -> None:
    code, out, err = bounded.run_command(["sh", "-c", "head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2; exit 3"])
    assert (code, len(out), len(err)) == (3, bounded.OUTPUT, bounded.OUTPUT)


def test_a_command_gets_its_input_and_keeps_its_exit_code() -> None:
    text = "é" * 500_000
    assert bounded.run_command(["sh", "-c", "cat; echo no >&2; exit 4"], stdin=text) == (4, text, "no\n")
    assert bounded.run_command(["true"], stdin=text) == (0, "", "")


def test_a_session_that_prints_messages_without_end_is_over_in_time() -> None:
    with within(LIMIT / 2), pytest.raises(protocol.RankLost, match=r"^no reply within 0\.5 s"):
        session.ask(["sh", "-c", "yes >&2; :"], b"{}\n", 0.5)


def test_a_child_that_keeps_the_messages_open_does_not_delay_a_failed_session() -> None:
    with within(LIMIT / 2), pytest.raises(protocol.RankLost, match=r"^No route to host$"):
        session.ask(["sh", "-c", "exec 1>&-; echo 'ssh: No route to host' >&2; exec sleep 30.0731 & exit 255"], b"{}\n", LIMIT)
    subprocess.run(["pkill", "-f", "^sleep 30.0731$"], check=False)


def test_a_request_that_drips_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REQUEST_SECONDS", 0.5)
    served = service.Listener(str(tmp_path / "s"), lambda request: protocol.success({"verb": request["verb"]}), "spark-1")
    line = protocol.encode({"v": protocol.PROTOCOL, "verb": "hello"})

    @contextlib.contextmanager
    def connected() -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LIMIT)
            connection.connect(str(tmp_path / "s"))
            connection.sendall(line[:5])
            yield connection

    with contextlib.closing(served), within(LIMIT / 2):
        with connected() as connection:
            time.sleep(0.2)
            connection.sendall(line[5:])
            assert protocol.decode(connection.makefile("rb").readline())["ok"], "a request in two parts"
        with connected() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _each in range(int(LIMIT / 0.02)):
                    connection.sendall(b" ")
                    time.sleep(0.02)
            assert connection.recv(1) == b""
