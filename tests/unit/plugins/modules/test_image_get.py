"""What is run to pull or build, and what is said when it fails."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.modules import image_get

DIGEST = "sha256:" + "a" * 64


def params(**more: Any) -> dict[str, Any]:
    return {"how": "pull", "reference": "reg:5000/o/vllm:1", "digest": "", "context": "", "dockerfiles": ["Dockerfile"], "build_args": {}, "label": "", **more}


def test_a_pinned_image_is_pulled_by_digest_and_named() -> None:
    assert image_get.commands(params()) == [["docker", "pull", "reg:5000/o/vllm:1"]]
    pinned = f"reg:5000/o/vllm@{DIGEST}"
    assert image_get.commands(params(digest=DIGEST)) == [["docker", "pull", pinned], ["docker", "tag", pinned, "reg:5000/o/vllm:1"]]


def test_dockerfiles_stand_on_one_another(tmp_path: Path) -> None:
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
def test_a_dockerfile_outside_the_context_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="is not in the build context"):
        image_get.commands(params(how="build", context=str(tmp_path), dockerfiles=[name]))


@pytest.mark.parametrize(("commands", "rc", "log"), [([["echo", "a b"], ["echo", "it's"]], 0, "a b\nit's\n"), ([["false"], ["echo", "x"]], 1, "")])
def test_the_script_stops_at_the_first_failure(tmp_path: Path, commands: list[list[str]], rc: int, log: str) -> None:
    report = tmp_path / "re port"
    subprocess.run(["sh", "-c", image_get.script(commands, str(report))], check=True)
    assert json.loads(report.read_text()) == {"rc": rc}
    assert Path(f"{report}.log").read_text() == log


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
        ("write /var/lib/docker/tmp: no space left on device", "make room"),
        ("", "no output"),
    ],
)
def test_a_failed_pull_is_told_with_its_remedy(log: str, words: str) -> None:
    assert words in image_get.why(log, params())
    assert "image_build_context" in image_get.why("COPY failed: x", params(how="build"))
