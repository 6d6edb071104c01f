# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The build data of a profile: what its keys mean together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import holds_secret
from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_names import BUILD_ARGUMENT

# file:// is a repository on the node that builds. Other protocols can be changed on the way, or run commands (ext::).
_REPOSITORY = re.compile(r"(?:https://[A-Za-z0-9.-]+(?::\d{1,5})?|file://)(?:/[\w.~+-]+)+/?")
_PATH = re.compile(r"[^/\x00-\x1f\\-][^\x00-\x1f\\]*")


def is_below(path: str) -> bool:
    """Whether a path is relative and stays below its folder, as text."""
    return bool(_PATH.fullmatch(path)) and ".." not in path.split("/")


def check_build(build: Mapping[str, Any], note: Callable[[str, str], Any]) -> None:
    """Record the contradictions of build data that fits the schema."""
    _check_sources(build, note)
    steps = build["steps"]
    if build["missing"] is not None and steps:
        note("image.build.missing", "is set, and image.build.steps is not empty: keep one of them (steps: null removes inherited steps)")
    if build["use_instead"] is not None and build["missing"] is None:
        note("image.build.use_instead", "is set without image.build.missing: add the sentence about what is missing")
    for key in ("pins", "verify"):
        if build[key] and not steps:
            note(f"image.build.{key}", f"is set, but nothing is built: add image.build.steps, or leave {key} out")
    for i, step in enumerate(steps):
        _check_step(step, f"image.build.steps[{i}]", i, note)
    for i, check in enumerate(build["verify"]):
        if not check["command"] or not check["command"][0]:
            note(f"image.build.verify[{i}].command", "is empty, expected a command with its arguments, such as [vllm, --version]")


def _check_sources(build: Mapping[str, Any], note: Callable[[str, str], Any]) -> None:
    repository = build["repository"]
    if repository is not None and holds_secret("repository", repository):
        note("image.build.repository", "contains a user or a secret: leave it out, and give a private source as image_build_context")
    elif repository is not None and (not _REPOSITORY.fullmatch(repository) or "/../" in f"{repository}/"):
        note("image.build.repository", f"is {repository!r}, expected https://host/owner/name.git, or file:///path of a repository on the node")
    elif repository is not None and not build["steps"] and build["missing"] is None:
        note("image.build.repository", "is set, but nothing is built from it: add image.build.steps")
    if (repository is None) != (build["commit"] is None):
        key, other = ("commit", "repository") if repository is None else ("repository", "commit")
        note(f"image.build.{key}", f"is set without image.build.{other}: set both, or none")
    for key in ("pull_requests", "cherry_picks", "patches"):
        if build[key] and repository is None:
            note(f"image.build.{key}", f"is set without image.build.repository: set the repository, or leave {key} out")
    for i, path in enumerate(build["patches"]):
        if not is_below(path):
            note(f"image.build.patches[{i}]", f"is {path!r}, expected a path below the repository")


def _check_step(step: Mapping[str, Any], path: str, number: int, note: Callable[[str, str], Any]) -> None:
    for key in ("context", "dockerfile"):
        if not is_below(step[key]):
            note(f"{path}.{key}", f"is {step[key]!r}, expected a path below the repository")
    for key, value in step["args"].items():
        if holds_secret(key, value):
            note(f"{path}.args.{key}", BUILD_ARGUMENT)
    if step["base_arg"] is not None and number == 0:
        note(f"{path}.base_arg", "is set in the first step, which has no step before it: leave it out")
    if step["base_arg"] is not None and step["base_arg"] in step["args"]:
        note(f"{path}.base_arg", f"is {step['base_arg']!r}, which image.build.steps[{number}].args sets as well: keep one of them")
