# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The one place that reads a model's folder: walk it, hash it in parallel, remember the hashes, put fetched files in place.

A hash is remembered for (size, time of change, time of inode change, inode) in the record `weights-<name>-<hash of the path>`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import http_copy, manifest
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError

WORKERS = 8
record_name = manifest.record_name


def staging_path(path: str) -> str:
    """Return the folder beside a model where fetched files wait, on the same file system."""
    parent, name = os.path.split(path.rstrip("/"))
    return os.path.join(parent, f".gb10-incoming-{name}")


def nearest(path: str) -> str:
    """Return the nearest existing folder of a path."""
    while path and not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    return path or "/"


def free_bytes(path: str) -> int:
    """Return what a writer may still put on the file system of a path."""
    table = os.statvfs(nearest(path))
    return table.f_bavail * table.f_frsize


def walk(root: str) -> tuple[dict[str, os.stat_result], dict[str, str], list[str]]:
    """Return (regular files, links, problems) below a folder; nothing is followed. Raises OSError."""
    files: dict[str, os.stat_result] = {}
    links: dict[str, str] = {}
    problems: list[str] = []
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(root, folder) if folder else root) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                    continue
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
                    problems.append(f"{path} is neither a file nor a link: move it away")
    return files, links, problems


def key_of(info: os.stat_result) -> list[int]:
    """Return what must be unchanged for a remembered hash to hold."""
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def hash_files(root: str, files: Mapping[str, os.stat_result], cache: Mapping[str, Sequence[Any]], fresh: bool) -> tuple[dict[str, list[Any]], int]:
    """Return (path -> key, sha256, git hash or ""; bytes read) for all files; `fresh` reads them all again. Raises OSError."""
    out: dict[str, list[Any]] = {}
    todo = []
    for path, info in files.items():
        known = cache.get(path)
        if not fresh and known and list(known[:4]) == key_of(info):
            out[path] = list(known)
        else:
            todo.append(path)

    def one(path: str) -> None:
        where = os.path.join(root, path)
        git = None
        if manifest.upstream_of_blob(path)[0] == "git":
            git = hashlib.sha1(manifest.git_blob_header(files[path].st_size), usedforsecurity=False)
        digest = http_copy.sha256_file(where, git)
        out[path] = [*key_of(os.stat(where, follow_symlinks=False)), digest, git.hexdigest() if git else ""]

    todo.sort(key=lambda path: -files[path].st_size)
    with concurrent.futures.ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, WORKERS))) as pool:
        list(pool.map(one, todo))
    return out, sum(files[path].st_size for path in todo)


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as handle:
        return handle.read()


def _damaged(root: str, layout: str, hashes: Mapping[str, Sequence[Any]]) -> list[str]:
    bad = []
    for path, entry in hashes.items():
        kind, promised = manifest.upstream_of_blob(path) if layout == "hub" else ("", "")
        if layout == "directory" and path.endswith(manifest.WEIGHTS):
            with contextlib.suppress(OSError):
                promised = manifest.upstream_of_metadata(_text(os.path.join(root, ".cache/huggingface/download", path + ".metadata")))
                kind = "sha256" if promised else ""
        if kind and promised != (entry[4] if kind == "sha256" else entry[5]):
            bad.append(path)
    return sorted(bad)


def _incomplete(root: str, layout: str, files: Iterable[str]) -> list[str]:
    if layout == "hub":
        have = set(files)
        return sorted(path for path in have if path.endswith(".incomplete") and path.split(".", 1)[0] not in have)
    found = [path for path in files if path.endswith(".incomplete")]
    for folder, _rest, names in os.walk(os.path.join(root, ".cache/huggingface/download")):
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names if name.endswith(".incomplete")]
    return sorted(found)


def staged(path: str) -> dict[str, int]:
    """Return the room that an earlier copy's files have already taken: SHA-256 -> bytes; somewhat more than what arrived, for a copy reserves ahead."""
    folder = staging_path(path)
    out: dict[str, int] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name[:-5] if entry.name.endswith(".part") else entry.name
            if len(name) == 64:
                info = entry.stat(follow_symlinks=False)
                out[name] = max(info.st_size, info.st_blocks * 512)
    return out


