# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a profile of a recipe of sparkrun or eugr/spark-vllm-docker, of a Docker Compose file, or of `docker run` commands. Nothing is executed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile import containers
from ansible_collections.gb10.cluster.plugins.module_utils._profile.command_line import (
    DEFAULT_ALIASES,
    only,
    other_engine,
    program_of,
    set_engine,
)
from ansible_collections.gb10.cluster.plugins.module_utils._profile.imported import (
    HIDDEN,
    INFORMS,
    NO_KEY,
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
from ansible_collections.gb10.cluster.plugins.module_utils._profile.script import SYSTEM_PATH, Around, RecipeError, Script, expand, run
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import COMPOSE, human_int, kind_of

MOST_ENTRIES = 5000
EUGR = "https://github.com/eugr/spark-vllm-docker"
_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


def convert(data: Any, around: Around | None = None, service: str = "") -> Imported:
    """Return the profile that a recipe describes, not checked yet.

    :param data: the content of the recipe's YAML file, or anything else if it is the text of another file.
    :param around: what is around it.
    :param service: the service or container, if it has several.
    :raises RecipeError: another format, another engine than vLLM, or something that is not data.
    """
    around = around or Around()
    if not isinstance(data, Mapping):
        return containers.docker_run(around, service)
    if _entries(data) > MOST_ENTRIES:
        raise RecipeError(f"it has more than {MOST_ENTRIES} entries")
    kind = kind_of(data)
    if kind == COMPOSE:
        return containers.compose(data, around, service)
    if kind:
        return _recipe(data, kind, around)
    raise RecipeError("it has neither services (Docker Compose) nor model or command (sparkrun, eugr/spark-vllm-docker)")


def _entries(data: Any) -> int:
    """Count entries as far as the limit; aliases of YAML can make a small file large."""
    pending, count = [data], 0
    while pending and count <= MOST_ENTRIES:
        each = pending.pop()
        count += 1
        if isinstance(each, Mapping):
            pending.extend(each.values())
        elif isinstance(each, list):
            pending.extend(each)
    return count


# Recipes of sparkrun and of eugr/spark-vllm-docker


def _recipe(data: Mapping[str, Any], kind: str, around: Around) -> Imported:
    runtime, metadata, defaults = text_of(data.get("runtime")), mapping(data, "metadata"), mapping(data, "defaults")
    if runtime and "vllm" not in runtime:
        name = other_engine(runtime) or runtime
        raise RecipeError(f"runtime is {runtime!r} ({name}), and the collection serves vLLM only. Import a recipe for vLLM")
    name = text_of(data.get("name") or data.get("model"))
    out = new_import(kind, posixpath.basename(name), text_of(data.get("description") or metadata.get("description") or name))
    out.mapped += [(key, "summary") for key in ("name", "description") if key in data]
    if "description" in metadata:
        out.mapped.append(("metadata.description", "summary"))
    env = mapping(data, "env")
    out.collect_secrets({**env, **defaults})
    set_image(out, "container", text_of(data.get("container")))
    _mods(out, items(data.get("mods")), around)
    words, used, script = _recipe_command(data, kind, around)
    out.mapped.append(("command" if data.get("command") else "defaults", "engine"))
    if data.get("command"):
        for key, value in defaults.items():
            hidden = out.hides(str(key), value)
            (out.mapped if key in used and not hidden else out.unmapped).append(
                (f"defaults.{key}", HIDDEN if hidden else "engine" if key in used else "the command does not use it")
            )
    out.set_environment("env", {str(key): expand(text_of(value), {}, in_shell=True) if value is not None else None for key, value in env.items()})
    out.list_script(script)
    set_engine(out, words, text_of(data.get("model")))
    if runtime == "vllm-ray":
        out.profile["engine"]["executor"] = "ray"
    if data.get("model_revision"):
        out.profile["model"]["revision"] = text_of(data["model_revision"])
        out.mapped.append(("model_revision", "model.revision"))
    _executor_config(out, mapping(data, "executor_config"))
    _nodes(out, data)
    _distribution(out, mapping(data, "distribution_config"))
    if "runtime" in data:
        out.mapped.append(("runtime", "engine.executor"))
    set_store(out, [])
    out.close(data)
    return out


def _mods(out: Imported, mods: list[Any], around: Around) -> None:
    for index, each in enumerate(mods):
        name = text_of(each)
        folder = around.mod(name)
        if folder:
            out.profile["image"].setdefault("mods", []).append({"path": folder})
            out.mapped.append((f"mods[{index}]", "image.mods"))
            continue
        path = name if name.startswith(("mods/", "@")) else f"mods/{name}"
        lines = f"{{repository: {EUGR}, commit: THE 40 DIGITS OF ITS COMMIT, path: {path}}}"
        why = f"its folder is not next to the recipe. Import the recipe from a checkout of its repository, or add to image.mods: {lines}"
        out.unmapped.append((f"mods[{index}] {name}", why))


def _recipe_command(data: Mapping[str, Any], kind: str, around: Around) -> tuple[list[str], set[str], Script]:
    """Return the words of the engine's command, the defaults that it uses, and the script around it."""
    defaults, model = mapping(data, "defaults"), text_of(data.get("model"))
    used: set[str] = set()
    if not data.get("command"):
        words = ["vllm", "serve", model]
        for key, value in defaults.items():
            flag = f"--{DEFAULT_ALIASES.get(str(key), str(key).replace('_', '-'))}"
            if text_of(value).lower() not in ("false", ""):
                words += [flag, *([] if text_of(value).lower() == "true" else map(text_of, items(value)))]
        return words, {str(key) for key in defaults}, Script()
    values = {"model": model, "container": text_of(data.get("container")), **{str(key): text_of(value) for key, value in defaults.items()}}
    script = fill(text_of(data["command"]), values, used)
    environment = {"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", **{str(key): text_of(value) for key, value in mapping(data, "env").items()}}
    done = run(re.sub(r"\\[ \t]+\n", "\\\n", script), environment, lambda words: bool(program_of(words)), around.refusal(data["command"]))
    words = only(done, [text_of(data.get("container"))])
    left = next((match[0] for word in words for match in _PLACEHOLDER.finditer(word) if match[0] == word or word[:1] not in ("{", "[")), "")
    if left:
        raise RecipeError(f"the command has the placeholder {left}, and defaults has no value for it. Add it to defaults")
    if "eugr" not in kind and "served_model_name" in defaults and "--served-model-name" not in words:
        words, used = [*words, "--served-model-name", values["served_model_name"]], {*used, "served_model_name"}  # sparkrun adds it
    return words, used, done


def fill(text: str, values: Mapping[str, str], used: set[str]) -> str:
    """Replace the placeholders ``{name}`` of a recipe. JSON in plain braces stays, and in doubled braces loses one of each pair."""
    doubled = "{{" in text
    for _round in range(5):  # a default can contain a placeholder
        before = text

        def replace(match: re.Match[str]) -> str:
            name = match.group(1)
            if name is None:
                return match.group()[0]
            if name in values:
                used.add(name)
            return values.get(name, match.group())

        text = (_BRACES if doubled else _PLACEHOLDER).sub(replace, text)
        doubled = False
        if len(text) > 1 << 16:
            raise RecipeError(f"the command has more than {1 << 16} characters after its placeholders were replaced")
        if text == before:
            break
    return text


def _executor_config(out: Imported, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        where = f"executor_config.{key}"
        if key in ("shm_size", "memory_limit"):
            set_size(out, where, "shm_size" if key == "shm_size" else "memory", value)
        elif key == "entrypoint" and value in ("", None):
            out.profile["engine"]["entrypoint"] = []
            out.mapped.append((where, "engine.entrypoint"))
        elif key in ("ipc", "network", "gpus", "auto_remove", "restart_policy", "gpu_access_mode", "privileged", "labels"):
            out.decided.append((where, "the role sets it"))
        else:
            out.unmapped.append((where, NO_KEY))


def _nodes(out: Imported, data: Mapping[str, Any]) -> None:
    """Take the numbers of nodes. A recipe for one node becomes one for two, and has a line in the report."""
    least = [human_int(data.get("min_nodes")) or 1, 2 if is_true(data.get("cluster_only")) else 1, out.profile["ranks"]["min"]]
    out.profile["ranks"]["min"] = max(least)
    out.mapped += [(key, "ranks.min") for key in ("min_nodes", "cluster_only") if key in data]
    most = human_int(data.get("max_nodes"))
    if most and most > 1:
        out.profile["ranks"]["max"] = most
        out.mapped.append(("max_nodes", "ranks.max"))
    for key in ("max_nodes", "solo_only", "mode"):
        if key in data and (key != "max_nodes" or most == 1):
            alone = key == "max_nodes" or (key == "mode" and text_of(data[key]) == "solo") or (key == "solo_only" and is_true(data[key]))
            out.unmapped.append((key, "the recipe is for one node, and a profile serves two: tensor-parallel-size becomes 2" if alone else INFORMS))


def _distribution(out: Imported, given: Mapping[str, Any]) -> None:
    own = {"{model}", "{container}", out.profile["model"]["id"], out.profile["image"]["reference"], out.profile.get("drafter", {}).get("id")}
    for kind in ("models", "containers"):
        for index, each in enumerate(items(mapping(given, kind).get("entries"))):
            where, name = f"distribution_config.{kind}.entries[{index}]", text_of(each.get("name") if isinstance(each, Mapping) else each)
            if name not in own:
                out.unmapped.append((where, f"{name} is not copied to the nodes: only the image, the model and the drafter are"))
                continue
            out.decided.append((where, "the roles image and weights bring the image, the model and the drafter to the nodes"))
            if isinstance(each, Mapping) and each.get("revision"):
                key = "drafter" if name == out.profile.get("drafter", {}).get("id") else "model"
                out.profile[key].setdefault("revision", text_of(each["revision"]))
                out.mapped.append((f"{where}.revision", f"{key}.revision"))
