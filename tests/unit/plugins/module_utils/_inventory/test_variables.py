"""Names of variables: options of roles, misspelt names and secrets."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import variables
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import type_faults

KNOWN: dict[str, Any] = dict.fromkeys(
    (
        "vllm_tp2_context",
        "vllm_tp2_container",
        "vllm_tp2_state",
        "docker_memlock",
        "gb10_fabric_cidrs",
        "gb10_profile",
        "gb10_profiles",
        "docker_store",
        "gb10_store",
    )
)
PREFIXES = {"gb10_": "the cluster", "vllm_tp2_": "the role vllm_tp2", "docker_": "the role docker"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vllm_tp2_contxt", "; did you mean vllm_tp2_context?"),
        ("vllm_tp2_stat", "; did you mean vllm_tp2_state?"),
        ("gb10profile", "; did you mean gb10_profile?"),
        ("vlm_tp2_context", "; did you mean vllm_tp2_context?"),
        ("VLLM_TP2_CONTEXT", "did you mean vllm_tp2_context?"),
        ("vllm-tp2-context", "did you mean vllm_tp2_context?"),
        ("vllmTp2Context", "did you mean vllm_tp2_context?"),
        ("fabric_cidrs", "did you mean gb10_fabric_cidrs?"),
        ("gb10_context", "did you mean vllm_tp2_context?"),
    ],
)
def test_reports_a_misspelt_name_with_the_nearest(name: str, hint: str) -> None:
    text, near = variables.unknown_variable(name, KNOWN, PREFIXES, ["docker_daemon_*"])
    assert (hint in text, near) == (True, True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("context", "vllm_tp2_context"), ("profile", "gb10_profile"), ("state", "vllm_tp2_state"), ("stroe_x", ""), ("profle", ""), ("my_own_thing", "")],
)
def test_a_name_that_was_typed_for_this_run_is_more_likely_ours(name: str, hint: str) -> None:
    text, near = variables.unknown_variable(name, KNOWN, PREFIXES, typed=True)
    assert (text.partition("; ")[2], near) == (f"did you mean {hint}?" if hint else "", bool(hint))


@pytest.mark.parametrize(
    ("name", "near"),
    [("ansible_hosts", True), *((name, False) for name in ("ansible_host", "ansible_ssh_user", "ansible_become_pass", "ansible_private_key_file"))],
)
def test_a_misspelt_variable_that_leads_to_a_host_is_named(name: str, near: bool) -> None:
    assert variables.unknown_variable(name, KNOWN, PREFIXES) == (("is not a variable of Ansible; did you mean ansible_host?", True) if near else ("", False))


def test_a_name_of_another_role_is_not_near_one() -> None:
    text, near = variables.unknown_variable("docker_users", KNOWN, PREFIXES)
    assert ("gb10_foreign_variables" in text, near) == (True, False)


@pytest.mark.parametrize(
    ("name", "secret"),
    [("vllm_tp2_api_key", True), ("hf_token", True), ("vllm_tp2_secret_env", True), ("x_password", True), ("max_tokens", False), ("keyboard", False)],
)
def test_secrets_have_whole_words_in_their_names(name: str, secret: bool) -> None:
    assert variables.is_secret(name) is secret


def test_collects_options_and_defaults_of_all_entry_points() -> None:
    options = {"r_a": {"type": "dict"}, "r_b": {"type": "int"}, "r_c": {"type": "str", "default": "x"}}
    specs = {"argument_specs": {"main": {"options": options}, "status": {"options": {"r_e": None}}, "none": None}}
    found = variables.role_options(specs, {"r_a": "{{ lookup('x') }}", "r_b": None, "r_c": "{{ y }}", "r_d": "{{ y }}"})
    assert found == {**options, "r_a": {"type": "dict", "default": "{{ lookup('x') }}"}, "r_e": {}}


# --- Types of values, by the options of argument_specs.

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
