#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List the files of a compile cache that another rank can use, or remove the caches of a group."""

from __future__ import annotations

DOCUMENTATION = r"""
module: compile_cache
short_description: List a rank's compile cache for another rank, or remove the caches of a group
description:
  - Lists the files of a compile cache with their hashes, as M(gb10.cluster.weights_copy) fetches them.
  - Files that are made for one rank, temporary files and the Python modules of a model are left out. Links are not followed.
  - Fails above 20,000 files or 16 GiB.
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
      - V(listed) reads O(path). V(absent) removes all compile caches that M(gb10.cluster.vllm_release) created for O(directory).
    type: str
    choices: [listed, absent]
    default: listed
  path:
    description:
      - The folder of the cache, below O(store).
    type: path
    default: ""
  store:
    description:
      - The model store.
    type: path
    default: ""
  directory:
    description:
      - The serving group's folder on the node.
    type: path
    default: ""
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: List the cache for the other rank
  gb10.cluster.compile_cache:
    path: /srv/models/vllm-cache-4f0c1d2e3f40
    store: /srv/models
  become: true

- name: Remove the caches of a group
  gb10.cluster.compile_cache:
    state: absent
    directory: /opt/gb10-cluster/vllm_tp2/pair1
  become: true
"""

RETURN = r"""
files:
  description: The files, with C(path), C(size) in bytes, C(mtime_ns) and C(sha256).
  returned: success
  type: list
  elements: dict
  sample: [{path: triton/2KZ/kernel.cubin, size: 20480, mtime_ns: 1795239181000000000, sha256: 9f86d0...}]
removed:
  description: With O(state=absent), the folders that were removed, or would be.
  returned: success
  type: list
  elements: str
  sample: [/srv/models/vllm-cache-4f0c1d2e3f40]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import cache_folder
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.plain import CopyError


def main() -> None:
    """List or remove."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["listed", "absent"], "default": "listed"},
            "path": {"type": "path", "default": ""},
            "store": {"type": "path", "default": ""},
            "directory": {"type": "path", "default": ""},
        },
        required_if=[("state", "listed", ("path", "store")), ("state", "absent", ("directory",))],
        supports_check_mode=True,
    )
    params = module.params
    files: list[dict[str, Any]] = []
    removed: list[str] = []
    try:
        if params["state"] == "absent":
            removed = cache_folder.clear(Node("/"), params["directory"], module.check_mode)
        else:
            files = cache_folder.listing(params["path"], params["store"])
    except (ManifestError, CopyError, RecordError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['path']} cannot be read or removed ({error.strerror}). Run with become.")
    module.exit_json(changed=bool(removed), files=files, removed=removed)


if __name__ == "__main__":
    main()
