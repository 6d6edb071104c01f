# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A model's folder on a node: read it into a manifest, hash it in parallel, record the hashes, install fetched files.

A hash is valid for (size, mtime, ctime, inode) of a file. The record is `weights-<name>-<hash of the path>`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import http_copy, manifest
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError

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


def _below(root: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        yield from bounded.below(root)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ManifestError(f"{root}: {error.strerror}, which no model has. Check that the path is the model's.") from error


def walk(root: str) -> tuple[dict[str, os.stat_result], dict[str, str], list[str]]:
    """Return (regular files, links, problems) below a folder, without following links. Raises OSError, ManifestError."""
    files: dict[str, os.stat_result] = {}
    links: dict[str, str] = {}
    problems: list[str] = []
    for path, entry in _below(root):
        if manifest.ignored(path):
            continue
        info = entry.stat(follow_symlinks=False)
        bad = manifest.check_path(path)
        if bad:
            problems.append(f"{path!r} {bad}")
        elif stat.S_ISLNK(info.st_mode):
            links[path] = os.readlink(entry.path)
        elif stat.S_ISREG(info.st_mode):
            files[path] = info
        else:
            problems.append(f"{path} is not a file or a link: move it away")
    return files, links, problems


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
        where = os.path.join(root, path)
        try:
            digest = http_copy.sha256_file(where, end)
        except TimeoutError as error:
            raise ManifestError(
                f"The files of {root} could not be hashed in {HASH_SECONDS / 3600:g} hours. Check the speed of the disk, and run again."
            ) from error
        out[path] = [*key_of(os.stat(where, follow_symlinks=False)), digest]

    with concurrent.futures.ThreadPoolExecutor(min(os.cpu_count() or 1, WORKERS)) as pool:
        list(pool.map(one, todo))
    return out, sum(files[path].st_size for path in todo)


def _text(path: str) -> str:
    return bounded.text(path, errors="surrogateescape")


def _damaged(root: str, layout: str, hashes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the files with another SHA-256 than the hub promises: by the name of a blob, or in the metadata of a download into a plain folder."""
    bad = []
    for path, entry in hashes.items():
        promised = manifest.promised_by_name(path) if layout == "hub" else ""
        if layout == "directory" and path.endswith(manifest.WEIGHTS):
            with contextlib.suppress(OSError):
                promised = manifest.promised_by_metadata(_text(os.path.join(root, DOWNLOADS, path + ".metadata")))
        if promised and promised != entry[4]:
            bad.append(path)
    return sorted(bad)


def _incomplete(root: str, layout: str, files: Iterable[str]) -> list[str]:
    if layout == "hub":
        have = set(files)
        return sorted(path for path in have if path.endswith(".incomplete") and path.split(".", 1)[0] not in have)
    found = [path for path in files if path.endswith(".incomplete")]
    with contextlib.suppress(FileNotFoundError):
        found += [f"{DOWNLOADS}/{path}" for path, _entry in _below(os.path.join(root, DOWNLOADS)) if path.endswith(".incomplete")]
    return sorted(found)


def staged(path: str) -> dict[str, int]:
    """Return the disk space of an interrupted copy: SHA-256 -> bytes. It is a bit more than what arrived, because a copy preallocates."""
    folder = staging_path(path)
    out: dict[str, int] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name[:-5] if entry.name.endswith(".part") else entry.name
            if manifest.SHA256.fullmatch(name):
                info = entry.stat(follow_symlinks=False)
                out[name] = max(info.st_size, info.st_blocks * 512)
    return out


def _commit(root: str, files: Iterable[str], links: Iterable[str], revision: str) -> tuple[str, str]:
    """Return (commit, problem) of a Hugging Face cache."""
    refs = {name[5:]: _text(os.path.join(root, name)) for name in files if name.startswith("refs/")}
    return manifest.resolve_commit(refs, {name.split("/")[1] for name in [*files, *links] if name.startswith("snapshots/")}, revision)


def read(node: Node, path: str, layout: str, revision: str, fresh: bool, save: bool) -> dict[str, Any]:
    """Read a model's folder into a manifest (see :mod:`manifest`), with `hashed_bytes`. Raises OSError, RecordError, ManifestError."""
    root = os.path.realpath(path)
    record = node.load_record(manifest.record_name(path))
    out: dict[str, Any] = {
        "path": path, "exists": False, "layout": layout, "commit": "", "files": {}, "links": {}, "selected": [], "missing": [], "incomplete": [],
        "damaged": [], "problems": [], "agreed": record.get("agreed", {}), "copied": record.get("copied", []), "free_bytes": free_bytes(path),
        "staged": staged(path), "hashed_bytes": 0, "bytes": 0, "proof": "",
    }  # fmt: skip
    if not os.path.isdir(root):
        return {**out, "problems": [f"{path} is not a folder"] if os.path.lexists(path) else []}
    found, links, problems = walk(root)
    if not found:
        return out
    files = {name: info for name, info in found.items() if not name.endswith(".incomplete")}
    hashes, hashed_bytes = hash_files(root, files, record.get("cache", {}), fresh)
    for link, target in sorted(links.items()):
        bad = manifest.check_link(link, target)
        if bad:
            problems.append(f"{link} {bad}: copy the file to the place of the link, or set the profile's model to its target")
    commit, bad = _commit(root, files, links, revision) if layout == "hub" else ("", "")
    selected = manifest.select(layout, files, links, commit, revision)
    present = [name for name in selected if os.path.exists(os.path.join(root, name))]
    indexes = {name: _text(os.path.join(root, name)) for name in present if name.endswith(".index.json")}
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


def inside(root: str, name: str) -> str:
    """Return the path of a file below a folder. Raises ManifestError if it is outside, for example through a link."""
    bad, where = manifest.check_path(name), os.path.join(root, name)
    if not bad:
        real, parent = os.path.realpath(root), os.path.realpath(nearest(os.path.dirname(where)))
        if os.path.isdir(real) and not (parent + "/").startswith(real + "/"):
            bad = f"leads to {parent}, outside the model's folder"
    if bad:
        raise ManifestError(f"{name} {bad}: nothing was written there; remove that link on this node")
    return where


class Installer:
    """Creates files, links and folders with the owner of the folder that they are in."""

    def __init__(self, path: str, owner: int = -1, group: int = -1) -> None:
        """Take the owner, by default the one of the nearest existing folder."""
        self.root = os.path.realpath(path)
        info = os.stat(nearest(self.root))
        self.owner = info.st_uid if owner < 0 else owner
        self.group = info.st_gid if group < 0 else group

    def own(self, path: str) -> None:
        """Set the owner of a path. Raises OSError."""
        if os.geteuid() == 0:
            os.chown(path, self.owner, self.group, follow_symlinks=False)

    def folder(self, path: str) -> None:
        """Create a folder and its parents. Raises OSError."""
        made = []
        while not os.path.isdir(path):
            made.append(path)
            path = os.path.dirname(path)
        for item in reversed(made):
            os.mkdir(item, 0o755)
            os.chmod(item, 0o755)  # nosec B103 # noqa: S103  an engine's container may run as any user and reads the model
            self.own(item)

    def file(self, staging: http_copy.Staging, digest: str, name: str, mtime_ns: int, move: bool) -> None:
        """Move or copy a fetched file to its place. Raises ManifestError, CopyError, OSError."""
        where = inside(self.root, name)
        self.folder(os.path.dirname(where))
        source = staging.open(digest)
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, source)
            if not move:
                digest += ".copy"
                with contextlib.suppress(FileNotFoundError):
                    staging.remove(digest)
                copy = staging.open(digest, os.O_RDWR | os.O_CREAT | os.O_EXCL)
                opened.callback(os.close, copy)
                with open(source, "rb", closefd=False) as reader, open(copy, "wb", closefd=False) as writer:
                    shutil.copyfileobj(reader, writer, 1 << 22)
                source = copy
            os.fchmod(source, 0o644)
            if os.geteuid() == 0:
                os.fchown(source, self.owner, self.group)
            os.utime(source, ns=(mtime_ns, mtime_ns))
        os.replace(digest, where, src_dir_fd=staging.descriptor)

    def link(self, name: str, target: str) -> None:
        """Create or replace a link. Raises ManifestError, OSError."""
        bad = manifest.check_link(name, target)
        if bad:
            raise ManifestError(f"{name} {bad}: it is not created")
        where = inside(self.root, name)
        self.folder(os.path.dirname(where))
        temporary = f"{where}.gb10-new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        os.symlink(target, temporary)
        self.own(temporary)
        os.replace(temporary, where)

    def remove(self, name: str) -> None:
        """Remove a file or link, and the folders that are empty after that. Raises ManifestError, OSError."""
        where = inside(self.root, name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(where)
        parent = os.path.dirname(where)
        while parent.startswith(self.root + "/"):
            try:
                os.rmdir(parent)
            except OSError:
                return
            parent = os.path.dirname(parent)


def check_parents(store: str, path: str) -> None:
    """Refuse a link between the store and the model's folder, and the folder itself as a link: a container may have made it. Raises ManifestError."""
    where = os.path.normpath(store)
    if not path.startswith(where + "/"):
        return
    for part in path[len(where) + 1 :].split("/"):
        where = os.path.join(where, part)
        if os.path.islink(where):
            raise ManifestError(
                f"{where} is a link to {os.readlink(where)}, and root does not follow links below {store}. Nothing was copied. "
                "Remove the link, or set gb10_model_store to the directory that it leads to"
            )


def install(
    node: Node,
    path: str,
    fetch: Sequence[Mapping[str, Any]],
    links: Mapping[str, str],
    remove: Sequence[str],
    owner: int = -1,
    group: int = -1,
) -> None:
    """Install fetched files and links, remove files, record the checked hashes. Raises ManifestError, CopyError, OSError, RecordError."""
    for item in fetch:
        manifest.check_item(item)
    place, staging, name = Installer(path, owner, group), staging_path(path), manifest.record_name(path)
    place.folder(place.root)
    record = node.load_record(name)
    cache, copied = dict(record.get("cache", {})), set(record.get("copied", []))
    # A file that was here before belongs to its owner, even if it is repaired: only new ones count as copied.
    copied |= {file for file in [*(str(item["path"]) for item in fetch), *links] if not os.path.lexists(os.path.join(place.root, file))}
    if fetch:
        with contextlib.closing(http_copy.Staging(staging)) as folder:
            for index, item in enumerate(fetch):
                needed_again = any(later["sha256"] == item["sha256"] for later in fetch[index + 1 :])
                place.file(folder, str(item["sha256"]), str(item["path"]), int(item["mtime_ns"]), not needed_again)
    for link, target in links.items():
        place.link(link, target)
    for file in remove:
        place.remove(file)
        cache.pop(file, None)
    shutil.rmtree(staging, ignore_errors=True)
    for item in fetch:
        cache[str(item["path"])] = [*key_of(os.stat(os.path.join(place.root, str(item["path"])), follow_symlinks=False)), item["sha256"]]
    node.save_record(name, {**record, "path": path, "cache": cache, "copied": sorted(copied.difference(remove))})


def absent(node: Node, path: str, check: bool) -> tuple[list[str], list[str]]:
    """Remove what was copied and is unchanged; return (removed, changed and kept). Raises ManifestError, OSError, RecordError."""
    name, root, staging = manifest.record_name(path), os.path.realpath(path), staging_path(path)
    record = node.load_record(name)
    removed: list[str] = []
    left: list[str] = []
    for item in record.get("copied", []):
        where = os.path.join(root, item)
        if os.path.lexists(where):
            info, known = os.stat(where, follow_symlinks=False), record.get("cache", {}).get(item)
            changed = stat.S_ISREG(info.st_mode) and known is not None and list(known[:2]) != key_of(info)[:2]
            (left if changed else removed).append(item)
    interrupted = [os.path.basename(staging)] if os.path.isdir(staging) else []
    if not check:
        for item in removed:
            Installer(path).remove(item)
        shutil.rmtree(staging, ignore_errors=True)
        if removed and os.path.isdir(root) and not os.listdir(root):
            os.rmdir(root)
        node.save_record(name, {})
    return removed + interrupted, left
