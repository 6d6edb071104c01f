#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a container image in a form that can be compared with other nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_info
short_description: Read an image so that it can be compared with another node's
description:
  - Returns the image's id, its repository digests, its layers and a fingerprint of content and configuration.
  - Returns the layers of all images of the engine, so that only missing ones are sent.
extends_documentation_fragment:
  - gb10.cluster.attributes.info
options:
  reference:
    description:
      - Name and tag, or id.
    type: str
    required: true
  group:
    description:
      - The serving group, for C(info.served).
    type: str
    default: ''
  keep:
    description:
      - How many imported images stay, for C(info.surplus).
    type: int
    default: 2
  docker_socket:
    description:
      - The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Read the image
  gb10.cluster.image_info:
    reference: vllm/vllm-openai:v0.24.0
  become: true
  register: image
"""

RETURN = r"""
info:
  description:
    - The image. C(layers) are diff ids, bottom first, C(size) and C(free_bytes) bytes, C(store) is V(classic) or V(containerd), C(fingerprint) one
      SHA-256 over content and configuration, C(build) the hash of its build context, C(served) the fingerprint of the
      group's image in the last run, C(surplus) how many images M(gb10.cluster.image_record) would remove.
  returned: success
  type: dict
  sample:
    reference: vllm/vllm-openai:v0.24.0
    exists: true
    id: sha256:9306118e50b2...
    repo_digests: []
    layers: ['sha256:f62a4b52...']
    fingerprint: 1c7f...
    size: 116000000
    architecture: arm64
    store: classic
    driver: overlay2
    engine: 28.2.2
    free_bytes: 68719476736
    served: ''
    surplus: 0
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._node import images
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DEFAULT_SOCKET, DockerError

RECORD = "image"


def main() -> None:
    """Read and return."""
    module = AnsibleModule(
        argument_spec={
            "reference": {"type": "str", "required": True},
            "group": {"type": "str", "default": ""},
            "keep": {"type": "int", "default": 2},
            "docker_socket": {"type": "path", "default": DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    try:
        found = images.info(module.params["reference"], module.params["docker_socket"])
        record = Node("/").load_record(RECORD)
    except (DockerError, RecordError) as error:
        module.fail_json(msg=str(error))
    served = record.get("served", {}).get(module.params["group"], {})
    found["served"] = str(served.get("fingerprint", ""))
    keep, imported = module.params["keep"], record.get("imported", [])
    current = [str(entry.get("id")) for entry in record.get("served", {}).values()]
    found["surplus"] = len(images.stale(imported, current, keep)) if keep > 0 else 0
    module.exit_json(changed=False, info=found)


if __name__ == "__main__":
    main()
