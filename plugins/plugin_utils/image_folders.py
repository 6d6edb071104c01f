# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what the image of a profile is made of on this computer: the folder of a Dockerfile, and mods. Controller only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._node import images

# Works in a checkout, through its links, and in an installed collection.
PROFILES_DIR = Path(__file__).resolve().parents[2] / "profiles"


def _places(own: object, *below: str) -> list[str]:
    """Return where a relative path can be, the user's folder of profiles first."""
    return [os.path.abspath(os.path.join(os.path.expanduser(str(each)), *below)) for each in (own, PROFILES_DIR) if each]


def build_folder(name: str, own: object) -> str:
    """Return the path of the folder that ``image.build`` names; where it is expected if it does not exist.

    :param own: the user's folder of profiles (``gb10_profiles_directory``), or empty.
    """
    places = [os.path.expanduser(name)] if name.startswith(("/", "~")) else _places(own, "images", name)
    return next((each for each in places if os.path.isdir(each)), places[0])


def dockerfile_fault(folder: str) -> str:
    """Return why a folder cannot be built; empty if it has a Dockerfile."""
    if os.path.isfile(os.path.join(folder, "Dockerfile")):
        return ""
    above, name = os.path.split(folder)
    near = "" if os.path.isdir(folder) or not os.path.isdir(above) else did_you_mean(name, os.listdir(above))
    return f"expected the file {folder}/Dockerfile, which does not exist on this computer{near}"


def _mod_path(path: str, own: object) -> str:
    places = _places(own, os.path.expanduser(path))
    return next((each for each in places if os.path.exists(each)), places[0])


def faults(image: Mapping[str, Any], own: object) -> list[tuple[str, str]]:
    """Return (key, sentence) of what the image of a resolved profile needs and this computer does not have."""
    found = []
    if image["build"] and not image["pull"]:
        found.append(("image.build", image["build"], dockerfile_fault(build_folder(image["build"], own))))
    for i, mod in enumerate(image["mods"]):
        if mod["repository"] is None:
            path = _mod_path(mod["path"], own)
            wanted = path if images.is_patch(path) else os.path.join(path, "run.sh")
            text = "" if os.path.isfile(wanted) else f"expected the file {wanted}, which does not exist on this computer"
            found.append((f"image.mods[{i}].path", mod["path"], text))
    return [(key, f"is {value!r}, {text}") for key, value, text in found if text]


def located(profile: Mapping[str, Any], own: object) -> dict[str, Any]:
    """Return a resolved profile with the paths of this computer. One with mods has the image that is served in ``image``.

    ``image.base`` is then the image below the mods (reference, digest, pull, build), and ``image.layer`` has the build context of the mods: the
    ``dockerfile``, ``copies`` (src on this computer, dest in the context) and ``hash``.
    """
    image = dict(profile["image"])
    if image["build"]:
        image["build"] = build_folder(image["build"], own)
    if image["mods"]:
        base = {key: image[key] for key in ("reference", "digest", "pull", "build")}
        local = [(mod, name) for mod, name in zip(image["mods"], images.mod_names(image["mods"])) if mod["repository"] is None]
        paths = [_mod_path(mod["path"], own) for mod, _name in local]
        copies = [{"src": path if images.is_patch(path) else f"{path}/", "dest": name} for path, (_mod, name) in zip(paths, local)]
        text = images.mods_dockerfile(f"{base['reference']}@{base['digest']}" if base["digest"] else base["reference"], image["mods"])
        mark = hashlib.sha256("\n".join([text, *(content_hash(each["src"]) for each in copies)]).encode()).hexdigest()
        image.update(base=base, layer={"dockerfile": text, "copies": copies, "hash": mark})
        image.update(reference=images.mods_reference(base["reference"], mark), digest=None, pull=False, build=None)
    return {**profile, "image": image}


def content_hash(root: str) -> str:
    """Return a SHA-256 over a file or a folder: names, the execute bit and contents, without .git. What does not exist has one too."""
    digest = hashlib.sha256()
    _hash_file(root, digest)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(item for item in folders if item != ".git")
        for name in sorted([*names, *(each for each in folders if os.path.islink(os.path.join(folder, each)))]):
            where = os.path.join(folder, name)
            digest.update(os.path.relpath(where, root).encode("utf-8", "surrogateescape") + b"\0")
            if os.path.islink(where):
                digest.update(os.readlink(where).encode("utf-8", "surrogateescape"))
            else:
                _hash_file(where, digest)
    return digest.hexdigest()


def _hash_file(path: str, digest: Any) -> None:
    if os.path.isfile(path):
        own = hashlib.sha256()
        with open(path, "rb") as handle:
            while piece := handle.read(1 << 20):
                own.update(piece)
        digest.update(own.digest() + (b"x" if os.access(path, os.X_OK) else b"-"))


def build_hash(folder: str, args: Mapping[str, Any], layer: str = "") -> str:
    """Return the hash of a build: the folder's content, the build arguments, and the hash of the mods over it."""
    parts = [content_hash(folder) if folder else "", sorted((str(key), str(value)) for key, value in args.items()), layer]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
