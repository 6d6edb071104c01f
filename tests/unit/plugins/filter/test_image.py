"""The filters of the image role."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.filter import image

DIGEST = "sha256:" + "d" * 64


def test_a_context_is_hashed_by_content_and_order(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x")
    (tmp_path / ".git").mkdir()
    one = image.build_hash(str(tmp_path), ["Dockerfile"], {})
    (tmp_path / ".git" / "index").write_text("changes at every look")
    assert image.build_hash(str(tmp_path), ["Dockerfile"], {}) == one
    assert image.build_hash(str(tmp_path), ["Dockerfile"], {"A": "1"}) != one
    (tmp_path / "patch").write_text("p")
    two = image.build_hash(str(tmp_path), ["Dockerfile"], {})
    assert two != one
    (tmp_path / "patch").chmod(0o755)
    assert image.build_hash(str(tmp_path), ["Dockerfile"], {}) != two
    assert image.build_hash("", ["Dockerfile"], {}) == ""


def test_a_context_that_lacks_a_dockerfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AnsibleFilterError, match=r"has no recipe/Dockerfile\.x, which the profile builds"):
        image.build_hash(str(tmp_path), ["recipe/Dockerfile.x"], {})
    with pytest.raises(AnsibleFilterError, match="which is no folder on the controller"):
        image.build_hash(str(tmp_path / "none"), ["Dockerfile"], {})


def test_a_rank_fetches_its_layers_and_what_is_no_layer() -> None:
    saved = {
        "manifest.json": {"size": 1, "sha256": "m", "mtime_ns": 1},
        "blobs/1": {"size": 1, "sha256": "1", "mtime_ns": 1, "layer": "sha256:1"},
        "blobs/2": {"size": 1, "sha256": "2", "mtime_ns": 1, "layer": "sha256:2"},
    }
    assert [item["path"] for item in image.image_fetch(saved, {"layers": ["sha256:2"]}, 0)] == ["blobs/2", "manifest.json"]
    assert image.image_fetch(saved, None, 0) == []


@pytest.mark.parametrize(
    ("infos", "digest", "run"),
    [
        ([{"id": "a"}, {"id": "a"}], "", "vllm:1"),
        ([{"id": "a", "repo_digests": [f"vllm@{DIGEST}"]}] * 2, DIGEST, f"vllm:1@{DIGEST}"),
        ([{"id": "a", "repo_digests": [f"vllm@{DIGEST}"]}, {"id": "a", "repo_digests": []}], DIGEST, "a"),
    ],
)
def test_what_a_container_is_started_from(infos: list[dict[str, object]], digest: str, run: str) -> None:
    assert image.image_run(infos, "vllm:1", digest) == run


def test_every_rank_must_answer() -> None:
    with pytest.raises(AnsibleFilterError, match="1 answers for 2 ranks"):
        image.image_plan([{}], ["a", "b"])
