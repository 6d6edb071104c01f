#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the API key that a serving group has without one in the inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: api_key
short_description: Keep the API key that a serving group has without one in the inventory
version_added: 0.1.0
description:
  - Makes the file C(api_key) in the group's folder on its head once, and returns the key. A file that exists is never changed.
  - Always set C(no_log) on the task, because the key is in the result.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode a new key is returned and not stored, so the run shows what the first key changes.
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
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Read or make the API key of pair1
  gb10.cluster.api_key:
    directory: /opt/gb10-cluster/vllm_tp2/pair1
  become: true
  no_log: true
  register: made
"""

RETURN = r"""
key:
  description: The key, 43 characters.
  returned: success
  type: str
  sample: VALUE_SPECIFIED_IN_NO_LOG_PARAMETER
path:
  description: The file that contains it, mode 0600.
  returned: success
  type: str
  sample: /opt/gb10-cluster/vllm_tp2/pair1/api_key
"""

import os
import re
import secrets

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import API_KEY
from ansible_collections.gb10.cluster.plugins.module_utils._agent.folder import Folder

FORM = re.compile(r"[A-Za-z0-9_-]{20,200}")


def key_of(folder: Folder, make: bool) -> tuple[str, bool]:
    """Return the text of the key, and whether it is a new one, which is stored if `make`. Raises OSError."""
    text, key = folder.text(API_KEY), secrets.token_urlsafe(32)
    if text is None and make:
        try:
            folder.write(API_KEY, f"{key}\n", new=True)
        except FileExistsError:  # another run has made it meanwhile
            text = folder.text(API_KEY)
    return (key, True) if text is None else (text.strip(), False)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"directory": {"type": "path", "required": True}}, supports_check_mode=True)
    folder, path = Folder(module.params["directory"]), os.path.join(module.params["directory"], API_KEY)
    remedy = f"Remove {path}: the next run makes a new key and starts the group with it."
    try:
        key, new = key_of(folder, make=not module.check_mode)
    except OSError as error:
        module.fail_json(msg=f"The API key of the group cannot be read or made: {path}: {error.strerror}. A link is not followed. {remedy}")
    if not FORM.fullmatch(key):
        module.fail_json(msg=f"{path} is not an API key: 20 to 200 letters, digits, - and _ are expected. {remedy}")
    diff = {"before_header": path, "after_header": path, "before": "", "after": "(a key)\n" if new else ""}
    module.exit_json(changed=new, key=key, path=path, diff=diff)


if __name__ == "__main__":
    main()
