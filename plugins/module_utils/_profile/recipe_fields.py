# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fields of a recipe as keys of a profile: environment, image, arguments, model store; and what became of each. Pure."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import holds_secret, masked
from ansible_collections.gb10.cluster.plugins.module_utils._profile.check import SECRET_ARGS, human_int
from ansible_collections.gb10.cluster.plugins.module_utils._profile.compose import FABRIC_ENV
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_words import RecipeError, arguments, is_engine
from ansible_collections.gb10.cluster.plugins.module_utils._profile.schema import PLACEHOLDERS, SIZE

HUB = "/root/.cache/huggingface"
STORE, CACHE = "{model_store}", "{model_store}/vllm-cache"
SHORTEST = 8  # characters of a secret that is looked for within other values
HIDDEN = "is or contains a secret, and a profile must not: set it in vllm_tp2_secret_env (an API key in vllm_tp2_api_key)"
# Variables that the role writes for each rank, or whose value the role's own steps replace.
ROLE_ENV = dict.fromkeys((*FABRIC_ENV, "NODE_RANK", "HEADLESS", "MASTER_ADDR", "MASTER_PORT"), "the role sets it for each rank")
HUB_ENV = dict.fromkeys(("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"), "HF_HOME and the model store decide")
OFFLINE = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"), "the role weights proves the weights before a start, so nothing is looked up")
# Keys of a Compose service whose place the role has taken, and the keys of recipes that only inform.
ROLE_KEYS = (
    "network_mode", "gpus", "deploy", "runtime", "restart", "container_name", "hostname", "logging", "healthcheck", "labels", "pull_policy", "ipc",
    "stop_grace_period", "ports", "network", "tty", "stdin_open", "init",
)  # fmt: skip
INFORMS = "informs only"
REASONS = {
    "privileged": "the role drops all capabilities but IPC_LOCK",
    "cap_add": "the role drops all capabilities but IPC_LOCK: container.cap_add has more",
    "security_opt": "the role sets no-new-privileges",
    "env_file": "give the file as -e env_file=FILE",
    "build": "see image.build",
    "build_args": "arguments of the build script of its repository: see image.build.note",
    "mods": "patches of its repository, which its launch script applies: see image.build.note",
    "metadata": "informs only, but for a description",
    "recipe_version": INFORMS,
    "runtime_version": INFORMS,
    "benchmark": "use playbooks/smoke.yml and sanity.yml",
    "pre_exec": "commands in the container before the start: put them into the image",
    "post_exec": "commands in the container after the start",
    "post_commands": "commands on the controller after the start",
    "runtime_cache": "the profile's container.cache_dirs",
    "solo_only": "see ranks",
    "mode": "see ranks",
}


@dataclass
class Imported:
    """A profile and what became of each field: (field, key of the profile or reason)."""

    kind: str
    name: str
    profile: dict[str, Any] = field(default_factory=dict)
    mapped: list[tuple[str, str]] = field(default_factory=list)
    decided: list[tuple[str, str]] = field(default_factory=list)
    unmapped: list[tuple[str, str]] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)  # values, which must be nowhere


def text_of(value: Any) -> str:
    """Return a value of YAML as an environment or a command line has it."""
    return str(value).lower() if isinstance(value, bool) else json.dumps(value) if isinstance(value, (dict, list)) else "" if value is None else str(value)


