# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Compile caches on a node: one folder for each key, recorded for the group that it was made for. A container writes below it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError

RECORD = "caches"  # path -> [folder of the group, model store]


def place_of(path: str, store: str) -> str:
    """Return the path of a cache without links. Raises ManifestError if it is not below the model store, or leads through a link there."""
    path = os.path.normpath(path)
    if not store or os.path.normpath(store) == "/" or not path.startswith(os.path.normpath(store) + "/"):
        raise ManifestError(f"The compile cache {path} is not below the model store {store or '(none)'}. Correct container.cache_dirs of the profile.")
    return model_folder.place_of(path, store)


def _owner(paths: Iterable[str]) -> tuple[int, int, int]:
    """Return owner, group and mode of the first folder that exists: an owner may have adapted it to the user of the image."""
    for path in paths:
        try:
            info = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(info.st_mode):
            return info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode) & 0o777
    return (os.geteuid(), os.getegid(), 0o755)


def _make(path: str, store: str, below: Sequence[str], like: tuple[int, int, int]) -> None:
    place = model_folder.Installer(place_of(path, store), like[0], like[1])
    for name in ("", *below):
        with place.folder(name, create=True) as folder:
            os.chmod(f"/proc/self/fd/{folder}", like[2])


def _remove(path: str, store: str) -> None:
    place = place_of(path, store)
    if os.path.isdir(place):
        shutil.rmtree(place)


def prepare(node: Node, group: str, caches: Sequence[str], kept: set[str], store: str, below: Sequence[str], check: bool) -> tuple[list[str], list[str]]:
    """Create the caches of a release, and remove those that no kept release of the group uses; return (created, removed).

    `kept` are the folders of the kept releases. Raises ManifestError, CopyError, OSError, RecordError.
    """
    known = node.load_record(RECORD)
    new = {path: [group, store] for path in caches}
    mine = [path for path, entry in known.items() if entry[0] == group]
    stale = [path for path in mine if path not in kept.union(caches)]
    created = [path for path in caches if not os.path.isdir(place_of(path, store))]
    if not check:
        like = _owner(mine)
        node.save_record(RECORD, {**known, **new})  # before anything is created: what is recorded can be removed
        for path in created:
            _make(path, store, below, like)
        for path in stale:
            _remove(path, str(known.get(path, ["", store])[1]))
        node.save_record(RECORD, {path: entry for path, entry in {**known, **new}.items() if path not in stale})
    return created, stale


def clear(node: Node, group: str, check: bool) -> list[str]:
    """Remove all recorded caches of a group; return those that exist. Raises ManifestError, CopyError, OSError, RecordError."""
    record = node.load_record(RECORD)
    mine = {path: str(entry[1]) for path, entry in record.items() if entry[0] == group}
    there = [path for path, store in mine.items() if os.path.isdir(place_of(path, store))]
    if not check and mine:
        for path, store in mine.items():
            _remove(path, store)
        node.save_record(RECORD, {path: entry for path, entry in record.items() if path not in mine})
    return sorted(there)
