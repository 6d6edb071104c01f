# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images: names, whether two nodes have the same one and what to do if not, inspection, what was imported, the build and its log, the layer of mods."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import masked
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DEFAULT_SOCKET

# --- The form of the name of a container image.

# As Docker reads it: a registry with a dot or a port, names in lower case, a tag.
_NAME = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
IMAGE = rf"(?:(?:localhost|[\w-]+(?:\.[\w-]+)+|[\w-]+(?=:\d+/))(?::\d+)?/)?{_NAME}(?:/{_NAME})*(?::\w[\w.-]{{0,127}})?"
EXPECTED = "an image name in lower case like registry/name:tag"
PINNED = f"{EXPECTED}, or with @sha256: and 64 hexadecimal digits at its end"


# --- Whether two nodes have the same image, and what to do if not.
# An *info* is what the image_info module returns for a node: ``reference``, ``exists``, ``id``, ``repo_digests`` (``name@sha256:...``), ``fingerprint``,
# ``architecture``, ``build`` (the hash of the build context, from the image's label), ``free_bytes`` (at the engine's data).

BUILD_LABEL = "gb10.cluster.build"
GIB = 1 << 30
# What a container does with the image; the rest of a config (build host, history, parent image) differs between stores and rebuilds.
STABLE = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "OnBuild", "Shell", "StopSignal", "User", "Volumes", "WorkingDir")


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


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two nodes have the same image. Equal ids and equal digests of one architecture mean equal fingerprints, but not the reverse."""
    return bool(one.get("exists") and other.get("exists") and one["fingerprint"] == other["fingerprint"])


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
    mine, theirs = (f"{each['id'][7:19]} for {each['architecture']}" for each in (info, base))
    return f"{host} has {mine} under {info['reference']}, {source} has {theirs}"


def _unavailable(info: Mapping[str, Any], host: str, digest: str) -> str:
    """Return why a rank cannot get the image: it is neither there nor in a registry, and nothing is known to build it from."""
    found = f"no rank has {info['reference']}, and according to the profile no registry has it"
    if info.get("exists") and digest:
        found = f"{info['reference']} on {host} is not the pinned {digest[:19]}"
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
    pull: bool = True,
    digest: str = "",
    build: str = "",
    loaded: bool = False,
    size_gib: float | None = None,
    obtained: bool = False,
) -> dict[str, Any]:
    """Return what has to be done until all ranks have the required image: the first rank that has it sends it, else the head pulls or builds it.

    :param pull: whether a registry has it; ``digest`` pins it; ``build`` is the hash of the build, empty when nothing can be built.
    :param loaded: whether an image without the label of a build is accepted in place of a build.
    :param size_gib: the published size of the image; it must be free where the image is pulled or built.
    :param obtained: whether that has been done, so that it is not done again.
    :returns: ``source``, ``source_rank``, ``reference``, ``obtain`` (by rank: ``pull``, ``build`` or ""), ``send`` (by rank why it receives the image,
        or ""; if the source obtains the image first, an estimate: plan again after that), ``equal``, ``fingerprint`` (of the source's image),
        ``complaint`` (why nothing can be done), ``why`` (sentences).
    """
    reference, ranks = str(infos[0]["reference"]), range(len(hosts))
    good = [fits(info, digest, build, loaded) for info in infos]
    if not build:  # an image that was saved and loaded has no digest. It counts if it is the same as one that has it.
        good = [good[rank] or any(good[other] and same(infos[other], infos[rank]) for other in ranks) for rank in ranks]
    rank = good.index(True) if True in good else 0
    base = infos[rank]
    out: dict[str, Any] = {
        "source": hosts[rank], "source_rank": rank, "obtain": [""] * len(hosts), "send": [""] * len(hosts), "equal": False, "complaint": "", "why": [],
        "fingerprint": "", "reference": reference,
    }  # fmt: skip
    if not good[rank]:
        if obtained:
            out["complaint"] = f"{hosts[rank]} has pulled or built {reference}, and it is not the required image: check image.digest of the profile"
        elif build or pull:
            out["obtain"][rank] = "build" if build else "pull"
            # A rank that has what is pulled keeps it. Two builds are never the same image.
            later = [index for index in ranks if index != rank and (build or not good[index])]
            out["send"] = [f"{hosts[index]} gets {reference} from {hosts[rank]} when it is available there" if index in later else "" for index in ranks]
        else:
            out["complaint"] = _unavailable(base, hosts[rank], digest)
    out["complaint"] = out["complaint"] or _too_small(hosts, infos, out["obtain"], size_gib)
    if out["complaint"] or any(out["obtain"]):
        return out
    out["send"] = ["" if index == rank or same(infos[index], base) else why_unequal(hosts[index], infos[index], hosts[rank], base) for index in ranks]
    out["why"] = [why for why in out["send"] if why]
    return {**out, "equal": not out["why"], "fingerprint": base["fingerprint"]}


# --- Images of a Docker Engine: inspect, record, remove.

RECORD = "image"  # "imported": id, reference and time of each, oldest first


def inspect_image(reference: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any] | None:
    """Return the engine's inspection of an image, None if it has no image of that name. Raises DockerError."""
    return docker_api.look_up(f"/images/{quote(reference, safe='')}/json", socket_path)


def info(reference: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return an info as it is described above. Raises DockerError."""
    root = docker_api.parsed(docker_api.get("/info", socket_path=socket_path), socket_path)["DockerRootDir"]
    table = os.statvfs(root if os.path.isdir(root) else "/")
    found = inspect_image(reference, socket_path) or {}
    labels = (found.get("Config") or {}).get("Labels") or {}
    return {
        "reference": reference,
        "exists": bool(found),
        "id": str(found.get("Id") or ""),
        "repo_digests": sorted(found.get("RepoDigests") or []),
        "fingerprint": fingerprint_of(found) if found else "",
        "architecture": "/".join(item for item in (found.get("Architecture"), found.get("Variant")) if item),
        "build": str(labels.get(BUILD_LABEL, "")),
        "free_bytes": table.f_bavail * table.f_frsize,
    }


def record_import(node: Node, image: str, reference: str, keep: int) -> tuple[list[str], list[str]]:
    """Record an image that has come to this node, and remove older ones; see remove_imported(). `keep` counts it; 0 keeps all."""
    imported = [item for item in node.load_record(RECORD).get("imported", []) if item["id"] != image]
    imported.append({"id": image, "reference": reference, "at": int(time.time())})
    node.save_record(RECORD, {"imported": imported})
    return remove_imported(node, keep) if keep > 0 else ([], [])


def remove_imported(node: Node, keep: int = 0, check: bool = False) -> tuple[list[str], list[str]]:
    """Remove imported images that no container uses, but the newest `keep`; return (ids, sentences on what stays). Raises DockerError, RecordError."""
    imported = node.load_record(RECORD).get("imported", [])
    gone = imported[: max(0, len(imported) - keep)]
    users = {str(each.get("ImageID")): str((each.get("Names") or [each.get("Id")])[0]).lstrip("/") for each in docker_api.list_containers([])} if gone else {}
    removed, left, kept = [], [], imported[len(gone) :]
    for item in reversed(gone):
        image, reason = inspect_image(item["id"]), ""
        if image and item["id"] in users:
            reason = f"the container {users[item['id']]} uses it"
        elif image and not check:
            rc, _out, err = node.run(["docker", "image", "rm", *(image.get("RepoTags") or [item["id"]])])
            reason = (err.strip() or "docker image rm failed") if rc else ""
        if reason:
            left.append(f"{item['reference']} ({item['id'][7:19]}) stays: {reason}")
            kept.insert(0, item)
        elif image:
            removed.append(item["id"])
    if not check and kept != imported:
        node.save_record(RECORD, {"imported": kept} if kept else {})
    return removed, left


# --- The build of an image as a docker command, its progress, and the end of the log of a build that failed.

BUILD_LINES = 8  # of the end of a failed build
# BuildKit writes `#5 [2/9] RUN …` or `[base 2/9]`, the classic builder `Step 2/9 : RUN …`.
_STEP = re.compile(r"^(?:#\d+ \[(?:[^\]\s]+ +)?|Step )(\d+)/(\d+)(?:\] | : )(.*)$", re.MULTILINE)
# What a builder adds: rules, an excerpt of the Dockerfile, the names of steps and of temporary containers.
_NOISE = re.compile(
    r"-{3,}|Step \d+/| > |\s*\d+ \| |[\w./-]*:\d+$|Removing intermediate|Sending build context| ?---> |DEPRECATED|\s+(?:BuildKit is|environment-|Install the)"
)


def build_script(params: Mapping[str, Any]) -> str:
    """Return the script that builds an image, with BuildKit if the node has it. One that fails leaves the image of this name as it is.

    :param params: ``reference``, ``path`` (the folder with the Dockerfile), ``build_args``, ``label``.
    """
    argv = ["docker", "build", "--network", "host", "--label", f"{BUILD_LABEL}={params['label']}", "--tag", params["reference"]]
    for key, value in params["build_args"].items():
        argv += ["--build-arg", f"{key}={value}"]
    kit = "docker buildx version >/dev/null 2>&1 && export DOCKER_BUILDKIT=1 BUILDKIT_PROGRESS=plain || export DOCKER_BUILDKIT=0"
    return f"{kit}\n{shlex.join([*argv, params['path']])}"


def build_share(log: str) -> int | None:
    """Return how many per cent of a build's steps have begun; None if not known."""
    done = [(int(number) - 1) / int(total) for number, total, _what in _STEP.findall(log) if int(total)]
    return min(int(100 * max(done)), 100) if done else None


def _clean(line: str, most: int = 240) -> str:
    """Return one line without secrets and control characters. A long one keeps its end, where a builder that repeats the command has the exit code."""
    text = "".join(each for each in str(masked(" ".join(line.split()))) if each.isprintable())
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


def build_failure(log: str) -> str:
    """Return the last lines of the log of a failed build, and the remedy."""
    lines = [_clean(line) for line in log.splitlines()[-400:] if line.strip() and not _NOISE.match(line)][-BUILD_LINES:] or ["no output"]
    return "\n".join([*lines, "Remedy: correct the Dockerfile of image.build, or the mod, and run again: finished steps are kept"])


# --- The image layer of a profile's mods: its Dockerfile, and its name.
# A mod is applied as launch-cluster.sh of eugr/spark-vllm-docker applies it to a container (read 2026-11-26): the folder is /workspace/mods/<name>, where
# recipes name its files, ``run.sh`` runs in it, and WORKSPACE_DIR is the working directory of the image.

MODS_PLACE = "/workspace/mods"
_SOURCES = "/opt/gb10-source"
# Where vLLM is installed, without an import of it. Images of the sources have it in an environment that need not be in PATH.
_SITE = "import importlib.util as u, os; print(os.path.dirname(os.path.dirname(u.find_spec('vllm').origin)))"
_PYTHONS = "/opt/env/bin/python /opt/venv/bin/python python3"


def is_patch(path: str) -> bool:
    """Report whether a mod is one patch; it is a folder otherwise."""
    return path.endswith((".patch", ".diff"))


def mod_names(mods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each mod in the build context, in order."""
    return [f"{number}-{_name(mod)}" for number, mod in enumerate(mods, 1)]


def _name(mod: Mapping[str, Any]) -> str:
    return re.sub(r"[^\w.-]", "-", mod["path"].rstrip("/").rpartition("/")[2])


def _is_remote(mod: Mapping[str, Any]) -> bool:
    return bool(mod["repository"])


def _archive(mod: Mapping[str, Any]) -> str:
    return f"{mod['repository'].rstrip('/').removesuffix('.git')}/archive/{mod['commit']}.tar.gz"


def mods_dockerfile(base: str, mods: Sequence[Mapping[str, Any]]) -> str:
    """Return the Dockerfile that applies mods, in order, over an image.

    :param base: the image, as ``name@sha256:...`` or ``name:tag``.
    :param mods: ``repository``, ``commit`` and ``path`` of each. One without a repository is in the build context under its name of :func:`mod_names`.
    """
    lines: list[str] = []
    stages = {archive: f"source-{number}" for number, archive in enumerate(dict.fromkeys(map(_archive, filter(_is_remote, mods))), 1)}
    for archive, stage in stages.items():
        unpack = f"mkdir {_SOURCES} && tar -xzf {_SOURCES}.tar.gz -C {_SOURCES} --strip-components=1"
        lines += [f"FROM {base} AS {stage}", "USER root", f"ADD {archive} {_SOURCES}.tar.gz", f"RUN {unpack}"]
    lines.append(f"FROM {base}")
    for mod, context_name in zip(mods, mod_names(mods)):
        there, copy = f"{MODS_PLACE}/{_name(mod)}", f"COPY {context_name}"
        if _is_remote(mod):
            copy = f"COPY --from={stages[_archive(mod)]} {_SOURCES}/{mod['path'].strip('/')}"
        run = f"cd {there} && bash run.sh"
        if is_patch(mod["path"]):
            run = f'for python in {_PYTHONS}; do site=$($python -c "{_SITE}" 2>/dev/null) && break; done; '
            run += f'cd "${{site:?no Python of the image has vLLM}}" && patch -p1 --batch -i {there}'
        lines += [f"{copy} {there}", f'RUN export WORKSPACE_DIR="$PWD"; {run}']
    return "\n".join([*lines, ""])


def mods_reference(base: str, mark: str) -> str:
    """Return the name of the image with the mods: that of its base without the registry, and with 12 digits of the hash of the mods."""
    registry, slash, rest = base.partition("/")
    name, _colon, tag = (rest if slash and re.search(r"[.:]|^localhost$", registry) else base).partition(":")
    return f"{name}:{(tag or 'latest')[:110]}-mods-{mark[:12]}"
