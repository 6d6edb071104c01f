"""Serving groups, ranks and addresses that an inventory determines."""

from __future__ import annotations

import ipaddress
from typing import Any

import netaddr
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import groups
from hypothesis import given
from hypothesis import strategies as st
from unit.fixtures.inventory.hosts import PAIR, TWO, TWO_VALID, variables

THREE = {"gb10": ["a", "b", "c"], "pair1": ["a", "b"]}


@pytest.mark.parametrize(
    ("inventory", "named", "expected"),
    [
        pytest.param({"all": ["a"]}, None, {}, id="no gb10"),
        pytest.param({"gb10": []}, None, {}, id="no hosts"),
        pytest.param(PAIR, None, {"pair1": ["a", "b"]}, id="one pair"),
        pytest.param(TWO, [], {"pair1": ["a", "b"], "pair2": ["c", "d"]}, id="two pairs"),
        pytest.param({"gb10": ["a", "b"]}, None, {"gb10": ["a", "b"]}, id="no child group"),
        pytest.param({**PAIR, "others": ["a", "x"], "empty": []}, None, {"pair1": ["a", "b"]}, id="a group with other hosts"),
        pytest.param({**TWO, "sparks": ["a", "b", "c", "d"]}, None, {"pair1": ["a", "b"], "pair2": ["c", "d"]}, id="a group of all hosts"),
        pytest.param(TWO, ["pair2", "pair9"], {"pair2": ["c", "d"], "pair9": []}, id="named"),
    ],
)
def test_finds_the_serving_groups(inventory: dict[str, list[str]], named: list[str] | None, expected: dict[str, list[str]]) -> None:
    assert groups.serving_groups(inventory, named) == expected


def test_returns_the_group_of_a_worker_of_the_second_pair() -> None:
    assert groups.group_of("d", TWO, TWO_VALID) == {
        "name": "pair2",
        "rank": 1,
        "size": 2,
        "head": "c",
        "hosts": ["c", "d"],
        "members": [
            {"host": "c", "rank": 0, "address": "10.0.0.3", "fabric": ["192.168.202.11", "192.168.203.11"]},
            {"host": "d", "rank": 1, "address": "10.0.0.4", "fabric": ["192.168.202.12", "192.168.203.12"]},
        ],
        "fabric": ["192.168.202.12", "192.168.203.12"],
        "cidrs": ["192.168.202.0/24", "192.168.203.0/24"],
        "prefixes": [24, 24],
        "master_addr": "192.168.202.11",
    }


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        pytest.param({}, "abcd", id="inventory order"),
        pytest.param({"c": 0}, "cabd", id="head"),
        pytest.param({"a": "3"}, "bcda", id="text"),
        pytest.param({"a": 1, "b": 0, "c": None, "d": ""}, "bacd", id="empty"),
    ],
)
def test_orders_hosts_by_rank(ranks: dict[str, Any], expected: str) -> None:
    assert groups.ranked("abcd", {host: {"gb10_rank": rank} for host, rank in ranks.items()}) == (list(expected), [])


def test_uses_addresses_of_the_host_and_the_first_number_of_the_group() -> None:
    hosts = variables(a={"gb10_fabric_addresses": ["192.168.200.1", "192.168.201.1/24"], "ansible_host": ""}, b={"gb10_fabric_first": 101})
    group = groups.group_of("a", PAIR, hosts)
    assert [member["fabric"] for member in group["members"]] == [["192.168.200.1", "192.168.201.1"], ["192.168.200.102", "192.168.201.102"]]
    assert [member["address"] for member in group["members"]] == ["a", "10.0.0.2"]


@pytest.mark.parametrize(
    ("host", "inventory", "own", "parts"),
    [
        pytest.param("x", PAIR, {}, ["x is not in the inventory group gb10"], id="not in gb10"),
        pytest.param("c", THREE, {}, ["c is in 0 serving groups"], id="in none"),
        pytest.param("b", {**THREE, "pair2": ["b", "c"]}, {}, ["b is in 2 serving groups (pair1, pair2)"], id="in two"),
        pytest.param("a", PAIR, {"gb10_rank": True}, ["gb10_rank is True", "whole number"], id="rank of a wrong type"),
        pytest.param("a", PAIR, {"gb10_fabric_cidrs": "10.1.0.0/24"}, ["gb10_fabric_cidrs", "expected a list"], id="not a list"),
        pytest.param("a", PAIR, {"gb10_fabric_cidrs": ["fd00::/64"]}, ["'fd00::/64'", "IPv4 network"], id="IPv6"),
        pytest.param("a", PAIR, {"gb10_fabric_cidrs": ["192.186.200.0/24"]}, ["'192.186.200.0/24'", "public"], id="public"),
        pytest.param("a", PAIR, {"gb10_fabric_first": 0}, ["gb10_fabric_first is 0"], id="first 0"),
        pytest.param("a", PAIR, {"gb10_fabric_addresses": ["192.168.200.9"]}, ["1 addresses, expected 2"], id="too few addresses"),
        pytest.param("a", PAIR, {"gb10_fabric_addresses": ["192.168.200.255", "192.168.201.9"]}, ["192.168.200.255"], id="broadcast"),
        pytest.param("a", PAIR, {"gb10_fabric_addresses": "192.168.200.9"}, ["expected a list of addresses"], id="not a list of addresses"),
    ],
)
def test_fails_with_key_and_value(host: str, inventory: dict[str, list[str]], own: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(groups.ClusterError) as caught:
        groups.group_of(host, inventory, variables(a=own))
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@given(prefix=st.integers(16, 29), size=st.integers(2, 8), first=st.integers(1, 60))
def test_addresses_are_distinct_hosts_of_their_network_or_a_fault(prefix: int, size: int, first: int) -> None:
    network = ipaddress.IPv4Network(f"10.4.0.0/{prefix}")
    found = [groups.addresses_of("g", "h", rank, {"gb10_fabric_first": first}, [netaddr.IPNetwork(str(network))]) for rank in range(size)]
    fits = first + size - 1 <= network.num_addresses - 2
    assert all(not faults for _addresses, faults in found) == fits
    addresses = [ipaddress.IPv4Address(each) for some, _faults in found for each in some]
    assert len(set(addresses)) == len(addresses)
    assert all(network.network_address < address < network.broadcast_address for address in addresses)


def test_a_missing_netaddr_is_a_fault_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "IPNetwork", None)
    networks, faults = groups.networks_of("pair1", {"gb10_fabric_cidrs": ["192.168.200.0/24"]})
    assert networks == []
    assert ["pip install netaddr" in fault.text for fault in faults] == [True]
