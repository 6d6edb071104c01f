# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a merged profile against the schema, fill its defaults and derive what follows from other keys."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import holds_secret, masked
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean, nearest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import models
from ansible_collections.gb10.cluster.plugins.module_utils._profile.schema import PLACEHOLDERS, SCHEMA, Field

# The profile's key that decides such an argument. The inventory decides the others.
DECIDED_BY = {"host": "engine.api.host", "port": "engine.api.port", "served-model-name": "model.served_names", "master-port": "engine.master_port"}
# Of these a literal value is also allowed: a group of four may run TP 2 x PP 2.
LITERAL_ALLOWED = ("tensor-parallel-size", "distributed-executor-backend")
# vLLM reads the key from VLLM_API_KEY; a key in a profile would end in compose files, process lists and logs.
SECRET_ARGS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}

# Kind of a field -> Python types, and what an error calls them.
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "int": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "list": ((list, tuple), "a list"),
    "map": ((Mapping,), "a mapping"),
    "dict": ((Mapping,), "a mapping"),
    "argument": (
        (str, int, float, bool, list, tuple, Mapping),
        "a string, a number, true, false, null, a list of strings and numbers, or a mapping",
    ),
    "scalar": ((str, int, float, bool), "a string, a number, true or false"),
    "criterion": ((str, Mapping), "a string, or a mapping of expression, name and remedy"),
}
# Lists of the words of a command.
_COMMANDS = ("command", "entrypoint", "shell", "head_args", "worker_args")
_INVALID: Any = object()


class ProfileError(ValueError):
    """A profile cannot be used; the text names the profile, the key, what was found and what was expected.

    Of several faults the text has all, and ``faults`` has them one by one.
    """

    def __init__(self, text: str, faults: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.faults = faults or (text,)


def shown(value: object) -> str:
    """Return a value as an error shows it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "the string {!r}".format(str(value) if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else type(value).__name__


def human_int(value: object) -> int | None:
    """Read a count as vLLM does: 200000, "200000", "200k" (1000), "512K" (1024), "1M", "1m"; None when it is not one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", value.strip()) if isinstance(value, str) else None
    if not match:
        return None
    number, unit = match.groups()
    if "." in number and (not unit or unit.isupper()):
        return None
    factor = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[unit]
    return int(float(number) * factor) if "." in number else int(number) * factor


def store_mount(profile: Mapping[str, Any]) -> str | None:
    """Return the container path where ``{model_store}`` itself is mounted, or None."""
    mounts = (volume.split(":") for volume in profile["container"]["volumes"])
    return next((str(parts[1]) for parts in mounts if parts[0] == "{model_store}" and len(parts) > 1), None)


def _fits(value: object, kind: str) -> bool:
    types, _text = KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return False
    if kind == "number":
        return math.isfinite(value)  # type: ignore[arg-type]  # a number, see types
    if kind == "argument" and isinstance(value, (list, tuple)):
        return all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value)
    return True


