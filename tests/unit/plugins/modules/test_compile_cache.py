"""The module that removes the compile caches of a group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import cache_folder
from ansible_collections.gb10.cluster.plugins.modules import compile_cache


def run(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        compile_cache.main()
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("check", [True, False])
def test_absent_removes_the_caches_of_the_group(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    monkeypatch.setattr(compile_cache, "Node", lambda _root: Node(str(tmp_path / "node")))
    store, cache = tmp_path / "models", tmp_path / "models/vllm-cache-0123456789ab"
    store.mkdir()
    cache_folder.prepare(Node(str(tmp_path / "node")), "/opt/pair1", [str(cache)], set(), str(store), [], check=False)
    out = run(capsys, state="absent", directory="/opt/pair1", _ansible_check_mode=check)
    assert (out["changed"], out["removed"], cache.exists()) == (True, [str(cache)], check)
