# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: what a model's files are, and what each rank lacks, pure.

A *manifest* is a mapping as :mod:`model_folder` reads it from a node; paths are relative to the model's folder, with ``/``:

- ``path``, ``exists``, ``layout`` (``hub`` or ``directory``), ``commit`` (hub: the snapshot that counts, or "");
- ``files``: path -> ``{"size": bytes, "sha256": hex, "mtime_ns": int}``; ``links``: path -> target as written;
- ``selected``: the paths (files and links) that the engine reads; the rest is other revisions and caches;
- ``missing`` (shards that the index names and the folder lacks), ``incomplete`` (unfinished downloads), ``damaged`` (files whose content
  is not what the hub says), ``problems`` (sentences);
- ``agreed``: path -> ``[size, sha256, mtime_ns]`` as all ranks had it last time; ``copied``: paths that an earlier run brought;
- ``free_bytes`` on the file system of the folder.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
IGNORED_FOLDERS = (".cache", ".git", ".locks", ".no_exist")
IGNORED_SUFFIXES = (".lock",)
# What an engine may load beside the weights; a rank that has more of these than the others would load something else.
LOADED = (*WEIGHTS, ".json", ".jinja", ".model", ".py", ".txt", ".tiktoken", ".jsonl")
GIB = 1024**3
COMMIT = re.compile(r"[0-9a-f]{40}")


class ManifestError(ValueError):
    """The model cannot be used or copied; the text is a sentence for the user."""


def record_name(path: str) -> str:
    """Return the name of a model folder's record."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in posixpath.basename(path.rstrip("/")))[:60]
    return f"weights-{name}-{hashlib.sha256(path.rstrip('/').encode()).hexdigest()[:8]}"


def human(count: float) -> str:
    """Return bytes as a reader wants them: `1.5 GiB`, `700 MiB`, `12 KiB`, `5 bytes`."""
    for unit, size in (("GiB", GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= size * 0.9995:
            value = count / size
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{int(count)} bytes"


def check_path(path: str) -> str:
    """Return why a relative path must not be written to a node, or an empty string."""
    if not path or path.startswith("/") or posixpath.normpath(path) != path or path.split("/")[0] == "..":
        return "leads out of the model's folder"
    if any(ord(c) < 32 or ord(c) == 127 for c in path):
        return "has a control character in its name"
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    return ""


def check_link(path: str, target: str) -> str:
    """Return why a link must not be copied, or an empty string: it has to stay inside the model's folder."""
    bad = check_path(path)
    if bad:
        return bad
    if target.startswith("/"):
        return f"is a link to {target}, outside the model's folder"
    landing = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return f"is a link to {target}, outside the model's folder" if landing == ".." or landing.startswith("../") else ""


def ignored(path: str) -> bool:
    """Tell whether a path is a cache or a lock, which nobody loads."""
    return any(part in IGNORED_FOLDERS for part in path.split("/")[:-1]) or path.endswith(IGNORED_SUFFIXES)


def resolve_commit(refs: Mapping[str, str], snapshots: Iterable[str], revision: str) -> tuple[str, str]:
    """Return (commit, problem) for a revision in a Hugging Face cache; offline, the engine does exactly this."""
    known = sorted(set(snapshots))
    if revision in refs:
        commit = refs[revision].strip()
        if commit in known:
            return commit, ""
        return "", f"refs/{revision} names the snapshot {commit!r}, which is not there (present: {', '.join(known) or 'none'}): download that revision again"
    if revision in known:
        return revision, ""
    if len(known) == 1:
        return "", f"refs/{revision} is missing, so an engine that is offline finds no model: printf %s {known[0]} > refs/{revision} sets it"
    return "", f"refs/{revision} is missing (snapshots: {', '.join(known) or 'none'}): download the model, or set the profile's model.revision"


def select(layout: str, files: Iterable[str], links: Mapping[str, str], commit: str, revision: str) -> list[str]:
    """Return the paths that the engine reads: all of a directory, one snapshot (its links, their blobs, the ref) of a hub cache."""
    names = set(files)
    if layout == "directory":
        return sorted(path for path in names | set(links) if not ignored(path))
    if not commit:
        return []
    prefix = f"snapshots/{commit}/"
    chosen = {path for path in names if path.startswith(prefix)}
    for path, target in links.items():
        if path.startswith(prefix):
            chosen.add(path)
            blob = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if blob in names:
                chosen.add(blob)
    if f"refs/{revision}" in names:
        chosen.add(f"refs/{revision}")
    return sorted(chosen)


