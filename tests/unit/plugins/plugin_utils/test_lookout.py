"""A look at a boot: the program that goes to the node gives what the module gives, and the module looks on where a node refuses it."""

from __future__ import annotations

import base64
import json
import shlex
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.gb10.cluster.plugins.module_utils import boot_slice
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.plugin_utils import lookout

TEXT = b"2026-11-21T05:00:01.000000001Z INFO \xff caf\xc3\xa9\n"
INSPECTION = {"Id": "c1", "Name": "/rank0", "State": {"Status": "running", "Running": True, "StartedAt": "2026-11-21T05:00:00Z"}, "Config": {}}


class Engine(BaseHTTPRequestHandler):
    """A Docker Engine with one container, rank0."""

    def do_GET(self) -> None:
        """Answer an inspection or the log."""
        if self.path == "/version":
            self.reply(200, b'{"Version": "26.1.5", "ApiVersion": "1.45", "MinAPIVersion": "1.24"}')
        elif "/containers/rank0/json" in self.path:
            self.reply(200, json.dumps(INSPECTION).encode())
        elif "/containers/c1/logs" in self.path:
            self.reply(200, b"\x01\0\0\0" + struct.pack(">I", len(TEXT)) + TEXT)
        elif "/containers/broken/" in self.path:
            self.reply(500, b'{"message": "no space left on device"}')
        else:
            self.reply(404, b'{"message": "No such container"}')

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "docker.sock")
    with socketserver.ThreadingUnixStreamServer(path, Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield path
        server.shutdown()


class Action:
    """What a look needs of an action plugin; its node is this machine."""

    def __init__(self, *, refuses: bool = False, module: dict[str, Any] | None = None) -> None:
        self.refuses = refuses
        self.module = module
        self.calls: list[str] = []

    def _execute_module(self, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(module_name)
        assert task_vars == {"v": 1}
        return dict(self.module) if self.module is not None else {"python": sys.executable} | boot_slice.take(**module_args)

    def _low_level_execute_command(self, command: str, in_data: bytes) -> dict[str, Any]:
        self.calls.append("program")
        if self.refuses:
            return {"rc": 1, "stdout": "", "stderr": "sudo: sorry, you must have a tty to run sudo"}
        done = subprocess.run(shlex.split(command), input=in_data, capture_output=True, check=False)
        return {"rc": done.returncode, "stdout": "Welcome to spark-1!\n" + done.stdout.decode(), "stderr": done.stderr.decode()}


def looks(action: Action, count: int, **arguments: Any) -> list[dict[str, Any]]:
    out = lookout.Lookout(action, {"v": 1})
    return [out.start(**arguments).result() for _number in range(count)]


def without_memory(piece: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in piece.items() if key not in ("memory", "python")}


def test_the_program_gives_what_the_module_gives(engine: str) -> None:
    action = Action()
    first, second, third = looks(action, 3, container="rank0", docker_socket=engine, wait=0.0)
    assert action.calls == [lookout.SLICE.module, "program", "program"]
    assert without_memory(first) == without_memory(second) == without_memory(third)
    assert first["container"]["status"] == "running"
    assert first["cursor"]
    assert second["memory"]["total_kib"] == first["memory"]["total_kib"]


@pytest.mark.parametrize("begin", [0, ""])
def test_the_position_is_passed_on_as_it_is(engine: str, begin: object) -> None:
    asks = lookout.Lookout(Action(), {"v": 1})
    pieces = [asks.take({"container": "rank0", "docker_socket": engine, "wait": 0.0, "cursor": begin})]
    for _number in range(2):
        pieces.append(asks.take({"container": "rank0", "docker_socket": engine, "wait": 0.0, "cursor": pieces[-1]["cursor"]}))
    assert [bool(piece["log"]) for piece in pieces] == [True, False, False]


def test_a_node_that_refuses_the_program_is_looked_at_by_the_module(engine: str) -> None:
    action = Action(refuses=True)
    pieces = looks(action, 3, container="rank0", docker_socket=engine, wait=0.0)
    assert action.calls == [lookout.SLICE.module, "program", lookout.SLICE.module, lookout.SLICE.module]
    assert [piece["container"]["id"] for piece in pieces] == ["c1"] * 3


def test_a_container_that_is_not_there(engine: str) -> None:
    assert [piece["container"] for piece in looks(Action(), 2, container="rank9", docker_socket=engine, wait=0.0, known_state="running")] == [None, None]


def test_an_engine_that_answers_with_an_error_says_so_by_the_program_too(engine: str) -> None:
    action = Action(module={"python": sys.executable, "log": ""})
    _first, second = looks(action, 2, container="broken", docker_socket=engine)
    with pytest.raises(DockerError) as error:
        boot_slice.take("broken", docker_socket=engine)
    assert second == {"failed": True, "msg": f"Cannot follow the container broken: {error.value}"}
    assert "no space left on device" in second["msg"]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ({"failed": True, "msg": "Cannot follow"}, "Cannot follow"),
        ({"unreachable": True, "msg": "timed out"}, "timed out"),
        ({"module_stderr": "killed"}, "killed"),
        ({}, "the module gb10.cluster.container_log_slice ended without a result"),
    ],
)
def test_a_first_look_that_fails_says_why(module: dict[str, Any], said: str) -> None:
    (piece,) = looks(Action(module=module), 1, container="rank0")
    assert piece["msg"] == said