def slug(text: str) -> str:
    """Return a name for a profile."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:60].strip("-.")


def new_import(kind: str, name: str, summary: str) -> Imported:
    """Return a profile without what only the recipe knows."""
    out = Imported(kind, slug(name))
    line = " ".join(summary.split())
    out.profile = {
        "summary": line if len(line) <= 200 else line[:197] + "...",
        "sources": [],
        "notes": ["Not run by the authors of gb10.cluster."],
        "deviations": [],
        "ranks": {},
        "image": {},
        "model": {},
        "engine": {"executor": "mp", "args": {}},
        "env": {},
        "container": {},
        "gate": {"transport": "rdma"},
    }
    return out


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of a recipe, empty if it has none."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RecipeError(f"{key} is not a mapping, expected names and values")
    return value


def plain(value: Any) -> str:
    """Return words on one line, without secrets."""
    words = [text_of(each) for each in value] if isinstance(value, list) else [text_of(value)]
    return " ".join(masked(words))


def list_rest(out: Imported, data: Mapping[str, Any], done: Iterable[str]) -> None:
    """List the keys that nothing has read."""
    for key in data:
        if key in done:
            continue
        if key in ROLE_KEYS:
            out.decided.append((str(key), "the role sets it"))
        else:
            out.unmapped.append((str(key), REASONS.get(str(key), "a profile has no key for it")))


def set_container(out: Imported, source: str, key: str, value: Any) -> None:
    """Set a key of the container."""
    out.profile["container"][key] = value
    out.mapped.append((source, f"container.{key}"))


def set_size(out: Imported, source: str, key: str, value: Any) -> bool:
    """Set a key of the container if the value is a size that a profile takes; report whether it is."""
    fits = re.fullmatch(SIZE, text_of(value)) is not None
    if fits:
        set_container(out, source, key, text_of(value))
    return fits


def collect_secrets(out: Imported, values: Mapping[str, Any]) -> None:
    """Remember the secrets of an environment, so that no other field carries them."""
    out.secrets |= {text_of(value) for key, value in values.items() if value and holds_secret(str(key), value)}


def is_secret(out: Imported, key: str, value: Any) -> bool:
    """Tell whether a field is a secret or contains one."""
    text = text_of(value)
    return holds_secret(key, text) or any(secret in text for secret in out.secrets if len(secret) >= SHORTEST)


def set_environment(out: Imported, source: str, values: Mapping[str, Any]) -> None:
    """Take an environment, but for secrets and for what the role decides."""
    for key, value in values.items():
        where, text = f"{source}.{key}", text_of(value)
        reason = ROLE_ENV.get(str(key)) or HUB_ENV.get(str(key)) or ("" if text not in ("", "0") else OFFLINE.get(str(key), ""))
        if key == "NCCL_DEBUG" and text in ("WARN", "VERSION", ""):
            reason = "NCCL names its transport at level INFO, and the gate reads it: the collection's default is INFO"
        if is_secret(out, str(key), text):
            out.unmapped.append((where, HIDDEN))
        elif reason:
            out.decided.append((where, reason))
        elif value is None:
            out.unmapped.append((where, "its value comes from the environment of the host"))
        else:
            out.profile["env"][str(key)] = text
            out.mapped.append((where, f"env.{key}"))
        if key == "MASTER_PORT" and text.isdigit():
            out.profile["engine"]["master_port"] = int(text)


def list_script(out: Imported, exported: Mapping[str, str], others: Iterable[str], missing: Iterable[str]) -> None:
    """Take what a script does next to the engine's command. The words of other commands can contain anything, so only the first is named."""
    set_environment(out, "command: export", exported)
    reason = "a command next to the engine: put it into the image"
    out.unmapped += [(f"command: {slug(posixpath.basename(each)) or 'a command'}", reason) for each in others]
    out.unmapped += [(f"${{{key}}}", "has no value") for key in sorted(set(missing) - set(ROLE_ENV))]


def set_image(out: Imported, source: str, text: str) -> None:
    """Take the image. One with a slash in its name is in a registry, one without is built or loaded."""
    reference, at, digest = text.partition("@")
    if not reference:
        raise RecipeError(f"{source} is missing, expected the name of an image")
    if "://" in text or "/" in digest:  # user:password@registry/name
        raise RecipeError(f"{source} is an address, expected the name of an image without https:// and without a login")
    image = out.profile["image"]
    image["reference"] = reference
    if at:
        image["digest"] = digest
    image["pull"] = "/" in reference
    out.mapped.append((source, "image.reference"))


def set_engine(out: Imported, words: list[str], model: str) -> None:
    """Split the engine's command into the keys of a profile."""
    module = next((i for i, each in enumerate(words[:4]) if each.startswith("vllm.entrypoints")), -1)  # python3 -m vllm.entrypoints...
    before, args, repeated = arguments(words[module + 1 :])
    before = words[: module + 1] + before
    if not words or (before and not is_engine(words)):
        raise RecipeError("the command does not start vLLM, expected 'vllm serve MODEL' with arguments")
    engine = out.profile["engine"]
    place = next((i for i, word in enumerate(before) if word == "serve"), None)
    positional = before[place + 1] if place is not None and len(before) > place + 1 else ""
    command = before[: place + 1] if place is not None else before
    if not command and words and not engine.get("entrypoint"):
        engine["command"] = []  # the image's entrypoint is the engine
    elif command != ["vllm", "serve"]:
        engine["command"] = command
    path = positional or text_of(args.pop("model", "")) or model
    if not path:
        raise RecipeError("the recipe names no model, expected model, or a model in the command")
    if not positional:
        engine["positional_model"] = False
    target = out.profile["model"]
    target["id"] = model if model and not model.startswith("/") else posixpath.basename(path.rstrip("/")) if path.startswith("/") else path
    target["path"] = path
    out.mapped.append(("model", "model"))
    out.unmapped += [(f"--{flag}", "is given twice: the last value counts") for flag in repeated]
    _arguments(out, args)


