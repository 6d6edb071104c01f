"""The inventory model: serving groups, ranks, fabric addresses, and every fault of them."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import cluster
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.cluster import ClusterError, Place
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PAIR = {"all": ["a", "b"], "ungrouped": [], "gb10": ["a", "b"], "pair1": ["a", "b"]}
TWO = {"all": ["a", "b", "c", "d"], "gb10": ["a", "b", "c", "d"], "pair1": ["a", "b"], "pair2": ["c", "d"]}


def variables(**hosts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Variables of a to d; what is given adds to a management address each."""
    return {name: {"ansible_host": f"10.0.0.{number}", **hosts.get(name, {})} for number, name in enumerate("abcd", 1)}


SECOND = {"gb10_fabric_cidrs": ["192.168.202.0/24", "192.168.203.0/24"]}
TWO_SOUND = variables(c=SECOND, d=SECOND)


@pytest.mark.parametrize(
    ("groups", "named", "expected"),
    [
        pytest.param({"all": ["a"]}, None, {}, id="no gb10"),
        pytest.param({"gb10": []}, None, {}, id="gb10 empty"),
        pytest.param(PAIR, None, {"pair1": ["a", "b"]}, id="one pair"),
        pytest.param(TWO, None, {"pair1": ["a", "b"], "pair2": ["c", "d"]}, id="two pairs"),
        pytest.param({"gb10": ["a", "b"]}, None, {"gb10": ["a", "b"]}, id="no child group"),
        pytest.param({**PAIR, "others": ["a", "x"]}, None, {"pair1": ["a", "b"]}, id="a group with strangers"),
        pytest.param({**TWO, "sparks": ["a", "b", "c", "d"]}, None, {"pair1": ["a", "b"], "pair2": ["c", "d"]}, id="a group of all of them"),
        pytest.param({**PAIR, "empty": []}, None, {"pair1": ["a", "b"]}, id="an empty group"),
        pytest.param(TWO, ["pair2"], {"pair2": ["c", "d"]}, id="named"),
        pytest.param(TWO, ["pair9"], {"pair9": []}, id="named and unknown"),
        pytest.param(TWO, [], {"pair1": ["a", "b"], "pair2": ["c", "d"]}, id="named none"),
    ],
)
def test_serving_groups(groups: dict[str, list[str]], named: list[str] | None, expected: dict[str, list[str]]) -> None:
    """Which groups serve."""
    assert cluster.serving_groups(groups, named) == expected


def test_everything_that_follows_for_a_worker_of_the_second_pair() -> None:
    """One answer holds all."""
    assert cluster.group_of("d", TWO, TWO_SOUND) == {
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
        pytest.param({}, ["a", "b", "c", "d"], id="inventory order"),
        pytest.param({"c": 0}, ["c", "a", "b", "d"], id="a head of choice"),
        pytest.param({"a": "3"}, ["b", "c", "d", "a"], id="as text"),
        pytest.param({"a": 1, "b": 0, "c": None, "d": ""}, ["b", "a", "c", "d"], id="unset"),
    ],
)
def test_ranks(ranks: dict[str, Any], expected: list[str]) -> None:
    """gb10_rank places a host and the others fill up."""
    assert cluster.ranked(list("abcd"), {host: {"gb10_rank": rank} for host, rank in ranks.items()}) == expected


def test_own_addresses_and_another_start() -> None:
    """Overrides of host and group."""
    hosts = variables(a={"gb10_fabric_addresses": ["192.168.200.1", "192.168.201.1/24"]}, b={"gb10_fabric_first": 101})
    group = cluster.group_of("a", PAIR, hosts)
    assert [member["fabric"] for member in group["members"]] == [["192.168.200.1", "192.168.201.1"], ["192.168.200.102", "192.168.201.102"]]
    assert group["master_addr"] == "192.168.200.1"


