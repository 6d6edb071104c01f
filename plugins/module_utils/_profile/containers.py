# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a recipe describes: the command of sparkrun or eugr, services of a Compose file, `docker run` of a script. Pure, nothing is executed.

One container is a profile, and several are its ranks.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe import (
    HIDDEN,
    NO_KEY,
    ONE_NODE,
    ROLE_ENV,
    Imported,
    arguments,
    is_flag,
    is_true,
    items,
    mapping,
    other_engine,
    program_of,
    slug,
    text_of,
)
from ansible_collections.gb10.cluster.plugins.module_utils._profile.shell import (
    SYSTEM_PATH,
    RecipeError,
    Script,
    docker_runs,
    expand,
    marks,
    run_options,
    shown,
    split,
)
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import COMPOSE, PLACEHOLDERS, human_int, kind_of

MOST_ENTRIES = 5000
DOCKER = "script with docker run"
EUGR = "https://github.com/eugr/spark-vllm-docker"
RECIPE_KEYS = (
    "command", "defaults", "env", "model_revision", "executor_config", "min_nodes", "max_nodes", "cluster_only", "solo_only", "mode",
)  # fmt: skip
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
# Keys of a container that a rule takes, or lists by itself.
TAKEN = ("image", "command", "entrypoint", "environment", "env_file", "volumes", "shm_size", "mem_limit", "ulimits", "devices", "ports")


@dataclass
class Around:
    """What is around a recipe: its text, its folder's name, its .env, other files next to it, and the folders of its mods."""

    source: str = ""
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)  # of its .env
    read: Callable[[str], tuple[dict[str, str], list[tuple[str, str]]] | None] = lambda _name: None  # another file such as .env
    mod: Callable[[str], str] = lambda _name: ""


@dataclass
class _Rank:
    """A container and how it starts: the engine's words, the script around them, its environment. A rank of Ray that only joins has no words."""

    name: str
    box: Mapping[str, Any]
    words: list[str]
    script: Script
    environment: dict[str, Any]
    shell: list[str] = field(default_factory=list)
    args: dict[str, Any] = field(default_factory=dict)
    ray: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)  # of its env_file

    @property
    def image(self) -> str:
        return text_of(self.box.get("image"))

    @property
    def model(self) -> str:
        rest = self.words[program_of(self.words) or self.words[:1] == ["serve"] :]
        return rest[0] if rest and not is_flag(rest[0]) else text_of(self.args.get("model"))

    @property
    def is_worker(self) -> bool:
        number = text_of(self.args.get("node-rank", 0))
        return "headless" in self.args or (number not in ("0", "") and not marks(number))


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
    if data.get("include"):
        raise RecipeError(f"it is a change of the recipe {text_of(data['include'])}, which is not read. Import what `sparkrun export recipe` prints")
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
    out.collect_secrets({**around.env, **env, **defaults})
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
    out.set_environment("env", {str(key): None if value is None else expand(text_of(value), around.env, in_shell=True) for key, value in env.items()})
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
    _list_env(out, around)
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
    environment = {"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", **around.env, **{str(key): text_of(value) for key, value in mapping(data, "env").items()}}
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
    boxes = {str(name): _expanded(box, around.env) for name, box in mapping(data, "services").items() if isinstance(box, Mapping)}
    serves = {name: max(_serves(name, box), _serves(_base(box), boxes.get(_base(box), {}))) for name, box in boxes.items()}
    for name, box in boxes.items():
        if "extends" in box and (name == wanted if wanted else serves[name] == max(serves.values())):
            raise RecipeError(f"the service {name} extends another one, expected a service with all its keys. Import what `docker compose config` prints")
    out, names = profile_of(COMPOSE, text_of(data.get("name")) or around.folder, boxes, around, wanted)
    out.unmapped += [(f"services.{each}", "another service of the file") for each in boxes if each not in names]
    out.unmapped += [(f"volumes: {each}", "a named volume of Docker: the profile mounts folders of the nodes") for each in mapping(data, "volumes")]
    _list_env(out, around)
    out.close({str(key): value for key, value in data.items() if key not in ("services", "volumes", "name")})
    return out


def _list_env(out: Imported, around: Around) -> None:
    """List what of a .env is in no profile."""
    taken = {key for table in ("env", "head_env", "worker_env") for key in out.profile.get(table, {})}  # it can be an env_file too
    for key, value in around.env.items():
        if out.hides(key, value) or not (key in taken or re.search(rf"\$\{{?{re.escape(key)}\b", around.source)):
            out.unmapped.append((f".env {key}", HIDDEN if out.hides(key, value) else "the recipe does not use it"))
    out.unmapped += [(f".env {name}", reason) for name, reason in around.notes]


def _base(box: Mapping[str, Any]) -> str:
    given = box.get("extends")
    return text_of(given.get("service") if isinstance(given, Mapping) else given)


def _expanded(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _expanded(each, values) for key, each in value.items()}
    return [_expanded(each, values) for each in value] if isinstance(value, list) else expand(value, values) if isinstance(value, str) else value


# docker run


