# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounts of a rank, and those through which its engine could change the weights that the next boot loads. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile import models


def on_node(profile: Mapping[str, Any], store: str) -> list[str]:
    """Return the volumes of a profile with the model store of a node."""
    return [volume.replace("{model_store}", store.rstrip("/") or "/") for volume in profile["container"]["volumes"]]


def _clean(path: str) -> str:
    """Return an absolute path as Docker reads it, without '.', '..' and repeated slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))


def _covers(folder: str, path: str) -> bool:
    return (path + "/").startswith(folder.rstrip("/") + "/")


def writable_weights(profile: Mapping[str, Any], store: str) -> list[str]:
    """Return a sentence with the key of the profile for each volume through which the engine can change the weights.

    Such a volume is writable and mounts the model store, a folder above it, or a folder that contains a model or is a part of it.
    Folders of ``container.cache_dirs`` may be writable. Docker Compose ignores a mode that it does not know, so only ``ro`` is read-only.
    """
    volumes = [[*volume.split(":"), ""] for volume in on_node(profile, store)]
    mounts = [(_clean(host), _clean(there), modes.split(",")) for host, there, modes, *_rest in volumes]
    protected = [_clean(store)]
    for model in models.all_of(profile):
        if model["relative_path"]:
            protected.append(_clean(f"{store}/{model['relative_path']}"))
        if model["path"].startswith("/"):
            path = _clean(model["path"])
            seen = [(len(there), host, there) for host, there, _modes in mounts if _covers(there, path)]
            protected += [_clean(host + path[len(there.rstrip("/")) :]) for _length, host, there in [max(seen)]] if seen else []
    caches = [_clean(cache.replace("{model_store}", store)) for cache in profile["container"]["cache_dirs"]]
    out = []
    for index, (host, there, modes) in enumerate(mounts):
        if "ro" in modes and "rw" not in modes:
            continue
        if any(_covers(host, each) for each in protected) or (any(_covers(each, host) for each in protected[1:]) and host not in caches):
            written = profile["container"]["volumes"][index]
            source, target = written.split(":")[:2]
            out.append(
                f"profile {profile['name']}: container.volumes[{index}] is {written!r}, which lets the engine change the weights below {host}, "
                f"expected a read-only mount. Write '{source}:{target}:ro' and mount what the engine writes into apart, such as "
                f"'{{model_store}}/vllm-cache:{there.rstrip('/')}/vllm-cache', or set vllm_tp2_weights_writable: true"
            )
    return out


def tools(profile: Mapping[str, Any], store: str) -> list[str]:
    """Return the read-only volumes of a profile that hold neither a model nor anything else of the model store: programs, and patches of them."""
    out, paths = [], [_clean(each["path"]) for each in models.all_of(profile) if each["path"].startswith("/")]
    for volume in on_node(profile, store):
        host, there, modes = [*volume.split(":"), ""][:3]
        of_store = _covers(_clean(store), _clean(host)) or _covers(_clean(host), _clean(store))
        if "ro" in modes.split(",") and not of_store and not any(_covers(_clean(there), each) for each in paths):
            out.append(volume)
    return out
