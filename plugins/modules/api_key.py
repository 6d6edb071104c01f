#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the API key that a serving group has without one in the inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: api_key
short_description: Keep the API key that a serving group has without one in the inventory
description:
  - Makes the file C(api_key) in the group's folder on its head once, as an env file for the head's container. The key does not leave the node.
  - If the group's folder was lost as a whole and a container of the group runs, the file gets the key of that container.
  - A file with a key is changed only if it has the key without a name, or another mode than C(0600).
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - The difference has the path and never the key.
  idempotent:
    support: full
options:
  directory:
    description: The folder of the serving group on this node. It is made if it is missing.
    type: path
    required: true
  group:
    description: The name of the serving group. The containers with its label are compared with the file.
    type: str
    required: true
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Keep the API key of pair1
  gb10.cluster.api_key:
    directory: /opt/gb10-cluster/vllm_tp2/pair1
    group: pair1
  become: true
  register: kept

- name: Print where the key is
  ansible.builtin.debug:
    msg: The key is in {{ kept.path }}. `sudo gb10 key` on the head prints it.
"""

RETURN = r"""
path:
  description: The env file with C(VLLM_API_KEY), mode 0600.
  returned: success
  type: str
  sample: /opt/gb10-cluster/vllm_tp2/pair1/api_key
new:
  description: Whether the key is a new one, or a container of the group runs with another one.
  returned: success
  type: bool
  sample: false
due:
  description: Whether the file is written, or would be without check mode.
  returned: success
  type: bool
  sample: false
"""

import os
import re
import secrets
import stat
from collections.abc import Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import API_KEY
from ansible_collections.gb10.cluster.plugins.module_utils._agent.folder import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client

NAME = "VLLM_API_KEY="
FORM = re.compile(rf"(?:{NAME})?([A-Za-z0-9_-]{{20,200}})")


def made(folder: Folder, line: str) -> str | None:
    """Write this line, or a key that is made. Return the text of the file if another run has made one meanwhile, else None. Raises OSError."""
    try:
        folder.write(API_KEY, f"{line or NAME + secrets.token_urlsafe(32)}\n", new=True)
    except FileExistsError:
        return folder.text(API_KEY)
    return None


def line_of(text: str) -> str:
    """Return the line of the env file for a file's text, which may have the key alone. Raises ValueError if it is not a key."""
    found = FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a key")
    return f"{NAME}{found[1]}"


def environments(group: str) -> list[list[str]]:
    """Return the environment of each container of the group that runs; none if the Docker Engine does not answer."""
    try:
        entries = client.list_containers([f"gb10.cluster.group={group}"], client.DEFAULT_SOCKET, stopped=False)
        running = [client.inspect(entry["Id"], client.DEFAULT_SOCKET) for entry in entries]
    except client.DockerError:  # the role has reported it
        return []
    return [list((each.get("Config") or {}).get("Env") or []) for each in running if each]


def line_in_use(params: Mapping[str, str]) -> str:
    """Return the line of the key that the group runs with if its folder was lost as a whole, else empty: who removes the file wants a new key."""
    if os.path.lexists(os.path.join(params["directory"], "releases")):
        return ""
    found = {line for each in environments(params["group"]) for line in each if line.startswith(NAME) and FORM.fullmatch(line)}
    return found.pop() if len(found) == 1 else ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"directory": {"type": "path", "required": True}, "group": {"type": "str", "required": True}}, supports_check_mode=True
    )
    folder, path = Folder(module.params["directory"]), os.path.join(module.params["directory"], API_KEY)
    remedy = f"Remove {path}: the next run makes a new key and starts the group with it."
    new = changed = False
    try:
        text = folder.text(API_KEY)
        if text is None:
            line = line_in_use(module.params)
            text = None if module.check_mode else made(folder, line)
            changed = text is None
            new = changed and not line
        if text is not None:
            line = line_of(text)
            changed = text != f"{line}\n" or stat.S_IMODE(os.stat(path).st_mode) != 0o600
            if changed and not module.check_mode:
                folder.write(API_KEY, f"{line}\n")
            new = any(line not in each for each in environments(module.params["group"]))
    except ValueError:
        module.fail_json(msg=f"{path} is not an API key: {NAME} with 20 to 200 letters, digits, - and _ is expected. {remedy}")
    except OSError as error:
        module.fail_json(msg=f"The API key of the group cannot be read or made: {path}: {error.strerror}. A link is not followed. {remedy}")
    before = "" if text is None else "(a key with another mode or form)\n" if changed else "(a key)\n"
    diff = {"before_header": path, "after_header": path, "before": before, "after": "(a key)\n"}
    module.exit_json(changed=changed, due=changed, new=new, path=path, diff=diff)


if __name__ == "__main__":
    main()
