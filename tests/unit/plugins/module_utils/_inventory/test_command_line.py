"""What a user types: tags, extra variables, forks, paths of an inventory."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import command_line

TAGS = ["preflight", "sysctl", "weights"]
SPECS = ["vllm_tp2_context", "weights_timeout", "reboot_all"]


@pytest.mark.parametrize(
    ("given", "known", "expected"),
    [
        ({"--tags": ["sysctll"], "--skip-tags": []}, TAGS, [("--tags", "did you mean sysctl?")]),
        ({"--tags": ["sysctl weights"]}, TAGS, [("--tags", "; separate tags with a comma")]),
        ({"--tags": ["all"], "--skip-tags": ["wieghts"]}, TAGS, [("--skip-tags", "did you mean weights?")]),
        ({"--tags": ["sysctl", "never", "tagged"], "--skip-tags": ["weights"]}, TAGS, []),
        ({"--tags": ["anything"], "--skip-tags": []}, [], []),
    ],
)
def test_a_tag_that_the_playbook_does_not_have_is_named(given: dict[str, list[str]], known: list[str], expected: list[tuple[str, str]]) -> None:
    found = command_line.tag_faults(given, known)
    assert [option for option, _text in found] == [option for option, _text in expected]
    assert all(part in text for (_option, text), (_other, part) in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("context", "did you mean vllm_tp2_context?"),
        ("rebot_all", "did you mean reboot_all?"),
        ("sinc", "did you mean since?"),
        ("since", ""),
        ("sinse", "did you mean since?"),
        ("timeout", "did you mean weights_timeout?"),
        ("reboot_all", ""),
        ("my_own_thing", ""),
    ],
)
def test_an_extra_variable_near_one_of_the_collection_is_named(name: str, hint: str) -> None:
    text = command_line.extra_fault(name, SPECS, ["since"], ["vllm_tp2_", "weights_"])
    assert bool(text) is bool(hint)
    assert hint in text


def test_fewer_hosts_at_once_than_a_group_has_are_refused() -> None:
    groups = {"pair1": ["a", "b"], "ring": ["c", "d", "e"]}
    assert "is 2, and the 3 ranks of ring wait for each other; use 3 or more" in command_line.forks_fault(2, groups)
    assert command_line.forks_fault(3, groups) == command_line.forks_fault(1, {}) == ""


def test_an_inventory_that_is_not_given_or_does_not_exist_is_named() -> None:
    assert command_line.source_fault([], [], []) == "no inventory was given. Add -i inventories/mine"
    text = command_line.source_fault([], [], [], "make pair")
    assert text == "no inventory was given. Run `make pair`, which writes inventories/mine, and add -i inventories/mine"
    missing = ["./inventories/mine"]
    text = command_line.source_fault(missing, missing, ["inventories/lab"], "make pair")
    assert text == "./inventories/mine does not exist. Run `make pair`, which writes it"
    assert command_line.source_fault(["a,b"], [], [], "make pair").endswith("give an inventory such as inventories/mine, which `make pair` writes")
    assert command_line.source_fault(["a,b"], [], []).endswith("give an inventory such as inventories/mine")
    text = command_line.source_fault(["inventories/spark-pari"], ["inventories/spark-pari"], ["inventories/lab", "inventories/spark-pair"])
    assert text == "inventories/spark-pari does not exist; did you mean inventories/spark-pair?"
    assert command_line.source_fault(["inventories/lab"], [], []) == ""
    assert command_line.source_fault(["nope.yml"], ["nope.yml"], ["site.yml"]) == "nope.yml does not exist"
    assert command_line.source_fault(["mine"], ["mine"], ["roles", "inventories/mine"]) == "mine does not exist; did you mean inventories/mine?"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("vllm_tp2_context", "vllm_tp2_context has no value, expected vllm_tp2_context=VALUE"),
        ("x reboot_al", "reboot_al has no value"),
        ("SECRET", "a value with spaces in quotes"),
    ],
)
def test_words_after_e_that_set_nothing_show_only_the_name_of_a_variable(text: str, part: str) -> None:
    found = command_line.raw_fault(text, SPECS)
    assert part in found
    assert "SECRET" not in found


def test_a_short_name_that_several_roles_have_names_them_all() -> None:
    specs = ["docker_state", "roce_state"]
    assert command_line.extra_fault("state", specs, [], ["docker_", "roce_"]).endswith("did you mean one of docker_state, roce_state?")