def read(node: Node, path: str, layout: str, revision: str, fresh: bool, save: bool) -> dict[str, Any]:
    """Read a model's folder into a manifest (see :mod:`manifest`), with `hashed_bytes`. Raises OSError, RecordError."""
    root = os.path.realpath(path)
    out: dict[str, Any] = {
        "path": path, "exists": False, "layout": layout, "commit": "", "files": {}, "links": {}, "selected": [], "missing": [], "incomplete": [],
        "damaged": [], "problems": [], "agreed": {}, "copied": [], "free_bytes": free_bytes(path), "staged": staged(path), "hashed_bytes": 0,
        "bytes": 0, "proof": "",
    }  # fmt: skip
    record = node.load_record(record_name(path))
    out["agreed"], out["copied"] = dict(record.get("agreed", {})), list(record.get("copied", []))
    if not os.path.isdir(root):
        if os.path.lexists(path):
            out["problems"] = [f"{path} is not a folder"]
        return out
    files, links, problems = walk(root)
    if not files:
        return out
    incomplete = _incomplete(root, layout, files)
    files = {name: info for name, info in files.items() if not name.endswith(".incomplete")}
    hashes, read_bytes = hash_files(root, files, record.get("cache", {}), fresh)
    for link, target in sorted(links.items()):
        bad = manifest.check_link(link, target)
        if bad:
            problems.append(f"{link} {bad}: copy the file to where the link is, or point the profile's model to where it lies")
    commit = ""
    if layout == "hub":
        refs = {name[5:]: _text(os.path.join(root, name)) for name in files if name.startswith("refs/")}
        commit, bad = manifest.resolve_commit(refs, {name.split("/")[1] for name in [*files, *links] if name.startswith("snapshots/")}, revision)
        problems += [bad] if bad else []
    selected = manifest.select(layout, files, links, commit, revision)
    chosen = set(selected)
    present = [name for name in selected if name in files or os.path.exists(os.path.join(root, name))]
    indexes = {name: _text(os.path.join(root, name)) for name in present if name.endswith(".index.json")}
    missing, unread = manifest.missing_shards(indexes, present)
    dangling = [name for name in selected if name in links and not os.path.exists(os.path.join(root, name))]
    damaged = _damaged(root, layout, hashes)
    table = {name: {"size": entry[0], "sha256": entry[4], "mtime_ns": entry[1]} for name, entry in sorted(hashes.items())}
    out.update(
        exists=True,
        commit=commit,
        files=table,
        links=dict(sorted(links.items())),
        selected=selected,
        missing=sorted({*missing, *dangling}),
        incomplete=incomplete,
        damaged=[name for name in damaged if layout == "directory" or name in chosen],
        problems=problems + unread,
        hashed_bytes=read_bytes,
        bytes=sum(table[name]["size"] for name in selected if name in table),
        proof=manifest.proof(table, links, selected),
    )
    if save and record.get("cache") != hashes:
        node.save_record(record_name(path), {**record, "path": path, "cache": hashes})
    return out


def agree(node: Node, path: str, expected: Mapping[str, Mapping[str, Any]], copied: Iterable[str] = (), gone: Iterable[str] = ()) -> bool:
    """Remember what all ranks have, and what a copy brought or removed; whether the record changed. Raises OSError, RecordError."""
    record = node.load_record(record_name(path))
    before = dict(record)
    agreed = {name: [entry["size"], entry["sha256"], entry["mtime_ns"]] for name, entry in expected.items()}
    record.update(path=path, agreed=agreed, copied=sorted((set(record.get("copied", [])) | set(copied)) - set(gone)))
    if record == before:
        return False
    node.save_record(record_name(path), record)
    return True


def inside(root: str, name: str) -> str:
    """Return where a relative path lies below a folder, and refuse one that leads out through a link. Raises ManifestError."""
    bad = manifest.check_path(name)
    where = os.path.join(root, name)
    if not bad:
        parent = os.path.realpath(nearest(os.path.dirname(where)))
        real = os.path.realpath(root)
        bad = "" if parent == real or (parent + "/").startswith(real + "/") or not os.path.isdir(real) else f"leads to {parent}, out of the model's folder"
    if bad:
        raise ManifestError(f"{name} {bad}: nothing was written there; remove that link on this node")
    return where


