# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render one rank of a serving group from a resolved profile: argv, environment, secrets and Compose file. Name the release of all ranks.

Environment, weakest first: what the collection adds (see values.py); ``env`` of the profile; ``head_env`` or ``worker_env``; the fabric variables of
this rank (``rank["env"]``, which also *removes* every other fabric variable of the profile, so that a source's interface names never mix with this node's);
the rank's own NODE_RANK, HEADLESS, MASTER_ADDR, MASTER_PORT, VLLM_HOST_IP; and the user's ``extra_env`` over all.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import holds_secret
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import api_url
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import IMAGE_LABEL, RELEASE_LABEL, SERVICE, fingerprint, release_id
from ansible_collections.gb10.cluster.plugins.module_utils._profile import trial, values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.trial import probe_words
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import PLACEHOLDERS, group_fault, store_mount

# One rank's fabric variables replace all of these: a GID index that the fabric omits on purpose must not come from a source.
FABRIC_ENV = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "VLLM_HOST_IP",
)
#: Size of /dev/shm in a private IPC namespace: above the 10 GB that Ray wants for its object store, and the 0.2 GiB of the queues of vLLM 0.32.
#: It is a limit: pages that nothing writes need no memory.
SHM_SIZE = "16g"
#: Runs in the container with the image's Python: HEALTH_SCRIPT /proc [HOST:PORT of the API]. The rules are those of _node/node.py.
HEALTH_SCRIPT = """\
import os, sys
table = {}
for pid in filter(str.isdigit, os.listdir(sys.argv[1])):
    try:
        with open(f"{sys.argv[1]}/{pid}/stat", errors="replace") as stat, open(f"{sys.argv[1]}/{pid}/cmdline", errors="replace") as line:
            (name, _, rest), words = stat.read().partition("(")[2].rpartition(")"), line.read()
    except OSError:
        continue
    state, parent = rest.split()[:2]
    engine = name.startswith("VLLM::") or "vllm" in words.lower() or "multiprocessing.spawn" in words
    table[pid] = parent, state, name, engine
ranks = ["1"]
for pid in ranks:
    ranks += [child for child in table if table[child][0] == pid]
for pid in ranks:
    parent, state, name, engine = table[pid]
    if state in "Tt" and (engine or pid == "1"):
        sys.exit(f"the engine process is stopped (PID {pid}, {name})")
    if state == "Z" and name.startswith("VLLM::"):
        sys.exit(f"the engine process is dead (PID {pid}, {name})")
if table["1"][3] and not any(table[pid][3] and table[pid][1] not in "ZXx" for pid in ranks[1:]):
    sys.exit("the engine process does not run")
for place in sys.argv[2:]:
    from http.client import HTTPConnection
    api = HTTPConnection(place, timeout=5)
    api.request("GET", "/health")
    status = api.getresponse().status
    if status != 200:
        sys.exit(f"/health: HTTP {status}")
"""


class ServingError(ValueError):
    """A profile does not fit a rank, or an option is not valid. The text names the remedy."""


