# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: whether two nodes have the same image, and what to do where they have not, pure.

An *info* is what the image_info module returns for a node: ``reference``, ``exists``, ``id``, ``repo_digests`` (``name@sha256:...``), ``layers``
(diff ids, bottom first), ``fingerprint``, ``size`` (bytes), ``store`` (``classic`` or ``containerd``), ``architecture``, ``build`` (the hash of the
build context, from the image's label), ``chains`` (chain ids of all layers that the engine has), ``free_bytes`` (at the engine's data), ``served``
(the fingerprint that this node's caches belong to, or "").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BUILD_LABEL = "gb10.cluster.build"
# What a container does with the image; the rest of a config (build host, history, parent image) differs between stores and rebuilds.
STABLE = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "OnBuild", "Shell", "StopSignal", "User", "Volumes", "WorkingDir")


class ImageError(ValueError):
    """An image cannot be had or is not the same; the text is a sentence for the user."""


def fingerprint(layers: Sequence[str], config: Mapping[str, Any], architecture: str, system: str) -> str:
    """Return a SHA-256 over what an image holds and does: its layers' uncompressed content in order, and the stable part of its config."""
    stable = {key: config[key] for key in STABLE if config.get(key)}
    text = json.dumps({"layers": list(layers), "config": stable, "architecture": architecture, "os": system}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint_of(image: Mapping[str, Any]) -> str:
    """Return the fingerprint of an image from the Docker Engine's inspection of it. Engines with other stores compute the same one."""
    layers = (image.get("RootFS") or {}).get("Layers") or []
    return fingerprint(layers, image.get("Config") or {}, str(image.get("Architecture")), str(image.get("Os")))


def chain_ids(layers: Iterable[str]) -> list[str]:
    """Return the chain id of each layer: what an engine files a layer under, for it depends on all layers below."""
    out: list[str] = []
    for layer in layers:
        out.append("sha256:" + hashlib.sha256(f"{out[-1]} {layer}".encode()).hexdigest() if out else layer)
    return out


def missing_layers(layers: Sequence[str], chains: Iterable[str]) -> list[str]:
    """Return the layers that an engine with these chains lacks."""
    have = set(chains)
    return [layer for layer, chain in zip(layers, chain_ids(layers)) if chain not in have]


def digests(info: Mapping[str, Any]) -> set[str]:
    """Return the repository digests of an image without the names."""
    return {str(item).rsplit("@", 1)[-1] for item in info.get("repo_digests") or []}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return by what two nodes' images are the same (`repository digest`, `image id`, `content fingerprint`), or an empty string."""
    if not one.get("exists") or not other.get("exists"):
        return ""
    if digests(one) & digests(other):
        return "repository digest"
    if one["id"] == other["id"]:
        return "image id"
    return "content fingerprint" if one["fingerprint"] == other["fingerprint"] else ""


def prove(infos: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return (kind, value) of the strongest proof that holds for all ranks; empty strings when none does."""
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


def fits(info: Mapping[str, Any], digest: str, build: str) -> bool:
    """Tell whether a node's image is the wanted one, as far as it can be told from this node alone."""
    if not info.get("exists"):
        return False
    if build and info.get("build") != build:
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


def _sends_to_come(hosts: Sequence[str], infos: Sequence[Mapping[str, Any]], rank: int, build: str, good: Sequence[bool]) -> list[dict[str, Any] | None]:
    """Foretell by rank what will be sent once `rank` has the image. A rank that has what is pulled keeps it; no two builds are the same."""
    out: list[dict[str, Any] | None] = []
    for index, host in enumerate(hosts):
        why = f"{host} gets {infos[index]['reference']} from {hosts[rank]}, once that has it"
        out.append(None if index == rank or (good[index] and not build) else {"layers": [], "whole": False, "why": why})
    return out


def plan(
    hosts: Sequence[str],
    infos: Sequence[Mapping[str, Any]],
    distribution: str = "auto",
    source: str = "auto",
    pull: bool = True,
    digest: str = "",
    build: str = "",
    note: str = "",
) -> dict[str, Any]:
    """Return what has to happen so that all ranks have the same, wanted image.

    :param distribution: ``auto`` (the first rank that has it sends it, else the head pulls or builds it), ``pull`` (each rank by itself), ``send``
        (never ask a registry or build).
    :param pull: whether a registry has it; ``digest`` pins it; ``build`` is the hash of the build context, empty when nothing is to be built.
    :returns: ``source``, ``source_rank``, ``obtain`` (by rank: ``pull``, ``build`` or ""), ``send`` (by rank: ``None`` or ``layers``, ``whole`` and ``why``;
        where the source obtains the image first, a forecast of who will lack it, without layers: plan again once it is there), ``equal``, ``proof``
        (kind, value), ``complaint`` (why nothing can be done), ``why`` (sentences), ``changed`` (caches belong to another image).
    :raises ImageError: a source that is no host of the group.
    """
    reference = str(infos[0]["reference"])
    good = [fits(info, digest, build) for info in infos]
    # A node that got the image by save and load has lost the digest: it counts when it is the same as one that has it.
    for rank, info in enumerate(infos):
        if not good[rank] and info.get("exists") and not build:
            good[rank] = any(good[other] and same(infos[other], info) for other in range(len(infos)))
    wanted = list(hosts).index(source) if source in hosts else -1
    if source not in ("auto", "") and wanted < 0:
        raise ImageError(f"image_source is {source}, which is no host of this serving group: give one of {', '.join(hosts)}, or auto")
    rank = wanted if wanted >= 0 else (good.index(True) if True in good else 0)
    out: dict[str, Any] = {
        "source": hosts[rank], "source_rank": rank, "obtain": ["" for _each in hosts], "send": [None for _each in hosts], "equal": False, "proof": ["", ""],
        "complaint": "", "why": [], "changed": False, "fingerprint": "", "reference": reference,
    }  # fmt: skip
    if distribution == "pull":
        lacking = [index for index, fine in enumerate(good) if not fine or (good[rank] and not same(infos[index], infos[rank]))]
        if lacking and not pull:
            out["complaint"] = f"image_distribution is pull, but the profile says that no registry has {reference}: set it to auto"
        out["obtain"] = ["pull" if index in lacking and pull else "" for index in range(len(hosts))]
    elif not good[rank]:
        if distribution == "send":
            out["complaint"] = f"no rank has {reference} as it is wanted, and image_distribution is send: load it on {hosts[rank]} (docker load), or set auto"
        elif build or pull:
            out["obtain"][rank] = "build" if build else "pull"
            out["send"] = _sends_to_come(hosts, infos, rank, build, good)
        else:
            held = infos[rank].get("exists") and digest
            out["complaint"] = (
                f"{reference} on {hosts[rank]} is not the pinned {digest[:19]}"
                if held
                else f"no rank has {reference}, and the profile says that no registry has it"
            ) + f": load it on {hosts[rank]} (docker load), or set image_build_context to the folder with its Dockerfiles{f' ({note})' if note else ''}"
    if out["complaint"] or any(out["obtain"]):
        return out
    base = infos[rank]
    out["fingerprint"] = base["fingerprint"]
    for index, host in enumerate(hosts):
        if same(infos[index], base) or index == rank:
            continue
        classic = base["store"] == "classic" and infos[index]["store"] == "classic"
        layers = missing_layers(base["layers"], infos[index]["chains"]) if classic else list(base["layers"])
        why = why_unequal(host, infos[index], hosts[rank], base)
        out["send"][index] = {"layers": layers, "whole": not classic, "why": why}
        out["why"].append(why)
    out["proof"] = list(prove(infos))
    out["equal"] = not any(out["send"]) and bool(out["proof"][0])
    out["changed"] = any(info.get("served") and info["served"] != base["fingerprint"] for info in infos)
    return out


def reduced_manifest(manifest: Mapping[str, Any], reference: str) -> str:
    """Return the manifest.json of an archive with fewer layers: an engine opens only the files of layers that it lacks."""
    return json.dumps([{"Config": manifest["Config"], "RepoTags": [reference] if ":" in reference else [], "Layers": list(manifest["Layers"])}])


def stale(brought: Sequence[Mapping[str, Any]], current: Iterable[str], keep: int) -> list[str]:
    """Return the ids of images that this role brought and that the policy gives up: beyond the newest `keep`, never a current one.

    :param brought: ``id`` and ``at`` (seconds since the epoch) of each; ``current``: ids that a serving group uses.
    """
    using = set(current)
    newest = sorted(brought, key=lambda item: -float(item["at"]))
    kept = [item for item in newest if item["id"] in using]
    for item in newest:
        if len(kept) < keep and item not in kept:
            kept.append(item)
    return [str(item["id"]) for item in newest if item not in kept]
