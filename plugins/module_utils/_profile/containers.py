# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container of an engine that a recipe describes: of sparkrun or eugr, a service of a Compose file, `docker run` of a script. Pure.

Each kind becomes the keys of a Compose service. Nothing is executed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._profile.shell import (
    RUN,
    SYSTEM_PATH,
    RecipeError,
    Script,
    expand,
    other_engine,
    program_of,
    split,
)

# Options of docker run without a value (all others have one), and the keys of a Compose service that have another name than the option.
RUN_BARE = (
    "detach",
    "interactive",
    "tty",
    "rm",
    "init",
    "privileged",
    "read-only",
    "publish-all",
    "quiet",
    "no-healthcheck",
    "oom-kill-disable",
    "disable-content-trust",
    "sig-proxy",
    "use-api-socket",
)
RUN_KEYS = {
    "e": "environment", "env": "environment", "env-file": "env_file", "v": "volumes", "volume": "volumes", "mount": "volumes", "name": "container_name",
    "net": "network_mode", "network": "network_mode", "p": "ports", "publish": "ports", "m": "mem_limit", "memory": "mem_limit", "w": "working_dir",
    "workdir": "working_dir", "u": "user", "h": "hostname", "l": "labels", "label": "labels", "device": "devices", "ulimit": "ulimits",
    "pull": "pull_policy", "log-driver": "logging", "log-opt": "logging", "stop-timeout": "stop_grace_period",
}  # fmt: skip
MANY = ("volumes", "environment", "devices", "ports", "cap_add", "cap_drop", "security_opt", "env_file", "ulimits", "labels", "tmpfs", "logging")
_COMMAND = re.compile(rf"(?m)^[ \t]*(?:\$ )?((?:sudo )?{RUN}(?:\\\n|'[^']*'|[^\n'\\]|\\.)*|(?:export )?[A-Za-z_]\w*=\S[^\n]*)")
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}")


@dataclass
class Around:
    """What is around a recipe: its text, its folder's name, its .env, other files next to it, and the folders of its mods."""

    source: str = ""
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[str], dict[str, str] | None] = lambda _name: None  # another file such as .env
    mod: Callable[[str], str] = lambda _name: ""


@dataclass
class Engine:
    """A container, and how it starts its engine."""

    name: str
    box: Mapping[str, Any]
    words: list[str]
    environment: dict[str, Any]
    script: Script = field(default_factory=Script)
    others: list[list[str]] = field(default_factory=list)  # commands next to the engine
    shell: list[str] = field(default_factory=list)


