# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers of a recipe: one is a profile, or several are its ranks. Pure, nothing is executed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe import (
    NO_KEY,
    ROLE_ENV,
    Imported,
    arguments,
    is_flag,
    items,
    mapping,
    other_engine,
    program_of,
    slug,
    text_of,
)
from ansible_collections.gb10.cluster.plugins.module_utils._profile.shell import SYSTEM_PATH, RecipeError, Script, marks, shown, split
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import COMPOSE, PLACEHOLDERS

# Keys of a container that a rule takes, or lists by itself.
TAKEN = ("image", "command", "entrypoint", "environment", "env_file", "volumes", "shm_size", "mem_limit", "ulimits", "devices", "ports")


@dataclass
class Around:
    """What is around a recipe: its text, its folder's name, its .env, other files next to it, and the folders of its mods."""

    source: str = ""
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)  # of its .env
    read: Callable[[str], dict[str, str] | None] = lambda _name: None
    mod: Callable[[str], str] = lambda _name: ""


@dataclass
class _Launch:
    """How a container starts: the engine's words, the script around them, its environment. A rank of Ray that only joins has no words."""

    words: list[str]
    script: Script
    environment: dict[str, Any]
    shell: list[str] = field(default_factory=list)
    args: dict[str, Any] = field(default_factory=dict)
    ray: bool = False


def pairs(value: Any) -> dict[str, Any]:
    """Return names and values of a mapping or of a list of NAME=value."""
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    return {text.partition("=")[0]: text.partition("=")[2] if "=" in text else None for text in map(str, items(value))}


def only(script: Script, image: str) -> list[str]:
    """Return the one command of a script that starts vLLM, with its own variables exported. Raise RecipeError if there is none or more."""
    other = other_engine(*(" ".join(each[:4]) for each in script.others))
    names = [" ".join(shown(word) for word in words[:3]) for words, _own in script.found] + [other] * bool(other)
    if len(names) > 1:
        raise RecipeError(f"the command starts several engines ({', '.join(names)}), expected one. Import each with a recipe of its own")
    if not script.found:
        found = f"starts {other or other_engine(image)}" if other or other_engine(image) else "does not start vLLM, expected 'vllm serve MODEL'"
        raise RecipeError(f"the command {found}, and the collection serves vLLM only. Write the engine's command there")
    words, own = script.found[0]
    script.exported.update(own)
    return words


def _command(box: Mapping[str, Any]) -> str:
    return " ".join(text_of(each) for key in ("entrypoint", "command") for each in items(box.get(key)))


