"""M11: a sparse file in a model's folder does not keep a run busy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError


def test_refuses_a_sparse_file_before_it_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "sha256_file", lambda path: pytest.fail(f"hashes {path}"))
    place = tmp_path / "model.safetensors"
    place.touch()
    os.truncate(place, 64 << 30)
    with pytest.raises(ManifestError, match="is sparse"):
        model_folder.hash_files(str(tmp_path), {place.name: place.stat()}, {}, True)
