#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a release of a serving group on one rank's node, keep its receipt, make it the current one: in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_release
short_description: Write a release of a serving group on a node, or make it the current one
version_added: 0.1.0
description:
  - Writes what it is given below C(releases/RELEASE) in the group's folder, each file atomically, the Compose file last, so that a release
    that was cut short is none. What is there already, mode and all, is left alone.
  - The role P(gb10.cluster.vllm_tp2#role) calls it before a start and after a passed gate.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  directory:
    description: The serving group's folder on the node.
    type: path
    required: true
  release:
    description: The release's id.
    type: str
    required: true
  files:
    description: Files of the release, names to texts. They get mode C(0640).
    type: dict
    default: {}
  secrets:
    description: The text of C(secrets.env), mode C(0600). Never shown, also not in a diff. Without one the file is left as it is.
    type: str
  receipt:
    description:
      - What the gate found, kept beside the release as C(receipt.json).
      - Replacing one is not a change, since it records a boot and not configuration. Writing one where a readable one is missing is a change.
    type: dict
  current:
    description: Point C(current) at this release.
    type: bool
    default: false
extends_documentation_fragment:
  - gb10.cluster.attributes
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
      compose.yaml: "{{ compose | to_nice_yaml }}"
      release.json: "{{ manifest | to_nice_json }}"
  become: true

- name: It passed its gate
  gb10.cluster.vllm_release:
    directory: /opt/gb10-cluster/vllm_tp2/pair1
    release: 4f0c1d2e3f40
    receipt: "{{ verdict.receipt }}"
    current: true
  become: true
"""

RETURN = r"""
path:
  description: The release's folder.
  type: str
  returned: success
  sample: /opt/gb10-cluster/vllm_tp2/pair1/releases/4f0c1d2e3f40
"""

import json
import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils.node_files import FileChange, Node

COMPOSE = "compose.yaml"
SECRETS = "secrets.env"
RECEIPT = "receipt.json"


def found(path: str) -> tuple[str | None, int]:
    """Return a file's text and mode; None where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(), stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
    except FileNotFoundError:
        return None, 0


def differences(folder: str, wanted: dict[str, tuple[str, int]]) -> list[tuple[FileChange, int]]:
    """Return what has to be written, each with the mode that is there, in its order: the Compose file last."""
    out = []
    for name in sorted(wanted, key=lambda each: (each == COMPOSE, each)):
        text, mode = wanted[name]
        path = os.path.join(folder, name)
        before, before_mode = found(path)
        if before != text or before_mode != mode:
            out.append((FileChange(path, before, text, mode), before_mode))
    return out


def diff_of(change: FileChange, before_mode: int) -> dict[str, str]:
    """Return one entry of Ansible's list of differences; of the secrets only that they differ."""
    if os.path.basename(change.path) == SECRETS:
        return change._replace(before=change.before and "(other secrets)\n", after="(secrets)\n").diff()
    if not change.changed:
        return change._replace(before=f"mode {before_mode:04o}\n", after=f"mode {change.mode:04o}\n").diff()
    return change.diff()


def readable(text: str | None) -> bool:
    """Tell whether a receipt's text can be read."""
    try:
        return text is not None and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def write(change: FileChange) -> None:
    """Write a file, never readable by more than its mode says: the mode of a file that is there is put right before its text."""
    if change.before is not None:
        os.chmod(change.path, change.mode)
    if change.changed:
        Node().apply(change)


def point(link: str, target: str) -> None:
    """Make a link, atomically over an older one. Raises OSError where something else lies there."""
    temporary = f"{link}.new-{os.getpid()}"
    os.symlink(target, temporary)
    try:
        os.replace(temporary, link)
    except OSError:
        os.unlink(temporary)
        raise


def main() -> None:
    """Compare, and write what differs."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "release": {"type": "str", "required": True},
            "files": {"type": "dict", "default": {}},
            "secrets": {"type": "str", "no_log": True},
            "receipt": {"type": "dict"},
            "current": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    folder = os.path.join(params["directory"], "releases", params["release"])
    link, target = os.path.join(params["directory"], "current"), os.path.join("releases", params["release"])
    wanted = {name: (str(text), 0o640) for name, text in params["files"].items()}
    if params["secrets"] is not None:
        wanted[SECRETS] = (params["secrets"], 0o600)
    try:
        changes = differences(folder, wanted)
        diff = [diff_of(change, mode) for change, mode in changes]
        before = os.readlink(link) if os.path.islink(link) else None
        points = params["current"] and before != target
        if points:
            diff.append({"before_header": link, "after_header": link, "before": f"{before}\n" if before else "", "after": f"{target}\n"})
        receipt = os.path.join(folder, RECEIPT)
        new_receipt = params["receipt"] is not None and not readable(found(receipt)[0])
        if new_receipt:
            diff.append({"before_header": receipt, "after_header": receipt, "before": "", "after": "(receipt)\n"})
        if not module.check_mode:
            if wanted or params["receipt"] is not None:
                os.makedirs(folder, mode=0o750, exist_ok=True)
            for change, _mode in changes:
                write(change)
            if params["receipt"] is not None:
                write(FileChange(receipt, found(receipt)[0], json.dumps(params["receipt"], indent=4, sort_keys=True) + "\n", 0o640))
            if points:
                point(link, target)
    except OSError as error:
        module.fail_json(
            msg=f"The release {params['release']} cannot be written on this node: {error.filename}: {error.strerror}."
            " Make room or take away what is in the way there, or set vllm_tp2_directory to another place."
        )
    module.exit_json(changed=bool(changes) or points or new_receipt, path=folder, diff=diff)


if __name__ == "__main__":
    main()
