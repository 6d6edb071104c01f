# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releases: the name of one, the reasons for a start, the last good one; and how one is written on a node, with its receipt and the link to it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import FileChange, Node

RELEASE_LABEL = "gb10.cluster.release"
IMAGE_LABEL = "gb10.cluster.image"
SERVICE = "vllm"  # the only service of a release's Compose file


def release_id(contents: Iterable[Any]) -> str:
    """Name a release by what all its ranks are rendered from: 12 hex digits, the same on every rank, another one for any change."""
    text = json.dumps(list(contents), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def fingerprint(secrets: Mapping[str, Any], salt: str) -> str:
    """Return what stands for secrets in a release's name: another value gives another release, and the value cannot be read back."""
    if not any(secrets.values()):
        return ""
    text = json.dumps(dict(secrets), sort_keys=True, default=str)
    return hashlib.pbkdf2_hmac("sha256", text.encode(), salt.encode(), 100_000).hex()[:12]


def kept(info: Mapping[str, Any], release: str) -> dict[str, Any]:
    """Return what a rank keeps of a release; empty if it keeps none."""
    return next((dict(r) for r in info.get("releases") or [] if r["id"] == release), {})


def running_release(look: Mapping[str, Any]) -> str:
    """Return the release of the only container that runs on a rank; empty without one. `look` has the rank's `containers`."""
    running = [each for each in look.get("containers") or [] if each.get("running")]
    return str((running[0].get("labels") or {}).get(RELEASE_LABEL) or "") if len(running) == 1 else ""


def runs(look: Mapping[str, Any] | None, release: str = "") -> bool:
    """Tell whether a container of the group runs on a rank, one of `release` if that is given, without a dead or stopped engine process."""
    look = look or {}
    if not release:
        return any(each.get("running") for each in look.get("containers") or [])
    return running_release(look) == release and not (look.get("processes") or {}).get("fault")


def passed_before(looks: Iterable[Mapping[str, Any]], release: str) -> bool:
    """Whether a release has passed its gate on a rank."""
    return any(entry["id"] == release and entry.get("good") for each in looks for entry in each["releases"])


def moved_tag(info: Mapping[str, Any]) -> str:
    """Return a phrase if the image's name leads to another content than the current release was started from; empty if not, or if it is not known."""
    now, old = info.get("image") or {}, kept(info, str(info.get("current") or "")).get("image") or {}
    same_name = now.get("name") and now.get("name") == old.get("reference")
    if not same_name or not now.get("fingerprint") or not old.get("fingerprint") or now["fingerprint"] == old["fingerprint"]:
        return ""
    return f"image behind the tag changed: {now['name']} was {old['id'][:19]} and is {now['id'][:19]}"


def other_image(info: Mapping[str, Any], release: str, container: Mapping[str, Any]) -> bool:
    """Tell whether a container was started from another image content than `release` names. Ids do not count: they depend on the image store."""
    image = kept(info, release).get("image") or info.get("image") or {}
    found = container.get("image_fingerprint") or container["labels"].get(IMAGE_LABEL)
    return bool(found and image.get("fingerprint") and found != image["fingerprint"])


def start_reasons(
    info: Mapping[str, Any],
    release: str,
    rank: str,
    probe: Mapping[str, Any] | None = None,
    forced: bool = False,
    judged: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return why this rank's group must be (re)started for `release`, one phrase each; none if it serves as desired.

    `info` is what vllm_rank_info returned, `rank` names the rank and its host ("rank 1 on lab-2"), `probe` is what the API answered on the
    head (None elsewhere, and if it did not run). A server that is busy, frozen or silent gives no reason: a restart would end requests that may
    still be served. `judged` is what judged_receipt() returned: a release that runs and has passed its gate does not need a start if only the
    link `current` is lost.
    """
    out: list[str] = []
    current = str(info.get("current") or "")
    containers = list(info.get("containers") or [])
    running = [c for c in containers if c["running"]]
    labelled = [c for c in running if c["labels"].get(RELEASE_LABEL) == release]
    mine = [c for c in labelled if not other_image(info, release, c)]
    if mine and judged:
        current = release
    if current != release:
        out.append(f"release {current} -> {release}" if current else f"release {release} is the first one")
        out += [moved_tag(info)] if moved_tag(info) else []
    elif labelled and not mine:
        out.append(f"{rank} runs another image ({labelled[0].get('image_id', '')[:19]}) than release {release} names")
    elif not mine and info.get("engine_error"):
        out.append(f"{rank} cannot be read: {str(info['engine_error']).partition('. ')[0].rstrip('.')}")
    elif not mine and running:
        out.append(f"{rank} runs release {running[0]['labels'].get(RELEASE_LABEL) or 'not known'} instead of {release}")
    elif not mine:
        old = next((c for c in containers if not c["running"]), None)
        out.append(f"{rank} is not running" + (f" (exit code {old['exit_code']})" if old else ""))
    elif len(running) > 1:
        out.append(f"{rank}: {len(running)} containers of the group run, expected one")
    fault = str((info.get("processes") or {}).get("fault") or "")
    if fault and not out:
        out.append(f"{rank}: {fault}")
    if probe and not out and probe.get("outcome") in ("dead", "wedged"):
        out.append(f"the head does not serve: {probe['text']}")
    if forced and not out:
        out.append("a restart was asked for")
    return out


def release_on_disk(info: Mapping[str, Any]) -> str:
    """Return the release whose Compose file can remove the containers: theirs, else the current one; empty if neither is on the node."""
    kept = {r["id"] for r in info.get("releases") or []}
    labels = [c["labels"].get(RELEASE_LABEL, "") for c in info.get("containers") or []]
    return next((r for r in [*labels, str(info.get("current") or "")] if r in kept), "")


def _good_in_order(ranks: list[Mapping[str, Any]], but_not: str) -> list[str]:
    """Return the releases that any rank counts as good, the current ones first, then the newest: the gate's verdict is one for all ranks."""
    good = {r["id"] for info in ranks for r in info.get("releases") or [] if r.get("good") and r["id"] != but_not}
    names = [str(info.get("current") or "") for info in ranks] + [r["id"] for info in ranks for r in info.get("releases") or []]
    return [name for name in dict.fromkeys(names) if name in good]


def _unusable(info: Mapping[str, Any], release: str) -> str:
    """Return why a rank cannot start a release again, as the end of a sentence; empty if it can."""
    found = kept(info, release)
    if not found:
        return "does not keep its files any more"
    image = found.get("image") or {}
    return f"does not have its image {image['id'][:19]} any more" if image.get("gone") else ""


def last_good(infos: Iterable[Mapping[str, Any]], but_not: str) -> str:
    """Return the newest release whose gate has passed and that every rank can start again; empty if there is none.

    One rank's receipt is enough, since the verdict is one for all ranks.
    """
    ranks = list(infos)
    return next((name for name in _good_in_order(ranks, but_not) if not any(_unusable(info, name) for info in ranks)), "")


def lost_ways(infos: Iterable[Mapping[str, Any]], hosts: Iterable[str], release: str, judged: Mapping[str, Any] | None = None) -> list[str]:
    """Return what has happened to the way back from `release`, one sentence each; none if the newest good release can be started on every rank."""
    ranks = list(infos)
    named = list(zip(hosts, ranks))
    order = _good_in_order(ranks, release)
    good = last_good(ranks, release)
    out = []
    if ranks and not judged and all(info.get("current") == release for info in ranks):
        out.append(f"Release {release} is current and no receipt of it is left on the nodes and the controller. To judge it again: -e vllm_tp2_restart=true.")
    for name in order[: order.index(good)] if good else order:
        why = "; ".join(f"{host} {reason}" for host, reason in ((host, _unusable(info, name)) for host, info in named) if reason)
        rest = f"The way back is release {good}." if good else "There is no release to go back to if the next boot fails."
        out.append(f"Release {name} passed its gate and cannot be started again: {why}. {rest}")
    return out


def judged_receipt(infos: Iterable[Mapping[str, Any]], release: str, more: Iterable[Any] = ()) -> dict[str, Any]:
    """Return the receipt of a passed gate of `release`, from the first rank that has it, else from `more` (the controller's); empty without any."""
    for receipt in [*(info.get("receipt") for info in infos), *more]:
        if isinstance(receipt, Mapping) and receipt.get("passed") and receipt.get("release") == release:
            return dict(receipt)
    return {}


def repairs(info: Mapping[str, Any], release: str, files: Mapping[str, str], judged: Mapping[str, Any] | None = None) -> list[str]:
    """Return what this rank has lost of a release that runs, or what was changed in it, one phrase each.

    `files` has mode and SHA-256 of what the inventory renders, as vllm_rank_info's `files`.
    """
    found = kept(info, release)
    out = []
    if not found:
        out.append(f"the files of release {release} were missing")
    for name, wanted in files.items() if found else ():
        have = found["files"].get(name)
        if have != wanted:
            out.append(f"{name} of release {release} {'differed from the inventory' if have else 'was missing'}")
    if found and judged and not found.get("good"):
        out.append(f"the receipt of release {release} was missing")
    current = str(info.get("current") or "")
    if current != release:
        out.append(f"the link current {'led to release ' + current if current else 'was missing'}")
    return out


def same_models(judged: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Tell whether two `weights` are of the same folders; true if one does not name them."""
    return not judged.get("folders") or not now.get("folders") or judged["folders"] == now["folders"]


def weights_differ(judged: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how weights differ from those that a release was judged with, one phrase for each file; none if one of them is not known or comparable.

    Both are a receipt's `weights`: `proof`, `files` as path -> [bytes, SHA-256], and `folders`, of the model and its drafter.
    """
    before, after = judged.get("files") or {}, now.get("files") or {}
    if not before or not after or judged.get("proof") == now.get("proof") or not same_models(judged, now):
        return []
    out = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if new is None or (old and new[0] < 0):
            out.append(f"{path} is missing")
        elif old is None:
            out.append(f"{path} is new ({new[0]} bytes)")
        elif old[0] != new[0]:
            out.append(f"{path} has {new[0]} bytes instead of {old[0]}")
        elif old[1] != new[1]:
            out.append(f"{path} ({new[0]} bytes) has another content (SHA-256 {str(new[1])[:12]} instead of {str(old[1])[:12]})")
    return out


def stale_releases(info: Mapping[str, Any], keep: int, protected: Iterable[str]) -> list[str]:
    """Return the releases to remove: all but `keep`, of which the protected are some. Those that have never passed their gate go first, then the oldest."""
    safe = set(protected) | {str(info.get("current") or "")}
    rest = sorted((r for r in info.get("releases") or [] if r["id"] not in safe), key=lambda r: not r.get("good"))
    room = max(0, keep - len(safe - {""}))
    return [r["id"] for r in rest[room:]]


#: What a report shows of a boot: the part of its receipt without log facts and checks.
BRIEF = (
    "release", "profile", "time", "passed", "class", "msg", "seconds", "pool", "measured", "drift", "version", "attention_backend", "kv_cache_dtype", "models",
)  # fmt: skip
BRIEF_OF_RANK = ("rank", "host", "stages", "memory", "memory_series", "lost", "start_error")


def brief(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a receipt that a report shows. A value that is null or missing is left out, and the models are their names."""
    out = {key: receipt[key] for key in BRIEF if receipt.get(key) is not None}
    ranks = receipt.get("ranks")
    out["ranks"] = [
        {key: each[key] for key in BRIEF_OF_RANK if each.get(key) is not None} for each in (ranks if isinstance(ranks, list) else []) if isinstance(each, dict)
    ]
    models = out.get("models")
    out["models"] = [str(each.get("id") if isinstance(each, dict) else each) for each in (models if isinstance(models, list) else [])][:4]
    return out


# --- Write a release of a serving group on a rank's node, its receipt, and the link to the current one.

COMPOSE = "compose.yaml"
SECRETS = "secrets.env"
RECEIPT = "receipt.json"
DERIVED = ("caches", "inputs", "release")  # of release.json
ROLLBACK = "rollback.json"  # in the folder of the group: from which release to which it was rolled back last


def found_files(path: str) -> tuple[str | None, int]:
    """Return a file's text and mode; None if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(), stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
    except FileNotFoundError:
        return None, 0


def differences(folder: str, wanted: dict[str, tuple[str, int]]) -> list[tuple[FileChange, int]]:
    """Return the files to write in their order, the Compose file last, each with its present mode."""
    out = []
    for name in sorted(wanted, key=lambda each: (each == COMPOSE, each)):
        text, mode = wanted[name]
        path = os.path.join(folder, name)
        before, before_mode = found_files(path)
        if before != text or before_mode != mode:
            out.append((FileChange(path, before, text, mode), before_mode))
    return out


def diff_of(change: FileChange, before_mode: int, current: str = "") -> dict[str, str]:
    """Return one entry of Ansible's list of differences; of the secrets only that they differ. A new file is compared with that of the current release."""
    if os.path.basename(change.path) == SECRETS:
        return change._replace(before=change.before and "(other secrets)\n", after="(secrets)\n").diff()
    if not change.changed:
        return change._replace(before=f"mode {before_mode:04o}\n", after=f"mode {change.mode:04o}\n").diff()
    path = os.path.join(current, os.path.basename(change.path))
    before = found_files(path)[0] if change.before is None and current else None
    if before is None:
        return change.diff()
    old, new = (os.path.basename(os.path.dirname(os.path.realpath(each))) for each in (path, change.path))
    shown = change._replace(before=_without_derived(path, before.replace(old, new)), after=_without_derived(path, change.after or ""))
    return {**shown.diff(), "before_header": path}


def _without_derived(path: str, text: str) -> str:
    """Return a file of a release without what follows from the rest of it: it would hide the change in a difference of two releases."""
    if os.path.basename(path) != "release.json" or not readable(text):
        return text
    return json.dumps({key: value for key, value in loads(text).items() if key not in DERIVED}, indent=4, sort_keys=True) + "\n"


def readable(text: str | None) -> bool:
    """Tell whether a receipt's text can be read."""
    try:
        return text is not None and isinstance(loads(text), dict)
    except ValueError:
        return False


def write_release(change: FileChange) -> None:
    """Write a file with its mode. It is never readable by more users than this mode allows. Raises OSError."""
    Node().apply(change, keep_mode=False)


def write_receipt(path: str, receipt: Mapping[str, Any]) -> None:
    """Write a receipt over an older one. Raises OSError."""
    write_release(FileChange(path, found_files(path)[0], json.dumps(receipt, indent=4, sort_keys=True) + "\n", 0o640))


def point_current(link: str, target: str) -> None:
    """Make a link, atomically over an older one. Raises OSError if a folder is there."""
    temporary = f"{link}.new-{os.getpid()}"
    os.symlink(target, temporary)
    try:
        os.replace(temporary, link)
    except OSError:
        os.unlink(temporary)
        raise


def record(folder: str, release: str, receipt: Mapping[str, Any]) -> None:
    """Keep a release's receipt in a group's folder, and make it the current release. Raises OSError."""
    path = os.path.join(folder, "releases", release)
    os.makedirs(path, mode=0o750, exist_ok=True)
    write_receipt(os.path.join(path, RECEIPT), receipt)
    link, target = os.path.join(folder, "current"), os.path.join("releases", release)
    if not os.path.islink(link) or os.readlink(link) != target:
        point_current(link, target)


def record_rollback(folder: str, names: Mapping[str, str]) -> None:
    """Keep from which release to which a group was rolled back, in its folder. Raises OSError."""
    path = os.path.join(folder, ROLLBACK)
    write_release(FileChange(path, found_files(path)[0], json.dumps(names, indent=4, sort_keys=True) + "\n", 0o640))
