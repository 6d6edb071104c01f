"""A model in a folder that a container can write: nothing is read or removed outside of it (H1, H2). A copy writes in a unit that sees no other folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest, model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/victim").write_text("precious\n")
    (tmp_path / "etc/victim").chmod(0o600)
    return tmp_path / "store"


def untouched(store: Path) -> bool:
    """Whether nothing outside of the store has changed."""
    victim = store.parent / "etc/victim"
    return [*os.listdir(store.parent / "etc")] == ["victim"] and victim.read_text() == "precious\n" and victim.stat().st_mode & 0o777 == 0o600


def test_what_is_removed_does_not_follow_a_link(store: Path) -> None:
    (store / "m").mkdir()
    (store / "m/d").symlink_to(store.parent / "etc")
    (store / "m/gone").touch()
    model_folder.remove(str(store / "m"), ["d/victim", "../../etc/victim", "gone"])
    assert os.listdir(store / "m") == ["d"]
    (store / ".gb10-incoming-m").symlink_to(store.parent / "etc")
    model_folder.absent(Node(str(store.parent)), str(store / "m"), check=False)
    assert untouched(store)


def test_a_link_that_comes_after_the_check_is_not_followed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (store / "m/d").mkdir(parents=True)

    def swap(root: str, path: str, real: Callable[[str, str], str] = model_folder.inside) -> str:
        found = real(root, path)
        (store / "m/d").rmdir()
        (store / "m/d").symlink_to(store.parent / "etc")
        return found

    monkeypatch.setattr(model_folder, "inside", swap)
    model_folder.remove(str(store / "m"), ["d/victim"])
    assert untouched(store)


@pytest.mark.parametrize("link", ["cache", "cache/triton"])
def test_a_link_in_place_of_a_new_cache_is_not_followed(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    (tmp_path / "node").mkdir()
    etc, node = store.parent / "etc", Node(str(tmp_path / "node"))
    etc.chmod(0o700)

    def plant(*given: Any, real: Callable[..., None] = Node.save_record) -> None:
        real(*given)
        if not (store / link).is_symlink():
            (store / link).parent.mkdir(exist_ok=True)
            (store / link).symlink_to(etc)

    monkeypatch.setattr(Node, "save_record", plant)
    with pytest.raises((OSError, ManifestError)):
        model_folder.prepare_caches(node, "pair1", [str(store / "cache")], set(), str(store), ["triton"], False)
    assert etc.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("part", ["org", "org/model"])
def test_a_link_between_the_store_and_the_model_is_refused(tmp_path: Path, part: str) -> None:
    store, other = tmp_path / "store", tmp_path / "etc"
    other.mkdir()
    (store / part).parent.mkdir(parents=True)
    (store / part).symlink_to(other)
    with pytest.raises(ManifestError, match=f"{part} is a link to {other}.*Nothing was copied"):
        model_folder.place_of(str(store / "org/model"), str(store))


def test_a_store_that_is_a_link_of_the_owner_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "disk/org").mkdir(parents=True)
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    for where in (f"{tmp_path}/store/", "/elsewhere"):
        assert model_folder.place_of(f"{tmp_path}/store/org/model", where) == f"{tmp_path}/disk/org/model"


def test_a_model_below_a_link_is_not_read_or_removed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    node, path = Node(str(tmp_path / "node")), str(store / "org/m")
    (store / "org").symlink_to(store.parent / "etc")
    node.save_record(manifest.record_name(path), {"path": path, "copied": ["victim"], "cache": {}})
    with pytest.raises(ManifestError, match="is a link to"):
        model_folder.read(node, path, "directory", "main", True, False, str(store))
    with pytest.raises(ManifestError, match="is a link to"):
        model_folder.absent(node, path, False, str(store))
    assert untouched(store)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_file_that_is_replaced_before_it_is_hashed_is_not_followed(store: Path, kind: str) -> None:
    (store / "a.json").write_text("{}")
    files, _links, _problems = model_folder.walk(str(store))
    (store / "a.json").unlink()
    if kind == "link":
        (store / "a.json").symlink_to(store.parent / "etc/victim")
    elif kind == "fifo":
        os.mkfifo(store / "a.json")
    else:
        (store / "a.json").mkdir()
    with pytest.raises(OSError, match=r"symbolic|directory") if kind != "fifo" else contextlib.nullcontext():
        found, _bytes = model_folder.hash_files(str(store), files, {}, True)
    if kind == "fifo":
        assert found["a.json"][0] == 0, "the hash is kept for the file that was read, not for the one of 2 bytes before"
        assert found["a.json"][4] == hashlib.sha256().hexdigest(), "nothing is read, and nothing waits"


@pytest.mark.parametrize("target", ["/etc/passwd", "../etc/victim", "/dev/zero", "loop.index.json", "pipe"])
def test_an_index_that_leads_out_of_the_model_is_not_read(store: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "node").mkdir()
    (store.parent / "etc/victim").write_text('{"weight_map": {"x": "secret-of-another-file"}}')
    (store / "loop.index.json").symlink_to(target)
    (store / "a.safetensors").write_bytes(b"x")
    os.mkfifo(store / "pipe")
    found = model_folder.read(Node(str(tmp_path / "node")), str(store), "directory", "main", True, False)
    assert found["problems"]
    assert "secret" not in json.dumps(found)
