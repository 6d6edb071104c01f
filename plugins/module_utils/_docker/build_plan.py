# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The build of an image as a docker command, its progress, and the sentence for a build that failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import masked
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import BUILD_LABEL

#: Pattern in the decisive part of a log -> what it means and the remedy.
CAUSES = (
    (r"no space left on device", "the disk is full: free space in Docker's data folder (`docker system df` shows what is in it)"),
    (
        r"could not resolve host|no such host|temporary failure in name resolution|dial tcp|network is unreachable|connection (?:timed out|refused)"
        r"|max retries exceeded|read timed out|failed to fetch|unable to connect",
        "the node does not reach a server that the build needs: give it a way there (a proxy goes into image_build_args, and for FROM and ADD into the "
        "Docker Engine), and run again",
    ),
    (
        r"failed to compute cache key|failed to calculate checksum|COPY failed|ADD failed(?!.* 404)|file does not exist",
        "the build context lacks a file that the Dockerfile copies: add it to the folder of image.build, or correct path in image.mods",
    ),
    (r"hunks? FAILED|can't find file to patch", "a patch does not fit the image: take the commit of the mod, or the image, that the other is made for"),
    (r"patch: (?:command )?not found", "the image has no program patch: install it in the Dockerfile, or with a mod before this one"),
    (
        r"pull access denied|manifest unknown|manifest for .* not found|repository does not exist|: not found$|unauthorized|status (?:code )?404",
        "a base image or a source is not available: correct its line in the Dockerfile (FROM, ADD), or log in on the node as root (docker login)",
    ),
    (
        r"requires? buildkit|unknown flag: ?(?:mount|chmod|link|parents|checksum)",
        "the Docker Engine has no BuildKit: install the package docker-buildx-plugin on the node",
    ),
    (r"exit code: 137|code: 137|\bkilled\b|out of memory", "the node ran out of memory: build with fewer jobs, such as image_build_args={MAX_JOBS: '8'}"),
)
# BuildKit writes `#5 [2/9] RUN …` or `[base 2/9]`, the classic builder `Step 2/9 : RUN …`.
_STEP = re.compile(r"^(?:#\d+ \[(?:[^\]\s]+ +)?|Step )(\d+)/(\d+)(?:\] | : )(.*)$", re.MULTILINE)
# BuildKit runs steps at once, and repeats the one that failed.
_FAILED = re.compile(r"^ > (?:\[(?:[^\]\s]+ +)?(\d+)/(\d+)\] )?(.*):$", re.MULTILINE)
_STAMP = re.compile(r"#\d+ (?:\d+\.\d+ )?|\d+\.\d{3} ")
_NOISE = re.compile(
    r"-{3,}|ERROR: failed to (?:solve|build)|#?\d+ \| |\s*\d+ \|| ?---> |Removing intermediate|Step \d+/|[\w./-]*:\d+$|\[?Warning|WARNING|DEPRECATED"
    r"|Sending build context|\s+(?:BuildKit is currently|environment-variable|Install the buildx)"
)
_ERROR = re.compile(r"ERROR: |error: |failed|returned a non-zero code|no space left|cannot |not found|denied", re.IGNORECASE)


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


def decisive(log: str) -> tuple[str, str]:
    """Return the line of a failed build that has the error, and the last output of the command before it."""
    lines = [line for line in log.splitlines()[-400:] if line.strip()]
    found = next((n for n in range(len(lines) - 1, -1, -1) if "failed to solve" in lines[n] or "failed to build" in lines[n]), None)
    if found is None:
        found = next((n for n in range(len(lines) - 1, -1, -1) if _ERROR.search(lines[n]) and not _NOISE.match(lines[n])), len(lines) - 1)
    if found < 0:
        return "no output", ""
    error = re.sub(r"^(?:ERROR: )?failed to (?:solve|build): ", "", _STAMP.sub("", lines[found], count=1).strip())
    before = [_STAMP.sub("", line, count=1).strip() for line in lines[:found] if not _NOISE.match(line)]
    before = [line for line in before if line not in ("", error, "CANCELED") and not line.startswith((">", "ERROR", "[")) and not _NOISE.match(line)]
    return _clean(error), _clean(before[-1]) if before else ""


def explain_failure(log: str, reference: str) -> str:
    """Return the sentence for a failed build: which step, the decisive line, and the remedy."""
    error, output = decisive(log)
    command_failed = re.search("did not complete successfully|returned a non-zero code|exit code", error)
    detail = f"{error}; its last output: {output}" if command_failed and output else error
    evidence = f"{error}\n{output}" if command_failed else error
    default = "correct the Dockerfile of image.build, or the mod; finished steps are kept"
    remedy = next((text for pattern, text in CAUSES if re.search(pattern, evidence, re.IGNORECASE | re.MULTILINE)), default)
    return f"building {reference} failed in {step_of(log) or 'its first step'} ({detail}): {remedy}"
