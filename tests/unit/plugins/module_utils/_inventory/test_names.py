"""Names of variables: options of roles, facts, misspelt names and secrets."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import names

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
        ("docker_users", "gb10_foreign_variables"),
        ("VLLM_TP2_CONTEXT", "because of its capital letters; did you mean vllm_tp2_context?"),
        ("NCCL_DEBUG", "set it in vllm_tp2_extra_env"),
        ("HF_TOKEN", "set it in vllm_tp2_secret_env"),
        ("vllmTp2Context", "because of its capital letters; did you mean vllm_tp2_context?"),
        ("fabric_cidrs", "did you mean gb10_fabric_cidrs?"),
        ("gb10_context", "did you mean vllm_tp2_context?"),
    ],
)
def test_reports_a_misspelt_name_with_the_nearest(name: str, hint: str) -> None:
    assert hint in names.unknown_variable(name, KNOWN, PREFIXES, ["docker_daemon_*"])


@pytest.mark.parametrize("name", ["vllm_tp2_context", "my_own", "docker_daemon_options", "dockers", "state", "HTTP_PROXY"])
def test_accepts_known_and_other_names(name: str) -> None:
    assert names.unknown_variable(name, KNOWN, PREFIXES, ["docker_daemon_*"]) == ""


@pytest.mark.parametrize(
    ("name", "secret"),
    [("vllm_tp2_api_key", True), ("hf_token", True), ("vllm_tp2_secret_env", True), ("x_password", True), ("max_tokens", False), ("keyboard", False)],
)
def test_secrets_have_whole_words_in_their_names(name: str, secret: bool) -> None:
    assert names.is_secret(name) is secret


def test_collects_options_and_defaults_of_all_entry_points() -> None:
    options = {"r_a": {"type": "dict"}, "r_b": {"type": "int"}, "r_c": {"type": "str", "default": "x"}}
    specs = {"argument_specs": {"main": {"options": options}, "status": {"options": {"r_e": None}}, "none": None}}
    found = names.role_options(specs, {"r_a": "{{ lookup('x') }}", "r_b": None, "r_c": "{{ y }}", "r_d": "{{ y }}"})
    assert found == {**options, "r_a": {"type": "dict", "default": "{{ lookup('x') }}"}, "r_e": {}}


def test_finds_the_facts_of_a_task_file_in_blocks() -> None:
    tasks = [
        {"ansible.builtin.set_fact": {"r_a": 1, "cacheable": True}},
        {"block": [{"set_fact": {"r_b": 1}}], "rescue": [{"ansible.builtin.set_fact": {"r_c": 1}}], "always": [{"debug": {"msg": 1}}]},
        {"ansible.builtin.set_fact": "r_d=1"},
        "not a task",
    ]
    assert names.exported(tasks) == {"r_a", "r_b", "r_c"}
    assert names.exported(None) == set()


def test_short_names_are_the_variables_that_defaults_read() -> None:
    defaults = {"role_since": "{{ since | default('10m') }}", "role_store": "{{ gb10_store | default('/srv') }}", "gb10_store": "/srv", "role_size": 3}
    assert names.short_names({name: {"default": default} for name, default in defaults.items()}) == {"since": "role_since"}


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("gb10", {"gb10_model_store": "/data"}, "write each variable on a line of its own, such as gb10_model_store: ..."),
        ("vllm_tp2", {"context": 500000}, "such as vllm_tp2_context: ..."),
        ("docker", {"registry": "example.org"}, ""),
        ("gb10", "x", ""),
    ],
)
def test_a_mapping_with_the_name_of_a_prefix(name: str, value: Any, part: str) -> None:
    text = names.mapping_fault(name, value, dict.fromkeys(("gb10_model_store", "vllm_tp2_context")))
    assert bool(text) is bool(part)
    assert part in text
