# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's folder on a node: read it into a manifest, hash it, remove what was copied; and compile caches, one folder for each key.

A hash is valid for (size, mtime, ctime, inode) of a file. The record is `weights-<name>-<hash of the path>`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError

WORKERS = 8
HASH_SECONDS = 4 * 3600
SPARSE_FROM = 1 << 30  # bytes; a larger file must have half of its blocks on the disk, or its hash could take for ever
STRETCH = 64 << 20  # bytes of a file between two calls of forget()
DOWNLOADS = ".cache/huggingface/download"


def staging_path(path: str) -> str:
    """Return the folder for fetched files, next to the model on the same file system."""
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.join(parent, f".gb10-incoming-{name}")


def nearest(path: str) -> str:
    """Return the nearest existing folder of an absolute path."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def free_bytes(path: str) -> int:
    """Return the bytes that can be written on the file system of a path."""
    table = os.statvfs(nearest(path))
    return table.f_bavail * table.f_frsize


def place_of(path: str, store: str = "") -> str:
    """Return the path of a model without links: those up to the store are followed, and below it none is allowed: a container may have made it.

    Raises ManifestError.
    """
    where = os.path.normpath(store)
    if not store or not path.startswith(where + "/"):
        return os.path.realpath(path)
    below = path[len(where) + 1 :]
    for part in below.split("/"):
        where = os.path.join(where, part)
        if os.path.islink(where):
            raise ManifestError(
                f"{where} is a link to {os.readlink(where)}, and root does not follow links below {store}. Nothing was copied. "
                "Remove the link, or set gb10_model_store to the directory that it leads to"
            )
    return f"{os.path.realpath(store)}/{below}"


def inside(root: str, path: str) -> str:
    """Return the path below `root` that a path of its files leads to through links, `.` for the folder itself; empty if it leads out of it."""
    real = os.path.realpath(os.path.join(root, path))
    return os.path.relpath(real, root) if f"{real}/".startswith(f"{root}/") else ""


def walk(root: str) -> tuple[dict[str, os.stat_result], dict[str, str], list[str]]:
    """Return (regular files, links, problems) below a folder, without following links. Raises OSError."""
    files: dict[str, os.stat_result] = {}
    links: dict[str, str] = {}
    problems: list[str] = []
    for path, entry in bounded.below(root):
        if manifest.ignored(path):
            continue
        info, bad = entry.stat(follow_symlinks=False), manifest.name_problem(path)
        if bad:
            problems.append(f"{path[:300]!r} {bad}")
        elif stat.S_ISREG(info.st_mode):
            files[path] = info
        elif stat.S_ISLNK(info.st_mode):
            links[path] = os.readlink(entry.path)
            if links[path].startswith("/") or not inside(root, path):
                problems.append(
                    f"{path} is a link to {links[path]}, outside the model's folder: copy the file to the place of the link, or set the profile's model "
                    "to its target"
                )
        else:
            problems.append(f"{path} is not a file or a link: move it away")
    return files, links, problems


@contextlib.contextmanager
def opened(path: str, create: bool = False) -> Iterator[int]:
    """Open a folder, or create it, and close it: a container can put a link into the store between two calls. Raises OSError if a part is a link."""
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in filter(None, path.split("/")):
            above = here
            with contextlib.suppress(FileExistsError):
                if create:
                    os.mkdir(part, 0o755, dir_fd=above)
            here = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            os.close(above)
        yield here
    finally:
        os.close(here)


def open_file(path: str) -> int:
    """Open a file for reading that a container can replace. Raises OSError for a link."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def forget(descriptor: int) -> None:
    """Take a file out of the page cache: the GPU of a GB10 uses the same memory, and its driver does not wait for page cache.

    Dirty pages stay, and the kernel begins to write them. A file system that cannot do this is left as it is.
    """
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def sha256_file(descriptor: int, end: float = float("inf")) -> str:
    """Return the SHA-256 of an open file, as hex, and close it. Raises OSError, after the time `end` TimeoutError. It leaves no page cache behind."""
    digest, position = hashlib.sha256(), 0
    buffer = memoryview(bytearray(1 << 22))
    with open(descriptor, "rb", buffering=0) as handle:
        while count := handle.readinto(buffer):
            digest.update(buffer[:count])
            position += count
            if position % STRETCH < count:
                forget(handle.fileno())
            if time.monotonic() > end:
                raise TimeoutError
        forget(handle.fileno())
    return digest.hexdigest()


