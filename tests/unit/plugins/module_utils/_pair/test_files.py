"""The files of a group on a node: atomic, private, bounded, readable after a crash, without a link on the way; and its API key, never shown or returned."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api
from ansible_collections.gb10.cluster.plugins.module_utils._pair import files
from ansible_collections.gb10.cluster.plugins.module_utils._pair import files as module
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder, Store


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pair1" / "agent"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def numbers(store: Store) -> list[int]:
    return [event["n"] for event in store.events()]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"generation": 2'])
def test_tells_a_damaged_file_from_a_missing_one(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    (folder / "desired.json").write_bytes(content)
    store = Store(str(folder))
    assert store.known("desired.json") == ({}, "damaged")
    assert store.known("outcome.json") == ({}, "lost")
    store.save("outcome.json", {"generation": 2, "sentence": "x", "result": None})
    assert store.known("outcome.json") == ({"generation": 2, "sentence": "x"}, "")


def test_numbers_events_across_restarts(folder: Path) -> None:
    store = Store(str(folder))
    for _number in range(3):
        store.append({"text": "x"})
    again = Store(str(folder))
    again.append({"text": "y"})
    again.append({"n": 9, "text": "higher"})
    again.append({"n": 2, "text": "lower"})
    assert numbers(again) == numbers(Store(str(folder))) == [1, 2, 3, 4, 9, 10]
    assert mode(folder / "events.jsonl") == 0o600


def test_skips_a_line_that_is_cut_off_and_does_not_use_its_number_again(folder: Path) -> None:
    store = Store(str(folder))
    store.append({"text": "first"})
    store.append({"text": "second"})
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again = Store(str(folder))
    assert numbers(again) == [1]
    again.append({"text": "third"})
    assert numbers(again) == numbers(Store(str(folder))) == [1, 3]


def test_bounds_the_events_and_keeps_one_older_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 1000)
    store = Store(str(folder))
    for _number in range(100):
        store.append({"text": "x" * 50})
        assert (folder / "events.jsonl").stat().st_size <= 1000
    assert sorted(os.listdir(folder)) == ["events.1.jsonl", "events.jsonl"]
    kept = numbers(store)
    assert kept == numbers(Store(str(folder))) == list(range(kept[0], 101))
    assert len(kept) > 10


def test_reads_the_newest_events_of_both_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 1000)
    store = Store(str(folder))
    for _number in range(30):
        store.append({"text": "x" * 50})
    present = len((folder / "events.jsonl").read_text(encoding="ascii").splitlines())
    for most in (1, present, present + 1):
        monkeypatch.setattr(module, "MOST_EVENTS", most)
        assert numbers(Store(str(folder))) == list(range(31 - most, 31))
    Store(str(folder)).append({"text": "y"})
    assert numbers(Store(str(folder)))[-1] == 31


KEY = "a-key-of-an-earlier-run"
LINE = f"VLLM_API_KEY={KEY}\n"


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The environment of each container of the group that runs; none at first."""
    found: list[list[str]] = []
    monkeypatch.setattr(docker_api, "list_containers", lambda labels, _socket, stopped: [{"Id": str(n)} for n in range(len(found))])
    monkeypatch.setattr(docker_api, "inspect", lambda name, _socket: {"Id": name, "Config": {"Env": found[int(name)]}})
    return found


def run(folder: Path, check: bool = False) -> dict[str, Any]:
    return files.keep_key(str(folder), "pair1", check)


