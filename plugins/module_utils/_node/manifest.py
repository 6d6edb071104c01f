# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: the files of models, and what each rank lacks. Pure.

A *manifest* is a mapping that :mod:`model_folder` reads from a node. Paths are relative to the model's folder, with ``/``:

- ``path``, ``exists``, ``layout`` (``hub`` or ``directory``), ``commit`` (hub: the selected snapshot, or "");
- ``files``: path -> ``{"size": bytes, "sha256": hex}``; ``links``: path -> target as written;
- ``selected``: the paths (files and links) that the engine reads; the rest is other revisions and caches;
- ``missing`` (shards of the index that are not in the folder), ``incomplete`` (unfinished downloads), ``damaged`` (files with another content than
  the hub promises, or than before although size, mtime and inode are the same), ``problems`` (sentences);
- ``copied``: paths that an earlier run copied; ``staged``: path -> bytes that an interrupted copy has written; ``free_bytes`` on the file system.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
IGNORED_FOLDERS = (".cache", ".git", ".locks", ".no_exist")
IGNORED_SUFFIXES = (".lock",)
# An engine may load these as well. A rank that has more of them than the others would load something else.
LOADED = (*WEIGHTS, ".json", ".jinja", ".model", ".py", ".txt", ".tiktoken", ".jsonl")
GIB = 1024**3
SHA256 = re.compile(r"[0-9a-f]{64}")
COMMIT = re.compile(r"[0-9a-f]{40}")
CODE = (".py", ".json")


class ManifestError(ValueError):
    """The model cannot be used or copied. The text is a sentence for the user."""


def record_name(path: str) -> str:
    """Return the name of a model folder's record."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in posixpath.basename(path.rstrip("/")))[:60]
    return f"weights-{name}-{hashlib.sha256(path.rstrip('/').encode()).hexdigest()[:8]}"


def human(count: float) -> str:
    """Return bytes in a readable unit: `1.5 GiB`, `700 MiB`, `12 KiB`, `5 bytes`."""
    for unit, size in (("GiB", GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= size * 0.9995:
            value = count / size
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{int(count)} bytes"


def name_problem(path: str) -> str:
    """Return why a path cannot be copied and shown, or an empty string."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    return "has a control character in its name" if printable(path) != path or "\n" in path or "\t" in path else ""


def ignored(path: str) -> bool:
    """Return whether a path is a cache or a lock, which no engine loads."""
    return any(part in IGNORED_FOLDERS for part in path.split("/")[:-1]) or path.endswith(IGNORED_SUFFIXES)


def resolve_commit(refs: Mapping[str, str], snapshots: Iterable[str], revision: str) -> tuple[str, str]:
    """Return (commit, problem) for a revision in a Hugging Face cache, as an engine without a network resolves it."""
    known = sorted(set(snapshots))
    commit = refs.get(revision, revision if revision in known else "").strip()
    if commit in known:
        return commit, ""
    present = ", ".join(known) or "none"
    if revision in refs:
        return "", f"refs/{revision} names the snapshot {commit!r}, which is not available (snapshots: {present}): download that revision again"
    if COMMIT.fullmatch(revision):
        return "", f"snapshot {revision} is not available (snapshots: {present}): download it, or set model.revision to one that is"
    if len(known) == 1:
        return "", f"refs/{revision} is missing, so an engine without a network finds no model: printf %s {known[0]} > refs/{revision} sets it"
    return "", f"refs/{revision} is missing (snapshots: {present}): download the model, or set the profile's model.revision"


def select(layout: str, files: Iterable[str], links: Mapping[str, str], commit: str, revision: str) -> list[str]:
    """Return the paths that the engine reads: all of a directory, one snapshot (its links, their blobs, the ref) of a hub cache."""
    names = set(files)
    if layout == "directory":
        return sorted(path for path in names | set(links) if not ignored(path))
    if not commit:
        return []
    prefix = f"snapshots/{commit}/"
    chosen = {path for path in [*names, *links] if path.startswith(prefix)}
    blobs = {posixpath.normpath(posixpath.join(posixpath.dirname(path), links[path])) for path in chosen if path in links}
    return sorted(chosen | ((blobs | {f"refs/{revision}"}) & names))