def key_of(info: os.stat_result) -> list[int]:
    """Return what must be unchanged for a recorded hash to be valid."""
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def hash_files(root: str, files: Mapping[str, os.stat_result], cache: Mapping[str, Sequence[Any]], fresh: bool) -> tuple[dict[str, list[Any]], int]:
    """Return (path -> key, SHA-256 now, SHA-256 when this file was read first; bytes read); `fresh` reads all. Raises OSError, ManifestError.

    It is the same file while size, mtime and inode are: only a damage changes its content then.
    """
    known = {path: list(cache[path]) for path, info in files.items() if path in cache and list(cache[path][:4]) == key_of(info)}
    todo = sorted((path for path in files if fresh or path not in known), key=lambda path: -files[path].st_size)
    for path in todo:
        if files[path].st_size > SPARSE_FROM and files[path].st_blocks * 512 < files[path].st_size // 2:
            raise ManifestError(
                f"{os.path.join(root, path)} is sparse: {files[path].st_size} bytes, of which {files[path].st_blocks * 512} are on the disk."
                " Remove the file and download it again."
            )
    end = time.monotonic() + HASH_SECONDS

    def one(path: str) -> list[Any]:
        descriptor = open_file(os.path.join(root, path))
        key = key_of(os.fstat(descriptor))  # of the file that is read: another one may be in its place since walk()
        try:
            digest = sha256_file(descriptor, end)
        except TimeoutError as error:
            raise ManifestError(
                f"The files of {root} could not be hashed in {HASH_SECONDS / 3600:g} hours. Check the speed of the disk, and run again."
            ) from error
        before = cache.get(path)
        return [*key, digest, before[-1] if before and [*before[:2], before[3]] == [*key[:2], key[3]] else digest]

    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, WORKERS)) as pool:
        known.update(zip(todo, pool.map(one, todo)))
    return known, sum(files[path].st_size for path in todo)


