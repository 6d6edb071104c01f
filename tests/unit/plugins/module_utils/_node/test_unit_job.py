"""Jobs as transient units: what they run, and how a module follows them. Commands run for real; only systemd is replaced."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.transfer import Job, JobError


class Systemd:
    """Runs a unit's command in the foreground when it is started. It stays active for some more questions."""

    def __init__(self) -> None:
        self.active = 0
        self.refuses = False

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str]:
        if argv[:2] == ["systemctl", "is-active"]:
            self.active -= 1
            return (0 if self.active >= 0 else 3), "", ""
        if argv[0] == "systemd-run":
            if self.refuses:
                return 1, "", "Failed to connect to bus\n"
            subprocess.run([word for word in argv[1:] if not word.startswith("--")], check=False)
        return 0, "", ""


class EndedError(Exception):
    """A module has ended with this result."""


class Module:
    def __init__(self, step: str) -> None:
        self.params = {"step": step}

    def exit_json(self, **result: Any) -> None:
        raise EndedError(result)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job("x", Systemd(), str(tmp_path / "run"))


@pytest.mark.parametrize(
    ("commands", "rc", "output"), [([["echo", "a b"], ["echo", "it's"]], 0, "a b\nit's\n"), ([["false"], ["echo", "x"]], 1, "")], ids=["all", "failure"]
)
def test_commands_run_until_one_fails(job: Job, commands: list[list[str]], rc: int, output: str) -> None:
    job.prepare()
    job.start_commands(commands, 60, "test")
    assert (job.read(), job.output()) == ({"rc": rc}, output)
    assert job.stop()
    assert (job.read(), job.output()) == ({}, "")
    assert not Path(job.folder).parent.exists()
    assert not job.stop()


def test_a_script_runs_from_a_private_folder_and_its_code_is_the_report(job: Job) -> None:
    job.prepare()
    job.start_script("echo 'it is'\nfalse & p=$!\nwait $p\nexit 3", 60, "test")
    assert (job.read(), job.output()) == ({"rc": 3}, "it is\n")
    assert Path(job.folder).stat().st_mode & 0o777 == 0o700


def test_unit_that_cannot_start_leaves_nothing(job: Job) -> None:
    job.run.refuses = True  # type: ignore[attr-defined]
    job.prepare()
    with pytest.raises(JobError, match="Failed to connect to bus"):
        job.start_commands([["true"]], 60, "test")
    assert not Path(job.folder).exists()


@pytest.mark.parametrize(
    ("step", "active", "started", "ends"),
    [
        ("start", 0, True, {"changed": False}),
        ("status", 10**9, False, {"changed": False, "report": {"done": 5, "state": "running"}}),
        ("status", 1, False, None),
        ("plain", 1, True, None),
    ],
    ids=["start", "still-running", "ended", "without-a-step"],
)
def test_module_follows_by_steps(job: Job, monkeypatch: pytest.MonkeyPatch, step: str, active: int, started: bool, ends: dict[str, Any] | None) -> None:
    monkeypatch.setattr(transfer, "SLICE_SECONDS", 0.05)
    job.run.active = active  # type: ignore[attr-defined]
    starts: list[int] = []
    try:
        transfer.follow(Module(step), job, lambda: starts.append(1), lambda: {"done": 5})
        result = None
    except EndedError as ended:
        result = ended.args[0]
    assert result == ends
    assert bool(starts) is started
