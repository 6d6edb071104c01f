# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a profile of a recipe of sparkrun, of eugr/spark-vllm-docker, or of a Docker Compose file. Pure: no file is read, nothing is executed.

Each field ends in one of three lists: mapped to a key of the profile, set by the collection, or not mapped with the reason. A secret is named and
its value is nowhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import without
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_compose import from_compose
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_fields import (
    HIDDEN,
    REASONS,
    ROLE_KEYS,
    SHORTEST,
    Imported,
    collect_secrets,
    is_secret,
    list_rest,
    list_script,
    mapping,
    new_import,
    plain,
    set_engine,
    set_environment,
    set_image,
    set_size,
    set_store,
    text_of,
)  # fmt: skip
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_words import COMPOSE, RecipeError, fill, kind_of, run

MOST_ENTRIES = 5000
DEFAULT_ALIASES = {"tensor_parallel": "tensor-parallel-size", "pipeline_parallel": "pipeline-parallel-size", "data_parallel": "data-parallel-size"}
OTHER_ENGINES = ("sglang", "llama-cpp", "trtllm", "atlas", "modular-max")


def convert(data: Any, env: Mapping[str, str] | None = None, service: str = "") -> Imported:
    """Return the profile that a recipe describes, not checked yet.

    :param data: the content of the recipe's YAML file.
    :param env: the content of the .env file of a Compose file.
    :param service: the service of the Compose file, if it has several.
    :raises RecipeError: another format, another engine than vLLM, or a field that cannot be read.
    """
    if not isinstance(data, Mapping):
        raise RecipeError("it is not a mapping, expected a recipe of sparkrun or eugr/spark-vllm-docker, or a Docker Compose file")
    if _entries(data) > MOST_ENTRIES:
        raise RecipeError(f"it has more than {MOST_ENTRIES} entries")
    kind = kind_of(data)
    if kind == COMPOSE:
        out = from_compose(data, env or {}, service)
    elif kind:
        out = _recipe(data, kind)
    else:
        raise RecipeError("it has neither services (Docker Compose) nor model or command (sparkrun, eugr/spark-vllm-docker)")
    out.profile = without(out.profile, {value for value in out.secrets if len(value) >= SHORTEST})
    return out


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


def _recipe(data: Mapping[str, Any], kind: str) -> Imported:
    runtime = text_of(data.get("runtime"))
    if runtime in OTHER_ENGINES:
        raise RecipeError(f"runtime is {runtime!r}, and the collection serves vLLM only")
    metadata = mapping(data, "metadata")
    name = text_of(data.get("name") or data.get("model"))
    out = new_import(kind, posixpath.basename(name), text_of(data.get("description") or metadata.get("description") or name))
    out.mapped += [(key, "summary") for key in ("name", "description") if key in data]
    defaults = mapping(data, "defaults")
    collect_secrets(out, {**mapping(data, "env"), **defaults})
    set_image(out, "container", text_of(data.get("container")))
    if "eugr" in kind:
        listed = [f"{key} {plain(data[key])}" for key in ("build_args", "mods") if data.get(key)]
        out.profile["image"]["build"] = {"note": f"github.com/eugr/spark-vllm-docker: {'; '.join(listed) or 'its image of that name'}."}
    words, used = _recipe_command(out, data)
    out.mapped.append(("command" if data.get("command") else "defaults", "engine"))
    for key, value in defaults.items():
        if is_secret(out, str(key), value):
            out.unmapped.append((f"defaults.{key}", HIDDEN))
        elif key in used:
            out.mapped.append((f"defaults.{key}", "engine"))
        else:
            out.unmapped.append((f"defaults.{key}", "the command does not use it"))
    set_environment(out, "env", mapping(data, "env"))
    set_engine(out, words, text_of(data.get("model")))
    if runtime == "vllm-ray":
        out.profile["engine"]["executor"] = "ray"
    if data.get("model_revision"):
        out.profile["model"]["revision"] = text_of(data["model_revision"])
        out.mapped.append(("model_revision", "model.revision"))
    _executor_config(out, mapping(data, "executor_config"))
    nodes = [int(data["min_nodes"])] if isinstance(data.get("min_nodes"), int) else []
    nodes += [2] if data.get("cluster_only") is True else []
    out.profile["ranks"]["min"] = max([out.profile["ranks"]["min"], *nodes])
    out.mapped += [(key, "ranks.min") for key in ("min_nodes", "cluster_only") if key in data]
    if isinstance(data.get("max_nodes"), int):
        out.profile["ranks"]["max"] = data["max_nodes"]
        out.mapped.append(("max_nodes", "ranks.max"))
    if "runtime" in data:
        out.mapped.append(("runtime", "engine.executor"))
    done = ("name", "description", "container", "command", "defaults", "env", "model", "model_revision", "executor_config", "min_nodes", "cluster_only",
            "max_nodes", "runtime")  # fmt: skip
    list_rest(out, data, done)
    set_store(out, [])
    return out


def _recipe_command(out: Imported, data: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """Return the words of the engine's command, and the defaults that it uses."""
    defaults = mapping(data, "defaults")
    model = text_of(data.get("model"))
    used: set[str] = set()
    if data.get("command"):
        values = {"model": model, **{str(key): text_of(value) for key, value in defaults.items()}}
        script = fill(text_of(data["command"]), values, used)
        missing: set[str] = set()
        environment = {str(key): text_of(value) for key, value in mapping(data, "env").items()}
        words, exported, others = run(script, environment, missing)
        list_script(out, exported, others, missing)
        left = next((word for word in words if re.fullmatch(r"\{\w+\}", word)), "")
        if left:
            raise RecipeError(f"the command has the placeholder {left}, and defaults has no value for it")
        return words, used
    words = ["vllm", "serve", model]
    for key, value in defaults.items():
        if value is not False:
            values_of = [] if value is True else value if isinstance(value, list) else [value]
            words += [f"--{DEFAULT_ALIASES.get(str(key), str(key).replace('_', '-'))}", *map(text_of, values_of)]
    return words, {str(key) for key in defaults}


def _executor_config(out: Imported, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        target = {"shm_size": "shm_size", "memory_limit": "memory"}.get(key)
        if target and set_size(out, f"executor_config.{key}", target, value):
            continue
        if key == "entrypoint" and value in ("", None):
            out.profile["engine"]["entrypoint"] = []
            out.mapped.append((f"executor_config.{key}", "engine.entrypoint"))
        elif key in ROLE_KEYS or key in ("auto_remove", "restart_policy", "gpu_access_mode", "privileged"):
            out.decided.append((f"executor_config.{key}", "the role sets it"))
        else:
            out.unmapped.append((f"executor_config.{key}", REASONS.get(str(key), "a profile has no key for it")))
