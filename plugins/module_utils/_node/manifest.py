# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: the files of models, and what each rank lacks. Pure.

A *manifest* is a mapping that :mod:`model_folder` reads from a node. Paths are relative to the model's folder, with ``/``:

- ``path``, ``exists``, ``layout`` (``hub`` or ``directory``), ``commit`` (hub: the selected snapshot, or "");
- ``files``: path -> ``{"size": bytes, "sha256": hex, "mtime_ns": int}``; ``links``: path -> target as written;
- ``selected``: the paths (files and links) that the engine reads; the rest is other revisions and caches;
- ``missing`` (shards of the index that are not in the folder), ``incomplete`` (unfinished downloads), ``damaged`` (files with another content than
  the hub promises), ``problems`` (sentences);
- ``agreed``: path -> ``[size, sha256, mtime_ns]`` of all ranks after the last run; ``copied``: paths that an earlier run copied;
- ``staged``: path -> bytes that an interrupted copy has written; ``free_bytes`` on the file system of the folder.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
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
MAX_PATH = 2048  # bytes of a path below the model's folder
MAX_NAME = 255  # bytes, of Linux


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


def _unfit(text: str) -> str:
    """Return what is wrong with the characters of a path or of a link's target, or an empty string."""
    try:
        sizes = [len(part.encode("utf-8")) for part in text.split("/")]
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    if printable(text) != text or "\n" in text or "\t" in text:
        return "has a control character in its name"
    return "has a name that is too long" if max(sizes) > MAX_NAME or sum(sizes) + len(sizes) > MAX_PATH else ""


def check_path(path: str) -> str:
    """Return why a relative path must not be written to a node, or an empty string."""
    if not path or path.startswith("/") or posixpath.normpath(path) != path or path.split("/")[0] in ("..", "."):
        return "leads out of the model's folder"
    return _unfit(path)


def landing(path: str, links: Mapping[str, str]) -> str:
    """Return the path that a path leads to through these links, `.` for the model's folder; empty if it leads out of it, or in a circle."""
    todo, followed = path.split("/")[::-1], 0
    at: list[str] = []
    while todo:
        part = todo.pop()
        if part == ".." and not at:
            return ""
        if part == "..":
            at.pop()
        elif part not in ("", "."):
            target = links.get("/".join([*at, part]))
            followed += target is not None
            if followed > 40 or (target or "").startswith("/"):  # as Linux
                return ""
            if target is None:
                at.append(part)
            else:
                todo += target.split("/")[::-1]
    return "/".join(at) or "."


def check_link(path: str, target: str, links: Mapping[str, str] | None = None) -> str:
    """Return why a link must not be copied, or an empty string: it has to stay inside the model's folder, also through the other `links`."""
    bad = check_path(path)
    if bad:
        return bad
    if not target or _unfit(target):
        return f"is a link whose target {_unfit(target) if target else 'is empty'}"
    return "" if landing(path, {**(links or {}), path: target}) else f"is a link to {target}, outside the model's folder, or in a circle"


def check_tree(files: Iterable[str], links: Mapping[str, str]) -> None:
    """Check that files and links can be in one folder, and that no link leads out of it. Raises ManifestError."""
    names = [*files, *links]
    taken = set(names)
    for path in names:
        parents = [path[:index] for index, char in enumerate(path) if char == "/"]
        above = next((each for each in parents if each in taken), "")
        if above:
            raise ManifestError(f"{path} is below {above}, which is a file or a link: nothing was copied")
    if len(taken) != len(names):
        raise ManifestError("a path is a file and a link at the same time: nothing was copied")
    for path, target in links.items():
        bad = check_link(path, target, links)
        if bad:
            raise ManifestError(f"{path} {bad}: nothing was copied")


def check_name(path: str) -> None:
    """Check a path that a container could have named. Raises ManifestError."""
    bad = check_path(path)
    if bad:
        raise ManifestError(f"{path!r} {bad}: nothing was copied")


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
        found.append(f"the content differs from the hub's: {listing(manifest['damaged'])}")
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


def space_problem(path: str, fetch: Iterable[Mapping[str, Any]], staged: Mapping[str, int], free: int, reserve: int) -> str:
    """Return why files do not fit on the file system of a path, or an empty string. What an interrupted copy has written needs no space."""
    need = sum(max(0, int(item["size"]) - int(staged.get(str(item["path"]), 0))) for item in fetch)
    if not need or need + reserve <= free:
        return ""
    return (
        f"{human(free)} free on the file system of {path}, and {human(need)} are to be copied there with {human(reserve)} left over: "
        f"free {human(need + reserve - free)}, or set gb10_model_store to a larger disk"
    )


