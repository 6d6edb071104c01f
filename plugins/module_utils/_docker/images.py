# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Images of a Docker Engine over its socket: read, save into files by layer, load from such files. Streams; needs no second copy."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import posixpath
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, image_plan
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DEFAULT_SOCKET, DockerError, message_of

CHUNK = 1 << 22
WHOLE = "image.tar"
_HELP = ": look at journalctl -u docker and for a full disk on that node, and run again"


def inspect_image(reference: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any] | None:
    """Return the engine's inspection of an image, None where it has none of that name. Raises DockerError."""
    try:
        return dict(json.loads(client.get(f"/images/{quote(reference, safe='')}/json", socket_path=socket_path)))
    except DockerError as error:
        if error.status == 404:
            return None
        raise


def engine(socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return the engine's `store` (classic or containerd), `root` (where its data lie), `version` and `driver`. Raises DockerError."""
    info = json.loads(client.get("/info", socket_path=socket_path))
    status = {str(row[0]): str(row[1]) for row in info.get("DriverStatus") or [] if len(row) > 1}
    containerd = "containerd" in status.get("driver-type", "")
    return {"store": "containerd" if containerd else "classic", "root": info["DockerRootDir"], "version": info["ServerVersion"], "driver": info["Driver"]}


def all_chains(socket_path: str = DEFAULT_SOCKET) -> list[str]:
    """Return the chain ids of the layers of all images that have a name. Raises DockerError."""
    chains: set[str] = set()
    for image in json.loads(client.get("/images/json", socket_path=socket_path)):
        found = inspect_image(str(image["Id"]), socket_path)
        if found:
            chains.update(image_plan.chain_ids((found.get("RootFS") or {}).get("Layers") or []))
    return sorted(chains)


def info(reference: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return an info as :mod:`image_plan` describes it, without `served`. Raises DockerError."""
    about = engine(socket_path)
    table = os.statvfs(about["root"]) if os.path.isdir(about["root"]) else os.statvfs("/")
    out: dict[str, Any] = {
        "reference": reference, "exists": False, "id": "", "repo_digests": [], "layers": [], "fingerprint": "", "size": 0, "architecture": "", "build": "",
        "created": "", "store": about["store"], "engine": about["version"], "driver": about["driver"], "free_bytes": table.f_bavail * table.f_frsize,
        "chains": all_chains(socket_path) if about["store"] == "classic" else [],
    }  # fmt: skip
    image = inspect_image(reference, socket_path)
    if image is None:
        return out
    config = image.get("Config") or {}
    layers = (image.get("RootFS") or {}).get("Layers") or []
    architecture = "/".join(item for item in (image.get("Architecture"), image.get("Variant")) if item)
    out.update(
        exists=True,
        id=image["Id"],
        repo_digests=sorted(image.get("RepoDigests") or []),
        layers=layers,
        size=int(image.get("Size") or 0),
        architecture=architecture,
        fingerprint=image_plan.fingerprint_of(image),
        build=str((config.get("Labels") or {}).get(image_plan.BUILD_LABEL, "")),
        created=str(image.get("Created") or ""),
    )
    return out


def _connect(socket_path: str) -> http.client.HTTPConnection:
    return client.connect(socket_path, 600.0)


def _file(reader: Any, where: str) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    os.makedirs(os.path.dirname(where), mode=0o700, exist_ok=True)
    with open(where, "wb") as sink:
        while True:
            data = reader.read(CHUNK)
            if not data:
                break
            digest.update(data)
            sink.write(data)
            size += len(data)
    return {"size": size, "sha256": digest.hexdigest(), "mtime_ns": os.stat(where).st_mtime_ns}


def save(reference: str, folder: str, layers: Sequence[str] | None, socket_path: str = DEFAULT_SOCKET) -> dict[str, dict[str, Any]]:
    """Save an image into a folder: manifest.json, the config and only these layers (diff ids), or all of it as one archive with None.

    Returns path -> size, sha256, mtime_ns, and `layer` (its diff id) for a layer. Raises DockerError, OSError.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    connection = _connect(socket_path)
    try:
        connection.request("GET", f"{client.api(socket_path)}/images/{quote(reference, safe='')}/get")
        response = connection.getresponse()
        if response.status != 200:
            raise DockerError(f"the Docker Engine cannot save {reference}: {message_of(response.read())}{_HELP}", response.status)
        if layers is None:
            return {WHOLE: _file(response, os.path.join(folder, WHOLE))}
        return _save_layers(response, reference, folder, set(layers))
    except (http.client.HTTPException, tarfile.TarError) as error:
        raise DockerError(f"the Docker Engine broke off while it saved {reference} ({error}): look at journalctl -u docker, and run again") from error
    finally:
        connection.close()


def _save_layers(response: Any, reference: str, folder: str, wanted: set[str]) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] = {}
    with tarfile.open(fileobj=response, mode="r|", bufsize=CHUNK) as archive:
        for member in archive:
            name = posixpath.normpath(member.name)
            if not member.isfile() or name.startswith(("/", "..")):
                continue
            reader = archive.extractfile(member)
            if reader is None:
                continue
            if name == "manifest.json":
                manifest = json.loads(reader.read())[0]
                continue
            stem = name.rsplit("/", 1)[-1]
            # Since Docker 25 a layer's name is its diff id; what is small may be the config, and costs nothing.
            if f"sha256:{stem}" in wanted or member.size < 1 << 20 or not name.startswith("blobs/"):
                out[name] = _file(reader, os.path.join(folder, name))
    config = str(manifest.get("Config", ""))
    paths = [str(path) for path in manifest.get("Layers", [])]
    if config not in out:
        raise DockerError(f"the Docker Engine saved {reference} without its configuration: set image_distribution to pull, or load it on each node")
    diffs = json.loads(_text(os.path.join(folder, config)))["rootfs"]["diff_ids"]
    layer_of = dict(zip(paths, diffs))
    for name in list(out):
        if name != config and layer_of.get(name) not in wanted:
            os.unlink(os.path.join(folder, name))
            del out[name]
        elif name in layer_of:
            out[name]["layer"] = layer_of[name]
    lost = [diff for path, diff in layer_of.items() if diff in wanted and path not in out]
    if lost:
        raise DockerError(f"the Docker Engine saved {reference} without the layer {lost[0][:19]}: set image_distribution to pull, or load it on each node")
    where = os.path.join(folder, "manifest.json")
    text = image_plan.reduced_manifest(manifest, reference).encode()
    with open(where, "wb") as sink:
        sink.write(text)
    out["manifest.json"] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest(), "mtime_ns": os.stat(where).st_mtime_ns}
    return out


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as handle:
        return handle.read()


