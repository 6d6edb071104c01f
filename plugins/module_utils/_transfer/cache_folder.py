# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Compile caches on a node: one folder for each key, recorded for the group that it was made for, and the files that another rank can use.

A container writes below such a folder. What is there is read through descriptors, without links, and up to a limit.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest, model_folder
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.plain import CopyError

RECORD = "caches"  # path -> [folder of the group, model store]
MAX_FILES = 20_000
MAX_BYTES = 16 << 30
HASH_SECONDS = 600  # a container that runs can lengthen a file while it is read
#: vLLM's rank_0_0 has code with the rank's part of the vocabulary in it, and FlashInfer's results of autotuning are measured for each rank.
RANK = re.compile(r"(?:^|[._-])rank[._-]?\d")
TEMPORARY = re.compile(r"^\.?te?mp(?:[._-]|$)|\.(?:lock|tmp|part)$")
MODULES = "modules"  # Python code that comes with the model: each rank has it from its weights


def useful(path: str) -> bool:
    """Return whether another rank can use a file of a cache: a kernel that is the same on all ranks, and complete."""
    parts = path.split("/")
    return parts[0] != MODULES and not any(RANK.search(part) or TEMPORARY.search(part) for part in parts)


def place_of(path: str, store: str) -> str:
    """Return the path of a cache without links. Raises ManifestError if it is not below the model store, or leads through a link there."""
    path = os.path.normpath(path)
    if not store or os.path.normpath(store) == "/" or not path.startswith(os.path.normpath(store) + "/"):
        raise ManifestError(f"The compile cache {path} is not below the model store {store or '(none)'}. Correct container.cache_dirs of the profile.")
    return model_folder.place_of(path, store)


def files_in(path: str, store: str) -> dict[str, os.stat_result]:
    """Return the files of a cache that another rank can use; empty without a folder. Raises ManifestError, CopyError, OSError."""
    try:
        found = model_folder.walk(place_of(path, store), lambda each: not useful(each))[0]
    except FileNotFoundError:
        return {}
    if len(found) > MAX_FILES or sum(info.st_size for info in found.values()) > MAX_BYTES:
        raise ManifestError(f"The compile cache {path} has more than {MAX_FILES} files or {MAX_BYTES >> 30} GiB. It is not copied to another rank.")
    return found


def count(path: str, store: str) -> int:
    """Return the number of these files, -1 if it is unknown. Raises ManifestError if the path is not one of a cache."""
    place_of(path, store)
    try:
        return len(files_in(path, store))
    except (ManifestError, CopyError, OSError):
        return -1


def listing(path: str, store: str) -> list[dict[str, Any]]:
    """Return these files with size, time and SHA-256, as weights_copy fetches them. Raises ManifestError, CopyError, OSError."""
    hashes, _bytes = model_folder.hash_files(place_of(path, store), files_in(path, store), {}, fresh=True, seconds=HASH_SECONDS)
    return [{"path": name, "size": entry[0], "mtime_ns": entry[1], "sha256": entry[4]} for name, entry in sorted(hashes.items())]


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


def _remove(node: Node, path: str, store: str) -> None:
    place = place_of(path, store)
    model_folder.clear_staging(place)
    if os.path.isdir(place):
        shutil.rmtree(place)
    node.save_record(manifest.record_name(path), {})  # of the files that were copied into it


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
            _remove(node, path, str(known.get(path, ["", store])[1]))
        node.save_record(RECORD, {path: entry for path, entry in {**known, **new}.items() if path not in stale})
    return created, stale


def clear(node: Node, group: str, check: bool) -> list[str]:
    """Remove all recorded caches of a group; return those that exist. Raises ManifestError, CopyError, OSError, RecordError."""
    record = node.load_record(RECORD)
    mine = {path: str(entry[1]) for path, entry in record.items() if entry[0] == group}
    there = [path for path, store in mine.items() if os.path.isdir(place_of(path, store))]
    if not check and mine:
        for path, store in mine.items():
            _remove(node, path, store)
        node.save_record(RECORD, {path: entry for path, entry in record.items() if path not in mine})
    return sorted(there)
