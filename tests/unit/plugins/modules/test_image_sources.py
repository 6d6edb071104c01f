"""The module that completes the sources of an image."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.modules import image_sources

STEPS = [{"context": ".", "dockerfile": "Dockerfile"}]


def outcome(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args({"steps": STEPS, **arguments}), pytest.raises(SystemExit):
        image_sources.main()
    return dict(json.loads(capsys.readouterr().out))


def repository(folder: Path) -> str:
    """Make a repository with one commit and return the commit."""
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM x\n")
    run = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run([*run, *words], check=True)
    return subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_returns_its_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit = repository(tmp_path / "there")
    out = outcome(capsys, path=str(tmp_path / "there"), repository=f"file://{tmp_path}/r.git", commit=commit)
    assert (out["changed"], out["path"], out["labels"]["gb10.cluster.build.commit"]) == (True, str(tmp_path / "there"), commit)


def test_own_sources_are_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "name-1").mkdir()
    (tmp_path / "name-1" / "Dockerfile").write_text("FROM x")
    out = outcome(capsys, path=str(tmp_path))
    assert (out["changed"], out["path"], out["labels"]) == (False, str(tmp_path / "name-1"), {})
    (tmp_path / "name-1" / "Dockerfile").unlink()
    assert "needs the Dockerfile Dockerfile, and image_build_context does not have it" in outcome(capsys, path=str(tmp_path))["msg"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fault": "fatal: Could not resolve host: h"}, "does not reach it"),
        ({"fault": "upload-pack: not our ref"}, "https://h/r has no commit abc, which image.build.commit of the profile names"),
        ({}, "/nowhere"),
    ],
)
def test_a_failed_checkout_is_a_sentence(capsys: pytest.CaptureFixture[str], arguments: dict[str, str], words: str) -> None:
    out = outcome(capsys, path="/nowhere", repository="https://h/r", commit="abc", **arguments)
    assert out["failed"]
    assert words in out["msg"]


def test_check_mode_predicts_a_change_and_reads_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    out = outcome(capsys, path="/nowhere", repository="https://h/r", commit="abc", _ansible_check_mode=True)
    assert (out["changed"], out["labels"], "failed" in out) == (True, {}, False)
