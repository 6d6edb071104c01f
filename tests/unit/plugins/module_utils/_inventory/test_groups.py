"""Serving groups, ranks and addresses that an inventory determines."""

from __future__ import annotations

import ipaddress
from typing import Any

import netaddr
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import groups
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.groups import group_faults
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import CLUSTER_SPEC, Place
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.fixtures.inventory.hosts import PAIR, SECOND, TWO, TWO_VALID, variables

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
        groups.group_of(host, inventory, variables(a=own, b=own))
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


# --- The faults of groups, ranks and addresses, each with its place.

CIDRS, FIRST, OWN, NAMED = "gb10_fabric_cidrs", "gb10_fabric_first", "gb10_fabric_addresses", "gb10_serving_groups"


def both(**values: Any) -> dict[str, dict[str, Any]]:
    """The same variables for a and b."""
    return {"a": values, "b": values}


@pytest.mark.parametrize(
    ("groups", "hosts"),
    [
        pytest.param(PAIR, variables(), id="one pair"),
        pytest.param(TWO, TWO_VALID, id="two pairs"),
        pytest.param({"gb10": list("abc"), "trio": list("abc")}, variables(), id="three hosts"),
        pytest.param(PAIR, {"a": {"ansible_host": "127.0.0.1", "ansible_port": 2201}, "b": {"ansible_host": "127.0.0.1", "ansible_port": 2202}}, id="ports"),
        pytest.param(PAIR, both(), id="names only"),
        pytest.param(PAIR, {host: {CIDRS: ["10.0.0.0/31"], OWN: [f"10.0.0.{rank}"]} for rank, host in enumerate("ab")}, id="point-to-point network"),
        pytest.param({**TWO, "odd": ["a", "c"]}, {name: {**each, NAMED: ["pair1", "pair2"]} for name, each in TWO_VALID.items()}, id="named"),
    ],
)
def test_a_valid_inventory_has_no_faults(groups: dict[str, list[str]], hosts: dict[str, dict[str, Any]]) -> None:
    assert group_faults(groups, hosts) == []


GROUP, HOST = "group", "host"
CASES: list[tuple[str, dict[str, list[str]], dict[str, dict[str, Any]], list[tuple[Place, str]]]] = [
    ("no gb10", {"all": []}, {}, [(Place(GROUP, "gb10", "gb10"), "no group gb10")]),
    ("GB10", {"all": [], "GB10": ["a"]}, {}, [(Place(GROUP, "gb10", "gb10"), "no group gb10; GB10 has nearly its name. ")]),
    ("no hosts", {"gb10": []}, {}, [(Place(GROUP, "gb10", "gb10"), "no hosts")]),
    ("one host", {"gb10": ["a"], "pair1": ["a"]}, variables(), [(Place(GROUP, "pair1", "pair1"), "only a")]),
    ("same address", PAIR, variables(b={"ansible_host": "10.0.0.1"}), [(Place(HOST, "b", "ansible_host"), "10.0.0.1")]),
    ("same name", PAIR, {"a": {"ansible_host": "B"}, "b": {}}, [(Place(HOST, "b", "b"), "address b")]),
    ("address that another host derives", PAIR, variables(a={OWN: ["192.168.200.12", "192.168.201.1"]}), [(Place(HOST, "a", OWN, (0,)), "192.168.200.12")]),
    ("shared network", TWO, variables(), [(Place(GROUP, "pair2", CIDRS), "192.168.200.0/24")]),
    ("network inside another", TWO, variables(c={CIDRS: ["192.168.0.0/16"]}, d={CIDRS: ["192.168.0.0/16"]}),
     [(Place(GROUP, "pair2", CIDRS), "192.168.0.0/16 and 192.168.200.0/24")]),
    ("addresses of one host for all", PAIR, both(**{OWN: ["192.168.200.11", "192.168.201.11"]}), [(Place(HOST, "b", OWN, (0,)), "a and b have the same")]),
    ("a rail is set twice", PAIR, both(**{CIDRS: ["10.1.0.0/16", "10.1.0.0/16"]}), [(Place(GROUP, "pair1", CIDRS, (1,)), "10.1.0.0/16 is set twice")]),
    ("rails overlap", PAIR, both(**{CIDRS: ["10.1.0.0/16", "10.1.2.0/24"]}), [(Place(GROUP, "pair1", CIDRS, (1,)), "overlap")]),
    ("networks differ", PAIR, variables(b=SECOND), [(Place(HOST, "b", CIDRS), "between a and b of pair1")]),
    ("management address inside", PAIR, variables(a={CIDRS: ["10.0.0.0/8"]}, b={CIDRS: ["10.0.0.0/8"]}), [(Place(GROUP, "pair1", CIDRS, (0,)), "10.0.0.1")]),
    ("named for one host", PAIR, variables(a={NAMED: ["pair1"]}), [(Place(HOST, "b", NAMED), "differs")]),
    ("a serving group with another host", {**PAIR, "mixed": ["a", "x"]}, {name: {**each, NAMED: ["pair1", "mixed"]} for name, each in variables().items()},
     [(Place(GROUP, "mixed", "mixed"), "x is in"), (Place(GROUP, "mixed", "a"), "(pair1, mixed)")]),
    ("each wrong network", PAIR, both(**{CIDRS: ["10.1.0.0/24", "fast/24", "10.2.0.1/24", "10.3.0.0"]}),
     [(Place(GROUP, "pair1", CIDRS, (1,)), "'fast/24'"), (Place(GROUP, "pair1", CIDRS, (2,)), "10.2.0.0/24"), (Place(GROUP, "pair1", CIDRS, (3,)), "prefix")]),
    ("each wrong address", PAIR, variables(b={OWN: ["192.168.200.x", "10.0.0.1"]}),
     [(Place(HOST, "b", OWN, (0,)), "192.168.200.x"), (Place(HOST, "b", OWN, (1,)), "10.0.0.1")]),
    ("first too high for both", PAIR, both(**{FIRST: 300}), [(Place(GROUP, "pair1", FIRST), "too few")]),
    ("small network", PAIR, both(**{CIDRS: ["10.1.0.0/30"]}), [(Place(GROUP, "pair1", CIDRS), "too few")]),
    ("network of one address", PAIR, both(**{CIDRS: ["10.0.0.1/32"], OWN: ["10.0.0.1"]}), [(Place(HOST, host, OWN, (0,)), "10.0.0.1/32") for host in "ab"]),
    ("small network, other first", PAIR, both(**{CIDRS: ["10.1.0.0/30"], FIRST: 3}), [(Place(GROUP, "pair1", CIDRS), "too few")]),
]  # fmt: skip


