"""The module: file, text, container and unit to facts, with tools of our own in PATH."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.modules import vllm_boot_log_info as module
from unit.fixtures.docker.engine import FakeEngine, serving

ROOT = Path(__file__).resolve().parents[4]
FIXTURES = ROOT / "tests" / "unit" / "fixtures" / "vllm_log"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory for tools that stand before the real ones in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def tool(folder: Path, name: str, script: str) -> None:
    """Write an executable shell script."""
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


def run(tools: Path, **params: Any) -> dict[str, Any]:
    """Run the module with our tools in PATH, and return what it printed."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, PATH=f"{tools}:/usr/bin:/bin"),
        patch_module_args({**params, "_ansible_remote_tmp": str(tools), "_ansible_tmpdir": str(tools), "_ansible_keep_remote_files": True}),
        contextlib.redirect_stdout(printed),
        pytest.raises(SystemExit),
    ):
        module.main()
    result: dict[str, Any] = json.loads(printed.getvalue())
    return result


def test_a_file(tools: Path) -> None:
    """The public return values are at the top level."""
    result = run(tools, path=str(FIXTURES / "oom.log"))
    assert result["changed"] is False
    assert (result["state"], result["failure"]["class"], result["kv_cache"]["tokens"], result["restarts"]) == ("failed", "cuda_oom", 300000, 0)
    assert [b["state"] for b in result["boots"]] == ["failed"]
    assert "warnings" not in result


def test_a_compressed_file(tools: Path, tmp_path: Path) -> None:
    """Rotated logs are."""
    path = tmp_path / "boot.log.gz"
    path.write_bytes(gzip.compress((FIXTURES / "head.log").read_bytes()))
    assert run(tools, path=str(path))["state"] == "ready"


def test_text_in_check_mode(tools: Path) -> None:
    """Reading is all that it does."""
    result = run(tools, text=(FIXTURES / "head.log").read_text(), _ansible_check_mode=True)
    assert (result["state"], result["kv_cache"]["tokens"]) == ("ready", 2493464)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    """An engine with one container whose second run has written worker.log, on an engine that refuses API versions below 1.44."""
    with serving(tmp_path / "docker.sock", "29.0") as fake:
        state = {"Running": True, "Status": "running", "ExitCode": 0, "OOMKilled": False, "StartedAt": "2026-11-20T21:12:19.5Z"}
        fake.containers["gb10-vllm"] = {"Id": "c1", "Name": "/gb10-vllm", "RestartCount": 2, "State": state}
        fake.logs["c1"] = [("2026-11-20T20:00:00Z", b"ValueError: of the first run\n", 2)]
        fake.logs["c1"] += [("2026-11-20T21:12:20Z", line, 1) for line in (FIXTURES / "worker.log").read_bytes().splitlines(keepends=True)]
        yield fake


def container(tools: Path, **params: Any) -> dict[str, Any]:
    """Run the module for the engine's container."""
    return run(tools, **{"container": "gb10-vllm", "docker_socket": str(tools.parent / "docker.sock"), **params})


def test_a_container_is_read_from_its_start_with_both_streams(tools: Path, engine: FakeEngine) -> None:
    """Readiness is on stderr; older runs of the container are not this one."""
    engine.logs["c1"].append(("2026-11-20T21:12:30Z", b"INFO:     Uvicorn running on socket\n", 2))
    result = container(tools)
    assert (result["state"], result["ready"]["evidence"], result["container"]["running"], result["container"]["restart_count"]) == ("ready", "uvicorn", True, 2)
    assert result["lines_read"] == len(engine.logs["c1"]) - 1


@pytest.mark.parametrize(("since", "skipped"), [("all", 0), ("2026-11-20T21:12:00Z", 1), ("30000d", 0)])
def test_a_container_is_read_since_a_time(tools: Path, engine: FakeEngine, since: str, skipped: int) -> None:
    """All of it, a moment, or an age."""
    assert container(tools, since=since)["lines_read"] == len(engine.logs["c1"]) - skipped


def test_a_unit_is_read_by_its_invocation(tools: Path) -> None:
    """So that an older run of the unit is not this one."""
    tool(tools, "systemctl", "echo 0123456789abcdef0123456789abcdef\n")
    tool(tools, "journalctl", f'echo "$@" > "$(dirname "$0")/asked"; cat {FIXTURES / "head.log"}\n')
    assert run(tools, unit="gb10-vllm.service")["state"] == "ready"
    assert "_SYSTEMD_INVOCATION_ID=0123456789abcdef0123456789abcdef" in (tools / "asked").read_text()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no source": ({}, "one of the following is required"),
    "two sources": ({"path": "/x", "text": "y"}, "mutually exclusive"),
    "no such file": ({"path": "/nonexistent/boot.log"}, "cannot be read (No such file or directory): give the path"),
    "a directory": ({"path": "/"}, "cannot be read (Is a directory)"),
    "no engine": ({"container": "x", "docker_socket": "/nonexistent/docker.sock"}, "The log of container x cannot be read. The Docker Engine is not running"),
    "bad class": ({"text": "x", "extra_classes": [{"class": "a", "pattern": "(", "remedy": "b"}]}, "regular expression"),
}


@pytest.mark.parametrize(("params", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_call_is_refused_in_a_sentence(tools: Path, params: dict[str, Any], message: str) -> None:
    """With what was found and what to do."""
    result = run(tools, **params)
    assert result["failed"] is True
    assert message in result["msg"]
    assert "Traceback" not in result["msg"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"container": "x"}, "Container x does not exist on this host: `docker ps -a` lists its containers."),
        ({"since": "yesterday"}, "since is 'yesterday'. A time such as 2026-11-21T05:00:00Z, an age such as 30m, started or all is expected."),
    ],
)
@pytest.mark.usefixtures("engine")
def test_a_container_that_cannot_be_read_is_refused_in_a_sentence(tools: Path, params: dict[str, Any], message: str) -> None:
    """With what was expected."""
    assert container(tools, **params)["msg"] == message
