"""The first text of an inventory: comments, and values that YAML reads back."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._setup import inventory_text
from ansible_collections.gb10.cluster.plugins.module_utils._setup.inventory_text import Host


def test_hosts_have_their_addresses_and_comments() -> None:
    text = inventory_text.hosts_text([Host("spark-1", "192.168.1.11", True), Host("spark-2", "spark-2.local", addresses=["192.168.200.13", "192.168.201.13"])])
    assert "          ansible_host: 192.168.1.11\n          ansible_connection: local  # the runs start on this machine\n" in text
    assert "          ansible_python_interpreter: /usr/bin/python3  # that" in text
    assert "gb10_fabric_addresses: [192.168.200.13, 192.168.201.13]  # of its rails" in text
    assert "The first host is the head" in text


def test_the_group_has_what_is_set_each_with_its_comment() -> None:
    text = inventory_text.group_text({"ansible_user": "nvidia", "gb10_profile": "p", "gb10_fabric_cidrs": ["10.1.0.0/24", "10.2.0.0/24"]})
    assert "\n# The user to log in as over SSH.\nansible_user: nvidia\n" in text
    assert "\ngb10_fabric_cidrs: [10.1.0.0/24, 10.2.0.0/24]\n" in text
    assert "roce_foreign_policy" not in text


@pytest.mark.parametrize(
    ("value", "text"), [("spark-1", "spark-1"), ("10.0.0.1", "10.0.0.1"), ("yes", '"yes"'), ("1e3", '"1e3"'), ("12", '"12"'), ("a: b", '"a: b"')]
)
def test_a_value_that_yaml_would_read_as_another_type_is_quoted(value: str, text: str) -> None:
    assert inventory_text.scalar(value) == text


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
    assert inventory_text.host_names(found) == names


def test_a_numeric_name_of_a_host_is_a_string() -> None:
    text = inventory_text.hosts_text([inventory_text.Host("1", "10.0.0.1"), inventory_text.Host("on", "10.0.0.2")])
    assert list(yaml.safe_load(text)["gb10"]["children"]["pair1"]["hosts"]) == ["1", "on"]
