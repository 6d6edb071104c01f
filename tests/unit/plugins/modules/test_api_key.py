"""The API key of a group: made once, never shown in a difference, never read through a link."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._agent.folder import Folder
from ansible_collections.gb10.cluster.plugins.modules import api_key


def run(capsys: pytest.CaptureFixture[str], folder: Path, **arguments: Any) -> dict[str, Any]:
    with patch_module_args({"directory": str(folder), **arguments}), pytest.raises(SystemExit):
        api_key.main()
    return dict(json.loads(capsys.readouterr().out))


def test_a_key_is_made_once_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first = run(capsys, tmp_path / "pair1")
    path = tmp_path / "pair1/api_key"
    assert (first["changed"], first["path"], path.read_text()) == (True, str(path), first["key"] + "\n")
    assert len(first["key"]) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first["key"] not in json.dumps(first["diff"])
    again = run(capsys, tmp_path / "pair1")
    assert (again["changed"], again["key"]) == (False, first["key"])
    assert run(capsys, tmp_path / "pair2")["key"] != first["key"]


def test_check_mode_tells_the_change_and_stores_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = run(capsys, tmp_path / "pair1", _ansible_check_mode=True)
    assert out["changed"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "short\n", "two words of some length\n", "x" * 300, "key-with-line\nend-of-20-letters\n"])
def test_a_damaged_file_is_refused_and_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    path = tmp_path / "api_key"
    path.write_text(text)
    out = run(capsys, tmp_path)
    assert out["failed"]
    assert str(path) in out["msg"]
    assert "Remove" in out["msg"]
    assert path.read_text() == text
    assert len(text) < 30 or text.strip() not in out["msg"]


def test_a_link_is_not_followed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("a-key-of-another-program\n")
    (tmp_path / "api_key").symlink_to("elsewhere")
    out = run(capsys, tmp_path)
    assert out["failed"]
    assert "a-key-of-another-program" not in json.dumps(out)


def test_two_first_runs_at_once_use_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Folder.text

    def text(folder: Folder, name: str) -> str | None:
        """Another run makes the key after this one has found none."""
        monkeypatch.setattr(Folder, "text", read)
        (tmp_path / "api_key").write_text("key-of-the-other-run-1\n")
        return None

    monkeypatch.setattr(Folder, "text", text)
    assert api_key.key_of(Folder(str(tmp_path)), make=True) == ("key-of-the-other-run-1", False)
    assert [path.name for path in tmp_path.iterdir()] == ["api_key"]
    assert (tmp_path / "api_key").read_text() == "key-of-the-other-run-1\n"
