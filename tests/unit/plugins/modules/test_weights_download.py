"""The command of a download, the place of the token, and the message if it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.modules import weights_download
from module_run import run_module
from unit.fixtures.page_cache import cached_share, needs_page_cache, write_out

PARAMS: dict[str, Any] = {
    "store": "/srv/models/", "model": "o/n", "revision": "main", "layout": "hub", "image": "vllm:1", "python": "python3", "token": "hf_secret", "endpoint": "",
}  # fmt: skip


def test_token_is_only_in_the_env_file() -> None:
    argv = weights_download.command(PARAMS, "/srv/models/hub/models--o--n", "gb10-copy-x", "/run/x/env")
    assert "hf_secret" not in " ".join(argv)
    assert argv[argv.index("--env-file") + 1] == "/run/x/env"
    assert "HF_TOKEN=hf_secret\n" in weights_download.environment(PARAMS)
    assert "HF_TOKEN" not in weights_download.environment({**PARAMS, "token": ""})
    assert "hf_secret" not in weights_download.explain_failure("error: hf_secret is wrong", PARAMS)
    with pytest.raises(ManifestError, match="line break"):
        weights_download.environment({**PARAMS, "token": "a\nLD_PRELOAD=x"})


def test_only_the_store_is_mounted() -> None:
    argv = weights_download.command(PARAMS, "/srv/models/hub/models--o--n", "c", "e")
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--volume"] == ["/srv/models:/srv/models"]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ModuleNotFoundError: No module named 'huggingface_hub'", "weights_download_image"),
        ("GatedRepoError: 403 Client Error", "weights_hf_token"),
        ("RepositoryNotFoundError: 404", "model.id"),
        ("MaxRetryError: Failed to resolve 'huggingface.co'", "a way to the hub"),
        ("docker: Error: No such image: vllm:1", "image role"),
        ("OSError: No space left on device", "free space"),
        ("", "no output"),
    ],
)
def test_failure_is_reported_with_its_remedy(log: str, words: str) -> None:
    assert words in weights_download.explain_failure(log, PARAMS)


def test_size_counts_files_once(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "x").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("blobs/x")
    assert weights_download.size_of(str(tmp_path)) == 5
    assert weights_download.size_of(str(tmp_path / "none")) == 0


@pytest.mark.parametrize("written", [False, True])
def test_downloaded_files_leave_the_page_cache_and_no_link_is_followed(tmp_path: Path, written: bool) -> None:
    needs_page_cache(tmp_path)
    blobs = tmp_path / "model/blobs"
    blobs.mkdir(parents=True)
    if written:
        (blobs / "x").write_bytes(bytes(8 << 20))
    else:
        write_out(blobs / "x", bytes(8 << 20))
    (tmp_path / "outside").write_bytes(bytes(1 << 20))
    (blobs / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(blobs / "pipe")
    weights_download.forget(str(tmp_path / "model"), written)
    weights_download.forget(str(tmp_path / "gone"), written)
    assert cached_share(blobs / "x") == 0
    assert cached_share(tmp_path / "outside") == 1


@pytest.mark.parametrize(("layout", "where"), [("hub", {"cache_dir": "/srv/models/hub"}), ("directory", {"local_dir": "/srv/models/hub/x"})])
def test_the_program_downloads_to_the_place_of_the_layout(tmp_path: Path, layout: str, where: dict[str, str]) -> None:
    (tmp_path / "huggingface_hub.py").write_text("def snapshot_download(**given):\n    import json\n    print(json.dumps(given))\n")
    words = [sys.executable, "-c", weights_download.PROGRAM, "o/n", "main", layout, "/srv/models/hub/x"]
    done = subprocess.run(words, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"repo_id": "o/n", "revision": "main", **where}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"path": "elsewhere"}, "is not below"), ({"size_gib": 10**9}, "nothing was downloaded")],
    ids=["outside-the-store", "disk"],
)
def test_refusal_in_check_mode_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("PATH", "")  # no command can be run
    store = tmp_path / "store"
    given = {"path": str(store / "m"), "store": str(store), "model": "o/n", "image": "vllm:1", "_ansible_check_mode": True, **arguments}
    assert message in run_module(capsys, weights_download, **given)["msg"]
    assert not store.exists()
