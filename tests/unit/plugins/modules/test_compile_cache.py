"""The module that lists a compile cache for another rank, and removes the caches of a group."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import cache_folder, manifest
from ansible_collections.gb10.cluster.plugins.modules import compile_cache


def run(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        compile_cache.main()
    return dict(json.loads(capsys.readouterr().out))


def test_lists_what_weights_copy_fetches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "vllm-cache-0123456789ab"
    (cache / "triton").mkdir(parents=True)
    (cache / "triton/k").write_text("x")
    out = run(capsys, path=str(cache), store=str(tmp_path))
    [found] = out["files"]
    assert (found["path"], found["size"], found["sha256"]) == ("triton/k", 1, hashlib.sha256(b"x").hexdigest())
    assert not out["changed"]
    manifest.check_name(found["path"])


def test_a_path_outside_the_store_fails_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, path="/etc", store=str(tmp_path))
    assert out["failed"]
    assert "/etc is not below the model store" in out["msg"]


@pytest.mark.parametrize("check", [True, False])
def test_absent_removes_the_caches_of_the_group(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    monkeypatch.setattr(compile_cache, "Node", lambda _root: Node(str(tmp_path / "node")))
    store, cache = tmp_path / "models", tmp_path / "models/vllm-cache-0123456789ab"
    store.mkdir()
    cache_folder.prepare(Node(str(tmp_path / "node")), "/opt/pair1", [str(cache)], set(), str(store), [], check=False)
    out = run(capsys, state="absent", directory="/opt/pair1", _ansible_check_mode=check)
    assert (out["changed"], out["removed"], cache.exists()) == (True, [str(cache)], check)
