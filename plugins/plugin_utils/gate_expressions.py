# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the check of JMESPath expressions of a gate: their syntax, and the facts that they name. Controller only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

try:
    import jmespath
except ImportError:  # only expressions of the gate need it
    jmespath = None

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate


@cache
def _facts() -> dict[str, Any]:
    """Return what an expression is evaluated over, without values. Below a null and in an empty mapping, any key is possible."""
    head: dict[str, Any] = dict.fromkeys(BootLog().facts())
    return {"head": head, "ranks": [head], "pool": dict.fromkeys(gate.pool_of({}, [])), "api": {}, "containers": {}, "measured": {}}


def expression_fault(expression: str) -> str:
    """Return why the gate cannot evaluate an expression; empty if it can."""
    if jmespath is None:
        return "gate.expressions need jmespath on this computer, which is not installed: pip install jmespath"
    try:
        parsed = jmespath.compile(expression).parsed
    except jmespath.exceptions.JMESPathError as error:
        reason = " ".join(str(error).split()).partition(", for expression")[0]
        return f"the expression {expression!r} is not valid JMESPath: {reason}; write it like pool.concurrency >= `4`"
    fault = next(_unknown(parsed), "") or next(_quoted(parsed), "") or _number(parsed)
    return fault and f"the expression {expression!r} {fault}"


# Facts that are numbers.
_NUMBERS = tuple(f"pool.{key}" for key in ("tokens", "concurrency", "context", "effective_tokens"))
_QUOTED = r"-?\d+(?:\.\d+)?"


def _path(node: Mapping[str, Any]) -> str:
    """Return the path of a node that only names keys; empty for another node."""
    if node["type"] == "field":
        return str(node["value"])
    parts = [_path(child) for child in node["children"]] if node["type"] == "subexpression" else [""]
    return ".".join(parts) if all(parts) else ""


def _quoted(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield each comparison with a text that can never hold. JMESPath orders numbers only, and a number never equals a text."""
    children = node["children"]
    if node["type"] == "comparator":
        for one, other in (children, children[::-1]):
            text, ordered = one.get("value"), node["value"] not in ("eq", "ne")
            if one["type"] == "literal" and isinstance(text, str) and (ordered or _path(other) in _NUMBERS):
                number = f"; write `{text}` in backticks" if re.fullmatch(_QUOTED, text) else ", and JMESPath needs a number here, such as `1.5`"
                yield f"compares with the text {text!r}{number}"
    for child in children:
        if isinstance(child, Mapping):
            yield from _quoted(child)


def _number(node: Mapping[str, Any]) -> str:
    """Return a text if the result is a number of the facts: any number passes."""
    if node["type"] in ("and_expression", "or_expression"):  # on the left of &&, it is known or not
        return next(filter(None, map(_number, node["children"][node["type"] == "and_expression" :])), "")
    path = _path(node)
    return f"is a number, expected true or false; compare it, such as {path} >= `4`" if path in _NUMBERS else ""


def _near(name: str, known: list[str]) -> str:
    number = f"; write the number as `{name}` in backticks" if re.fullmatch(_QUOTED, name) else ""
    return number or did_you_mean(name, known) or f"; known are {known}"


def _unknown(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with each name that no fact and no function has. Only names that begin at the root are looked up."""
    if node["type"] in ("field", "subexpression", "index_expression"):
        try:
            _look_up(node, _facts())
        except _UnknownNameError as error:
            name, known = error.args
            yield f"reads {name}, which is not a fact of the gate{_near(name, known)}"
    elif node["type"] == "function_expression" and node["value"] not in jmespath.functions.Functions.FUNCTION_TABLE:
        name, known = f"{node['value']}()", [f"{each}()" for each in jmespath.functions.Functions.FUNCTION_TABLE]
        yield f"calls {name}, which is not a function of JMESPath{_near(name, known)}"
    elif node["type"] in ("projection", "filter_projection", "value_projection", "pipe"):
        yield from _unknown(node["children"][0])  # the rest begins at what the first part returns
    elif node["type"] != "flatten" or node["children"]:
        for child in node["children"] if node["type"] not in ("multi_select_dict", "expref") else ():
            yield from _unknown(child)


class _UnknownNameError(Exception):
    """Its arguments are the name, and those that are known."""


def _look_up(node: Mapping[str, Any], facts: Any) -> Any:
    """Return the part of the facts that a node leads to; an empty mapping for one that is not known in detail."""
    if node["type"] == "field":
        if isinstance(facts, Mapping) and facts and node["value"] not in facts:
            raise _UnknownNameError(node["value"], list(facts))
        return facts.get(node["value"], {}) if isinstance(facts, Mapping) else {}
    if node["type"] in ("subexpression", "index_expression"):
        for child in node["children"]:
            facts = _look_up(child, facts)
        return facts
    return facts[0] if node["type"] == "index" and isinstance(facts, list) and facts else {}
