# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The build of an image as docker commands, its progress, and the sentence for a build that failed. Pure."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import masked
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import BUILD_LABEL

MARK = "gb10.cluster: step "
#: Pattern in the decisive part of a log -> what it means and the remedy.
CAUSES = (
    (r"no space left on device", "the disk is full: free space in Docker's data folder (`docker system df` shows what is in it)"),
    (
        r"failed to compute cache key|failed to calculate checksum|COPY failed|ADD failed|file does not exist",
        "the build context lacks a file that the Dockerfile copies: correct context in image.build.steps",
    ),
    (
        r"could not resolve host|no such host|temporary failure in name resolution|dial tcp|network is unreachable|connection (?:timed out|refused)"
        r"|max retries exceeded|read timed out|failed to fetch|unable to connect",
        "the node does not reach a server that the build needs: give it a way there (a proxy goes into image_build_args), and run again",
    ),
    (
        r"pull access denied|manifest unknown|manifest for .* not found|repository does not exist|: not found$|unauthorized",
        "a base image is not available: correct the FROM line or base_arg in image.build.steps, or log in on the node as root (docker login)",
    ),
    (
        r"requires? buildkit|unknown flag: ?(?:mount|chmod|link|parents)",
        "the Docker Engine has no BuildKit: install the package docker-buildx-plugin on the node",
    ),
    (r"exit code: 137|code: 137|\bkilled\b|out of memory", "the node ran out of memory: build with fewer jobs, such as image_build_args={MAX_JOBS: '8'}"),
)
_STAMP = re.compile(r"#\d+ (?:\d+\.\d+ )?|\d+\.\d{3} ")
_NOISE = re.compile(
    r"-{3,}|ERROR: failed to (?:solve|build)|#?\d+ \| |\s*\d+ \|| ?---> |Removing intermediate|Step \d+/|[\w./-]*:\d+$|\[?Warning|WARNING|DEPRECATED"
    r"|Sending build context|\s+(?:BuildKit is currently|environment-variable|Install the buildx)"
)
_ERROR = re.compile(r"ERROR: |error: |failed|returned a non-zero code|no space left|cannot |not found|denied", re.IGNORECASE)


def candidate(reference: str) -> str:
    """Return the name of an image that is not verified yet."""
    return f"{reference if ':' in reference.rpartition('/')[2] else reference + ':latest'}-candidate"


def tags(reference: str, steps: Sequence[Mapping[str, Any]], pins: Sequence[str]) -> list[str]:
    """Return the name of the result of each step, the pins as the last one."""
    stem = candidate(reference)[: -len("candidate")]
    names = [step.get("tag") or f"{stem}step{number}" for number, step in enumerate(steps, 1)] + (["-"] if pins else [])
    return [*names[:-1], candidate(reference)]


def pins_dockerfile(base: str, pins: Sequence[str]) -> str:
    """Return the Dockerfile that installs the pinned packages over an image."""
    words = " ".join(shlex.quote(pin) for pin in pins)
    return f"FROM {base}\nRUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --no-deps {words}\n"


def commands(params: Mapping[str, Any], pins_folder: str, buildkit: bool) -> list[list[str]]:
    """Return the commands that build an image, in order. The result has the name of :func:`candidate`.

    :param params: ``reference``, ``context`` (folder with the sources), ``steps``, ``pins``, ``build_args``, ``labels``, ``label``.
    :param pins_folder: folder with the file of :func:`pins_dockerfile`.
    """
    reference, root, steps, pins = params["reference"], params["context"], params["steps"], params["pins"]
    names = tags(reference, steps, pins)
    labels = {**params["labels"], BUILD_LABEL: params["label"]}
    labels.update({f"{BUILD_LABEL}.steps": json.dumps(steps, sort_keys=True), f"{BUILD_LABEL}.pins": " ".join(pins)})
    if params["build_args"]:
        labels[f"{BUILD_LABEL}.args"] = json.dumps(params["build_args"], sort_keys=True)
    out: list[list[str]] = []
    for number, name in enumerate(names):
        if number < len(steps):
            step = steps[number]
            context, dockerfile = os.path.join(root, step["context"]), os.path.join(root, step["dockerfile"])
            base = {step["base_arg"]: names[number - 1]} if step.get("base_arg") and number else {}
            args, target, what = {**step["args"], **params["build_args"], **base}, step.get("target"), step["dockerfile"]
        else:
            context, dockerfile, args, target, what = pins_folder, os.path.join(pins_folder, "Dockerfile"), params["build_args"], None, "pins"
        out.append(["echo", f"{MARK}{number + 1} of {len(names)}: {what}"])
        argv = ["env", f"DOCKER_BUILDKIT={int(buildkit)}", "docker", "build", "--network", "host", *(["--progress", "plain"] if buildkit else [])]
        argv += ["--file", dockerfile, "--tag", name, *(["--target", target] if target else [])]
        for key, value in args.items():
            argv += ["--build-arg", f"{key}={value}"]
        for key, value in labels.items() if name == names[-1] else ():
            argv += ["--label", f"{key}={value}"] if value else []
        out.append([*argv, context])
    return out