def _arguments(out: Imported, args: Mapping[str, Any]) -> None:
    profile, engine = out.profile, out.profile["engine"]
    for flag, value in args.items():
        where, text = f"--{flag}", text_of(value)
        if flag in SECRET_ARGS or is_secret(out, flag, value):
            out.unmapped.append((where, HIDDEN))
            continue
        if flag == "revision":
            profile["model"]["revision"] = text
            out.mapped.append((where, "model.revision"))
            continue
        if flag == "download-dir":
            out.decided.append((where, "the model store decides"))
            continue
        target = f"engine.args.{flag}"
        if flag == "served-model-name":
            profile["model"]["served_names"], target = [text_of(each) for each in value] if isinstance(value, list) else [text], "model.served_names"
        elif flag in ("host", "port"):
            engine.setdefault("api", {})[flag], target = _port(where, value) if flag == "port" else text, f"engine.api.{flag}"
        elif flag == "master-port":
            engine["master_port"], target = _port(where, value), "engine.master_port"
        elif flag == "distributed-executor-backend":
            engine["executor"], target = "ray" if text == "ray" else "mp", "engine.executor"
        elif flag in PLACEHOLDERS and flag != "tensor-parallel-size":
            out.decided.append((where, "the role sets it for each rank"))
            engine["args"][flag] = PLACEHOLDERS[flag]
            continue
        engine["args"][flag] = PLACEHOLDERS.get(flag, value)
        out.mapped.append((where, target))
    tensor, pipeline = (human_int(args.get(flag, 1)) or 1 for flag in ("tensor-parallel-size", "pipeline-parallel-size"))
    profile["ranks"]["min"] = max(1, tensor * pipeline)
    if pipeline > 1:
        engine["args"]["tensor-parallel-size"] = tensor


def _port(where: str, value: Any) -> int:
    if not isinstance(value, int):
        raise RecipeError(f"{where} is {text_of(value)!r}, expected a port")
    return value


def set_store(out: Imported, volumes: list[tuple[int, str]]) -> None:
    """Mount the model store read-only where the recipe mounts its models, and the compile caches apart."""
    env, path = out.profile["env"], out.profile["model"]["path"]
    given = set(env)
    targets = [target for _index, target in volumes]
    home = env.get("HF_HOME") or next((target for target in targets if "huggingface" in target), HUB)
    if path.startswith("/"):
        above = [target for target in targets if path.startswith(target.rstrip("/") + "/")]
        home = max(above, key=len) if above else posixpath.dirname(path.rstrip("/"))
    else:
        env.setdefault("HF_HOME", home)
    cache = env.setdefault("VLLM_CACHE_ROOT", f"{home}/vllm-cache")
    # A mount below a read-only one needs a folder of its name there.
    on_node = f"{STORE}/{cache[len(home) + 1 :]}" if cache.startswith(home + "/") else CACHE
    env.setdefault("HF_MODULES_CACHE", f"{cache}/modules")
    out.profile["container"].update(volumes=[f"{STORE}:{home}:ro", f"{on_node}:{cache}"], cache_dirs=[on_node])
    keys = ["container.volumes", "container.cache_dirs", *(f"env.{key}" for key in env if key not in given), "gate.transport"]
    why = "The container reads the weights below gb10_model_store and cannot change them. It writes its compile caches and the model's Python modules apart."
    out.profile["deviations"] = [{"keys": keys, "seed": None, "why": why}]
    for index, target in volumes:
        if target == home:
            out.mapped.append((f"volumes[{index}]", "container.volumes: gb10_model_store, read-only"))
        elif target == cache:
            out.mapped.append((f"volumes[{index}]", "container.volumes: the compile caches below gb10_model_store"))
        else:
            out.unmapped.append((f"volumes[{index}] {target}", "a mount of the host: add it to container.volumes if the engine needs it"))
