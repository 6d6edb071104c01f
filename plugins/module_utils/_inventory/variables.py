# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of an inventory: the cluster variables, their names and the types of their values, and the faults that a check reports. Controller only."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.common.yaml import HAS_YAML, yaml_load
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import is_secret as is_secret_name
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean

# The group that holds every host; its child groups are the serving groups.
ROOT_GROUP = "gb10"

# The cluster variables, and variables that only a playbook reads, both as options of argument_specs.
_FILE = Path(__file__).resolve().parents[3] / "meta/argument_specs.yml"
# ansible-test imports this file in a Python without YAML. A controller has it.
_SPECS: dict[str, Any] = yaml_load(_FILE.read_text(encoding="utf-8"))["argument_specs"] if HAS_YAML else {}
CLUSTER_SPEC: dict[str, dict[str, Any]] = _SPECS.get("cluster", {}).get("options", {})
PLAYBOOK_SPEC: dict[str, dict[str, Any]] = _SPECS.get("playbooks", {}).get("options", {})


class Place(NamedTuple):
    """Where a variable is set or should be set: ``kind`` is ``host`` or ``group``, ``name`` its name, ``key`` the variable.

    ``below`` leads to a part of the value.
    """

    kind: str
    name: str
    key: str
    below: tuple[str | int, ...] = ()


@dataclass(frozen=True)
class Fault:
    """One fault: the ``place`` to change, and a sentence without file and line.

    ``example`` marks an address of the example, which is a warning in a check of the inventory alone. ``warning`` marks what ends no run.
    """

    place: Place
    text: str
    example: bool = False
    warning: bool = False


def is_list(value: Any) -> bool:
    """Report whether a value is a list."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def default_of(name: str) -> Any:
    """Return the default of a cluster variable."""
    return CLUSTER_SPEC[name]["default"]


def value_of(variables: Mapping[str, Any], name: str) -> Any:
    """Return a cluster variable of one host, or its default if it is undefined, null or empty."""
    value = variables.get(name)
    return default_of(name) if value is None or value == "" else value


def whole_number(value: Any) -> int | None:
    """Return a number that may be written as text; None if the value is not a whole number from 0."""
    valid = isinstance(value, (int, str)) and not isinstance(value, bool) and str(value).isdecimal()
    return int(value) if valid else None


def split_by_majority(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the hosts with the most frequent value and the others. Of equally frequent values, the one of the first host counts.

    :param values: host name to its value of one variable.
    """
    every = list(values.values())
    most = max(every, key=every.count, default=None)
    return [host for host in values if values[host] == most], [host for host in values if values[host] != most]


# --- Names of variables: the options of the roles, misspelt names, names of secrets.

# Variables of Ansible that lead to a host, and are written by hand.
_CONNECTION = (
    *("ansible_host", "ansible_port", "ansible_user", "ansible_password", "ansible_ssh_private_key_file", "ansible_private_key_file"),
    *("ansible_become_password", "ansible_become_pass"),
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Why a build argument that is a secret is refused, and what to do; ends a sentence.
BUILD_ARGUMENT = (
    "looks like a secret, and a build argument is readable in the process list and in the image's history. Remove it, or rename it if it is not one. "
    "Give a proxy without user and password. For a private source, build the image elsewhere, and pull it after docker login on the nodes"
)


def is_secret(name: str, spec: Mapping[str, Any] | None = None) -> bool:
    """Report whether the value of a variable must not be shown, by its spec or by its name."""
    return bool(spec and spec.get("no_log")) or is_secret_name(name)


def name_fault(kind: str, name: str) -> str:
    """Return what is wrong with the name of a serving group or a host, which becomes a part of paths and units; empty if nothing is."""
    more, most = {"group": ("_-", 41), "host": ("._-", 61)}[kind]
    if re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9{more}]{{0,{most - 1}}}", name) and ".." not in name:
        return ""
    return f"has the name {name!r}, expected a letter or digit and at most {most - 1} more, or {', '.join(more)}. Rename the {kind}"


def is_computed(default: Any) -> bool:
    """Report whether a default is a template."""
    return isinstance(default, str) and "{{" in default


def role_options(specs: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return the options of one role's ``argument_specs`` document, of all its entry points.

    Ansible requires a documented default of the option's type, so a template for a list or a mapping is only in ``defaults``
    (defaults/main.yml of the role) and is added here.
    """
    out: dict[str, dict[str, Any]] = {}
    for entry in (specs.get("argument_specs") or {}).values():
        for name, option in ((entry or {}).get("options") or {}).items():
            out.setdefault(str(name), option or {})
    for name, value in (defaults or {}).items():
        if is_computed(value) and "default" not in out.get(name, {"default": None}):
            out[name] = {**out[name], "default": value}
    return out


def unknown_variable(name: str, known: Mapping[str, Any], prefixes: Mapping[str, str], foreign: Sequence[str] = (), typed: bool = False) -> tuple[str, bool]:
    """Return a sentence if a variable looks like one of this collection and is not one, and whether it is nearly one. Another role can have the others.

    :param known: every variable of the collection.
    :param prefixes: prefix (with its underscore) to its owner, such as ``vllm_tp2_`` to ``the role vllm_tp2``.
    :param foreign: names and wildcards of the user's other variables.
    :param typed: whether it was typed for this run (``-e``), so that more is meant for this collection.
    """
    if name in known or any(fnmatch.fnmatchcase(name, pattern) for pattern in foreign):
        return "", False
    if name.startswith("ansible_"):
        hint = did_you_mean(name, _CONNECTION, 0.9) if name not in _CONNECTION else ""
        return (f"is not a variable of Ansible{hint}", True) if hint else ("", False)
    right = next((each for each in (name.lower(), _CAMEL.sub("_", name).lower(), name.replace("-", "_")) if each != name and each in known), "")
    owner = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
    ends = [prefix + name.removeprefix(owner) for prefix in prefixes if (typed or "_" in name) and prefix + name.removeprefix(owner) in known]
    if right or (ends and (not owner or (owner == "gb10_" and len(ends) == 1))):
        of_role = ends and not ends[0].startswith("gb10_")
        return f"is not a variable of this collection; did you mean {right or ' or '.join(ends if of_role else ends[:1])}?", True
    if not owner:
        alike = name.startswith(tuple(prefix.partition("_")[0] + "_" for prefix in prefixes))
        hint = did_you_mean(name, known, 0.8 if typed else 0.85 if alike else 0.9)
        return (f"is not a variable of this collection{hint}", True) if hint else ("", False)
    hint = did_you_mean(name, known, 0.85)
    other = "; correct the name, remove it, or list it in gb10_foreign_variables if another role reads it"
    return f"is not a variable of {prefixes[owner]}{hint or other}", bool(hint)


# --- Types of values, checked against options of ``argument_specs``.
# Ansible's own validation stops at the first fault and converts values. Here all faults are reported, each with the way to the part that is wrong. Values are
# templated. No sentence contains the value of a secret.

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
