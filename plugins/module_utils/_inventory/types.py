# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: judging the variables of an inventory against the specs of the roles and of the cluster.

Pure: names, values and specs in, sentences out. A spec is one option of ``argument_specs`` (``type``, ``elements``, ``choices``,
``options``, ``default``, ``no_log``). Values are templated. No sentence ever holds the value of a secret. Standard library only.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean

_SET_FACT = ("ansible.builtin.set_fact", "set_fact")

_SECRET = re.compile(r"(?:^|[_.\W])(?:api_?keys?|keys?|token|secrets?|passwords?|passwd|passphrase|credentials?)(?:$|[_.\W])", re.IGNORECASE)
_BOOLEANS = {"yes", "no", "true", "false", "on", "off", "y", "n", "t", "f", "1", "0"}
_EXPECTED = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
    "path": "a path",
}


def is_secret(name: str, spec: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a variable's value must not be shown, by its spec or by its name."""
    return bool(spec and spec.get("no_log")) or bool(_SECRET.search(name))


def is_computed(default: Any) -> bool:
    """Tell whether a default is a template."""
    return isinstance(default, str) and "{{" in default


def role_options(specs: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return the options of one role's ``argument_specs`` document, of all its entry points.

    A documented default must be of its option's type, so a list or a mapping that is computed has its default in ``defaults`` only, the role's
    defaults/main.yml; with those it is filled in.
    """
    out: dict[str, dict[str, Any]] = {}
    for entry in (specs.get("argument_specs") or {}).values():
        for name, option in ((entry or {}).get("options") or {}).items():
            out.setdefault(str(name), option or {})
    for name, value in (defaults or {}).items():
        if is_computed(value) and "default" not in out.get(name, {"default": None}):
            out[name] = {**out[name], "default": value}
    return out


def exported(tasks: Any) -> set[str]:
    """Return the variables that a task file sets as facts, in blocks too; a role exports them for those that come after it.

    set_fact puts them beside the inventory's variables, where a second look at the inventory in the same run finds them.
    """
    facts = [task[key] for task in every_task(tasks) for key in _SET_FACT if isinstance(task.get(key), Mapping)]
    return {str(name) for given in facts for name in given if name != "cacheable"}


def every_task(tasks: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the tasks and blocks of a task file, those within blocks too."""
    for task in tasks if isinstance(tasks, list) else []:
        if isinstance(task, Mapping):
            yield task
            for part in ("block", "rescue", "always"):
                yield from every_task(task.get(part))


def near(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the nearest known variable, comparing what follows a shared prefix, or an empty string."""
    names = sorted(known)
    prefix = max((_shared_prefix(name, other) for other in names), key=len, default="")
    rest = [other[len(prefix) :] for other in names if other.startswith(prefix)]
    hint = did_you_mean(name[len(prefix) :], rest, prefix=prefix) if prefix else ""
    return hint or did_you_mean(name, names, 0.85)


def _shared_prefix(name: str, other: str) -> str:
    """The longest common run of whole words, with the underscore that ends it."""
    words = []
    for mine, theirs in zip(name.split("_"), other.split("_")):
        if mine != theirs:
            break
        words.append(mine)
    prefix = "_".join(words) + "_"
    return prefix if words and name.startswith(prefix) and other.startswith(prefix) else ""


def unknown_variable(
    name: str,
    known: Mapping[str, Any],
    prefixes: Mapping[str, str],
    removed: Mapping[str, tuple[str, str]],
    foreign: Sequence[str] = (),
) -> str:
    """Return a sentence when a variable looks like ours and is none, else an empty string.

    :param known: every variable of ours.
    :param prefixes: prefix (with its underscore) to who owns it, such as ``vllm_tp2_`` to ``the role vllm_tp2``.
    :param removed: name to (release, what to set instead).
    :param foreign: names and wildcards that the user declared not to be ours.
    """
    if name in known or any(fnmatch.fnmatchcase(name, pattern) for pattern in foreign):
        return ""
    if name in removed:
        release, instead = removed[name]
        return f"is not read any more since {release}; set {instead}"
    owner = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
    if owner:
        hint = near(name, known)
        if not hint:
            hint = "; correct the name, remove it, or list it in gb10_foreign_variables where another role reads it"
        return f"is no variable of {prefixes[owner]}{hint}"
    hint = did_you_mean(name, known, 0.9)
    return f"looks like a variable of this collection and is none{hint}" if hint else ""


def shown(value: Any, secret: bool = False) -> str:
    """Return a value as a user may see it: short, as YAML says it, and never a secret."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    if secret:
        return "(hidden)"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}...'"


def type_faults(name: str, value: Any, spec: Mapping[str, Any], secret: bool | None = None) -> list[tuple[tuple[str | int, ...], str]]:
    """Return ``(path below the variable, sentence)`` for everything in a value that its spec does not allow.

    A number or a truth value may be written as text, since ``-e name=value`` knows only text.
    """
    hide = is_secret(name, spec) if secret is None else secret or is_secret(name, spec)
    kind = str(spec.get("type") or "raw")
    if value is None:
        if spec.get("default") is None or name.startswith("gb10_"):
            return []
        return [((), f"is empty, expected {_expected(spec)}; leave the line out for the default")]
    if not _fits(value, kind):
        return [((), f"is {_found(value, kind, hide)}, expected {_expected(spec)}{_quotes(value, kind)}")]
    choices = spec.get("choices")
    if choices and kind != "list" and str(value) not in [str(choice) for choice in choices]:
        hint = did_you_mean(value, choices) if not hide else ""
        return [((), f"is {shown(value, hide)}, expected {_expected(spec)}{hint}")]
    out: list[tuple[tuple[str | int, ...], str]] = []
    if kind == "list":
        element = {key: spec[key] for key in ("choices", "options") if key in spec}
        element["type"] = spec.get("elements") or "raw"
        for index, entry in enumerate(value):
            if entry is None and element["type"] != "raw":
                out.append(((index,), f"entry {index + 1} is empty, expected {_expected(element)}"))
                continue
            out += [((index, *path), f"entry {index + 1} {text}") for path, text in type_faults(f"{name}[]", entry, element, hide)]
    elif kind == "dict" and spec.get("options"):
        out += _option_faults(name, value, spec["options"], hide)
    return out


def _option_faults(name: str, value: Mapping[str, Any], options: Mapping[str, Any], hide: bool) -> list[tuple[tuple[str | int, ...], str]]:
    out: list[tuple[tuple[str | int, ...], str]] = []
    for key, entry in value.items():
        if key not in options:
            hint = did_you_mean(key, options) or f"; known are {', '.join(options)}"
            out.append(((str(key),), f"{key} is no key of it{hint}"))
            continue
        out += [((str(key), *path), f"{key} {text}") for path, text in type_faults(f"{name}.{key}", entry, options[key] or {}, hide)]
    out += [((), f"{key} is missing") for key, option in options.items() if (option or {}).get("required") and key not in value]
    return out


def _fits(value: Any, kind: str) -> bool:
    if kind in ("str", "path"):
        return isinstance(value, (str, int, float)) and not isinstance(value, bool)
    if kind == "int":
        return _whole(value)
    if kind == "float":
        return _whole(value) or _number(value)
    if kind == "bool":
        return isinstance(value, bool) or str(value).lower() in _BOOLEANS
    if kind == "list":
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if kind == "dict":
        return isinstance(value, Mapping)
    return True


def _whole(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer()) or (isinstance(value, str) and bool(re.fullmatch(r"-?\d+", value)))


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def _expected(spec: Mapping[str, Any]) -> str:
    kind = str(spec.get("type") or "raw")
    choices = spec.get("choices")
    if choices and kind != "list":
        return "one of " + ", ".join(str(choice) for choice in choices)
    if kind == "list" and spec.get("elements") in _EXPECTED:
        plural = {"str": "texts", "int": "whole numbers", "float": "numbers", "dict": "mappings", "path": "paths", "bool": "truth values", "list": "lists"}
        return f"a list of {plural[spec['elements']]}"
    return _EXPECTED.get(kind, kind)


def _found(value: Any, kind: str, hide: bool) -> str:
    # Where a mapping is expected, a text may be an environment with a secret in it: say what it is, not what it holds.
    if kind == "dict" and isinstance(value, str):
        return "a text"
    return shown(value, hide)


def _quotes(value: Any, kind: str) -> str:
    if kind in ("str", "path") and (isinstance(value, bool) or not isinstance(value, (Mapping, Sequence))):
        return "; put it in quotes"
    return ""