def compact_json(value: Any) -> str:
    """Return JSON as the sources write it: no spaces, no escaped letters."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _argument(flag: str, value: Any) -> list[str]:
    """Return the words of one argument (see engine.args in the schema)."""
    if value is None or (value is False and "." not in flag):
        return []
    if "." in flag:
        return [f"--{flag}={compact_json(value) if isinstance(value, (Mapping, list)) else _word(value)}"]
    if value is True:
        return ["--" + flag]
    if isinstance(value, Mapping):
        return ["--" + flag, compact_json(value)]
    if isinstance(value, (list, tuple)):
        return ["--" + flag] + [_word(v) for v in value]
    return ["--" + flag, _word(value)]


def build_argv(profile: Mapping[str, Any], rank: Mapping[str, Any]) -> list[str]:
    """Return the engine's command line for one rank, unquoted words.

    Order: command, model, served names, host and port, the profile's arguments as written, then the ranks' wiring.
    An argument that the profile places itself (with a placeholder) stands there.
    """
    engine, model = profile["engine"], profile["model"]
    number, size = int(rank["rank"]), int(rank["size"])
    args = values.drafter_arguments(profile)
    mp = engine["executor"] == "mp" and size > 1
    wiring: dict[str, Any] = {
        "served-model-name": list(model["served_names"]),
        "host": engine["api"]["host"],
        "port": engine["api"]["port"],
        "tensor-parallel-size": size,
        "distributed-executor-backend": engine["executor"] if engine["executor"] == "ray" or size > 1 else None,
        "nnodes": size if mp else None,
        "node-rank": number if mp else None,
        "master-addr": rank.get("master_addr") if mp else None,
        "master-port": engine["master_port"] if mp else None,
        "headless": True if mp and number > 0 and engine["headless_flag"] == "--headless" else None,
    }
    last = ["tensor-parallel-size", "nnodes", "node-rank", "master-addr", "master-port"]
    if engine["executor"] == "ray":
        last.insert(1, "distributed-executor-backend")
    words = [*engine["command"], *([] if engine["positional_model"] else ["--model"]), model["path"]]
    if model["revision"] and "revision" not in args:
        words += ["--revision", model["revision"]]
    for flag in ("served-model-name", "host", "port"):
        if flag not in args:
            words += _argument(flag, wiring[flag])
    for flag, value in args.items():
        words += _argument(flag, wiring[flag] if flag in PLACEHOLDERS and value == PLACEHOLDERS[flag] else value)
    for flag in last:
        if flag not in args:
            words += _argument(flag, wiring[flag])
    if mp and number > 0 and engine["headless_flag"] and engine["headless_flag"] not in words:
        words.append(engine["headless_flag"])
    return words


def _environment(profile: Mapping[str, Any], rank: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, str]:
    number, size = int(rank["rank"]), int(rank["size"])
    on_node = options.get("fabric") == "node"
    fabric = {} if on_node else {str(key): _word(value) for key, value in (rank.get("env") or {}).items() if value not in (None, "")}
    env: dict[str, str] = {**values.added_environment(profile), **profile["env"], **profile["worker_env" if number else "head_env"]}
    if fabric or on_node:
        env = {key: value for key, value in env.items() if key not in FABRIC_ENV}
        env.update(fabric)
    if size > 1:
        env["NODE_RANK"] = str(number)
        env["HEADLESS"] = "1" if number else ""
        env["MASTER_ADDR"] = str(rank["master_addr"])
        env["MASTER_PORT"] = str(profile["engine"]["master_port"])
        if rank.get("fabric_ip"):
            env["VLLM_HOST_IP"] = str(rank["fabric_ip"])
    for key, value in (options.get("extra_env") or {}).items():
        if value is None:
            env.pop(str(key), None)
        else:
            env[str(key)] = _word(value)
    return env


def _ray_script(profile: Mapping[str, Any], rank: Mapping[str, Any], argv: Sequence[str]) -> str:
    """Return the shell line of one rank under Ray: the head starts Ray, then serves; the others join and stay."""
    ray = profile["engine"]["ray"]
    number = int(rank["rank"])
    head = rank.get("master_addr") or "127.0.0.1"
    address = rank.get("fabric_ip") or head
    if number == 0:
        keep = 'mkdir -p "$HOME/.config/vllm" && printf %s {} > "$HOME/.config/vllm/ray_non_carry_over_env_vars.json"'.format(
            shlex.quote(compact_json([*ray["own_env"], "VLLM_API_KEY"]))  # vLLM hands its variables to the workers, and they serve no API
        )
        start = ["ray", "start", "--head", f"--node-ip-address={address}", "--port={}".format(ray["port"]), "--disable-usage-stats"]
        return "{} && {} && exec {}".format(keep, shlex.join(start + list(ray["head_args"])), shlex.join(argv))
    start = ["ray", "start", "--address={}:{}".format(head, ray["port"]), f"--node-ip-address={address}", "--disable-usage-stats", "--block"]
    return "until (exec 3<>/dev/tcp/{}/{}) 2>/dev/null; do sleep 1; done; exec {}".format(head, ray["port"], shlex.join(start + list(ray["worker_args"])))


def _ulimits(box: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    limits = {"memlock": options.get("memlock", box["memlock"]), "stack": options.get("stack", box["stack"]), "nofile": box["nofile"]}
    for key, value in limits.items():
        if value in ("unlimited", "infinity"):
            limits[key] = -1
        elif value is not None and not re.fullmatch(r"-1|\d+", str(value)):
            raise ServingError(f"{key} is {value!r}, expected a number of bytes, -1 or unlimited")
    return {key: {"soft": int(value), "hard": int(value)} for key, value in limits.items() if value is not None}


def _cache_key(profile: Mapping[str, Any], rank: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    return values.cache_key(profile, int(rank["size"]), str(options.get("content") or image_of(profile)), options.get("extra_env") or {})


def _volumes(profile: Mapping[str, Any], rank: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    store = str(options.get("model_store") or "")
    if not store and any("{model_store}" in volume for volume in profile["container"]["volumes"]):
        raise ServingError(f"profile {profile['name']} mounts {{model_store}}, but no model store is set for this host: set gb10_model_store")
    writable = [] if options.get("weights_writable") else values.writable_weights(profile, store)
    if writable:
        raise ServingError("; ".join(writable))
    folders = host_paths(profile, store)["caches"]
    name = _cache_key(profile, rank, options)
    split = [volume.partition(":") for volume in values.volumes_on_node(profile, store)]
    return [values.with_cache_key(host, folders, name) + colon + rest for host, colon, rest in split]


def _escape(value: Any) -> Any:
    """Double every dollar sign: compose would read it as a variable."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {k: _escape(v) for k, v in value.items()}
    return [_escape(v) for v in value] if isinstance(value, list) else value