def test_a_lost_connection_reaches_the_one_who_asked() -> None:
    class Gone(Action):
        def _execute_module(self, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
            raise AnsibleConnectionFailure("no route to host")

    with pytest.raises(AnsibleConnectionFailure, match="no route to host"):
        looks(Gone(), 1, container="rank0")


def test_the_program_is_ascii_whatever_a_name_holds() -> None:
    lookout.program([(lookout.SLICE, {"container": "r\u00e4nk'\"\\"})]).encode("ascii")


def test_other_questions_go_the_same_way(engine: str, tmp_path: Path) -> None:
    """The probe's answer is the module's, its key is not in it, and the gate's first look has told it which Python to use."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = b"you sent " + (self.headers["Authorization"] or "nothing").encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_arguments: Any) -> None:
            """Say nothing."""

    key = tmp_path / "secrets.env"
    key.write_text("VLLM_API_KEY=hush-hush\n")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        action = Action()
        asks = lookout.Lookout(action, {"v": 1})
        asks.take({"container": "rank0", "docker_socket": engine, "wait": 0.0})
        look = {"container": "rank0", "docker_socket": engine, "wait": 0.0, "limit": 0}
        answer, piece = asks.ask([(lookout.PROBE, {"url": url, "env_file": str(key), "requests": []}), (lookout.SLICE, look)])
        server.shutdown()
    assert action.calls == [lookout.SLICE.module, "program"], "both in one breath"
    assert (piece["container"]["status"], piece["log"]) == ("running", "")
    assert answer["error"] == f"{url}/v1/models does not answer as a vLLM server does: you sent Bearer ********"
    assert answer["models"] == answer["replies"] == []
    assert "hush" not in json.dumps(answer)


def test_a_key_that_cannot_be_read_is_said(tmp_path: Path, engine: str) -> None:
    action = Action()
    asks = lookout.Lookout(action, {"v": 1})
    asks.take({"container": "rank0", "docker_socket": engine, "wait": 0.0})
    [answer] = asks.ask([(lookout.PROBE, {"env_file": str(tmp_path)})])
    assert answer == {"failed": True, "msg": f"Cannot read the API key from {tmp_path}: [Errno 21] Is a directory: '{tmp_path}'"}


@pytest.mark.parametrize(("text", "patient"), [(b"INFO Loading\n", True), (b"ValueError: no\n", False), (b"INFO: Application startup complete.\n", False)])
def test_harmless_news_gathers_and_decisive_news_does_not(monkeypatch: pytest.MonkeyPatch, engine: str, text: bytes, patient: bool) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TEXT", b"2026-11-21T05:00:01.000000001Z " + text)
    monkeypatch.setattr(boot_slice, "POLL_SECONDS", 0.01)
    start = time.monotonic()
    piece = boot_slice.take("rank0", known_state="running", wait=9.0, gather=0.4, docker_socket=engine)
    assert (time.monotonic() - start >= 0.4) == patient
    assert text in base64.b64decode(piece["log"])
