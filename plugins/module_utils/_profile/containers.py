# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a recipe describes: the command of sparkrun or eugr, services of a Compose file, `docker run` of a script. Pure, nothing is executed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile.ranks import Around, only, pairs, profile_of
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe import (
    HIDDEN,
    ONE_NODE,
    Imported,
    is_true,
    items,
    mapping,
    other_engine,
    program_of,
    text_of,
)
from ansible_collections.gb10.cluster.plugins.module_utils._profile.shell import SYSTEM_PATH, RecipeError, Script, expand, split
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import COMPOSE, human_int, kind_of

MOST_ENTRIES = 5000
DOCKER = "script with docker run"
EUGR = "https://github.com/eugr/spark-vllm-docker"
# Options of docker run without a value, and the keys of a Compose service that have another name than the option.
RUN_BARE = ("detach", "interactive", "tty", "rm", "init", "privileged", "read-only", "publish-all", "quiet", "no-healthcheck", "oom-kill-disable")
RUN_KEYS = {
    "e": "environment", "env": "environment", "env-file": "env_file", "v": "volumes", "volume": "volumes", "mount": "volumes", "name": "container_name",
    "net": "network_mode", "network": "network_mode", "p": "ports", "publish": "ports", "m": "mem_limit", "memory": "mem_limit", "w": "working_dir",
    "workdir": "working_dir", "u": "user", "h": "hostname", "l": "labels", "label": "labels", "device": "devices", "ulimit": "ulimits",
    "pull": "pull_policy", "log-driver": "logging", "log-opt": "logging", "stop-timeout": "stop_grace_period",
}  # fmt: skip
RUN_OPTIONS = {
    *RUN_KEYS,
    "shm-size", "ipc", "gpus", "entrypoint", "cap-add", "cap-drop", "security-opt", "restart", "hostname", "runtime", "tmpfs", "platform", "user", "cpus",
    "cpuset-cpus", "pid", "memory-swap", "pids-limit", "group-add", "device-cgroup-rule", "cgroupns", "userns", "dns", "sysctl", "expose", "add-host",
    "health-cmd", "health-interval", "health-retries", "health-start-period", "health-timeout",
}  # fmt: skip
MANY = ("volumes", "environment", "devices", "ports", "cap_add", "cap_drop", "security_opt", "env_file", "ulimits", "labels", "tmpfs", "logging")
RECIPE_KEYS = (
    "command", "defaults", "env", "model_revision", "executor_config", "min_nodes", "max_nodes", "cluster_only", "solo_only", "mode",
)  # fmt: skip
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_RUN = r"(?:docker|podman|nerdctl) (?:container )?(?:run|create)\b"


def convert(data: Any, around: Around | None = None, service: str = "") -> Imported:
    """Return the profile that a recipe describes, not checked yet.

    :param data: the content of the recipe's YAML file, or anything else if it is the text of another file.
    :param around: what is around it.
    :param service: the service or container, if it has several.
    :raises RecipeError: another format, another engine than vLLM, or something that is not data.
    """
    around = around or Around()
    if not isinstance(data, Mapping):
        return _docker_run(around, service)
    pending: list[Any] = [data]  # aliases of YAML can make a small file large
    for each in pending:
        pending += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
        if len(pending) > MOST_ENTRIES:
            raise RecipeError(f"it has more than {MOST_ENTRIES} entries")
    kind = kind_of(data)
    if kind == COMPOSE:
        return _compose(data, around, service)
    if kind:
        return _recipe(data, kind, around)
    raise RecipeError("it has neither services (Docker Compose) nor model or command (sparkrun, eugr/spark-vllm-docker)")


# Recipes of sparkrun and of eugr/spark-vllm-docker