def image_of(profile: Mapping[str, Any]) -> str:
    """Return the image as a user would pull it: name:tag, or name:tag@sha256:... if the profile pins it."""
    image = profile["image"]
    return f"{image['reference']}@{image['digest']}" if image["digest"] else str(image["reference"])


def health_check(api: Mapping[str, Any], rank: int, changes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return `healthcheck` of a rank's service. `changes` are keys of Compose that win, `disable` among them; None renders no health check.

    Headless workers have no API, so their processes are checked. The first success ends the start period, so it only has to be longer than any launch.
    It does not depend on the limits of a launch, which are not part of a release.
    """
    if changes is None or changes.get("disable"):
        return None if changes is None else {"disable": True}
    test = ["CMD", "python3", "-IS", "-c", HEALTH_SCRIPT, "/proc", *([] if rank else [urlsplit(api_url(api)).netloc])]
    return {"test": test, "interval": "15s", "timeout": "10s", "retries": 3, "start_period": "2h", **changes}


def _service(profile: Mapping[str, Any], rank: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the service without command, environment and secrets. The keys are in the order of the file."""
    box = profile["container"]
    infiniband = options.get("infiniband") or []
    nodes = ["/dev/infiniband"] if infiniband is True else infiniband
    devices = [*(f"{path}:{path}" for path in nodes), *box["devices"]]
    # Read by every compose v2; the short form "gpus: all" needs 2.30.
    gpus = {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}}
    log = {"max-size": str(options.get("log_max_size") or "64m"), "max-file": str(options.get("log_max_file") or 3)}
    labels = {"gb10.cluster.rank": str(rank["rank"]), "gb10.cluster.profile": profile["name"]}
    if options.get("group"):
        labels["gb10.cluster.group"] = str(options["group"])
    if options.get("content"):
        labels[IMAGE_LABEL] = str(options["content"])
    host_ipc = "host" in (box["ipc"], options.get("ipc"))
    optional = {
        "ipc": "host" if host_ipc else None,  # else Docker's default, private
        "shm_size": box["shm_size"] or (None if host_ipc else SHM_SIZE),
        "stop_grace_period": box["stop_grace_period"],
        "security_opt": ["no-new-privileges:true"] if options.get("no_new_privileges", True) else [],
        "cap_drop": ["ALL"],
        "cap_add": list(dict.fromkeys(["IPC_LOCK", *box["cap_add"], *(options.get("cap_add") or [])])),
        "devices": devices,
        "ulimits": _ulimits(box, options),
        "mem_limit": box["memory"],
        "volumes": _volumes(profile, rank, options),
        "tmpfs": list(box["tmpfs"]),
        "deploy": gpus if box["gpus"] == "all" else None,
        "healthcheck": health_check(profile["engine"]["api"], int(rank["rank"]), options.get("healthcheck", {})),
    }
    return {
        "image": options.get("image") or image_of(profile),
        "container_name": options.get("name") or "vllm",
        "pull_policy": "never" if options.get("image") or not profile["image"]["pull"] else "missing",
        "restart": "no",
        "network_mode": "host",
        **{key: value for key, value in optional.items() if value},
        "logging": {"driver": "json-file", "options": log},
        "labels": labels,
    }


