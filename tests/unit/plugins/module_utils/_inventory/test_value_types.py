"""Types of values, by the options of argument_specs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import type_faults

URL = {"type": "list", "elements": "dict", "options": {"url": {"type": "str", "required": True}, "retries": {"type": "int"}}}


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ({"type": "str"}, ["x", 8388608]),
        ({"type": "int"}, ["4096", -1, 4.0, None]),
        ({"type": "float"}, ["0.8", 1, -0.5, "1e3"]),
        ({"type": "bool"}, ["no", True]),
        ({"type": "list"}, [[], ["a", 1]]),
        ({"type": "dict"}, [{}]),
        ({"type": "raw"}, [{"anything": [1]}]),
        ({"type": "int", "choices": [1, 2]}, ["2"]),
        ({"type": "list", "elements": "str", "choices": ["a", "b"]}, [["a"]]),
        (URL, [[{"url": "x"}]]),
    ],
)
def test_accepts_values_of_the_type(spec: dict[str, Any], values: list[Any]) -> None:
    assert [value for value in values if type_faults("role_x", value, spec)] == []


@pytest.mark.parametrize(
    ("value", "spec", "expected"),
    [
        ("many", {"type": "int"}, [((), "'many', expected a whole number")]),
        (True, {"type": "int"}, [((), "true, expected a whole number")]),
        (1.5, {"type": "int"}, [((), "1.5")]),
        ("much", {"type": "float"}, [((), "expected a number")]),
        ("maybe", {"type": "bool"}, [((), "expected true or false")]),
        (True, {"type": "str"}, [((), "put it in quotes")]),
        (["a"], {"type": "path"}, [((), "a list, expected a path")]),
        ("a,b", {"type": "list", "elements": "str"}, [((), "expected a list of strings")]),
        ({"a": 1}, {"type": "list", "elements": "int"}, [((), "a mapping, expected a list of whole numbers")]),
        (None, {"type": "int", "default": 3}, [((), "is empty")]),
        ("presnt", {"type": "str", "choices": ["present", "absent"]}, [((), "did you mean present?")]),
        ([1, "x"], {"type": "list", "elements": "int"}, [((1,), "entry 2 is 'x'")]),
        ([None], {"type": "list", "elements": "str"}, [((0,), "entry 1 is empty")]),
        (
            [{"url": "x", "retires": 1}, {"retries": "a"}, {"url": None}],
            URL,
            [((0, "retires"), "did you mean retries?"), ((1, "retries"), "'a'"), ((1,), "url is missing"), ((2,), "url is missing")],
        ),
        ("x" * 100, {"type": "int"}, [((), "is '" + "x" * 56 + "...', expected")]),
    ],
)
def test_reports_each_wrong_part(value: Any, spec: dict[str, Any], expected: list[tuple[tuple[Any, ...], str]]) -> None:
    found = type_faults("role_x", value, spec)
    assert [path for path, _text in found] == [path for path, _part in expected]
    assert all(part in text for (_path, text), (_same, part) in zip(found, expected, strict=True)), found


@pytest.mark.parametrize(
    ("name", "spec", "value"),
    [
        pytest.param("vllm_tp2_api_key", {"type": "int"}, "hunter2", id="by name"),
        pytest.param("role_x", {"type": "int", "no_log": True}, "hunter2", id="by spec"),
        pytest.param("role_x", {"type": "str", "choices": ["a"], "no_log": True}, "hunter2", id="choice"),
        pytest.param("role_token", {"type": "list", "elements": "int"}, ["hunter2"], id="entry"),
        pytest.param("role_secrets", {"type": "dict", "options": {"a": {"type": "int"}}}, {"a": "hunter2"}, id="part of a mapping"),
        pytest.param("role_env", {"type": "dict"}, "TOKEN=hunter2", id="environment as a string"),
        pytest.param("role_x", {"type": "dict", "options": {"password": {"type": "int"}}}, {"password": "hunter2"}, id="secret key"),
    ],
)
def test_never_shows_a_secret(name: str, spec: dict[str, Any], value: Any) -> None:
    found = type_faults(name, value, spec)
    assert found
    assert "hunter2" not in str(found)