def _docker_run(around: Around, wanted: str) -> Imported:
    """Return the profile of a script, or of a text, that starts a container."""
    done, lines = docker_runs(around.source, dict(around.env))
    if not done.found:
        what = "starts vLLM without a container, so its image is unknown" if any(map(program_of, done.others)) else "has no docker run"
        raise RecipeError(f"it is not a recipe: it is not a YAML mapping, and as a script it {what}, expected docker run IMAGE with its command")
    boxes: dict[str, dict[str, Any]] = {}
    for words, _own in done.found:
        box = run_options(words)
        name = text_of(box.get("container_name")) or f"container{len(boxes) + 1}"
        boxes[name if name not in boxes else f"{name}-{len(boxes) + 1}"] = box
    out, names = profile_of(DOCKER, around.folder, boxes, replace(around, env={**around.env, **done.values}), wanted)
    out.unmapped += [(f"docker run {name}", "another container of the script") for name in boxes if name not in names]
    out.unmapped += [(f"command: {' '.join(words[:2])}", "another command of the script, which is not run") for words in done.others if words[0] != "set"]
    out.decided += [f"docker run > {each}" for each in done.redirections]
    out.unmapped += [(f"{lines} other lines of the text", "they are not part of docker run")] if lines else []
    _list_env(out, around)
    out.close({})
    return out


# Containers: one is a profile, or several are its ranks


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
    ranks, faults = [], {}
    for name in names:
        try:
            ranks.append(_rank(name, boxes[name], around))
        except RecipeError as error:
            faults[name] = error
    if len(faults) == len(names):
        raise faults[names[0]]
    models = {rank.name: rank.model for rank in ranks if rank.words}
    joined = all(rank.ray or {"nnodes", "node-rank", "headless", "master-addr"} & set(rank.args) for rank in ranks)
    if faults or len({(rank.model, rank.image) for rank in ranks if rank.words}) > 1 or (len(models) > 1 and not joined):
        several = ", ".join(f"{name} ({shown(models.get(name, 'a script'))})" for name in names)
        raise RecipeError(f"several services run vLLM, and they are not the ranks of one model: {several}. Choose one with -e service=NAME")
    if not models:
        raise RecipeError(f"the service {names[0]} starts Ray and no vLLM, expected 'vllm serve MODEL' in one of the services. Add it")
    ranks.sort(key=lambda rank: (not rank.words, rank.is_worker))
    return _of_ranks(kind, project, ranks, around), names


def _of_ranks(kind: str, project: str, ranks: list[_Rank], around: Around) -> Imported:
    head, *others = ranks
    box, image = head.box, head.image
    out = Imported(kind, project if kind == COMPOSE and project and head.name in ("vllm", "head") else head.name, "")
    for values in (around.env, *({**rank.environment, **rank.script.values} for rank in ranks)):
        out.collect_secrets(values)
    if not image and box.get("build"):
        image = f"{re.sub(r'[^a-z0-9_-]', '', project.lower()) or 'recipe'}-{head.name}"
        out.unmapped.append(("image", f"the service has build and no image: Compose names it {image}. Build it on each node by that name, or see build"))
    out.set_image("image", image)
    if box.get("entrypoint") is not None:
        out.profile["engine"]["entrypoint"] = []
    if head.shell and not head.script.exported:
        out.profile["engine"]["shell"] = head.shell
    _set_environments(out, ranks)
    out.unmapped += [note for rank in ranks for note in rank.notes]
    out.list_script(head.script)
    out.set_engine(head.words, "", image, box.get("entrypoint") is not None)
    if any(rank.ray for rank in ranks):
        out.profile["engine"]["executor"] = "ray"
    out.profile["ranks"]["min"] = max(out.profile["ranks"]["min"], len(ranks))
    model = out.profile["model"]["id"]
    out.profile["summary"] = f"{model}, from the service {head.name} of a Docker Compose file" if kind == COMPOSE else f"{model}, from docker run"
    _set_box(out, box)
    out.set_store([_volume(index, each) for index, each in enumerate(items(box.get("volumes")))])
    for other in others:
        out.unmapped += [(f"services.{other.name}.{each}", "differs from that of the first rank, which the profile has") for each in _differing(head, other)]
    out.close({key: value for key, value in box.items() if key not in (*TAKEN, *out.profile["container"])})
    return out


