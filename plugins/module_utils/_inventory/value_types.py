# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: types of values, checked against options of ``argument_specs``. Pure, standard library only.

Ansible's own validation stops at the first fault and converts values. Here all faults are reported, each with the way to the part that is wrong.
Values are templated. No sentence contains the value of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.names import is_secret
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import is_list

# (way to the part of the value, sentence)
Found = list[tuple[tuple["str | int", ...], str]]

TRUE = {"yes", "true", "on", "y", "t", "1"}
_BOOLEANS = {*TRUE, "no", "false", "off", "n", "f", "0"}


class Kind(NamedTuple):
    """A type of ``argument_specs``: its name for the user, and the values that have it. A number or a boolean may be written as text."""

    one: str
    many: str
    fits: Callable[[Any], bool]


def _is_number(value: Any, pattern: str) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool) and re.fullmatch(pattern, str(value)) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


KINDS = {
    "str": Kind("a string", "strings", _is_text),
    "path": Kind("a path", "paths", _is_text),
    "int": Kind("a whole number", "whole numbers", lambda value: _is_number(value, r"-?[0-9]+(\.0)?")),
    "float": Kind("a number", "numbers", lambda value: _is_number(value, r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")),
    "bool": Kind("true or false", "booleans", lambda value: str(value).lower() in _BOOLEANS),
    "list": Kind("a list", "lists", is_list),
    "dict": Kind("a mapping", "mappings", lambda value: isinstance(value, Mapping)),
    "raw": Kind("a value", "values", lambda _value: True),
}


def shown(value: Any, secret: bool = False) -> str:
    """Return a value for a message: short, as YAML writes it, and never a secret."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if is_list(value):
        return "a list"
    if secret:
        return "(hidden)"
    if isinstance(value, bool):
        return str(value).lower()
    text = redact(f"'{value}'" if isinstance(value, str) else str(value))
    return text if len(text) <= 60 else f"{text[:57]}...'"


def _is_choice(value: bool, spec: Mapping[str, Any]) -> bool:
    """Report whether a boolean is one of the choices, such as ``off`` without quotes. Ansible accepts it too if only one of them is meant."""
    words = TRUE if value else _BOOLEANS - TRUE
    return len([choice for choice in spec.get("choices") or () if str(choice).lower() in words]) == 1


def _expected(spec: Mapping[str, Any]) -> str:
    kind = str(spec.get("type") or "raw")
    if spec.get("choices") and kind != "list":
        return "one of " + ", ".join(str(choice) for choice in spec["choices"])
    if kind == "list" and spec.get("elements", "raw") != "raw":
        return f"a list of {KINDS[spec['elements']].many}"
    options = spec.get("options") or {}
    first = next((key for key, option in options.items() if (option or {}).get("required")), next(iter(options), ""))
    return KINDS[kind].one + (f" such as {{{first}: ...}}" if kind == "dict" and first else "")


def type_faults(name: str, value: Any, spec: Mapping[str, Any], secret: bool = False) -> Found:
    """Return everything in a value that its spec does not allow. Null is the default."""
    hide = secret or is_secret(name, spec)
    kind = str(spec.get("type") or "raw")
    if value is None:
        if spec.get("default") is None or (name.startswith("gb10_") and kind != "path"):  # the roles read the paths as they are
            return []
        return [((), f"is empty, expected {_expected(spec)}; remove the line for the default")]
    if isinstance(value, bool) and _is_choice(value, spec):
        return []
    if not KINDS[kind].fits(value):
        # A string instead of a mapping can be an environment with a secret.
        found = "a string" if kind == "dict" and isinstance(value, str) else shown(value, hide)
        quotes = "; put it in quotes" if kind in ("str", "path") and isinstance(value, bool) else ""
        return [((), f"is {found}, expected {_expected(spec)}{quotes}")]
    choices = spec.get("choices")
    if choices and kind != "list" and str(value) not in map(str, choices):
        return [((), f"is {shown(value, hide)}, expected {_expected(spec)}{'' if hide else did_you_mean(value, choices)}")]
    if kind == "list":
        return _element_faults(name, value, spec, hide)
    return _option_faults(name, value, spec["options"], hide) if kind == "dict" and spec.get("options") else []


def _element_faults(name: str, value: Sequence[Any], spec: Mapping[str, Any], hide: bool) -> Found:
    element = {**{key: spec[key] for key in ("choices", "options") if key in spec}, "type": spec.get("elements") or "raw"}
    out: Found = []
    for index, entry in enumerate(value):
        found = type_faults(f"{name}[]", entry, element, hide)
        if entry is None and element["type"] != "raw":
            found = [((), f"is empty, expected {_expected(element)}")]
        out += [((index, *path), f"entry {index + 1} {text}") for path, text in found]
    return out


def _option_faults(name: str, value: Mapping[str, Any], options: Mapping[str, Any], hide: bool) -> Found:
    out: Found = []
    for key, entry in value.items():
        if key in options:
            out += [((str(key), *path), f"{key} {text}") for path, text in type_faults(f"{name}.{key}", entry, options[key] or {}, hide)]
        else:
            hint = did_you_mean(key, options) or f"; known are {', '.join(options)}"
            out.append(((str(key),), f"{key} is not a known key{hint}"))
    missing = [key for key, option in options.items() if (option or {}).get("required") and value.get(key) is None]
    return out + ([((), f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")] if missing else [])
