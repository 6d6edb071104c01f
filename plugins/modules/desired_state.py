#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set the desired state of a serving group on its head."""

from __future__ import annotations

DOCUMENTATION = r"""
module: desired_state
short_description: Set the desired state of a serving group
description:
  - Tells the agent on the head (rank 0) which release the serving group has to serve, or that it has to stop. The agent then starts, judges and
    stops by itself; M(gb10.cluster.kv_pool_gate) waits for its verdict.
  - A request for the state that is desired already joins it and changes nothing.
  - The module fails if the agent refuses the request, for example while another run changes the serving group.
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - The agent is only asked for its state. Before the agent is installed, a change is predicted.
  diff_mode:
    support: full
  idempotent:
    support: full
    details:
      - With O(reasons), a serving group that serves the release already is started again.
options:
  state:
    description:
      - Whether the serving group has to serve.
    type: str
    choices: [serving, stopped]
    required: true
  release:
    description:
      - The id of the release to serve. Required if O(state=serving).
    type: str
    default: ''
  by:
    description:
      - Who asks, for the agent's messages, such as C(admin@controller).
    type: str
    default: ''
  reasons:
    description:
      - Why the serving group has to start again, one phrase each.
    type: list
    elements: str
    default: []
  options:
    description:
      - Options of the start, such as C(timeout), C(limits), C(strict), C(rollback) and C(attempts).
    type: dict
    default: {}
  takeover:
    description:
      - Whether to replace the change of another run that is under way.
    type: bool
    default: false
  seen:
    description:
      - The generation in which the reasons were found; 0 if it is not known. If the agent itself has restarted the release since then, the request
        joins that restart.
    type: int
    default: 0
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
- name: Serve a release
  gb10.cluster.desired_state:
    state: serving
    release: 4f0c1d2e3f40
    by: admin@controller
  become: true
  register: desired

- name: Stop the serving group
  gb10.cluster.desired_state:
    state: stopped
    by: admin@controller
  become: true
"""

RETURN = r"""
generation:
  description: The generation of the desired state; in check mode, the one before a change.
  returned: success
  type: int
  sample: 7
joined:
  description: Whether the state was desired already.
  returned: success
  type: bool
desired:
  description: What is desired now, C(generation), C(state), C(release), C(by), C(at), C(reasons) and C(options).
  returned: success
  type: dict
  sample: {generation: 7, state: serving, release: 4f0c1d2e3f40, by: admin@controller, at: '2026-11-23T05:06:07Z', reasons: [], options: {}}
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._agent import client, standing
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError

SECONDS = 30.0
ARGUMENTS = ("state", "release", "by", "reasons", "options", "takeover", "seen")


def line(desired: Mapping[str, Any]) -> str:
    """Return a desired state as one line of a diff."""
    state = desired.get("state") or ""
    if not state:
        return ""
    return "stopped\n" if state == "stopped" else f"serving {desired.get('release')}\n"


def desire(params: Mapping[str, Any], check_mode: bool, call: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Set the desired state. Raises the errors of client.call(). A stop does not depend on what can be read."""

    def read() -> dict[str, Any]:
        try:
            return call("state", timeout=SECONDS)
        except client.AgentMissing:
            if not check_mode:
                raise
        except RankError:
            if check_mode or params["state"] != "stopped":
                raise
        return {}

    before = read()
    now = dict(before.get("desired") or {})
    after: dict[str, Any] = {"state": params["state"], "release": params["release"]}
    if check_mode:
        joined = standing.joins(before, params["state"], params["release"], params["reasons"])
        generation = int(now.get("generation", 0))
        adjusted = standing.differences(now.get("options") or {}, params["options"]) if joined and params["options"] else []
    else:
        reply = call("desire", timeout=SECONDS, **{key: params[key] for key in ARGUMENTS})
        joined, generation, adjusted = bool(reply["joined"]), int(reply["generation"]), list(reply.get("adjusted") or [])
    was = line(now)
    if not check_mode and not joined:
        now = dict(read().get("desired") or {})
    options = "".join(f"{phrase}\n" for phrase in adjusted)
    diff = {"before": was, "after": was + options if joined else line(after) + "".join(f"because {reason}\n" for reason in params["reasons"])}
    header = f"desired state, generation {generation}"
    return {
        "changed": not joined or bool(adjusted),
        "generation": generation,
        "joined": joined,
        "desired": now,
        "diff": {**diff, "before_header": header, "after_header": header},
    }


def main() -> None:
    """Ask the agent."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["serving", "stopped"], "required": True},
            "release": {"type": "str", "default": ""},
            "by": {"type": "str", "default": ""},
            "reasons": {"type": "list", "elements": "str", "default": []},
            "options": {"type": "dict", "default": {}},
            "takeover": {"type": "bool", "default": False},
            "seen": {"type": "int", "default": 0},
        },
        required_if=[("state", "serving", ("release",))],
        supports_check_mode=True,
    )
    try:
        result = desire(module.params, module.check_mode, client.call)
    except client.ERRORS as error:
        module.fail_json(msg=client.sentence(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
