# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The containers of a recipe: services of a Docker Compose file, and `docker run` commands of a script. One is a profile, or several are its ranks. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._profile.command_line import (
    SHELLS,
    arguments,
    is_flag,
    only,
    other_engine,
    program_of,
    set_engine,
)
from ansible_collections.gb10.cluster.plugins.module_utils._profile.imported import (
    HIDDEN,
    INFORMS,
    NO_KEY,
    REASONS,
    ROLE_ENV,
    Imported,
    is_true,
    items,
    mapping,
    new_import,
    set_image,
    set_size,
    set_store,
    text_of,
)
from ansible_collections.gb10.cluster.plugins.module_utils._profile.script import SYSTEM_PATH, Around, RecipeError, Script, expand, marks, run, shown_marks
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import COMPOSE, PLACEHOLDERS

DOCKER = "script with docker run"
# Options of docker run without a value, and the keys of a Compose service that the others are.
RUN_BARE = ("detach", "interactive", "tty", "rm", "init", "privileged", "read-only", "publish-all", "quiet", "no-healthcheck", "oom-kill-disable")
RUN_KEYS = {
    "e": "environment", "env": "environment", "env-file": "env_file", "v": "volumes", "volume": "volumes", "mount": "volumes", "name": "container_name",
    "net": "network_mode", "network": "network_mode", "p": "ports", "publish": "ports", "expose": "ports", "m": "mem_limit", "memory": "mem_limit",
    "w": "working_dir", "workdir": "working_dir", "u": "user", "h": "hostname", "l": "labels", "label": "labels", "device": "devices",
    "add-host": "extra_hosts", "ulimit": "ulimits", "pull": "pull_policy", "log-driver": "logging", "log-opt": "logging", "stop-timeout": "stop_grace_period",
    **dict.fromkeys(("health-cmd", "health-interval", "health-retries", "health-start-period", "health-timeout"), "healthcheck"),
    **{key.replace("_", "-"): key for key in (
        "shm_size", "ipc", "gpus", "entrypoint", "cap_add", "cap_drop", "security_opt", "restart", "hostname", "runtime", "tmpfs", "platform", "user",
        "cpus", "cpuset_cpus", "pid", "memory_swap", "pids_limit", "group_add", "device_cgroup_rule", "cgroupns", "userns", "dns", "sysctl",
    )},
}  # fmt: skip
MANY = (
    "volumes", "environment", "devices", "ports", "cap_add", "cap_drop", "security_opt", "env_file", "ulimits", "labels", "tmpfs", "extra_hosts", "logging",
    "healthcheck",
)  # fmt: skip


