"""The filters of the image role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.filter import image

DIGEST = "sha256:" + "d" * 64


DATA: dict[str, Any] = {
    "repository": "https://h/o/r", "commit": "a" * 40, "pull_requests": [], "cherry_picks": [], "patches": [], "submodules": False, "steps": [{}],
    "pins": [], "verify": [], "note": None, "missing": None, "use_instead": None, "context": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"repository": "https://h/o/fork"}, {"commit": "b" * 40}, {"pull_requests": [{"number": 7, "commit": None}]}, {"cherry_picks": ["c" * 40]},
        {"patches": ["p"]}, {"submodules": True}, {"steps": [{"args": {"A": "1"}}]}, {"pins": ["a==1"]}, {"verify": [{"name": "n", "command": ["id"]}]},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_build_hash_covers_all_that_decides(change: dict[str, Any]) -> None:
    one = image.build_hash(DATA)
    assert len(one) == 64
    assert image.build_hash({**DATA, "note": "a text"}) == one
    assert image.build_hash({**DATA, **change}) != one
    assert image.build_hash(DATA, args={"A": "1"}) != one


def test_nothing_to_build_has_no_hash() -> None:
    assert image.build_hash(None) == ""
    assert image.build_hash({**DATA, "steps": [], "missing": "It is not public."}) == ""
    assert image.build_hash({**DATA, "repository": None, "commit": None}) == ""


def test_own_sources_count_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x")
    (tmp_path / ".git").mkdir()
    one = image.build_hash(DATA, str(tmp_path))
    (tmp_path / ".git" / "index").write_text("changes at every look")
    assert image.build_hash({**DATA, "commit": "b" * 40}, str(tmp_path)) == one, "the folder replaces the repository"
    assert image.build_hash(DATA, str(tmp_path), {"A": "1"}) != one
    (tmp_path / "patch").write_text("p")
    two = image.build_hash(DATA, str(tmp_path))
    assert two != one
    (tmp_path / "patch").chmod(0o755)
    assert image.build_hash(DATA, str(tmp_path)) != two
    assert len(image.build_hash(None, str(tmp_path))) == 64, "a folder with a Dockerfile needs no data"


def test_an_archive_counts_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"1")
    one = image.build_hash(DATA, str(tmp_path / "a.tar.gz"))
    (tmp_path / "a.tar.gz").write_bytes(b"2")
    assert image.build_hash(DATA, str(tmp_path / "a.tar.gz")) not in ("", one)


def test_context_without_a_dockerfile_fails(tmp_path: Path) -> None:
    with pytest.raises(AnsibleFilterError, match=r"has no recipe/Dockerfile\.x, which the profile builds"):
        image.build_hash({"steps": [{"dockerfile": "recipe/Dockerfile.x"}]}, str(tmp_path))
    with pytest.raises(AnsibleFilterError, match="which is not a folder or archive on the controller"):
        image.build_hash(None, str(tmp_path / "none"))


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
