# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of data that a container, an engine or a user writes, checked once where it enters: JSON, and the environment file of the secrets. Pure.

A form is a type, [form] for a list, or a mapping of keys to forms. A key that ends in ? may be missing or null. Other keys are not checked.

Hand-made: jsonschema is not part of a node's Python.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from typing import Any

LARGEST = 2**63
_EXPECTED = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "a mapping", list: "a list"}


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also if it is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def scalar(value: Any, form: type) -> str:
    """Return what is expected in place of a value of this type; empty if it fits."""
    number = form in (int, float)
    fits = isinstance(value, (int, form) if number else form) and not (number and isinstance(value, bool))
    return "" if fits and (not number or abs(value) < LARGEST) else _EXPECTED[form]  # NaN is not less


def misfit(value: Any, form: Any, path: str = "") -> str:
    """Return what does not fit a form, as a phrase that names the place; empty if the value fits."""
    kind = type(form) if isinstance(form, (list, dict)) else None
    expected = scalar(value, form) if kind is None else "" if isinstance(value, kind) else _EXPECTED[kind]
    if expected:
        return f"{path or 'it'} is {reprlib.repr(value)[:60]}, and {expected} is expected"
    if isinstance(form, list):
        return next(filter(None, (misfit(each, form[0], f"{path}[{index}]") for index, each in enumerate(value))), "")
    for name, each in form.items() if isinstance(form, dict) else ():
        key = name.rstrip("?")
        if name != key and value.get(key) is None:
            continue
        problem = misfit(value[key], each, f"{path}.{key}" if path else key) if key in value else f"{path or 'it'} has no {key}"
        if problem:
            return problem
    return ""


# --- The environment file of the secrets: written for Docker Compose, and read back.

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")


def problem(value: str) -> str:
    """Return why Compose would not read a value as it is, as the end of a sentence; empty if it does. Compose prints the value in its error."""
    if "'" in value:
        return "contains a single quote"
    if re.search(r"[\n\r\0]", value):
        return "contains a line end"
    return "ends in a backslash" if (len(value) - len(value.rstrip("\\"))) % 2 else ""


def text_of(values: Mapping[str, str]) -> str:
    """Return the text of a file: one NAME='value' line each, sorted. In single quotes Compose expands no dollar sign. See problem()."""
    return "".join(f"{name}='{values[name]}'\n" for name in sorted(values))


def parse(text: str) -> dict[str, str]:
    """Return the values by name. One pair of quotes around a value is removed, as Compose does."""
    out = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        value = match[2].strip()
        quoted = len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]
        out[match[1]] = value[1:-1] if quoted else value
    return out