def shards_of_index(text: str) -> list[str]:
    """Return the file names that a `*.index.json` needs. Raises ManifestError."""
    try:
        table = json.loads(text)["weight_map"]
        return sorted({str(name) for name in table.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"is no index of shards ({type(error).__name__}: {error})") from error


def missing_shards(indexes: Mapping[str, str], present: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return (missing paths, sentences) for indexes (path -> text) against the paths that are there; links whose target is gone do not count."""
    have = set(present)
    missing: set[str] = set()
    problems = []
    for path, text in sorted(indexes.items()):
        folder = posixpath.dirname(path)
        try:
            needed = [posixpath.join(folder, name) for name in shards_of_index(text)]
        except ManifestError as error:
            problems.append(f"{path} {error}: fetch it again")
            continue
        missing.update(name for name in needed if name not in have)
    return sorted(missing), problems


def upstream_of_blob(path: str) -> tuple[str, str]:
    """Return (kind, hash) that a hub blob's name promises: sha256 for a large file, git for a small one; empty strings for other paths."""
    folder, _sep, name = path.rpartition("/")
    if folder == "blobs" and re.fullmatch(r"[0-9a-f]{64}", name):
        return "sha256", name
    if folder == "blobs" and COMMIT.fullmatch(name):
        return "git", name
    return "", ""


def upstream_of_metadata(text: str) -> str:
    """Return the SHA-256 that Hugging Face's local metadata (commit, etag, time) promises; empty where it holds another kind of hash."""
    lines = text.splitlines()
    return lines[1].strip() if len(lines) > 1 and re.fullmatch(r"[0-9a-f]{64}", lines[1].strip()) else ""


def git_blob_header(size: int) -> bytes:
    """Return what git hashes before a blob's content."""
    return f"blob {size}\0".encode()


def complete(manifest: Mapping[str, Any]) -> bool:
    """Tell whether a rank has the whole model, ready to serve from and to copy from."""
    return bool(manifest.get("exists")) and not complaints(manifest)


def complaints(manifest: Mapping[str, Any]) -> list[str]:
    """Return what keeps a manifest from being complete, as sentences without the node's name."""
    if not manifest.get("exists"):
        return [f"{manifest.get('path')} does not exist"]
    found = list(manifest["problems"])
    if manifest["missing"]:
        found.append(f"the index names files that are missing: {listing(manifest['missing'])}")
    if manifest["incomplete"]:
        found.append(f"a download has not finished: {listing(manifest['incomplete'])}")
    if manifest["damaged"]:
        found.append(f"the content is not what the hub says: {listing(manifest['damaged'])}")
    if not found and not any(path.endswith(WEIGHTS) for path in manifest["selected"]):
        found.append(f"there is no file of weights ({', '.join('*' + end for end in WEIGHTS)}) in {manifest['path']}")
    return found


def listing(names: Sequence[str], most: int = 6) -> str:
    """Return names joined by commas, the tail counted."""
    names = [str(name) for name in names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def proof(files: Mapping[str, Mapping[str, Any]], links: Mapping[str, str], paths: Iterable[str]) -> str:
    """Return one SHA-256 over the given paths: equal proofs mean equal names, sizes, contents and links."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        if path in links:
            digest.update(f"{path}\0->\0{links[path]}\n".encode("utf-8", "surrogateescape"))
        elif path in files:
            digest.update(f"{path}\0{files[path]['size']}\0{files[path]['sha256']}\n".encode("utf-8", "surrogateescape"))
        else:
            digest.update(f"{path}\0absent\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


# --- what each rank lacks ---------------------------------------------------------------------------------------------------------


def choose_source(hosts: Sequence[str], manifests: Sequence[Mapping[str, Any]], wanted: str = "auto") -> int:
    """Return the rank whose files are the measure: the user's choice, else the first that is complete, else the first that has most.

    Raises ManifestError for a host that is not in the group.
    """
    if wanted not in ("auto", ""):
        if wanted not in hosts:
            raise ManifestError(f"weights_source is {wanted}, which is no host of this serving group: give one of {', '.join(hosts)}, or auto")
        return list(hosts).index(wanted)
    for rank, manifest in enumerate(manifests):
        if complete(manifest):
            return rank
    sizes = [sum(int(m["files"][p]["size"]) for p in m["selected"] if p in m["files"]) if m.get("exists") else -1 for m in manifests]
    return sizes.index(max(sizes))


def _agreed(manifests: Sequence[Mapping[str, Any]], source: int) -> dict[str, list[Any]]:
    merged: dict[str, list[Any]] = {}
    for manifest in manifests:
        for path, entry in (manifest.get("agreed") or {}).items():
            merged.setdefault(path, list(entry))
    merged.update({path: list(entry) for path, entry in (manifests[source].get("agreed") or {}).items()})
    return merged


def _changed_at_source(manifests: Sequence[Mapping[str, Any]], source: int) -> tuple[set[str], list[str]]:
    """Return (paths damaged at the source, notes): weights that differ from what all ranks agreed on, while another rank still has that.

    One shard of many with the same size, or an unchanged time of change, is damage; most shards at once, or another size, is a new model.
    """
    base = manifests[source]
    agreed = _agreed(manifests, source)
    shards = [path for path in base["selected"] if path in base["files"] and path.endswith(WEIGHTS)]
    suspects = []
    for path in shards:
        now, then = base["files"][path], agreed.get(path)
        if then is None or now["sha256"] == then[1]:
            continue
        held = any(m.get("exists") and m["files"].get(path, {}).get("sha256") == then[1] for m in manifests)
        if held and now["size"] == then[0]:
            suspects.append((path, now["mtime_ns"] == then[2]))
    many = len(suspects) * 2 >= len(shards)
    damaged = {path for path, same_time in suspects if same_time or not many}
    new = [path for path, _rest in suspects if path not in damaged]
    notes = [f"{listing(new)}: the content has changed since the last run and is taken as a new version"] if new else []
    return damaged, notes


def _truth(manifests: Sequence[Mapping[str, Any]], source: int) -> tuple[dict[str, dict[str, Any]], dict[str, str], list[str], list[str]]:
    """Return (files with `ranks` that hold each, links, what nobody holds, notes)."""
    base = manifests[source]
    rotten, notes = _changed_at_source(manifests, source)
    agreed = _agreed(manifests, source)
    rotten |= set(base["damaged"])
    wanted: dict[str, str | None] = {}
    for path in base["selected"]:
        if path in base["files"]:
            wanted[path] = None if path in rotten else str(base["files"][path]["sha256"])
    for path in base["missing"]:
        wanted[path] = None
    truth: dict[str, dict[str, Any]] = {}
    lost = []
    for path, content in wanted.items():
        holders = []
        expected = content or (agreed.get(path) or [0, None])[1]
        kind, named = upstream_of_blob(path)
        if kind == "sha256":
            expected = named
        for rank, manifest in enumerate(manifests):
            entry = manifest["files"].get(path) if manifest.get("exists") else None
            if entry is None or path in manifest["damaged"] or (rank == source and path in rotten):
                continue
            if expected is None or entry["sha256"] == expected:
                expected = expected or entry["sha256"]
                holders.append(rank)
        if not holders:
            lost.append(path)
            continue
        first = source if source in holders else holders[0]
        entry = manifests[first]["files"][path]
        truth[path] = {"size": entry["size"], "sha256": entry["sha256"], "mtime_ns": entry["mtime_ns"], "ranks": holders, "from": first}
    links = {path: base["links"][path] for path in base["selected"] if path in base["links"]}
    for path in list(lost):
        target = next((m["links"][path] for m in manifests if m.get("exists") and path in m["links"]), None)
        if target is None:
            continue
        # A shard of a hub cache is a link: take it, and the blob it leads to, from the rank that has both.
        blob = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        holders = [r for r, m in enumerate(manifests) if m.get("exists") and blob in m["files"] and blob not in m["damaged"]]
        if holders:
            entry = manifests[holders[0]]["files"][blob]
            truth[blob] = {"size": entry["size"], "sha256": entry["sha256"], "mtime_ns": entry["mtime_ns"], "ranks": holders, "from": holders[0]}
            links[path] = target
            lost.remove(path)
    return truth, links, lost, notes


def plan(hosts: Sequence[str], manifests: Sequence[Mapping[str, Any]], source: str = "auto", reserve_bytes: int = 0) -> dict[str, Any]:
    """Return what has to be copied so that all ranks have what the source has.

    :param hosts: names by rank; ``manifests``: one for each.
    :param reserve_bytes: what must stay free on a rank's disk after the copy.
    :returns: ``source`` (host), ``source_rank``, ``usable`` (false: the source has to download first), ``complaints`` (why), ``equal``, ``bytes``
        and ``files`` (of the whole model), ``proof``, ``expected`` (path -> size, sha256, mtime_ns), ``links``, ``ranks`` (for each rank:
        ``host``, ``fetch`` (a list of ``path``, ``size``, ``sha256``, ``mtime_ns``, ``provider`` (rank)), ``links``, ``remove``, ``bytes``, ``why``,
        ``recorded`` (whether this rank remembers exactly this)),
        ``offers`` (for each rank the paths that others fetch from it), ``awaits`` (for each rank whether it will fetch what the source downloads first;
        never where the plan is usable), ``refusals`` (sentences: no room, foreign files) and ``notes``.
    :raises ManifestError: a host that is not in the group.
    """
    base_rank = choose_source(hosts, manifests, source)
    base = manifests[base_rank]
    out: dict[str, Any] = {
        "source": hosts[base_rank], "source_rank": base_rank, "usable": False, "complaints": [], "equal": False, "bytes": 0, "files": 0, "proof": "",
        "expected": {}, "links": {}, "ranks": [], "offers": [[] for _each in hosts],
        "awaits": [rank != base_rank and not complete(each) for rank, each in enumerate(manifests)], "refusals": [], "notes": [],
    }  # fmt: skip
    if not base.get("exists"):
        out["complaints"] = complaints(base)
        return out
    truth, links, lost, notes = _truth(manifests, base_rank)
    out["notes"] = notes
    hard = list(base["problems"])
    if lost:
        hard.append(f"no rank has a good copy of {listing(lost)}")
    if base["incomplete"]:
        hard.append(f"a download has not finished: {listing(base['incomplete'])}")
    if not hard and not any(path.endswith(WEIGHTS) for path in [*truth, *links]):
        hard = complaints(base)
    if hard:
        out["complaints"] = hard
        return out
    paths = [*truth, *links]
    out.update(
        usable=True,
        awaits=[False for _each in hosts],
        expected={path: {key: entry[key] for key in ("size", "sha256", "mtime_ns")} for path, entry in truth.items()},
        links=links,
        bytes=sum(int(entry["size"]) for entry in truth.values()),
        files=len(truth),
        proof=proof(truth, links, paths),
    )
    for rank, host in enumerate(hosts):
        out["ranks"].append(_rank_plan(rank, host, manifests[rank], truth, links, out, str(base["layout"]), reserve_bytes))
    out["offers"] = [sorted(set(names)) for names in out["offers"]]
    out["equal"] = not any(item["fetch"] or item["links"] or item["remove"] for item in out["ranks"]) and not out["refusals"]
    return out


def _rank_plan(
    rank: int,
    host: str,
    manifest: Mapping[str, Any],
    truth: Mapping[str, Mapping[str, Any]],
    links: Mapping[str, str],
    out: dict[str, Any],
    layout: str,
    reserve: int,
) -> dict[str, Any]:
    have_files = manifest["files"] if manifest.get("exists") else {}
    have_links = manifest["links"] if manifest.get("exists") else {}
    fetch, why = [], []
    for path, entry in sorted(truth.items()):
        mine = have_files.get(path)
        if rank in entry["ranks"]:
            continue
        if mine is not None:
            why.append(f"{path} has another content (SHA-256 {str(mine['sha256'])[:12]} instead of {str(entry['sha256'])[:12]})")
        fetch.append({**{key: entry[key] for key in ("size", "sha256", "mtime_ns")}, "path": path, "provider": entry["from"]})
        out["offers"][int(entry["from"])].append(path)
    wrong_links = {path: target for path, target in links.items() if have_links.get(path) != target}
    copied = set(manifest.get("copied") or [])
    known = set(truth) | set(links)
    extra = [path for path in manifest.get("selected", []) if path not in known and layout == "directory" and path.endswith(LOADED)] if have_files else []
    remove = sorted(path for path in extra if path in copied)
    foreign = sorted(path for path in extra if path not in copied)
    if foreign:
        out["refusals"].append(
            f"{host} has {listing(foreign)} in {manifest['path']}, which {out['source']} has not, so the ranks would load different things: "
            f"move it away on {host}, or put it on {out['source']} too"
        )
    staged = {str(key): int(value) for key, value in (manifest.get("staged") or {}).items()}
    need = sum({str(item["sha256"]): max(0, int(item["size"]) - staged.get(str(item["sha256"]), 0)) for item in fetch}.values())
    free = int(manifest.get("free_bytes") or 0)
    if need and need + reserve > free:
        out["refusals"].append(
            f"{host} has {human(free)} free on the file system of {manifest['path']}, and {human(need)} are to be copied there with {human(reserve)} "
            f"left over: make {human(need + reserve - free)} of room, or point gb10_model_store to a larger disk"
        )
    agreed = {path: [entry["size"], entry["sha256"], entry["mtime_ns"]] for path, entry in truth.items()}
    return {
        "host": host, "fetch": fetch, "links": wrong_links, "remove": remove, "bytes": sum(int(i["size"]) for i in fetch), "why": why,
        "recorded": {path: list(entry) for path, entry in (manifest.get("agreed") or {}).items()} == agreed,
    }  # fmt: skip


def ways(group: Mapping[str, Any], offers: Iterable[Mapping[str, Any] | None], rank: int) -> list[list[dict[str, Any]]]:
    """Return for each rank the ways from `rank` to what it offers: address, port, and this rank's own address on the same rail.

    :param group: the serving group's ``members`` with ``host`` and ``fabric``.
    :param offers: by rank, what weights_serve returned there (``listen``, a list of ``address`` and ``port``); anything else where nothing is offered.
    """
    members = list(group["members"])
    mine = list(members[rank].get("fabric") or [])
    out = []
    for member, offer in zip(members, offers):
        theirs = list(member.get("fabric") or [])
        found = []
        for place in (offer or {}).get("listen") or []:
            rail = theirs.index(place["address"]) if place["address"] in theirs else -1
            found.append({"address": place["address"], "port": int(place["port"]), "bind": mine[rail] if 0 <= rail < len(mine) else ""})
        out.append(found)
    return out


def compare(manifest: Mapping[str, Any], expected: Mapping[str, Mapping[str, Any]], links: Mapping[str, str]) -> list[str]:
    """Return how a rank's files differ from the expected ones, one sentence each; none when they are equal."""
    found = []
    for path, entry in sorted(expected.items()):
        mine = (manifest.get("files") or {}).get(path)
        if mine is None:
            found.append(f"{path} is missing")
        elif int(mine["size"]) != int(entry["size"]):
            found.append(f"{path} has {mine['size']} bytes instead of {entry['size']}")
        elif mine["sha256"] != entry["sha256"]:
            found.append(f"{path} has another content (SHA-256 {str(mine['sha256'])[:12]} instead of {str(entry['sha256'])[:12]})")
    for path, target in sorted(links.items()):
        mine_link = (manifest.get("links") or {}).get(path)
        if mine_link != target:
            found.append(f"{path} {'is missing' if mine_link is None else f'leads to {mine_link}'} instead of {target}")
    return found


def progress_line(host: str, state: Mapping[str, Any], rate: float, what: str = "") -> str:
    """Return one line about a running copy; `rate` in bytes a second."""
    total, done = int(state.get("total") or 0), int(state.get("done") or 0)
    percent = 100 * done // total if total else 100
    if total and done >= total and state.get("state") == "running":
        share = 100 * int(state.get("hashed") or 0) // total
        return f"{host}: {what}checking {human(total)}  {share} %"
    left = (total - done) / rate if rate > 0 else 0
    eta = f"  {left / 60:.0f} min left" if left >= 90 else ""
    files = f"{state.get('files_done', 0)} of {state.get('files', 0)} files"
    return f"{host}: {what}{percent:3d} %  {human(done)} of {human(total)}  {rate / 1e6:.0f} MB/s  {files}{eta}"
