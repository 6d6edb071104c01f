#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the imported images, and remove old ones."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_record
short_description: Record images, and remove old ones
description:
  - Records in C(/var/lib/gb10-cluster/image.json) which image a serving group uses on this node, and which images this collection imported.
  - Removes imported images that no container uses, except the newest O(keep).
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  state:
    description:
      - V(absent) removes all imported images that no container uses, and the record.
    type: str
    choices: [present, absent]
    default: present
  group:
    description:
      - The serving group.
    type: str
    required: true
  reference:
    description:
      - Name and tag of the group's image.
    type: str
    required: true
  imported:
    description:
      - Whether this run imported the image.
    type: bool
    default: false
  keep:
    description:
      - How many imported images stay, including those in use. V(0) keeps all.
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
- name: Record the image, keep one older one
  gb10.cluster.image_record:
    group: pair1
    reference: vllm-dspark-runtime:mine
    imported: true
  become: true
"""

RETURN = r"""
removed:
  description: Ids of images that were removed, or would be.
  returned: success
  type: list
  elements: str
  sample: []
left:
  description: What could not be removed, and why.
  returned: success
  type: list
  elements: str
  sample: []
"""

import time
from collections.abc import Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, images
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.images import ImageError

RECORD = "image"


def drop(imported: list[dict[str, Any]], gone: Sequence[str], socket_path: str, check: bool) -> tuple[list[str], list[str]]:
    """Remove images by id from the engine and the list; return (removed, sentences on what stays). Raises DockerError."""
    removed, left = [], []
    containers = docker_api.list_containers([], socket_path) if gone else []
    users = {str(each.get("ImageID")): str((each.get("Names") or [each.get("Id")])[0]).lstrip("/") for each in containers}
    for item in [each for each in imported if each["id"] in gone]:
        image = images.inspect_image(str(item["id"]), socket_path)
        reason = f"the container {users[item['id']]} uses it" if item["id"] in users else ""
        for target in [] if check or reason or image is None else image.get("RepoTags") or [item["id"]]:
            status, message = images.call("DELETE", f"/images/{target}", socket_path)
            if status >= 400 and status != 404:
                reason = message or f"the Docker Engine answers HTTP {status}"
                break
        if reason and image:
            left.append(f"{item['reference']} ({str(item['id'])[7:19]}) stays: {reason}")
            continue
        if image:
            removed.append(str(item["id"]))
        if not check or not image:
            imported.remove(item)
    return removed, left


def main() -> None:
    """Record and remove."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "group": {"type": "str", "required": True},
            "reference": {"type": "str", "required": True},
            "imported": {"type": "bool", "default": False},
            "keep": {"type": "int", "default": 2},
            "docker_socket": {"type": "path", "default": docker_api.DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    params, node, check = module.params, Node("/"), module.check_mode
    try:
        record = node.load_record(RECORD)
        imported = [dict(item) for item in record.get("imported", [])]
        served = {key: dict(value) for key, value in record.get("served", {}).items()}
        if params["state"] == "absent":
            removed, left = drop(imported, [item["id"] for item in imported], params["docker_socket"], check)
            served.pop(params["group"], None)
        else:
            image = images.info(params["reference"], params["docker_socket"])
            if check and params["imported"]:
                image = {**image, "exists": True, "id": ""}  # the new image is not here yet, and an older one may have its name
            if not image["exists"]:
                raise ImageError(f"{params['reference']} is not on this node: nothing was recorded")
            if params["imported"]:
                imported = [item for item in imported if item["id"] != image["id"]]
                imported.append({"id": image["id"], "reference": params["reference"], "at": int(time.time())})
            served[params["group"]] = {"id": image["id"], "fingerprint": image["fingerprint"]}
            current = [value["id"] for value in served.values()]
            gone = images.stale(imported, current, params["keep"]) if params["keep"] > 0 else []
            removed, left = drop(imported, gone, params["docker_socket"], check)
        after = {key: value for key, value in (("imported", imported), ("served", served)) if value}
        known = {key: record[key] for key in ("imported", "served") if record.get(key)}
        if not check and after != known:
            node.save_record(RECORD, after)
    except (DockerError, ImageError, RecordError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be changed ({error.strerror}): run with become")
    module.exit_json(changed=bool(removed), removed=removed, left=left)


if __name__ == "__main__":
    main()
