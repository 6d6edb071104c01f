#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a vLLM boot log: is it up, what did it get, and if not, what is the one thing to change."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_boot_log_info
short_description: Read a vLLM boot log into facts and a verdict
description:
  - Reads the log of vLLM 0.11 and later (V1 engine) on CUDA and CPU, also the logs of the GB10 forks.
  - Supports the prefixes that Docker, Compose and journald put before a line. A line that a copy has wrapped is not joined again.
  - Reads the log of one rank alone. M(gb10.cluster.kv_pool_gate) reports what only the logs of both ranks together show.
  - All top-level values are of the last boot in the log; C(boots) has the same for each of the last 20.
  - An absent fact is V(null). A log without a banner is not a failure, it is V(unknown) or V(starting).
  - Values of keys and tokens are redacted in everything that is returned.
  - The class of a failure is explained in docs/reference/failures.md.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
author:
  - The gb10.cluster authors (@gb10-cluster)
seealso:
  - plugin: gb10.cluster.vllm_boot_log
    plugin_type: filter
    description: Has every fact that is returned.
  - module: gb10.cluster.kv_pool_gate
options:
  path:
    description:
      - A log file on the target host, such as the output of C(docker logs) or C(journalctl -o cat).
      - It is read in slices; a file of any size takes constant memory.
    type: path
  text:
    description: The log itself.
    type: str
  container:
    description:
      - Name or id of a container on the target host. Both its streams are read from its last start on, because vLLM reports on stderr that it is ready.
      - The state of the container is read too, because an out-of-memory kill leaves no line.
    type: str
  docker_socket:
    description: The Docker Engine's socket.
    type: path
    default: /var/run/docker.sock
  extra_classes:
    description: Your own failure classes. They outrank the built-in ones.
    type: list
    elements: dict
    default: []
    suboptions:
      class:
        description: Name of the class.
        type: str
        required: true
      pattern:
        description:
          - Python regular expression, searched in each line that is an error or has no level.
          - A repeat inside a repeat is refused, because it can hang on a long line.
        type: str
        required: true
      remedy:
        description: One sentence, the one thing to change. C({name}) is replaced by the named group of the pattern.
        type: str
        required: true
      anchor:
        description: Where it is documented.
        type: str
      any_level:
        description: Whether lines of levels below error count too.
        type: bool
        default: false
"""

EXAMPLES = r"""
- name: Read a log file without an inventory
  # ansible localhost -m gb10.cluster.vllm_boot_log_info -a path=boot.log
  gb10.cluster.vllm_boot_log_info:
    path: boot.log
  register: boot

- name: Print the one thing to change
  ansible.builtin.debug:
    msg: "{{ boot.failure['class'] }}: {{ boot.failure.remedy }}"
  when: boot.failure is not none

- name: Read the running container of this node
  gb10.cluster.vllm_boot_log_info:
    container: gb10-vllm
  register: boot

- name: Name an error of your own plugin
  gb10.cluster.vllm_boot_log_info:
    container: gb10-vllm
    extra_classes:
      - class: licence_expired
        pattern: 'licence of plugin (?P<plugin>\w+) has expired'
        remedy: Renew the licence of {plugin}.
"""

# The other facts are those of the filter vllm_boot_log, which documents them.
RETURN = r"""
state:
  description:
    - State of the last boot in the log.
    - V(failed), a failure with no readiness after it. V(ready), readiness text or an answered request.
      V(starting), a stage was reached. V(unknown), no line of vLLM was recognised.
    - V(served_then_failed), a failure after readiness. The engine does not serve any more, also where C(/health) still answers,
      for example after the loss of the other rank (class C(peer_lost)), a fatal engine error or EngineDeadError.
    - V(failed) requires a decisive line, a second sign, or the end of the process.
      While O(container) runs, a weak line alone is a RV(suspicion) and the state stays V(starting).
    - A headless worker never reports that it is ready, so V(starting) is right for it.
    - V(ready) means that this boot became ready. C(stopped) shows whether it was shut down later.
  type: str
  returned: always
  sample: ready