def archive_of(folder: str, names: Iterable[str]) -> Iterator[bytes]:
    """Yield a tar archive of these files, manifest.json and small ones first."""
    for name in sorted(names, key=lambda item: (item != "manifest.json", os.path.getsize(os.path.join(folder, item)), item)):
        where = os.path.join(folder, name)
        header = tarfile.TarInfo(name)
        header.size, header.mode = os.path.getsize(where), 0o644
        yield header.tobuf(tarfile.PAX_FORMAT)
        with open(where, "rb") as source:
            while True:
                data = source.read(CHUNK)
                if not data:
                    break
                yield data
        yield b"\0" * (-header.size % 512)
    yield b"\0" * 1024


def _pieces(path: str) -> Iterator[bytes]:
    with open(path, "rb") as source:
        while True:
            data = source.read(CHUNK)
            if not data:
                return
            yield data


def load(folder: str, names: Sequence[str], socket_path: str = DEFAULT_SOCKET) -> str:
    """Load what :func:`save` wrote; return the engine's words. Raises DockerError, OSError."""
    body = _pieces(os.path.join(folder, WHOLE)) if WHOLE in names else archive_of(folder, names)
    connection = _connect(socket_path)
    try:
        connection.request(
            "POST",
            f"{client.api(socket_path)}/images/load?quiet=1",
            body=body,
            headers={"Content-Type": "application/x-tar", "Transfer-Encoding": "chunked"},
            encode_chunked=True,
        )
        response = connection.getresponse()
        text = response.read()
    except (BrokenPipeError, ConnectionResetError, http.client.HTTPException) as error:
        raise DockerError(f"the Docker Engine broke off while it loaded the image ({error}): look at journalctl -u docker, and run again") from error
    finally:
        connection.close()
    said = []
    for line in text.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):
            row: Mapping[str, Any] = json.loads(line)
            if row.get("error"):
                raise DockerError(f"the Docker Engine refused the image: {row['error']}{_HELP}")
            said.append(str(row.get("stream", "")).strip())
    if response.status != 200:
        raise DockerError(f"the Docker Engine refused the image: {message_of(text)}{_HELP}", response.status)
    return "; ".join(item for item in said if item)


def call(method: str, path: str, socket_path: str = DEFAULT_SOCKET) -> tuple[int, str]:
    """Send a request without a body; return the status and the engine's message. Raises DockerError when it does not answer."""
    connection = _connect(socket_path)
    try:
        connection.request(method, client.api(socket_path) + path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise client.silence(error, socket_path) from error
    finally:
        connection.close()
    return response.status, message_of(body)