def _damaged_since(manifests: Sequence[Mapping[str, Any]], rank: int) -> tuple[list[str], list[str]]:
    """Return (shards of a rank that were damaged since all ranks agreed, shards that are a new version).

    A shard with another content and the same size, of which another rank has the agreed content, is damaged if its mtime is the old one or if
    less than half of the shards changed. Otherwise it is a new version of the model.
    """
    agreed: dict[str, Any] = {}
    for manifest in [manifests[rank], *manifests]:
        agreed = {**manifest["agreed"], **agreed}
    files = manifests[rank]["files"]
    shards = [path for path in manifests[rank]["selected"] if path in files and path.endswith(WEIGHTS)]
    suspects = {}  # path -> whether the mtime is unchanged
    for path in shards:
        now, then = files[path], agreed.get(path)
        if then and now["sha256"] != then[1] and now["size"] == then[0] and any(m["files"].get(path, {}).get("sha256") == then[1] for m in manifests):
            suspects[path] = now["mtime_ns"] == then[2]
    many = len(suspects) * 2 >= len(shards)
    damaged = [path for path, same_time in suspects.items() if same_time or not many]
    return damaged, [path for path in suspects if path not in damaged]


def choose_source(hosts: Sequence[str], manifests: Sequence[Mapping[str, Any]], wanted: str = "auto") -> int:
    """Return the rank whose files the others get: the user's choice, the first complete one, or the one with most bytes. Raises ManifestError.

    A complete rank that was damaged since all ranks agreed is the last one of these.
    """
    if wanted not in ("auto", ""):
        if wanted not in hosts:
            raise ManifestError(f"weights_source is {wanted}, which is not a host of this serving group: set one of {', '.join(hosts)}, or auto")
        return list(hosts).index(wanted)
    whole = [rank for rank, manifest in enumerate(manifests) if complete(manifest)]
    if whole:
        return next((rank for rank in whole if not _damaged_since(manifests, rank)[0]), whole[0])
    sizes = [sum(int(m["files"][p]["size"]) for p in m["selected"] if p in m["files"]) if m.get("exists") else -1 for m in manifests]
    return sizes.index(max(sizes))


def plan(hosts: Sequence[str], manifests: Sequence[Mapping[str, Any]], source: str = "auto", reserves: Sequence[int] = ()) -> dict[str, Any]:
    """Return what has to be copied until all ranks have what the source has.

    :param hosts: names by rank; ``manifests``: one for each.
    :param reserves: bytes that must stay free on the disk of each rank after the copy; empty for none.
    :returns: ``source`` (host), ``source_rank``, ``usable`` (false: the source has to download first), ``complaints`` (why), ``equal``, ``bytes``
        and ``files`` (of the whole model), ``proof``, ``commit`` (of the hub, or ""), ``code`` (see code_proof),
        ``expected`` (path -> size, sha256, mtime_ns), ``links``, ``ranks`` (for each rank:
        ``host``, ``fetch`` (a list of ``path``, ``size``, ``sha256``, ``mtime_ns``), ``links``, ``remove``, ``bytes``, ``why``,
        ``recorded`` (whether this rank has recorded exactly this)),
        ``awaits`` (for each rank whether it will fetch what the source downloads first;
        false if the plan is usable), ``reserves``, ``refusals`` (sentences: too little space, files of another model, a damaged source) and ``notes``.
    :raises ManifestError: the source is not a host of the group.
    """
    base_rank = choose_source(hosts, manifests, source)
    base = manifests[base_rank]
    out: dict[str, Any] = {
        "source": hosts[base_rank], "source_rank": base_rank, "usable": False, "complaints": [], "equal": False, "bytes": 0, "files": 0, "proof": "",
        "commit": "", "code": "",
        "expected": {}, "links": {}, "ranks": [],
        "awaits": [rank != base_rank and not complete(each) for rank, each in enumerate(manifests)], "refusals": [], "notes": [],
        "reserves": list(reserves) or [0 for _each in hosts],
    }  # fmt: skip
    out["complaints"] = complaints(base)
    if out["complaints"]:
        return out
    desired = {path: base["files"][path] for path in base["selected"] if path in base["files"]}
    links = {path: base["links"][path] for path in base["selected"] if path in base["links"]}
    check_tree(desired, links)
    damaged, new = _damaged_since(manifests, base_rank)
    if damaged:
        lost = f"{out['source']} has another content of {listing(damaged)} than all ranks agreed on"
        out["refusals"].append(f"{lost}: replace these files{'' if source in ('auto', '') else ', or set weights_source to auto'}")
    if new:
        out["notes"].append(f"{listing(new)}: the content has changed since the last run and is used as a new version")
    out.update(
        usable=True,
        awaits=[False for _each in hosts],
        expected={path: {key: entry[key] for key in ("size", "sha256", "mtime_ns")} for path, entry in desired.items()},
        links=links,
        bytes=sum(int(entry["size"]) for entry in desired.values()),
        files=len(desired),
        proof=proof(desired, links, [*desired, *links]),
        commit=str(base.get("commit")) if COMMIT.fullmatch(str(base.get("commit"))) else "",
        code=code_proof(desired, links),
    )
    for rank, host in enumerate(hosts):
        out["ranks"].append(_rank_plan(rank, host, manifests[rank], out))
    out["equal"] = not any(item["fetch"] or item["links"] or item["remove"] for item in out["ranks"]) and not out["refusals"]
    return out


