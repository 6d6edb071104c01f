"""What a rank has on its node: a release's files by mode and hash, and what is in the way of a start."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
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


def test_a_models_config_is_read_from_a_folder_and_from_the_revision_of_a_cache(tmp_path: Path) -> None:
    assert module.config_of(str(tmp_path)) == {}
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2}')
    assert module.config_of(str(tmp_path)) == {"num_hidden_layers": 2}
    for revision, layers in (("aaaa", 3), ("bbbb", 4)):
        (tmp_path / "snapshots" / revision).mkdir(parents=True)
        (tmp_path / "snapshots" / revision / "config.json").write_text(json.dumps({"num_hidden_layers": layers}))
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/main").write_text("bbbb\n")
    assert module.config_of(str(tmp_path)) == {"num_hidden_layers": 4}


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


@pytest.mark.parametrize(
    ("more", "failed", "said"),
    [
        ({}, False, ""),
        ({"free_share": 0.0}, False, ""),
        ({"free_share": 1.1}, False, "are wanted before a start"),
        ({"free_share": 1.1, "wait": 0.0}, True, "are wanted before a start, 0 s after the group was stopped."),
    ],
)
def test_what_is_in_the_way_fails_only_where_it_was_waited_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: dict[str, float], failed: bool, said: str
) -> None:
    arguments = {"group": "pair1", "directory": str(tmp_path), "docker_socket": str(tmp_path / "none.sock"), **more}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    out = json.loads(capsys.readouterr().out)
    assert bool(out.get("failed")) is failed
    text = out["msg"] if failed else out["in_the_way"]
    assert said in text
    assert bool(text) is bool(said)
