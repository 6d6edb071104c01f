"""Variables of Ansible that lead to a host: their form, and names that are nearly theirs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import connection


@pytest.mark.parametrize("value", ["10.77.0.12", "spark-1", "spark-ab12.local", "fe80::1%enp1s0", "2001:db8::5", "host_1.example.org.", "my-alias"])
def test_an_address_or_a_name_is_accepted(value: str) -> None:
    assert connection.faults("spark-1", {"ansible_host": value}) == []


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("10.77.0.256", "'10.77.0.256', which is not a valid IPv4 address"),
        ("10.77.0.12/24", "not a valid IPv4 address"),
        (12, "'12', which is not"),
        ("0.0.0.0", "which is not the address of one host"),
        ("255.255.255.255", "which is not the address of one host"),
        ("nvidia@10.77.0.12", "set the user in ansible_user"),
        ("10.77.0.12:22", "set the port in ansible_port"),
        ("[2001:db8::5]:22", "set the port in ansible_port"),
        ("spark 1", "expected an IP address or a name"),
        ("localhost", "'localhost', which only this computer reaches; give its address in your network"),
        ("127.0.0.1", "which only this computer reaches"),
        ("https://spark-1", "expected an IP address or a name"),
    ],
)
def test_what_leads_to_no_host_is_named_with_the_variable_to_use(value: Any, part: str) -> None:
    ((key, text),) = connection.faults("spark-1", {"ansible_host": value})
    assert key == "ansible_host"
    assert part in text


def test_the_end_of_a_tunnel_is_accepted() -> None:
    assert connection.faults("spark-1", {"ansible_host": "localhost", "ansible_port": 2201}) == []


@pytest.mark.parametrize(("value", "good"), [(22, True), ("2222", True), (None, True), (0, False), (70000, False), ("ssh", False), (True, False)])
def test_a_port_is_from_1_to_65535(value: Any, good: bool) -> None:
    found = connection.faults("spark-1", {"ansible_port": value})
    assert (found == []) is good
    assert good or "expected a port from 1 to 65535" in found[0][1]


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("ansible_user", "nvidia@10.0.0.11", "set the address in ansible_host"),
        ("ansible_ssh_user", "nvidia@spark-1", "set the address in ansible_host"),
        ("ansible_user", "nvidia\n", "a line end"),
        ("ansible_ssh_private_key_file", "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n", "expected the path of its file"),
        ("ansible_ssh_private_key_file", "~/.ssh/id_ed25519.pub", "which is a public key; write the private one, ~/.ssh/id_ed25519"),
        ("ansible_user", "nvidia", ""),
        ("ansible_user", "me@corp.example.org", ""),
        ("ansible_user", None, ""),
        ("ansible_ssh_private_key_file", "~/.ssh/my key", ""),
    ],
)
def test_a_login_name_and_the_path_of_a_key(key: str, value: Any, part: str) -> None:
    found = connection.faults("spark-1", {"ansible_host": "10.0.0.12", key: value})
    assert [(name, part in text) for name, text in found] == ([(key, True)] if part else [])
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ansible_hosts", "did you mean ansible_host?"),
        ("ansible_usr", "did you mean ansible_user?"),
        ("ansible_ssh_private_key", "did you mean"),
        ("ansible_host", ""),
        ("ansible_facts_parallel", ""),
        ("my_host", ""),
    ],
)
def test_a_name_that_is_nearly_one_of_ansible_is_named(name: str, hint: str) -> None:
    text = connection.name_fault(name)
    assert bool(text) is bool(hint)
    assert hint in text


@pytest.mark.parametrize("name", ["ansible_ssh_host_key_checking", "ansible_sftp_executable", "ansible_su_pass"])
def test_less_common_variables_of_ansible_are_accepted(name: str) -> None:
    assert connection.name_fault(name) == ""


def test_an_address_with_a_password_is_not_shown() -> None:
    assert "hunter2" not in connection.host_fault("admin:hunter2@10.0.0.11")
