# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Images of a Docker Engine over its socket: inspect, save, load, remove."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import posixpath
import re
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any
from urllib.parse import quote, urlencode

from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, image_plan
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DEFAULT_SOCKET, DockerError, message_of

CHUNK = 1 << 22
PAUSE = 600.0  # seconds that the engine may be silent, as before the end of a load
SECONDS = 4 * 3600.0  # for an image; a copy over the rail may take as long
RECEIVED = "gb10-cluster-received"
_NAMING = ("manifest.json", "index.json", "repositories")  # the members of an archive that name images and tags
_MAX_NAMING = 1 << 22  # bytes
_LAYER_LINK = re.compile(r"\.\./[0-9a-f]{64}/layer\.tar")


def inspect_image(reference: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any] | None:
    """Return the engine's inspection of an image, None if it has no image of that name. Raises DockerError."""
    return client.look_up(f"/images/{quote(reference, safe='')}/json", socket_path)


def engine(socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return the engine's `store` (classic or containerd), `root` (folder of its data), `version` and `driver`. Raises DockerError."""
    info = client.parsed(client.get("/info", socket_path=socket_path), socket_path)
    status = {str(row[0]): str(row[1]) for row in info.get("DriverStatus") or [] if len(row) > 1}
    containerd = "containerd" in status.get("driver-type", "")
    return {"store": "containerd" if containerd else "classic", "root": info["DockerRootDir"], "version": info["ServerVersion"], "driver": info["Driver"]}


def all_chains(socket_path: str = DEFAULT_SOCKET) -> list[str]:
    """Return the chain ids of the layers of all images that have a name. Raises DockerError."""
    chains: set[str] = set()
    for image in client.parsed(client.get("/images/json", socket_path=socket_path), socket_path):
        found = inspect_image(image["Id"], socket_path)
        if found:
            chains.update(image_plan.chain_ids((found.get("RootFS") or {}).get("Layers") or []))
    return sorted(chains)


def info(reference: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return an info as :mod:`image_plan` describes it, without `served`. Raises DockerError."""
    about = engine(socket_path)
    table = os.statvfs(about["root"] if os.path.isdir(about["root"]) else "/")
    found = inspect_image(reference, socket_path) or {}
    labels = (found.get("Config") or {}).get("Labels") or {}
    return {
        "reference": reference,
        "exists": bool(found),
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

    def __init__(self, file: IO[bytes], written: Callable[[int, int, int], None]) -> None:
        self.file = file
        self.written = written
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        count = self.file.write(data)
        self.written(self.file.fileno(), self.size, len(data))
        return count


def save(
    reference: str, path: str, skip: Sequence[str] = (), socket_path: str = DEFAULT_SOCKET, written: Callable[[int, int, int], None] = lambda *_: None
) -> dict[str, Any]:
    """Save an image as an archive without these layers (diff ids); return its `size` in bytes and `sha256`. Raises DockerError, OSError.

    `written` is called after each block with the archive's descriptor, its size and that of the block.

    An engine with the classic store loads such an archive if it has the layers. Since Docker 25 an archive names a layer by its diff id;
    an archive of an older engine keeps all layers.
    """
    left_out = {layer.rpartition(":")[2] for layer in skip}
    if left_out:
        left_out |= {"index.json", "oci-layout"}  # they list all layers
    connection = client.connect(socket_path, SECONDS, PAUSE)
    try:
        connection.request("GET", f"{client.api(socket_path)}/images/{quote(reference, safe='')}/get")
        response: Any = connection.getresponse()
        if response.status != 200:
            raise DockerError(
                f"The Docker Engine cannot save {reference}: {message_of(response.read1(CHUNK))}. See `journalctl -u docker` and run again.", response.status
            )
        with open(path, "wb") as file:
            sink: Any = _Archive(file, written)
            with tarfile.open(fileobj=response, mode="r|", bufsize=CHUNK) as source, tarfile.open(fileobj=sink, mode="w|", bufsize=CHUNK) as archive:
                for member in source:
                    if member.name.rpartition("/")[2] not in left_out:
                        archive.addfile(member, source.extractfile(member) if member.isfile() else None)
    except (http.client.HTTPException, tarfile.TarError) as error:
        raise DockerError(f"The Docker Engine stopped while it saved {reference} ({error}). See `journalctl -u docker` and run again.") from error
    finally:
        connection.close()
    return {"size": sink.size, "sha256": sink.digest.hexdigest()}


def _renamed(member: str, text: bytes, tag: str) -> bytes:
    """Return manifest.json or index.json with one name for the one image that it describes. Raises ImageError, ValueError."""
    document = json.loads(text)
    entries = document["manifests"] if member == "index.json" else document
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise image_plan.ImageError(f"{member} of the received archive does not describe one image: nothing was tagged; look at the node that sent it")
    if member == "index.json":
        entries[0]["annotations"] = {"io.containerd.image.name": f"docker.io/library/{RECEIVED}:{tag}", "org.opencontainers.image.ref.name": tag}
    else:
        entries[0]["RepoTags"] = [f"{RECEIVED}:{tag}"]
    return json.dumps(document).encode()


def _bare(member: tarfile.TarInfo, size: int) -> tarfile.TarInfo:
    """Return a header of name, type and size only. Extended headers of the sender can contradict these, and the engine follows them."""
    made = tarfile.TarInfo(member.name)
    made.type, made.linkname, made.size, made.mode = member.type, member.linkname, size, 0o755 if member.isdir() else 0o644
    return made


def retag(source: tarfile.TarFile, archive: tarfile.TarFile, tag: str) -> None:
    """Copy an archive of another node so that loading it sets the tag RECEIVED:`tag` and no other. Raises ImageError, OSError, TarError."""
    for member in source:
        name = posixpath.normpath(member.name)
        layer_link = member.issym() and name.endswith("/layer.tar") and _LAYER_LINK.fullmatch(member.linkname)  # of Docker before 25
        plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
        if not (plain or member.isdir() or layer_link) or name.startswith(("/", "../")):
            raise image_plan.ImageError(f"the received archive has {member.name!r}, which docker save does not write: look at the node that sent it")
        if name.rpartition("/")[2] not in _NAMING or not plain:
            archive.addfile(_bare(member, member.size if plain else 0), source.extractfile(member) if plain else None)
        elif name in ("manifest.json", "index.json"):
            if member.size > _MAX_NAMING:
                raise image_plan.ImageError(f"{name} of the received archive has {member.size} bytes: look at the node that sent it")
            content: Any = source.extractfile(member)
            try:
                text = _renamed(name, content.read(), tag)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise image_plan.ImageError(f"{name} of the received archive cannot be parsed ({error}): look at the node that sent it") from error
            archive.addfile(_bare(member, len(text)), io.BytesIO(text))


class _Chunks:
    """A file that sends what is written to it as chunks of a request."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection

    def write(self, data: bytes) -> int:
        if data:
            self.connection.send(b"%x\r\n%b\r\n" % (len(data), data))
        return len(data)


def _load(path: str, tag: str, socket_path: str) -> None:
    """Load an archive under the name RECEIVED:`tag`. Raises DockerError, ImageError, OSError."""
    connection = client.connect(socket_path, SECONDS, PAUSE)
    try:
        with tarfile.open(path, mode="r:") as source:
            connection.putrequest("POST", f"{client.api(socket_path)}/images/load?quiet=1")
            connection.putheader("Transfer-Encoding", "chunked")
            connection.putheader("Content-Type", "application/x-tar")
            connection.endheaders()
            sink: Any = _Chunks(connection)
            with suppress(BrokenPipeError, ConnectionResetError):  # an engine that refuses the archive replies before its end
                with tarfile.open(fileobj=sink, mode="w|", bufsize=CHUNK) as archive:
                    retag(source, archive, tag)
                connection.send(b"0\r\n\r\n")
        response = connection.getresponse()
        body = bounded.reply(response)
    except tarfile.TarError as error:
        raise image_plan.ImageError(f"the received archive cannot be read ({error}): run again") from error
    except http.client.HTTPException as error:
        raise client.silence(error, socket_path) from error
    finally:
        connection.close()
    if response.status != 200 or b'"errorDetail"' in body:
        raise DockerError(f"The Docker Engine cannot load the received archive: {message_of(body)[-400:]}. See `journalctl -u docker` and run again.")


def load(path: str, reference: str, fingerprint: str, socket_path: str = DEFAULT_SOCKET) -> None:
    """Load an archive of another node, compare its content, then give it its name. A different image is removed, and no tag moves.

    Raises DockerError, ImageError, OSError.
    """
    tag = os.urandom(8).hex()
    received = f"{RECEIVED}:{tag}"
    try:
        _load(path, tag, socket_path)
        image = inspect_image(received, socket_path)
        if image is None or image_plan.fingerprint_of(image) != fingerprint:
            raise image_plan.ImageError(
                f"the image that was received for {reference} has another content than the one that was sent, and was removed: "
                "set image_distribution to pull, or load it manually"
            )
        folder, slash, name = reference.rpartition("/")  # a colon before the last slash is a registry's port
        name, _colon, version = name.partition(":")
        target = urlencode({"repo": folder + slash + name, "tag": version or "latest"})
        status, message = call("POST", f"/images/{received}/tag?{target}", socket_path)
        if status >= 400:
            raise DockerError(f"The Docker Engine cannot tag {reference}: {message}. See `journalctl -u docker` and run again.", status)
    finally:
        with suppress(DockerError):  # a name that is left has no user
            call("DELETE", f"/images/{received}", socket_path)


def call(method: str, path: str, socket_path: str = DEFAULT_SOCKET) -> tuple[int, str]:
    """Send a request without a body; return the status and the engine's message. Raises DockerError if it does not answer."""
    connection = client.connect(socket_path, PAUSE)
    try:
        connection.request(method, client.api(socket_path) + path)
        response = connection.getresponse()
        body = bounded.reply(response)
    except (OSError, http.client.HTTPException) as error:
        raise client.silence(error, socket_path, PAUSE) from error
    finally:
        connection.close()
    return response.status, message_of(body)
