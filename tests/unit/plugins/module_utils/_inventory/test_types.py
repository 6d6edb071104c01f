"""Judging names and values of variables against specs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import types as check

KNOWN: dict[str, Any] = {"vllm_tp2_context": {}, "vllm_tp2_container": {}, "vllm_tp2_state": {}, "docker_memlock": {}, "gb10_profile": {}, "gb10_profiles": {}}
PREFIXES = {"vllm_tp2_": "the role vllm_tp2", "docker_": "the role docker", "gb10_": "the cluster"}
REMOVED = {"docker_limits": ("0.3.0", "docker_memlock and docker_stack")}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("vllm_tp2_context", "", id="known"),
        pytest.param("my_own", "", id="not ours"),
        pytest.param("vllm_tp2_contxt", "is no variable of the role vllm_tp2; did you mean vllm_tp2_context?", id="letter left out"),
        pytest.param("vllm_tp2_stat", "is no variable of the role vllm_tp2; did you mean vllm_tp2_state?", id="letter at the end left out"),
        pytest.param("gb10_profle", "is no variable of the cluster; did you mean gb10_profile?", id="cluster"),
        pytest.param("gb10profile", "looks like a variable of this collection and is none; did you mean gb10_profile?", id="prefix misspelt"),
        pytest.param("vlm_tp2_context", "looks like a variable of this collection and is none; did you mean vllm_tp2_context?", id="role misspelt"),
        pytest.param(
            "docker_users",
            "is no variable of the role docker; correct the name, remove it, or list it in gb10_foreign_variables where another role reads it",
            id="nothing near",
        ),
        pytest.param("docker_daemon_options", "", id="declared foreign"),
        pytest.param("docker_limits", "is not read any more since 0.3.0; set docker_memlock and docker_stack", id="removed"),
        pytest.param("dockers", "", id="only like a prefix"),
    ],
)
def test_names(name: str, sentence: str) -> None:
    """What looks like ours and is none."""
    assert check.unknown_variable(name, KNOWN, PREFIXES, REMOVED, ["docker_daemon_*"]) == sentence


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        pytest.param("x", {"type": "str"}, id="text"),
        pytest.param(8388608, {"type": "str"}, id="a number where a text is asked for"),
        pytest.param("4096", {"type": "int"}, id="a number from the command line"),
        pytest.param(-1, {"type": "int"}, id="negative"),
        pytest.param(4.0, {"type": "int"}, id="a whole float"),
        pytest.param("0.8", {"type": "float"}, id="float as text"),
        pytest.param(1, {"type": "float"}, id="int for a float"),
        pytest.param("no", {"type": "bool"}, id="bool as text"),
        pytest.param(True, {"type": "bool"}, id="bool"),
        pytest.param([], {"type": "list", "elements": "str"}, id="empty list"),
        pytest.param(["a", 1], {"type": "list", "elements": "str"}, id="list"),
        pytest.param({}, {"type": "dict"}, id="mapping"),
        pytest.param(None, {"type": "int"}, id="null without a default"),
        pytest.param("absent", {"type": "str", "choices": ["present", "absent"]}, id="choice"),
        pytest.param("2", {"type": "int", "choices": [1, 2]}, id="choice of numbers as text"),
        pytest.param({"anything": [1]}, {"type": "raw"}, id="raw"),
        pytest.param(["a"], {"type": "list", "elements": "str", "choices": ["a", "b"]}, id="choices of a list"),
        pytest.param([{"url": "x"}], {"type": "list", "elements": "dict", "options": {"url": {"type": "str", "required": True}}}, id="options of a list"),
    ],
)
def test_right_values(value: Any, spec: dict[str, Any]) -> None:
    """No false alarm."""
    assert check.type_faults("role_x", value, spec) == []


URL = {"type": "list", "elements": "dict", "options": {"url": {"type": "str", "required": True}, "retries": {"type": "int"}}}


@pytest.mark.parametrize(
    ("value", "spec", "expected"),
    [
        pytest.param("many", {"type": "int"}, [((), "is 'many', expected a whole number")], id="int"),
        pytest.param(True, {"type": "int"}, [((), "is true, expected a whole number")], id="bool for int"),
        pytest.param(1.5, {"type": "int"}, [((), "is 1.5, expected a whole number")], id="fraction"),
        pytest.param("200k", {"type": "int"}, [((), "is '200k', expected a whole number")], id="unit"),
        pytest.param("much", {"type": "float"}, [((), "is 'much', expected a number")], id="float"),
        pytest.param("maybe", {"type": "bool"}, [((), "is 'maybe', expected true or false")], id="bool"),
        pytest.param(True, {"type": "str"}, [((), "is true, expected a text; put it in quotes")], id="bool for text"),
        pytest.param(["a"], {"type": "path"}, [((), "is a list, expected a path")], id="list for path"),
        pytest.param("a,b", {"type": "list", "elements": "str"}, [((), "is 'a,b', expected a list of texts")], id="text for list"),
        pytest.param({"a": 1}, {"type": "list", "elements": "int"}, [((), "is a mapping, expected a list of whole numbers")], id="mapping for list"),
        pytest.param("A=secret", {"type": "dict"}, [((), "is a text, expected a mapping")], id="text for mapping"),
        pytest.param(None, {"type": "int", "default": 3}, [((), "is empty, expected a whole number; leave the line out for the default")], id="null"),
        pytest.param(
            "presnt",
            {"type": "str", "choices": ["present", "absent"]},
            [((), "is 'presnt', expected one of present, absent; did you mean present?")],
            id="choice",
        ),
        pytest.param([1, "x"], {"type": "list", "elements": "int"}, [((1,), "entry 2 is 'x', expected a whole number")], id="entry"),
        pytest.param([None], {"type": "list", "elements": "str"}, [((0,), "entry 1 is empty, expected a text")], id="empty entry"),
        pytest.param(
            [{"url": "x", "retires": 1}, {"retries": "a"}],
            URL,
            [
                ((0, "retires"), "entry 1 retires is no key of it; did you mean retries?"),
                ((1, "retries"), "entry 2 retries is 'a', expected a whole number"),
                ((1,), "entry 2 url is missing"),
            ],
            id="options",
        ),
        pytest.param("x" * 100, {"type": "int"}, [((), "is '" + "x" * 56 + "...', expected a whole number")], id="long"),
    ],
)
def test_wrong_values(value: Any, spec: dict[str, Any], expected: list[tuple[tuple[Any, ...], str]]) -> None:
    """One sentence each, with the way to the part that is wrong."""
    assert check.type_faults("role_x", value, spec) == expected


@pytest.mark.parametrize(
    ("name", "spec", "value"),
    [
        pytest.param("vllm_tp2_api_key", {"type": "int"}, "hunter2", id="by name"),
        pytest.param("role_x", {"type": "int", "no_log": True}, "hunter2", id="by spec"),
        pytest.param("role_x", {"type": "str", "choices": ["a"], "no_log": True}, "hunter2", id="choice"),
        pytest.param("role_token", {"type": "list", "elements": "int"}, ["hunter2"], id="entry of a secret list"),
        pytest.param("role_secrets", {"type": "dict", "options": {"a": {"type": "int"}}}, {"a": "hunter2"}, id="part of a secret mapping"),
        pytest.param("role_env", {"type": "dict"}, "TOKEN=hunter2", id="environment written as text"),
        pytest.param("role_x", {"type": "dict", "options": {"password": {"type": "int"}}}, {"password": "hunter2"}, id="secret key"),
    ],
)
def test_a_secret_is_never_shown(name: str, spec: dict[str, Any], value: Any) -> None:
    """Its fault is."""
    found = check.type_faults(name, value, spec)
    assert found
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("name", "secret"),
    [("vllm_tp2_api_key", True), ("hf_token", True), ("vllm_tp2_secret_env", True), ("x_password", True), ("max_tokens", False), ("keyboard", False)],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    """Whole words only."""
    assert check.is_secret(name) is secret


def test_options_of_all_entry_points() -> None:
    """A role may have more than main; an empty one is no error."""
    specs = {"argument_specs": {"main": {"options": {"r_a": {"type": "str"}}}, "status": {"options": {"r_b": None}}, "none": None}}
    assert check.role_options(specs) == {"r_a": {"type": "str"}, "r_b": {}}
    assert check.role_options({}) == {}


def test_a_computed_default_comes_from_the_defaults() -> None:
    """A literal one is in the specs; an unknown variable is not made an option."""
    specs = {"argument_specs": {"main": {"options": {"r_a": {"type": "dict"}, "r_b": {"type": "int"}, "r_c": {"type": "str", "default": "x"}}}}}
    options = check.role_options(specs, {"r_a": "{{ lookup('x') }}", "r_b": None, "r_c": "{{ y }}", "r_d": "{{ y }}"})
    assert options == {"r_a": {"type": "dict", "default": "{{ lookup('x') }}"}, "r_b": {"type": "int"}, "r_c": {"type": "str", "default": "x"}}
    assert check.type_faults("r_a", None, options["r_a"]) == [((), "is empty, expected a mapping; leave the line out for the default")]


def test_what_a_task_file_exports() -> None:
    """Facts of every task, in blocks too."""
    tasks = [
        {"ansible.builtin.set_fact": {"r_a": 1, "cacheable": True}},
        {"block": [{"set_fact": {"r_b": 1}}], "rescue": [{"ansible.builtin.set_fact": {"r_c": 1}}], "always": [{"debug": {"msg": 1}}]},
        {"ansible.builtin.set_fact": "r_d=1"},
        "no task",
    ]
    assert check.exported(tasks) == {"r_a", "r_b", "r_c"}
    assert check.exported(None) == set()
