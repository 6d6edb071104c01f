# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: whether two nodes have the same image, and what to do if not. Pure.

An *info* is what the image_info module returns for a node: ``reference``, ``exists``, ``id``, ``repo_digests`` (``name@sha256:...``), ``layers``
(diff ids, bottom first), ``fingerprint``, ``size`` (bytes), ``store`` (``classic`` or ``containerd``), ``architecture``, ``build`` (the hash of the
build context, from the image's label), ``free_bytes`` (at the engine's data), ``served`` (the fingerprint that this node's caches belong to, or "").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BUILD_LABEL = "gb10.cluster.build"
GIB = 1 << 30
# What a container does with the image; the rest of a config (build host, history, parent image) differs between stores and rebuilds.
STABLE = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "OnBuild", "Shell", "StopSignal", "User", "Volumes", "WorkingDir")


class ImageError(ValueError):
    """An image is not available or not the same. The text is a sentence for the user."""


def fingerprint_of(image: Mapping[str, Any]) -> str:
    """Return a SHA-256 over what an image holds and does, from the Docker Engine's inspection of it.

    It covers the uncompressed content of the layers in order and the stable part of the configuration. Engines with other stores compute the same one.
    """
    config = image.get("Config") or {}
    stable = {key: config[key] for key in STABLE if config.get(key)}
    layers = list((image.get("RootFS") or {}).get("Layers") or [])
    text = json.dumps({"layers": layers, "config": stable, "architecture": str(image.get("Architecture")), "os": str(image.get("Os"))}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digests(info: Mapping[str, Any]) -> set[str]:
    """Return the repository digests of an image without the names."""
    return {str(item).rsplit("@", 1)[-1] for item in info.get("repo_digests") or []}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return what proves that two nodes have the same image (`repository digest`, `image id`, `content fingerprint`), or an empty string."""
    return prove((one, other))[0]


def prove(infos: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return (kind, value) of the strongest proof that holds for all ranks; empty strings if none does."""
    if not infos or not all(info.get("exists") for info in infos):
        return "", ""
    common = set.intersection(*(digests(info) for info in infos))
    if common:
        return "repository digest", sorted(common)[0]
    for kind, key in (("image id", "id"), ("content fingerprint", "fingerprint")):
        values = {str(info[key]) for info in infos}
        if len(values) == 1:
            return kind, values.pop()
    return "", ""


def fits(info: Mapping[str, Any], digest: str, build: str, loaded: bool = False) -> bool:
    """Return whether a node has the required image, judged from this node alone. If `loaded`, an image that this collection did not build fits too."""
    if not info.get("exists"):
        return False
    if build and info.get("build") != build and not (loaded and not info.get("build")):
        return False
    return not digest or digest in digests(info) or info["id"] == digest


def why_unequal(host: str, info: Mapping[str, Any], source: str, base: Mapping[str, Any]) -> str:
    """Return one sentence on how a rank's image differs from the source's."""
    if not info.get("exists"):
        return f"{host} has no {base['reference']}"
    if info["architecture"] != base["architecture"]:
        return f"{host} has {info['reference']} for {info['architecture']}, {source} for {base['architecture']}"
    differ = sum(1 for a, b in zip(info["layers"], base["layers"]) if a != b) + abs(len(info["layers"]) - len(base["layers"]))
    what = f"{differ} of {len(base['layers'])} layers differ" if differ else "the layers are equal and the configuration differs"
    return f"{host} has {info['id'][7:19]} under {info['reference']}, {source} has {base['id'][7:19]} ({what})"


def _later_sends(hosts: Sequence[str], reference: str, rank: int, good: Sequence[bool], build: str) -> list[str]:
    """Return by rank why it will receive the image from `rank`. A rank that has what is pulled keeps it. Two builds are never the same image."""
    keep = [index == rank or (good[index] and not build) for index in range(len(hosts))]
    return ["" if keep[index] else f"{host} gets {reference} from {hosts[rank]} when it is available there" for index, host in enumerate(hosts)]


def _unavailable(info: Mapping[str, Any], host: str, digest: str) -> str:
    """Return why a rank cannot get the image: it is neither there nor in a registry, and nothing is known to build it from."""
    reference = info["reference"]
    if info.get("exists") and digest:
        found = f"{reference} on {host} is not the pinned {digest[:19]}"
    else:
        found = f"no rank has {reference}, and according to the profile no registry has it"
    return f"{found}: load it on {host} (docker load), or set image_build_context to a folder with its Dockerfile"


def _too_small(hosts: Sequence[str], infos: Sequence[Mapping[str, Any]], obtain: Sequence[str], size_gib: float | None) -> str:
    """Return which rank has not enough space for what it pulls or builds; empty if none is known to."""
    for host, info, how in zip(hosts, infos, obtain):
        free = info.get("free_bytes", 0) / GIB
        if how and size_gib and free < size_gib:
            need = f"{info['reference']} needs {size_gib:g} GiB as published"
            return f"{host} has {free:.1f} GiB free in Docker's data folder, and {need}: free space there (`docker system df` shows what is in it)"
    return ""


def plan(
    hosts: Sequence[str],
    infos: Sequence[Mapping[str, Any]],
    distribution: str = "auto",
    source: str = "auto",
    pull: bool = True,
    digest: str = "",
    build: str = "",
    loaded: bool = False,
    size_gib: float | None = None,
) -> dict[str, Any]:
    """Return what has to be done until all ranks have the required image.

    :param distribution: ``auto`` (the first rank that has it sends it, else the head pulls or builds it), ``pull`` (each rank by itself), ``send``
        (never ask a registry or build).
    :param pull: whether a registry has it; ``digest`` pins it; ``build`` is the hash of the build, empty when nothing can be built.
    :param loaded: whether an image without the label of a build is accepted in place of a build.
    :param size_gib: the published size of the image; it must be free where the image is pulled or built.
    :returns: ``source``, ``source_rank``, ``obtain`` (by rank: ``pull``, ``build`` or ""), ``send`` (by rank why it receives the image, or ""; if the
        source obtains the image first, an estimate: plan again after that), ``equal``, ``proof`` (kind, value), ``complaint`` (why nothing can be
        done), ``why`` (sentences), ``changed`` (caches belong to another image).
    :raises ImageError: the source is not a host of the group.
    """
    reference = str(infos[0]["reference"])
    good = [fits(info, digest, build, loaded) for info in infos]
    # An image that was saved and loaded has no digest. It counts if it is the same as one that has it.
    for rank, info in enumerate(infos):
        if not good[rank] and info.get("exists") and not build:
            good[rank] = any(good[other] and same(infos[other], info) for other in range(len(infos)))
    wanted = list(hosts).index(source) if source in hosts else -1
    if source not in ("auto", "") and wanted < 0:
        raise ImageError(f"image_source is {source}, which is not a host of this serving group: set one of {', '.join(hosts)}, or auto")
    rank = wanted if wanted >= 0 else (good.index(True) if True in good else 0)
    out: dict[str, Any] = {
        "source": hosts[rank], "source_rank": rank, "obtain": [""] * len(hosts), "send": [""] * len(hosts), "equal": False, "proof": ["", ""],
        "complaint": "", "why": [], "changed": False, "fingerprint": "", "reference": reference,
    }  # fmt: skip
    if distribution == "pull":
        lacking = [index for index, fine in enumerate(good) if not fine or (good[rank] and not same(infos[index], infos[rank]))]
        if lacking and not pull:
            out["complaint"] = f"image_distribution is pull, but according to the profile no registry has {reference}: set it to auto"
        out["obtain"] = ["pull" if index in lacking and pull else "" for index in range(len(hosts))]
    elif not good[rank]:
        if distribution == "send":
            out["complaint"] = f"no rank has the required {reference}, and image_distribution is send: load it on {hosts[rank]} (docker load), or set auto"
        elif build or pull:
            out["obtain"][rank] = "build" if build else "pull"
            out["send"] = _later_sends(hosts, reference, rank, good, build)
        else:
            out["complaint"] = _unavailable(infos[rank], hosts[rank], digest)
    out["complaint"] = out["complaint"] or _too_small(hosts, infos, out["obtain"], size_gib)
    if out["complaint"] or any(out["obtain"]):
        return out
    base = infos[rank]
    out["fingerprint"] = base["fingerprint"]
    for index, host in enumerate(hosts):
        if index != rank and not same(infos[index], base):
            out["send"][index] = why_unequal(host, infos[index], hosts[rank], base)
    out["why"] = [why for why in out["send"] if why]
    out["proof"] = list(prove(infos))
    out["equal"] = not any(out["send"]) and bool(out["proof"][0])
    out["changed"] = any(info.get("served") and info["served"] != base["fingerprint"] for info in infos)
    return out


def stale(imported: Sequence[Mapping[str, Any]], current: Iterable[str], keep: int) -> list[str]:
    """Return the ids of imported images that are not kept: those after the newest `keep`, never a current one.

    :param imported: ``id`` and ``at`` (seconds since the epoch) of each; ``current``: ids that a serving group uses.
    """
    using = set(current)
    newest = sorted(imported, key=lambda item: -float(item["at"]))
    kept = [item for item in newest if item["id"] in using]
    for item in newest:
        if len(kept) < keep and item not in kept:
            kept.append(item)
    return [str(item["id"]) for item in newest if item not in kept]