@pytest.mark.parametrize(("groups", "hosts", "expected"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_reports_place_and_value(groups: dict[str, list[str]], hosts: dict[str, dict[str, Any]], expected: list[tuple[Place, str]]) -> None:
    found = group_faults(groups, hosts)
    assert [fault.place for fault in found] == [place for place, _part in expected]
    assert all(part in fault.text for fault, (_place, part) in zip(found, expected, strict=True)), found


def test_reports_every_host_that_differs_from_most() -> None:
    groups = {"all": list("abcde"), "gb10": list("abcde")}
    own = {name: {CIDRS: [f"10.{number}.0.0/24"]} for number, name in enumerate("be", 1)}
    found = group_faults(groups, {**variables(), **{host: {} for host in "acd"}, **own})
    assert [fault.place.name for fault in found] == ["b", "e"]


def test_reports_all_faults_together() -> None:
    hosts = variables(a={"gb10_rank": 0, "ansible_host": "192.0.2.1"}, b={"gb10_rank": 0}, d={"ansible_host": "10.0.0.3"})
    found = group_faults({**TWO, "pair3": ["d"]}, hosts)
    places = {(fault.place.name, fault.place.key) for fault in found}
    assert places >= {("pair3", "d"), ("a", "ansible_host"), ("d", "ansible_host"), ("b", "gb10_rank"), ("pair3", "pair3"), ("pair2", CIDRS)}
    assert [fault.place.name for fault in found if fault.example] == ["a"]


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(
    st.dictionaries(
        st.sampled_from([*CLUSTER_SPEC, "ansible_host", "ansible_port"]),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda each: st.lists(each, max_size=3)),
    )
)
def test_values_of_any_type_never_raise(values: dict[str, Any]) -> None:
    for fault in group_faults(PAIR, variables(a=values)):
        assert fault.text


# --- Values that are valid alone and not together.


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, []),
        ({"roce_interfaces": ["a"]}, [("roce_interfaces", "has 1 interfaces, expected 2")]),
        ({"roce_interfaces": ["a"], "gb10_fabric_cidrs": ["10.1.0.0/24"]}, []),
        ({"roce_interfaces": "a", "gb10_fabric_cidrs": "b"}, []),  # a wrong type is another fault
    ],
)
def test_names_the_variable_to_change(values: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert [(name, text.partition(":")[0]) for name, text in groups.combination_faults(values)] == found
