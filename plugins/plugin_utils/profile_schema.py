# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: compare a merged profile with profiles/schema/profile.yml and fill its defaults. Controller only."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import masked
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._node.images import IMAGE
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import SIZE
from ansible_collections.gb10.cluster.plugins.plugin_utils.image_folders import PROFILES_DIR
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

SCHEMA: dict[str, Any] = yaml.load((PROFILES_DIR / "schema/profile.yml").read_text(encoding="utf-8"), Loader=SafeLoader)  # noqa: S506  a safe loader
_TYPES = {"string": "a string", "integer": "a whole number", "number": "a number", "boolean": "true or false", "array": "a list", "object": "a mapping"}
_FORMATS = {"image": IMAGE, "size": SIZE}


def _is_json(value: object) -> bool:
    try:
        json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return False
    return True


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
        text = str(masked(str(value)))
        return f"the string {text if len(text) <= 60 else text[:57] + '...'!r}"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else type(value).__name__


def types(spec: Mapping[str, Any]) -> list[str]:
    """Return the types of a value, without null."""
    found = spec.get("type", [])
    return [each for each in ([found] if isinstance(found, str) else found) if each != "null"]


def resolved(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with what its $ref names."""
    return {**SCHEMA["$defs"][spec["$ref"].rpartition("/")[2]], **spec} if "$ref" in spec else spec


def _type_hint(value: Any, spec: Mapping[str, Any]) -> str:
    """Return how to write a value of the wrong type; empty if nothing is known."""
    wanted, keys = types(spec)[:1], spec.get("properties", {})
    if wanted == ["string"] and isinstance(value, (int, float)):
        return f': write it in quotes, "{str(value).lower() if isinstance(value, bool) else value}"'
    if keys and not isinstance(value, (Mapping, list)):
        return f"; write {[*spec.get('x-required', ()), *keys][0]}: ... below it"
    return f", such as {json.dumps(value.split())}" if wanted == ["array"] and isinstance(value, str) and len(value) <= 60 else ""


def _expected(spec: Mapping[str, Any]) -> str:
    return str(spec.get("x-expected") or _TYPES[types(spec)[0]])


@cache
def validator() -> Any:
    """Return the validator: JSON Schema, with a fault for each unknown and each missing key."""
    try:
        from jsonschema import Draft202012Validator, FormatChecker, ValidationError, validators  # 0.2 s
    except ImportError as error:
        raise ProfileError(f"profiles are checked with jsonschema, which this Python does not have ({error}). Run: pip install jsonschema") from error

    def unknown(_validator: Any, allowed: Any, value: Any, spec: Any) -> Iterator[Any]:
        if allowed is False and isinstance(value, Mapping):
            known = [key for key in spec["properties"] if key != "extends"]
            yield from (ValidationError(str(known), path=[key]) for key in value if key not in known)
        elif isinstance(value, Mapping):
            yield from (ValidationError("", validator="string key", instance=key) for key in value if not isinstance(key, str))
            patterns = "|".join(spec.get("patternProperties", ())) or "$^"
            for key, item in value.items():
                if not re.search(patterns, str(key)):
                    yield from _validator.descend(item, allowed, path=key)

    def required(_validator: Any, keys: Any, value: Any, spec: Any) -> Iterator[Any]:
        if isinstance(value, Mapping):
            yield from (ValidationError("", path=[key], schema=spec["properties"][key]) for key in keys if value.get(key) is None)

    def pattern(_validator: Any, wanted: str, value: Any, _spec: Any) -> Iterator[Any]:
        if isinstance(value, str) and not re.fullmatch(wanted, value):
            yield ValidationError("")

    formats = FormatChecker(formats=())
    for name, text in _FORMATS.items():
        formats.checks(name)(lambda value, text=text: not isinstance(value, str) or re.fullmatch(text, value) is not None)
    formats.checks("json")(_is_json)
    # JSON Schema takes 8000.0 for an integer, and vLLM does not. No estimate can be computed with .nan or .inf.
    number = {
        "integer": lambda _checker, value: isinstance(value, int) and not isinstance(value, bool),
        "number": lambda _checker, value: isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value),
    }
    checker = Draft202012Validator.TYPE_CHECKER.redefine_many(number)
    keywords = {"additionalProperties": unknown, "x-required": required, "pattern": pattern}
    return validators.extend(Draft202012Validator, keywords, type_checker=checker)(SCHEMA, format_checker=formats)


def _fault(error: Any) -> tuple[str, str]:
    """Return the path of the key and what is wrong with it, of one error of the validator."""
    path, value, spec = "", error.instance, error.schema
    for step in error.absolute_path:
        path += f"[{step}]" if isinstance(step, int) and path and not isinstance(step, bool) else f"{'.' if path else ''}{step}"
    if error.validator == "additionalProperties":
        key, known = error.path[-1], [each for each in spec["properties"] if each != "extends"]
        here = "here" if len(error.absolute_path) > 1 else "at the top"
        return path, f"is not a key of a profile{did_you_mean(key, known)} (known {here}: {', '.join(known)})"
    if error.validator == "string key":
        return path, f"has the key {shown(value)}, expected a string: write it in quotes"
    if error.validator == "x-required":
        return path, f"is missing, expected {_expected(spec)}: {spec['description']}"
    if "propertyNames" in error.absolute_schema_path:
        return f"{path}.{value}", f"is not a valid key, expected {spec['patternErrorMessage']}"
    if error.validator == "enum":
        known = [each for each in spec["enum"] if each is not None]
        return path, f"is {value!r}, expected one of {', '.join(known)}{did_you_mean(value, known)}"
    if error.validator in ("pattern", "format") and "patternErrorMessage" in spec:
        return path, f"is {masked(value)!r}, expected {spec['patternErrorMessage']}"
    if error.validator in ("minimum", "maximum"):
        return path, f"is {value}, expected at {'least' if error.validator == 'minimum' else 'most'} {error.validator_value:g}"
    return path, f"is {shown(value)}, expected {_expected(spec)}{_type_hint(value, spec)}"


_seen: dict[str, list[tuple[str, str]]] = {}  # a task resolves the same profile a dozen times


def _schema_faults(profile: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (path of the key, what is wrong with it) of each fault by the schema."""
    key = repr(profile)
    if key not in _seen:
        if len(_seen) >= 64:
            _seen.clear()
        _seen[key] = [_fault(error) for error in validator().iter_errors(profile)]
    return _seen[key]


def _complete(value: Any, spec: Mapping[str, Any]) -> Any:
    """Return a copy of a value, without Ansible's tags, with the defaults of the keys that are not there or null."""
    spec = resolved(spec)
    keys = spec.get("properties")
    if isinstance(value, Mapping) and keys:
        out = {key: item for key, item in value.items() if key not in keys}
        for key, sub in keys.items():
            if key == "extends":
                continue
            if value.get(key) is not None:
                out[key] = _complete(value[key], sub)
            elif "properties" in sub and "default" not in sub:
                out[key] = _complete({}, sub)
            elif key not in spec.get("x-required", ()):
                out[key] = copy.deepcopy(sub.get("default"))
        return out
    if isinstance(value, Mapping):
        below = spec.get("additionalProperties") or {}
        return {str(key) if isinstance(key, str) else key: _complete(item, below) for key, item in value.items() if item is not None or not below}
    if isinstance(value, (list, tuple)):
        return [_complete(item, spec.get("items") or {}) for item in value]
    return str(value) if isinstance(value, str) else value


def compared(raw: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return a profile with its defaults, and (path of the key, what is wrong with it) of each fault by the schema."""
    profile: dict[str, Any] = _complete(raw, SCHEMA)
    return profile, list(_schema_faults(profile))
