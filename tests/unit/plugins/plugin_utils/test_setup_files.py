"""The two files of an inventory that setup.yml writes: their texts, and what is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_files
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_files import GROUP, HOSTS

PAIR: dict[str, dict[str, Any]] = {
    "spark-1": {"ansible_host": "192.168.1.11"},
    "1": {"ansible_host": "yes", "gb10_fabric_addresses": ["192.168.200.13", "192.168.201.13"]},
}
VALUES = {"ansible_user": "nvidia", "gb10_profile": "1e3", "gb10_model_store": "/srv/models", "gb10_fabric_cidrs": ["10.1.0.0/24", "10.2.0.0/24"]}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """An inventory that setup.yml wrote."""
    setup_files.write(tmp_path / "mine" / HOSTS, setup_files.hosts_text(PAIR))
    setup_files.write(tmp_path / "mine" / GROUP, setup_files.group_text(VALUES))
    return tmp_path / "mine"


def test_what_was_written_is_read_back(mine: Path) -> None:
    assert setup_files.read(mine) == (PAIR, VALUES)
    assert setup_files.read(mine.parent / "none") == ({}, {})
    text = (mine / GROUP).read_text(encoding="utf-8")
    assert "\n# The user to log in as over SSH.\nansible_user: nvidia\n" in text
    assert "roce_foreign_policy" not in text
    assert (mine / HOSTS).stat().st_mode & 0o777 == 0o644


def test_a_vault_is_not_opened(mine: Path) -> None:
    with (mine / GROUP).open("a", encoding="utf-8") as out:
        out.write("vllm_tp2_api_key: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n")
    assert setup_files.read(mine)[1] == {**VALUES, "vllm_tp2_api_key": None}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("hosts.ini", "[gb10]\n", "hosts.ini is there, and"),
        (HOSTS, "gb10:\n  hosts: {a: , b: }\n", "expected one group below gb10 with two hosts"),
        (HOSTS, "gb10: {children: {pair1: {hosts: {a: , b: , c: }}}}\n", "expected one group"),
        (HOSTS, "gb10: {children: {pair1: {hosts: {a: }}, pair2: {hosts: {b: }}}}\n", "expected one group"),
        (HOSTS, "- a\n", "expected one group"),
        (HOSTS, "a: [s3cret\n", "hosts.yml:2 is not valid YAML"),
    ],
)
def test_an_inventory_of_another_shape_is_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(AnsibleActionFail) as raised:
        setup_files.read(tmp_path)
    assert words in str(raised.value)
    assert "setup_inventory=FOLDER" in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_file_that_has_the_values_already_is_not_changed_and_what_another_sets_is_named(mine: Path) -> None:
    path = mine / GROUP
    path.write_text(path.read_text(encoding="utf-8") + "roce_mtu: 1500  # switch\n", encoding="utf-8")
    assert setup_files.change(path, setup_files.group_text(VALUES)) == (False, ["roce_mtu"])
    assert setup_files.change(path, setup_files.group_text({**VALUES, "gb10_profile": "p"})) == (True, ["gb10_profile", "roce_mtu"])
    assert setup_files.change(mine / HOSTS, setup_files.hosts_text({"spark-1": {"ansible_host": "10.0.0.9"}})) == (
        True, ["spark-1.ansible_host", "1.ansible_host", "1.gb10_fabric_addresses"],
    )  # fmt: skip
    assert setup_files.change(mine / "new.yml", "a: 1\n") == (True, [])


def test_what_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "group_vars").write_text("", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match=r"gb10\.yml cannot be written"):
        setup_files.write(tmp_path / GROUP, "")


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (["spark-ab12", "SPARK-cd34.local"], ["spark-ab12", "spark-cd34"]),
        (["spark", "spark"], ["spark-1", "spark-2"]),
        (["", "x"], ["spark-1", "spark-2"]),
        (["localhost", "x"], ["spark-1", "spark-2"]),
        (["a\nb", "x"], ["spark-1", "spark-2"]),
        (["gb10", "x"], ["spark-1", "spark-2"]),
    ],
)
def test_machines_keep_their_names_if_they_are_valid_and_differ(found: list[str], names: list[str]) -> None:
    assert setup_files.host_names(found) == names