class _Reads(dict):  # type: ignore[type-arg]
    """Values that remember which of them were asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def compose(data: Mapping[str, Any], around: Around, wanted: str) -> Imported:
    services = {str(name): box for name, box in mapping(data, "services").items() if isinstance(box, Mapping)}
    values = {name: _Reads(around.env) for name in services}
    boxes = {name: _expanded(_extended(services, name, ()), values[name]) for name in services}
    bases = {_base(box) for box in services.values()}
    if wanted not in bases and len(bases & set(boxes)) < len(boxes):
        boxes = {name: box for name, box in boxes.items() if name not in bases}
    out, names, reads = _containers(COMPOSE, text_of(data.get("name")) or around.folder, boxes, around, wanted, lambda name: values[name].read)
    out.mapped += [(key, "the name of the profile") for key in data if key == "name"]
    for key, value in data.items():
        if key == "services":
            out.unmapped += [(f"services.{each}", "another service of the file") for each in services if each not in names]
        elif key == "volumes":
            out.unmapped += [(f"volumes: {each}", "a named volume of Docker: the profile mounts folders of the nodes") for each in value or {}]
        elif key != "name":
            shared = "shared parts: where an alias points, they are part of the service" if str(key).startswith("x-") else REASONS.get(str(key), INFORMS)
            out.unmapped.append((str(key), shared))
    for key, value in around.env.items():
        if out.hides(key, value):
            out.unmapped.append((f".env {key}", HIDDEN))
        else:
            used = key in reads
            (out.mapped if used else out.unmapped).append((f".env {key}", "the variables of the Compose file" if used else "the Compose file does not use it"))
    out.unmapped += [(f".env {name}", reason) for name, reason in around.notes]
    out.close({})
    return out


def _base(box: Mapping[str, Any]) -> str:
    given = box.get("extends")
    return text_of(given.get("service") if isinstance(given, Mapping) else given)


def _extended(services: Mapping[str, Any], name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """Return a service with what it extends, as Compose merges them."""
    own = dict(services.get(name) or {})
    given = own.pop("extends", None)
    if given is None:
        return own
    base = _base(services[name])
    if isinstance(given, Mapping) and given.get("file"):
        raise RecipeError(f"services.{name}.extends is in the file {text_of(given['file'])}, which is not read. Import what `docker compose config` prints")
    if base not in services or base in (*seen, name):
        raise RecipeError(f"services.{name}.extends is {base!r}, expected another service of the file: {', '.join(services)}")
    out = _extended(services, base, (*seen, name))
    for key, value in own.items():
        before = out.get(key)
        if key == "environment":
            out[key] = {**_pairs(before), **_pairs(value)}
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            out[key] = {**before, **value}
        elif isinstance(before, list) and isinstance(value, list) and key not in ("command", "entrypoint"):
            out[key] = [*before, *value]
        else:
            out[key] = value
    return out


def _pairs(value: Any) -> dict[str, Any]:
    """Return names and values of a mapping or of a list of NAME=value."""
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    return {text.partition("=")[0]: text.partition("=")[2] if "=" in text else None for text in map(str, items(value))}


def _expanded(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        out = type(value)(expand(value, values)) if value else value
        if isinstance(out, str) and hasattr(value, "line"):
            out.line, out.plain = value.line, value.plain  # type: ignore[attr-defined]
        return out
    if isinstance(value, Mapping):
        return {str(key): _expanded(each, values) for key, each in value.items()}
    return [_expanded(each, values) for each in value] if isinstance(value, list) else value


@dataclass
class _Launch:
    """How a container starts: the engine's words, the script around them, its environment. A rank of Ray that only joins has no words."""

    words: list[str]
    script: Script
    environment: dict[str, Any]
    shell: list[str]
    args: dict[str, Any] = field(default_factory=dict)
    ray: bool = False


