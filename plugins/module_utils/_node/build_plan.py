# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The build of an image as a docker command, its progress, and the end of the log of a build that failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import masked
from ansible_collections.gb10.cluster.plugins.module_utils._node.image_plan import BUILD_LABEL

LINES = 5  # of the end of a failed build
# BuildKit writes `#5 [2/9] RUN …` or `[base 2/9]`, the classic builder `Step 2/9 : RUN …`.
_STEP = re.compile(r"^(?:#\d+ \[(?:[^\]\s]+ +)?|Step )(\d+)/(\d+)(?:\] | : )(.*)$", re.MULTILINE)
# BuildKit runs steps at once, and repeats the one that failed.
_FAILED = re.compile(r"^ > (?:\[(?:[^\]\s]+ +)?(\d+)/(\d+)\] )?(.*):$", re.MULTILINE)
# What a builder adds: rules, an excerpt of the Dockerfile, the names of steps and of temporary containers.
_NOISE = re.compile(
    r"-{3,}|Step \d+/| > |\s*\d+ \| |[\w./-]*:\d+$|Removing intermediate|Sending build context| ?---> |DEPRECATED|\s+(?:BuildKit is|environment-|Install the)"
)


def command(params: Mapping[str, Any], buildkit: bool) -> list[str]:
    """Return the command that builds an image. One that fails leaves the image of this name as it is.

    :param params: ``reference``, ``context`` (the folder with the Dockerfile), ``build_args``, ``label``.
    """
    argv = ["env", f"DOCKER_BUILDKIT={int(buildkit)}", "docker", "build", "--network", "host", *(["--progress", "plain"] if buildkit else [])]
    for key, value in params["build_args"].items():
        argv += ["--build-arg", f"{key}={value}"]
    return [*argv, "--label", f"{BUILD_LABEL}={params['label']}", "--tag", params["reference"], params["context"]]


def step_of(log: str) -> str:
    """Return the step that failed, else the last one that began, such as `step 2 of 9: RUN make`; empty before the first one."""
    number, total, what = (_FAILED.findall(log) or _STEP.findall(log) or [("", "", "")])[-1]
    return f"step {number} of {total}: {_clean(what, 80)}" if number else _clean(what, 80)


def share_of(log: str) -> int | None:
    """Return how many per cent of a build's steps have begun; None if not known."""
    done = [(int(number) - 1) / int(total) for number, total, _what in _STEP.findall(log) if int(total)]
    return min(int(100 * max(done)), 100) if done else None


def _clean(line: str, most: int = 240) -> str:
    """Return one line without secrets and control characters. A long one keeps its end, where a builder that repeats the command has the exit code."""
    text = "".join(each for each in str(masked(" ".join(line.split()))) if each.isprintable())
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def explain_failure(log: str, reference: str) -> str:
    """Return the step of a failed build, the last lines of its log, and the remedy."""
    lines = [_clean(line) for line in log.splitlines()[-400:] if line.strip() and not _NOISE.match(line)][-LINES:] or ["no output"]
    remedy = "Remedy: correct the Dockerfile of image.build, or the mod, and run again: finished steps are kept"
    return "\n".join([f"building {reference} failed in {step_of(log) or 'its first step'}. The last lines of the build:", *lines, remedy])
