#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the manifest of a model's folder: size and SHA-256 of each file, and its faults."""

from __future__ import annotations

DOCUMENTATION = r"""
module: weights_manifest
short_description: Read and check a model's folder
description:
  - Reads every file of a model, a plain folder or a Hugging Face cache (C(models--org--name)), and returns sizes, SHA-256 hashes and links.
  - Reports faults. Examples are shards of the index that are missing, unfinished downloads, files with another SHA-256 than the hub promises
    or than before, a revision without its ref, and links to the outside.
  - Hashes are computed in parallel and recorded in C(/var/lib/gb10-cluster). They are valid while size, times and inode of a file stay the same.
  - Does not change the model.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode, the hashes are not recorded.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  path:
    description:
      - The model's folder.
    type: path
    required: true
  store:
    description:
      - The folder of all models. A link between it and O(path) is refused.
    type: path
    default: ""
  layout:
    description:
      - V(directory) is a plain folder, V(hub) a Hugging Face cache folder with C(blobs), C(refs) and C(snapshots).
    type: str
    choices: [directory, hub]
    default: directory
  revision:
    description:
      - The revision that the engine loads from a Hugging Face cache, a branch or a commit.
    type: str
    default: main
  verify:
    description:
      - V(fast) hashes new and changed files, V(full) all files.
    type: str
    choices: [fast, full]
    default: fast
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Read the model, and hash each file again
  gb10.cluster.weights_manifest:
    path: /srv/models/hub/models--deepseek-ai--DeepSeek-V4-Flash
    layout: hub
    verify: full
  become: true
  register: model

- name: Show its faults
  ansible.builtin.debug:
    msg: "{{ model.manifest.missing + model.manifest.damaged + model.manifest.problems }}"
"""

RETURN = r"""
manifest:
  description:
    - The model on the node. C(files) has C(size) in bytes and C(sha256) by path, C(links) the target by path,
      C(selected) the paths that the engine reads, C(missing), C(incomplete), C(damaged) and C(problems) its faults,
      C(free_bytes) the free space of the file system and C(proof) one SHA-256 over all that is selected.
  returned: always
  type: dict
  sample:
    path: /srv/models/tiny
    exists: true
    layout: directory
    files: {model.safetensors: {size: 734003200, sha256: 0a3f...}}
    links: {}
    selected: [model.safetensors]
    missing: []
    incomplete: []
    damaged: []
    problems: []
    bytes: 734003200
    free_bytes: 68719476736
    hashed_bytes: 0
    proof: 5c1e...
complaints:
  description: Why the model is not complete, as sentences. Empty if it is complete.
  returned: always
  type: list
  elements: str
  sample: ['the index names files that are missing: model-00003-of-00046.safetensors']
"""

import posixpath
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest, model_folder


def main() -> None:
    """Read the model and return the manifest."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "store": {"type": "path", "default": ""},
            "layout": {"type": "str", "choices": ["directory", "hub"], "default": "directory"},
            "revision": {"type": "str", "default": "main"},
            "verify": {"type": "str", "choices": ["fast", "full"], "default": "fast"},
        },
        supports_check_mode=True,
    )
    params, node, started = module.params, Node("/"), time.monotonic()
    path = posixpath.normpath(params["path"])
    try:
        found = model_folder.read(node, path, params["layout"], params["revision"], params["verify"] == "full", not module.check_mode, params["store"])
        complaints = manifest.complaints(found)
    except (RecordError, manifest.ManifestError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        where = error.filename or path
        module.fail_json(msg=f"{where} cannot be read ({error.strerror}): run with become, and check the disk if this is an I/O error")
    found["seconds"] = round(time.monotonic() - started, 2)
    module.exit_json(changed=False, manifest=found, complaints=complaints)


if __name__ == "__main__":
    main()
