#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the agent of a serving group from acting during maintenance."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hold
short_description: Keep the agent of a serving group from acting during maintenance
description:
  - While a node has a hold, the agent does not start or stop anything in the node's serving group. It reports the hold and its reason.
  - A hold expires, so that a run that is interrupted does not stop the agent for good.
  - On a node without an agent the module succeeds and changes nothing.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
    details:
      - A second run extends the hold until O(seconds) from now. This is not reported as a change.
options:
  state:
    description:
      - V(present) takes or extends the hold, V(absent) releases it.
    type: str
    choices: [present, absent]
    default: present
  name:
    description:
      - Names the hold. Holds of other names are not affected.
    type: str
    required: true
  reason:
    description:
      - Why the agent must not act, as a phrase for the agent's messages. Required if O(state=present).
    type: str
    default: ''
  seconds:
    description:
      - Seconds until the hold expires, at most 604800 (7 days).
    type: int
    default: 3600
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Hold the agent during a reboot
  gb10.cluster.hold:
    name: reboot
    reason: reboot.yml restarts this node
    seconds: 1800
  become: true

- name: Release the hold
  gb10.cluster.hold:
    name: reboot
    state: absent
  become: true
"""

RETURN = r"""
active:
  description: Whether an agent is installed on the node.
  returned: success
  type: bool
holds:
  description: All holds of the node at the end, C(name), C(reason) and C(until), in seconds since the epoch.
  returned: success
  type: list
  elements: dict
  sample: [{name: reboot, reason: reboot.yml restarts this node, until: 1795410367.0, by: ''}]
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._agent import client
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import CONFIG
from ansible_collections.gb10.cluster.plugins.module_utils._agent.holds import LONGEST

SECONDS = 10.0
Call = Callable[..., dict[str, Any]]


def first_answer(call: Call, pause: Callable[[float], None]) -> dict[str, Any]:
    """Return the reply to `hello`; an agent that has just been started gets 10 s. Raises the errors of client.call()."""
    for _attempt in range(int(SECONDS / 0.5)):
        try:
            return call("hello", timeout=SECONDS)
        except client.AgentMissing:
            pause(0.5)
    return call("hello", timeout=SECONDS)


def lines(holds: Sequence[Mapping[str, Any]]) -> str:
    """Return holds as sorted lines of a diff."""
    return "".join(sorted(f"{each.get('name')}: {each.get('reason')}\n" for each in holds))


def hold(params: Mapping[str, Any], check_mode: bool, call: Call, pause: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Take or release a hold. Raises the errors of client.call()."""
    before = list(first_answer(call, pause).get("holds") or [])
    others = [each for each in before if each.get("name") != params["name"]]
    present = params["state"] == "present"
    after = [*others, {"name": params["name"], "reason": params["reason"]}] if present else others
    changed = lines(after) != lines(before)
    if not check_mode and present:
        call("hold", timeout=SECONDS, name=params["name"], reason=params["reason"], seconds=params["seconds"])
    elif not check_mode and changed:
        call("release_hold", timeout=SECONDS, name=params["name"])
    holds = after if check_mode else list(call("hello", timeout=SECONDS).get("holds") or [])
    diff = {"before": lines(before), "after": lines(after), "before_header": "holds", "after_header": "holds"}
    return {"changed": changed, "active": True, "holds": holds, "diff": diff if changed else {"before": "", "after": ""}}


def main() -> None:
    """Ask the agent."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "name": {"type": "str", "required": True},
            "reason": {"type": "str", "default": ""},
            "seconds": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not os.path.exists(CONFIG):
        module.exit_json(changed=False, active=False, holds=[])
    if params["state"] == "present" and not params["reason"]:
        module.fail_json(msg="reason is required if state is present.")
    if not 1 <= params["seconds"] <= LONGEST:
        module.fail_json(msg=f"{params['seconds']} is not a valid number of seconds. Use 1 to {LONGEST:.0f}.")
    try:
        result = hold(params, module.check_mode, client.call)
    except client.ERRORS as error:
        module.fail_json(msg=client.sentence(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
