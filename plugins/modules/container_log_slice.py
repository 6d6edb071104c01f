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
  - Reads both streams of B(this) start of the container only (bounded by its id and start time); earlier boots never count.
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  container:
    description: Name or id of the container.
    type: str
    required: true
  cursor:
    description: Where to read on, in ns since the epoch, as the last slice returned it. V(0) starts at the container's start.
    type: int
    default: 0
  known_state:
    description: The container's status as the last slice returned it; a different one ends the wait at once.
    type: str
    default: ""
  wait:
    description: The longest time to wait for something new, in seconds.
    type: float
    default: 2.0
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
  description: Where the next slice starts, in ns since the epoch.
  type: int
  returned: always
  sample: 1795239181123456790
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
"""

import base64
import http.client
import time
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils import container_log, docker_socket

POLL_SECONDS = 0.2


def http_status(url: str) -> int:
    """Ask a URL on this node; 0 means no answer within two seconds."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=2)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def read_text(path: str) -> str:
    """Read a small file of /proc; an unreadable one reads as empty."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def main() -> None:
    """Read one slice."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "cursor": {"type": "int", "default": 0},
            "known_state": {"type": "str", "default": ""},
            "wait": {"type": "float", "default": 2.0},
            "limit": {"type": "int", "default": 262144},
            "url": {"type": "str", "default": ""},
            "docker_socket": {"type": "path", "default": docker_socket.DEFAULT_SOCKET},
        },
        supports_check_mode=True,
    )
    name, path = module.params["container"], module.params["docker_socket"]
    cursor = int(module.params["cursor"])
    deadline = time.monotonic() + module.params["wait"]
    data = b""
    status = 0
    try:
        while True:
            state = container_log.state_of(docker_socket.inspect(name, path))
            if state is not None and state["status"] != "created":
                since = max(cursor, container_log.stamp_to_ns(state["started_at"]))
                data, last = container_log.demux(docker_socket.logs(state["id"], since, path), module.params["limit"])
                cursor = last + 1 if last else since
            if module.params["url"] and not status:
                status = http_status(module.params["url"])
            changed_state = (state["status"] if state else "absent") != module.params["known_state"]
            if data or changed_state or status or time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
    except docker_socket.DockerError as error:
        module.fail_json(msg=f"Cannot follow the container {name}: {error}")
    module.exit_json(
        changed=False,
        log=base64.b64encode(data).decode(),
        cursor=cursor,
        container=state,
        memory=container_log.memory_of(read_text("/proc/meminfo"), read_text("/proc/vmstat")),
        http_status=status,
    )


if __name__ == "__main__":
    main()
