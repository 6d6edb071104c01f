# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's folder on a node: read it into a manifest, hash it, install fetched files; and compile caches, one folder for each key.

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
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest, transfer
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError

WORKERS = 8
HASH_SECONDS = 4 * 3600
SPARSE_FROM = 1 << 30  # bytes; a larger file must have half of its blocks on the disk, or its hash could take for ever
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


def walk(root: str) -> tuple[dict[str, os.stat_result], dict[str, str], list[str]]:
    """Return (regular files, links, problems) below a folder, without following links. Raises OSError, CopyError, ManifestError."""
    files: dict[str, os.stat_result] = {}
    links: dict[str, str] = {}
    problems: list[str] = []
    pending, seen = [""], 0
    while pending:
        folder = pending.pop()
        with contextlib.ExitStack() as opened:
            here = transfer.open_folder(os.path.join(root, folder))
            opened.callback(os.close, here)
            here = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            opened.callback(os.close, here)
            for entry in opened.enter_context(os.scandir(here)):
                path = f"{folder}/{entry.name}" if folder else entry.name
                seen += 1
                if seen > bounded.ENTRIES:
                    raise ManifestError(f"{root} has more than {bounded.ENTRIES} files and folders, which no model has. Check that the path is the model's.")
                if not entry.is_dir(follow_symlinks=False) and manifest.ignored(path):
                    continue
                info = entry.stat(follow_symlinks=False)
                bad = manifest.check_path(path)
                if bad:
                    problems.append(f"{path[:300]!r} {bad}")
                elif stat.S_ISDIR(info.st_mode):
                    pending.append(path)
                elif stat.S_ISLNK(info.st_mode):
                    links[path] = os.readlink(entry.name, dir_fd=here)
                elif stat.S_ISREG(info.st_mode):
                    files[path] = info
                else:
                    problems.append(f"{path} is not a file or a link: move it away")
    return files, links, problems


def sha256_file(descriptor: int, end: float = float("inf")) -> str:
    """Return the SHA-256 of an open file, as hex, and close it. Raises OSError, after the time `end` TimeoutError. It leaves no page cache behind."""
    digest, position = hashlib.sha256(), 0
    buffer = memoryview(bytearray(1 << 22))
    with open(descriptor, "rb", buffering=0) as handle:
        while count := handle.readinto(buffer):
            digest.update(buffer[:count])
            position += count
            transfer.passed(handle.fileno(), position, count)
            if time.monotonic() > end:
                raise TimeoutError
        transfer.forget(handle.fileno())
    return digest.hexdigest()


def key_of(info: os.stat_result) -> list[int]:
    """Return what must be unchanged for a recorded hash to be valid."""
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def hash_files(root: str, files: Mapping[str, os.stat_result], cache: Mapping[str, Sequence[Any]], fresh: bool) -> tuple[dict[str, list[Any]], int]:
    """Return (path -> key and sha256; bytes read) for all files; `fresh` reads all of them. Raises OSError, ManifestError."""
    out = {path: list(cache[path]) for path, info in files.items() if not fresh and path in cache and list(cache[path][:4]) == key_of(info)}
    todo = sorted(set(files) - set(out), key=lambda path: -files[path].st_size)
    for path in todo:
        if files[path].st_size > SPARSE_FROM and files[path].st_blocks * 512 < files[path].st_size // 2:
            raise ManifestError(
                f"{os.path.join(root, path)} is sparse: {files[path].st_size} bytes, of which {files[path].st_blocks * 512} are on the disk."
                " Remove the file and download it again."
            )

    end = time.monotonic() + HASH_SECONDS

    def one(path: str) -> None:
        descriptor = transfer.open_file(os.path.join(root, path))
        same = os.dup(descriptor)
        try:
            digest = sha256_file(descriptor, end)
            out[path] = [*key_of(os.fstat(same)), digest]
        except TimeoutError as error:
            raise ManifestError(
                f"The files of {root} could not be hashed in {HASH_SECONDS / 3600:g} hours. Check the speed of the disk, and run again."
            ) from error
        finally:
            os.close(same)

    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, WORKERS)) as pool:
        list(pool.map(one, todo))
    return out, sum(files[path].st_size for path in todo)


def _text(path: str) -> str:
    """Return the text of a file. Raises CopyError, OSError."""
    return bounded.text(transfer.open_file(path), errors="surrogateescape")


