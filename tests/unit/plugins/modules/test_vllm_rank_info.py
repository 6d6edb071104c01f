"""What a rank has on its node: a release's files by mode and hash, and what is in the way of a start."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import vllm_rank_info as module

MEMORY = {"total_kib": 121 << 20, "available_kib": 100 << 20}


def test_a_release_is_known_by_mode_and_content_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "releases/4f0c"
    folder.mkdir(parents=True)
    (folder / "compose.yaml").write_bytes(b"services: {}\n")
    (folder / "compose.yaml").chmod(0o640)
    (release,) = module.releases_in(str(tmp_path))
    assert release["files"] == {"compose.yaml": "0640 " + hashlib.sha256(b"services: {}\n").hexdigest(), "release.json": ""}
    (folder / "compose.yaml").chmod(0o666)
    assert module.releases_in(str(tmp_path))[0]["files"]["compose.yaml"].startswith("0666 ")


@pytest.mark.parametrize(
    ("containers", "memory", "share", "said"),
    [
        ([], MEMORY, 0.8, ""),
        ([{"name": "gb10-pair1-rank0", "running": False}], MEMORY, 0.8, ""),
        ([{"name": "gb10-pair1-rank0", "running": True}], MEMORY, 0.8, "gb10-pair1-rank0 still runs"),
        ([], MEMORY | {"available_kib": 40 << 20}, 0.7, "40.0 GiB of 121.0 GiB of memory are available and 84.7 GiB are wanted before a start"),
    ],
)
def test_what_is_in_the_way_of_a_start(containers: list[dict[str, Any]], memory: dict[str, int], share: float, said: str) -> None:
    assert module.not_free(containers, memory, share) == said
