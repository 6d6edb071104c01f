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
  - Returns the image's id, its repository digests and a fingerprint of content and configuration.
extends_documentation_fragment:
  - gb10.cluster.attributes.info
options:
  reference:
    description:
      - Name and tag, or id.
    type: str
    required: true
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
    - The image. C(fingerprint) is one SHA-256 over content and configuration, C(build) the hash of its build context, and C(free_bytes) the free space
      in Docker's data folder.
  returned: success
  type: dict
  sample:
    reference: vllm/vllm-openai:v0.24.0
    exists: true
    id: sha256:9306118e50b2...
    repo_digests: []
    fingerprint: 1c7f...
    architecture: arm64
    build: ''
    free_bytes: 68719476736
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._node import images
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DEFAULT_SOCKET, DockerError


def main() -> None:
    """Read and return."""
    module = AnsibleModule(
        argument_spec={"reference": {"type": "str", "required": True}, "docker_socket": {"type": "path", "default": DEFAULT_SOCKET}},
        supports_check_mode=True,
    )
    try:
        found = images.info(module.params["reference"], module.params["docker_socket"])
    except DockerError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, info=found)


if __name__ == "__main__":
    main()
