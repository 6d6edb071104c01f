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
  - All top-level values are of the last boot in the log; RV(boots) has the same for each of the last 20.
  - An absent fact is V(null). A log without a banner is not a failure, it is V(unknown) or V(starting).
  - Values of keys and tokens are redacted in everything that is returned.
  - The class of a failure is explained in docs/reference/failures.md.
extends_documentation_fragment:
  - gb10.cluster.attributes
  - gb10.cluster.attributes.info
author:
  - The gb10.cluster authors (@gb10-cluster)
options:
  path:
    description:
      - A log file on the target host. Also one that is C(.gz).
      - It is read in slices; a file of any size takes constant memory.
    type: path
  text:
    description: The log itself.
    type: str
  container:
    description:
      - Name or id of a container on the target host. Both its streams are read, because vLLM reports on stderr that it is ready.
      - The state of the container is read too, because an out-of-memory kill leaves no line.
    type: str
  unit:
    description: A systemd unit on the target host, read with C(journalctl).
    type: str
  since:
    description:
      - Where to begin in the log of a O(container) or O(unit).
      - V(started) begins at the current run, so that a restart policy does not show an older run as this one.
      - V(all) reads everything kept.
      - For a O(container), a time such as V(2026-11-21T05:00:00Z), or an age such as V(90s), V(30m) or V(2h). For a O(unit), the argument of
        C(journalctl --since).
    type: str
    default: started
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
    - V(ready) means that this boot became ready. RV(stopped) shows whether it was shut down later.
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
progress:
  description: The last progress bar, C(what) (weights or graphs), C(percent), C(done), C(total), C(line_number); V(null) without one.
  type: dict
  returned: always
  sample: {what: weights, percent: 25, done: 3, total: 12, line_number: 44}
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
    kind:
      description: V(strong) (the engine cannot live after it), V(weak) (a refused setting or request), V(tail) (a symptom).
      type: str
      sample: strong
    confirmed:
      description: Whether more than one weak line alone shows it. A weak failure that is not confirmed counts because the log is complete.
      type: bool
      sample: true
    also:
      description: Further classes seen in this boot, most specific first.
      type: list
      elements: str
      sample: [worker_died, engine_failed]
    rank:
      description: The rank whose process printed it, where the log tells.
      type: int
      sample: 1
    proc:
      description: The process that printed it.
      type: str
      sample: Worker_TP1
    ip:
      description: The address that Ray prints with the process; V(null) without Ray.
      type: str
      sample: 10.77.0.2
    needs_peer:
      description: What to look for in the other rank's log; empty if nothing.
      type: str
      sample: its log and its container's state have the cause
    found:
      description: The numbers and names in the line.
      type: dict
      sample: {context: "131072", estimate: "54432"}
    after_ready:
      description: Whether it came after readiness.
      type: bool
      sample: false
    count:
      description: How many lines of this class there are.
      type: int
      sample: 3
version:
  description: vLLM's version as printed.
  type: str
  returned: always
  sample: 0.25.2.dev0+g752a3a504.d20260714
model:
  description: The model as given.
  type: str
  returned: always
  sample: /models/deepseek-v4-flash
context:
  description: The context in tokens that the concurrency was computed for, else max_seq_len, else the first "Using max model len".
  type: int
  returned: always
  sample: 1048576
