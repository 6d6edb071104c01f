# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the YAML of netplan files, read with PyYAML, which netplan.io depends on.

Plain text stays text as netplan reads it: a MAC address is not a base-60 number, 010 is not octal. Only null, booleans and decimal
integers are resolved. Parser events are used, because they need no recursion and show anchors, which can expand without limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

try:
    import yaml

    HAS_YAML = True
except ImportError:
    HAS_YAML = False

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 50
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class YamlError(ValueError):
    """A YAML text that is not valid or not supported; the message names the line."""


class NoYamlError(RuntimeError):
    """PyYAML is not installed on this node."""


def _scalar(event: Any) -> Any:
    text = event.value
    if event.style:  # quoted or block text
        return text
    if text in ("", "~", "null"):
        return None
    if re.match(r"[-+]?(?:0|[1-9][0-9]{0,17})\Z", text):
        return int(text)
    return _BOOLEANS.get(text.lower(), text)


def _value(item: Any) -> Any:
    return _scalar(item) if isinstance(item, yaml.ScalarEvent) else item


def _mapping(items: list[Any], line: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in zip(items[::2], items[1::2]):
        if not isinstance(key, yaml.ScalarEvent):
            raise YamlError(f"line {line}: a key is not a text")
        if key.value in found:
            mark: Any = key.start_mark
            raise YamlError(f"line {mark.line + 1}: duplicate key {key.value!r}")
        found[key.value] = _value(value)
    return found


def _build(events: Iterable[Any]) -> Any:
    stack: list[list[Any]] = [[]]  # the document and its open collections; scalars stay events until it is known which are keys
    for event in events:
        line = event.start_mark.line + 1
        if getattr(event, "anchor", None) or getattr(event, "tag", None):  # an alias has an anchor too
            raise YamlError(f"line {line}: anchors, aliases and tags are not supported")
        if isinstance(event, yaml.DocumentStartEvent) and stack[0]:
            raise YamlError(f"line {line}: a second document is not supported")
        if isinstance(event, yaml.CollectionStartEvent):
            if len(stack) > MAX_DEPTH:
                raise YamlError(f"line {line}: nested too deeply")
            stack.append([])
        elif isinstance(event, yaml.CollectionEndEvent):
            items = stack.pop()
            stack[-1].append(_mapping(items, line) if isinstance(event, yaml.MappingEndEvent) else [_value(item) for item in items])
        elif isinstance(event, yaml.ScalarEvent):
            stack[-1].append(event)
    return _value(stack[0][0]) if stack[0] else None


def parse_yaml(text: str) -> Any:
    """Return the value of a netplan file.

    :raises YamlError: the text is not valid or not supported.
    :raises NoYamlError: PyYAML is missing.
    """
    if not HAS_YAML:
        raise NoYamlError("PyYAML is missing on this node, so its netplan files cannot be read: install it (`apt install python3-yaml`).")
    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"line 1: the file has more than {MAX_CHARACTERS} characters")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return _build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as exc:
        raise YamlError(f"line {exc.problem_mark.line + 1 if exc.problem_mark else 1}: {exc.problem}") from exc
    except yaml.reader.ReaderError as exc:
        raise YamlError(f"line {text.count(chr(10), 0, exc.position) + 1}: {exc.reason}") from exc
    except UnicodeEncodeError as exc:
        raise YamlError(f"line {text.count(chr(10), 0, exc.start) + 1}: not UTF-8 text") from exc
