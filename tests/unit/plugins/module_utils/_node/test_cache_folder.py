"""Compile caches on a node: creation, removal, and what a hostile container can leave there."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError

KEY, OTHER = "0123456789ab", "ba9876543210"
GROUP = "/opt/gb10-cluster/vllm_tp2/pair1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node whose records are in a folder of their own. The caches have their real paths."""
    (tmp_path / "node").mkdir()
    return Node(str(tmp_path / "node"))


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def prepare(node: Node, store: Path, keys: list[str], kept: set[str] | None = None, check: bool = False) -> tuple[list[str], list[str]]:
    names = [str(store / f"vllm-cache-{key}") for key in keys]
    return model_folder.prepare_caches(node, GROUP, names, {str(store / name) for name in kept or set()}, str(store), ["triton", "deep_gemm"], check)


def test_a_link_in_place_of_the_cache_is_refused(node: Node, store: Path, tmp_path: Path) -> None:
    """Docker would follow it and mount its target writable."""
    (tmp_path / "etc").mkdir()
    (store / f"vllm-cache-{KEY}").symlink_to(tmp_path / "etc")
    with pytest.raises(ManifestError, match="is a link to"):
        prepare(node, store, [KEY])


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