def _type_hint(value: Any, spec: Field, path: str) -> str:
    """Return how to write a value of the wrong type; empty if nothing is known."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if spec.kind == "str" and isinstance(value, (int, float)):
        return f': write it in quotes, "{str(value).lower() if isinstance(value, bool) else value}"'
    if spec.kind == "str" and isinstance(value, Mapping) and path.startswith("container.volumes["):
        return "; write host:container:ro"
    if path == "image.build" and isinstance(value, Mapping):
        return ": the name of a folder with a Dockerfile, which has the repository, pull requests, pins and proofs as its lines"
    if spec.kind == "map" and number and "min" in spec.fields:
        return f", such as {{min: {value}}}"
    if isinstance(value, str) and spec.fields:
        main = [key for key, sub in spec.fields.items() if sub.required]
        return f"; write {[*main, *spec.fields][0]}: ... below it"
    if spec.kind == "list" and spec.element and spec.element.kind == "str" and isinstance(value, str) and len(value) <= 60:
        words = value.split() if path.rpartition(".")[2] in _COMMANDS else [value]
        return f", such as [{', '.join(word if re.fullmatch(r'[A-Za-z/][A-Za-z0-9_./-]*', word) else json.dumps(word) for word in words)}]"
    return ""


def _steps(path: str) -> str:
    return path.replace("[", ".[") + "."


class _Checker:
    """Compares a profile with the schema and fills the defaults. It collects all faults; an invalid value is left out of the result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[tuple[str, str]] = []  # path of the key, text

    def note(self, path: str, text: str) -> Any:
        """Record a fault."""
        self.faults.append((path, f"profile {self.name}: {path} {text}"))
        return _INVALID

    def sound(self, *paths: str) -> bool:
        """Tell whether these keys, and all above and below them, have no fault."""
        pairs = [(_steps(fault), _steps(path)) for fault, _text in self.faults for path in paths]
        return not any(fault.startswith(path) or path.startswith(fault) for fault, path in pairs)

    def check(self, value: Any, spec: Field, path: str) -> Any:
        """Return a complete copy of a value, or _INVALID."""
        if value is None and (spec.nullable or spec.kind == "argument"):
            return None
        if not _fits(value, spec.kind):
            return self.note(path, f"is {shown(value)}, expected {KINDS[spec.kind][1]}{_type_hint(value, spec, path)}")
        if spec.kind == "str":
            return self._string(value, spec, path)
        if spec.kind == "list" and spec.element:
            items = [self.check(item, spec.element, f"{path}[{i}]") for i, item in enumerate(value)]
            return [item for item in items if item is not _INVALID]
        if spec.kind == "dict" and spec.element:
            return self._free_keys(value, spec, spec.element, path)
        if spec.fields and isinstance(value, Mapping):
            return self.table(value, spec, path)
        if spec.minimum is not None and value < spec.minimum:
            return self.note(path, f"is {value}, expected at least {spec.minimum:g}")
        if spec.maximum is not None and value > spec.maximum:
            return self.note(path, f"is {value}, expected at most {spec.maximum:g}")
        if isinstance(value, Mapping):
            return dict(value)
        return list(value) if isinstance(value, (list, tuple)) else value

    def _string(self, value: str, spec: Field, path: str) -> Any:
        value = str(value)  # without Ansible's tags
        if spec.choices and value not in spec.choices:
            return self.note(path, f"is {value!r}, expected one of {', '.join(spec.choices)}{did_you_mean(value, spec.choices)}")
        if spec.pattern and not re.fullmatch(spec.pattern, value):
            return self.note(path, f"is {masked(value)!r}, expected {spec.pattern_text}")
        if "\x00" in value or "\r" in value:
            return self.note(path, "contains a NUL or carriage return, which a command line cannot carry")
        return value

    def _free_keys(self, value: Mapping[Any, Any], spec: Field, element: Field, path: str) -> dict[str, Any]:
        out = {}
        for key, item in value.items():
            if not isinstance(key, str):
                self.note(path, f"has the key {shown(key)}, expected a string: write it in quotes")
            elif spec.pattern and not re.fullmatch(spec.pattern, key):
                self.note(f"{path}.{key}", f"is not a valid key, expected {spec.pattern_text}")
            else:
                out[str(key)] = self.check(item, element, f"{path}.{key}")
        return {key: item for key, item in out.items() if item is not _INVALID}

    def table(self, value: Mapping[Any, Any], spec: Field, path: str = "") -> dict[str, Any]:
        """Return a table of known keys with all of them."""
        prefix = f"{path}." if path else ""
        for key in value:
            if key not in spec.fields:
                known = f"known {'here' if path else 'at the top'}: {', '.join(spec.fields)}"
                self.note(f"{prefix}{key}", f"is not a key of a profile{did_you_mean(key, spec.fields)} ({known})")
        out: dict[str, Any] = {}
        for key, sub in spec.fields.items():
            if value.get(key) is not None:
                out[key] = self.check(value[key], sub, prefix + key)
            elif sub.required:
                self.note(prefix + key, f"is missing, expected {KINDS[sub.kind][1]}: {sub.doc}")
            elif sub.kind == "map" and not sub.nullable:
                out[key] = self.table({}, sub, prefix + key)
            else:
                out[key] = copy.copy(sub.default)
        return {key: item for key, item in out.items() if item is not _INVALID}


