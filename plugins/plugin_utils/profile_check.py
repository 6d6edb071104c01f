# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: check what the schema cannot express of a merged profile, and derive what follows from other keys. Controller only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._bench import levels
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import holds_secret
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean, nearest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import PLACEHOLDERS, SECRET_ARGS, human_int, store_mount
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError, compared, shown

# The profile's key that decides such an argument. The inventory decides the others.
DECIDED_BY = {"host": "engine.api.host", "port": "engine.api.port", "served-model-name": "model.served_names", "master-port": "engine.master_port"}
# Of these a literal value is also allowed: a group of four may run TP 2 x PP 2.
LITERAL_ALLOWED = ("tensor-parallel-size", "distributed-executor-backend")


def check(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merged profile (without ``extends``) with every default. Raise ProfileError with all its faults by the schema, else with all others."""
    profile, faults = compared(raw)
    if not faults:

        def note(path: str, text: str) -> None:
            faults.append((path, text))

        _check_args(profile["engine"]["args"], note)
        for table in ("env", "head_env", "worker_env"):
            for key, value in profile[table].items():
                if holds_secret(key, value):
                    note(f"{table}.{key}", "looks like a secret, and a profile must not contain one: use vllm_tp2_secret_env")
        _check_placeholders(profile, note)
        _check_mods(profile["image"]["mods"], note)
        faults += levels.faults(profile["published"])
        for key, value in profile.items():
            if any("\x00" in each or "\r" in each for each in _strings(value)):
                note(key, "contains a NUL or carriage return, which a command line cannot carry")
        if not faults:
            _derive(profile, note)
    if faults:
        texts = tuple(dict.fromkeys(f"profile {name}: {path} {text}" for path, text in faults))
        raise ProfileError("; ".join(texts), texts)
    return profile


def _variable_of(flag: str, value: Any) -> str:
    """Return the environment variable that has to carry an argument that is a secret; empty if it is none. vLLM accepts the begin of a flag too."""
    name = flag.lower().strip("-")
    known = next((variable for secret, variable in SECRET_ARGS.items() if len(name) >= 3 and secret.startswith(name)), "")
    if not known and holds_secret(name, value):
        known = name.upper().replace("-", "_")
    return known


def _check_args(args: Mapping[str, Any], note: Any) -> None:
    for key, value in args.items():
        path, flag = f"engine.args.{key}", key.replace("_", "-")
        variable = _variable_of(flag, value)
        if variable:
            note(path, f"would show a secret in the process list: give it as {variable} through the role's variable instead")
            continue
        if "_" in key and flag in args:
            note(path, f"and {flag} are the same flag: keep one")
            continue
        managed = PLACEHOLDERS.get(flag)
        literal = key in LITERAL_ALLOWED and not (isinstance(value, str) and "{" in value)
        if managed is not None and value not in (None, managed) and not literal:
            remedy = f"set {DECIDED_BY[flag]} instead" if flag in DECIDED_BY else "leave it out"
            note(path, f'is {shown(value)}, but the collection writes this argument itself: {remedy}, or use "{managed}" to choose its place')


_STORE = "{model_store}"
_ARGUMENTS = ", ".join(f'{flag}: "{placeholder}"' for flag, placeholder in PLACEHOLDERS.items())


def _strings(value: Any) -> Iterator[str]:
    """Yield the strings of a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(each)


def _placeholders(value: Any) -> Iterator[str]:
    """Yield what looks like a placeholder. JSON, Jinja templates and variables of a shell have none."""
    for text in _strings(value):
        if not text.startswith(('{"', "[")) and "{{" not in text and "{%" not in text:
            yield from re.findall(r"(?<!\$)\{[a-z_]+\}", text)


def _check_placeholders(profile: Mapping[str, Any], note: Any) -> None:
    """Record each placeholder where nothing replaces it."""
    ray = profile["engine"]["ray"]
    places = [(f"engine.args.{key}", value) for key, value in profile["engine"]["args"].items() if key.replace("_", "-") not in PLACEHOLDERS]
    places += [(f"engine.ray.{key}", ray[key]) for key in ("head_args", "worker_args")]
    places += [(f"{name}.{key}", (profile.get(name) or {}).get(key)) for name in ("model", "drafter") for key in ("path", "relative_path")]
    places += [(f"container.volumes[{i}]", volume) for i, volume in enumerate(profile["container"]["volumes"])]
    env = [(f"{table}.{key}", value) for table in ("env", "head_env", "worker_env") for key, value in profile[table].items()]
    own = [_STORE, *PLACEHOLDERS.values()]
    for path, value in places + env:
        volume, variable = path.startswith("container."), path.partition(".")[0].endswith("env")
        # The value of a variable can be a template of its reader, such as {time} {message}.
        found = [each for each in _placeholders(value) if not variable or each == value or ("_" in each and nearest(each, own, 0.8))]
        wrong = next((each for each in found if not (volume and each == _STORE)), "")
        if volume and wrong:
            note(path, f"has {wrong}, which is not a placeholder{did_you_mean(wrong, [_STORE])}; only {_STORE} is replaced here")
        elif wrong and nearest(wrong, own) == _STORE:
            note(path, f"has {wrong}, which is not replaced here: write the path in the container; only volumes and cache_dirs have {_STORE}")
        elif wrong:
            note(path, f"has {wrong}, which is not replaced here: write the value itself; placeholders of engine.args are {_ARGUMENTS}")


def _check_mods(mods: list[dict[str, Any]], note: Any) -> None:
    for i, mod in enumerate(mods):
        if (mod["repository"] is None) != (mod["commit"] is None):
            key, other = ("commit", "repository") if mod["repository"] is None else ("repository", "commit")
            note(f"image.mods[{i}].{key}", f"is set without {other}: set both, or none for a path on the controller")
        if mod["repository"] is not None and not re.fullmatch(r"(?!(?:.*/)?\.\.(?:/|$))[\w.@+-][\w.@+/-]*", mod["path"]):
            note(f"image.mods[{i}].path", f"is {mod['path']!r}, expected a path in the repository, such as mods/x")


def _derive(profile: dict[str, Any], note: Any) -> None:
    """Fill what follows from other keys and refuse what contradicts them."""
    args, gate, model = profile["engine"]["args"], profile["gate"], profile["model"]
    context = human_int(args.get("max-model-len"))
    if context is not None and context < 1:  # -1: vLLM takes what fits
        context = None
    if gate["context"] is None:
        gate["context"] = context
    elif context is not None and context != gate["context"]:
        note(
            "gate.context",
            f"is {gate['context']}, but engine.args.max-model-len is {context}: leave gate.context out, it follows the argument",
        )
    tools = next((key for key, has in (("cold_prefill_tools", gate["cold_prefill_tools"]), ("cases", "cold-tools" in gate["cases"])) if has), "")
    if tools and not args.get("enable-auto-tool-choice"):
        note(f"gate.{tools}", "has tools, but engine.args has no enable-auto-tool-choice, without which vLLM refuses tools: set both, or none")
    method = values.speculation(args).get("method")
    for key, wanted in (("kv_cache_dtype", args.get("kv-cache-dtype")), ("speculative_method", method)):
        if gate[key] is None:
            gate[key] = wanted if isinstance(wanted, str) else None
        elif isinstance(wanted, str) and wanted != gate[key]:
            note("gate." + key, f"is {gate[key]!r}, but engine.args has {wanted!r}: leave it out, it follows the argument")
    for path, bounds in (("gate.effective_tokens", gate["effective_tokens"]), ("gate.concurrency", gate["concurrency"]), ("ranks", profile["ranks"])):
        low, high = bounds["min"], bounds["max"]
        if low is not None and high is not None and low > high:
            note(path, f"has min {low} above max {high}")
    if not model["served_names"]:
        model["served_names"] = [model["id"]]
    for each in values.models_of(profile):
        values.derive_model(each, store_mount(profile))
    values.check_drafter(profile, note)
