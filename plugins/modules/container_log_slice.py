#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One slice of a container's boot: new log bytes, its state, the node's memory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_log_slice
short_description: Read one slice of a container's log, with its state and the node's memory
version_added: 0.1.0
description:
  - Waits until the container has written something new, has changed its state or O(wait) is over, then returns at once.
  - M(gb10.cluster.kv_pool_gate) calls it in a loop on every rank; the returned RV(cursor) is the next call's O(cursor).
  - The gate sends the same code without a module's wrapping from its second look on, which costs a tenth; the slices are the same.
  - Reads both streams of B(this) start of the container only (bounded by its id and start time); earlier boots never count.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  container:
    description: Name or id of the container.
    type: str
    required: true
  cursor:
    description: Where to continue, as the last slice returned it in RV(cursor). An empty one or V(0) begins at the container's start.
    type: str
    default: ""
  known_state:
    description: The container's status as the last slice returned it; a different one ends the wait at once.
    type: str
    default: ""
  wait:
    description: The longest time to wait for something new, in seconds.
    type: float
    default: 2.0
  gather:
    description:
      - How long news may gather before it is returned, in seconds, so that a chatty boot is not asked for line by line.
      - A change of state, an answer of O(url) and a line that may be decisive (an error, readiness) end it at once.
    type: float
    default: 0.0
  limit:
    description: The most log bytes that one slice returns; the rest comes with the next.
    type: int
    default: 262144
  url:
    description:
      - A URL on this node to ask for its HTTP status, C(http://127.0.0.1:8000/health) for one; leave empty on a rank without an API.
    type: str
    default: ""
  docker_socket:
    description: The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
"""

EXAMPLES = r"""
- name: What has the engine on this rank written since its start?
  gb10.cluster.container_log_slice:
    container: gb10-pair1-rank1
  register: slice
"""

RETURN = r"""
log:
  description: New bytes of the log, base64-encoded, since a log need not be valid UTF-8.
  type: str
  returned: always
  sample: SU5GTyAxMS0yMSAwNToyODowMSBbYXBpX3NlcnZlci5weTo2OF0=
cursor:
  description: Where the next slice continues. Its content is private.
  type: str
  returned: always
  sample: "1795239181123456790:12"
container:
  description: The container's state; null where there is no such container.
  type: dict
  returned: always
  sample: {id: 4f0c, status: running, exit_code: 0, oom_killed: false, restart_count: 0}
memory:
  description: The node's memory in KiB and the kernel's count of OOM kills.
  type: dict
  returned: always
  sample: {total_kib: 127602688, free_kib: 98304000, available_kib: 99000000, oom_kills: 0}
http_status:
  description: The status that O(url) answered; 0 where it was not asked or did not answer.
  type: int
  returned: always
  sample: 200
python:
  description: The Python that ran this module.
  type: str
  returned: always
  sample: /usr/bin/python3
"""

import sys

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils import boot_slice
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DEFAULT_SOCKET


def main() -> None:
    """Read one slice."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "cursor": {"type": "str", "default": ""},
            "known_state": {"type": "str", "default": ""},
            "wait": {"type": "float", "default": 2.0},
            "gather": {"type": "float", "default": 0.0},
            "limit": {"type": "int", "default": 262144},
            "url": {"type": "str", "default": ""},
            "docker_socket": {"type": "path", "default": DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    piece = boot_slice.run(module.params)
    if piece.get("failed"):
        module.fail_json(msg=piece["msg"])
    module.exit_json(changed=False, python=sys.executable, **piece)


if __name__ == "__main__":
    main()
