"""The docker commands of a build, and the sentences for logs of real failed builds (Docker 20.10.24, buildx 0.13.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker import build_plan

LOGS = Path(__file__).resolve().parents[3] / "fixtures" / "build_logs"
MARK = "gb10.cluster: step 1 of 3: recipe/D\n"


def step(**more: Any) -> dict[str, Any]:
    return {"context": ".", "dockerfile": "Dockerfile", "args": {}, "base_arg": None, "target": None, "tag": None, **more}


def params(**more: Any) -> dict[str, Any]:
    base = {"reference": "reg:5000/o/vllm:1", "context": "/src", "steps": [step()], "pins": [], "build_args": {}, "labels": {}, "label": "hash"}
    return {**base, **more}


def builds(commands: list[list[str]]) -> list[list[str]]:
    return [command for command in commands if command[0] == "env"]


def test_each_step_has_its_context_and_gets_the_image_of_the_step_before() -> None:
    steps = [
        step(context="recipe/overlay", dockerfile="recipe/Dockerfile.o", args={"A": "1", "JOBS": "2"}),
        step(dockerfile="recipe/Dockerfile.a", base_arg="BASE_IMAGE", target="runtime", tag="o/stage:a"),
        step(dockerfile="recipe/Dockerfile.b", base_arg="BASE"),
    ]
    out = build_plan.commands(params(steps=steps, build_args={"JOBS": "8"}, labels={"gb10.cluster.build.commit": "c"}), "/pins", buildkit=False)
    assert [command[1] for command in out if command[0] == "echo"] == [
        "gb10.cluster: step 1 of 3: recipe/Dockerfile.o", "gb10.cluster: step 2 of 3: recipe/Dockerfile.a", "gb10.cluster: step 3 of 3: recipe/Dockerfile.b",
    ]  # fmt: skip
    one, two, three = builds(out)
    assert one[-1] == "/src/recipe/overlay"
    assert one[one.index("--file") + 1] == "/src/recipe/Dockerfile.o"
    assert one[one.index("--tag") + 1] == "reg:5000/o/vllm:1-step1"
    assert ("A=1" in one, "JOBS=8" in one, "JOBS=2" in one) == (True, True, False)
    assert ("BASE_IMAGE=reg:5000/o/vllm:1-step1" in two, two[two.index("--target") + 1], two[two.index("--tag") + 1]) == (True, "runtime", "o/stage:a")
    assert ("BASE=o/stage:a" in three, three[three.index("--tag") + 1]) == (True, "reg:5000/o/vllm:1-candidate")
    assert [("gb10.cluster.build=hash" in each, "gb10.cluster.build.commit=c" in each) for each in (one, two, three)] == [(False, False)] * 2 + [(True, True)]
    assert one[:2] == ["env", "DOCKER_BUILDKIT=0"]
    assert "--progress" not in one


def test_pins_are_a_step_over_the_last_one_and_carry_the_labels() -> None:
    out = builds(build_plan.commands(params(pins=["a-b[c]==1.0"], build_args={"http_proxy": "http://p:1"}), "/pins", buildkit=True))
    assert [each[each.index("--tag") + 1] for each in out] == ["reg:5000/o/vllm:1-step1", "reg:5000/o/vllm:1-candidate"]
    assert out[1][-1] == "/pins"
    assert {"gb10.cluster.build=hash", "gb10.cluster.build.pins=a-b[c]==1.0", "http_proxy=http://p:1"} <= set(out[1])
    assert not any(word.startswith("gb10.cluster.build") for word in out[0])
    assert out[0][:2] == ["env", "DOCKER_BUILDKIT=1"]
    assert out[0][out[0].index("--progress") + 1] == "plain"
    text = build_plan.pins_dockerfile("x:1", ["a-b[c]==1.0"])
    assert text.startswith("FROM x:1\nRUN ")
    assert text.rstrip().endswith("--no-deps 'a-b[c]==1.0'")


@pytest.mark.parametrize(("reference", "name"), [("vllm", "vllm:latest-candidate"), ("r:5000/vllm", "r:5000/vllm:latest-candidate"), ("a:b", "a:b-candidate")])
def test_an_unverified_image_has_another_name(reference: str, name: str) -> None:
    assert build_plan.candidate(reference) == name


@pytest.mark.parametrize("builder", ["classic", "buildkit"])
@pytest.mark.parametrize(
    ("log", "line", "remedy"),
    [
        ("lacking_file", "vllm", "the build context lacks a file that the Dockerfile copies: correct context in image.build.steps"),
        ("failed_command", "code: 3; its last output: ", "correct image.build of the profile, or the sources; finished steps are kept"),
        ("no_network", "registry-1.docker.io", "the node does not reach a server"),
        ("full_disk", "its last output: write error: No space left on device", "the disk is full: free space in Docker's data folder"),
    ],
)
def test_a_failed_build_is_one_sentence(builder: str, log: str, line: str, remedy: str) -> None:
    found = build_plan.explain_failure((LOGS / f"{log}_{builder}.txt").read_text(), "vllm:1")
    assert found.startswith("building vllm:1 failed in step 1 of 3: recipe/D (")
    assert line in found
    assert remedy in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ((LOGS / "needs_buildkit_classic.txt").read_text(), "docker-buildx-plugin"),
        (MARK + 'ERROR: failed to solve: process "/bin/sh -c make" did not complete successfully: exit code: 137', "fewer jobs"),
        (MARK + "ERROR: failed to solve: x/y:1: pull access denied, repository does not exist", "a base image is not available"),
        (MARK + "fatal: hf_abcdefGHIJKL0123456789abcdefGHIJKL\x1b[31m failed", "correct image.build"),
        (MARK, "no output"),
        (MARK + "Sending build context to Docker daemon  2kB\nStep 1/1 : RUN false\nThe command 'false' returned a non-zero code: 1\n", "(The command 'false'"),
        ("", "its first step (no output)"),
    ],
)
def test_a_known_cause_has_its_remedy(log: str, words: str) -> None:
    found = build_plan.explain_failure(log, "vllm:1")
    assert words in found
    assert "hf_abcdef" not in found
    assert "Sending" not in found
    assert found.isprintable()


def test_a_cause_in_an_earlier_step_does_not_count() -> None:
    log = MARK + "No space left on device (ignored)\n" + MARK.replace("step 1", "step 2") + "The command 'x' returned a non-zero code: 1\n"
    assert "step 2 of 3" in build_plan.explain_failure(log, "v")
    assert "disk is full" not in build_plan.explain_failure(log, "v")


@pytest.mark.parametrize(
    ("expect", "code", "output", "words"),
    [
        (None, "0", "", ""),
        ("0.21", "0", "vLLM 0.21.1\n", ""),
        ("0.21", "0", "vLLM 0.20\n", "failed in the finished image (the output does not contain '0.21'; output: vLLM 0.20)"),
        (None, "1", "a\nImportError: x\n\n", "(exit code 1; output: ImportError: x)"),
        (None, "", "", "(it did not end in time; output: none)"),
    ],
)
def test_a_check_of_the_image(expect: str | None, code: str, output: str, words: str) -> None:
    found = build_plan.verify_fault({"name": "version", "command": ["x"], "expect": expect}, code, output)
    assert words in found
    assert bool(found) == bool(words)


def test_a_check_has_no_network_gpu_or_capability() -> None:
    argv = build_plan.verify_command("v:1-candidate", "c", ["sh", "-c", "id"])
    text = " ".join(argv)
    assert text.endswith("--entrypoint sh v:1-candidate -c id")
    for words in ("--network none", "--cap-drop ALL", "no-new-privileges", "NVIDIA_VISIBLE_DEVICES=void", "max-size=1m"):
        assert words in text
    assert "--gpus" not in argv
