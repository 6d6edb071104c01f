# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a profile of a Docker Compose file and its .env file. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile.check import human_int
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_fields import (
    HIDDEN,
    INFORMS,
    Imported,
    collect_secrets,
    is_secret,
    list_rest,
    list_script,
    mapping,
    new_import,
    set_container,
    set_engine,
    set_environment,
    set_image,
    set_size,
    set_store,
    text_of,
)  # fmt: skip
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_words import COMPOSE, RecipeError, expand, run


def from_compose(data: Mapping[str, Any], env: Mapping[str, str], service: str) -> Imported:
    """Return the profile of one service. See recipe_import.convert()."""
    name, raw = _pick_service(data["services"], service)
    missing: set[str] = set()
    values = _env_file(env)
    read: set[str] = set()
    box = _expanded(raw, values, missing, read)
    out = new_import(COMPOSE, text_of(data.get("name") or name), "")
    environment = box.get("environment") or {}
    if isinstance(environment, list):
        environment = dict((text_of(each).partition("=")[::2] if "=" in text_of(each) else (text_of(each), None)) for each in environment)
    collect_secrets(out, {**values, **environment})
    set_image(out, "image", text_of(box.get("image")))
    words = _compose_words(out, box, {str(key): text_of(value) for key, value in environment.items()}, missing)
    set_environment(out, "environment", environment)
    volumes = _volumes(box.get("volumes") or [])
    set_engine(out, words, "")
    out.profile["summary"] = f"{out.profile['model']['id']}, from the service {name} of a Docker Compose file"
    set_store(out, volumes)
    _compose_box(out, box)
    out.unmapped += [(f"services.{each}", "another service of the file") for each in data["services"] if each != name]
    out.unmapped += [(text_of(key), INFORMS) for key in data if key not in ("services", "name")]
    for key in env:
        if is_secret(out, key, values[key]):
            out.unmapped.append((f".env {key}", HIDDEN))
        elif key in read:
            out.mapped.append((f".env {key}", "the variables of the Compose file"))
        else:
            out.unmapped.append((f".env {key}", "the Compose file does not use it"))
    list_script(out, {}, (), missing - set(env))
    return out


def _pick_service(services: Mapping[str, Any], wanted: str) -> tuple[str, Mapping[str, Any]]:
    boxes = {str(name): box for name, box in services.items() if isinstance(box, Mapping)}
    fits = [name for name, box in boxes.items() if "vllm" in text_of(box.get("command")) + text_of(box.get("entrypoint")) + text_of(box.get("image"))]
    name = wanted or next(iter(fits or boxes), "")
    if name not in boxes:
        raise RecipeError(f"services has no {name!r}, expected one of {', '.join(boxes)}" if boxes else "services is empty, expected a service that runs vLLM")
    return name, boxes[name]


def _env_file(env: Mapping[str, str]) -> dict[str, str]:
    """Return the values of a .env file, in which a value can contain the ones before it."""
    values: dict[str, str] = {}
    for key, value in env.items():
        values[key] = expand(value, {"HOME": "/root", **values})
    return values


class _Reads(dict[str, str]):
    """Values that remember which of them were asked for."""

    def __init__(self, values: Mapping[str, str], read: set[str]) -> None:
        super().__init__(values)
        self.read = read

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def _expanded(value: Any, values: Mapping[str, str], missing: set[str], read: set[str]) -> Any:
    if isinstance(value, str):
        return expand(value, _Reads({"HOME": "/root", **values}, read), missing)
    if isinstance(value, Mapping):
        return {str(key): _expanded(each, values, missing, read) for key, each in value.items()}
    return [_expanded(each, values, missing, read) for each in value] if isinstance(value, list) else value


def _compose_words(out: Imported, box: Mapping[str, Any], environment: Mapping[str, str], missing: set[str]) -> list[str]:
    """Return the words of the engine's command."""
    entrypoint, command = box.get("entrypoint"), box.get("command")
    words = [text_of(each) for part in (entrypoint, command) for each in (part if isinstance(part, list) else _split(part))]
    out.mapped += [(key, "engine") for key in ("entrypoint", "command") if box.get(key)]
    if entrypoint:
        out.profile["engine"]["entrypoint"] = []
    shell = next((i for i, word in enumerate(words[:3]) if re.fullmatch(r"-l?c", word)), None)
    if shell is None or posixpath.basename(words[0]) not in ("sh", "bash"):
        return words
    engine, exported, others = run(words[shell + 1] if len(words) > shell + 1 else "", environment, missing)
    if not exported:
        out.profile["engine"]["shell"] = words[: shell + 1]
    list_script(out, exported, others, ())
    return engine


def _split(text: Any) -> list[str]:
    try:
        return shlex.split(text_of(text))
    except ValueError as error:
        raise RecipeError(f"the command cannot be split into words: {error}") from error


def _volumes(given: Iterable[Any]) -> list[tuple[int, str]]:
    """Return (place in the list, path in the container) of each volume."""
    out = []
    for index, volume in enumerate(given):
        target = text_of(volume.get("target")) if isinstance(volume, Mapping) else [*text_of(volume).split(":"), ""][1]
        out.append((index, target.rstrip("/") or "/"))
    return out


def _compose_box(out: Imported, box: Mapping[str, Any]) -> None:
    sizes = {"shm_size": "shm_size", "mem_limit": "memory"}
    wrong = [key for key, target in sizes.items() if not set_size(out, key, target, box.get(key)) and box.get(key)]
    for key, value in mapping(box, "ulimits").items():
        soft = value.get("soft") if isinstance(value, Mapping) else value
        if key in ("memlock", "stack", "nofile") and isinstance(human_int(soft), int):
            set_container(out, f"ulimits.{key}", str(key), human_int(soft))
        else:
            out.unmapped.append((f"ulimits.{key}", "a profile has no key for it"))
    for index, device in enumerate(box.get("devices") or []):
        where = f"devices[{index}]"
        if text_of(device).startswith("/dev/infiniband"):
            out.decided.append((where, "the role passes the devices of InfiniBand"))
        else:
            out.unmapped.append((where, "add it to container.devices if the engine needs it"))
    list_rest(out, box, ("image", "entrypoint", "command", "environment", "volumes", "ulimits", "devices", *sizes))
    out.unmapped += [(key, "its value is not a size that a profile takes") for key in wrong]