def missing_shards(indexes: Mapping[str, str], present: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return (missing paths, sentences) for indexes (path -> text of `*.index.json`) and the paths that are present."""
    missing: set[str] = set()
    problems = []
    for path, text in sorted(indexes.items()):
        try:
            names = {str(name) for name in loads(text)["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"{path} is not an index of shards ({type(error).__name__}: {error}): fetch it again")
            continue
        missing.update({posixpath.join(posixpath.dirname(path), name) for name in names}.difference(present))
    return sorted(missing), problems


def promised_by_name(path: str) -> str:
    """Return the SHA-256 that the name of a large hub blob promises; empty for other paths."""
    folder, _sep, name = path.rpartition("/")
    return name if folder == "blobs" and SHA256.fullmatch(name) else ""


def promised_by_metadata(text: str) -> str:
    """Return the SHA-256 in Hugging Face's local metadata (commit, etag, time); empty for another kind of hash."""
    etag = [*text.splitlines(), "", ""][1].strip()
    return etag if SHA256.fullmatch(etag) else ""


def complete(manifest: Mapping[str, Any]) -> bool:
    """Return whether a rank has the whole model."""
    return not complaints(manifest)


def complaints(manifest: Mapping[str, Any]) -> list[str]:
    """Return why a manifest is not complete, as sentences without the node's name."""
    if not manifest.get("exists"):
        return [f"{manifest.get('path')} does not exist"]
    found = list(manifest["problems"])
    if manifest["missing"]:
        found.append(f"the index names files that are missing: {listing(manifest['missing'])}")
    if manifest["incomplete"]:
        found.append(f"a download has not finished: {listing(manifest['incomplete'])}")
    if manifest["damaged"]:
        found.append(f"damaged, with another content than on the hub or before: {listing(manifest['damaged'])}")
    if not found and not any(path.endswith(WEIGHTS) for path in manifest["selected"]):
        found.append(f"{manifest['path']} has no weights file ({', '.join('*' + end for end in WEIGHTS)})")
    return found


def listing(names: Sequence[str], most: int = 6) -> str:
    """Return names joined by commas, with the number of those after the first `most`."""
    names = [str(name) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def proof(files: Mapping[str, Mapping[str, Any]], links: Mapping[str, str], paths: Iterable[str]) -> str:
    """Return one SHA-256 over the names, sizes, contents and links of the given paths."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        if path in links:
            digest.update(f"{path}\0->\0{links[path]}\n".encode("utf-8", "surrogateescape"))
        elif path in files:
            digest.update(f"{path}\0{files[path]['size']}\0{files[path]['sha256']}\n".encode("utf-8", "surrogateescape"))
        else:
            digest.update(f"{path}\0absent\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def code_proof(files: Mapping[str, Mapping[str, Any]], links: Mapping[str, str]) -> str:
    """Return one SHA-256 over the code and configuration of a model; a link counts with the file that it leads to."""
    named = [path for path in [*files, *links] if path.endswith(CODE)]
    return proof(files, links, [*named, *(posixpath.normpath(posixpath.join(posixpath.dirname(path), links[path])) for path in named if path in links)])


# --- what each rank lacks ---------------------------------------------------------------------------------------------------------


def space_problem(path: str, fetch: Mapping[str, int], staged: Mapping[str, int], free: int, reserve: int) -> str:
    """Return why files do not fit on the file system of a path, or an empty string. What an interrupted copy has written needs no space."""
    need = sum(max(0, size - int(staged.get(name, 0))) for name, size in fetch.items())
    if not need or need + reserve <= free:
        return ""
    return (
        f"{human(free)} free on the file system of {path}, and {human(need)} are to be copied there with {human(reserve)} left over: "
        f"free {human(need + reserve - free)}, or set gb10_model_store to a larger disk"
    )


def choose_source(manifests: Sequence[Mapping[str, Any]]) -> int:
    """Return the rank whose files the others get: the first complete one, or the one with most bytes."""
    sizes = [sum(int(m["files"][p]["size"]) for p in m["selected"] if p in m["files"]) if m.get("exists") else -1 for m in manifests]
    return next((rank for rank, manifest in enumerate(manifests) if complete(manifest)), sizes.index(max(sizes)))


def plan(hosts: Sequence[str], manifests: Sequence[Mapping[str, Any]], reserves: Sequence[int] = ()) -> dict[str, Any]:
    """Return what has to be copied until all ranks have what the source has.

    :param hosts: names by rank; ``manifests``: one for each.
    :param reserves: bytes that must stay free on the disk of each rank after the copy; empty for none.
    :returns: ``source`` (host), ``source_rank``, ``usable`` (false: the source has to download first), ``complaints`` (why), ``equal``, ``bytes``
        and ``files`` (of the whole model), ``proof``, ``commit`` (of the hub, or ""), ``code`` (see code_proof), ``ranks`` (for each rank:
        ``host``, ``fetch`` (bytes by path; 0 for a link), ``new`` (the fetched paths that it has not), ``remove``, ``bytes``, ``why``),
        ``awaits`` (for each rank whether it will fetch what the source downloads first; false if the plan is usable), ``reserves``,
        ``refusals`` (sentences: too little space, files of another model).
    """
    base_rank = choose_source(manifests)
    base = manifests[base_rank]
    out: dict[str, Any] = {
        "source": hosts[base_rank], "source_rank": base_rank, "usable": False, "complaints": complaints(base), "equal": False, "bytes": 0, "files": 0,
        "proof": "", "commit": "", "code": "", "ranks": [], "awaits": [rank != base_rank and not complete(each) for rank, each in enumerate(manifests)],
        "refusals": [], "reserves": list(reserves) or [0 for _each in hosts],
    }  # fmt: skip
    if out["complaints"]:
        return out
    files = {path: base["files"][path] for path in base["selected"] if path in base["files"]}
    links = {path: base["links"][path] for path in base["selected"] if path in base["links"]}
    out.update(
        usable=True,
        awaits=[False for _each in hosts],
        bytes=sum(int(entry["size"]) for entry in files.values()),
        files=len(files),
        proof=proof(files, links, [*files, *links]),
        commit=str(base.get("commit")) if COMMIT.fullmatch(str(base.get("commit"))) else "",
        code=code_proof(files, links),
        ranks=[_rank_plan(host, manifest, files, links) for host, manifest in zip(hosts, manifests)],
    )
    for rank, manifest, reserve in zip(out["ranks"], manifests, out["reserves"]):
        unknown = rank.pop("unknown")
        if unknown:
            out["refusals"].append(
                f"{rank['host']} has {listing(unknown)} in {manifest['path']}, which {out['source']} has not, so the ranks would load different "
                f"things: move it away on {rank['host']}, or put it on {out['source']} too"
            )
        problem = space_problem(manifest["path"], rank["fetch"], manifest["staged"], manifest["free_bytes"], reserve)
        if problem:
            out["refusals"].append(f"{rank['host']} has {problem}")
    out["equal"] = not any(item["fetch"] or item["remove"] for item in out["ranks"]) and not out["refusals"]
    return out


def _rank_plan(host: str, manifest: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]], links: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of one rank in `ranks`."""
    mine = manifest["files"]
    differ = [path for path, entry in files.items() if path in mine and mine[path]["sha256"] != entry["sha256"]]
    fetch = {path: int(entry["size"]) for path, entry in files.items() if path in differ or path not in mine}
    fetch.update({path: 0 for path, target in links.items() if manifest["links"].get(path) != target})
    loaded = [path for path in manifest["selected"] if path.endswith(LOADED) and path not in files and path not in links]
    extra = sorted(loaded) if manifest["layout"] == "directory" else []
    return {
        "host": host,
        "fetch": fetch,
        "new": [path for path in fetch if path not in mine and path not in manifest["links"]],
        "remove": [path for path in extra if path in manifest["copied"]],
        "unknown": [path for path in extra if path not in manifest["copied"]],
        "bytes": sum(fetch.values()),
        "why": [f"{path} has another content (SHA-256 {mine[path]['sha256'][:12]} instead of {files[path]['sha256'][:12]})" for path in differ],
    }


def plans(hosts: Sequence[str], models: Sequence[Sequence[Mapping[str, Any]]], sizes_gib: Sequence[float], reserve_bytes: int = 0) -> list[dict[str, Any]]:
    """Return :func:`plan` of each model. What a model still brings to a rank has to stay free for those after it.

    :param models: for each model the manifests by rank; ``sizes_gib``: the published size of each, 0 if it is not known.
    """
    out: list[dict[str, Any]] = []
    reserves = [reserve_bytes for _host in hosts]
    for manifests, size in zip(models, sizes_gib):
        found = plan(hosts, manifests, reserves)
        out.append(found)
        present = [sum(int(entry["size"]) for entry in each["files"].values()) for each in manifests]
        comes = [each["bytes"] for each in found["ranks"]] if found["usable"] else [max(0, int(size * GIB) - have) for have in present]
        reserves = [kept + more for kept, more in zip(reserves, comes)]
    return out
