# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: a resolved profile and one rank's place to the engine's argv, environment, secrets and compose file, pure.

Environment, weakest first: ``env`` of the profile; ``head_env`` or ``worker_env``; what the fabric says of this rank
(``rank["env"]``, which also *removes* every other fabric variable of the profile, so that a seed's interface names
never mix with this node's); the rank's own NODE_RANK, HEADLESS, MASTER_ADDR, MASTER_PORT, VLLM_HOST_IP; and the
user's ``extra_env`` over all. Secrets leave the environment for ``secrets``, which belongs into a 0600 env file.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile.profile import (
    PLACEHOLDERS,
    SECRET_ARGS,
    human_int,
    is_secret_name,
    store_mount,
)
from ansible_collections.gb10.cluster.plugins.module_utils._release.release import SERVICE

# What the fabric decides. One rank's fabric facts replace all of them: a GID index that the facts leave out on
# purpose must not come back from a seed.
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
LABEL = "gb10.cluster"
OPTIONS = {
    "name": "container and service name",
    "project": "compose project name",
    "image": "image to run instead of the profile's reference, such as this node's id of it",
    "content": "fingerprint of the image's content for the label, the same on nodes whose engines compute other ids",
    "memlock": "bytes, -1 or unlimited, null leaves it alone",
    "stack": "bytes, -1 or unlimited, null leaves it alone",
    "fabric": "node: the fabric variables are resolved on the node at each start, and none is rendered",
    "infiniband": "whether /dev/infiniband exists on the node",
    "model_store": "directory on the node",
    "extra_args": "mapping over engine.args, or a list of words for the end",
    "extra_env": "mapping over the environment",
    "secrets": "mapping of secret environment variables",
    "env_file": "path of the 0600 file on the node",
    "release": "release id for the label",
    "group": "serving group's name for the label",
    "log_max_size": "json-file max-size",
    "log_max_file": "json-file max-file",
    "labels": "more labels",
}


class ServingError(ValueError):
    """A profile and a rank do not fit together; the text says what to change."""


def compact_json(value: Any) -> str:
    """Return JSON as the seeds write it: no spaces, no escaped letters."""
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