kv_cache:
  description: The KV pool, of the engine whose pool is smallest.
  type: dict
  returned: always
  contains:
    tokens:
      description: Tokens as printed, smallest over the ranks. Not comparable between vLLM versions.
      type: int
      sample: 2493464
    effective_tokens:
      description: Concurrency times context; comparable between versions.
      type: int
      sample: 2495611
    max_concurrency:
      description: Requests of full length that fit at once.
      type: float
      sample: 2.38
    context:
      description: The context of that figure, in tokens.
      type: int
      sample: 1048576
    blocks:
      description: GPU blocks, where printed.
      type: int
      sample: 9526
    blocks_override:
      description: The configured number of blocks that replaced it, where printed.
      type: int
      sample: 512
    device:
      description: Where the pool lies, as printed.
      type: str
      sample: GPU
    available_gib:
      description: Memory for the pool in GiB, smallest over the ranks in this log; can be negative.
      type: float
      sample: 18.08
    available:
      description: The same per process.
      type: list
      elements: dict
      sample: [{gib: 18.08, proc: Worker_TP0, line_number: 60}]
    tokens_of_all_engines:
      description: The sum over the data-parallel engines, where printed.
      type: int
      sample: 2493464
    engines:
      description: One entry per data-parallel engine.
      type: list
      elements: dict
      sample: [{engine: EngineCore_DP0, tokens: 576432, max_concurrency: 140.73, context: 4096, effective_tokens: 576430, line_number: 12}]
    hybrid_old_formula:
      description: Whether the tokens are far below concurrency times context, as vLLM up to 0.20.0 prints for hybrid models.
      type: bool
      sample: false
weights:
  description: C(gib) of the largest rank, C(seconds) of reading, and C(ranks).
  type: dict
  returned: always
  sample: {gib: 48.5, seconds: 371.35, ranks: []}
load_seconds:
  description: Seconds of the whole model load, slowest rank.
  type: float
  returned: always
  sample: 455.9
graphs:
  description: C(seconds) and C(gib) of graph capture, and C(eager).
  type: dict
  returned: always
  sample: {seconds: 11.0, gib: 0.66, eager: false}
init_seconds:
  description: Seconds of the engine's initialisation (profile, KV cache, warm-up).
  type: float
  returned: always
  sample: 65.48
compilation_seconds:
  description: Seconds of it that went into compilation, where printed.
  type: float
  returned: always
  sample: 31.2
dtype:
  description: Data type of the weights.
  type: str
  returned: always
  sample: bfloat16
kv_cache_dtype:
  description: Data type of the KV cache.
  type: str
  returned: always
  sample: fp8
quantization:
  description: Quantization method.
  type: str
  returned: always
  sample: compressed-tensors
speculative_method:
  description: Speculative decoding method.
  type: str
  returned: always
  sample: mtp
attention_backend:
  description: The first attention backend named.
  type: str
  returned: always
  sample: FLASHINFER
moe_backend:
  description: The first backend of the experts that the log names; V(null) without one.
  type: str
  returned: always
  sample: B12X
custom_ops:
  description: The C(custom_ops) of the engine's compilation, joined by commas; V(null) if the log does not have the engine's configuration.
  type: str
  returned: always
  sample: none
autotune:
  description: Whether FlashInfer tunes its kernels, by the engine's configuration; V(null) if not known.
  type: bool
  returned: always
  sample: true
drafter:
  description: Whether the load of a drafter has begun.
  type: bool
  returned: always
  sample: true
eager:
  description: Whether the engine runs without CUDA graphs; V(null) if not known.
  type: bool
  returned: always
  sample: false
tensor_parallel_size:
  description: Ranks that share each layer.
  type: int
  returned: always
  sample: 2
pipeline_parallel_size:
  description: Stages of layers.
  type: int
  returned: always
  sample: 1
data_parallel_size:
  description: Engines side by side.
  type: int
  returned: always
  sample: 1
ranks:
  description: The ranks in this log.
  type: list
  elements: dict
  returned: always
  sample: [{rank: 0, world_size: 2, local_rank: 0, init_method: "tcp://10.77.0.1:29501", backend: nccl, tp: 0}]
world_size:
  description: Number of ranks.
  type: int
  returned: always
  sample: 2
head_address:
  description: Address at which the ranks meet; as a headless worker prints it, with the port.
  type: str
  returned: always
  sample: 10.77.0.1
role:
  description: V(head), V(worker) (headless) or V(unknown).
  type: str
  returned: always
  sample: head
platform:
  description: The platform that vLLM detected, where printed.
  type: str
  returned: always
  sample: cuda
listen:
  description: Where the API listens.
  type: str
  returned: always
  sample: http://0.0.0.0:8000