def _recipe(given: Mapping[str, Any], kind: str, around: Around) -> Imported:
    data = dict(given)
    model, defaults, env = text_of(data.pop("model", "")), mapping(data, "defaults"), mapping(data, "env")
    runtime, metadata = text_of(data.pop("runtime", "")), dict(mapping(data, "metadata"))
    if runtime and "vllm" not in runtime:
        raise RecipeError(f"runtime is {runtime!r} ({other_engine(runtime) or runtime}), and the collection serves vLLM only. Import a recipe for vLLM")
    name = text_of(data.pop("name", "") or model)
    out = Imported(kind, posixpath.basename(name), text_of(data.pop("description", "") or metadata.pop("description", "") or name))
    out.collect_secrets({**env, **defaults})
    out.set_image("container", text_of(data.pop("container", "")))
    for index, each in enumerate(map(text_of, items(data.pop("mods", None)))):
        folder, path = around.mod(each), each if each.startswith(("mods/", "@")) else f"mods/{each}"
        if folder:
            out.profile["image"].setdefault("mods", []).append({"path": folder})
            continue
        lines = f"{{repository: {EUGR}, commit: THE 40 DIGITS OF ITS COMMIT, path: {path}}}"
        why = f"its folder is not next to the recipe. Import the recipe from a checkout of its repository, or add to image.mods: {lines}"
        out.unmapped.append((f"mods[{index}] {each}", why))
    words, used, script = _recipe_command(given, kind, around)
    hidden = {key for key, value in defaults.items() if out.hides(str(key), value)}
    out.unmapped += [(f"defaults.{key}", HIDDEN if key in hidden else "the command does not use it") for key in defaults if key in hidden or key not in used]
    out.set_environment("env", {str(key): None if value is None else expand(text_of(value), {}, in_shell=True) for key, value in env.items()})
    out.list_script(script)
    out.set_engine(words, model)
    if runtime == "vllm-ray":
        out.profile["engine"]["executor"] = "ray"
    if data.get("model_revision"):
        out.profile["model"]["revision"] = text_of(data["model_revision"])
    settings = dict(mapping(data, "executor_config"))
    out.set_size("executor_config.shm_size", "shm_size", settings.pop("shm_size", None))
    out.set_size("executor_config.memory_limit", "memory", settings.pop("memory_limit", None))
    if "entrypoint" in settings and not settings.pop("entrypoint"):
        out.profile["engine"]["entrypoint"] = []
    _nodes(out, data)
    out.set_store([])
    data = {key: value for key, value in data.items() if key not in RECIPE_KEYS}
    out.close({**data, "metadata": metadata, **settings})
    return out


def _recipe_command(data: Mapping[str, Any], kind: str, around: Around) -> tuple[list[str], set[str], Script]:
    """Return the words of the engine's command, the defaults that it uses, and the script around it."""
    defaults, model, used = mapping(data, "defaults"), text_of(data.get("model")), set[str]()
    if not data.get("command"):
        words = ["vllm", "serve", model]
        for key, value in defaults.items():
            short = re.fullmatch(r"(tensor|pipeline|data)_parallel", str(key))
            flag = f"--{short[1]}-parallel-size" if short else f"--{str(key).replace('_', '-')}"
            if text_of(value).lower() not in ("false", ""):
                words += [flag, *([] if text_of(value).lower() == "true" else map(text_of, items(value)))]
        return words, {str(key) for key in defaults}, Script()
    values = {"model": model, "container": text_of(data.get("container")), **{str(key): text_of(value) for key, value in defaults.items()}}
    environment = {"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", **{str(key): text_of(value) for key, value in mapping(data, "env").items()}}
    text = re.sub(r"\\[ \t]+\n", "\\\n", _fill(text_of(data["command"]), values, used))
    done = Script(lambda words: bool(program_of(words)), environment, around.source).read(text)
    words = only(done, text_of(data.get("container")))
    left = next((match[0] for word in words for match in _PLACEHOLDER.finditer(word) if match[0] == word or word[:1] not in ("{", "[")), "")
    if left:
        raise RecipeError(f"the command has the placeholder {left}, and defaults has no value for it. Add it to defaults")
    if "eugr" not in kind and "served_model_name" in defaults and "--served-model-name" not in words:
        words, used = [*words, "--served-model-name", values["served_model_name"]], {*used, "served_model_name"}  # sparkrun adds it
    return words, used, done


