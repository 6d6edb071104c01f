"""Compile caches on a node: which files another rank gets, what a hostile container can leave there, creation and removal."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import cache_folder, manifest, model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError

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
    return cache_folder.prepare(node, GROUP, names, {str(store / name) for name in kept or set()}, str(store), ["triton", "deep_gemm"], check)


@pytest.mark.parametrize(
    "path",
    [
        "triton/2KZX/kernel.cubin", "flashinfer/.cache/flashinfer/0.6/121a/cached_ops/x.so", "torch_compile_cache/ab12/inductor_cache/fx/g",
        "modelinfos/llama.json", "deep_gemm/cache/kernel.frankly/kernel.cubin", "b12x/ranking.o", "tilelang/template.so",
    ],
)  # fmt: skip
def test_a_kernel_is_useful_to_another_rank(path: str) -> None:
    assert cache_folder.useful(path)


@pytest.mark.parametrize(
    "path",
    [
        "torch_compile_cache/ab12/rank_0_0/backbone/artifact", "torch_compile_cache/torch_aot_compile/ab12/rank_1_0/model",
        "flashinfer_autotune_cache/h/rank3/configs.json", "flashinfer_autotune_cache/h/configs_rank_3.json", "modules/transformers_modules/m.py",
        "triton/tmp.pid_41_8f/kernel.cubin", "triton/2KZX/kernel.cubin.tmp", "deep_gemm/tmp/1-2-3/kernel.cu", "inductor/locks/a.lock", "triton/.temp-1/k",
    ],
)  # fmt: skip
def test_what_belongs_to_one_rank_or_is_incomplete_is_not_copied(path: str) -> None:
    assert not cache_folder.useful(path)


def test_lists_regular_files_and_follows_no_link(store: Path, tmp_path: Path) -> None:
    cache, secret = store / f"vllm-cache-{KEY}", tmp_path / "shadow"
    secret.write_text("root:x")
    fill(cache, "triton/a.cubin", "torch_compile_cache/h/rank_0_0/b")
    (cache / "triton" / "link.cubin").symlink_to(secret)
    (cache / "folder").symlink_to(tmp_path)
    os.mkfifo(cache / "triton" / "pipe")
    [found] = cache_folder.listing(str(cache), str(store))
    assert (found["path"], found["size"], found["sha256"]) == ("triton/a.cubin", 14, hashlib.sha256(b"triton/a.cubin").hexdigest())
    assert cache_folder.count(str(cache), str(store)) == 1
    manifest.check_name(found["path"])


def test_without_a_folder_there_is_nothing_to_copy(store: Path) -> None:
    assert cache_folder.listing(str(store / f"vllm-cache-{KEY}"), str(store)) == []
    assert cache_folder.count(str(store / f"vllm-cache-{KEY}"), str(store)) == 0


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 1), ("MAX_BYTES", 3)])
def test_a_cache_above_the_limits_is_not_copied(store: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    cache = store / f"vllm-cache-{KEY}"
    fill(cache, "a", "b/cd")
    monkeypatch.setattr(cache_folder, limit, value)
    with pytest.raises(ManifestError, match="not copied to another rank"):
        cache_folder.listing(str(cache), str(store))
    assert cache_folder.count(str(cache), str(store)) == -1, "unknown is neither empty nor a source"


def test_a_link_in_place_of_the_cache_is_refused(node: Node, store: Path, tmp_path: Path) -> None:
    """Docker would follow it and mount its target writable."""
    (tmp_path / "etc").mkdir()
    (store / f"vllm-cache-{KEY}").symlink_to(tmp_path / "etc")
    with pytest.raises(ManifestError, match="is a link to"):
        prepare(node, store, [KEY])
    with pytest.raises(ManifestError, match="is a link to"):
        cache_folder.count(str(store / f"vllm-cache-{KEY}"), str(store))


@pytest.mark.parametrize(("path", "store_of"), [("/etc/x-0123456789ab", "/srv/models"), ("/srv/models/../x", "/srv/models"), ("/x", "/"), ("/x", "")])
def test_a_cache_outside_the_model_store_is_refused(path: str, store_of: str) -> None:
    with pytest.raises(ManifestError, match="is not below the model store"):
        cache_folder.place_of(path, store_of)


def test_creates_a_cache_once_with_the_folders_of_the_compilers(node: Node, store: Path) -> None:
    """DeepGEMM keeps no kernel if its folder does not exist when it is imported."""
    path = str(store / f"vllm-cache-{KEY}")
    assert prepare(node, store, [KEY], check=True) == ([path], [])
    assert list(store.iterdir()) == []
    assert node.load_record(cache_folder.RECORD) == {}
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
    node.save_record(manifest.record_name(str(store / f"vllm-cache-{KEY}")), {"copied": ["triton/k"]})
    assert prepare(node, store, [OTHER]) == ([], [str(store / f"vllm-cache-{KEY}")])
    assert sorted(each.name for each in store.iterdir()) == ["model", f"vllm-cache-{OTHER}", "vllm-cache-ffffffffffff"], "only what was recorded"
    assert (outside / "keep").exists(), "a link is removed, not followed"
    assert node.load_record(manifest.record_name(str(store / f"vllm-cache-{KEY}"))) == {}


def test_absent_removes_the_caches_of_one_group(node: Node, store: Path) -> None:
    prepare(node, store, [KEY])
    cache_folder.prepare(node, "/opt/pair2", [str(store / f"other-{KEY}")], set(), str(store), [], check=False)
    assert cache_folder.clear(node, GROUP, check=True) == [str(store / f"vllm-cache-{KEY}")]
    assert (store / f"vllm-cache-{KEY}").exists()
    assert cache_folder.clear(node, GROUP, check=False) == [str(store / f"vllm-cache-{KEY}")]
    assert [each.name for each in store.iterdir()] == [f"other-{KEY}"]
    assert cache_folder.clear(node, GROUP, check=False) == []
    assert list(node.load_record(cache_folder.RECORD)) == [str(store / f"other-{KEY}")]


def test_a_rank_without_a_cache_gets_the_kernels_of_the_other(node: Node, store: Path, tmp_path: Path) -> None:
    """From the listing of one rank to the folder of the other, with time and content, and without what belongs to one rank."""
    source, target = store / f"vllm-cache-{KEY}", tmp_path / "other" / f"vllm-cache-{KEY}"
    fill(source, "flashinfer/.cache/flashinfer/0.6/121a/x.so", "triton/2KZX/k.cubin", "torch_compile_cache/h/rank_0_0/artifact", "modules/m.py")
    (source / "triton/2KZX/empty").touch()
    target.mkdir(parents=True)
    fetch = cache_folder.listing(str(source), str(store))
    for item in fetch:  # as rsync does
        arrived = Path(model_folder.staging_path(str(target)), item["path"])
        arrived.parent.mkdir(0o700, parents=True, exist_ok=True)
        shutil.copy(source / item["path"], arrived)
    Path(model_folder.staging_path(str(target))).chmod(0o700)
    model_folder.install(node, str(target), fetch, {}, [], store=str(tmp_path / "other"))
    assert cache_folder.listing(str(target), str(tmp_path / "other")) == fetch
    assert sorted(str(each.relative_to(target)) for each in target.rglob("*") if each.is_file()) == [item["path"] for item in fetch]
    assert [each.name for each in target.parent.iterdir()] == [target.name], "nothing else is left"
