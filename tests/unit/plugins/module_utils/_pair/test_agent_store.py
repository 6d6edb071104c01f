"""The actor's files: atomic, private, bounded, and readable after a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import files as module
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Store


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
