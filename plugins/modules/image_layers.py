#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Save layers of an image into files, or load such files into another node's engine."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_layers
short_description: Save layers of an image into files, or load such files
version_added: 0.1.0
description:
  - With O(state=saved) writes the image's configuration and the named layers into a folder, for M(gb10.cluster.weights_serve) to offer.
  - With O(state=loaded) gives such a folder to the engine, which needs only the layers that it lacks, checks that the result is the wanted image,
    and removes the folder. With O(state=absent) only removes the folder.
  - Engines with the containerd image store take whole archives only; O(whole) makes one.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode nothing is saved, loaded or removed.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - Each call saves or loads anew.
options:
  state:
    description:
      - What to do.
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
      - Where the files lie.
    type: path
    required: true
  layers:
    description:
      - Diff ids of the layers to save.
    type: list
    elements: str
    default: []
  whole:
    description:
      - Save the whole image as one archive.
    type: bool
    default: false
  fingerprint:
    description:
      - What the loaded image's fingerprint has to be.
    type: str
    default: ''
  docker_socket:
    description:
      - The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Save the one layer that the other node lacks
  gb10.cluster.image_layers:
    state: saved
    reference: vllm-dspark-runtime:mine
    folder: /var/lib/gb10-cluster/image-pair1
    layers: ['sha256:0f73e512ba7a3ff387c55e24fcafda72e8d50e8bed961fbad48a214f3c3439c2']
  become: true
  register: saved
"""

RETURN = r"""
files:
  description: With O(state=saved), what was written, by path, with C(size) in bytes, C(sha256), C(mtime_ns) and C(layer), the diff id of a layer.
  returned: success
  type: dict
  sample: {manifest.json: {size: 410, sha256: 5d1c..., mtime_ns: 1795241700000000000}}
says:
  description: With O(state=loaded), the engine's words.
  returned: success
  type: str
  sample: 'Loaded image: vllm-dspark-runtime:mine'
"""

import os
import posixpath
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._docker import images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DEFAULT_SOCKET, DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest, model_folder

RESERVE = 1 << 30


def remove(folder: str) -> bool:
    """Remove the files, what an interrupted copy left, and what it remembered; whether there was anything."""
    there = False
    for path in (folder, model_folder.staging_path(folder)):
        there = there or os.path.isdir(path)
        shutil.rmtree(path, ignore_errors=True)
    Node("/").save_record(model_folder.record_name(folder), {})
    return there


def main() -> None:
    """Save, load or remove."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["saved", "loaded", "absent"], "required": True},
            "reference": {"type": "str", "required": True},
            "folder": {"type": "path", "required": True},
            "layers": {"type": "list", "elements": "str", "default": []},
            "whole": {"type": "bool", "default": False},
            "fingerprint": {"type": "str", "default": ""},
            "docker_socket": {"type": "path", "default": DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    params = module.params
    folder, reference, socket_path = posixpath.normpath(params["folder"]), params["reference"], params["docker_socket"]
    if module.check_mode:
        module.exit_json(changed=params["state"] != "absent" or os.path.isdir(folder), files={}, says="")
    try:
        if params["state"] == "absent":
            module.exit_json(changed=remove(folder), files={}, says="")
        if params["state"] == "saved":
            image = images.inspect_image(reference, socket_path)
            if image is None:
                raise ImageError(f"there is no {reference} to send on this node any more: run again")
            free, need = model_folder.free_bytes(folder), int(image.get("Size") or 0) + RESERVE
            if need > free:
                raise ImageError(
                    f"{manifest.human(free)} are free for {folder}, and up to {manifest.human(need)} are needed to send {reference}: "
                    "make room there (docker image prune), or set image_distribution to pull"
                )
            shutil.rmtree(folder, ignore_errors=True)
            files = images.save(reference, folder, None if params["whole"] else params["layers"], socket_path)
            module.exit_json(changed=True, files=files, says="")
        names = [os.path.relpath(os.path.join(where, name), folder) for where, _rest, found in os.walk(folder) for name in found]
        said = images.load(folder, names, socket_path)
        now = images.info(reference, socket_path)
        if params["fingerprint"] and now["fingerprint"] != params["fingerprint"]:
            raise ImageError(
                f"what the engine loaded as {reference} has another content than what was sent: set image_distribution to pull, or load it by hand"
            )
        remove(folder)
    except (DockerError, ImageError, RecordError) as error:
        if params["state"] == "saved":
            shutil.rmtree(folder, ignore_errors=True)
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or folder} cannot be used ({error.strerror}): run with become, and look for a full disk")
    module.exit_json(changed=True, files={}, says=said)


if __name__ == "__main__":
    main()