class Installer:
    """Puts fetched files, links and folders in place, owned like the folder they come into."""

    def __init__(self, path: str, owner: int = -1, group: int = -1) -> None:
        """Take the owner of the nearest existing folder unless one is given."""
        self.root = os.path.realpath(path)
        info = os.stat(nearest(self.root))
        self.owner = info.st_uid if owner < 0 else owner
        self.group = info.st_gid if group < 0 else group

    def own(self, path: str) -> None:
        """Give a path its owner. Raises OSError."""
        if os.geteuid() == 0:
            os.chown(path, self.owner, self.group, follow_symlinks=False)

    def folder(self, path: str) -> None:
        """Make a folder and its parents. Raises OSError."""
        made = []
        while not os.path.isdir(path):
            made.append(path)
            path = os.path.dirname(path)
        for item in reversed(made):
            os.mkdir(item, 0o755)
            os.chmod(item, 0o755)  # noqa: S103  an engine's container may run as any user and reads the model
            self.own(item)

    def file(self, staged_file: str, name: str, mtime_ns: int, last: bool) -> None:
        """Put a fetched file in place; `last` moves it, else a copy is made. Raises ManifestError, OSError."""
        where = inside(self.root, name)
        self.folder(os.path.dirname(where))
        if not last:
            copy = f"{staged_file}.copy"
            with open(staged_file, "rb") as source, open(copy, "wb") as sink:
                while True:
                    data = source.read(1 << 22)
                    if not data:
                        break
                    sink.write(data)
            staged_file = copy
        os.chmod(staged_file, 0o644)
        self.own(staged_file)
        os.utime(staged_file, ns=(mtime_ns, mtime_ns))
        os.replace(staged_file, where)

    def link(self, name: str, target: str) -> None:
        """Make or replace a link. Raises ManifestError, OSError."""
        bad = manifest.check_link(name, target)
        if bad:
            raise ManifestError(f"{name} {bad}: it is not made")
        where = inside(self.root, name)
        self.folder(os.path.dirname(where))
        temporary = f"{where}.gb10-new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        os.symlink(target, temporary)
        self.own(temporary)
        os.replace(temporary, where)

    def remove(self, name: str) -> None:
        """Remove a file or link, and the folders that are empty then. Raises ManifestError, OSError."""
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


def install(
    node: Node,
    path: str,
    fetch: Sequence[Mapping[str, Any]],
    links: Mapping[str, str],
    remove: Sequence[str],
    owner: int = -1,
    group: int = -1,
) -> None:
    """Put everything in place and remember it: the hashes are those that the fetch has just checked. Raises ManifestError, OSError."""
    place = Installer(path, owner, group)
    staging = staging_path(path)
    place.folder(place.root)
    ours = set(node.load_record(record_name(path)).get("copied", []))
    # A file that was here before is its owner's, even when it is repaired: only what is new counts as brought.
    brought = {name for name in [*(str(item["path"]) for item in fetch), *links] if name in ours or not os.path.lexists(os.path.join(place.root, name))}
    for index, item in enumerate(fetch):
        again = any(later["sha256"] == item["sha256"] for later in fetch[index + 1 :])
        place.file(os.path.join(staging, str(item["sha256"])), str(item["path"]), int(item["mtime_ns"]), not again)
    for name, target in links.items():
        place.link(name, target)
    for name in remove:
        place.remove(name)
    with contextlib.suppress(OSError):
        for name in os.listdir(staging):
            os.unlink(os.path.join(staging, name))
        os.rmdir(staging)
    record = node.load_record(record_name(path))
    cache = dict(record.get("cache", {}))
    for item in fetch:
        name = str(item["path"])
        info = os.stat(os.path.join(place.root, name), follow_symlinks=False)
        cache[name] = [*key_of(info), item["sha256"], manifest.upstream_of_blob(name)[1] if manifest.upstream_of_blob(name)[0] == "git" else ""]
    for name in remove:
        cache.pop(name, None)
    record.update(path=path, cache=cache, copied=sorted((set(record.get("copied", [])) | brought) - set(remove)))
    node.save_record(record_name(path), record)


def absent(node: Node, path: str, check: bool) -> tuple[list[str], list[str]]:
    """Remove what a copy brought and nobody changed since; return (removed, left because it changed). Raises ManifestError, OSError, RecordError."""
    name = record_name(path)
    record = node.load_record(name)
    root = os.path.realpath(path)
    removed, left = [], []
    for item in record.get("copied", []):
        where = os.path.join(root, item)
        if not os.path.lexists(where):
            continue
        known = record.get("cache", {}).get(item)
        info = os.stat(where, follow_symlinks=False)
        if stat.S_ISREG(info.st_mode) and known is not None and list(known[:2]) != key_of(info)[:2]:
            left.append(item)
            continue
        removed.append(item)
    staging = staging_path(path)
    waiting = os.path.isdir(staging)
    if not check:
        place = Installer(path)
        for item in removed:
            place.remove(item)
        if waiting:
            for item in os.listdir(staging):
                os.unlink(os.path.join(staging, item))
            os.rmdir(staging)
        if removed and os.path.isdir(root) and not os.listdir(root):
            os.rmdir(root)
        node.save_record(name, {})
    return removed + ([os.path.basename(staging)] if waiting else []), left