def _kind(name: str, box: Mapping[str, Any]) -> str:
    """Return "vllm", the name of another engine, or nothing."""
    command = " ".join(text_of(each) for key in ("entrypoint", "command") for each in items(box.get(key)))
    image = text_of(box.get("image"))
    if re.search(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b", command) or re.search(r"(?:^|/)vllm$", command.split(" ", maxsplit=1)[0]):
        return "vLLM"
    other = other_engine(command, image)
    if not other and "vllm" in image and re.match(r"-|serve\b|ray start|[\w.-]+/[\w.-]+(?:\s|$)", command):
        return "vLLM"  # the image's entrypoint starts it, or it is a rank of Ray
    return other or ("perhaps vLLM" if "vllm" in image or re.search(r"(?:^|[_-])vllm(?:[_-]|$)", name) else "")


def _containers(
    kind: str, project: str, boxes: Mapping[str, Mapping[str, Any]], around: Around, wanted: str, read: Callable[[str], set[str]]
) -> tuple[Imported, list[str], set[str]]:
    """Return the profile of one container, or of the ranks that containers are, their names, and the variables that they read."""
    kinds = {name: _kind(name, box) for name, box in boxes.items()}
    found = next(([name for name, each in kinds.items() if each == kind_] for kind_ in ("vLLM", "perhaps vLLM") if kind_ in kinds.values()), [])
    names = [wanted] if wanted else found or (list(boxes) if len(boxes) == 1 else [])
    listed = ", ".join(f"{name} ({kinds[name] or 'not an engine'})" for name in boxes) or "none"
    if wanted not in ("", *boxes):
        raise RecipeError(f"services has no {wanted!r}, expected one of: {listed}. Choose it with -e service=NAME")
    bad = next((name for name in names if kinds[name] not in ("vLLM", "perhaps vLLM", "")), "")
    if bad or not names:
        what = f"the service {bad} runs {kinds[bad]}" if bad else f"no service runs vLLM: {listed}"
        raise RecipeError(f"{what}, and the collection serves vLLM only, expected a service that runs it. Choose one with -e service=NAME")
    launches, faults = {}, {}
    for name in names:
        try:
            launches[name] = _launch(name, boxes[name], around)
        except RecipeError as error:
            faults[name] = error
    if faults and len(names) == 1:
        raise faults[names[0]]
    models = {name: _model_of(launch) for name, launch in launches.items() if launch.words}
    joined = all(launch.ray or {"nnodes", "node-rank", "headless", "master-addr"} & set(launch.args) for launch in launches.values())
    if faults or len({(models[name], text_of(boxes[name].get("image"))) for name in models}) > 1 or (len(models) > 1 and not joined):
        several = ", ".join(f"{name} ({shown_marks(models[name]) if name in models else 'a script'})" for name in names)
        raise RecipeError(f"several services run vLLM, and they are not the ranks of one model: {several}. Choose one with -e service=NAME")
    if not models:
        raise RecipeError(f"the service {names[0]} starts Ray and no vLLM, expected 'vllm serve MODEL' in one of the services. Add it")
    names.sort(key=lambda name: (not launches[name].words, _is_worker(launches[name])))
    return _of_ranks(kind, project, names, boxes, launches, around), names, set().union(*(read(name) for name in names))


def _is_worker(launch: _Launch) -> bool:
    rank = text_of(launch.args.get("node-rank", 0))
    return "headless" in launch.args or (rank not in ("0", "") and not marks(rank))


def _model_of(launch: _Launch) -> str:
    rest = launch.words[program_of(launch.words) or launch.words[:1] == ["serve"] :]
    return rest[0] if rest and not is_flag(rest[0]) else text_of(launch.args.get("model"))


def _of_ranks(kind: str, project: str, names: list[str], boxes: Mapping[str, Mapping[str, Any]], launches: Mapping[str, _Launch], around: Around) -> Imported:
    head, box, launch = names[0], boxes[names[0]], launches[names[0]]
    out = new_import(kind, project if kind == COMPOSE and project and head in ("vllm", "head") else head, "")
    out.collect_secrets(around.env)
    for name in names:
        out.collect_secrets({**launches[name].environment, **launches[name].script.values})
    image = text_of(box.get("image"))
    if not image and box.get("build"):
        image = f"{re.sub(r'[^a-z0-9_-]', '', project.lower()) or 'recipe'}-{head}"
        out.unmapped.append(("image", f"the service has build and no image: Compose names it {image}. Build it on each node by that name, or see build"))
    set_image(out, "image", image)
    if box.get("build"):
        out.unmapped.append(("build", "copy its context to images/NAME with a Dockerfile and set image.build: NAME, or build and load the image yourself"))
    out.decided.append((f"{'services' if kind == COMPOSE else 'docker run'}.{head}", "what is imported: the profile is made of it"))
    if box.get("entrypoint") is not None:
        out.profile["engine"]["entrypoint"] = []
        out.decided.append(("entrypoint", "it replaces the image's: engine.entrypoint is empty, and engine.command has its words"))
    out.mapped += [("command", "engine")] if box.get("command") is not None else []
    if launch.shell and not launch.script.exported:
        out.profile["engine"]["shell"] = launch.shell
    _rank_environments(out, names, launches)
    out.list_script(launch.script)
    set_engine(out, launch.words, "", image, box.get("entrypoint") is not None)
    if launch.ray or any(launches[name].ray for name in names):
        out.profile["engine"]["executor"] = "ray"
    out.profile["ranks"]["min"] = max(out.profile["ranks"]["min"], len(names))
    model = out.profile["model"]["id"]
    out.profile["summary"] = f"{model}, from the service {head} of a Docker Compose file" if kind == COMPOSE else f"{model}, from docker run"
    _box(out, box)
    set_store(out, [_volume(index, each) for index, each in enumerate(items(box.get("volumes")))])
    for index, each in enumerate(items(box.get("ports"))):
        _published(out, f"ports[{index}]", each)
    for name in names[1:]:
        _other_rank(out, name, box, boxes[name], launch, launches[name])
    out.close({key: value for key, value in box.items() if key != "environment"})
    return out


def _launch(name: str, box: Mapping[str, Any], around: Around) -> _Launch:
    """Return how a service starts its engine."""
    environment: dict[str, Any] = {}
    for each in items(box.get("env_file")):
        path = text_of(each.get("path") if isinstance(each, Mapping) else each)
        found = around.read(path)
        if found is None and not (isinstance(each, Mapping) and text_of(each.get("required")) == "false"):
            raise RecipeError(f"the service {name} has env_file {path}, which is not next to the recipe and is its environment. Put the file there")
        environment.update(found or {})
    for key, value in _pairs(box.get("environment")).items():
        environment[key] = value if value is not None else around.env.get(key)
    parts = [[text_of(each) for each in value] if isinstance(value, list) else _split(value) for value in (box.get("entrypoint"), box.get("command"))]
    words = [word for part in parts for word in part]
    shell = next((i for i, word in enumerate(words[:4]) if re.fullmatch(r"-[a-z]*c", word)), None)
    direct = program_of(words) and shell is None
    begin = next((i for i, word in enumerate(words) if posixpath.basename(word) in ("vllm", "python", "python3")), 0) if direct else 0
    wrapper = words[:begin] if any(re.search(r"\.sh$|\.py$|entrypoint|^(?:.*/)?(?:ba)?sh$", word) for word in words[:begin]) else []
    words = words[len(wrapper) :]
    if not words or posixpath.basename(words[0]) not in SHELLS:
        script = next((word for word in words[:1] if word.endswith((".sh", ".py")) or "entrypoint" in word), "")
        if not words or script:
            what = f"runs {script}, a script that is not in the recipe" if script else "has no command: what its image starts is not in the recipe"
            raise RecipeError(f"the service {name} {what}. Write the command that it starts into the recipe: `ps -ef` in the running container shows it")
        launch = _Launch(words, Script(others=[wrapper] if wrapper else []), environment, [])
    elif shell is None:
        what = f"runs {' '.join(words[:2])}, a script or a shell whose commands are not in the recipe"
        raise RecipeError(f"the service {name} {what}. Write the command that it starts into the recipe: `ps -ef` in the running container shows it")
    else:
        if len(words) > shell + 2:
            raise RecipeError(f"the service {name} gives {words[0]} {words[shell]} several words, and a shell runs the first. Write the command as one text")
        source = next((each for key in ("command", "entrypoint") for each in reversed(items(box.get(key)))), "")
        values = {"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", **{key: text_of(value) for key, value in environment.items() if value is not None}}
        script_text = words[shell + 1] if len(words) > shell + 1 else ""
        done = run(script_text, values, lambda each: bool(program_of(each)), around.refusal(source))
        ray = any(each[:2] == ["ray", "start"] for each in done.others)
        launch = _Launch([] if ray and not done.found else only(done, [text_of(box.get("image"))]), done, environment, words[: shell + 1], ray=ray)
    if launch.words[:2] == ["ray", "start"]:
        launch.words, launch.ray = [], True
    for key in launch.script.removed:
        launch.environment.pop(key, None)
    launch.args = arguments(launch.words[program_of(launch.words) :])[0]
    return launch


def _split(text: Any) -> list[str]:
    try:
        return shlex.split(text_of(text))
    except ValueError as error:
        raise RecipeError(f"the command cannot be split into words: {error}. Close its quotes") from error


def _rank_environments(out: Imported, names: list[str], launches: Mapping[str, _Launch]) -> None:
    """Take the environment of all ranks, and what only the head or only the workers have."""
    tables = [launches[name].environment for name in names]
    head, workers = tables[0], tables[1:]
    shared = {key: value for key, value in head.items() if key in ROLE_ENV or all(each.get(key) == value and key in each for each in workers)}
    out.set_environment("environment", shared)
    out.set_environment("environment", {key: value for key, value in head.items() if key not in shared}, "head_env")
    for name, table in zip(names[1:], workers):
        own = {key: value for key, value in table.items() if key not in shared and key not in ROLE_ENV}
        if table is not workers[0] and own != {key: value for key, value in workers[0].items() if key in own}:
            raise RecipeError(f"the environment of the service {name} differs from that of {names[1]}, and a profile has one for all workers. Make them equal")
        out.set_environment(f"services.{name}.environment", own, "worker_env")


def _other_rank(out: Imported, name: str, box: Mapping[str, Any], own: Mapping[str, Any], launch: _Launch, other: _Launch) -> None:
    """List what another rank has that the head has not."""
    out.mapped.append((f"services.{name} ", "another rank: ranks.min"))
    for flag in [*launch.args, *(each for each in other.args if each not in launch.args)] if other.words else []:
        first, second = launch.args.get(flag), other.args.get(flag)
        if first == second or flag in PLACEHOLDERS or flag == "model":
            continue
        if first is None or (second is not None):
            text = f"{text_of(first) if first is not None else 'missing'} in the first and {text_of(second)} in {name}"
            raise RecipeError(f"--{flag} is {text}, and all ranks of a profile have the same arguments. Make them equal, or choose one with -e service=NAME")
        out.decided.append((f"--{flag} ({name} has it not)", "all ranks of a profile get it"))
    for key in {**launch.script.exported, **other.script.exported}:
        if key not in ROLE_ENV and launch.script.exported.get(key) != other.script.exported.get(key):
            out.unmapped.append((f"services.{name}.command: export.{key}", "differs from that of the first rank, which the profile has"))
    for words in other.script.others:
        if words not in launch.script.others and words[:2] != ["ray", "start"]:
            out.unmapped.append((f"services.{name}.command: {posixpath.basename(words[0])}", "a command that the first rank does not run"))
    for key, value in own.items():
        if key not in ("environment", "env_file", "command", "entrypoint", "container_name", "hostname", "profiles", "healthcheck") and value != box.get(key):
            out.unmapped.append((f"services.{name}.{key}", "differs from that of the first rank, which the profile has"))


def _volume(index: int, volume: Any) -> tuple[str, str, str, bool]:
    """Return (field, source, path in the container, whether it is read-only) of a volume."""
    where = f"volumes[{index}]"
    if isinstance(volume, Mapping):
        return where, text_of(volume.get("source")), text_of(volume.get("target")).rstrip("/") or "/", is_true(volume.get("read_only"))
    text = text_of(volume)
    if "=" in text and "," in text:  # --mount type=bind,source=/a,target=/b,readonly
        parts = _pairs(text.split(","))
        source, target = (next((parts[key] for key in keys if parts.get(key)), "") for keys in (("source", "src"), ("target", "destination", "dst")))
        return where, source, target.rstrip("/") or "/", "readonly" in parts or "ro" in parts
    parts_of = [*text.split(":"), "", ""]
    source, target, mode = ("", parts_of[0], "") if len(parts_of) == 3 else parts_of[:3]
    return where, source, target.rstrip("/") or "/", "ro" in mode.split(",")


def _published(out: Imported, where: str, port: Any) -> None:
    """List a published port. The container uses the host's network, so the engine's own port is the one to use."""
    target = text_of(port.get("target") if isinstance(port, Mapping) else text_of(port).split(":")[-1].partition("/")[0])
    host = text_of(port.get("published") if isinstance(port, Mapping) else [*text_of(port).split(":")[-2:-1], target][0])
    own = text_of(out.profile["engine"].get("api", {}).get("port", 8000))
    if host == target == own:
        out.decided.append((where, "the container uses the host's network"))
    else:
        out.unmapped.append((f"{where} {shown_marks(text_of(port))}", f"the container uses the host's network: the API is at engine.api.port, which is {own}"))


def _box(out: Imported, box: Mapping[str, Any]) -> None:
    """Take the container's limits and devices."""
    limits = box.get("deploy")
    for part in ("resources", "limits"):
        limits = limits.get(part) if isinstance(limits, Mapping) else None
    for key, target, value in (
        ("shm_size", "shm_size", box.get("shm_size")), ("mem_limit", "memory", box.get("mem_limit")),
        ("deploy.resources.limits.memory", "memory", limits.get("memory") if isinstance(limits, Mapping) else None),
    ):  # fmt: skip
        if value is not None:
            set_size(out, key, target, value)
    given = box.get("ulimits")
    for key, value in (given if isinstance(given, Mapping) else _pairs(given)).items():
        soft = value.get("soft") if isinstance(value, Mapping) else text_of(value).partition(":")[0]
        if key in ("memlock", "stack", "nofile") and re.fullmatch(r"-1|\d+", text_of(soft)):
            out.profile["container"][key] = int(text_of(soft))
            out.mapped.append((f"ulimits.{key}", f"container.{key}"))
        else:
            out.unmapped.append((f"ulimits.{key}", NO_KEY))
    for index, device in enumerate(items(box.get("devices"))):
        inside = text_of(device).startswith(("/dev/infiniband", "nvidia.com/gpu"))
        why = "the role passes the GPU and the devices of InfiniBand" if inside else f"add {text_of(device)} to container.devices if the engine needs it"
        (out.decided if inside else out.unmapped).append((f"devices[{index}]", why))
    out.mapped += [("env_file", "env")] if box.get("env_file") else []
    if limits is not None or isinstance(box.get("deploy"), Mapping):
        out.decided += [(f"deploy.resources.{key}", "the role sets it") for key in mapping(mapping(box, "deploy"), "resources") if key != "limits"]
    if isinstance(box.get("tmpfs"), (list, str)):
        out.profile["container"]["tmpfs"] = [text_of(each) for each in items(box["tmpfs"])]
        out.mapped.append(("tmpfs", "container.tmpfs"))
    if re.fullmatch(r"\d+(?:ms|s|m)", text_of(box.get("stop_grace_period"))):
        out.profile["container"]["stop_grace_period"] = text_of(box["stop_grace_period"])
        out.mapped.append(("stop_grace_period", "container.stop_grace_period"))


def docker_run(around: Around, wanted: str) -> Imported:
    """Return the profile of a script, or of a text, that starts a container."""
    text, lines = around.source, 0
    if not _is_script(text):
        text, lines = _commands(text)
    done = run(text, dict(around.env), lambda words: bool(_image_at(_remote(words))), around.refusal(""))
    if not done.found:
        engine = next((words for words in done.others if program_of(words)), None)
        what = "starts vLLM without a container, so its image is unknown" if engine else "has no docker run"
        raise RecipeError(f"it is not a recipe: it is not a YAML mapping, and as a script it {what}, expected docker run IMAGE with its command")
    boxes: dict[str, dict[str, Any]] = {}
    for words, _own in done.found:
        box = _run_box(_remote(words))
        name = text_of(box.get("container_name")) or f"container{len(boxes) + 1}"
        boxes[name if name not in boxes else f"{name}-{len(boxes) + 1}"] = box
    around = replace(around, env={**around.env, **done.values})
    out, names, _reads = _containers(DOCKER, around.folder, boxes, around, wanted, lambda _name: set())
    out.unmapped += [(f"docker run {name}", "another container of the script") for name in boxes if name not in names]
    out.unmapped += [(f"command: {' '.join(words[:2])}", "another command of the script, which is not run") for words in done.others if words[0] != "set"]
    out.decided += [(f"docker run > {target}", "the container's log has what the engine prints") for target in done.redirections if target != "1"]
    out.unmapped += [(f"{lines} other lines of the text", "they are not part of docker run")] if lines else []
    out.close({})
    return out


def _is_script(text: str) -> bool:
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    return text.startswith("#!") or bool(re.match(r"\s*(?:\w+=|export |set -|docker |podman |sudo |cd |ssh )", first))


def _commands(text: str) -> tuple[str, int]:
    """Return the docker run commands and assignments of a text, and how many other lines it has."""
    out, lines, keep, dropped = [], text.splitlines(), False, 0
    for line in lines if re.search(r"(?:docker|podman|nerdctl) run\b", text) else []:
        start = re.match(r"\s*(?:\$ )?((?:sudo )?(?:docker|podman|nerdctl) run\b.*|(?:export )?[A-Za-z_]\w*=\S.*)", line)
        if keep or start:
            out.append(start[1] if start and not keep else line)
            keep = out[-1].rstrip().endswith("\\") or ((keep or "docker" in line) and "\n".join(out).count("'") % 2 == 1)
        else:
            dropped += bool(line.strip())
    return "\n".join(out), dropped


def _image_at(words: list[str]) -> int:
    """Return the index after `docker run`, 0 if the words are another command."""
    rest = words[1:] if words[:1] == ["sudo"] else words
    shift = len(words) - len(rest)
    names = [posixpath.basename(rest[0])] if rest else []
    if names and names[0] in ("docker", "podman", "nerdctl") and rest[1:2] in (["run"], ["create"]):
        return shift + 2
    return shift + 3 if names and names[0] == "docker" and rest[1:3] == ["container", "run"] else 0


def _remote(words: list[str]) -> list[str]:
    """Return the command that ssh runs on another node, or the words."""
    at = next((i for i, word in enumerate(words) if re.match(r"(?:sudo )?(?:docker|podman|nerdctl)\b", word)), 0) if words[:1] == ["ssh"] else 0
    return (_split(" ".join(words[at:])) if " " in words[at] else words[at:]) if at else words


def _run_box(words: list[str]) -> dict[str, Any]:
    """Return the options of docker run as the keys of a Compose service."""
    box: dict[str, Any] = {}
    index = _image_at(words)
    while index < len(words) and words[index].startswith("-"):
        name, sign, value = words[index].lstrip("-").partition("=")
        short = not words[index].startswith("--")
        index += 1
        if (name in RUN_BARE and not sign) or (short and set(name) <= set("ditPq") and not sign):
            box[name.replace("-", "_") if not short else "detach"] = "true"
            continue
        if short and len(name) > 1 and name[0] in "evpmwuhl":
            name, value, sign = name[0], words[index - 1][2:], "="
        if not sign:
            value = words[index] if index < len(words) else ""
            index += 1
        if name not in RUN_KEYS:
            raise RecipeError(f"docker run has the option --{name}, which is not known here, so where its image begins is not. Remove the option")
        key = RUN_KEYS[name]
        if key in MANY:
            box.setdefault(key, []).append(value)
        else:
            box[key] = value
    if index >= len(words):
        raise RecipeError("docker run names no image, expected docker run OPTIONS IMAGE COMMAND")
    box["image"], box["command"] = words[index], words[index + 1 :]
    for key in ("environment", "ulimits"):
        box[key] = _pairs(box.get(key))
    if "entrypoint" in box:
        box["entrypoint"] = [box["entrypoint"]] if box["entrypoint"] else []
    return box
