"""The docker commands of a build, and the sentences for logs of real failed builds (Docker 20.10.24, buildx 0.13.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker import build_plan, mods

LOGS = Path(__file__).resolve().parents[3] / "fixtures" / "build_logs"
# The command of a mod that is a patch, as BuildKit repeats it.
RUN = mods.dockerfile("b:1", [{"repository": None, "commit": None, "path": "x.patch"}]).splitlines()[-1].removeprefix("RUN ")
PATCH = f'failed to solve: process "/bin/sh -c {RUN}" did not complete successfully'


def params(**more: Any) -> dict[str, Any]:
    return {"reference": "reg:5000/o/vllm:1", "context": "/src", "build_args": {}, "label": "hash", **more}


def test_a_build_is_one_command_with_its_label_and_name() -> None:
    argv = build_plan.command(params(build_args={"JOBS": "8", "http_proxy": "http://p:1"}), buildkit=False)
    assert argv[:2] == ["env", "DOCKER_BUILDKIT=0"]
    assert "--progress" not in argv
    assert (argv[-1], argv[argv.index("--tag") + 1], argv[argv.index("--label") + 1]) == ("/src", "reg:5000/o/vllm:1", "gb10.cluster.build=hash")
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--build-arg"] == ["JOBS=8", "http_proxy=http://p:1"]
    newer = build_plan.command(params(), buildkit=True)
    assert (newer[1], newer[newer.index("--progress") + 1]) == ("DOCKER_BUILDKIT=1", "plain")


@pytest.mark.parametrize("builder", ["classic", "buildkit"])
@pytest.mark.parametrize(
    ("log", "line", "remedy"),
    [
        ("lacking_file", "vllm", "lacks a file that the Dockerfile copies: add it to the folder of image.build, or correct path in image.mods"),
        ("failed_command", "code: 3; its last output: ", "correct the Dockerfile of image.build, or the mod; finished steps are kept"),
        ("no_network", "registry-1.docker.io", "the node does not reach a server"),
        ("full_disk", "its last output: write error: No space left on device", "the disk is full: free space in Docker's data folder"),
    ],
)
def test_a_failed_build_is_one_sentence(builder: str, log: str, line: str, remedy: str) -> None:
    found = build_plan.explain_failure((LOGS / f"{log}_{builder}.txt").read_text(), "vllm:1")
    step = "step 2 of 2: "
    if log == "no_network":
        step = "step 1 of 1: FROM gb10-nowhere/base:1" if builder == "classic" else "[internal] load metadata for docker.io/gb10-nowhere/base:1"
    assert found.startswith(f"building vllm:1 failed in {step}")
    assert line in found
    assert remedy in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ((LOGS / "needs_buildkit_classic.txt").read_text(), "docker-buildx-plugin"),
        ('ERROR: failed to solve: process "/bin/sh -c make" did not complete successfully: exit code: 137', "fewer jobs"),
        ("ERROR: failed to solve: x/y:1: pull access denied, repository does not exist", "a base image or a source is not available"),
        ("fatal: hf_abcdefGHIJKL0123456789abcdefGHIJKL\x1b[31m failed", "correct the Dockerfile"),
        (f"#7 0.1 1 out of 1 hunk FAILED -- saving rejects to file x.rej\nERROR: {PATCH}: exit code: 1", "a patch does not fit the image"),
        (f"#7 0.1 /bin/sh: 1: patch: not found\nERROR: {PATCH}: exit code: 127", "the image has no program patch"),
        (f"#7 0.1 /bin/sh: 1: site: no Python of the image has vLLM\nERROR: {PATCH}: exit code: 2", "no Python of the image has vLLM): correct the Dockerfile"),
        ("Sending build context to Docker daemon  2kB\nStep 1/1 : RUN false\nThe command 'false' returned a non-zero code: 1\n", "(The command 'false'"),
        ((LOGS / "source_gone_buildkit.txt").read_text(), "failed in http://127.0.0.1:18765/gone.tar.gz ("),
        ((LOGS / "source_gone_buildkit.txt").read_text(), "a base image or a source is not available"),
        ("Step 1/1 : ADD u /x\nADD failed: failed to GET u with status 404 Not Found: Not Found\n", "a base image or a source is not available"),
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
    log = "Step 1/2 : RUN a\nNo space left on device (ignored)\nStep 2/2 : RUN x\nthe output\nThe command 'x' returned a non-zero code: 1\n"
    assert "step 2 of 2: RUN x" in build_plan.explain_failure(log, "v")
    assert "disk is full" not in build_plan.explain_failure(log, "v")