def test_a_host_without_ansible_host_is_reached_by_its_name() -> None:
    """As Ansible does."""
    assert cluster.group_of("a", PAIR, {"a": {}, "b": {}})["members"][1]["address"] == "b"


@pytest.mark.parametrize(
    ("host", "groups", "hosts", "sentence"),
    [
        pytest.param("x", PAIR, variables(), "x is not in the inventory group gb10: add it to a serving group below gb10, such as pair1", id="stranger"),
        pytest.param(
            "c",
            {"gb10": ["a", "b", "c"], "pair1": ["a", "b"]},
            variables(),
            "c is in gb10 but in no serving group: add it to one, such as pair1, or to gb10_serving_groups",
            id="in none",
        ),
        pytest.param(
            "b",
            {"gb10": ["a", "b", "c"], "pair1": ["a", "b"], "pair2": ["b", "c"]},
            variables(),
            "b is in 2 serving groups (pair1, pair2): keep it in one, or name the groups that serve in gb10_serving_groups",
            id="in two",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(a={"gb10_rank": 0}, b={"gb10_rank": 0}),
            "a and b both claim to be the head (gb10_rank: 0); leave it on one of them",
            id="two heads",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(a={"gb10_rank": 1}, b={"gb10_rank": 1}),
            "a and b both have gb10_rank: 1; each host of a serving group needs a rank of its own",
            id="one rank twice",
        ),
        pytest.param(
            "a", PAIR, variables(a={"gb10_rank": 2}), "gb10_rank of a is 2, but its serving group of 2 hosts has ranks 0 to 1", id="rank outside"
        ),
        pytest.param(
            "a", PAIR, variables(a={"gb10_rank": True}), "gb10_rank of a is True, expected a whole number from 0 (the head) on", id="rank of a wrong type"
        ),
        pytest.param(
            "a",
            PAIR,
            variables(a={"gb10_fabric_cidrs": "10.1.0.0/24"}),
            "gb10_fabric_cidrs is '10.1.0.0/24', expected a list of networks such as [192.168.200.0/24], one for each rail",
            id="no list",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(a={"gb10_fabric_cidrs": ["10.1.0.0"]}),
            "gb10_fabric_cidrs holds '10.1.0.0' without a prefix length, expected an IPv4 network such as 192.168.200.0/24",
            id="no prefix",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(a={"gb10_fabric_cidrs": ["fd00::/64"]}),
            "gb10_fabric_cidrs holds 'fd00::/64', expected an IPv4 network such as 192.168.200.0/24",
            id="IPv6",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(a={"gb10_fabric_cidrs": ["10.1.0.5/24"]}),
            "gb10_fabric_cidrs holds '10.1.0.5/24', which is an address in a network; the network is 10.1.0.0/24",
            id="an address",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(a={"gb10_fabric_first": 0}),
            "gb10_fabric_first is 0, expected a whole number from 1 on, such as 11",
            id="start at the network itself",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(b={"gb10_fabric_addresses": ["192.168.200.9"]}),
            "gb10_fabric_addresses holds 1 addresses, expected 2: one for each network in gb10_fabric_cidrs",
            id="too few addresses",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(b={"gb10_fabric_addresses": ["192.168.200.9", "192.168.200.9"]}),
            "gb10_fabric_addresses holds 192.168.200.9, which is no host address in 192.168.201.0/24, the rail's entry in gb10_fabric_cidrs",
            id="on the wrong rail",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(b={"gb10_fabric_addresses": ["192.168.200.255", "192.168.201.9"]}),
            "gb10_fabric_addresses holds 192.168.200.255, which is no host address in 192.168.200.0/24, the rail's entry in gb10_fabric_cidrs",
            id="broadcast",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(b={"gb10_fabric_addresses": ["spark", "x"]}),
            "gb10_fabric_addresses holds 'spark', expected an IPv4 address in 192.168.200.0/24",
            id="no address",
        ),
        pytest.param(
            "a",
            PAIR,
            variables(b={"gb10_fabric_addresses": "192.168.200.9"}),
            "gb10_fabric_addresses is '192.168.200.9', expected a list of addresses, one for each rail",
            id="no list of addresses",
        ),
    ],
)
def test_what_cannot_be_derived_has_a_sentence(host: str, groups: dict[str, list[str]], hosts: dict[str, dict[str, Any]], sentence: str) -> None:
    """The lookup's errors."""
    with pytest.raises(ClusterError) as caught:
        cluster.group_of(host, groups, hosts)
    assert str(caught.value) == sentence


