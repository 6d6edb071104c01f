"""The commands of a pull or build, and the message if it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.modules import image_get

DIGEST = "sha256:" + "a" * 64


def params(**more: Any) -> dict[str, Any]:
    return {"how": "pull", "reference": "reg:5000/o/vllm:1", "digest": "", "context": "", "dockerfiles": ["Dockerfile"], "build_args": {}, "label": "", **more}


def test_pinned_image_is_pulled_by_digest_and_tagged() -> None:
    assert image_get.commands(params()) == [["docker", "pull", "reg:5000/o/vllm:1"]]
    pinned = f"reg:5000/o/vllm@{DIGEST}"
    assert image_get.commands(params(digest=DIGEST)) == [["docker", "pull", pinned], ["docker", "tag", pinned, "reg:5000/o/vllm:1"]]


def test_dockerfiles_use_the_previous_result(tmp_path: Path) -> None:
    for name in ("base", "a/stage"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("FROM x")
    one, two = image_get.commands(params(how="build", context=str(tmp_path), dockerfiles=["base", "a/stage"], build_args={"K": "v"}, label="hash"))
    assert one[one.index("--tag") + 1] == "reg:5000/o/vllm:1-step1"
    assert "BASE_IMAGE=reg:5000/o/vllm:1-step1" in two
    assert two[two.index("--tag") + 1] == "reg:5000/o/vllm:1"
    assert "gb10.cluster.build=hash" in two
    assert "gb10.cluster.build=hash" not in one
    assert "K=v" in one
    assert one[-1] == two[-1] == str(tmp_path)


@pytest.mark.parametrize("name", ["gone", "../x", "/etc/passwd"])
def test_dockerfile_outside_the_context_fails(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="is not in the build context"):
        image_get.commands(params(how="build", context=str(tmp_path), dockerfiles=[name]))


def test_progress_counts_layers() -> None:
    log = "1: Pulling from x\na: Pulling fs layer\nb: Pulling fs layer\nc: Already exists\na: Pull complete\n"
    assert image_get.progress(log) == "2 of 3 layers"
    assert image_get.progress("Step 1/2 : FROM x\n ---> abc\n") == "---> abc"
    assert image_get.progress("") == ""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("Error response from daemon: Get https://r/v2/: dial tcp: lookup r: no such host", "a way to the registry"),
        ("Error response from daemon: pull access denied for x", "docker login"),
        ("Error response from daemon: manifest unknown", "image.reference"),
        ("write /var/lib/docker/tmp: no space left on device", "free space"),
        ("", "no output"),
    ],
)
def test_failed_pull_is_reported_with_its_remedy(log: str, words: str) -> None:
    assert words in image_get.explain_failure(log, params())
    assert "image_build_context" in image_get.explain_failure("COPY failed: x", params(how="build"))
