#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Save an image as an archive without layers that the receivers have, or load such an archive."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_layers
short_description: Save an image as an archive, or load such an archive
description:
  - With O(state=saved), writes the image as C(image.tar) into a folder, without the layers in O(skip). M(gb10.cluster.weights_serve) can serve it.
  - With O(state=loaded), loads the archive into the engine under a temporary name, compares it with O(fingerprint), gives it its name, and removes
    the folder. Names in the archive are ignored. An image with another content is removed, and no tag moves.
  - With O(state=absent), removes the folder.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode, nothing is saved, loaded or removed.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each call saves or loads again.
options:
  state:
    description:
      - V(saved), V(loaded) or V(absent).
    type: str
    choices: [saved, loaded, absent]
    required: true
  reference:
    description:
      - Name and tag of the image.
    type: str
    required: true
  folder:
    description:
      - Folder of the archive.
    type: path
    required: true
  skip:
    description:
      - Diff ids of the layers that all receivers have. The classic image store loads an archive without them; the containerd image store does not.
    type: list
    elements: str
    default: []
  fingerprint:
    description:
      - Fingerprint that the loaded image must have. Required with O(state=loaded).
    type: str
  docker_socket:
    description:
      - The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Save an image without the layer that the other node has
  gb10.cluster.image_layers:
    state: saved
    reference: vllm-dspark-runtime:mine
    folder: /var/lib/gb10-cluster/image-pair1
    skip: ['sha256:0f73e512ba7a3ff387c55e24fcafda72e8d50e8bed961fbad48a214f3c3439c2']
  become: true
  register: saved
"""

RETURN = r"""
files:
  description: With O(state=saved), the archive, in the form of O(gb10.cluster.weights_copy#module:fetch).
  returned: success
  type: list
  elements: dict
  sample: [{path: image.tar, size: 1073752064, sha256: 5d1c..., mtime_ns: 1795241700000000000}]
"""

import os
import posixpath
import shutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._docker import images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DEFAULT_SOCKET, DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest, model_folder, plain

ARCHIVE = "image.tar"
RESERVE = 1 << 30


def remove(folder: str) -> bool:
    """Remove the archive, the files of an interrupted copy and the record of the copy; return whether there was a folder."""
    folders = [path for path in (folder, model_folder.staging_path(os.path.realpath(folder))) if os.path.isdir(path)]
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    Node("/").save_record(manifest.record_name(folder), {})
    return bool(folders)


def save(params: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """Write the archive. Raises ImageError, DockerError, OSError."""
    reference, socket_path = params["reference"], params["docker_socket"]
    image = images.inspect_image(reference, socket_path)
    if image is None:
        raise ImageError(f"{reference} is not on this node any more: run again")
    free, need = model_folder.free_bytes(folder), int(image.get("Size") or 0) + RESERVE
    if need > free:
        raise ImageError(
            f"{manifest.human(free)} are free for {folder}, and up to {manifest.human(need)} are needed to send {reference}: "
            "free space there (docker image prune), or set image_distribution to pull"
        )
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, mode=0o700)
    where = os.path.join(folder, ARCHIVE)
    saved = images.save(reference, where, params["skip"], socket_path, plain.passed)
    return [{"path": ARCHIVE, "mtime_ns": os.stat(where).st_mtime_ns, **saved}]


def main() -> None:
    """Save, load or remove."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["saved", "loaded", "absent"], "required": True},
            "reference": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "skip": {"type": "list", "elements": "str", "default": []},
            "fingerprint": {"type": "str"},
            "docker_socket": {"type": "path", "default": DEFAULT_SOCKET},
        },
        required_if=[("state", "loaded", ["fingerprint"])],
        supports_check_mode=True,
    )
    params, state = module.params, module.params["state"]
    folder = posixpath.normpath(params["folder"])
    files: list[dict[str, Any]] = []
    if module.check_mode:
        module.exit_json(changed=state != "absent" or os.path.isdir(folder), files=files)
    try:
        if state == "saved":
            files = save(params, folder)
        if state == "loaded":
            images.load(os.path.join(folder, ARCHIVE), params["reference"], params["fingerprint"], params["docker_socket"])
        changed = state == "saved" or remove(folder)
    except (DockerError, ImageError, RecordError) as error:
        if state == "saved":
            shutil.rmtree(folder, ignore_errors=True)
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or folder} cannot be used ({error.strerror}): run with become, and check the free disk space")
    module.exit_json(changed=changed, files=files)


if __name__ == "__main__":
    main()