def _fill(text: str, values: Mapping[str, str], used: set[str]) -> str:
    """Replace the placeholders ``{name}`` of a recipe. JSON in plain braces stays, and in doubled braces loses one of each pair."""
    pattern = re.compile(r"\{\{|\}\}|" + _PLACEHOLDER.pattern) if "{{" in text else _PLACEHOLDER

    def value_of(match: re.Match[str]) -> str:
        used.update([match[1]] if match[1] in values else [])
        return values.get(match[1], match.group()) if match[1] else match.group()[0]

    for _round in range(5):  # a default can contain a placeholder
        text, pattern = pattern.sub(value_of, text), _PLACEHOLDER
    if len(text) > 1 << 16:
        raise RecipeError(f"the command has more than {1 << 16} characters after its placeholders were replaced")
    return text


def _nodes(out: Imported, data: Mapping[str, Any]) -> None:
    """Take the numbers of nodes. A recipe for one node becomes one for two, and has a line in the report."""
    least, most = human_int(data.get("min_nodes")) or 1, human_int(data.get("max_nodes"))
    out.profile["ranks"]["min"] = max(least, 2 if is_true(data.get("cluster_only")) else 1, out.profile["ranks"]["min"])
    out.profile["ranks"].update({"max": most} if most and most > 1 else {})
    alone = {"max_nodes": most == 1, "solo_only": is_true(data.get("solo_only")), "mode": text_of(data.get("mode")) == "solo"}
    out.unmapped += [(key, ONE_NODE if is_alone else "it informs only") for key, is_alone in alone.items() if is_alone or (key in data and key != "max_nodes")]


# Docker Compose


def _compose(data: Mapping[str, Any], around: Around, wanted: str) -> Imported:
    services = {str(name): box for name, box in mapping(data, "services").items() if isinstance(box, Mapping)}
    bases = {_base(box) for box in services.values()}
    boxes = {name: _expanded(_extended(services, name, ()), around.env) for name in services if name == wanted or name not in bases or len(services) == 1}
    out, names = profile_of(COMPOSE, text_of(data.get("name")) or around.folder, boxes, around, wanted)
    out.unmapped += [(f"services.{each}", "another service of the file") for each in services if each not in names]
    out.unmapped += [(f"volumes: {each}", "a named volume of Docker: the profile mounts folders of the nodes") for each in mapping(data, "volumes")]
    for key, value in around.env.items():
        if out.hides(key, value) or not re.search(rf"\$\{{?{re.escape(key)}\b", around.source):
            out.unmapped.append((f".env {key}", HIDDEN if out.hides(key, value) else "the Compose file does not use it"))
    out.unmapped += [(f".env {name}", reason) for name, reason in around.notes]
    out.close({str(key): value for key, value in data.items() if key not in ("services", "volumes", "name")})
    return out


def _base(box: Mapping[str, Any]) -> str:
    given = box.get("extends")
    return text_of(given.get("service") if isinstance(given, Mapping) else given)


def _extended(services: Mapping[str, Any], name: str, seen: tuple[str, ...]) -> dict[str, Any]:
    """Return a service with what it extends, as Compose merges them."""
    own = dict(services.get(name) or {})
    given, base = own.pop("extends", None), _base(services[name])
    if given is None:
        return own
    if (isinstance(given, Mapping) and given.get("file")) or base not in services or base in (*seen, name):
        raise RecipeError(f"services.{name}.extends is not another service of the file, expected one. Import what `docker compose config` prints")
    out = _extended(services, base, (*seen, name))
    for key, value in own.items():
        before = out.get(key)
        if key == "environment":
            out[key] = {**pairs(before), **pairs(value)}
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            out[key] = {**before, **value}
        else:
            out[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) and key not in ("command", "entrypoint") else value
    return out