def _merged_args(profile: Mapping[str, Any], extra: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the profile's arguments with the user's over them, and words for the end of the line."""
    args = dict(profile["engine"]["args"])
    if not extra:
        return args, []
    if isinstance(extra, Mapping):
        for key, value in extra.items():
            flag = str(key).lstrip("-")
            if flag in SECRET_ARGS:
                raise ServingError(f"extra argument --{flag} would show a secret in the process list: give {SECRET_ARGS[flag]} as a secret")
            args[flag] = value
        return args, []
    if isinstance(extra, str) or not isinstance(extra, Sequence):
        raise ServingError(f"extra arguments are {extra!r}, expected a mapping of flags to values, or a list of words")
    words = [_word(w) for w in extra]
    for word in words:
        flag = word.lstrip("-").split("=")[0] if word.startswith("--") else ""
        if flag in SECRET_ARGS:
            raise ServingError(f"extra argument --{flag} would show a secret in the process list: give {SECRET_ARGS[flag]} as a secret")
    return args, words


def build_argv(profile: Mapping[str, Any], rank: Mapping[str, Any], extra_args: Any = None) -> list[str]:
    """Return the engine's command line for one rank, unquoted words.

    Order: command, model, served names, host and port, the profile's arguments as written, then the ranks' wiring.
    An argument that the profile places itself (with a placeholder) stands where it says.
    """
    engine = profile["engine"]
    number, size = int(rank["rank"]), int(rank["size"])
    args, tail = _merged_args(profile, extra_args)
    mp = engine["executor"] == "mp" and size > 1
    wiring: dict[str, Any] = {
        "served-model-name": list(profile["model"]["served_names"]),
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
    first = ("served-model-name", "host", "port")
    last = ["tensor-parallel-size"]
    if engine["executor"] == "ray":
        last.append("distributed-executor-backend")
    last += ["nnodes", "node-rank", "master-addr", "master-port"]
    words = list(engine["command"])
    words += [profile["model"]["path"]] if engine["positional_model"] else ["--model", profile["model"]["path"]]
    revision = profile["model"]["revision"]
    if revision and "revision" not in args:
        words += ["--revision", revision]
    for flag in first:
        if flag not in args:
            words += _argument(flag, wiring[flag])
    for flag, value in args.items():
        placeholder = PLACEHOLDERS.get(flag)
        words += _argument(flag, wiring[flag] if placeholder is not None and value == placeholder else value)
    for flag in last:
        if flag not in args:
            words += _argument(flag, wiring[flag])
    if mp and number > 0 and engine["headless_flag"] and engine["headless_flag"] not in words:
        words.append(engine["headless_flag"])
    return words + tail


def _check_rank(profile: Mapping[str, Any], rank: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    name = profile["name"]
    number, size = int(rank["rank"]), int(rank["size"])
    if not 0 <= number < size:
        raise ServingError(f"rank {number} of a group of {size} does not exist, expected 0 to {size - 1}")
    limits = profile["ranks"]
    if size < limits["min"] or (limits["max"] is not None and size > limits["max"]):
        wanted = "{} or more".format(limits["min"]) if limits["max"] is None else "{} to {}".format(limits["min"], limits["max"])
        raise ServingError(f"profile {name} is made for {wanted} ranks, but the serving group has {size}: add hosts to the group or choose another profile")
    if size > 1 and not rank.get("master_addr"):
        raise ServingError(f"rank {number} has no master address: the head's fabric address is unknown, check gb10_fabric_cidrs")
    sizes = {key: human_int(args.get(key, 1)) for key in ("pipeline-parallel-size", "data-parallel-size")}
    literal = args.get("tensor-parallel-size")
    tensor = size if literal is None or literal == PLACEHOLDERS["tensor-parallel-size"] else human_int(literal)
    if tensor is None or None in sizes.values():
        return  # a value vLLM itself will judge
    world = tensor * (sizes["pipeline-parallel-size"] or 1)
    if world != size and sizes["data-parallel-size"] == 1:
        raise ServingError(
            "profile {}: tensor-parallel-size {} x pipeline-parallel-size {} is {}, but the serving group has {} nodes with one GPU each: "
            "make them equal".format(name, tensor, sizes["pipeline-parallel-size"], world, size)
        )


def _environment(profile: Mapping[str, Any], rank: Mapping[str, Any], extra: Mapping[str, Any] | None, resolved_later: bool) -> dict[str, str]:
    number, size = int(rank["rank"]), int(rank["size"])
    fabric = {} if resolved_later else {str(k): _word(v) for k, v in (rank.get("env") or {}).items() if v is not None and _word(v) != ""}
    env: dict[str, str] = {}
    for table in ("env", "worker_env" if number else "head_env"):
        env.update({k: str(v) for k, v in profile[table].items()})
    if fabric or resolved_later:
        env = {k: v for k, v in env.items() if k not in FABRIC_ENV}
        env.update(fabric)
    if size > 1:
        env["NODE_RANK"] = str(number)
        env["HEADLESS"] = "1" if number else ""
        env["MASTER_ADDR"] = str(rank["master_addr"])
        env["MASTER_PORT"] = str(profile["engine"]["master_port"])
        if rank.get("fabric_ip"):
            env["VLLM_HOST_IP"] = str(rank["fabric_ip"])
    for key, value in (extra or {}).items():
        if value is None:
            env.pop(str(key), None)
        else:
            env[str(key)] = _word(value)
    return env


def _ray_script(profile: Mapping[str, Any], rank: Mapping[str, Any], argv: Sequence[str]) -> str:
    """Return the shell line of one rank under Ray: the head starts Ray, then serves; the others join and stay."""
    ray = profile["engine"]["ray"]
    number = int(rank["rank"])
    address = rank.get("fabric_ip") or rank.get("master_addr") or "127.0.0.1"
    head = rank.get("master_addr") or "127.0.0.1"
    if number == 0:
        keep = 'mkdir -p "$HOME/.config/vllm" && printf %s {} > "$HOME/.config/vllm/ray_non_carry_over_env_vars.json"'.format(
            shlex.quote(compact_json(list(ray["own_env"])))
        )
        start = ["ray", "start", "--head", f"--node-ip-address={address}", "--port={}".format(ray["port"]), "--disable-usage-stats"]
        return "{} && {} && exec {}".format(keep, shlex.join(start + list(ray["head_args"])), shlex.join(argv))
    start = ["ray", "start", "--address={}:{}".format(head, ray["port"]), f"--node-ip-address={address}", "--disable-usage-stats", "--block"]
    return "until (exec 3<>/dev/tcp/{}/{}) 2>/dev/null; do sleep 1; done; exec {}".format(head, ray["port"], shlex.join(start + list(ray["worker_args"])))


def _limit(value: Any, what: str) -> int | None:
    if value is None:
        return None
    if value in ("unlimited", "infinity"):
        return -1
    if isinstance(value, bool) or not re.fullmatch(r"-1|\d+", str(value)):
        raise ServingError(f"{what} is {value!r}, expected a number of bytes, -1 or unlimited")
    return int(value)


def _escape(value: Any) -> Any:
    """Double every dollar sign: compose would read it as a variable."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {k: _escape(v) for k, v in value.items()}
    return [_escape(v) for v in value] if isinstance(value, list) else value


def image_of(profile: Mapping[str, Any]) -> str:
    """Return the image as a user would pull it: name:tag, or name:tag@sha256:... where the profile pins it."""
    image = profile["image"]
    return "{}@{}".format(image["reference"], image["digest"]) if image["digest"] else str(image["reference"])


def _service(profile: Mapping[str, Any], rank: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the service without what depends on command, environment and secrets."""
    box = profile["container"]
    service: dict[str, Any] = {
        "image": options.get("image") or image_of(profile),
        "container_name": options.get("name") or "vllm",
        "pull_policy": "never" if options.get("image") or not profile["image"]["pull"] else "missing",
        "restart": "no",
        "network_mode": "host",
    }
    if box["ipc"] == "host":
        service["ipc"] = "host"
    if box["shm_size"]:
        service["shm_size"] = box["shm_size"]
    service["stop_grace_period"] = box["stop_grace_period"]
    service["cap_add"] = list(dict.fromkeys(["IPC_LOCK", *list(box["cap_add"])]))
    devices = list(box["devices"])
    if options.get("infiniband"):
        devices.insert(0, "/dev/infiniband:/dev/infiniband")
    if devices:
        service["devices"] = devices
    ulimits: dict[str, Any] = {}
    for key in ("memlock", "stack"):
        limit = _limit(options[key] if key in options else box[key], key)
        if limit is not None:
            ulimits[key] = {"soft": limit, "hard": limit}
    if box["nofile"] is not None:
        ulimits["nofile"] = {"soft": box["nofile"], "hard": box["nofile"]}
    if ulimits:
        service["ulimits"] = ulimits
    if box["memory"]:
        service["mem_limit"] = box["memory"]
    store = options.get("model_store")
    volumes = []
    for volume in box["volumes"]:
        if "{model_store}" in volume:
            if not store:
                raise ServingError("profile {} mounts {{model_store}}, but no model store is set for this host: set gb10_model_store".format(profile["name"]))
            volume = volume.replace("{model_store}", str(store).rstrip("/") or "/")
        volumes.append(volume)
    if volumes:
        service["volumes"] = volumes
    if box["tmpfs"]:
        service["tmpfs"] = list(box["tmpfs"])
    if box["gpus"] == "all":
        # Read by every compose v2; the short form "gpus: all" needs 2.30.
        service["deploy"] = {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}}
    service["logging"] = {
        "driver": "json-file",
        "options": {"max-size": str(options.get("log_max_size") or "64m"), "max-file": str(options.get("log_max_file") or 3)},
    }
    labels = {LABEL + ".rank": str(rank["rank"]), LABEL + ".profile": profile["name"]}
    for key in ("group", "release"):
        if options.get(key):
            labels[f"{LABEL}.{key}"] = str(options[key])
    if options.get("content"):
        labels[f"{LABEL}.image"] = str(options["content"])
    labels.update({str(k): _word(v) for k, v in (options.get("labels") or {}).items()})
    service["labels"] = labels
    return service


def render_rank(profile: Mapping[str, Any], rank: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Render one rank of a serving group.

    :param profile: what :func:`profile.resolve` returned.
    :param rank: ``rank`` and ``size`` (int), ``master_addr`` and ``fabric_ip`` (str), ``env`` (fabric variables of this rank).
    :param options: see :data:`OPTIONS`.
    :returns: ``argv`` (the engine's words), ``command`` (the container's), ``env``, ``secrets``, ``compose`` (the file's content,
        dollar signs doubled, no secret in it), ``image``, ``service``, ``container``, ``mounts`` (host paths that must exist).
    :raises ServingError: profile and group do not fit, an option is unknown or wrong.
    """
    options = dict(options or {})
    for key in options:
        if key not in OPTIONS:
            raise ServingError("{!r} is not a rendering option, expected one of {}".format(key, ", ".join(sorted(OPTIONS))))
    for key in ("rank", "size"):
        if not isinstance(rank.get(key), int) or isinstance(rank.get(key), bool):
            raise ServingError(f"the rank's {key} is {rank.get(key)!r}, expected a whole number")
    merged = _merged_args(profile, options.get("extra_args"))[0]
    _check_rank(profile, rank, merged)
    argv = build_argv(profile, rank, options.get("extra_args"))
    env = _environment(profile, rank, options.get("extra_env"), options.get("fabric") == "node")
    secrets = {str(k): str(v) for k, v in (options.get("secrets") or {}).items() if v not in (None, "")}
    for key in [k for k in env if is_secret_name(k)]:
        secrets.setdefault(key, env[key])
    for key in secrets:
        env.pop(key, None)
    engine = profile["engine"]
    if engine["executor"] == "ray":
        command = [*list(engine["shell"] or ["bash", "-c"]), _ray_script(profile, rank, argv)]
    elif engine["shell"]:
        command = [*list(engine["shell"]), "exec " + shlex.join(argv)]
    else:
        command = list(argv)
    service = _service(profile, rank, options)
    if engine["entrypoint"] is not None:
        service["entrypoint"] = list(engine["entrypoint"])
    service["command"] = command
    service["environment"] = env
    if secrets:
        if not options.get("env_file"):
            raise ServingError("there are secrets ({}), but no env_file to keep them in".format(", ".join(sorted(secrets))))
        service["env_file"] = [str(options["env_file"])]
    name = service["container_name"]
    compose: dict[str, Any] = {"name": options["project"]} if options.get("project") else {}
    compose["services"] = {SERVICE: _escape(service)}
    return {
        "argv": argv,
        "command": command,
        "env": env,
        "secrets": secrets,
        "compose": compose,
        "image": service["image"],
        "service": SERVICE,
        "container": name,
        "mounts": [v.split(":")[0] for v in service.get("volumes", [])],
    }


def env_file_text(secrets: Mapping[str, str]) -> str:
    """Return the env file's text: one KEY='value' line each, sorted; single quotes keep compose from reading dollar signs."""
    lines = []
    for key in sorted(secrets):
        value = str(secrets[key])
        if "'" in value or "\n" in value or "\r" in value or "\x00" in value:
            raise ServingError(f"the secret {key} holds a quote or a line break, which an env file cannot carry: choose another value")
        lines.append(f"{key}='{value}'\n")
    return "".join(lines)


def host_paths(profile: Mapping[str, Any], model_store: str) -> dict[str, Any]:
    """Return where things lie on a node: ``model`` (or None when unknown), ``caches`` (compile caches), ``store_mount`` (in the container)."""
    store = model_store.rstrip("/")
    relative = profile["model"]["relative_path"]
    return {
        "model": f"{store}/{relative}" if relative else None,
        "caches": [c.replace("{model_store}", store) for c in profile["container"]["cache_dirs"]],
        "store_mount": store_mount(profile),
    }
