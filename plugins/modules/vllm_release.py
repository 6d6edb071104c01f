#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a release of a serving group on one rank's node, keep its receipt, make it the current one, or remove them all: in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_release
short_description: Write a release of a serving group on a node, make it the current one, or remove the group
description:
  - Writes the given files below C(releases/RELEASE) in the group's folder, each one atomically. The Compose file is the last one, so a release
    that is written in part does not count. A file with the same content and mode is left alone.
  - The role P(gb10.cluster.vllm_tp2#role) calls it before a start, and to restore what a node has lost of a release that serves. After a passed
    gate the agent keeps the receipt and points C(current) at the release.
  - Of two runs at once the second one waits, so that it does not remove what the first one has only begun.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  state:
    description: V(absent) removes the group's folder with all releases, and all compile caches that were created for the group.
    type: str
    choices: [present, absent]
    default: present
  directory:
    description: The serving group's folder on the node.
    type: path
    required: true
  release:
    description: The release's id. Required if O(state=present).
    type: str
  files:
    description: Files of the release, names to texts. They get mode C(0640).
    type: dict
    default: {}
  secrets:
    description: The text of C(secrets.env), mode C(0600). Never shown, also not in a diff. Without one the file is left as it is.
    type: str
  key:
    description:
      - The group's name, to keep the API key that it has without one in the inventory. The file C(api_key) is made once, on the head, as an env file for
        its container. The key does not leave the node, and is not in a diff.
    type: str
  receipt:
    description:
      - The gate's receipt, kept next to the release as C(receipt.json).
      - Replacing one is not a change, since it records a boot and not configuration. Writing one where a readable one is missing is a change.
    type: dict
  current:
    description: Point C(current) at this release.
    type: bool
    default: false
  caches:
    description:
      - Folders of the release's compile caches, below O(store). They are created. Those that no kept release of the group uses are removed.
    type: list
    elements: path
    default: []
  store:
    description: The model store.
    type: path
    default: ""
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.internal
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""

EXAMPLES = r"""
- name: Write a release
  gb10.cluster.vllm_release:
    directory: /opt/gb10-cluster/vllm_tp2/pair1
    release: 4f0c1d2e3f40
    files:
      compose.yaml: "{{ compose }}"
      release.json: "{{ manifest | to_nice_json }}"
  become: true

- name: Restore the receipt and the link to a release that serves
  gb10.cluster.vllm_release:
    directory: /opt/gb10-cluster/vllm_tp2/pair1
    release: 4f0c1d2e3f40
    receipt: "{{ plan.judged }}"
    current: true
  become: true

- name: Remove a group's releases and compile caches
  gb10.cluster.vllm_release:
    state: absent
    directory: /opt/gb10-cluster/vllm_tp2/pair1
  become: true
"""

RETURN = r"""
path:
  description: The release's folder.
  type: str
  returned: if O(state=present)
  sample: /opt/gb10-cluster/vllm_tp2/pair1/releases/4f0c1d2e3f40
"""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._node import model_folder, node, releases
from ansible_collections.gb10.cluster.plugins.module_utils._node.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._pair import files
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import CACHE_VARIABLES


def caches_in_use(directory: str) -> set[str]:
    """Return the caches of the kept releases of a group."""
    kept = [node.read_json(os.path.join(directory, "releases", each["id"], "release.json")) for each in node.releases_in(directory)]
    return {path for release in kept for path in release.get("caches") or []}


def remove(directory: str, check: bool) -> list[dict[str, str]]:
    """Remove the compile caches and the folder of a group; return the diff. The folder is last: while it is there, the next run goes on."""
    gone = model_folder.clear_caches(Node("/"), directory, check) + ([directory] if os.path.lexists(directory) else [])
    if not check and directory in gone:
        (os.remove if os.path.islink(directory) else shutil.rmtree)(directory)
    return [{"before_header": path, "after_header": path, "before": "(folder)\n", "after": ""} for path in gone]


def write(module: AnsibleModule) -> list[dict[str, str]]:
    """Write what differs; return the diff."""
    params = module.params
    folder = os.path.join(params["directory"], "releases", params["release"])
    link, target = os.path.join(params["directory"], "current"), os.path.join("releases", params["release"])
    wanted = {name: (str(text), 0o640) for name, text in params["files"].items()}
    if params["secrets"] is not None:
        wanted[releases.SECRETS] = (params["secrets"], 0o600)
    changes = releases.differences(folder, wanted)
    diff = [releases.diff_of(change, mode, link) for change, mode in changes]
    before = os.readlink(link) if os.path.islink(link) else None
    points = params["current"] and before != target
    if points:
        diff.append({"before_header": link, "after_header": link, "before": f"{before}\n" if before else "", "after": f"{target}\n"})
    receipt = os.path.join(folder, releases.RECEIPT)
    if params["receipt"] is not None and not releases.readable(releases.found_files(receipt)[0]):
        diff.append({"before_header": receipt, "after_header": receipt, "before": "", "after": "(receipt)\n"})
    if params["caches"]:
        used, below = caches_in_use(params["directory"]), sorted(folder for folder, _source in CACHE_VARIABLES.values() if folder)
        created, removed = model_folder.prepare_caches(Node("/"), params["directory"], params["caches"], used, params["store"], below, module.check_mode)
        diff += [{"before_header": path, "after_header": path, "before": "", "after": "(compile cache)\n"} for path in created]
        diff += [{"before_header": path, "after_header": path, "before": "(compile cache)\n", "after": ""} for path in removed]
    key = files.keep_key(params["directory"], params["key"], module.check_mode) if params["key"] else {}
    if "msg" in key:
        module.fail_json(msg=key["msg"])
    diff += [key["diff"]] if key.get("due") else []
    if not module.check_mode:
        if wanted or params["receipt"] is not None:
            os.makedirs(folder, mode=0o750, exist_ok=True)
        for change, _mode in changes:
            releases.write_release(change)
        if params["receipt"] is not None:
            releases.write_receipt(receipt, params["receipt"])
        if points:
            releases.point_current(link, target)
    return diff


def main() -> None:
    """Compare, and write or remove what differs."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "directory": {"type": "path", "required": True},
            "release": {"type": "str"},
            "files": {"type": "dict", "default": {}},
            "secrets": {"type": "str", "no_log": True},
            "key": {"type": "str", "no_log": False},
            "receipt": {"type": "dict"},
            "current": {"type": "bool", "default": False},
            "caches": {"type": "list", "elements": "path", "default": []},
            "store": {"type": "path", "default": ""},
        },
        required_if=[("state", "present", ["release"])],
        supports_check_mode=True,
    )
    directory, release = module.params["directory"], module.params["release"]
    absent = module.params["state"] == "absent"
    try:
        with Node("/").alone():
            diff = remove(directory, module.check_mode) if absent else write(module)
    except (ManifestError, RecordError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(
            msg=f"{'The group' if absent else f'The release {release}'} cannot be {'removed' if absent else 'written'} on this node:"
            f" {error.filename}: {error.strerror}."
            + ("" if absent else " Free the space or remove what blocks the path, or set vllm_tp2_directory to another place.")
        )
    module.exit_json(changed=bool(diff), diff=diff, **({} if absent else {"path": os.path.join(directory, "releases", release)}))


if __name__ == "__main__":
    main()