def _damaged(root: str, layout: str, hashes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the files with another SHA-256 than the hub promises: by the name of a blob, or in the metadata of a download into a plain folder."""
    bad = []
    for path, entry in hashes.items():
        promised = manifest.promised_by_name(path) if layout == "hub" else ""
        if layout == "directory" and path.endswith(manifest.WEIGHTS):
            with contextlib.suppress(OSError, transfer.CopyError):
                promised = manifest.promised_by_metadata(_text(os.path.join(root, DOWNLOADS, path + ".metadata")))
        if promised and promised != entry[4]:
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
    with contextlib.suppress(OSError, transfer.CopyError), contextlib.closing(transfer.Staging(staging_path(place))) as folder:
        for path, entry in bounded.below(folder.path):
            with contextlib.suppress(OSError):  # rsync has renamed it
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    out[path] = info.st_size
    return out


def _commit(root: str, files: Iterable[str], links: Iterable[str], revision: str) -> tuple[str, str]:
    """Return (commit, problem) of a Hugging Face cache."""
    refs = {name[5:]: _text(os.path.join(root, name)) for name in files if name.startswith("refs/")}
    return manifest.resolve_commit(refs, {name.split("/")[1] for name in [*files, *links] if name.startswith("snapshots/")}, revision)


def read(node: Node, path: str, layout: str, revision: str, fresh: bool, save: bool, store: str = "") -> dict[str, Any]:
    """Read a model's folder into a manifest (see :mod:`manifest`), with `hashed_bytes`. Raises OSError, RecordError, ManifestError, CopyError."""
    root = place_of(path, store)
    record = node.load_record(manifest.record_name(path))
    out: dict[str, Any] = {
        "path": path, "exists": False, "layout": layout, "commit": "", "files": {}, "links": {}, "selected": [], "missing": [], "incomplete": [],
        "damaged": [], "problems": [], "agreed": record.get("agreed", {}), "copied": record.get("copied", []), "free_bytes": free_bytes(path),
        "staged": staged(root), "hashed_bytes": 0, "bytes": 0, "proof": "",
    }  # fmt: skip
    if not os.path.isdir(root):
        return {**out, "problems": [f"{path} is not a folder"] if os.path.lexists(path) else []}
    found, links, problems = walk(root)
    if not found:
        return out
    files = {name: info for name, info in found.items() if not name.endswith(".incomplete")}
    hashes, hashed_bytes = hash_files(root, files, record.get("cache", {}), fresh)
    for link, target in sorted(links.items()):
        bad = manifest.check_link(link, target, links)
        if bad:
            problems.append(f"{link} {bad}: copy the file to the place of the link, or set the profile's model to its target")
    commit, bad = _commit(root, files, links, revision) if layout == "hub" else ("", "")
    selected = manifest.select(layout, files, links, commit, revision)
    where = {name: manifest.landing(name, links) for name in selected}
    folders = {file[:index] for file in found for index, char in enumerate(file) if char == "/"} | {"."}
    present = [name for name in selected if where[name] in found or where[name] in folders]
    indexes = {name: _text(os.path.join(root, where[name])) for name in present if name.endswith(".index.json") and where[name] in found}
    missing, unread = manifest.missing_shards(indexes, present)
    table = {name: {"size": entry[0], "sha256": entry[4], "mtime_ns": entry[1]} for name, entry in sorted(hashes.items())}
    out.update(
        exists=True,
        commit=commit,
        files=table,
        links=dict(sorted(links.items())),
        selected=selected,
        missing=sorted({*missing, *selected}.difference(present)),
        incomplete=_incomplete(root, layout, found),
        damaged=[name for name in _damaged(root, layout, hashes) if name in selected],
        problems=[*problems, *([bad] if bad else []), *unread],
        hashed_bytes=hashed_bytes,
        bytes=sum(table[name]["size"] for name in selected if name in table),
        proof=manifest.proof(table, links, selected),
    )
    if save and record.get("cache") != hashes:
        node.save_record(manifest.record_name(path), {**record, "path": path, "cache": hashes})
    return out


def agree(node: Node, path: str, expected: Mapping[str, Mapping[str, Any]]) -> None:
    """Record what all ranks have. Raises OSError, RecordError."""
    name = manifest.record_name(path)
    agreed = {file: [entry["size"], entry["sha256"], entry["mtime_ns"]] for file, entry in expected.items()}
    node.save_record(name, {**node.load_record(name), "path": path, "agreed": agreed})


class Installer:
    """Creates files, links and folders in a model's folder, with the owner of the folder that they are in. No link is followed."""

    def __init__(self, place: str, owner: int = -1, group: int = -1) -> None:
        """Take the path (see place_of), and the owner: by default the one of the folder above."""
        self.place, self.owner, self.group = place, owner, group

    def _own(self, descriptor: int, name: str) -> None:
        """Set the owner of a new entry of a folder. Raises OSError."""
        if os.geteuid() == 0:
            above = os.fstat(descriptor)
            owner, group = (above.st_uid if self.owner < 0 else self.owner), (above.st_gid if self.group < 0 else self.group)
            os.chown(name, owner, group, dir_fd=descriptor, follow_symlinks=False)

    def _make(self, above: int, name: str) -> None:
        """Create a folder that everybody can read: a container may run as any user. Raises OSError."""
        os.mkdir(name, 0o755, dir_fd=above)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | transfer.PLAIN, dir_fd=above)
        try:
            os.fchmod(descriptor, 0o755)  # nosec B103 # for any user, see above
        finally:
            os.close(descriptor)
        self._own(above, name)

    @contextlib.contextmanager
    def folder(self, name: str = "", create: bool = False) -> Iterator[int]:
        """Open the model's folder or one below it. Raises CopyError, OSError."""
        descriptor = transfer.open_folder(os.path.join(self.place, name), self._make if create else None)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def parent(self, name: str, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of a path of another node, and return it with the last part. Raises ManifestError, CopyError, OSError."""
        manifest.check_name(name)
        above, last = os.path.split(name)
        with self.folder(above, create) as descriptor:
            yield descriptor, last

    def look(self, name: str) -> os.stat_result | None:
        """Return what is at a path, None if nothing is. Raises ManifestError, CopyError, OSError."""
        try:
            with self.parent(name) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def file(self, staging: transfer.Staging, name: str, mtime_ns: int) -> None:
        """Move a fetched file to its place. Raises ManifestError, CopyError, OSError."""
        with self.parent(name, create=True) as (folder, last), staging.file(name) as (source, waiting, same):
            os.fchmod(source, 0o644)
            above = os.fstat(folder)
            if os.geteuid() == 0:
                os.fchown(source, above.st_uid if self.owner < 0 else self.owner, above.st_gid if self.group < 0 else self.group)
            transfer.forget_written(source)
            os.utime(source, ns=(mtime_ns, mtime_ns))
            os.replace(same, last, src_dir_fd=waiting, dst_dir_fd=folder)

    def link(self, name: str, target: str) -> None:
        """Create or replace a link. Raises ManifestError, CopyError, OSError."""
        bad = manifest.check_link(name, target)
        if bad:
            raise ManifestError(f"{name} {bad}: it is not created")
        with self.parent(name, create=True) as (folder, last):
            temporary = f"{last[:200]}.gb10-new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            os.symlink(target, temporary, dir_fd=folder)
            self._own(folder, temporary)
            os.replace(temporary, last, src_dir_fd=folder, dst_dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a file or link, and the folders that are empty after that. Raises ManifestError, CopyError, OSError."""
        with contextlib.suppress(FileNotFoundError):
            with self.parent(name) as (folder, last):
                os.unlink(last, dir_fd=folder)
            while "/" in name:
                name = os.path.dirname(name)
                with self.parent(name) as (folder, last):
                    try:
                        os.rmdir(last, dir_fd=folder)
                    except OSError:
                        return


def install(
    node: Node,
    path: str,
    fetch: Sequence[Mapping[str, Any]],
    links: Mapping[str, str],
    remove: Sequence[str],
    owner: int = -1,
    group: int = -1,
    store: str = "",
) -> None:
    """Install fetched files and links, remove files, record the checked hashes. Raises ManifestError, CopyError, OSError, RecordError."""
    for item in fetch:
        manifest.check_name(item["path"])
    manifest.check_tree({str(item["path"]) for item in fetch}, links)
    place, name = Installer(place_of(path, store), owner, group), manifest.record_name(path)
    with place.folder(create=True):
        pass
    record = node.load_record(name)
    cache, copied = dict(record.get("cache", {})), set(record.get("copied", []))
    # A file that was here before belongs to its owner, even if it is repaired: only new ones count as copied.
    copied |= {file for file in [*(str(item["path"]) for item in fetch), *links] if place.look(file) is None}
    if fetch:
        with contextlib.closing(transfer.Staging(staging_path(place.place))) as folder:
            for item in fetch:
                place.file(folder, str(item["path"]), int(item["mtime_ns"]))
    for link, target in links.items():
        place.link(link, target)
    for file in remove:
        place.remove(file)
        cache.pop(file, None)
    clear_staging(place.place)
    for item in fetch:
        info = place.look(str(item["path"]))
        if info:
            cache[str(item["path"])] = [*key_of(info), item["sha256"]]
    node.save_record(name, {**record, "path": path, "cache": cache, "copied": sorted(copied.difference(remove))})


def clear_staging(place: str) -> bool:
    """Remove the folder for fetched files; return whether there was one that belongs to a copy. Raises nothing."""
    with contextlib.suppress(OSError, transfer.CopyError), contextlib.closing(transfer.Staging(staging_path(place))) as folder:
        folder.clear()
        return True
    return False


def absent(node: Node, path: str, check: bool, store: str = "") -> tuple[list[str], list[str]]:
    """Remove what was copied and is unchanged; return (removed, changed and kept). Raises ManifestError, CopyError, OSError, RecordError."""
    name, place = manifest.record_name(path), Installer(place_of(path, store))
    record = node.load_record(name)
    removed: list[str] = []
    left: list[str] = []
    for item in record.get("copied", []):
        info, known = place.look(item), record.get("cache", {}).get(item)
        if info is not None:
            changed = stat.S_ISREG(info.st_mode) and known is not None and list(known[:2]) != key_of(info)[:2]
            (left if changed else removed).append(item)
    staging = staging_path(place.place)
    interrupted = [os.path.basename(staging)] if os.path.isdir(staging) else []
    if not check:
        for item in removed:
            place.remove(item)
        clear_staging(place.place)
        with contextlib.suppress(OSError, transfer.CopyError), Installer(os.path.dirname(place.place)).folder() as above:
            if removed:
                os.rmdir(os.path.basename(place.place), dir_fd=above)
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
    place = Installer(cache_place_of(path, store), like[0], like[1])
    for name in ("", *below):
        with place.folder(name, create=True) as folder:
            os.chmod(f"/proc/self/fd/{folder}", like[2])


def _remove(path: str, store: str) -> None:
    place = cache_place_of(path, store)
    if os.path.isdir(place):
        shutil.rmtree(place)


def prepare_caches(node: Node, group: str, caches: Sequence[str], kept: set[str], store: str, below: Sequence[str], check: bool) -> tuple[list[str], list[str]]:
    """Create the caches of a release, and remove those that no kept release of the group uses; return (created, removed).

    `kept` are the folders of the kept releases. Raises ManifestError, CopyError, OSError, RecordError.
    """
    known = node.load_record(CACHES_RECORD)
    new = {path: [group, store] for path in caches}
    mine = [path for path, entry in known.items() if entry[0] == group]
    stale = [path for path in mine if path not in kept.union(caches)]
    created = [path for path in caches if not os.path.isdir(cache_place_of(path, store))]
    if not check:
        like = _owner(mine)
        node.save_record(CACHES_RECORD, {**known, **new})  # before anything is created: what is recorded can be removed
        for path in created:
            _make(path, store, below, like)
        for path in stale:
            _remove(path, str(known.get(path, ["", store])[1]))
        node.save_record(CACHES_RECORD, {path: entry for path, entry in {**known, **new}.items() if path not in stale})
    return created, stale


def clear_caches(node: Node, group: str, check: bool) -> list[str]:
    """Remove all recorded caches of a group; return those that exist. Raises ManifestError, CopyError, OSError, RecordError."""
    record = node.load_record(CACHES_RECORD)
    mine = {path: str(entry[1]) for path, entry in record.items() if entry[0] == group}
    there = [path for path, store in mine.items() if os.path.isdir(cache_place_of(path, store))]
    if not check and mine:
        for path, store in mine.items():
            _remove(path, store)
        node.save_record(CACHES_RECORD, {path: entry for path, entry in record.items() if path not in mine})
    return sorted(there)
