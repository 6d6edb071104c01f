"""The filters of the image role."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.filter import image

DIGEST = "sha256:" + "d" * 64


def test_the_hash_of_a_build_covers_folder_arguments_and_mods(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x")
    (tmp_path / ".git").mkdir()
    one = image.build_hash(str(tmp_path))
    (tmp_path / ".git" / "index").write_text("changes at every look")
    assert image.build_hash(str(tmp_path)) == one
    assert len(one) == 64
    (tmp_path / "patch").write_text("p")
    two = image.build_hash(str(tmp_path))
    (tmp_path / "patch").chmod(0o755)
    three = image.build_hash(str(tmp_path))
    (tmp_path / "link").symlink_to("patch")
    four = image.build_hash(str(tmp_path))
    found = [one, two, three, four, image.build_hash(str(tmp_path), {"A": "1"}), image.build_hash(str(tmp_path), {}, "m"), image.build_hash("", {}, "m")]
    assert len(set(found)) == len(found)
    assert image.build_hash("", {"A": "1"}) == "", "there is nothing to build"


def test_a_folder_without_a_dockerfile_fails(tmp_path: Path) -> None:
    with pytest.raises(AnsibleFilterError, match=rf"expected the file {tmp_path}/Dockerfile, which does not exist on this computer. Set image.build"):
        image.build_hash(str(tmp_path))


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
