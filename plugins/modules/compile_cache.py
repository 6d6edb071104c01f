#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove the compile caches of a group."""

from __future__ import annotations

DOCUMENTATION = r"""
module: compile_cache
short_description: Remove the compile caches of a group
description:
  - Removes all compile caches that M(gb10.cluster.vllm_release) created for a serving group.
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
      - V(absent) removes the caches.
    type: str
    choices: [absent]
    default: absent
  directory:
    description:
      - The serving group's folder on the node.
    type: path
    required: true
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Remove the caches of a group
  gb10.cluster.compile_cache:
    state: absent
    directory: /opt/gb10-cluster/vllm_tp2/pair1
  become: true
"""

RETURN = r"""
removed:
  description: The folders that were removed, or would be.
  returned: success
  type: list
  elements: str
  sample: [/srv/models/vllm-cache-4f0c1d2e3f40]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import cache_folder
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.plain import CopyError


def main() -> None:
    """Remove."""
    module = AnsibleModule(
        argument_spec={"state": {"type": "str", "choices": ["absent"], "default": "absent"}, "directory": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    try:
        removed = cache_folder.clear(Node("/"), module.params["directory"], module.check_mode)
    except (ManifestError, CopyError, RecordError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be removed ({error.strerror}). Run with become.")
    module.exit_json(changed=bool(removed), removed=removed)


if __name__ == "__main__":
    main()