@given(prefix=st.integers(16, 29), size=st.integers(2, 8), first=st.integers(1, 60))
def test_addresses_are_distinct_hosts_of_their_network_or_refused(prefix: int, size: int, first: int) -> None:
    """Never the network's or the broadcast address, never an address twice."""
    network = ipaddress.IPv4Network(f"10.4.0.0/{prefix}")
    hosts = {"gb10_fabric_cidrs": [str(network)], "gb10_fabric_first": first}
    fits = first + size - 1 <= network.num_addresses - 2
    if not fits:
        with pytest.raises(ClusterError, match=f"{network} has {network.num_addresses - 2} host addresses, too few for rank "):
            [cluster.fabric_addresses(hosts, rank) for rank in range(size)]
        return
    found = [cluster.fabric_addresses(hosts, rank)[0] for rank in range(size)]
    assert len(set(found)) == size
    assert all(network.network_address < ipaddress.IPv4Address(address) < network.broadcast_address for address in found)


@pytest.mark.parametrize(
    ("groups", "hosts"),
    [
        pytest.param(PAIR, variables(), id="one pair"),
        pytest.param(TWO, TWO_SOUND, id="two pairs"),
        pytest.param({"gb10": list("abc"), "trio": list("abc")}, variables(), id="three hosts"),
        pytest.param(PAIR, {"a": {"ansible_host": "127.0.0.1", "ansible_port": 2201}, "b": {"ansible_host": "127.0.0.1", "ansible_port": 2202}}, id="by port"),
        pytest.param(PAIR, {"a": {}, "b": {}}, id="names only"),
        pytest.param({**TWO, "odd": ["a", "c"]}, {name: {**each, "gb10_serving_groups": ["pair1", "pair2"]} for name, each in TWO_SOUND.items()}, id="named"),
    ],
)
def test_a_sound_inventory_has_no_faults(groups: dict[str, list[str]], hosts: dict[str, dict[str, Any]]) -> None:
    """No false alarm."""
    assert cluster.faults(groups, hosts) == []


CIDRS = "gb10_fabric_cidrs"