def _expanded(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _expanded(each, values) for key, each in value.items()}
    return [_expanded(each, values) for each in value] if isinstance(value, list) else expand(value, values) if isinstance(value, str) else value


# docker run


def _docker_run(around: Around, wanted: str) -> Imported:
    """Return the profile of a script, or of a text, that starts a container."""
    text, lines = around.source, 0
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    if not text.startswith("#!") and not re.match(r"\s*(?:\w+=|export |set -|docker |podman |sudo |cd |ssh )", first):
        text, lines = _commands(text)
    done = Script(lambda words: bool(_image_at(_remote(words))), dict(around.env), around.source).read(text)
    if not done.found:
        what = "starts vLLM without a container, so its image is unknown" if any(map(program_of, done.others)) else "has no docker run"
        raise RecipeError(f"it is not a recipe: it is not a YAML mapping, and as a script it {what}, expected docker run IMAGE with its command")
    boxes: dict[str, dict[str, Any]] = {}
    for words, _own in done.found:
        box = _run_box(_remote(words))
        name = text_of(box.get("container_name")) or f"container{len(boxes) + 1}"
        boxes[name if name not in boxes else f"{name}-{len(boxes) + 1}"] = box
    out, names = profile_of(DOCKER, around.folder, boxes, replace(around, env={**around.env, **done.values}), wanted)
    out.unmapped += [(f"docker run {name}", "another container of the script") for name in boxes if name not in names]
    out.unmapped += [(f"command: {' '.join(words[:2])}", "another command of the script, which is not run") for words in done.others if words[0] != "set"]
    out.decided += [f"docker run > {each}" for each in done.redirections]
    out.unmapped += [(f"{lines} other lines of the text", "they are not part of docker run")] if lines else []
    out.close({})
    return out


def _commands(text: str) -> tuple[str, int]:
    """Return the docker run commands and assignments of a text, and how many other lines it has."""
    out, keep, dropped, quotes = [], False, 0, 0
    for line in text.splitlines() if re.search(_RUN, text) else []:
        start = re.match(rf"\s*(?:\$ )?((?:sudo )?{_RUN}.*|(?:export )?[A-Za-z_]\w*=\S.*)", line)
        if keep or start:
            out.append(start[1] if start and not keep else line)
            quotes += out[-1].count("'")
            keep = out[-1].rstrip().endswith("\\") or ((keep or "docker" in line) and quotes % 2 == 1)
        else:
            dropped += bool(line.strip())
    return "\n".join(out), dropped


def _image_at(words: list[str]) -> int:
    """Return the index after `docker run`, 0 if the words are another command."""
    match = re.match(rf"(sudo )?(?:\S*/)?{_RUN}", " ".join(words[:4]))
    return len(match[0].split()) if match else 0


def _remote(words: list[str]) -> list[str]:
    """Return the command that ssh runs on another node, or the words."""
    at = next((i for i, word in enumerate(words) if re.match(r"(?:sudo )?(?:docker|podman|nerdctl)\b", word)), 0) if words[:1] == ["ssh"] else 0
    return (split(" ".join(words[at:])) if " " in words[at] else words[at:]) if at else words


def _run_box(words: list[str]) -> dict[str, Any]:
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
        if name not in RUN_OPTIONS:
            raise RecipeError(f"docker run has the option --{name}, which is not known here, so where its image begins is not. Remove the option")
        if not sign:
            value, index = (words[index] if index < len(words) else ""), index + 1
        key = RUN_KEYS.get(name, "healthcheck" if name.startswith("health-") else name.replace("-", "_"))
        if key in MANY:
            box.setdefault(key, []).append(value)
        else:
            box[key] = value
    if index >= len(words):
        raise RecipeError("docker run names no image, expected docker run OPTIONS IMAGE COMMAND")
    box.update(image=words[index], command=words[index + 1 :], environment=pairs(box.get("environment")), ulimits=pairs(box.get("ulimits")))
    box.update({"entrypoint": items(box["entrypoint"] or None)} if "entrypoint" in box else {})
    return box