nccl:
  description: C(version), C(transport) (V(rdma), V(tcp), V(plugin), V(unknown); V(unknown) is normal without NCCL_DEBUG=INFO), C(network), C(hcas).
  type: dict
  returned: always
  sample: {version: 2.29.7, transport: rdma, network: IB, hcas: ["rocep1s0f1:1"], via: [IB], no_ib_device: false}
ready:
  description: The evidence of readiness, C(evidence) (V(startup), V(uvicorn), V(frontend), V(access)), C(line), C(line_number), C(time).
  type: dict
  returned: always
  sample: {evidence: startup, line: Application startup complete., line_number: 200, time: null}
stopped:
  description: The first line that reports that the server or a rank shuts down; V(null) without one.
  type: dict
  returned: always
  sample: {line: Shutting down, line_number: 220, time: null}
peer_lost:
  description:
    - The first line that reports that the connection to the other rank broke.
  type: dict
  returned: always
  sample: {line: "RuntimeError: Connection closed by peer [10.77.0.2]:29319", line_number: 187, peer: 10.77.0.2}
args:
  description: Arguments of interest as given on the command line.
  type: dict
  returned: always
  sample: {max_model_len: 512, node_rank: 1}
benign:
  description: Lines that look like failures and are not, counted by name.
  type: dict
  returned: always
  sample: {fd_limit: 1}
unknown_variables:
  description: Environment variables that this vLLM does not know, so that what they select is off.
  type: list
  elements: str
  returned: always
  sample: [VLLM_USE_B12X_MOE]
first_line:
  description: The number of this boot's first line in the log, from 1.
  type: int
  returned: always
  sample: 1
last_line:
  description: The number of its last line.
  type: int
  returned: always
  sample: 220
lines:
  description: For each fact the number of the line it came from.
  type: dict
  returned: always
  sample: {version: 4, kv_cache: 60}
restarts:
  description: Boots in the log before the last one.
  type: int
  returned: always
  sample: 0
boots:
  description: The same for each of the last 20 boots, oldest first; the last is the one at the top level.
  type: list
  elements: dict
  returned: always
  sample: []
bytes_read:
  description: Bytes of the log that were read.
  type: int
  returned: always
  sample: 48211
lines_read:
  description: Lines of the log that were read.
  type: int
  returned: always
  sample: 220
container:
  description: State of the container that was read.
  type: dict
  returned: with O(container)
  sample: {name: gb10-vllm, running: false, exit_code: 137, oom_killed: true, started_at: "2026-11-20T21:12:19Z", restart_count: 0}
"""

import contextlib
import gzip
import re
import shlex
import tempfile
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.container import with_container
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog
from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client
from ansible_collections.gb10.cluster.plugins.module_utils._docker import log as container_log

CHUNK = 256 * 1024


def read_file(module: AnsibleModule, log: BootLog, path: str, what: str) -> None:
    """Feed a file in slices."""
    try:
        opener: Any = gzip.open if path.endswith(".gz") else open
        with opener(path, "rb") as handle:
            while True:
                data = handle.read(CHUNK)
                if not data:
                    return
                log.feed(data)
    except (OSError, EOFError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        module.fail_json(msg=f"{what} {path} cannot be read ({reason}): give the path of a readable log file on this host.")


def read_command(module: AnsibleModule, log: BootLog, command: str, what: str, remedy: str) -> None:
    """Run a command with both its streams into one temporary file, in the order in which they were written, and feed that."""
    with tempfile.NamedTemporaryFile(dir=module.tmpdir, prefix="boot-log-") as handle:
        code, out, err = module.run_command(f"{command} > {shlex.quote(handle.name)} 2>&1", use_unsafe_shell=True)
        if code != 0:
            printed = ""
            with contextlib.suppress(OSError):
                printed = bounded.end(handle.name, 300).strip()
            module.fail_json(msg=f"{what} cannot be read, `{command}` ended with {code} ({printed or err.strip() or out.strip() or 'no text'}): {remedy}")
        read_file(module, log, handle.name, what)


def since_ns(since: str, started: str) -> int:
    """Return a container's `since` in ns since the epoch, 0 for everything. Raises ValueError."""
    if since == "all":
        return 0
    if since == "started":
        return max(container_log.stamp_to_ns(started), 0)
    age = re.fullmatch(r"(\d+)([smhd])", since)
    if age:
        return time.time_ns() - int(age.group(1)) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[age.group(2)] * 10**9
    moment = container_log.stamp_to_ns(since)
    if not moment:
        raise ValueError(since)
    return moment