@pytest.mark.parametrize(
    ("groups", "hosts", "expected"),
    [
        pytest.param({"all": []}, {}, [(Place("group", "gb10", "gb10"), "there is no group gb10;")], id="no gb10"),
        pytest.param({"gb10": []}, {}, [(Place("group", "gb10", "gb10"), "the group gb10 has no hosts;")], id="no hosts"),
        pytest.param(
            {"gb10": ["a"], "pair1": ["a"]}, variables(), [(Place("group", "pair1", "pair1"), "the serving group pair1 has no worker, only a;")], id="one host"
        ),
        pytest.param(
            PAIR, variables(a={"gb10_rank": 5}), [(Place("host", "a", "gb10_rank"), "a has rank 5, but its serving group of 2 hosts has")], id="rank"
        ),
        pytest.param(
            PAIR,
            variables(b={"ansible_host": "10.0.0.1"}),
            [(Place("host", "b", "ansible_host"), "a and b both have the management address 10.0.0.1;")],
            id="twice",
        ),
        pytest.param(
            PAIR, {"a": {"ansible_host": "B"}, "b": {}}, [(Place("host", "b", "b"), "a and b both have the management address b;")], id="a name twice"
        ),
        pytest.param(
            PAIR,
            variables(a={"gb10_fabric_addresses": ["192.168.200.12", "192.168.201.1"]}),
            [(Place("host", "a", "gb10_fabric_addresses", (0,)), "a and b both have the fabric address 192.168.200.12;")],
            id="own address that another host derives",
        ),
        pytest.param(
            TWO,
            variables(),
            [(Place("group", "pair2", CIDRS, own=True), "pair2 and pair1 share the fabric network 192.168.200.0/24; give pair2")],
            id="shared fabric",
        ),
        pytest.param(
            TWO,
            variables(c={CIDRS: ["192.168.0.0/16"]}, d={CIDRS: ["192.168.0.0/16"]}),
            [(Place("group", "pair2", CIDRS, own=True), "pair2 and pair1 share the fabric network 192.168.0.0/16 and 192.168.200.0/24;")],
            id="a fabric inside another",
        ),
        pytest.param(
            PAIR, variables(b=SECOND), [(Place("host", "b", CIDRS), "differs between a and b of pair1; set it once, for the group pair1")], id="differs"
        ),
        pytest.param(
            PAIR,
            variables(a={CIDRS: ["10.0.0.0/8"]}, b={CIDRS: ["10.0.0.0/8"]}),
            [(Place("group", "pair1", CIDRS, (0,)), "the fabric network 10.0.0.0/8 contains 10.0.0.1, the management address of a;")],
            id="management inside",
        ),
        pytest.param(
            PAIR, variables(a={"gb10_serving_groups": ["pair1"]}), [(Place("host", "b", "gb10_serving_groups"), "differs between a and b;")], id="named for one"
        ),
        pytest.param(
            {**PAIR, "mixed": ["a", "x"]},
            {name: {**each, "gb10_serving_groups": ["pair1", "mixed"]} for name, each in variables().items()},
            [
                (Place("group", "mixed", "mixed"), "x is in the serving group mixed but not in gb10; put mixed below it"),
                (Place("group", "mixed", "a"), "is in 2 serving groups (pair1, mixed);"),
                (Place("group", "mixed", CIDRS, own=True), "mixed and pair1 share the fabric network"),
            ],
            id="a serving group with a stranger",
        ),
    ],
)
def test_every_fault_names_its_place(groups: dict[str, list[str]], hosts: dict[str, dict[str, Any]], expected: list[tuple[Place, str]]) -> None:
    """What to change, and how the sentence begins."""
    found = cluster.faults(groups, hosts)
    assert [fault.place for fault in found] == [place for place, _rest in expected]
    for fault, (_rest, start) in zip(found, expected):
        assert fault.text.startswith(start)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        pytest.param(
            {host: {CIDRS: ["10.1.0.0/24", "fast/24", "10.2.0.1/24", "10.3.0.0"]} for host in "ab"},
            [
                (Place("group", "pair1", CIDRS, (1,)), "holds 'fast/24', expected an IPv4 network such as 192.168.200.0/24"),
                (Place("group", "pair1", CIDRS, (2,)), "holds '10.2.0.1/24', which is an address in a network; the network is 10.2.0.0/24"),
                (Place("group", "pair1", CIDRS, (3,)), "holds '10.3.0.0' without a prefix length, expected an IPv4 network such as 192.168.200.0/24"),
            ],
            id="networks",
        ),
        pytest.param(
            variables(b={"gb10_fabric_addresses": ["192.168.200.x", "10.0.0.1"]}),
            [
                (Place("host", "b", "gb10_fabric_addresses", (0,)), "holds '192.168.200.x', expected an IPv4 address in 192.168.200.0/24"),
                (
                    Place("host", "b", "gb10_fabric_addresses", (1,)),
                    "holds 10.0.0.1, which is no host address in 192.168.201.0/24, the rail's entry in gb10_fabric_cidrs",
                ),
            ],
            id="addresses",
        ),
    ],
)
def test_every_bad_entry_of_a_list_is_told(hosts: dict[str, dict[str, Any]], expected: list[tuple[Place, str]]) -> None:
    """At its own line."""
    assert [(fault.place, fault.text) for fault in cluster.faults(PAIR, hosts)] == expected


