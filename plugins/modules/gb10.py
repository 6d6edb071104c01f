#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask gb10 on a node. See DOCUMENTATION."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gb10
short_description: Ask gb10 about a serving group, with the code of the controller
description:
  - Runs a subcommand of C(gb10) on the node and returns what it printed. The code is that of the collection on the controller, so the answer is the same
    before the agent of the node is installed or updated.
  - The subcommand asks the agent of the node, and the other ranks through it. Where the node has no agent, it reads the node alone.
  - In check mode, a subcommand that changes something is given C(--check), and reports what it would do.
author:
  - The gb10.cluster authors (@gb10-cluster)
attributes:
  check_mode:
    description: What would be done is reported, and nothing is changed.
    support: full
  diff_mode:
    description: C(want) has a diff of the desired state.
    support: partial
options:
  argv:
    description:
      - The subcommand and its options, as they are typed after C(gb10).
    type: list
    elements: str
    required: true
  group:
    description:
      - The serving group, as the lookup P(gb10.cluster.serving_group#lookup) returns it.
    type: dict
    required: true
  directory:
    description:
      - The folder of all serving groups on the node.
    type: path
    default: /opt/gb10-cluster/vllm_tp2
  input:
    description:
      - What the subcommand reads from its standard input, as JSON.
    type: raw
notes:
  - Needs O(ignore:become=true).
seealso:
  - module: gb10.cluster.kv_pool_gate
"""

EXAMPLES = r"""
- name: Read what the head knows of the group
  gb10.cluster.gb10:
    argv: [status]
    group: "{{ lookup('gb10.cluster.serving_group') }}"
  become: true
  register: found

- name: Read the last events as data
  gb10.cluster.gb10:
    argv: [events, --json]
    group: "{{ lookup('gb10.cluster.serving_group') }}"
  become: true
"""

RETURN = r"""
document:
  description: What was printed with C(--json); empty without it.
  type: dict
  returned: always
  sample: {schema: gb10.cluster/status/1, group: pair1, state: serves, ok: true}
lines:
  description: What was printed otherwise.
  type: list
  elements: str
  returned: always
  sample: ["pair1 serves: a completion came back in 0.21 s, release 4f0c61d2a9be."]
problems:
  description: What was printed to standard error, one sentence each.
  type: list
  elements: str
  returned: always
  sample: []
rc:
  description: The exit code. 0 is success, 1 an error (the task fails), 2 a group that is not as it should be, 3 ranks that could not be read.
  type: int
  returned: always
  sample: 0
"""

import contextlib
import io
import json
import sys
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands

#: Subcommands that take --check.
CHANGING = ("rollback", "want")


def main() -> None:
    """Run the subcommand, and return what it printed."""
    if TYPE_CHECKING:  # Ansible sends what it finds imported here, and `commands` imports one of them
        from ansible_collections.gb10.cluster.plugins.module_utils._checks import doctor  # noqa: F401
        from ansible_collections.gb10.cluster.plugins.module_utils._pair import soak, verbs_change, verbs_measure, verbs_read  # noqa: F401
    module = AnsibleModule(
        argument_spec={
            "argv": {"type": "list", "elements": "str", "required": True},
            "group": {"type": "dict", "required": True},
            "directory": {"type": "path", "default": "/opt/gb10-cluster/vllm_tp2"},
            "input": {"type": "raw"},
        },
        supports_check_mode=True,
    )
    argv, group = list(module.params["argv"]), module.params["group"]
    given = {"group": group["name"], "rank": int(group["rank"]), "hosts": list(group["hosts"]), "directory": module.params["directory"]}
    changes = argv[:1] and argv[0] in CHANGING
    if changes and module.check_mode:
        argv.append("--check")
    out, errors = io.StringIO(), io.StringIO()
    sys.stdin = io.StringIO(json.dumps(module.params["input"]))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        rc = commands.run(argv, given=given)
    lines, problems = out.getvalue().splitlines(), errors.getvalue().splitlines()
    document = json.loads(lines.pop()) if ("--json" in argv or argv[:1] == ["want"]) and lines[-1:] and lines[-1].startswith("{") else {}
    diff = {"diff": document.pop("diff")} if "diff" in document else {}
    result = {"document": document, "lines": lines, "problems": problems, "rc": rc}
    if rc == 1:
        module.fail_json(msg=" ".join(problems) or f"gb10 {argv[0]} failed without a message.", **result)
    module.exit_json(changed=bool(document.get("changed")), failed=False, **diff, **result)  # without `failed`, Ansible fails a task whose rc is not 0


if __name__ == "__main__":
    main()