def test_a_key_is_made_once_and_kept(tmp_path: Path) -> None:
    first = run(tmp_path / "pair1")
    path = tmp_path / "pair1/api_key"
    found = re.fullmatch(r"VLLM_API_KEY=([A-Za-z0-9_-]{43})\n", path.read_text())
    assert found
    assert (first["due"], first["new"], first["path"]) == (True, True, str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert found[1] not in json.dumps(first)
    again = run(tmp_path / "pair1")
    assert (again["due"], again["new"]) == (False, False)
    assert path.read_text() == found[0]
    run(tmp_path / "pair2")
    assert (tmp_path / "pair2/api_key").read_text() != found[0]


def test_check_mode_tells_the_change_and_stores_nothing(tmp_path: Path) -> None:
    out = run(tmp_path / "pair1", check=True)
    assert (out["due"], out["new"]) == (True, True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "api_key").write_text(f"{KEY}\n")
    assert run(tmp_path, check=True)["due"]
    assert (tmp_path / "api_key").read_text() == f"{KEY}\n"


@pytest.mark.parametrize(("text", "mode"), [(f"{KEY}\n", 0o600), (f"{KEY}", 0o644), (LINE, 0o640), (f"\n{LINE}\n", 0o600)])
def test_a_key_in_another_form_or_mode_stays_the_same_key(tmp_path: Path, running: list[list[str]], text: str, mode: int) -> None:
    """As it was written before this was an env file, or by the owner."""
    path = tmp_path / "api_key"
    path.write_text(text)
    path.chmod(mode)
    running.append(["A=b", LINE.strip()])
    out = run(tmp_path)
    assert (out["due"], out["new"]) == (True, False), "the container needs no start"
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (LINE, 0o600)
    assert KEY not in json.dumps(out)
    assert not run(tmp_path)["due"]


@pytest.mark.parametrize("env", [["VLLM_API_KEY=the-key-before-the-change"], ["A=b"], [f"VLLM_API_KEY={KEY}x"], [f"X={LINE.strip()}"]])
def test_a_container_with_another_key_is_found(tmp_path: Path, running: list[list[str]], env: list[str]) -> None:
    """The owner has changed the file, or a run has made a new one and ended before the start."""
    (tmp_path / "api_key").write_text(LINE)
    (tmp_path / "api_key").chmod(0o600)
    running.append(env)
    out = run(tmp_path)
    assert (out["due"], out["new"]) == (False, True)
    assert run(tmp_path, check=True)["new"]


def test_a_folder_that_was_lost_gets_the_key_of_the_container_that_runs(tmp_path: Path, running: list[list[str]]) -> None:
    running.append(["A=b", LINE.strip()])
    folder = tmp_path / "pair1"
    check = run(folder, check=True)
    assert (check["due"], check["new"], folder.exists()) == (True, False, False)
    out = run(folder)
    assert (out["due"], out["new"], (folder / "api_key").read_text()) == (True, False, LINE)
    assert stat.S_IMODE((folder / "api_key").stat().st_mode) == 0o600
    assert KEY not in json.dumps([check, out])
    assert not run(folder)["due"]


@pytest.mark.parametrize("line", ["VLLM_API_KEY=short", "A=b", f"VLLM_API_KEY={KEY}$(id)", LINE.strip()])
def test_a_file_that_was_removed_and_a_container_without_such_a_key_give_a_new_one(tmp_path: Path, running: list[list[str]], line: str) -> None:
    """docs/security.md: who removes the file wants a new key."""
    if line == LINE.strip():
        (tmp_path / "releases").mkdir()
    running.append([line])
    assert run(tmp_path)["new"]
    assert line not in (tmp_path / "api_key").read_text()


def test_an_engine_that_does_not_answer_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_arguments: Any, **_more: Any) -> list[dict[str, Any]]:
        raise docker_api.DockerError("The Docker Engine is off.")

    monkeypatch.setattr(docker_api, "list_containers", silent)
    (tmp_path / "api_key").write_text(LINE)
    assert run(tmp_path)["new"] is False


@pytest.mark.parametrize(
    "text", ["", "short\n", "VLLM_API_KEY=\n", "two words of some length\n", "x" * 300, "key-with-line\nend-of-20-letters\n", f"HF_TOKEN={KEY}"]
)
def test_a_damaged_file_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    path = tmp_path / "api_key"
    path.write_text(text)
    out = run(tmp_path)
    assert str(path) in out["msg"]
    assert "Remove" in out["msg"]
    assert path.read_text() == text
    assert len(text) < 20 or text.strip() not in out["msg"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("a-key-of-another-program\n")
    (tmp_path / "api_key").symlink_to("elsewhere")
    out = run(tmp_path)
    assert "a-key-of-another-program" not in json.dumps(out)


def test_two_first_runs_at_once_use_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Folder.text

    def text(folder: Folder, name: str) -> str | None:
        """Another run makes the key after this one has found none."""
        monkeypatch.setattr(Folder, "text", read)
        Folder(str(tmp_path)).write("api_key", LINE)
        return None

    monkeypatch.setattr(Folder, "text", text)
    assert run(tmp_path)["due"] is False
    assert [path.name for path in tmp_path.iterdir()] == ["api_key"]
    assert (tmp_path / "api_key").read_text() == LINE