def check(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a merged profile (without ``extends``) with every default filled in. Raise ProfileError with all its faults."""
    checker = _Checker(name)
    profile = checker.table(raw, SCHEMA)
    # A key that is invalid by the schema is not in the profile: only sound parts are checked further.
    if checker.sound("engine.args"):
        _check_args(profile["engine"]["args"], checker.note)
    for table in ("env", "head_env", "worker_env"):
        for key, value in profile.get(table, {}).items():
            if holds_secret(key, value):
                checker.note(f"{table}.{key}", "looks like a secret, and a profile must not contain one: use vllm_tp2_secret_env")
    _check_placeholders(profile, checker.note)
    if checker.sound("image.mods"):
        _check_mods(profile["image"]["mods"], checker.note)
    if checker.sound("container.volumes", "container.cache_dirs"):
        _check_container(profile["container"], checker.note)
    if checker.sound("engine", "gate", "model", "drafter", "ranks", "container"):
        _derive(profile, checker.note)
    if checker.faults:
        texts = tuple(dict.fromkeys(text for _path, text in checker.faults))
        raise ProfileError("; ".join(texts), texts)
    return profile


_COUNTS = ("max-num-seqs", "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


def _is_share(value: object) -> bool:
    try:
        return not isinstance(value, bool) and 0 < float(str(value)) <= 1
    except ValueError:
        return False


def _is_context(value: object) -> bool:
    return str(value) in ("auto", "-1") or (human_int(value) or 0) > 0


def _is_count(value: object) -> bool:
    return not isinstance(value, bool) and re.fullmatch(r"[1-9][0-9]*|\{\w+\}", str(value)) is not None


def _is_json(value: object) -> bool:
    try:
        json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return False
    return True


_JSON_ARGS = ("speculative-config", "compilation-config", "override-generation-config", "default-chat-template-kwargs", "hf-overrides", "kv-transfer-config")

# Argument -> its check, and what is expected. vLLM refuses such a value only when it boots, after image and weights are on the nodes.
_ARG_VALUES = {
    "gpu-memory-utilization": (_is_share, "a share of the memory, above 0 and at most 1, such as 0.8"),
    "max-model-len": (_is_context, "a number of tokens such as 131072 or 128k, or auto"),
    **dict.fromkeys(_COUNTS, (_is_count, "a whole number from 1")),
    **dict.fromkeys(_JSON_ARGS, (_is_json, "a mapping, such as {key: value}, or JSON")),
}


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
        if value is None:
            continue
        fits, expected = _ARG_VALUES.get(flag, (None, ""))
        if fits is not None and value is not False and not fits(value):
            note(path, f"is {shown(value)}, expected {expected}")
        managed = PLACEHOLDERS.get(flag)
        literal = key in LITERAL_ALLOWED and not (isinstance(value, str) and "{" in value)
        if managed is not None and value != managed and not literal:
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
    engine, box = profile.get("engine", {}), profile.get("container", {})
    ray = engine.get("ray", {})
    places = [(f"engine.args.{key}", value) for key, value in engine.get("args", {}).items() if key.replace("_", "-") not in PLACEHOLDERS]
    places += [(f"engine.ray.{key}", ray.get(key)) for key in ("head_args", "worker_args")]
    places += [(f"{name}.{key}", (profile.get(name) or {}).get(key)) for name in ("model", "drafter") for key in ("path", "relative_path")]
    places += [(f"container.volumes[{i}]", volume) for i, volume in enumerate(box.get("volumes", []))]
    env = [(f"{table}.{key}", value) for table in ("env", "head_env", "worker_env") for key, value in profile.get(table, {}).items()]
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


def _check_container(container: Mapping[str, Any], note: Any) -> None:
    for i, volume in enumerate(container["volumes"]):
        parts = volume.split(":")
        if len(parts) not in (2, 3) or not all(parts) or not parts[1].startswith("/"):
            note(f"container.volumes[{i}]", f"is {volume!r}, expected host:container or host:container:ro")
        elif not re.match(r"/|\{[a-z_]+\}", parts[0]):  # a placeholder has its own check
            note(f"container.volumes[{i}]", f"mounts {parts[0]!r}, expected an absolute path or {{model_store}}")
    for i, path in enumerate(container["cache_dirs"]):
        rest = path[len("{model_store}/") :] if path.startswith("{model_store}/") else ""
        if not rest.strip("/") or ".." in rest.split("/"):
            note(
                f"container.cache_dirs[{i}]",
                f"is {path!r}, expected a directory below {{model_store}}/, because it is removed with the releases that use it",
            )


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
    if gate["cold_prefill_tools"] and not args.get("enable-auto-tool-choice"):
        note("gate.cold_prefill_tools", "is true, but engine.args has no enable-auto-tool-choice, without which vLLM refuses tools: set both, or none")
    spec = args.get("speculative-config")
    method = spec.get("method") if isinstance(spec, Mapping) else None
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
    for each in models.all_of(profile):
        models.derive(each, store_mount(profile))
    models.check_drafter(profile, note)
