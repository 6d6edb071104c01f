"""Names of variables: options of roles, misspelt names and secrets."""

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
        ("VLLM_TP2_CONTEXT", "did you mean vllm_tp2_context?"),
        ("vllm-tp2-context", "did you mean vllm_tp2_context?"),
        ("vllmTp2Context", "did you mean vllm_tp2_context?"),
        ("fabric_cidrs", "did you mean gb10_fabric_cidrs?"),
        ("gb10_context", "did you mean vllm_tp2_context?"),
    ],
)
def test_reports_a_misspelt_name_with_the_nearest(name: str, hint: str) -> None:
    text, near = names.unknown_variable(name, KNOWN, PREFIXES, ["docker_daemon_*"])
    assert (hint in text, near) == (True, True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("context", "vllm_tp2_context"), ("profile", "gb10_profile"), ("state", "vllm_tp2_state"), ("stroe_x", ""), ("profle", ""), ("my_own_thing", "")],
)
def test_a_name_that_was_typed_for_this_run_is_more_likely_ours(name: str, hint: str) -> None:
    text, near = names.unknown_variable(name, KNOWN, PREFIXES, typed=True)
    assert (text.partition("; ")[2], near) == (f"did you mean {hint}?" if hint else "", bool(hint))


@pytest.mark.parametrize(
    ("name", "near"),
    [("ansible_hosts", True), *((name, False) for name in ("ansible_host", "ansible_ssh_user", "ansible_become_pass", "ansible_private_key_file"))],
)
def test_a_misspelt_variable_that_leads_to_a_host_is_named(name: str, near: bool) -> None:
    assert names.unknown_variable(name, KNOWN, PREFIXES) == (("is not a variable of Ansible; did you mean ansible_host?", True) if near else ("", False))


def test_a_name_of_another_role_is_not_near_one() -> None:
    text, near = names.unknown_variable("docker_users", KNOWN, PREFIXES)
    assert ("gb10_foreign_variables" in text, near) == (True, False)


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