def render_rank(profile: Mapping[str, Any], rank: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Render one rank of a serving group.

    :param profile: a resolved profile.
    :param rank: ``rank`` and ``size`` (int), ``master_addr`` and ``fabric_ip`` (str), ``env`` (fabric variables of this rank).
    :param options: ``name`` of container and service, ``project`` of Compose, ``group`` for the label; ``image`` to run in place of the profile's reference,
        such as this node's id of it, and ``content``, the fingerprint of its content; ``fabric="node"`` renders no fabric variables, because the node
        resolves them at each start; ``infiniband`` is a list of device nodes, or true for the folder; ``cap_add`` is added to IPC_LOCK and to those of the
        profile; ``no_new_privileges`` false lets setuid programs work; ``ipc="host"``; ``weights_writable`` accepts volumes through which the engine can change
        the weights; ``secrets`` are for secrets.env next to the Compose file, ``env_file`` is one more file on the node, whose values win; ``healthcheck``
        has keys of Compose that win (``disable`` switches it off, None leaves it out); ``memlock``, ``stack``, ``model_store``, ``extra_env``,
        ``log_max_size`` and ``log_max_file`` are those of the role.
    :returns: ``argv`` (the engine's words), ``command`` (the container's), ``env``, ``secrets``, ``fingerprint`` (of the secrets),
        ``compose`` (the file's content, dollar signs doubled, no secret in it), ``probe`` (words for the image's python3, see trial.py),
        ``caches`` (the folders of the compile caches on the node), ``collective`` (the service of the collective test, see trial.py).
    :raises ServingError: profile and group do not fit, or an option is wrong.
    """
    options = options or {}
    fault = group_fault(profile, int(rank["size"]))
    if fault:
        raise ServingError(fault)
    argv = build_argv(profile, rank)
    env = _environment(profile, rank, options)
    secrets = {str(key): str(value) for key, value in (options.get("secrets") or {}).items() if value not in (None, "")}
    for key in [key for key, value in env.items() if key in secrets or holds_secret(key, value)]:
        if key not in secrets:
            raise ServingError(f"the environment variable {key} looks like a secret: set it in vllm_tp2_secret_env instead of vllm_tp2_extra_env")
        del env[key]
    engine = profile["engine"]
    if engine["executor"] == "ray":
        command = [*(engine["shell"] or ["bash", "-c"]), _ray_script(profile, rank, argv)]
    elif engine["shell"]:
        command = [*engine["shell"], "exec " + shlex.join(argv)]
    else:
        command = list(argv)
    service = _service(profile, rank, options)
    if engine["entrypoint"] is not None:
        service["entrypoint"] = list(engine["entrypoint"])
    service["command"] = command
    service["environment"] = env
    test = trial.service_of(profile, rank, service, str(options.get("model_store") or ""))
    env_files = [*(["secrets.env"] if secrets else []), *([str(options["env_file"])] if options.get("env_file") else [])]
    if env_files:
        service["env_file"] = env_files
    compose: dict[str, Any] = {"name": options["project"]} if options.get("project") else {}
    compose["services"] = {SERVICE: _escape(service)}
    return {
        "argv": argv,
        "command": command,
        "env": env,
        "secrets": secrets,
        "fingerprint": fingerprint(secrets, str(options.get("group") or "")),
        "compose": compose,
        "probe": probe_words(profile, service.get("devices") or [], bool(options.get("weights_writable"))),
        "caches": [f"{path}-{_cache_key(profile, rank, options)}" for path in host_paths(profile, str(options.get("model_store") or ""))["caches"]],
        "collective": _escape(test),
    }


def name_release(ranks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the release of all ranks: its ``id``, and ``compose``, each rank's Compose file with the id on its label.

    The id is a hash of what the ranks are rendered to. It contains the fingerprint of the image's content and not the image's id, which differs
    between image stores.

    :param ranks: ``compose`` and ``fingerprint`` of :func:`render_rank`, in the order of the ranks.
    """
    rendered = list(ranks)
    services = [rank["compose"]["services"][SERVICE] for rank in rendered]
    contents = []
    for rank, service in zip(rendered, services):
        content = service["labels"].get(IMAGE_LABEL)
        named = {**service, "image": content, "pull_policy": "never"} if content else service
        contents.append([{**rank["compose"], "services": {SERVICE: named}}, rank["fingerprint"]])
    release = release_id(contents)
    files = []
    for rank, service in zip(rendered, services):
        labels = {**service["labels"], RELEASE_LABEL: release}
        if IMAGE_LABEL in labels:
            labels[IMAGE_LABEL] = labels.pop(IMAGE_LABEL)  # the last one, in all files
        files.append({**rank["compose"], "services": {SERVICE: {**service, "labels": labels}}})
    return {"id": release, "compose": files}


def env_file_text(secrets: Mapping[str, str]) -> str:
    """Return the text of the environment file of the secrets. Raises ServingError."""
    values = {str(key): str(value) for key, value in secrets.items()}
    for key in sorted(values):
        problem = bounded.env_problem(values[key])
        if problem:
            raise ServingError(f"the secret {key} {problem}, which an environment file cannot contain: choose another value")
    return bounded.env_text(values)


def host_paths(profile: Mapping[str, Any], model_store: str) -> dict[str, Any]:
    """Return paths on a node: ``model`` (or None when unknown), ``drafter`` (or None without one), ``gib`` (size of both, 0 if not known), ``caches``
    (compile caches, without their key), and ``store_mount`` (in the container).
    """
    store = model_store.rstrip("/")
    paths = [f"{store}/{each['relative_path']}" if each["relative_path"] else None for each in values.models_of(profile)]
    return {
        "model": paths[0],
        "drafter": paths[1] if len(paths) > 1 else None,
        "gib": values.disk_gib(profile),
        "caches": [c.replace("{model_store}", store).rstrip("/") for c in profile["container"]["cache_dirs"]],
        "store_mount": store_mount(profile),
    }
