# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Images of a Docker Engine over its socket: inspect, save, remove."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import tarfile
from collections.abc import Sequence
from typing import IO, Any
from urllib.parse import quote

from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, image_plan
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DEFAULT_SOCKET, DockerError, message_of

CHUNK = 1 << 22
SAVE_TIMEOUT = 600.0


def inspect_image(reference: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any] | None:
    """Return the engine's inspection of an image, None if it has no image of that name. Raises DockerError."""
    try:
        return dict(json.loads(client.get(f"/images/{quote(reference, safe='')}/json", socket_path=socket_path)))
    except DockerError as error:
        if error.status == 404:
            return None
        raise


def engine(socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return the engine's `store` (classic or containerd), `root` (folder of its data), `version` and `driver`. Raises DockerError."""
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
    table = os.statvfs(about["root"] if os.path.isdir(about["root"]) else "/")
    image = inspect_image(reference, socket_path)
    found = image or {}
    labels = (found.get("Config") or {}).get("Labels") or {}
    return {
        "reference": reference,
        "exists": image is not None,
        "id": str(found.get("Id") or ""),
        "repo_digests": sorted(found.get("RepoDigests") or []),
        "layers": (found.get("RootFS") or {}).get("Layers") or [],
        "fingerprint": image_plan.fingerprint_of(found) if found else "",
        "size": int(found.get("Size") or 0),
        "architecture": "/".join(item for item in (found.get("Architecture"), found.get("Variant")) if item),
        "build": str(labels.get(image_plan.BUILD_LABEL, "")),
        "created": str(found.get("Created") or ""),
        "store": about["store"],
        "engine": about["version"],
        "driver": about["driver"],
        "free_bytes": table.f_bavail * table.f_frsize,
        "chains": all_chains(socket_path) if about["store"] == "classic" else [],
    }


class _Archive:
    """A file that hashes and counts what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)


def save(reference: str, path: str, skip: Sequence[str] = (), socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Save an image as an archive without these layers (diff ids); return its `size` in bytes and `sha256`. Raises DockerError, OSError.

    An engine with the classic store loads such an archive if it has the layers. Since Docker 25 an archive names a layer by its diff id;
    an archive of an older engine keeps all layers.
    """
    left_out = {layer.rpartition(":")[2] for layer in skip}
    if left_out:
        left_out |= {"index.json", "oci-layout"}  # they list all layers
    connection = client.connect(socket_path, SAVE_TIMEOUT)
    try:
        connection.request("GET", f"{client.api(socket_path)}/images/{quote(reference, safe='')}/get")
        response: Any = connection.getresponse()
        if response.status != 200:
            raise DockerError(
                f"The Docker Engine cannot save {reference}: {message_of(response.read())}. See `journalctl -u docker` and run again.", response.status
            )
        with open(path, "wb") as file:
            sink: Any = _Archive(file)
            with tarfile.open(fileobj=response, mode="r|", bufsize=CHUNK) as source, tarfile.open(fileobj=sink, mode="w|", bufsize=CHUNK) as archive:
                for member in source:
                    if member.name.rpartition("/")[2] not in left_out:
                        archive.addfile(member, source.extractfile(member) if member.isfile() else None)
    except (http.client.HTTPException, tarfile.TarError) as error:
        raise DockerError(f"The Docker Engine stopped while it saved {reference} ({error}). See `journalctl -u docker` and run again.") from error
    finally:
        connection.close()
    return {"size": sink.size, "sha256": sink.digest.hexdigest()}


def call(method: str, path: str, socket_path: str = DEFAULT_SOCKET) -> tuple[int, str]:
    """Send a request without a body; return the status and the engine's message. Raises DockerError if it does not answer."""
    connection = client.connect(socket_path, SAVE_TIMEOUT)
    try:
        connection.request(method, client.api(socket_path) + path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise client.silence(error, socket_path) from error
    finally:
        connection.close()
    return response.status, message_of(body)