def read_container(module: AnsibleModule, log: BootLog) -> dict[str, Any]:
    """Feed a container's log and return its state."""
    name, socket_path, since = module.params["container"], module.params["docker_socket"], module.params["since"]
    record: dict[str, Any] = {}
    state: dict[str, Any] = {}
    started = ""
    try:
        record = client.inspect(name, socket_path) or {}
        if not record:
            module.fail_json(msg=f"Container {name} does not exist on this host: `docker ps -a` lists its containers.")
        state = record.get("State") or {}
        started = str(state.get("StartedAt") or "")
        try:
            moment = since_ns(since, started)
        except ValueError:
            module.fail_json(msg=f"since is {since!r}. A time such as 2026-11-21T05:00:00Z, an age such as 30m, started or all is expected.")
        for piece in container_log.records(client.logs(str(record["Id"]), moment, socket_path)):
            log.feed(piece.text)
    except client.DockerError as error:
        module.fail_json(msg=f"The log of container {name} cannot be read. {error}")
    return {
        "name": str(record.get("Name") or name).lstrip("/"),
        "running": bool(state.get("Running")),
        "status": state.get("Status"),
        "exit_code": state.get("ExitCode"),
        "oom_killed": bool(state.get("OOMKilled")),
        "started_at": started or None,
        "finished_at": state.get("FinishedAt"),
        "restart_count": record.get("RestartCount"),
        "image": record.get("Image"),
    }


def read_unit(module: AnsibleModule, log: BootLog) -> None:
    """Feed a unit's journal."""
    unit, since = module.params["unit"], module.params["since"]
    command = ["journalctl", "--no-pager", "--quiet", "--output", "cat"]
    if since == "started":
        code, out, _err = module.run_command(["systemctl", "show", "--property", "InvocationID", "--value", "--", unit])
        invocation = out.strip()
        if code == 0 and invocation:
            command += [f"_SYSTEMD_INVOCATION_ID={invocation}"]
        else:
            command += ["--unit", unit]
    elif since == "all":
        command += ["--unit", unit]
    else:
        command += ["--since", since, "--unit", unit]
    read_command(module, log, shlex.join(command), f"The journal of unit {unit}", "run as root, or as a member of systemd-journal.")


def main() -> None:
    """Read the one source and return its facts."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path"},
            "text": {"type": "str"},
            "container": {"type": "str"},
            "unit": {"type": "str"},
            "since": {"type": "str", "default": "started"},
            "docker_socket": {"type": "path", "default": client.DEFAULT_SOCKET},
            "extra_classes": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "class": {"type": "str", "required": True},
                    "pattern": {"type": "str", "required": True},
                    "remedy": {"type": "str", "required": True},
                    "anchor": {"type": "str"},
                    "any_level": {"type": "bool", "default": False},
                },
            },
        },
        mutually_exclusive=[("path", "text", "container", "unit")],
        required_one_of=[("path", "text", "container", "unit")],
        supports_check_mode=True,
    )
    try:
        log = BootLog(module.params["extra_classes"])
    except ValueError as error:
        module.fail_json(msg=str(error))
    container = None
    if module.params["path"] is not None:
        read_file(module, log, module.params["path"], "The log")
    elif module.params["text"] is not None:
        log.feed(module.params["text"].encode("utf-8", "surrogateescape"))
    elif module.params["container"] is not None:
        container = read_container(module, log)
    else:
        read_unit(module, log)
    facts = log.facts(final=container is None or not container["running"])
    if container is not None:
        facts = with_container(facts, container)
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
