"""The form of the address and the port by which a host is reached."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import ssh


@pytest.mark.parametrize("value", ["10.77.0.12", "spark-1", "spark-ab12.local", "fe80::1%enp1s0", "2001:db8::5", "host_1.example.org.", "my-alias"])
def test_an_address_or_a_name_is_accepted(value: str) -> None:
    assert ssh.host_fault(value) == ""


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
        ("https://spark-1", "expected an IP address or a name"),
    ],
)
def test_what_leads_to_no_host_is_named_with_the_variable_to_use(value: Any, part: str) -> None:
    assert part in ssh.host_fault(value)


@pytest.mark.parametrize(("value", "good"), [(22, True), ("2222", True), (None, True), (0, False), (70000, False), ("ssh", False), (True, False)])
def test_a_port_is_from_1_to_65535(value: Any, good: bool) -> None:
    found = ssh.port_fault(value)
    assert (found == "") is good
    assert good or "expected a port from 1 to 65535" in found


def test_an_address_with_a_password_is_not_shown() -> None:
    assert "hunter2" not in ssh.host_fault("admin:hunter2@10.0.0.11")
