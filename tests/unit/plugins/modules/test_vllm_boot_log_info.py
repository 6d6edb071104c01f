"""A boot log on a node: a file, a text, the present run of a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import vllm_boot_log_info as module
from module_run import run_module
from unit.fixtures.docker.engine import serving

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/vllm_log"


def run(capsys: pytest.CaptureFixture[str], **params: Any) -> dict[str, Any]:
    return run_module(capsys, module, **params)


def test_a_file_and_a_text_are_read_in_check_mode_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, path=str(FIXTURES / "oom.log"))
    assert (found["changed"], found["state"], found["failure"]["class"]) == (False, "failed", "cuda_oom")
    found = run(capsys, text=(FIXTURES / "head.log").read_text(), _ansible_check_mode=True)
    assert (found["state"], found["kv_cache"]["tokens"]) == ("ready", 2493464)


def test_a_container_is_read_from_its_start_with_both_streams(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with serving(tmp_path / "docker.sock", "29.0") as engine:
        state = {"Running": True, "Status": "running", "ExitCode": 0, "OOMKilled": False, "StartedAt": "2026-11-20T21:12:19.5Z"}
        engine.containers["gb10-vllm"] = {"Id": "c1", "Name": "/gb10-vllm", "State": state}
        engine.logs["c1"] = [("2026-11-20T20:00:00Z", b"ValueError: of the first run\n", 2)]
        engine.logs["c1"] += [("2026-11-20T21:12:20Z", line, 1) for line in (FIXTURES / "worker.log").read_bytes().splitlines(keepends=True)]
        engine.logs["c1"] += [("2026-11-20T21:12:30Z", b"INFO:     Uvicorn running on socket\n", 2)]
        socket = str(tmp_path / "docker.sock")
        found = run(capsys, container="gb10-vllm", docker_socket=socket)
        missing = run(capsys, container="other", docker_socket=socket)
    assert (found["state"], found["container"]["running"], found["lines_read"]) == ("ready", True, len(engine.logs["c1"]) - 1)
    assert missing["msg"] == "Container other does not exist on this host: `docker ps -a` lists its containers."


def test_a_file_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/nonexistent/boot.log cannot be read (No such file or directory)" in run(capsys, path="/nonexistent/boot.log")["msg"]