def _damaged(root: str, layout: str, hashes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the files with another SHA-256 than before, or than the hub promises: by the name of a blob, or in the metadata of a download."""
    bad = []
    for path, entry in hashes.items():
        promised = manifest.promised_by_name(path) if layout == "hub" else ""
        if layout == "directory" and path.endswith(manifest.WEIGHTS):
            with contextlib.suppress(OSError):
                promised = manifest.promised_by_metadata(bounded.text(os.path.join(root, DOWNLOADS, path + ".metadata")))
        if entry[4] != (promised or entry[-1]):
            bad.append(path)
    return sorted(bad)


def _incomplete(root: str, layout: str, files: Iterable[str]) -> list[str]:
    if layout == "hub":
        have = set(files)
        return sorted(path for path in have if path.endswith(".incomplete") and path.split(".", 1)[0] not in have)
    found = [path for path in files if path.endswith(".incomplete")]
    with contextlib.suppress(OSError):  # walk() has read the folder
        found += [f"{DOWNLOADS}/{path}" for path, _entry in bounded.below(os.path.join(root, DOWNLOADS)) if path.endswith(".incomplete")]
    return sorted(found)


def staged(place: str) -> dict[str, int]:
    """Return what an interrupted copy has written: bytes by path."""
    out: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for path, entry in bounded.below(staging_path(place)):
            with contextlib.suppress(OSError):  # rsync has renamed it
                out[path] = entry.stat(follow_symlinks=False).st_size
    return out


def _commit(root: str, files: Iterable[str], links: Iterable[str], revision: str) -> tuple[str, str]:
    """Return (commit, problem) of a Hugging Face cache."""
    refs = {name[5:]: bounded.text(open_file(os.path.join(root, name))) for name in files if name.startswith("refs/")}
    return manifest.resolve_commit(refs, {name.split("/")[1] for name in [*files, *links] if name.startswith("snapshots/")}, revision)


def read(node: Node, path: str, layout: str, revision: str, fresh: bool, save: bool, store: str = "") -> dict[str, Any]:
    """Read a model's folder into a manifest (see :mod:`manifest`), with `hashed_bytes`. Raises OSError, RecordError, ManifestError."""
    root, name = place_of(path, store), manifest.record_name(path)
    record = node.load_record(name)
    out: dict[str, Any] = {
        "path": path, "exists": False, "layout": layout, "commit": "", "files": {}, "links": {}, "selected": [], "missing": [], "incomplete": [],
        "damaged": [], "problems": [], "copied": record.get("copied", []), "free_bytes": free_bytes(path), "staged": staged(root), "hashed_bytes": 0,
        "bytes": 0, "proof": "",
    }  # fmt: skip
    if not os.path.isdir(root):
        return {**out, "problems": [f"{path} is not a folder"] if os.path.lexists(path) else []}
    found, links, problems = walk(root)
    if not found:
        return out
    hashes, hashed_bytes = hash_files(root, {each: info for each, info in found.items() if not each.endswith(".incomplete")}, record.get("cache", {}), fresh)
    commit, bad = _commit(root, found, links, revision) if layout == "hub" else ("", "")
    selected = manifest.select(layout, hashes, links, commit, revision)
    where = {each: inside(root, each) for each in selected}
    present = [each for each in selected if where[each] and os.path.exists(os.path.join(root, where[each]))]
    indexes = {each: bounded.text(open_file(os.path.join(root, where[each]))) for each in present if each.endswith(".index.json") and where[each] in found}
    missing, unread = manifest.missing_shards(indexes, present)
    table = {each: {"size": entry[0], "sha256": entry[4]} for each, entry in sorted(hashes.items())}
    out.update(
        exists=True,
        commit=commit,
        files=table,
        links=dict(sorted(links.items())),
        selected=selected,
        missing=sorted({*missing, *selected}.difference(present)),
        incomplete=_incomplete(root, layout, found),
        damaged=[each for each in _damaged(root, layout, hashes) if each in selected],
        problems=[*problems, *([bad] if bad else []), *unread],
        hashed_bytes=hashed_bytes,
        bytes=sum(table[each]["size"] for each in selected if each in table),
        proof=manifest.proof(table, links, selected),
    )
    # The agent compares with what the last run has read: size, SHA-256, mtime.
    agreed = {each: [hashes[each][0], hashes[each][4], hashes[each][1]] for each in selected if each in hashes} if manifest.complete(out) else {}
    new = {**record, "path": path, "cache": hashes, "agreed": agreed or record.get("agreed", {})}
    if save and new != record:
        node.save_record(name, new)
    return out


def remove(root: str, names: Iterable[str]) -> None:
    """Remove files and links of a model's folder, and the folders that are empty after that. No link leads out of it. Raises OSError."""
    for name in names:
        if not inside(root, os.path.dirname(name)):
            continue
        folder, last = os.path.split(os.path.join(root, name))
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), opened(folder) as here:  # the second: a link has come
            os.unlink(last, dir_fd=here)
        with contextlib.suppress(OSError):  # another file is in it
            while folder.startswith(root):
                folder, last = os.path.split(folder)
                with opened(folder) as here:
                    os.rmdir(last, dir_fd=here)


def record_copy(node: Node, path: str, new: Iterable[str], removed: Sequence[str]) -> None:
    """Record the files that are new after a copy. One that was here before belongs to its owner, even if it is repaired. Raises OSError, RecordError."""
    name = manifest.record_name(path)
    record = node.load_record(name)
    node.save_record(name, {**record, "path": path, "copied": sorted({*record.get("copied", []), *new}.difference(removed))})