def _serves(name: str, box: Mapping[str, Any]) -> int:
    """Return 2 if a container runs vLLM, 1 if it may do so, and 0."""
    command, image = _command(box), text_of(box.get("image"))
    if re.search(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b", command) or re.search(r"(?:^|/)vllm$", command.split(" ", maxsplit=1)[0]):
        return 2
    if "vllm" in image and not other_engine(command, image) and re.match(r"-|serve\b|ray start|[\w.-]+/[\w.-]+(?:\s|$)", command):
        return 2  # the image's entrypoint starts it, or it is a rank of Ray
    return int(not other_engine(command, image)) and int("vllm" in image or bool(re.search(r"(?:^|[_-])vllm(?:[_-]|$)", name)))


def profile_of(kind: str, project: str, boxes: Mapping[str, Mapping[str, Any]], around: Around, wanted: str) -> tuple[Imported, list[str]]:
    """Return the profile of one container, or of the ranks that containers are, and their names."""
    found = {name: _serves(name, box) for name, box in boxes.items()}
    others = {name: other_engine(_command(box), text_of(box.get("image"))) for name, box in boxes.items() if not found[name]}
    best = max(found.values(), default=0)
    names = [wanted] if wanted else [name for name in boxes if found[name] == best and (best or len(boxes) == 1)]
    if not names or not set(names) <= set(boxes):
        what = f"services has no {wanted!r}, expected one of" if wanted else "no service runs vLLM, and the collection serves vLLM only. It has"
        listed = ", ".join(f"{name} ({others[name]})" if others.get(name) else name for name in boxes) or "none"
        raise RecipeError(f"{what}: {listed}. Choose one with -e service=NAME")
    if others.get(names[0]):
        raise RecipeError(f"the service {names[0]} runs {others[names[0]]}, and the collection serves vLLM only. Choose another with -e service=NAME")
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
        several = ", ".join(f"{name} ({shown(models[name]) if name in models else 'a script'})" for name in names)
        raise RecipeError(f"several services run vLLM, and they are not the ranks of one model: {several}. Choose one with -e service=NAME")
    if not models:
        raise RecipeError(f"the service {names[0]} starts Ray and no vLLM, expected 'vllm serve MODEL' in one of the services. Add it")
    names.sort(key=lambda name: (not launches[name].words, _is_worker(launches[name])))
    return _of_ranks(kind, project, names, boxes, launches, around), names


def _is_worker(launch: _Launch) -> bool:
    rank = text_of(launch.args.get("node-rank", 0))
    return "headless" in launch.args or (rank not in ("0", "") and not marks(rank))


def _model_of(launch: _Launch) -> str:
    rest = launch.words[program_of(launch.words) or launch.words[:1] == ["serve"] :]
    return rest[0] if rest and not is_flag(rest[0]) else text_of(launch.args.get("model"))


def _of_ranks(kind: str, project: str, names: list[str], boxes: Mapping[str, Mapping[str, Any]], launches: Mapping[str, _Launch], around: Around) -> Imported:
    head, box, launch = names[0], boxes[names[0]], launches[names[0]]
    out = Imported(kind, project if kind == COMPOSE and project and head in ("vllm", "head") else head, "")
    out.collect_secrets(around.env)
    for name in names:
        out.collect_secrets({**launches[name].environment, **launches[name].script.values})
    image = text_of(box.get("image"))
    if not image and box.get("build"):
        image = f"{re.sub(r'[^a-z0-9_-]', '', project.lower()) or 'recipe'}-{head}"
        out.unmapped.append(("image", f"the service has build and no image: Compose names it {image}. Build it on each node by that name, or see build"))
    out.set_image("image", image)
    if box.get("entrypoint") is not None:
        out.profile["engine"]["entrypoint"] = []
    if launch.shell and not launch.script.exported:
        out.profile["engine"]["shell"] = launch.shell
    _rank_environments(out, names, launches)
    out.list_script(launch.script)
    out.set_engine(launch.words, "", image, box.get("entrypoint") is not None)
    if any(launches[name].ray for name in names):
        out.profile["engine"]["executor"] = "ray"
    out.profile["ranks"]["min"] = max(out.profile["ranks"]["min"], len(names))
    model = out.profile["model"]["id"]
    out.profile["summary"] = f"{model}, from the service {head} of a Docker Compose file" if kind == COMPOSE else f"{model}, from docker run"
    _box(out, box)
    out.set_store([_volume(index, each) for index, each in enumerate(items(box.get("volumes")))])
    for name in names[1:]:
        _other_rank(out, name, box, boxes[name], launch, launches[name])
    out.close({key: value for key, value in box.items() if key not in (*TAKEN, *out.profile["container"])})
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
    environment.update({key: around.env.get(key) if value is None else value for key, value in pairs(box.get("environment")).items()})
    parts = [[text_of(each) for each in value] if isinstance(value, list) else split(text_of(value)) for value in (box.get("entrypoint"), box.get("command"))]
    words = [word for part in parts for word in part]
    shell = next((i for i, word in enumerate(words[:4]) if re.fullmatch(r"-[a-z]*c", word)), None)
    wrapper: list[str] = []
    if program_of(words) and shell is None:  # bash /entrypoint.sh vllm serve
        begin = next((i for i, word in enumerate(words) if posixpath.basename(word) in ("vllm", "python", "python3")), 0)
        wrapper = words[:begin] if any(re.search(r"\.sh$|\.py$|entrypoint|^(?:.*/)?(?:ba)?sh$", word) for word in words[:begin]) else []
        words = words[len(wrapper) :]
    is_shell = bool(words) and posixpath.basename(words[0]) in ("sh", "bash", "dash", "zsh", "ash")
    if not words or (is_shell and shell is None) or (not is_shell and (words[0].endswith((".sh", ".py")) or "entrypoint" in words[0])):
        what = f"runs {' '.join(words[:2])}, a script that is not in the recipe" if words else "has no command: what its image starts is not in the recipe"
        raise RecipeError(f"the service {name} {what}. Write the command that it starts into the recipe: `ps -ef` in the running container shows it")
    launch = _Launch(words, Script(others=[wrapper] if wrapper else []), environment)
    if is_shell and shell is not None:
        if len(words) > shell + 2:
            raise RecipeError(f"the service {name} gives {words[0]} {words[shell]} several words, and a shell runs the first. Write the command as one text")
        values = {"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", **{key: text_of(value) for key, value in environment.items() if value is not None}}
        done = Script(lambda each: bool(program_of(each)), values, around.source).read("".join(words[shell + 1 :]))
        launch.script, launch.shell, launch.ray = done, words[: shell + 1], any(each[:2] == ["ray", "start"] for each in done.others)
        launch.words = [] if launch.ray and not done.found else only(done, text_of(box.get("image")))
    if launch.words[:2] == ["ray", "start"]:
        launch.words, launch.ray = [], True
    for key in launch.script.removed:
        environment.pop(key, None)
    launch.args = arguments(launch.words[program_of(launch.words) :])[0]
    return launch


def _rank_environments(out: Imported, names: list[str], launches: Mapping[str, _Launch]) -> None:
    """Take the environment of all ranks, and what only the head or only the workers have."""
    head, *workers = (launches[name].environment for name in names)
    shared = {key: value for key, value in head.items() if key in ROLE_ENV or all(each.get(key) == value and key in each for each in workers)}
    out.set_environment("environment", shared)
    out.set_environment("environment", {key: value for key, value in head.items() if key not in shared}, "head_env")
    for name, table in zip(names[1:], workers):
        own = {key: value for key, value in table.items() if key not in shared and key not in ROLE_ENV}
        if any(own.get(key) != workers[0].get(key) for key in own):
            raise RecipeError(f"the environment of the service {name} differs from that of {names[1]}, and a profile has one for all workers. Make them equal")
        out.set_environment(f"services.{name}.environment", own, "worker_env")


def _other_rank(out: Imported, name: str, box: Mapping[str, Any], own: Mapping[str, Any], launch: _Launch, other: _Launch) -> None:
    """List what another rank has that the head has not."""
    for flag in dict.fromkeys([*launch.args, *other.args]) if other.words else ():
        first, second = launch.args.get(flag), other.args.get(flag)
        if first != second and flag not in PLACEHOLDERS and flag != "model":
            text = f"{text_of(first) if first is not None else 'missing'} in the first and {text_of(second)} in {name}"
            if second is not None:
                raise RecipeError(
                    f"--{flag} is {text}, and all ranks of a profile have the same arguments. Make them equal, or choose one with -e service=NAME"
                )
            out.unmapped.append((f"--{flag} ({name} has it not)", "all ranks of a profile get it"))
    exports, more = (launch.script.exported, other.script.exported), "differs from that of the first rank, which the profile has"
    differ = [f"command: export.{key}" for key in {**exports[0], **exports[1]} if key not in ROLE_ENV and exports[0].get(key) != exports[1].get(key)]
    differ += [f"command: {slug(words[0])}" for words in other.script.others if words not in launch.script.others and words[:2] != ["ray", "start"]]
    known = ("environment", "env_file", "command", "entrypoint", "container_name", "hostname", "profiles", "healthcheck")
    differ += [key for key, value in own.items() if key not in known and value != box.get(key)]
    out.unmapped += [(f"services.{name}.{each}", more) for each in differ]


def _volume(index: int, volume: Any) -> tuple[str, str, str]:
    """Return (field, source, path in the container) of a volume."""
    text = text_of(volume)
    if isinstance(volume, Mapping) or ("=" in text and "," in text):  # --mount type=bind,source=/a,target=/b,readonly
        parts = pairs(volume if isinstance(volume, Mapping) else text.split(","))
        source, target = (next((text_of(parts[key]) for key in keys if parts.get(key)), "") for keys in (("source", "src"), ("target", "destination", "dst")))
    else:
        source, target = text.split(":")[:2] if ":" in text else ("", text)
    return f"volumes[{index}]", source, target.rstrip("/") or "/"


def _box(out: Imported, box: Mapping[str, Any]) -> None:
    """Take the container's limits, devices and ports."""
    resources = mapping(mapping(box, "deploy"), "resources")
    out.set_size("shm_size", "shm_size", box.get("shm_size"))
    out.set_size("mem_limit", "memory", box.get("mem_limit"))
    out.set_size("deploy.resources.limits.memory", "memory", mapping(resources, "limits").get("memory"))
    for key, value in pairs(box.get("ulimits")).items():
        soft = text_of(value.get("soft") if isinstance(value, Mapping) else text_of(value).partition(":")[0])
        if key in ("memlock", "stack", "nofile") and re.fullmatch(r"-1|\d+", soft):
            out.profile["container"][key] = int(soft)
        else:
            out.unmapped.append((f"ulimits.{key}", NO_KEY))
    for device in map(text_of, items(box.get("devices"))):
        if device.startswith(("/dev/infiniband", "nvidia.com/gpu")):
            out.decided.append(f"devices: {device}")
        else:
            out.unmapped.append((f"devices: {device}", "add it to container.devices if the engine needs it"))
    if isinstance(box.get("tmpfs"), (list, str)):
        out.profile["container"]["tmpfs"] = [text_of(each) for each in items(box["tmpfs"])]
    if re.fullmatch(r"\d+(?:ms|s|m)", text_of(box.get("stop_grace_period"))):
        out.profile["container"]["stop_grace_period"] = text_of(box["stop_grace_period"])
    own = text_of(out.profile["engine"].get("api", {}).get("port", 8000))
    for index, port in enumerate(items(box.get("ports"))):
        given = [text_of(port.get("published")), text_of(port.get("target"))] if isinstance(port, Mapping) else text_of(port).partition("/")[0].split(":")[-2:]
        if set(given) != {own}:
            why = f"the container uses the host's network: the API is at engine.api.port, which is {own}"
            out.unmapped.append((f"ports[{index}] {shown(text_of(port))}", why))
