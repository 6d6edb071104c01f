# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Images of a Docker Engine over its socket: inspect, remove."""

from __future__ import annotations

import http.client
import os
from typing import Any
from urllib.parse import quote

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._node import client, image_plan
from ansible_collections.gb10.cluster.plugins.module_utils._node.client import DEFAULT_SOCKET, message_of

PAUSE = 600.0  # seconds that the engine may be silent


def inspect_image(reference: str, socket_path: str = DEFAULT_SOCKET) -> dict[str, Any] | None:
    """Return the engine's inspection of an image, None if it has no image of that name. Raises DockerError."""
    return client.look_up(f"/images/{quote(reference, safe='')}/json", socket_path)


def engine(socket_path: str = DEFAULT_SOCKET) -> dict[str, Any]:
    """Return the engine's `store` (classic or containerd), `root` (folder of its data), `version` and `driver`. Raises DockerError."""
    info = client.parsed(client.get("/info", socket_path=socket_path), socket_path)
    status = {str(row[0]): str(row[1]) for row in info.get("DriverStatus") or [] if len(row) > 1}
    containerd = "containerd" in status.get("driver-type", "")
    return {"store": "containerd" if containerd else "classic", "root": info["DockerRootDir"], "version": info["ServerVersion"], "driver": info["Driver"]}


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
    }


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
