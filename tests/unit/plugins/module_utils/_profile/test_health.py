"""The health check that runs inside a rank's container."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import health_check

Row = tuple[int, int, str, str, str]  # pid, parent, state, comm, command line

SERVE = (1, 0, "S", "vllm", "/usr/bin/python3 /opt/env/bin/vllm serve /m --headless")
WORKER = (40, 1, "R", "VLLM::Worker_TP1", "VLLM::Worker_TP1")
TRACKER = (30, 1, "S", "python3", "python3 -c from multiprocessing.resource_tracker import main;main(31)")
EXEC = (90, 0, "T", "vllm", "vllm bench serve")  # `docker exec`: not the engine's


def folder(tmp_path: Path, rows: list[Row]) -> str:
    """Write /proc of a container."""
    for pid, parent, state, comm, command in rows:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({comm}) {state} {parent} 1 1 0 -1 4194304")
        (tmp_path / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\xff\0")
    (tmp_path / "self").mkdir()
    (tmp_path / "77").mkdir()  # a process that has just ended
    return str(tmp_path)


def run(root: str, *places: str) -> tuple[int, str]:
    """Run the check as Docker does, on another /proc and other APIs."""
    _cmd, _python, *words = health_check({"port": 8000}, 1, {})["test"]  # type: ignore[index]
    assert words[-1] == "/proc"
    done = subprocess.run([sys.executable, *words[:-1], root, *places], capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([SERVE, WORKER, TRACKER], ""),
        ([SERVE, WORKER, EXEC], ""),
        ([SERVE, (12, 1, "S", "python3", "/usr/bin/python3 -c from multiprocessing.spawn import spawn_main")], ""),
        ([SERVE, (12, 1, "S", "sh", "sh"), (*WORKER[:1], 12, *WORKER[2:])], ""),
        ([SERVE, WORKER, (41, 1, "T", "sleep", "sleep 1")], ""),
        # A program without engine processes of its own: Ray, or the stub of the VM lab.
        ([(1, 0, "S", "ray", "/usr/bin/python3 /usr/bin/ray start --block")], ""),
        ([SERVE, TRACKER], "the engine process does not run"),
        ([SERVE, EXEC], "the engine process does not run"),
        ([(*SERVE[:2], "T", *SERVE[3:]), WORKER], "the engine process is stopped (PID 1, vllm)"),
        ([(1, 0, "T", "ray", "ray start")], "the engine process is stopped (PID 1, ray)"),
        ([SERVE, (*WORKER[:2], "T", *WORKER[3:])], "the engine process is stopped (PID 40, VLLM::Worker_TP1)"),
        ([SERVE, (*WORKER[:2], "t", *WORKER[3:])], "the engine process is stopped (PID 40, VLLM::Worker_TP1)"),
        ([SERVE, (*WORKER[:2], "Z", WORKER[3], "")], "the engine process is dead (PID 40, VLLM::Worker_TP1)"),
    ],
)
def test_the_processes_decide_as_they_do_on_the_node(tmp_path: Path, rows: list[Row], text: str) -> None:
    code, message = run(folder(tmp_path, rows))
    assert (code, message) == (1 if text else 0, text)
    tree = node.process_tree([node.Process(*row) for row in rows], 1)
    assert bool(node.engine_fault(tree, judged=True)) == bool(text)


def test_a_table_without_the_main_process_is_a_failure(tmp_path: Path) -> None:
    assert run(folder(tmp_path, [WORKER]))[0] == 1


@pytest.fixture(name="api")
def api_(tmp_path: Path) -> Iterator[tuple[dict[str, int], str]]:
    answer = {"status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer["status"] if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name of the base class
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield answer, f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_the_head_also_needs_its_api(tmp_path: Path, api: tuple[dict[str, int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer, place = api
    root = folder(tmp_path, [SERVE, WORKER])
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # of the container; not for its own API
    assert run(root, place) == (0, "")
    answer["status"] = 503
    assert run(root, place) == (1, "/health: HTTP 503")
    code, message = run(root, "127.0.0.1:9")
    assert (code, message.splitlines()[-1]) == (1, "ConnectionRefusedError: [Errno 111] Connection refused")


@pytest.mark.parametrize(("host", "place"), [("0.0.0.0", "127.0.0.1:8000"), ("10.0.0.1", "10.0.0.1:8000"), ("fd00::1", "[fd00::1]:8000")])
def test_the_head_is_asked_at_the_address_that_its_api_binds(host: str, place: str) -> None:
    assert (health_check({"host": host, "port": 8000}, 0, {}) or {})["test"][-1] == place