def _rank_plan(rank: int, host: str, manifest: Mapping[str, Any], out: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of one rank in `ranks`, and add to `refusals`."""
    fetch, why = [], []
    for path, entry in sorted(out["expected"].items()):
        mine = manifest["files"].get(path)
        if mine is not None and mine["sha256"] == entry["sha256"]:
            continue
        if mine is not None:
            why.append(f"{path} {_other_content(mine, entry)}")
        fetch.append({**entry, "path": path})
    loaded = [path for path in manifest["selected"] if path.endswith(LOADED) and path not in out["expected"] and path not in out["links"]]
    extra = sorted(loaded) if manifest["layout"] == "directory" else []
    unknown = [path for path in extra if path not in manifest["copied"]]
    if unknown:
        out["refusals"].append(
            f"{host} has {listing(unknown)} in {manifest['path']}, which {out['source']} has not, so the ranks would load different things: "
            f"move it away on {host}, or put it on {out['source']} too"
        )
    problem = space_problem(manifest["path"], fetch, manifest["staged"], manifest["free_bytes"], out["reserves"][rank])
    if problem:
        out["refusals"].append(f"{host} has {problem}")
    return {
        "host": host,
        "fetch": fetch,
        "links": {path: target for path, target in out["links"].items() if manifest["links"].get(path) != target},
        "remove": [path for path in extra if path not in unknown],
        "bytes": sum(int(item["size"]) for item in fetch),
        "why": why,
        "recorded": manifest["agreed"] == {path: [entry["size"], entry["sha256"], entry["mtime_ns"]] for path, entry in out["expected"].items()},
    }


def _other_content(mine: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    return f"has another content (SHA-256 {str(mine['sha256'])[:12]} instead of {str(expected['sha256'])[:12]})"


def compare(manifest: Mapping[str, Any], expected: Mapping[str, Mapping[str, Any]], links: Mapping[str, str]) -> list[str]:
    """Return how a rank's files differ from the expected ones, one sentence each."""
    found = []
    for path, entry in sorted(expected.items()):
        mine = manifest["files"].get(path)
        if mine is None:
            found.append(f"{path} is missing")
        elif mine["sha256"] != entry["sha256"]:
            found.append(f"{path} {_other_content(mine, entry)}")
    for path, target in sorted(links.items()):
        if manifest["links"].get(path) != target:
            found.append(f"{path} is a link to {manifest['links'].get(path)} instead of {target}")
    return found


def plans(
    hosts: Sequence[str], models: Sequence[Sequence[Mapping[str, Any]]], sizes_gib: Sequence[float], source: str = "auto", reserve_bytes: int = 0
) -> list[dict[str, Any]]:
    """Return :func:`plan` of each model. What a model still brings to a rank has to stay free for those after it.

    :param models: for each model the manifests by rank; ``sizes_gib``: the published size of each, 0 if it is not known.
    """
    out: list[dict[str, Any]] = []
    reserves = [reserve_bytes for _host in hosts]
    for manifests, size in zip(models, sizes_gib):
        found = plan(hosts, manifests, source, reserves)
        out.append(found)
        present = [sum(int(entry["size"]) for entry in each["files"].values()) for each in manifests]
        comes = [each["bytes"] for each in found["ranks"]] if found["usable"] else [max(0, int(size * GIB) - have) for have in present]
        reserves = [kept + more for kept, more in zip(reserves, comes)]
    return out
