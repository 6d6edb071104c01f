# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the role image: plan, reference of the container, hash of the build context."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import holds_secret
from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_names import BUILD_ARGUMENT
from ansible_collections.gb10.cluster.plugins.module_utils._docker import image_plan as image_proof
from ansible_collections.gb10.cluster.plugins.plugin_utils.filters import raises


@raises(image_proof.ImageError)
def image_plan(infos: Any, hosts: Any, **options: Any) -> dict[str, Any]:
    """Return the plan; see module_utils._docker.image_plan.plan."""
    hosts, infos = [str(host) for host in hosts], list(infos)
    if len(infos) != len(hosts):
        raise AnsibleFilterError(f"image_plan: {len(infos)} results for {len(hosts)} ranks: run on all ranks of the group")
    return image_proof.plan(hosts, infos, **options)


def image_run(infos: Any, reference: str, digest: str = "") -> str:
    """Return the image that a container is started from: the name, the pinned name if all ranks know its digest, else the common id."""
    infos = list(infos)
    if not digest:
        return reference
    if all(digest in image_proof.digests(info) for info in infos):
        return f"{reference}@{digest}"
    ids = {str(info.get("id")) for info in infos}
    return ids.pop() if len(ids) == 1 else reference


# What decides what is in the image. The rest of the build data is text for a person, or the owner's choice of the sources.
HASHED = ("repository", "commit", "pull_requests", "cherry_picks", "patches", "submodules", "steps", "pins", "verify")


def build_hash(build: Mapping[str, Any] | None, context: Any = "", args: Mapping[str, Any] | None = None) -> str:
    """Return a hash over the build data of a profile, the build arguments, and the content of the owner's sources; empty if nothing can be built.

    The sources are a folder (names, modes, contents without .git) or an archive on the controller. Without them, the commit of the repository counts.
    """
    for name, value in (args or {}).items():
        if holds_secret(str(name), value):
            raise AnsibleFilterError(f"image_build_args: {name} {BUILD_ARGUMENT}")
    data = {key: value for key, value in (build or {}).items() if key in HASHED and value}
    root = os.path.realpath(os.path.expanduser(str(context))) if context else ""
    steps = data.setdefault("steps", [{}] if root else [])
    if not steps or not (root or data.get("repository")):
        return ""
    if root:
        data = {key: value for key, value in data.items() if key in ("steps", "pins", "verify")}
    digest = hashlib.sha256(json.dumps([data, dict(args or {})], sort_keys=True).encode())
    if os.path.isfile(root):
        _hash_file(root, digest)
    elif root:
        _hash_folder(root, str(context), steps, digest)
    return digest.hexdigest()


def _hash_folder(root: str, context: str, steps: Iterable[Mapping[str, Any]], digest: Any) -> None:
    if not os.path.isdir(root):
        raise AnsibleFilterError(f"image_build_context is {context}, which is not a folder or archive on the controller: set the one with the image's sources")
    for step in steps:
        name = str(step.get("dockerfile") or "Dockerfile")
        if not os.path.isfile(os.path.join(root, name)):
            raise AnsibleFilterError(f"image_build_context {context} has no {name}, which the profile builds: check out the recipe's repository there")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(item for item in folders if item != ".git")
        for name in sorted(names):
            where = os.path.join(folder, name)
            digest.update(os.path.relpath(where, root).encode("utf-8", "surrogateescape") + b"\0")
            if os.path.islink(where):
                digest.update(os.readlink(where).encode("utf-8", "surrogateescape"))
            elif os.path.isfile(where):
                _hash_file(where, digest)


def _hash_file(path: str, digest: Any) -> None:
    own = hashlib.sha256()
    with open(path, "rb") as handle:
        while piece := handle.read(1 << 20):
            own.update(piece)
    digest.update(own.digest() + (b"x" if os.access(path, os.X_OK) else b"-"))


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"image_plan": image_plan, "image_run": image_run, "build_hash": build_hash}
