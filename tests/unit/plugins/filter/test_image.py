"""The filters of the image role."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.filter import image

DIGEST = "sha256:" + "d" * 64


def test_build_hash_covers_content_and_order(tmp_path: Path) -> None:
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


def test_context_without_a_dockerfile_fails(tmp_path: Path) -> None:
    with pytest.raises(AnsibleFilterError, match=r"has no recipe/Dockerfile\.x, which the profile builds"):
        image.build_hash(str(tmp_path), ["recipe/Dockerfile.x"], {})
    with pytest.raises(AnsibleFilterError, match="which is not a folder on the controller"):
        image.build_hash(str(tmp_path / "none"), ["Dockerfile"], {})


@pytest.mark.parametrize(
    ("infos", "digest", "run"),
    [
        ([{"id": "a"}, {"id": "a"}], "", "vllm:1"),
        ([{"id": "a", "repo_digests": [f"vllm@{DIGEST}"]}] * 2, DIGEST, f"vllm:1@{DIGEST}"),
        ([{"id": "a", "repo_digests": [f"vllm@{DIGEST}"]}, {"id": "a", "repo_digests": []}], DIGEST, "a"),
    ],
)
def test_reference_of_the_container(infos: list[dict[str, object]], digest: str, run: str) -> None:
    assert image.image_run(infos, "vllm:1", digest) == run


def test_plan_needs_a_result_of_each_rank() -> None:
    with pytest.raises(AnsibleFilterError, match="1 results for 2 ranks"):
        image.image_plan([{}], ["a", "b"])
