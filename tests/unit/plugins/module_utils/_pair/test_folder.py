"""The agent's folders: atomic files, and no link on the way."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder


def test_files_are_for_root_only_and_leave_nothing_else(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "pair1"), "agent")
    assert (folder.load("a.json"), folder.text("a.json"), folder.exists("a.json")) == (None, None, False)
    folder.remove("a.json")
    for value in (1, 2):
        folder.save("a.json", {"value": value})
    assert folder.load("a.json") == {"value": 2}
    assert folder.exists("a.json")
    path = tmp_path / "pair1/agent"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path / "a.json")] == [0o700, 0o600]
    (path / "a.json").write_text('{"value": ')
    assert folder.load("a.json") is None
    folder.remove("a.json")
    assert list(path.iterdir()) == []


def test_a_link_is_not_read(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path), "agent")
    folder.write("real", "text")
    (tmp_path / "agent/link").symlink_to("real")
    assert not folder.exists("link")
    with pytest.raises(OSError, match="Too many levels"):
        folder.text("link")


def test_only_the_newest_folders_are_kept_and_links_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    for number, name in enumerate("dabc"):
        Folder(str(tmp_path), "evidence", name).write("file", name)
        os.utime(tmp_path / "evidence" / name, (number, number))
    (tmp_path / "evidence/link").symlink_to(tmp_path / "other")
    Folder(str(tmp_path), "evidence").prune(2, "d")
    assert sorted(path.name for path in (tmp_path / "evidence").iterdir()) == ["c", "d", "link"]
    assert (tmp_path / "other/file").exists()
