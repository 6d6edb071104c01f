#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remember which images came here through us, drop old ones, and wipe the compile caches of another image."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_record
short_description: Remember images, drop old ones, wipe compile caches
version_added: 0.1.0
description:
  - Remembers in C(/var/lib/gb10-cluster/image.json) which image a serving group uses on this node and which images came here through this collection.
  - Empties the compile caches when they belong to another image; JIT caches of another build cost minutes of hanging at best.
  - Removes those images that came through this collection, are in use by no container, and are more than O(keep).
extends_documentation_fragment:
  - gb10.cluster.attributes
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
      - V(absent) removes every image that came through this collection and is in use by no container, and forgets.
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
      - Whether the image came here in this run.
    type: bool
    default: false
  wipe:
    description:
      - Whether the caches belong to another image, on any rank.
    type: bool
    default: false
  caches:
    description:
      - The compile caches, folders below O(store).
    type: list
    elements: path
    default: []
  store:
    description:
      - The model store; nothing outside of it is ever wiped.
    type: path
    required: true
  keep:
    description:
      - How many of the images that came through this collection stay, the ones in use included; V(0) keeps all.
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
- name: Remember the image, keep one older one
  gb10.cluster.image_record:
    group: pair1
    reference: vllm-dspark-runtime:mine
    imported: true
    store: /srv/models
    caches: [/srv/models/vllm-cache]
  become: true
"""

RETURN = r"""
wiped:
  description: Caches that were emptied, or would be.
  returned: success
  type: list
  elements: str
  sample: [/srv/models/vllm-cache]
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

import os
import shutil
import time
from collections.abc import Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, image_plan, images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError

RECORD = "image"


def check_cache(path: str, store: str) -> str:
    """Return a cache folder's real place, which must lie below the model store. Raises ImageError."""
    real, root = os.path.realpath(path), os.path.realpath(store)
    if not real.startswith(root.rstrip("/") + "/") or root == "/":
        raise ImageError(f"the compile cache {path} leads to {real}, outside the model store {store}: it is not wiped; correct container.cache_dirs")
    return real


def wipe(folders: Sequence[str], store: str, check: bool) -> list[str]:
    """Empty these folders, which stay themselves; return those that held something. Raises ImageError, OSError."""
    emptied = []
    for path, real in [(path, check_cache(path, store)) for path in folders]:
        if not os.path.isdir(real) or not os.listdir(real):
            continue
        emptied.append(path)
        for name in [] if check else os.listdir(real):
            where = os.path.join(real, name)
            if os.path.isdir(where) and not os.path.islink(where):
                shutil.rmtree(where)
            else:
                os.unlink(where)
    return emptied


def drop(imported: list[dict[str, Any]], gone: Sequence[str], socket_path: str, check: bool) -> tuple[list[str], list[str]]:
    """Remove images by id from the engine and the list; return (removed, sentences on what stays). Raises DockerError."""
    removed, left = [], []
    # The engine refuses to remove what is in use; check mode has to look.
    containers = client.list_containers([], socket_path) if check and gone else []
    users = {str(each.get("ImageID")): str((each.get("Names") or [each.get("Id")])[0]).lstrip("/") for each in containers}
    for item in list(imported):
        if item["id"] not in gone:
            continue
        stays = f"{item['reference']} ({str(item['id'])[7:19]}) stays"
        image = images.inspect_image(str(item["id"]), socket_path)
        names = (image or {}).get("RepoTags") or []
        if image is None:
            imported.remove(item)
            continue
        if check:
            if item["id"] in users:
                left.append(f"{stays}: the container {users[item['id']]} uses it")
            else:
                removed.append(str(item["id"]))
            continue
        refused = ""
        for target in names or [item["id"]]:
            status, said = images.call("DELETE", f"/images/{target}", socket_path)
            if status >= 400 and status != 404:  # 409 where a container uses it
                refused = said or f"the Docker Engine answers HTTP {status}"
                break
        if refused:
            left.append(f"{stays}: {refused}")
        else:
            removed.append(str(item["id"]))
            imported.remove(item)
    return removed, left


def main() -> None:
    """Remember, wipe, drop."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "group": {"type": "str", "required": True},
            "reference": {"type": "str", "required": True},
            "imported": {"type": "bool", "default": False},
            "wipe": {"type": "bool", "default": False},
            "caches": {"type": "list", "elements": "path", "default": []},
            "store": {"type": "path", "required": True},
            "keep": {"type": "int", "default": 2},
            "docker_socket": {"type": "path", "default": client.DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    params, node, check = module.params, Node("/"), module.check_mode
    wiped: list[str] = []
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
                image = {**image, "exists": True, "id": ""}  # what would come is not here yet, and another one may have its name
            if not image["exists"]:
                raise ImageError(f"there is no {params['reference']} on this node: nothing was remembered or wiped")
            if params["imported"]:
                imported = [item for item in imported if item["id"] != image["id"]]
                imported.append({"id": image["id"], "reference": params["reference"], "at": int(time.time())})
            if params["wipe"]:
                wiped = wipe(params["caches"], params["store"], check)
            served[params["group"]] = {"id": image["id"], "fingerprint": image["fingerprint"]}
            current = [value["id"] for value in served.values()]
            gone = image_plan.stale(imported, current, params["keep"]) if params["keep"] > 0 else []
            removed, left = drop(imported, gone, params["docker_socket"], check)
        after = {key: value for key, value in (("imported", imported), ("served", served)) if value}
        known = {key: record[key] for key in ("imported", "served") if record.get(key)}
        if not check and after != known:
            node.save_record(RECORD, after)
    except (DockerError, ImageError, RecordError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be changed ({error.strerror}): run with become")
    module.exit_json(changed=bool(wiped or removed), wiped=wiped, removed=removed, left=left)


if __name__ == "__main__":
    main()