def _rank(name: str, box: Mapping[str, Any], around: Around) -> _Rank:
    """Return how a service starts its engine."""
    environment: dict[str, Any] = {}
    notes: list[tuple[str, str]] = []
    for each in items(box.get("env_file")):
        path = text_of(each.get("path") if isinstance(each, Mapping) else each)
        found = around.read(path)
        if found is None and not (isinstance(each, Mapping) and text_of(each.get("required")) == "false"):
            raise RecipeError(f"the service {name} has env_file {path}, which is not next to the recipe and is its environment. Put the file there")
        values, remarks = found or ({}, [("is not there", "it is not next to the recipe, and Compose does without it")])
        environment.update(values)
        notes += [(f"{path} {text}", reason) for text, reason in remarks]
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
    rank = _Rank(name, box, words, Script(others=[wrapper] if wrapper else []), environment, notes=notes)
    if is_shell and shell is not None:
        if len(words) > shell + 2:
            raise RecipeError(f"the service {name} gives {words[0]} {words[shell]} several words, and a shell runs the first. Write the command as one text")
        values = {"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", **{key: text_of(value) for key, value in environment.items() if value is not None}}
        done = Script(lambda each: bool(program_of(each)), values, around.source).read("".join(words[shell + 1 :]))
        rank.script, rank.shell, rank.ray = done, words[: shell + 1], any(each[:2] == ["ray", "start"] for each in done.others)
        rank.words = [] if rank.ray and not done.found else only(done, rank.image)
    if rank.words[:2] == ["ray", "start"]:
        rank.words, rank.ray = [], True
    for key in rank.script.removed:
        environment.pop(key, None)
    rank.args = arguments(rank.words[program_of(rank.words) :])[0]
    return rank


def _set_environments(out: Imported, ranks: list[_Rank]) -> None:
    """Take the environment of all ranks, and what only the head or only the workers have."""
    head, *workers = (rank.environment for rank in ranks)
    shared = {key: value for key, value in head.items() if key in ROLE_ENV or all(key in each and each[key] == value for each in workers)}
    out.set_environment("environment", shared)
    out.set_environment("environment", {key: value for key, value in head.items() if key not in shared}, "head_env")
    for rank in ranks[1:]:
        own = {key: value for key, value in rank.environment.items() if key not in shared and key not in ROLE_ENV}
        if any(own.get(key) != workers[0].get(key) for key in own):
            raise RecipeError(f"the environment of {rank.name} differs from that of {ranks[1].name}, and all workers of a profile have one. Make them equal")
        out.set_environment(f"services.{rank.name}.environment", own, "worker_env")


def _differing(head: _Rank, other: _Rank) -> list[str]:
    """Return the fields of another rank that are not those of the head. Raise RecipeError for an argument that it has otherwise."""
    for flag, value in other.args.items() if other.words else ():
        if flag not in (*PLACEHOLDERS, "model") and value != head.args.get(flag):
            first = text_of(head.args[flag]) if flag in head.args else "missing"
            raise RecipeError(
                f"--{flag} is {first} in the first and {text_of(value)} in {other.name}, and all ranks of a profile have the same arguments. Make them equal,"
                " or choose one with -e service=NAME"
            )
    known = [*(f"--{flag}" for flag in (*PLACEHOLDERS, "model")), "command", "entrypoint", "environment", "env_file", "container_name", "hostname"]
    known += ["profiles", "healthcheck"]
    tables = []
    for rank in (head, other):
        table = {f"--{flag}": value for flag, value in rank.args.items() if other.words} | dict(rank.box)
        table |= {f"command: export.{key}": value for key, value in rank.script.exported.items() if key not in ROLE_ENV}
        tables.append(table | {f"command: {slug(words[0])}": words for words in rank.script.others if words[:2] != ["ray", "start"]})
    return [key for key in {**tables[0], **tables[1]} if key not in known and tables[0].get(key) != tables[1].get(key)]


def _volume(index: int, volume: Any) -> tuple[str, str, str]:
    """Return (field, source, path in the container) of a volume."""
    text = text_of(volume)
    if isinstance(volume, Mapping) or ("=" in text and "," in text):  # --mount type=bind,source=/a,target=/b,readonly
        parts = pairs(volume if isinstance(volume, Mapping) else text.split(","))
        source, target = (next((text_of(parts[key]) for key in keys if parts.get(key)), "") for keys in (("source", "src"), ("target", "destination", "dst")))
    else:
        source, target = text.split(":")[:2] if ":" in text else ("", text)
    return f"volumes[{index}]", source, target.rstrip("/") or "/"


def _set_box(out: Imported, box: Mapping[str, Any]) -> None:
    """Take the container's limits, devices and ports."""
    deploy = mapping(box, "deploy")
    resources = mapping(deploy, "resources")
    limits, reserved = mapping(resources, "limits"), mapping(resources, "reservations")
    for where, table, known in (
        ("deploy", deploy, ("resources", "restart_policy")), ("deploy.resources.limits", limits, ("memory",)),
        ("deploy.resources.reservations", reserved, ("devices",)),
    ):  # fmt: skip
        out.unmapped += [(f"{where}.{key}", NO_KEY) for key in table if key not in known]
    out.set_size("shm_size", "shm_size", box.get("shm_size"))
    out.set_size("mem_limit", "memory", box.get("mem_limit"))
    out.set_size("deploy.resources.limits.memory", "memory", limits.get("memory"))
    for key, value in pairs(box.get("ulimits")).items():
        soft, hard = (text_of(value.get(each)) for each in ("soft", "hard")) if isinstance(value, Mapping) else text_of(value).partition(":")[::2]
        if hard not in ("", soft):
            out.unmapped.append((f"ulimits.{key} hard {hard}", "container has one number for both limits, which is the soft one here"))
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
