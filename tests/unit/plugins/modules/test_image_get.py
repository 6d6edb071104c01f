"""The commands of a pull or build, and the message if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.modules import image_get

STEP: dict[str, Any] = {"context": ".", "dockerfile": "Dockerfile", "args": {}, "base_arg": None, "target": None, "tag": None}
DIGEST = "sha256:" + "a" * 64


def params(**more: Any) -> dict[str, Any]:
    return {
        "how": "pull", "reference": "reg:5000/o/vllm:1", "digest": "", "context": "", "steps": [STEP], "pins": [], "verify": [], "verify_seconds": 9,
        "build_args": {}, "label": "", "labels": {}, "name": "image-pair1", **more,
    }  # fmt: skip


class Docker:
    """Records the commands, and answers them."""

    def __init__(self, **replies: tuple[int, str, str]) -> None:
        """Take the reply of each command by its first words, as docker_wait."""
        self.replies = replies
        self.seen: list[str] = []

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str]:
        """Run a command."""
        self.seen.append(" ".join(argv))
        return next((reply for key, reply in self.replies.items() if key.replace("_", " ") in self.seen[-1]), (0, "", ""))


def test_pinned_image_is_pulled_by_digest_and_tagged() -> None:
    assert image_get.pull_commands("reg:5000/o/vllm:1", "") == [["docker", "pull", "reg:5000/o/vllm:1"]]
    pinned = f"reg:5000/o/vllm@{DIGEST}"
    assert image_get.pull_commands("reg:5000/o/vllm:1", DIGEST) == [["docker", "pull", pinned], ["docker", "tag", pinned, "reg:5000/o/vllm:1"]]


@pytest.mark.parametrize(("rc", "buildkit"), [(0, "DOCKER_BUILDKIT=1"), (1, "DOCKER_BUILDKIT=0")])
def test_buildkit_is_used_if_the_node_has_it(tmp_path: Path, rc: int, buildkit: str) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x")
    (tmp_path / "job").mkdir()
    wanted = params(context=str(tmp_path), pins=["a==1"])
    out = image_get.build_commands(wanted, Docker(docker_buildx=(rc, "", "")), str(tmp_path / "job"))
    assert [command[1] for command in out if command[0] == "env"] == [buildkit] * 2
    assert (tmp_path / "job" / "pins" / "Dockerfile").read_text().startswith("FROM reg:5000/o/vllm:1-step1\n")


@pytest.mark.parametrize("name", ["gone", "../x", "/etc/passwd"])
def test_dockerfile_outside_the_sources_fails(tmp_path: Path, name: str) -> None:
    with pytest.raises(ImageError, match="step 1 of the build needs the Dockerfile"):
        image_get.build_commands(params(context=str(tmp_path), steps=[{**STEP, "dockerfile": name}]), Docker(), str(tmp_path))


CHECK = {"name": "version", "command": ["vllm", "--version"], "expect": "0.21"}


def test_a_verified_image_gets_its_name() -> None:
    docker = Docker(docker_wait=(0, "0\n", ""), docker_logs=(0, "0.21.1\n", "warning"))
    image_get.verify(params(verify=[CHECK]), docker)
    image_get.name_it(params(), docker)
    assert "timeout 9 docker wait gb10-verify-image-pair1" in docker.seen
    assert docker.seen.count("docker rm --force gb10-verify-image-pair1") == 2
    assert docker.seen[-2:] == ["docker tag reg:5000/o/vllm:1-candidate reg:5000/o/vllm:1", "docker rmi reg:5000/o/vllm:1-candidate"]


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ({"docker_wait": (0, "1", ""), "docker_logs": (0, "", "ImportError: x")}, "exit code 1; output: ImportError: x"),
        ({"docker_wait": (124, "", "")}, "it did not end in time"),
        ({"docker_run": (127, "", 'exec: "vllm": not found')}, 'exit code 127; output: exec: "vllm": not found'),
    ],
)
def test_a_failed_check_is_named_and_its_container_removed(replies: dict[str, tuple[int, str, str]], words: str) -> None:
    docker = Docker(**replies)
    with pytest.raises(ImageError) as caught:
        image_get.verify(params(verify=[CHECK]), docker)
    assert words in str(caught.value)
    assert "'version'" in str(caught.value)
    assert "it stays reg:5000/o/vllm:1-candidate" in str(caught.value)
    assert docker.seen[-1] == "docker rm --force gb10-verify-image-pair1"


def test_progress_counts_layers() -> None:
    log = "1: Pulling from x\na: Pulling fs layer\nb: Pulling fs layer\nc: Already exists\na: Pull complete\n"
    assert image_get.progress(log) == "2 of 3 layers"
    assert image_get.progress("Step 1/2 : FROM x\n ---> abc\n") == "---> abc"
    assert image_get.progress("") == ""
    assert image_get.progress("gb10.cluster: step 2 of 3: D\n#5 12.1 compiling\n") == "step 2 of 3: D  #5 12.1 compiling"
    assert image_get.progress("gb10.cluster: step 2 of 3: D\n") == "gb10.cluster: step 2 of 3: D"


@pytest.mark.parametrize(
    ("log", "percent"),
    [
        ("a: Pulling fs layer\nb: Pulling fs layer\na: Pull complete\n", 50),
        ("gb10.cluster: step 1 of 2: D\n#5 [1/4] FROM x\n#6 [2/4] RUN y\n#6 12.1 compiling\n", 12),
        ("gb10.cluster: step 2 of 2: D\n#9 [base 3/4] RUN z\n", 75),
        ("gb10.cluster: step 2 of 2: D\nStep 3/4 : RUN z\n", 75),
        ("gb10.cluster: step 1 of 2: D\n#5 [3/0] RUN z\n", 0),
        ("something else\n", None),
        ("", None),
    ],
)
def test_report_has_the_share_of_layers_or_build_steps(log: str, percent: int | None) -> None:
    assert image_get.report_of(log).get("percent") == percent


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
    assert "image.build.steps" in image_get.explain_failure("COPY failed: x", params(how="build"))
