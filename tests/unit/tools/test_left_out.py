"""tests/last_start.py: what a slow machine leaves out is skipped and named, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from playbook import REPO


@pytest.mark.parametrize(("seconds", "outcome"), [(-1, "1 skipped"), (60, "1 passed"), (None, "1 passed")])
def test_a_test_does_not_start_after_the_time_of_its_stage(seconds: int | None, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conftest.py").write_text((REPO / "tests/last_start.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_one.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
    monkeypatch.delenv("GB10_LAST_START", raising=False)
    monkeypatch.setenv("GB10_LEFT_OUT", str(tmp_path / "left"))
    if seconds is not None:
        monkeypatch.setenv("GB10_LAST_START", str(time.time() + seconds))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", tmp_path, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, outcome in done.stdout) == (0, True), done.stdout
    left = (tmp_path / "left").read_text(encoding="utf-8") if seconds == -1 else ""
    assert left == ("test_one.py::test_one\n" if seconds == -1 else "")