def absent(node: Node, path: str, check: bool, store: str = "") -> tuple[list[str], list[str]]:
    """Remove what was copied and is unchanged; return (removed, changed and kept). Raises ManifestError, OSError, RecordError."""
    name, root = manifest.record_name(path), place_of(path, store)
    record = node.load_record(name)
    removed: list[str] = []
    left: list[str] = []
    for item in record.get("copied", []):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            info, known = os.lstat(os.path.join(root, item)), record.get("cache", {}).get(item)
            changed = stat.S_ISREG(info.st_mode) and known is not None and list(known[:2]) != key_of(info)[:2]
            (left if changed else removed).append(item)
    staging = staging_path(root)
    interrupted = [os.path.basename(staging)] if os.path.isdir(staging) else []
    if not check:
        remove(root, removed)
        shutil.rmtree(staging, ignore_errors=True)
        node.save_record(name, {})
    return removed + interrupted, left


# --- Compile caches on a node: one folder for each key, recorded for the group that it was made for. A container writes below it.

CACHES_RECORD = "caches"  # path -> [folder of the group, model store]


def cache_place_of(path: str, store: str) -> str:
    """Return the path of a cache without links. Raises ManifestError if it is not below the model store, or leads through a link there."""
    path = os.path.normpath(path)
    if not store or os.path.normpath(store) == "/" or not path.startswith(os.path.normpath(store) + "/"):
        raise ManifestError(f"The compile cache {path} is not below the model store {store or '(none)'}. Correct container.cache_dirs of the profile.")
    return place_of(path, store)


def _remove(path: str, store: str) -> None:
    place = cache_place_of(path, store)
    if os.path.isdir(place):
        shutil.rmtree(place)


def prepare_caches(node: Node, group: str, caches: Sequence[str], kept: set[str], store: str, below: Sequence[str], check: bool) -> tuple[list[str], list[str]]:
    """Create the caches of a release, and remove those that no kept release of the group uses; return (created, removed).

    `kept` are the folders of the kept releases. A new cache has owner and mode of an earlier one: its owner may have adapted it to the user of the image.
    Raises ManifestError, OSError, RecordError.
    """
    known = node.load_record(CACHES_RECORD)
    after = {**known, **{path: [group, store] for path in caches}}
    mine = [path for path, entry in known.items() if entry[0] == group]
    stale = [path for path in mine if path not in kept.union(caches)]
    created = [path for path in caches if not os.path.isdir(cache_place_of(path, store))]
    if check:
        return created, stale
    like = next((info for path in mine if os.path.lexists(path) and stat.S_ISDIR((info := os.lstat(path)).st_mode)), None)
    node.save_record(CACHES_RECORD, after)  # before anything is created: what is recorded can be removed
    for path in created:
        place = cache_place_of(path, store)
        for folder in (place, *(os.path.join(place, name) for name in below)):
            with opened(folder, create=True) as here:
                os.fchmod(here, stat.S_IMODE(like.st_mode) & 0o777 if like else 0o755)
                if like:
                    os.fchown(here, like.st_uid, like.st_gid)
    for path in stale:
        _remove(path, str(known[path][1]))
    node.save_record(CACHES_RECORD, {path: entry for path, entry in after.items() if path not in stale})
    return created, stale


def clear_caches(node: Node, group: str, check: bool) -> list[str]:
    """Remove all recorded caches of a group; return those that exist. Raises ManifestError, OSError, RecordError."""
    record = node.load_record(CACHES_RECORD)
    mine = {path: str(entry[1]) for path, entry in record.items() if entry[0] == group}
    there = [path for path, store in mine.items() if os.path.isdir(cache_place_of(path, store))]
    if not check and mine:
        for path, store in mine.items():
            _remove(path, store)
        node.save_record(CACHES_RECORD, {path: entry for path, entry in record.items() if path not in mine})
    return sorted(there)