@pytest.mark.parametrize(
    ("hosts", "place"),
    [
        pytest.param({host: {"gb10_fabric_first": 300} for host in "ab"}, Place("group", "pair1", "gb10_fabric_first"), id="for both"),
        pytest.param(variables(b={"gb10_fabric_first": 300}), Place("host", "b", "gb10_fabric_first"), id="for one"),
        pytest.param({host: {CIDRS: ["10.1.0.0/30"]} for host in "ab"}, Place("group", "pair1", CIDRS), id="a small network"),
        pytest.param({host: {CIDRS: ["10.1.0.0/30"], "gb10_fabric_first": 3} for host in "ab"}, Place("group", "pair1", CIDRS), id="both small"),
    ],
)
def test_what_makes_a_network_too_small_is_the_key_to_change(hosts: dict[str, dict[str, Any]], place: Place) -> None:
    """A network that holds the default is large enough."""
    (found,) = cluster.faults(PAIR, hosts)
    assert found.place == place
    assert ", too few for rank " in found.text


def test_a_start_that_is_no_number_is_told_at_its_key_in_a_small_network_too() -> None:
    """The network is not what the sentence speaks of."""
    found = cluster.faults(PAIR, {host: {CIDRS: ["10.1.0.0/30"], "gb10_fabric_first": 0} for host in "ab"})
    assert [fault.place for fault in found] == [Place("group", "pair1", "gb10_fabric_first")]


def test_every_host_that_differs_is_told() -> None:
    """Against those that agree."""
    groups = {"all": list("abcde"), "gb10": list("abcde")}
    own = {name: {CIDRS: [f"10.{number}.0.0/24"]} for number, name in enumerate("be", 1)}
    found = cluster.faults(groups, {**variables(), **{host: {} for host in "acd"}, **own})
    assert [(fault.place.name, fault.text, fault.among) for fault in found] == [
        (host, f"differs between a and {host} of gb10; set it once, for the group gb10", ("a", "c", "d")) for host in "be"
    ]


def test_all_faults_come_at_once() -> None:
    """Groups, ranks, addresses and fabric in one list."""
    hosts = variables(a={"gb10_rank": 0, "ansible_host": "192.0.2.1"}, b={"gb10_rank": 0}, d={"ansible_host": "10.0.0.3"})
    found = [fault.text for fault in cluster.faults({**TWO, "pair3": ["d"]}, hosts)]
    for part in ("in 2 serving groups", "example address", "management address 10.0.0.3", "claim to be the head", "pair3 has no worker", "share the fabric"):
        assert any(part in text for text in found), part


def test_only_addresses_of_the_examples_are_marked_as_such() -> None:
    """What may become a warning."""
    found = cluster.faults(PAIR, variables(a={"ansible_host": "198.51.100.3"}, b={"gb10_rank": 9}))
    assert [fault.example for fault in found] == [True, False]


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly; nothing else is meant
@given(
    st.dictionaries(
        st.sampled_from([*cluster.CLUSTER_SPEC, "ansible_host", "ansible_port"]),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda each: st.lists(each, max_size=3)),
    )
)
def test_nonsense_is_a_fault_and_never_a_traceback(nonsense: dict[str, Any]) -> None:
    """Wrong types of every kind reach this function, because the check of types only reports them."""
    for fault in cluster.faults(PAIR, variables(a=nonsense)):
        assert fault.text


def test_every_cluster_variable_is_documented_like_an_option() -> None:
    """The same keys as in argument_specs, so that one tool documents and checks both."""
    for name, spec in cluster.CLUSTER_SPEC.items():
        assert name.startswith("gb10_")
        assert spec["type"] in {"str", "int", "list", "dict", "path"}
        assert ("elements" in spec) == (spec["type"] == "list")
        assert spec["description"][0].endswith(".")
        assert "default" in spec
