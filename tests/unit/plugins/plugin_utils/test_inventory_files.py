"""What Ansible cannot read of an inventory, or reads as something else: the place and a sentence, without a part of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_files import faults
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_run import skipped, source_fault, tag_faults
from unit.fixtures.host.tree import write

PAIR = "gb10:\n  children:\n    pair1:\n      hosts:\n        a:\n        b:\n"


def found(folder: Path, *options: str) -> list[str]:
    """Return the faults of an inventory in a folder, with short paths."""
    return [each.sentence().replace(f"{folder}/", "") for each in faults([str(folder)], [], options)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\n\tb: 2\n", "2: YAML: the file is not valid YAML here (found a tab character that violates indentation)"),
        ("a: {{ hunter2 }}/x\n", "1: YAML: the file is not valid YAML here (a template that begins a value needs quotes, and a list"),
        ('a: 1\nb: "hunter2\nc: 1\n', "2: YAML: the file is not valid YAML here (a quotation mark or a bracket opens here and is not closed)"),
        ("a: [hunter2\nb: 1\n", "1: YAML: the file is not valid YAML here (a quotation mark or a bracket opens here and is not closed)"),
        ("a: 1\nhunter2\nb: 1\n", "2: YAML: the file is not valid YAML here (the colon after the name is missing, or the space after the colon)"),
        ("a: hunter2: x\n", "1: YAML: the file is not valid YAML here (a second colon in one line, or a line that is indented too far; put a value"),
        ("a: *hunter2\n", "1: YAML: the file is not valid YAML here (an alias that is not defined; put a value that begins with * in quotes)"),
        ("a: 1\nb: !hunter2 x\n", "2: YAML: Ansible does not know the tag here; put a string that starts with an exclamation mark in quotes"),
        ("- a: 1\n", "1: YAML: the file contains a list here, expected variables, each as name: value"),
        ("hunter2\n", "1: YAML: the file contains a string here, expected variables"),
        ("a: {b: 1, b: 2}\n", "1: b: is set twice, first in line 1; remove one"),
        ("", ""),
        ("---\n", ""),
        ("a: 1\r\nb: !vault |\r\n  $ANSIBLE_VAULT;1.1\r\n", ""),
        ("a: &x {b: 1}\nc: {<<: *x, d: 1}\n", ""),
        ("$ANSIBLE_VAULT;1.1;AES256\n6133\n", ""),
    ],
)
def test_a_file_of_variables(text: str, sentence: str, tmp_path: Path) -> None:
    """As group_vars, and as a file of extra variables."""
    lines = found(write(tmp_path, hosts=PAIR, group_vars__gb10=text))
    assert [each.startswith(f"group_vars/gb10.yml:{sentence}") for each in lines] == [True] * bool(sentence), lines
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    extra = [each.sentence() for each in faults([], [], [f"@{tmp_path}/mine.yaml"])]
    assert [f"mine.yaml:{sentence}" in each for each in extra] == [True] * bool(sentence)
    assert "hunter2" not in str(lines + extra)


def test_a_file_that_is_not_text_has_its_line(tmp_path: Path) -> None:
    write(tmp_path, hosts=PAIR, group_vars__gb10="")
    (tmp_path / "group_vars/gb10.yml").write_bytes(b"a: 1\nb: \xff\n")
    assert found(tmp_path) == ["group_vars/gb10.yml:2: YAML: the file is not UTF-8 text here; save it as UTF-8"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            PAIR.replace("        b:", "        ansible_host: 10.0.0.1"),
            "6: YAML: ansible_host has a value here, expected the name of a host; indent a variable",
        ),
        (PAIR.replace("      hosts", "      host"), "4: YAML: host is not a part of a group, expected hosts, children or vars"),
        (PAIR.replace("        a:\n        b:\n", "        - a\n"), "5: YAML: a list is here, expected a host on each line, with a colon"),
        ("gb10:\n  children:\n    - pair1\n", "3: YAML: a list is here, expected a group on each line, with a colon after its name"),
        ("gb10: 1\n", "1: YAML: gb10 has a value here, expected the name of a group"),
        (f"{PAIR}        a:\n", "7: a: is set twice, first in line 5; remove one"),
        ("plugin: x\nhosts: [a]\n", ""),
        ("- hosts: all\n", ""),  # a playbook in the folder
        (f"{PAIR}      vars:\n        x: [a]\n", ""),
    ],
)
def test_a_file_of_hosts_and_groups(text: str, sentence: str, tmp_path: Path) -> None:
    lines = found(write(tmp_path, hosts=text))
    assert [each.startswith(f"hosts.yml:{sentence}") for each in lines] == [True] * bool(sentence), lines


@pytest.mark.parametrize(("option", "fault"), [('{"a": "hunter2"', True), ("[hunter2]", True), ("a=b", False), ('{"a": 1}', False)])
def test_extra_variables_in_json(option: str, fault: bool) -> None:
    lines = [each.sentence() for each in faults([], [], [option])]
    assert ["is not a mapping in JSON or YAML" in each for each in lines] == [True] * fault
    assert "hunter2" not in str(lines)


@pytest.mark.parametrize(
    ("arguments", "option", "part"),
    [
        ({"start_at_task": "x"}, "--start-at-task", "it leaves out the check of the inventory"),
        ({"skip_tags": ["weights,always"]}, "--skip-tags", "always leaves out the check of the inventory; name the roles that are not to run"),
        ({"skip_tags": ["weights"], "start_at_task": None}, "", ""),
    ],
)
def test_options_that_leave_out_the_check(arguments: dict[str, Any], option: str, part: str) -> None:
    found = {name: text for name, text in skipped(arguments).items() if text}
    assert list(found) == [option] * bool(option)
    assert all(text.startswith(part) for text in found.values())


@pytest.mark.parametrize(
    ("given", "own", "expected"),
    [
        ({"--tags": ["sysctll"], "--skip-tags": ["wieghts"]}, False, {"--tags": "did you mean sysctl?", "--skip-tags": "did you mean weights?"}),
        ({"--tags": ["sysctl", "never", "tagged", "reboot"], "--skip-tags": ["all"]}, True, {}),
        ({"--tags": ["engine"]}, True, {"--tags": "engine is not a tag of these playbooks. Known are sysctl, weights"}),
        ({"--tags": ["engine"]}, False, {}),
    ],
)
def test_a_tag_of_no_role_is_named(given: dict[str, list[str]], own: bool, expected: dict[str, str]) -> None:
    found = dict(tag_faults(given, ["sysctl", "weights"], own))
    assert found.keys() == expected.keys()
    assert all(part in found[option] for option, part in expected.items())


def test_an_inventory_that_is_not_given_or_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_fault([]) == "no inventory was given. Run `ansible-playbook gb10.cluster.setup`, which writes inventories/mine, and add -i inventories/mine"
    default = str(tmp_path / "inventories/mine")  # as ansible.cfg has it
    monkeypatch.setattr("ansible.constants.DEFAULT_HOST_LIST", [default])
    assert source_fault([default]) == "inventories/mine does not exist. Run `ansible-playbook gb10.cluster.setup`, which writes it"
    assert source_fault([default], has_hosts=True) == "", "a playbook that needs no inventory"
    monkeypatch.setattr("ansible.constants.DEFAULT_HOST_LIST", [str(tmp_path / "mien")])  # ANSIBLE_INVENTORY, with a slip
    assert source_fault([str(tmp_path / "mien")], has_hosts=True) == "mien does not exist"
    (tmp_path / "inventories/mine").mkdir(parents=True)
    assert source_fault([]) == "no inventory was given. Add -i inventories/mine"
    assert source_fault(["mien"]) == "mien does not exist"
    assert source_fault(["mine"]) == "mine does not exist; did you mean inventories/mine?"
    assert source_fault(["inventories/mien"]) == "inventories/mien does not exist; did you mean inventories/mine?"
    assert source_fault(["inventories/mine"]) == source_fault([], has_hosts=True) == ""