stage:
  description: The furthest stage, in this order, V(none), V(args), V(config), V(rendezvous), V(load), V(kv), V(graphs), V(init), V(listen), V(ready).
  type: str
  returned: always
  sample: ready
stages:
  description: Each stage seen, with the line and the log's own time (month-day, the container's zone).
  type: dict
  returned: always
  sample: {load: {line_number: 40, time: "11-20 21:12:34"}}
suspicion:
  description:
    - A weak line that alone does not prove a failure, such as an optional import that failed, while the process runs; V(null) without one.
    - It has the keys of RV(failure) except C(also) and C(confirmed). It becomes RV(failure) if the process ends.
  type: dict
  returned: always
  sample: {class: toolchain, line: "ModuleNotFoundError: No module named 'example'", line_number: 31}
failure:
  description: The root cause, V(null) without one.
  type: dict
  returned: always
  contains:
    class:
      description: Class, as in docs/reference/failures.md.
      type: str
      sample: kv_too_small
    line:
      description: The line that shows it, without prefixes, secrets redacted, at most 600 characters.
      type: str
      sample: "ValueError: To serve at least one request with the model's max seq len (131072), ..."
    line_number:
      description: Its number in the log, from 1.
      type: int
      sample: 118
    remedy:
      description: The one thing to change.
      type: str
      sample: Set --max-model-len to at most 54432 (the estimate for the tightest rank), or free memory for the pool.
    anchor:
      description: Where it is explained.
      type: str
      sample: docs/reference/failures.md#kv_too_small
container:
  description: The state of O(container), if it was asked for.
  type: dict
  returned: with O(container)
  sample: {name: gb10-pair1-rank0, running: true, exit_code: 0, oom_killed: false}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, with_container
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api

CHUNK = 256 * 1024


def of_file(log: BootLog, path: str) -> dict[str, Any]:
    """Return the facts of a file. Raises OSError."""
    with open(path, "rb") as handle:
        while data := handle.read(CHUNK):
            log.feed(data)
    return log.facts(final=True)


def of_container(log: BootLog, name: str, socket: str) -> dict[str, Any]:
    """Return the facts of the present run of a container. Raises DockerError."""
    record = docker_api.inspect(name, socket)
    if not record:
        raise docker_api.DockerError(f"Container {name} does not exist on this host: `docker ps -a` lists its containers.")
    state = record.get("State") or {}
    found = {
        "name": str(record.get("Name") or name).lstrip("/"), "running": bool(state.get("Running")), "exit_code": state.get("ExitCode"),
        "oom_killed": bool(state.get("OOMKilled")), "started_at": state.get("StartedAt"),
    }  # fmt: skip
    for piece in docker_api.log_records(docker_api.logs(str(record["Id"]), max(docker_api.stamp_to_ns(str(found["started_at"] or "")), 0), socket)):
        log.feed(piece.text)
    return with_container(log.facts(final=not found["running"]), found)


def main() -> None:
    """Read the one source and return its facts."""
    classes = {"class": {"type": "str", "required": True}, "pattern": {"type": "str", "required": True}, "remedy": {"type": "str", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path"},
            "text": {"type": "str"},
            "container": {"type": "str"},
            "docker_socket": {"type": "path", "default": docker_api.DEFAULT_SOCKET},
            "extra_classes": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {**classes, "anchor": {"type": "str"}, "any_level": {"type": "bool", "default": False}},
            },
        },
        mutually_exclusive=[("path", "text", "container")],
        required_one_of=[("path", "text", "container")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        log = BootLog(params["extra_classes"])
        if params["container"] is not None:
            facts = of_container(log, params["container"], params["docker_socket"])
        elif params["path"] is not None:
            facts = of_file(log, params["path"])
        else:
            log.feed(params["text"].encode("utf-8", "surrogateescape"))
            facts = log.facts(final=True)
    except OSError as error:
        module.fail_json(msg=f"The log {error.filename} cannot be read ({error.strerror}): give the path of a readable log file on this host.")
    except (ValueError, docker_api.DockerError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