def text_of(value: Any) -> str:
    """Return a value of YAML as an environment or a command line has it."""
    if isinstance(value, (dict, list)):
        return json.dumps(_typed(value), ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _typed(value: Any) -> Any:
    """Return a structure of texts with its numbers and booleans."""
    if isinstance(value, Mapping):
        return {str(key): _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each) for each in value]
    plain = isinstance(value, str) and re.fullmatch(r"true|false|-?(?:0|[1-9]\d{0,17})(?:\.\d+)?(?:[eE][-+]?\d+)?", value)
    return json.loads(value) if plain else value


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of a recipe, empty if it has none."""
    value = data.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise RecipeError(f"{key} is not a mapping, expected names and values")
    return value or {}


def items(value: Any) -> list[Any]:
    """Return a list of a recipe; a single value is a list of one."""
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def pairs(value: Any) -> dict[str, Any]:
    """Return names and values of a mapping or of a list of NAME=value."""
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    return {text.partition("=")[0]: text.partition("=")[2] if "=" in text else None for text in map(str, items(value))}


# Recipes of sparkrun and of eugr/spark-vllm-docker


def recipe_box(data: Mapping[str, Any], around: Around) -> tuple[dict[str, Any], set[str]]:
    """Return the container of a recipe, and the defaults that its command uses."""
    defaults, used = mapping(data, "defaults"), set[str]()
    env = {str(key): None if value is None else expand(text_of(value), around.env, in_shell=True) for key, value in mapping(data, "env").items()}
    box: dict[str, Any] = {"image": text_of(data.get("container")), "environment": env}
    if not data.get("command"):
        words = ["vllm", "serve", text_of(data.get("model"))]
        for key, value in defaults.items():
            short = re.fullmatch(r"(tensor|pipeline|data)_parallel", str(key))
            flag = f"--{short[1]}-parallel-size" if short else f"--{str(key).replace('_', '-')}"
            if text_of(value).lower() not in ("false", ""):
                words += [flag, *([] if text_of(value).lower() == "true" else map(text_of, items(value)))]
        return {**box, "command": words}, {str(key) for key in defaults}
    values = {"model": text_of(data.get("model")), "container": box["image"], **{str(key): text_of(value) for key, value in defaults.items()}}
    text = re.sub(r"\\[ \t]+\n", "\\\n", _fill(text_of(data["command"]), values, used))
    return {**box, "command": ["bash", "-c", text]}, used


def _fill(text: str, values: Mapping[str, str], used: set[str]) -> str:
    """Replace the placeholders ``{name}`` of a recipe. JSON in plain braces stays, and in doubled braces loses one of each pair."""
    pattern = re.compile(r"\{\{|\}\}|" + _PLACEHOLDER.pattern) if "{{" in text else _PLACEHOLDER

    def value_of(match: re.Match[str]) -> str:
        used.update([match[1]] if match[1] in values else [])
        return values.get(match[1], match.group()) if match[1] else match.group()[0]

    for _round in range(5):  # a default can contain a placeholder
        text, pattern = pattern.sub(value_of, text[: 1 << 16]), _PLACEHOLDER
    return text


# Docker Compose


def expanded(value: Any, values: Mapping[str, str]) -> Any:
    """Return a tree of a Compose file with its variables replaced."""
    if isinstance(value, Mapping):
        return {str(key): expanded(each, values) for key, each in value.items()}
    return [expanded(each, values) for each in value] if isinstance(value, list) else expand(value, values) if isinstance(value, str) else value


# docker run


def docker_runs(text: str, values: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], Script, list[list[str]], int]:
    """Return the containers that a script or a text starts, the script, its other commands, and how many other lines the text has."""
    lines, body = 0, text
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    if not text.startswith("#!") and not re.match(r"\s*(?:\w+=|export |set -|docker |podman |sudo |cd )", first):
        body, lines = _commands(text)
    script = Script(dict(values)).read(body)
    boxes: dict[str, dict[str, Any]] = {}
    others = []
    for words, _own in script.commands:
        if not _image_at(words):
            others.append(words)
            continue
        box = _run_options(words)
        name = text_of(box.get("container_name")) or f"container{len(boxes) + 1}"
        boxes[name if name not in boxes else f"{name}-{len(boxes) + 1}"] = box
    if not boxes:
        what = "starts vLLM without a container, so its image is unknown" if any(map(program_of, others)) else "has no docker run"
        raise RecipeError(f"it is not a recipe: it is not a YAML mapping, and as a script it {what}, expected docker run IMAGE with its command")
    return boxes, script, others, lines


def _commands(text: str) -> tuple[str, int]:
    """Return the docker run commands and assignments of a text, and how many other lines it has. A command ends after its last backslash or quote."""
    found = [match[1] for match in _COMMAND.finditer(text)] if re.search(RUN, text) else []
    rows = [sum(map(bool, map(str.strip, each.splitlines()))) for each in (text, *found)]
    return "\n".join(found), rows[0] - sum(rows[1:])


def _image_at(words: list[str]) -> int:
    """Return the index after `docker run`, 0 if the words are another command."""
    match = re.match(rf"(sudo )?(?:\S*/)?{RUN}", " ".join(words[:4]))
    return len(match[0].split()) if match else 0


def _run_options(words: list[str]) -> dict[str, Any]:
    """Return the options of docker run as the keys of a Compose service."""
    box: dict[str, Any] = {}
    index = _image_at(words)
    while index < len(words) and words[index].startswith("-"):
        name, sign, value = words[index].lstrip("-").partition("=")
        short = not words[index].startswith("--")
        index += 1
        if not sign and (name in RUN_BARE or (short and set(name) <= set("ditPq"))):
            box["detach" if short else name.replace("-", "_")] = "true"
            continue
        if short and len(name) > 1 and name[0] in "evpmwuhl":
            name, value, sign = name[0], words[index - 1][2:], "="
        if not sign:
            value, index = (words[index] if index < len(words) else ""), index + 1
        key = RUN_KEYS.get(name, "healthcheck" if name.startswith("health-") else name.replace("-", "_"))
        if key in MANY:
            box.setdefault(key, []).append(value)
        else:
            box[key] = value
    if index >= len(words):
        raise RecipeError("docker run names no image, expected docker run OPTIONS IMAGE COMMAND")
    box.update(image=words[index], command=words[index + 1 :])
    box.update({"entrypoint": [box["entrypoint"]] if box["entrypoint"] else []} if "entrypoint" in box else {})
    return box


# The engine of a container


def _command_text(box: Mapping[str, Any]) -> str:
    return " ".join(text_of(each) for key in ("entrypoint", "command") for each in items(box.get(key)))


def _serves(name: str, box: Mapping[str, Any]) -> int:
    """Return 2 if a container runs vLLM, 1 if it may do so, and 0."""
    command, image = _command_text(box), text_of(box.get("image"))
    if re.search(r"\bvllm\s+serve\b|\bvllm\.entrypoints\b", command) or re.search(r"(?:^|/)vllm$", command.split(" ", maxsplit=1)[0]):
        return 2
    if other_engine(command, image):
        return 0
    if "vllm" in image and re.match(r"-|serve\b|ray start|[\w.-]+/[\w.-]+(?:\s|$)", command):
        return 2  # the image's entrypoint starts it, or it is a rank of Ray
    return int("vllm" in image or bool(re.search(r"(?:^|[_-])vllm(?:[_-]|$)", name)))


def chosen(boxes: Mapping[str, Mapping[str, Any]], wanted: str) -> str:
    """Return the name of the container that runs vLLM. Raise RecipeError if there is none, or several."""
    extending = next((name for name in ([wanted] if wanted in boxes else boxes) if "extends" in boxes[name]), "")
    if extending:
        raise RecipeError(f"the service {extending} extends another one, expected a service with all its keys. Import what `docker compose config` prints")
    found = {name: _serves(name, box) for name, box in boxes.items()}
    best = max(found.values(), default=0)
    names = [wanted] if wanted else [name for name in boxes if found[name] == best and (best or len(boxes) == 1)]
    others = {name: other_engine(_command_text(box), text_of(box.get("image"))) for name, box in boxes.items() if not found[name]}
    if not names or not set(names) <= set(boxes):
        what = f"services has no {wanted!r}, expected one of" if wanted else "no service runs vLLM, and the collection serves vLLM only. It has"
        listed = ", ".join(f"{name} ({others[name]})" if others.get(name) else name for name in boxes) or "none"
        raise RecipeError(f"{what}: {listed}. Choose one with -e service=NAME")
    if len(names) > 1:
        raise RecipeError(f"several services run vLLM: {', '.join(names)}. Choose one, or that of the head of a pair, with -e service=NAME")
    if others.get(names[0]):
        raise RecipeError(f"the service {names[0]} runs {others[names[0]]}, and the collection serves vLLM only. Choose another with -e service=NAME")
    return names[0]


def engine_of(name: str, boxes: Mapping[str, Mapping[str, Any]], around: Around, values: Mapping[str, str] | None = None) -> Engine:
    """Return how a container starts its engine. The variables of `values` are set in its shell."""
    box = boxes[name]
    environment: dict[str, Any] = {}
    for each in items(box.get("env_file")):
        path = text_of(each.get("path") if isinstance(each, Mapping) else each)
        found = around.read(path)
        if found is None and not (isinstance(each, Mapping) and text_of(each.get("required")) == "false"):
            raise RecipeError(f"the service {name} has env_file {path}, which is not next to the recipe and is its environment. Put the file there")
        environment.update(found or {})
    environment.update({key: around.env.get(key) if value is None else value for key, value in pairs(box.get("environment")).items()})
    given = (box.get("entrypoint"), box.get("command"))
    words = [word for value in given for word in (map(text_of, value) if isinstance(value, list) else split(text_of(value)))]
    engine = Engine(name, box, words, environment)
    shell = next((i for i, word in enumerate(words[:4]) if re.fullmatch(r"-[a-z]*c", word)), None)
    is_shell = bool(words) and posixpath.basename(words[0]) in ("sh", "bash", "dash", "zsh", "ash")
    if is_shell and shell is not None:
        if len(words) > shell + 2:
            raise RecipeError(f"the service {name} gives {words[0]} {words[shell]} several words, and a shell runs the first. Write the command as one text")
        set_there = {key: text_of(value) for key, value in environment.items() if value is not None}
        engine.script = Script({"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", **(values or {}), **set_there}).read("".join(words[shell + 1 :]))
        engine.shell = words[: shell + 1]
        _choose(engine)
    elif program_of(words):  # bash /entrypoint.sh vllm serve
        begin = next((i for i, word in enumerate(words) if posixpath.basename(word) in ("vllm", "python", "python3")), 0)
        if any(re.search(r"\.sh$|\.py$|entrypoint|^(?:.*/)?(?:ba)?sh$", word) for word in words[:begin]):
            engine.words, engine.others = words[begin:], [words[:begin]]
    elif not words or is_shell or words[0].endswith((".sh", ".py")) or "entrypoint" in words[0]:
        what = f"runs {' '.join(words[:2])}, a script that is not in the recipe" if words else "has no command: what its image starts is not in the recipe"
        raise RecipeError(f"the service {name} {what}. Write the command that it starts into the recipe: `ps -ef` in the running container shows it")
    return engine


def _choose(engine: Engine) -> None:
    """Choose the one command of a script that starts vLLM, with its own variables exported. Raise RecipeError if there is none or more."""
    script = engine.script
    found = [(words, own) for words, own in script.commands if program_of(words)]
    engine.others = [words for words, _own in script.commands if not program_of(words)]
    image = text_of(engine.box.get("image"))
    other = other_engine(*(" ".join(words[:4]) for words in engine.others))
    names = [" ".join(words[:3]) for words, _own in found] + [other] * bool(other)
    if len(names) > 1:
        raise RecipeError(f"the command starts several engines ({', '.join(names)}), expected one. Import each with a recipe of its own")
    if not found:
        other = other or other_engine(image)
        what = f"starts {other}" if other else "does not start vLLM, expected 'vllm serve MODEL'"
        raise RecipeError(f"the command {what}, and the collection serves vLLM only. Write the engine's command there")
    engine.words = found[0][0]
    script.exported.update(found[0][1])


def with_defaults(words: list[str], data: Mapping[str, Any], is_eugr: bool, used: set[str]) -> list[str]:
    """Return the words of a recipe's command with the served name that sparkrun adds. Raise RecipeError for a placeholder that is left."""
    left = next((match[0] for word in words for match in _PLACEHOLDER.finditer(word) if match[0] == word or word[:1] not in ("{", "[")), "")
    if left:
        raise RecipeError(f"the command has the placeholder {left}, and defaults has no value for it. Add it to defaults")
    name = text_of(mapping(data, "defaults").get("served_model_name"))
    if is_eugr or not name or "--served-model-name" in words:
        return words
    used.add("served_model_name")
    return [*words, "--served-model-name", name]
