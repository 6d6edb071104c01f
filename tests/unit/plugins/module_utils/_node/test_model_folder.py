"""Reading model folders, recording hashes, installing files: on real folders."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest, model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from unit.fixtures.page_cache import cached_share, needs_page_cache


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node whose records are in a folder of their own. Models and caches have their real paths."""
    (tmp_path / "node").mkdir()
    return Node(str(tmp_path / "node"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "store" / "m"
    path.mkdir(parents=True)
    (path / "a.safetensors").write_bytes(b"a" * 1000)
    (path / "config.json").write_text("{}")
    return path


def read(node: Node, folder: Path, layout: str = "directory", fresh: bool = False, save: bool = True) -> dict[str, Any]:
    return model_folder.read(node, str(folder), layout, "main", fresh, save)


def hub(tmp_path: Path, blob: bytes = b"weights", name: str = "") -> Path:
    root = tmp_path / "store" / "models--o--n"
    name = name or hashlib.sha256(blob).hexdigest()
    for part in ("blobs", "refs", "snapshots/abc"):
        (root / part).mkdir(parents=True)
    (root / "blobs" / name).write_bytes(blob)
    small = hashlib.sha1(b"blob 2\0{}").hexdigest()
    (root / "blobs" / small).write_text("{}")
    (root / "refs/main").write_text("abc")
    (root / "snapshots/abc/model.safetensors").symlink_to(f"../../blobs/{name}")
    (root / "snapshots/abc/config.json").symlink_to(f"../../blobs/{small}")
    return root


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_folder_is_read(node: Node, folder: Path) -> None:
    found = read(node, folder)
    assert found["files"]["a.safetensors"]["sha256"] == hashlib.sha256(b"a" * 1000).hexdigest()
    assert found["selected"] == ["a.safetensors", "config.json"]
    assert found["bytes"] == 1002
    assert found["free_bytes"] > 0
    assert manifest.complete(found)


def test_hashes_are_valid_until_a_file_changes(node: Node, folder: Path) -> None:
    assert read(node, folder)["hashed_bytes"] == 1002
    assert read(node, folder)["hashed_bytes"] == 0
    assert read(node, folder, fresh=True)["hashed_bytes"] == 1002
    info = (folder / "config.json").stat()
    (folder / "config.json").write_text("[]")
    os.utime(folder / "config.json", ns=(info.st_atime_ns, info.st_mtime_ns))
    again = read(node, folder)
    assert again["hashed_bytes"] == 2, "another ctime is enough"
    assert again["files"]["config.json"]["sha256"] == hashlib.sha256(b"[]").hexdigest()


def test_record_is_not_written_in_check_mode(node: Node, folder: Path) -> None:
    read(node, folder, save=False)
    assert node.listdir("/var/lib/gb10-cluster") == []


def test_missing_folder_is_not_an_error(node: Node, tmp_path: Path) -> None:
    found = read(node, tmp_path / "nowhere" / "m")
    assert not found["exists"]
    assert found["free_bytes"] > 0


def test_hub_cache_is_read(node: Node, tmp_path: Path) -> None:
    found = read(node, hub(tmp_path), "hub")
    assert found["commit"] == "abc"
    assert found["damaged"] == found["missing"] == found["problems"] == []
    assert len(found["selected"]) == 5
    assert manifest.complete(found) is True


def test_blobs_are_checked_against_their_names(node: Node, tmp_path: Path) -> None:
    root = hub(tmp_path, b"rot", hashlib.sha256(b"weights").hexdigest())
    found = read(node, root, "hub")
    assert found["damaged"] == ["blobs/" + hashlib.sha256(b"weights").hexdigest()]


def test_link_without_its_blob_is_missing(node: Node, tmp_path: Path) -> None:
    root = hub(tmp_path)
    next(p for p in (root / "blobs").iterdir() if len(p.name) == 64).unlink()
    assert read(node, root, "hub")["missing"] == ["snapshots/abc/model.safetensors"]


@pytest.mark.parametrize("finished", [True, False])
def test_unfinished_downloads(node: Node, tmp_path: Path, finished: bool) -> None:
    root = hub(tmp_path)
    name = next(p.name for p in (root / "blobs").iterdir() if len(p.name) == 64) if finished else "f" * 64
    (root / "blobs" / f"{name}.1a2b.incomplete").write_bytes(b"x")
    assert bool(read(node, root, "hub")["incomplete"]) is not finished


DOWNLOAD = ".cache/huggingface/download"
PARTS = {
    "an unfinished download": (f"{DOWNLOAD}/x.incomplete", "x", "incomplete", f"{DOWNLOAD}/x.incomplete"),
    "metadata of a download": (f"{DOWNLOAD}/a.safetensors.metadata", f"commit\n{hashlib.sha256(b'other').hexdigest()}\n1.0\n", "damaged", "a.safetensors"),
    "a missing shard": ("model.safetensors.index.json", '{"weight_map": {"x": "a.safetensors", "y": "gone.safetensors"}}', "missing", "gone.safetensors"),
}


@pytest.mark.parametrize(("path", "text", "key", "name"), PARTS.values(), ids=PARTS.keys())
def test_what_a_plain_folder_lacks_is_named(node: Node, folder: Path, path: str, text: str, key: str, name: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)
    assert read(node, folder)[key] == [name]


def test_pipes_and_links_to_the_outside_are_problems(node: Node, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "out.json").symlink_to("/etc/hostname")
    (folder / "up.json").symlink_to("../../x")
    problems = "; ".join(read(node, folder)["problems"])
    for name in ("pipe is not a file", "out.json is a link to /etc/hostname", "up.json is a link to ../../x"):
        assert name in problems


@pytest.mark.parametrize("ctime", [True, False], ids=["ctime changes", "a bit of the disk"])
def test_a_file_that_changed_while_its_mtime_did_not_is_damaged_until_it_is_replaced(
    node: Node, folder: Path, monkeypatch: pytest.MonkeyPatch, ctime: bool
) -> None:
    monkeypatch.setattr(model_folder, "key_of", lambda info: [info.st_size, 1, info.st_ctime_ns if ctime else 1, info.st_ino])
    assert read(node, folder)["damaged"] == []
    (folder / "a.safetensors").write_bytes(b"b" * 1000)
    assert ctime or read(node, folder)["hashed_bytes"] == 0
    for fresh in (True, False):
        assert read(node, folder, fresh=fresh)["damaged"] == ["a.safetensors"]
    (folder / "new").write_bytes(b"a" * 1000)
    (folder / "new").rename(folder / "a.safetensors")
    assert read(node, folder)["damaged"] == []


def test_hashing_leaves_no_page_cache(tmp_path: Path) -> None:
    needs_page_cache(tmp_path)
    path = tmp_path / "a"
    path.write_bytes(os.urandom(9 << 20))
    os.sync()
    assert model_folder.sha256_file(os.open(path, os.O_RDONLY)) == hashlib.sha256(path.read_bytes()).hexdigest()
    model_folder.sha256_file(os.open(path, os.O_RDONLY))
    assert cached_share(path) == 0


def test_absent_removes_only_unchanged_copies_and_empty_folders(node: Node, folder: Path) -> None:
    fill(folder, "new.safetensors", "edited.json", "d/e/f.json")
    model_folder.record_copy(node, str(folder), ["new.safetensors", "edited.json", "d/e/f.json", "gone"], [])
    read(node, folder)
    fill(folder.parent, f".gb10-incoming-{folder.name}/x")
    (folder / "edited.json").write_text("by the user")
    removed = ["d/e/f.json", "new.safetensors", f".gb10-incoming-{folder.name}"]
    assert model_folder.absent(node, str(folder), check=True) == (removed, ["edited.json"])
    assert (folder / "new.safetensors").exists()
    assert model_folder.absent(node, str(folder), check=False) == (removed, ["edited.json"])
    assert sorted(p.name for p in folder.iterdir()) == ["a.safetensors", "config.json", "edited.json"], "files of the user stay"
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]
    assert model_folder.absent(node, str(folder), check=False) == ([], [])


def test_absent_removes_a_folder_that_is_empty_then(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "store" / "m"
    fill(path, "d/a.safetensors")
    model_folder.record_copy(node, str(path), ["d/a.safetensors"], [])
    model_folder.absent(node, str(path), check=False)
    assert list(path.parent.iterdir()) == []


def test_what_was_removed_by_a_copy_is_no_copy_any_more(node: Node, folder: Path) -> None:
    model_folder.record_copy(node, str(folder), ["a", "b"], [])
    model_folder.record_copy(node, str(folder), ["c"], ["a"])
    assert read(node, folder)["copied"] == ["b", "c"]


def test_the_files_of_a_complete_model_are_recorded_for_the_agent(node: Node, folder: Path) -> None:
    read(node, folder)
    agreed = node.load_record(manifest.record_name(str(folder)))["agreed"]
    assert {name: each[0] for name, each in agreed.items()} == {"a.safetensors": 1000, "config.json": 2}
    (folder / "a.safetensors").unlink()
    read(node, folder)
    assert node.load_record(manifest.record_name(str(folder)))["agreed"] == agreed


def test_disk_space_of_an_interrupted_copy_is_counted(folder: Path) -> None:
    fill(Path(model_folder.staging_path(str(folder))), "sub/x")
    assert model_folder.staged(str(folder)) == {"sub/x": 5}


# --- Compile caches on a node: creation, removal, and what a hostile container can leave there.

KEY, OTHER = "0123456789ab", "ba9876543210"
GROUP = "/opt/gb10-cluster/vllm_tp2/pair1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def prepare(node: Node, store: Path, keys: list[str], kept: set[str] | None = None, check: bool = False) -> tuple[list[str], list[str]]:
    names = [str(store / f"vllm-cache-{key}") for key in keys]
    return model_folder.prepare_caches(node, GROUP, names, {str(store / name) for name in kept or set()}, str(store), ["triton", "deep_gemm"], check)


@pytest.mark.parametrize(("path", "store_of"), [("/etc/x-0123456789ab", "/srv/models"), ("/srv/models/../x", "/srv/models"), ("/x", "/"), ("/x", "")])
def test_a_cache_outside_the_model_store_is_refused(path: str, store_of: str) -> None:
    with pytest.raises(ManifestError, match="is not below the model store"):
        model_folder.cache_place_of(path, store_of)


def test_creates_a_cache_once_with_the_folders_of_the_compilers(node: Node, store: Path) -> None:
    """DeepGEMM keeps no kernel if its folder does not exist when it is imported."""
    path = str(store / f"vllm-cache-{KEY}")
    assert prepare(node, store, [KEY], check=True) == ([path], [])
    assert list(store.iterdir()) == []
    assert node.load_record(model_folder.CACHES_RECORD) == {}
    assert prepare(node, store, [KEY]) == ([path], [])
    assert sorted(each.name for each in (store / f"vllm-cache-{KEY}").iterdir()) == ["deep_gemm", "triton"]
    assert prepare(node, store, [KEY], check=True) == prepare(node, store, [KEY]) == ([], [])


def test_a_new_cache_has_owner_and_mode_of_the_one_before(node: Node, store: Path) -> None:
    prepare(node, store, [KEY])
    (store / f"vllm-cache-{KEY}").chmod(0o2770)
    prepare(node, store, [OTHER])
    assert (store / f"vllm-cache-{OTHER}").stat().st_mode & 0o7777 == 0o770
    assert (store / f"vllm-cache-{OTHER}/triton").stat().st_mode & 0o7777 == 0o770


def test_keeps_the_caches_of_kept_releases_and_removes_the_others(node: Node, store: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    fill(outside, "keep")
    prepare(node, store, [KEY])
    (store / f"vllm-cache-{KEY}" / "link").symlink_to(outside)
    fill(store, f"vllm-cache-{KEY}/triton/k", "vllm-cache-ffffffffffff/of-the-owner", "model/weights")
    assert prepare(node, store, [OTHER], kept={f"vllm-cache-{KEY}"}) == ([str(store / f"vllm-cache-{OTHER}")], [])
    assert (store / f"vllm-cache-{KEY}/triton/k").exists(), "a rollback finds its warm cache"
    assert prepare(node, store, [OTHER]) == ([], [str(store / f"vllm-cache-{KEY}")])
    assert sorted(each.name for each in store.iterdir()) == ["model", f"vllm-cache-{OTHER}", "vllm-cache-ffffffffffff"], "only what was recorded"
    assert (outside / "keep").exists(), "a link is removed, not followed"
