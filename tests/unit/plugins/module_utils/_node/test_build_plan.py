"""The docker commands of a build, and the message for logs of real failed builds (Docker 20.10.24, buildx 0.13.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import images

LOGS = Path(__file__).resolve().parents[3] / "fixtures" / "build_logs"


def params(**more: Any) -> dict[str, Any]:
    return {"reference": "reg:5000/o/vllm:1", "context": "/src", "build_args": {}, "label": "hash", **more}


def test_a_build_is_one_command_with_its_label_and_name() -> None:
    argv = images.build_command(params(build_args={"JOBS": "8", "http_proxy": "http://p:1"}), buildkit=False)
    assert argv[:2] == ["env", "DOCKER_BUILDKIT=0"]
    assert "--progress" not in argv
    assert (argv[-1], argv[argv.index("--tag") + 1], argv[argv.index("--label") + 1]) == ("/src", "reg:5000/o/vllm:1", "gb10.cluster.build=hash")
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--build-arg"] == ["JOBS=8", "http_proxy=http://p:1"]
    newer = images.build_command(params(), buildkit=True)
    assert (newer[1], newer[newer.index("--progress") + 1]) == ("DOCKER_BUILDKIT=1", "plain")


@pytest.mark.parametrize("builder", ["classic", "buildkit"])
def test_a_failed_build_shows_its_step_the_last_lines_of_its_log_and_the_remedy(builder: str) -> None:
    first, *lines, remedy = images.explain_failure((LOGS / f"failed_command_{builder}.txt").read_text(), "vllm:1").splitlines()
    assert first == "building vllm:1 failed in step 2 of 2: RUN echo hello; echo decisive cause >&2; exit 3. The last lines of the build:"
    assert (any("decisive cause" in line for line in lines[:-1]), "code: 3" in lines[-1], len(lines) <= images.BUILD_LINES) == (True, True, True)
    assert "correct the Dockerfile of image.build, or the mod" in remedy


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ((LOGS / "source_gone_buildkit.txt").read_text(), "failed in http://127.0.0.1:18765/gone.tar.gz."),
        ((LOGS / "source_gone_buildkit.txt").read_text(), "invalid response status 404\n"),
        ("fatal: hf_abcdefGHIJKL0123456789abcdefGHIJKL\x1b[31m failed", "fatal: "),
        ("", "failed in its first step. The last lines of the build:\nno output\n"),
    ],
)
def test_any_log_becomes_a_message_without_secrets_and_control_characters(log: str, words: str) -> None:
    found = images.explain_failure(log, "vllm:1")
    assert words in found
    assert "hf_abcdef" not in found
    assert found.replace("\n", "").isprintable()
