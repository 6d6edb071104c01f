# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the role image: plan, reference of the container, hash of a build."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import holds_secret
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import BUILD_ARGUMENT
from ansible_collections.gb10.cluster.plugins.module_utils._node import images
from ansible_collections.gb10.cluster.plugins.plugin_utils import image_folders


def image_plan(infos: Any, hosts: Any, **options: Any) -> dict[str, Any]:
    """Return the plan; see module_utils._node.images.plan."""
    hosts, infos = [str(host) for host in hosts], list(infos)
    if len(infos) != len(hosts):
        raise AnsibleFilterError(f"image_plan: {len(infos)} results for {len(hosts)} ranks: run on all ranks of the group")
    return images.plan(hosts, infos, **options)


def image_run(infos: Any, reference: str, digest: str = "") -> str:
    """Return the image that a container is started from: the name, the pinned name if all ranks know its digest, else the common id."""
    infos = list(infos)
    if not digest:
        return reference
    if all(digest in images.digests(info) for info in infos):
        return f"{reference}@{digest}"
    ids = {str(info.get("id")) for info in infos}
    return ids.pop() if len(ids) == 1 else reference


def build_hash(folder: str, args: Mapping[str, Any] | None = None, layer: str = "") -> str:
    """Return a hash over what decides an image that is built; empty if nothing is built.

    :param folder: the folder with the Dockerfile on the controller, or empty.
    :param layer: the hash of the mods over it, or empty.
    """
    for name, value in (args or {}).items():
        if holds_secret(str(name), value):
            raise AnsibleFilterError(f"image_build_args: {name} {BUILD_ARGUMENT}")
    path = os.path.realpath(os.path.expanduser(folder)) if folder else ""
    text = image_folders.dockerfile_fault(path) if path else ""
    if text:
        raise AnsibleFilterError(f"the image cannot be built: {text}. Set image.build of the profile, or image_build_context")
    return image_folders.build_hash(path, args or {}, layer) if path or layer else ""


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"image_plan": image_plan, "image_run": image_run, "build_hash": build_hash}
