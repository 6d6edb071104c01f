"""Faults that end Ansible before a play: each is one sentence with file and line, and shows nothing of a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible import constants, context
from ansible_collections.gb10.cluster.plugins.inventory import readable
from ansible_collections.gb10.cluster.plugins.plugin_utils import inventory_early
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_source import scan
from unit.fixtures.host.tree import write

HOSTS = "gb10:\n  children:\n    pair1:\n      hosts:\n        a: {ansible_host: 10.0.0.1}\n        b: {ansible_host: 10.0.0.2}\n"
INI = "[pair1]\na ansible_host=10.0.0.1\nb ansible_host=10.0.0.2\n\n[gb10:children]\npair1\n\n[gb10:vars]\nroce_mtu=9000\n"


def sentences(tmp_path: Path, *options: str) -> list[str]:
    """The faults of a folder, without its path."""
    return [each.sentence().replace(f"{tmp_path}/", "") for each in inventory_early.faults([str(tmp_path)], [], options)]


@pytest.mark.parametrize(
    ("content", "line", "part"),
    [
        ("\ta: 1\n", 1, "a tab"),
        ("a: 1\n b: SECRET\n", 2, "put a value with a colon in quotes"),
        ("a: 1\n<<<<<<< HEAD\nb: SECRET\n=======\nb: 2\n>>>>>>> theirs\n", 2, "a merge conflict of git begins here"),
        ("a: 1\nb: 'SECRET\n", 2, "a quotation mark opens here"),
        ("a: 1\nb: [SECRET\nc: 1\n", 2, "a bracket opens here"),
        ("a: *SECRET\n", 1, "as an alias, which is not defined; put the value in quotes"),
        ("vars:\n  roce_mtu: 9000\n", 1, "vars is a part of a group, expected variables in this file; remove this line"),
        ("a: {{ SECRET }}\n", 1, "a template that begins a value needs quotes"),
        ("a:\n  <<: SECRET\n", 2, "merging"),
        ("a: 1\n---\nb: SECRET\n", 2, "remove the line ---"),
        ("a: 1\nb: 2026-13-45\n", 2, "not a valid date or number"),
        ("a: 1\n\u00a0roce_mtu: 9000\n", 2, "U+00A0, which looks like a space or like nothing; type the key again: roce_mtu"),
        ("b: 2\na:1\n", 2, "the colon after the name is missing, or the space after the colon"),
        ('a: "D:\\SECRET"\n', 1, "a backslash in double quotes; put the value in single quotes"),
        ("a: !vault $ANSIBLE_VAULT;1.1;AES256\n  SECRET\n", 1, "the encrypted text needs a | after !vault"),
        ("a: @SECRET\n", 1, "no value begins with this character; put the value in quotes"),
        ("a: !env SECRET\n", 1, "does not know the tag here; put"),
        ("a: !vualt |\n  x\n", 1, "the tag here; did you mean !vault?"),
        ("a: &x\n  - *x\n  - !secret b\n", 3, "the tag here"),
        ("a: 1\nb: [\n", 3, "not valid YAML"),
        ("---\n- SECRET\n", 2, "a list"),
        ("SECRET\n", 1, "a string"),
        ("- a: 1\nb: 2\n", 2, "the lines above it are a list, and this one has no dash"),
        ("a: {b: [\n", 2, "a bracket is not closed, or a value is missing"),
    ],
)
@pytest.mark.parametrize("name", ["group_vars__all", "host_vars__a"])
def test_a_broken_file_of_variables(name: str, content: str, line: int, part: str, tmp_path: Path) -> None:
    write(tmp_path, hosts=HOSTS, **{name: content})
    (found,) = sentences(tmp_path)
    assert found.startswith(f"{name.replace('__', '/')}.yml:{line}: YAML: ")
    assert part in found
    assert "SECRET" not in found


def test_a_file_of_another_encoding(tmp_path: Path) -> None:
    write(tmp_path, hosts=HOSTS, group_vars__gb10="")
    (tmp_path / "group_vars/gb10.yml").write_bytes(b"a: 1\nb: \xff\n")
    assert sentences(tmp_path) == ["group_vars/gb10.yml:2: YAML: the file is not UTF-8 text here; save it as UTF-8"]


@pytest.mark.parametrize(
    ("content", "place", "part"),
    [
        ("", "hosts.yml", "is empty"),
        ("- a\n- b\n", "hosts.yml:1", "contains a list here"),
        (HOSTS.replace("hosts:", "host:"), "hosts.yml:4", "did you mean hosts?"),
        (HOSTS.replace("children:", "childrens:"), "hosts.yml:2", "did you mean children?"),
        (HOSTS + "roce_mtu: 9000\n", "hosts.yml:7", "roce_mtu has a value here, expected a group"),
        ("gb10:\n  hosts: a, b\n", "hosts.yml:2", "hosts contains a string with several words here"),
        ("two words\n", "hosts.yml:1", "the file contains a string here"),
        ("gb10:\n  hosts:\n    - a\n    - b\n", "hosts.yml:3", "hosts contains a list here, expected a host"),
        ("gb10:\n  hosts:\n    a:\n    ansible_host: 10.0.0.1\n", "hosts.yml:4", "indent a variable below its host"),
        (HOSTS.replace(" a:", " 1:"), "hosts.yml:5", "1 is not a string here, expected the name of a host; put it in quotes"),
        (HOSTS.replace(" a:", " {{ name }}:"), "hosts.yml:5", "found unhashable key"),
        (HOSTS.replace(" a:", ' "a[1]":'), "hosts.yml:5", "a[1] is not a valid range of hosts"),
        (HOSTS.replace("hosts:", "children:"), "hosts.yml:5", "ansible_host is not a part of a group"),
        (HOSTS.replace("{ansible_host: 10.0.0.1}", "{vars: {ansible_host: 10.0.0.1}}"), "hosts.yml:5", "expected variables below the host a"),
    ],
)
def test_a_file_of_hosts_with_another_structure(content: str, place: str, part: str, tmp_path: Path) -> None:
    write(tmp_path, hosts=content)
    (found, *rest) = sentences(tmp_path)
    assert not [each for each in rest if each.startswith(f"{place}: ")]
    assert found.startswith(f"{place}: YAML: ")
    assert part in found


@pytest.mark.parametrize(
    ("content", "line", "part"),
    [
        (INI.replace("[gb10:children]", "[gb10:childern]"), 5, "did you mean children?"),
        (INI.replace("b ansible_host=", "b ansible_host:"), 3, "has no '='"),
        (INI.replace("b ansible_host=", "b: ansible_host="), 3, "the name b ends with a colon, as in YAML"),
        (INI.replace("b ansible_host=10", "b ansible_host = SECRET"), 3, "after the host b, '=' has spaces next to it"),
        (INI.replace("roce_mtu=9000", "roce_mtu 9000"), 9, "expected NAME=VALUE"),
        (INI.replace("\npair1\n", "\npair2\n"), 6, "there is no section [pair2]; did you mean pair1?"),
        (INI.replace("[gb10:vars]", "[gb11:vars]"), 9, "there is no section [gb11]"),
        (INI.replace("[pair1]", "[pair 1]"), 1, "without spaces"),
        (INI.replace("b ansible_host=", "b x='SECRET ansible_host="), 3, "a quotation mark that is not closed"),
        (HOSTS, 1, "rename the file, such as to hosts.yml"),
        ("[pair1]\na ansible_become_password=correct SECRET\n", 2, "put a value with spaces in quotes"),
    ],
)
def test_a_file_in_ini_format(content: str, line: int, part: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text(content, encoding="utf-8")
    found = sentences(tmp_path)[0]
    assert found.startswith(f"hosts.ini:{line}: INI: ")
    assert part in found
    assert "SECRET" not in found


ALL_OF_INI = INI + "; why\n# why\n[more:children]\ngb10 # all\n[gb10:vars] # why\nx = {'a': 1}\n"


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"hosts.ini": ALL_OF_INI}, id="INI"),
        pytest.param({"hosts": ALL_OF_INI}, id="INI without an ending"),
        pytest.param({"01-pairs": "[pair1]\na\nb\n", "02-root": "[gb10:children]\npair1\n"}, id="a group of an earlier INI file"),
        pytest.param({"hosts.toml": '[gb10.children]\n"pair1" = {}\n'}, id="TOML"),
        pytest.param({"hosts.yml": HOSTS, "play.yml": "- hosts: all\n  tasks: []\n"}, id="a playbook"),
        *(pytest.param({"hosts.yml": HOSTS, f"group_vars/gb10/{name}": "\udcff SECRET"}, id=name) for name in (".DS_Store", ".vault-pass", "notes.yml~")),
    ],
)
def test_accepts_what_ansible_reads_or_skips(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    assert sentences(tmp_path) == []


def test_accepts_what_is_not_an_inventory(tmp_path: Path) -> None:
    """YAML without an ending, a password, the settings of an inventory plugin, a text, and the file of -e next to the inventory."""
    (tmp_path / "hosts").write_text(HOSTS, encoding="utf-8")
    write(tmp_path, dynamic="plugin: community.docker.docker_containers\nverbose_output: false\n", mine="roce_mtu: 9000\n")
    (tmp_path / "vault-password").write_text("open sesame\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("# Ours\nspark 1 is the head: see\n", encoding="utf-8")
    assert sentences(tmp_path, f"@{tmp_path}/mine.yml") == []
    assert len(sentences(tmp_path)) == 1


def test_a_file_of_variables_that_is_given_as_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine", hosts=HOSTS, group_vars__gb10="roce_mtu: 9000\nimage_port: 1\n")
    monkeypatch.chdir(tmp_path)
    (found,) = inventory_early.faults([str(tmp_path / "mine/group_vars/gb10.yml")], [], [])
    assert found.sentence() == "mine/group_vars/gb10.yml: YAML: this file has variables and is not an inventory; write -i mine"


def test_a_folder_whose_name_is_nearly_that_of_the_variables(tmp_path: Path) -> None:
    write(tmp_path, hosts=HOSTS, groups_vars__gb10="roce_mtu: 9000\n")
    assert sentences(tmp_path) == ["groups_vars: folder: Ansible does not read this folder as variables; did you mean group_vars?"]


@pytest.mark.parametrize(
    ("option", "part"),
    [
        ("{tmp}/mine.yml", "write -e @"),
        ("@{tmp}/mien.yml", "was not found; did you mean {tmp}/mine.yml?"),
        ("@{tmp}/list.yml", "has no variables"),
        ("@{tmp}/broken.yml", "broken.yml:2: YAML: "),
        ("vllm_tp2_api_key='SECRET", "a quotation mark or a bracket of a template is not closed"),
        ('{{"vllm_tp2_api_key": "SECRET', "is not valid JSON or YAML"),
        ("[SECRET]", "is a list"),
    ],
)
def test_extra_variables(option: str, part: str, tmp_path: Path) -> None:
    write(tmp_path / "more", mine="roce_mtu: 9000\n", list="- SECRET\n", broken="a: 1\nb: 'SECRET\n")
    given = option.format(tmp=tmp_path / "more")
    (found,) = inventory_early.faults([], [], [given])
    assert part.format(tmp=tmp_path / "more") in found.sentence()
    assert "SECRET" not in found.sentence()


@pytest.mark.parametrize("option", ["a=1 b=2", '{"a": 1}', "@{tmp}/mine.yml", "@{tmp}/vaulted.yml"])
def test_accepts_extra_variables(option: str, tmp_path: Path) -> None:
    write(tmp_path, mine="roce_mtu: 9000\n", vaulted="$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    assert inventory_early.faults([], [], [option.replace("{tmp}", str(tmp_path))]) == []


def test_ends_the_command_once_and_with_the_exit_code_of_a_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, hosts="gb10: [a\n", group_vars__all="a: 'SECRET\n")
    given: dict[str, Any] = {"inventory": (str(tmp_path),), "args": (), "extra_vars": ()}
    monkeypatch.setattr(context, "CLIARGS", given)
    with pytest.raises(SystemExit) as ended:
        readable.InventoryModule().verify_file(str(tmp_path / "hosts.yml"))
    assert ended.value.code == 4
    printed = capsys.readouterr().err
    assert re.search(r"The inventory has 2 faults; no host was touched\.\n1\. .*/hosts\.yml:1: YAML: .*\n2\. .*/all\.yml:1: YAML: ", printed)
    assert "SECRET" not in printed


def test_leaves_a_valid_inventory_to_the_other_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, hosts=HOSTS)
    monkeypatch.setattr(context, "CLIARGS", {"inventory": (str(tmp_path),), "args": ("gb10.cluster.site",)})
    assert readable.InventoryModule().verify_file(str(tmp_path / "hosts.yml")) is False


def test_one_host_in_ini_has_one_fault(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text("[pair1]\na ansible_host = 10.0.0.1 x = 1\n", encoding="utf-8")
    assert len(sentences(tmp_path)) == 1


@pytest.mark.parametrize(
    ("limit", "part"),
    [("pair2", "pair2 is not a host or a group of this inventory; did you mean pair1?"), ("a,c", "c is not a host"), ("a:&pair3", "pair3 is not"),
     ("pair1", ""), ("a,!c", ""), ("pair*", ""), ("@list.txt", ""), ("all", ""), ("~pair9", "")],
)  # fmt: skip
def test_a_limit_to_an_unknown_name(limit: str, part: str, tmp_path: Path) -> None:
    write(tmp_path, hosts=HOSTS)
    found = [each.text for each in inventory_early.faults([str(tmp_path)], [], [], True, limit)]
    assert len(found) == bool(part)
    assert part in "".join(found)


@pytest.mark.parametrize("name", ["plugin: community.docker.docker_containers\n", "gb10:\n  hosts:\n    'a[1:2]':\n"])
def test_a_limit_is_not_judged_where_hosts_are_not_listed(name: str, tmp_path: Path) -> None:
    write(tmp_path, hosts=HOSTS, more=name)
    assert inventory_early.faults([str(tmp_path)], [], [], True, "pair2") == []


def test_an_inventory_that_does_not_exist_ends_a_playbook_of_the_collection(tmp_path: Path) -> None:
    write(tmp_path, hosts=HOSTS)
    (found,) = inventory_early.faults([str(tmp_path / "hots.yml"), "/etc/ansible/hosts"], [], [], True, "pair2")
    assert re.search(r"hots.yml does not exist; did you mean \S*/hosts.yml\?$", found.sentence())
    assert inventory_early.faults(["/nowhere/hosts"], [], []) == []


@pytest.mark.parametrize(("playbook", "ends"), [("gb10.cluster.site", True), ("other.yml", False)])
def test_a_start_at_a_task_leaves_out_the_check(playbook: str, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, hosts=HOSTS)
    monkeypatch.setattr(context, "CLIARGS", {"inventory": (str(tmp_path),), "args": (playbook,), "start_at_task": "x", "subset": None})
    if ends:
        with pytest.raises(SystemExit):
            readable.InventoryModule().verify_file(str(tmp_path / "hosts.yml"))
    else:
        assert readable.InventoryModule().verify_file(str(tmp_path / "hosts.yml")) is False


def test_the_place_of_an_extra_variable_is_that_of_the_last_definition(tmp_path: Path) -> None:
    write(tmp_path, mine="a: 1\nb: 2\nc: 3\nd: 4\n", second="a: 5\n")
    options = [f"@{tmp_path}/mine.yml", "b=1", '{"c": 1}', f"@{tmp_path}/second.yml", "@/nowhere", "{"]
    found = inventory_early.extra_places(options, scan([], [], inventory_early.extra_files(options)))
    assert {key: (entry.path.name, entry.line) for key, entry in found.items()} == {"a": ("second.yml", 1), "d": ("mine.yml", 4)}


def test_a_file_of_extra_variables_is_read_as_strictly_as_the_others(tmp_path: Path) -> None:
    write(tmp_path, twice="vllm_tp2_port: 8000\nvllm_tp2_port: 8001\n", month="a: 2026-13-01\n")
    options = [f"@{tmp_path}/twice.yml", f"@{tmp_path}/month.yml"]
    assert scan([], [], inventory_early.extra_files(options)).repeated == [(tmp_path / "twice.yml", 2, "vllm_tp2_port", 1)]
    (found,) = inventory_early.faults([], [], options)
    assert found.sentence().endswith("month.yml:1: YAML: the value is not a valid date or number; put it in quotes")


@pytest.mark.parametrize(
    ("given", "own", "key"),
    [
        ({"skip_tags": ["image,always"]}, True, "--skip-tags"),
        ({"skip_tags": ("tagged",)}, True, "--skip-tags"),
        ({"skip_tags": ["always"]}, False, ""),
        ({"skip_tags": ["image"]}, True, ""),
        ({}, True, "vault"),
        ({"vault_password_files": ("x",)}, True, ""),
    ],
)
def test_what_leaves_out_the_check_or_ends_it(given: dict[str, Any], own: bool, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, hosts=HOSTS, **({"group_vars__all": "$ANSIBLE_VAULT;1.1;AES256\n6162\n"} if key == "vault" or "vault_password_files" in given else {}))
    monkeypatch.setattr(context, "CLIARGS", given)
    assert [each.key for each in inventory_early.faults([str(tmp_path)], [], [], own)] == ([key] if key else [])


@pytest.mark.parametrize(("strategy", "faults"), [("free", 1), ("linear", 0), ("mitogen_linear", 0)])
def test_a_strategy_without_steps_is_a_fault(strategy: str, faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, hosts=HOSTS)
    monkeypatch.setattr(constants, "DEFAULT_STRATEGY", strategy)
    assert len(inventory_early.faults([str(tmp_path)], [], [], True)) == faults
