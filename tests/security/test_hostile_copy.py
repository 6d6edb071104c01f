"""A copy into a folder that a container can write: nothing is written, moved, or removed outside of it (H1, H2)."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest, model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._node.transfer import CopyError, Staging

pytestmark = pytest.mark.slow

DATA = b"* * * * * root touch /x\n"
DIGEST = hashlib.sha256(DATA).hexdigest()
ITEM = {"path": "a.json", "size": len(DATA), "sha256": DIGEST, "mtime_ns": 1}


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


def fetched(store: Path) -> Path:
    """Return the folder in which rsync leaves the file of ITEM."""
    staging = store / ".gb10-incoming-m"
    staging.mkdir(0o700)
    (staging / "a.json").write_bytes(DATA)
    return staging


def install(store: Path, *items: dict[str, Any]) -> None:
    (store.parent / "node").mkdir(exist_ok=True)
    model_folder.install(Node(str(store.parent / "node")), str(store / "m"), items or [ITEM], {}, [])


def test_a_link_in_place_of_the_folder_is_refused(store: Path) -> None:
    (store / ".gb10-incoming-m").symlink_to(store.parent / "etc")
    for act in (lambda: Staging(str(store / ".gb10-incoming-m"), create=True), lambda: install(store)):
        with pytest.raises(CopyError, match="is a link or a file"):
            act()
    assert untouched(store)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o770])
def test_a_folder_that_others_can_write_or_read_is_refused(store: Path, mode: int) -> None:
    fetched(store).chmod(mode)
    with pytest.raises(CopyError, match=f"mode {mode:04o}"):
        Staging(str(store / ".gb10-incoming-m"), create=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(store: Path) -> None:
    os.chown(fetched(store), 1000, 1000)
    with pytest.raises(CopyError, match="belongs to user 1000"):
        Staging(str(store / ".gb10-incoming-m"), create=True)


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_what_is_no_file_of_its_own_in_the_folder_is_not_installed(store: Path, kind: str) -> None:
    place, victim = fetched(store) / "a.json", store.parent / "etc/victim"
    place.unlink()
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "hard link":
        os.link(victim, place)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    with pytest.raises(CopyError, match="not a regular file"):
        install(store)
    assert untouched(store)


def test_a_link_on_the_way_to_a_fetched_file_is_not_followed(store: Path) -> None:
    (fetched(store) / "d").symlink_to(store.parent / "etc")
    with pytest.raises(CopyError, match="leads through a link"):
        install(store, {**ITEM, "path": "d/victim"})
    assert untouched(store)


def test_what_is_removed_after_a_copy_does_not_follow_a_link(store: Path) -> None:
    (fetched(store) / "d").symlink_to(store.parent / "etc")
    install(store)
    assert not (store / ".gb10-incoming-m").exists()
    assert untouched(store)


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


def test_a_folder_of_the_model_stays_the_same_if_a_link_takes_its_name(store: Path) -> None:
    place = model_folder.Installer(str(store / "m"))
    with place.parent("d/a.json", create=True) as (folder, last):
        (store / "m/d").rename(store / "m/moved")
        (store / "m/d").symlink_to(store.parent / "etc")
        os.close(os.open(last, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=folder))
    assert (store / "m/moved/a.json").exists()
    with pytest.raises(CopyError, match="leads through a link"):
        place.link("d/victim", "a.json")
    with pytest.raises(CopyError, match="leads through a link"):
        place.remove("d/victim")
    assert untouched(store)


def test_a_model_below_a_link_is_not_installed_read_or_removed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    node, path = Node(str(tmp_path / "node")), str(store / "org/m")
    (store / "org").symlink_to(store.parent / "etc")
    node.save_record(manifest.record_name(path), {"path": path, "copied": ["victim"], "cache": {}})
    with pytest.raises(ManifestError, match="is a link to"):
        model_folder.install(node, path, [], {"l": "x"}, [], store=str(store))
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
    with pytest.raises(CopyError, match="not a regular file"):
        model_folder.hash_files(str(store), files, {}, True)


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


LINKS: list[tuple[list[str], dict[str, str]]] = [
    (["a", "a/b"], {}), (["l/x"], {"l": "d"}), ([], {"l": ".", "l/up": ".."}), ([], {"l": "sub", "sub/x": "../../etc"}), ([], {"d/l": "..", "e": "d/l/.."}),
    (["a"], {"a": "b"}), ([], {"l": "l"}), ([], {"l": "m", "m": "l"}), ([], {"l": "a\0b"}), ([], {"l": ""}), ([], {"l": "/etc"}), ([], {"l": "../x"}),
    ([], {"l": "x" * 300}), ([], {"l": "a\u202eb"}), ([], {"l": "\udcff"}),
]  # fmt: skip


@pytest.mark.parametrize(("files", "links"), LINKS)
def test_files_and_links_that_lead_out_or_meet_are_refused(store: Path, tmp_path: Path, files: list[str], links: dict[str, str]) -> None:
    entry = {"size": len(DATA), "sha256": DIGEST, "mtime_ns": 1}
    names = [*files, "w.safetensors"]
    good = {"path": "/m", "exists": True, "layout": "directory", "files": dict.fromkeys(names, entry), "links": links, "selected": [*names, *links]}
    good.update({key: [] for key in ("missing", "incomplete", "damaged", "problems", "copied")}, agreed={}, free_bytes=1 << 40, staged={})
    with pytest.raises(ManifestError):
        manifest.plan(["one", "two"], [good, {**good, "exists": False, "files": {}, "links": {}, "selected": []}])
    with pytest.raises(ManifestError):
        model_folder.install(Node(str(tmp_path)), str(store / "m"), [{**entry, "path": name} for name in files], links, [])
    assert untouched(store)


BAD_PATHS = ["", ".", "./a", "a/", "a//b", "a/./b", "a/../b", "..", "../a", "/a", "a\nb", "a\0b", "\x9b2J", "a\u202e", "a\u2028b", "\ud800", "x" * 256,
             "d/" * 1500 + "a"]  # fmt: skip


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_leads_out_or_has_another_form_is_refused(path: str) -> None:
    with pytest.raises(ManifestError, match="nothing was copied"):
        manifest.check_name(path)