def step_of(log: str) -> str:
    """Return the last step that began, such as `step 1 of 3: recipe/Dockerfile.base`; empty before the first one."""
    begun = [line for line in log.splitlines() if line.startswith(MARK)]
    return begun[-1][len("gb10.cluster: ") :] if begun else ""


def share_of(log: str) -> int | None:
    """Return how many per cent of a build's steps have begun, from the steps of the plan and the instructions of the current one; None if not known."""
    _before, mark, current = log.rpartition(MARK)
    step = re.match(r"(\d+) of (\d+)", current) if mark else None
    if step is None or int(step[2]) == 0:
        return None
    # BuildKit writes `#5 [2/9] RUN …` or `[base 2/9]`, the classic builder `Step 2/9 : RUN …`.
    parts = re.findall(r"^(?:#\d+ \[(?:[^\]\s]+ )?|Step )(\d+)/(\d+)\b", current, re.MULTILINE)
    done = max(((int(number) - 1) / int(total) for number, total in parts if int(total)), default=0.0)
    return min(int(100 * (int(step[1]) - 1 + min(done, 1.0)) / int(step[2])), 100)


def _clean(line: str) -> str:
    return "".join(each for each in str(masked(" ".join(line.split())))[:240] if each.isprintable())


def decisive(log: str) -> tuple[str, str]:
    """Return the line of a failed build that has the error, and the last output of the command before it."""
    _before, mark, last_step = log.rpartition(MARK)
    lines = [line for line in last_step.splitlines()[1 if mark else 0 :][-400:] if line.strip()]
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
    command = re.search("did not complete successfully|returned a non-zero code|exit code", error)
    detail = f"{error}; its last output: {output}" if command and output else error
    evidence = f"{error}\n{output}" if command else error
    default = "correct image.build of the profile, or the sources; finished steps are kept"
    remedy = next((text for pattern, text in CAUSES if re.search(pattern, evidence, re.IGNORECASE | re.MULTILINE)), default)
    return f"building {reference} failed in {step_of(log) or 'its first step'} ({detail}): {remedy}"


def verify_command(image: str, name: str, command: Sequence[str]) -> list[str]:
    """Return the docker command that starts a check in an image: without network, GPU, capabilities and volumes."""
    argv = ["docker", "run", "--detach", "--name", name, "--network", "none", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    argv += ["--pids-limit", "4096", "--env", "NVIDIA_VISIBLE_DEVICES=void"]
    argv += ["--log-driver", "json-file", "--log-opt", "max-size=1m", "--log-opt", "max-file=1"]
    return [*argv, "--entrypoint", command[0], image, *command[1:]]


def verify_fault(check: Mapping[str, Any], code: str, output: str) -> str:
    """Return the sentence for a check that failed; empty if it passed. `code` is its exit code, or empty if it did not end in time."""
    expect, lines = check.get("expect"), [line for line in output.splitlines() if line.strip()]
    if code == "0" and (expect is None or expect in output):
        return ""
    reason = "it did not end in time" if not code else f"exit code {code}" if code != "0" else f"the output does not contain {expect!r}"
    return f"the check {check['name']!r} failed in the finished image ({reason}; output: {_clean(lines[-1]) if lines else 'none'})"
