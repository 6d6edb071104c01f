"""Rails, GID indices, management path and variables on states of machines that field reports describe (DGX Spark, GX10, GB10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import rails
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import Thresholds, classify, parse_bandwidth
from shared_samples import needs_shared, samples
from unit.fixtures.roce.tree import (
    ALL_FOUR,
    HCA0,
    HCA1,
    PAIR,
    RAIL0,
    RAIL1,
    SOCKETS,
    SPARK,
    V1,
    V2,
    Tree,
    bare,
    gid,
    ids,
    indices,
    link,
    link_local,
    mapped,
    netdevs,
    run,
    set_down,
    spark,
    v4_gids,
)

WANTED = ["192.168.100.0/24", "192.168.101.0/24"]


def renamed(root: Path, names: dict[str, str]) -> Tree:
    """A Spark whose rails have other names everywhere."""
    tree = bare(root)
    for number, (netdev, hca, pci, port) in enumerate(SPARK):
        name = names.get(netdev, netdev)
        mine = PAIR.get(netdev, [])
        up = bool(mine)
        tree.netdev(name, mine, mtu=9000, up=up, speed=200000 if up else -1, phys=port, pci=pci, vendor="0x15b3", driver="mlx5_core")
        tree.hca(hca, name, active=up, gids=v4_gids(mine[0].split("/")[0] if mine else None, number))
    return tree


# --- names ---------------------------------------------------------------------------------------------------------------------

BARE = {row[0]: row[0][:-3] for row in SPARK}
RAILS = {RAIL0: "rail0", RAIL1: "rail1", "enp1s0f1np1": "spare0", "enP2p1s0f1np1": "spare1"}


@pytest.mark.parametrize("names", [BARE, RAILS], ids=["no npN", "udev"])
def test_other_names(tmp_path: Path, names: dict[str, str]) -> None:
    result = run(renamed(tmp_path, names).write())
    assert netdevs(result) == [names[RAIL0], names[RAIL1]]
    assert [(rail["hca"], rail["cage"], rail["gid_index"]) for rail in result["rails"]] == [(HCA0, 0, 3), (HCA1, 0, 3)]
    assert result["twins"] == {"0": [names[RAIL0], names[RAIL1]], "1": [names["enp1s0f1np1"], names["enP2p1s0f1np1"]]}
    assert result["env"]["NCCL_IB_HCA"] == f"{HCA0},{HCA1}"
    assert result["env"]["NCCL_SOCKET_IFNAME"] == names[RAIL0]
    assert result["problems"] == []


# --- cages, cables and twins -----------------------------------------------------------------------------------------------------


def test_link_local_ports_next_to_real_rails_are_not_for_nccl(tmp_path: Path) -> None:
    # a node of a switched fabric: two real addresses, and 169.254 by autoconfiguration on the other two ports
    addresses = {RAIL0: ["192.168.200.1/24"], "enp1s0f1np1": ["169.254.60.178/16"], RAIL1: ["169.254.227.230/16"], "enP2p1s0f1np1": ["192.168.201.1/24"]}
    result = run(spark(tmp_path, addresses, up=ALL_FOUR).write())
    assert result["env"] == {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f1", "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, RAIL0)}
    assert ids(result).count("link_local_only") == 2


@pytest.mark.parametrize("local", [(), ("enp1s0f1np1",), ("enp1s0f1np1", "enP2p1s0f1np1")], ids=["no address", "one link-local", "both link-local"])
def test_a_second_cable_that_nothing_uses_decides_nothing(tmp_path: Path, local: tuple[str, ...]) -> None:
    addresses = {name: [f"169.254.3.{number}/16"] for number, name in enumerate(local, 1)}
    tree = spark(tmp_path, PAIR | addresses, up=ALL_FOUR, gids={RAIL0: v4_gids("192.168.100.10", at=4), RAIL1: v4_gids("192.168.101.10", at=4)})
    for name in ("enp1s0f1np1", "enP2p1s0f1np1"):
        link(tree, name)["mtu"] = 1500
    result = run(tree.write())
    assert result["env"] == {"NCCL_IB_HCA": f"{HCA0},{HCA1}", "NCCL_IB_GID_INDEX": "5", **dict.fromkeys(SOCKETS, RAIL0)}
    assert ids(result) == ["link_local_only"] * len(local) + ["no_ipv4"] * (2 - len(local))
    wanted = run(tmp_path, cidrs=WANTED)
    assert (netdevs(wanted), wanted["problems"], wanted["env"]) == ([RAIL0, RAIL1], [], result["env"])
    desired = run(tmp_path, cidrs=[*WANTED, "192.168.102.0/24"])
    assert "NCCL_IB_GID_INDEX" not in desired["env"]
    assert {"no_ipv4", "gid_missing"} <= set(ids(desired))


@pytest.mark.parametrize("table", [v4_gids(None), v4_gids("192.168.101.10"), v4_gids("192.168.101.10", at=4)], ids=["cold", "same index", "another index"])
def test_a_twin_without_link_does_not_decide_the_index(tmp_path: Path, table: dict[int, tuple[str, str]]) -> None:
    result = run(spark(tmp_path, PAIR, up=(RAIL0,), gids={RAIL1: table}).write())
    assert result["env"] == {"NCCL_IB_HCA": HCA0, "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, RAIL0)}
    assert [rail["state"] for rail in result["rails"]] == ["ACTIVE", "DOWN"]
    assert set(ids(result)) - {"gid_missing"} == {"link_down", "ports_asymmetric"}


@pytest.mark.parametrize("bridge", [False, True])
def test_a_cage_that_leads_to_the_office_is_no_fabric(tmp_path: Path, bridge: bool) -> None:
    office = "br0" if bridge else "enp1s0f1np1"
    tree = spark(tmp_path, PAIR if bridge else PAIR | {office: ["10.9.0.60/24"]}, up=ALL_FOUR)
    tree.routes = []
    tree.default_route(office, "10.9.0.1")
    if bridge:
        tree.netdev("br0", ["10.9.0.60/24"], kind="bridge")
        link(tree, "enp1s0f1np1")["master"] = "br0"
    result = run(tree.write())
    assert (netdevs(result), result["env"]["NCCL_IB_HCA"], result["problems"]) == ([RAIL0, RAIL1], f"{HCA0},{HCA1}", [])
    assert result["management"]["protected"] == sorted({office, "enp1s0f1np1"})


def test_the_first_socket_interface_is_not_the_link_local_one(tmp_path: Path) -> None:
    addresses = {RAIL0: ["169.254.3.4/16"], RAIL1: ["10.100.0.13/24"]}
    result = run(spark(tmp_path, addresses).write())
    assert result["env"]["NCCL_IB_HCA"] == HCA1
    assert result["env"]["GLOO_SOCKET_IFNAME"] == RAIL1
    cold = run(spark(tmp_path / "cold", addresses, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)}).write())
    assert cold["env"]["GLOO_SOCKET_IFNAME"] == RAIL1


@pytest.mark.parametrize("desired", [{"addresses": ["192.168.100.10/24", "192.168.101.10/24"]}, {"cidrs": WANTED}])
def test_both_cages_have_the_same_addresses_and_one_has_the_cable(tmp_path: Path, desired: dict[str, Any]) -> None:
    either = PAIR | {"enp1s0f1np1": PAIR[RAIL0], "enP2p1s0f1np1": PAIR[RAIL1]}
    result = run(spark(tmp_path, either, up=("enp1s0f1np1", "enP2p1s0f1np1")).write(), **desired)
    assert (netdevs(result), result["problems"]) == (["enp1s0f1np1", "enP2p1s0f1np1"], [])
    assert result["env"] == {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, "enp1s0f1np1")}


@pytest.mark.parametrize("state", ["1: DOWN", "5: ACTIVE_DEFER"])
def test_a_port_that_is_not_active_carries_nothing(tmp_path: Path, state: str) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file(f"sys/class/infiniband/{HCA1}/ports/1/state", state + "\n")
    result = run(tree.write())
    assert result["rails"][1]["state"] == state.split(": ")[1]
    assert result["env"]["NCCL_IB_HCA"] == HCA0
    assert {"link_down", "ports_asymmetric"} <= set(ids(result))


# --- hot-plug --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "plugged", "words"),
    [
        ("0", False, "while no cable is plugged"),
        ("1", True, "although the hot-plug controller reports a cable"),
        ("state: unplugged", None, "hotplug_enabled=1"),
    ],
)
def test_a_card_that_is_powered_down(tmp_path: Path, text: str, plugged: bool | None, words: str) -> None:
    tree = bare(tmp_path)
    tree.file("sys/devices/platform/MTKP0001:00/pcie_hotplug/debug_state", text + "\n")
    tree.file("sys/devices/platform/MTKP0001:00/pcie_hotplug/hotplug_enabled", "1\n")
    result = run(tree.write())
    assert ids(result) == ["no_cable"]
    assert words in result["problems"][0]["message"]
    assert "pci/rescan" in result["problems"][0]["remedy"]
    assert [result["hotplug"][key] for key in ("present", "plugged", "enabled")] == [True, plugged, True]
    assert (result["rails"], result["env"], result["management"]["interface"]) == ([], {}, "enP7s7")
    wanted = run(tmp_path, cidrs=WANTED)
    assert (ids(wanted), wanted["rails"], wanted["env"]) == (["no_cable"], [], {})


# --- addresses -------------------------------------------------------------------------------------------------------------------


def test_one_subnet_by_a_wide_prefix(tmp_path: Path) -> None:
    result = run(spark(tmp_path, {RAIL0: ["10.0.1.1/16"], RAIL1: ["10.0.1.2/16"]}, management="192.168.0.7/24").write())
    assert ids(result) == ["one_subnet_for_both_rails"]
    assert indices(result) == [3, 3]
    four = {name: [f"10.0.1.{number}/24"] for number, name in enumerate(ALL_FOUR, 1)}
    found = run(spark(tmp_path / "four", four, up=ALL_FOUR, management="192.168.0.7/24").write())["problems"]
    assert len(found) == 1  # and not one for each of the six pairs
    assert "enP2p1s0f0np0 (10.0.1.3/24), enp1s0f1np1 (10.0.1.2/24) and enP2p1s0f1np1 (10.0.1.4/24) are in one subnet" in found[0]["message"]


def test_a_service_address_of_32_bits_is_no_rail_address(tmp_path: Path) -> None:
    addresses = {RAIL0: ["192.168.100.10/24", "10.9.9.9/32"], RAIL1: ["192.168.101.10/24"]}
    tables = {RAIL0: v4_gids("192.168.100.10") | v4_gids("10.9.9.9", at=4)}
    result = run(spark(tmp_path, addresses, gids=tables).write())
    assert indices(result) == [3, 3]
    assert result["problems"] == []


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "no network": ({"cidrs": [WANTED[0], "nonsense"]}, "fabric_cidrs[1] is 'nonsense', which is not an IPv4 network."),
    "no address": ({"addresses": ["300.1.1.1"]}, "fabric_addresses[0] is '300.1.1.1', which is not an IPv4 address."),
    "a network of IPv6": ({"cidrs": ["fd00::/64", WANTED[1]]}, "fabric_cidrs[0] is 'fd00::/64', which is not an IPv4 network."),
    "an address of IPv6": ({"addresses": ["fd00::1/64"]}, "fabric_addresses[0] is 'fd00::1/64', which is not an IPv4 address."),
    "an address outside of its network": (
        {"addresses": ["192.168.100.10", "192.168.101.10"], "cidrs": [WANTED[1], WANTED[0]]},
        "fabric_addresses[0] 192.168.100.10 is not in fabric_cidrs[0] 192.168.101.0/24.",
    ),
    "a prefix of 33": ({"addresses": ["192.168.100.10/33"]}, "which is not an IPv4 address."),
    "an interface twice": ({"interfaces": [RAIL0, RAIL0]}, f"interfaces[1] repeats {RAIL0}."),
}


@pytest.mark.parametrize(("desired", "sentence"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_an_impossible_desired_rail_is_reported(tmp_path: Path, desired: dict[str, Any], sentence: str) -> None:
    result = run(spark(tmp_path, PAIR).write(), **desired)
    assert any(sentence in found["message"] for found in result["problems"] if found["id"] == "bad_input")


# --- things on top of a rail -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bond", "bridge"])
def test_a_named_bond_or_bridge_over_both_twins(tmp_path: Path, kind: str) -> None:
    tree = spark(tmp_path, {}, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)})
    tree.netdev("fabric0", ["192.168.100.10/24"], mtu=9000, kind=kind)
    for name in (RAIL0, RAIL1):
        link(tree, name)["master"] = "fabric0"
    gid(tree, HCA1, 4, V1, mapped("192.168.100.10"), "fabric0")
    gid(tree, HCA1, 5, V2, mapped("192.168.100.10"), "fabric0")
    result = run(tree.write(), interfaces=["fabric0"])
    assert [(rail["netdev"], rail["hca"], rail["ipv4"], rail["gid_index"]) for rail in result["rails"]] == [("fabric0", HCA1, "192.168.100.10", 5)]
    assert result["env"] == {"NCCL_IB_HCA": HCA1, "NCCL_IB_GID_INDEX": "5", **dict.fromkeys(SOCKETS, "fabric0")}


def test_what_sits_on_an_addressed_port_is_no_rail(tmp_path: Path) -> None:
    # a container's macvlan shim and a storage VLAN, both with addresses and GIDs of their own
    tree = spark(tmp_path, PAIR)
    for number, (name, kind, address) in enumerate((("shim0", "macvlan", "192.168.100.250/32"), (f"{RAIL0}.100", "vlan", "10.100.0.5/24"))):
        tree.netdev(name, [address], kind=kind, link=RAIL0, mtu=9000)
        for index, version in ((4 + 2 * number, V1), (5 + 2 * number, V2)):
            gid(tree, HCA0, index, version, mapped(address.split("/")[0]), name)
    result = run(tree.write())
    assert (netdevs(result), indices(result), result["env"]["NCCL_IB_GID_INDEX"], result["problems"]) == ([RAIL0, RAIL1], [3, 3], "3", [])
    assert netdevs(run(tmp_path, addresses=["10.100.0.5/24", "192.168.101.10/24"])) == [f"{RAIL0}.100", RAIL1]


@pytest.mark.parametrize("addressed", [True, False])
def test_the_offices_vlan_on_a_rail_is_the_management(tmp_path: Path, addressed: bool) -> None:
    tree = spark(tmp_path, PAIR if addressed else {RAIL1: PAIR[RAIL1]})
    tree.netdev(f"{RAIL0}.10", ["10.9.0.60/24"], kind="vlan", link=RAIL0)
    tree.routes = []
    tree.default_route(f"{RAIL0}.10", "10.9.0.1")
    result = run(tree.write())
    assert (netdevs(result), indices(result), result["management"]["interface"]) == ([RAIL0, RAIL1], [3 if addressed else None, 3], f"{RAIL0}.10")
    assert set(ids(result)) == {"rail_is_management"} | (set() if addressed else {"no_ipv4", "gid_missing"})


# --- speed and MTU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "rate", "seen", "degraded"),
    [
        ("100000", "100 Gb/sec (1X NDR)", 100000, True),
        ("-1", "200 Gb/sec (2X NDR)", 200000, False),
        ("-1", "40 Gb/sec (4X QDR)", 40000, True),
        ("4294967295", "", None, False),
        ("garbage", "nonsense", None, False),
        ("-1", "2..5 Gb/sec", None, False),
        ("400000", "", 400000, False),
    ],
)
def test_speeds(tmp_path: Path, speed: str, rate: str, seen: int | None, degraded: bool) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file(f"sys/class/net/{RAIL0}/speed", speed)
    tree.file(f"sys/class/infiniband/{HCA0}/ports/1/rate", rate)
    result = run(tree.write())
    assert result["rails"][0]["speed_mbps"] == seen
    assert ("speed_degraded" in ids(result)) is degraded


@pytest.mark.parametrize(
    ("lanes", "shown"),
    [
        (("4", "4", "32.0 GT/s PCIe", "32.0 GT/s PCIe"), None),
        (("2", "4", "32.0 GT/s PCIe", "32.0 GT/s PCIe"), "2 of 4 lanes, 32.0 GT/s PCIe of 32.0 GT/s PCIe"),
        (("4", "4", "8.0 GT/s PCIe", "32.0 GT/s PCIe"), "4 of 4 lanes, 8.0 GT/s PCIe of 32.0 GT/s PCIe"),
        (("0", "255", "Unknown", "Unknown"), None),
        (("", "4", "Unknown speed", "32.0 GT/s PCIe"), None),
    ],
)
@pytest.mark.parametrize("bond", [False, True])
def test_pcie_lanes_behind_a_rail(tmp_path: Path, lanes: tuple[str, ...], shown: str | None, bond: bool) -> None:
    tree = spark(tmp_path, {} if bond else PAIR)
    if bond:
        tree.netdev("bond0", PAIR[RAIL0], mtu=9000, kind="bond")
        for name in (RAIL0, RAIL1):
            link(tree, name)["master"] = "bond0"
    for name, values in ((RAIL0, ("4", "4", "32.0 GT/s PCIe", "32.0 GT/s PCIe")), (RAIL1, lanes), ("enP2p1s0f1np1", lanes)):
        for item, value in zip(("current_link_width", "max_link_width", "current_link_speed", "max_link_speed"), values):
            tree.file(f"sys/class/net/{name}/device/{item}", value + "\n")
    tree.write()
    named: dict[str, Any] = {"interfaces": ["bond0"]} if bond else {}
    found = [item for item in run(tmp_path, **named)["problems"] if item["id"] == "pcie_degraded"]
    assert [item["interface"] for item in found] == ([] if shown is None else ["bond0" if bond else RAIL1])
    assert all(f"The PCIe link of {RAIL1} runs at {shown}," in item["message"] for item in found)
    assert "pcie_degraded" not in ids(run(tmp_path, min_speed_mbps=0, **named))


# --- soft-RoCE -------------------------------------------------------------------------------------------------------------------


def soft(root: Path, names: tuple[str, str], **netdev_options: Any) -> Tree:
    tree = Tree(root)
    tree.netdev("eth0", ["10.0.2.15/24"], **netdev_options)
    for number, hca in enumerate(names):
        netdev = f"enp1s0f{number}np{number}"
        tree.netdev(netdev, [f"10.77.{number}.1/24"], mtu=9000, **{"speed": 10000, **netdev_options})
        tree.hca(hca, netdev, gids={0: (V2, link_local(number)), 1: (V2, mapped(f"10.77.{number}.1"))}, rate="10 Gb/sec (4X SDR)")
        tree.file(f"sys/class/infiniband/{hca}/parent", netdev + "\n")
    tree.default_route("eth0", "10.0.2.2")
    return tree


@pytest.mark.parametrize("names", [(HCA0, "rocep1s0f1"), ("rxe0", "rxe1")])
@pytest.mark.parametrize("kind", [None, "veth"])
def test_soft_roce_index_1_and_no_word_about_speed(tmp_path: Path, names: tuple[str, str], kind: str | None) -> None:
    result = run(soft(tmp_path, names, kind=kind).write())
    assert [(rail["netdev"], rail["hca"], rail["gid_index"]) for rail in result["rails"]] == [("enp1s0f0np0", names[0], 1), ("enp1s0f1np1", names[1], 1)]
    assert result["env"] == {"NCCL_IB_HCA": ",".join(names), "NCCL_IB_GID_INDEX": "1", **dict.fromkeys(SOCKETS, "enp1s0f0np0")}
    assert result["problems"] == []


def test_soft_roce_on_the_management_nic_of_a_spark_is_no_rail(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    tree.hca("rxe0", "enP7s7", gids={0: (V2, link_local(7)), 1: (V2, mapped("10.0.1.60"))}, rate="2.5 Gb/sec (1X SDR)")
    tree.file("sys/class/infiniband/rxe0/parent", "enP7s7\n")
    result = run(tree.write())
    assert netdevs(result) == [RAIL0, RAIL1]
    assert result["env"]["NCCL_IB_GID_INDEX"] == "3"
    assert result["problems"] == []


# --- management ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["169.254.8.8/16", "10.77.0.9/24", "10.0.1.200/24", "2001:db8:9::9/64", "fe80::9%enP7s7/64"])
@pytest.mark.parametrize("source", [None, "10.0.1.60"])
def test_the_management_address_is_the_one_that_leads_to_the_gateway(tmp_path: Path, other: str, source: str | None) -> None:
    tree = spark(tmp_path, PAIR)
    local, _slash, prefix = other.partition("/")
    entry = {"family": "inet6" if ":" in local else "inet", "local": local, "prefixlen": int(prefix), "scope": "global"}
    link(tree, "enP7s7")["addr_info"].insert(0, entry | {"secondary": local.startswith("10.0.1")})
    if source is not None:
        tree.routes[0].update({"prefsrc": source, "gateway": "10.8.0.1"})
    elif local.startswith("169"):
        del tree.routes[0]["gateway"]
    assert run(tree.write())["management"]["address"] == "10.0.1.60"


def test_a_default_route_without_link_does_not_win(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    tree.routes = [
        {"dst": "default", "gateway": "10.0.1.1", "dev": "enP7s7", "metric": 100, "flags": ["dead", "linkdown"]},
        {"dst": "default", "gateway": "10.9.0.1", "dev": "wlP9s9", "metric": 600, "flags": []},
        {"type": "unreachable", "dst": "default", "dev": "lo", "metric": 1, "flags": []},
        {"dst": "default", "nexthops": [{"dev": "wlP9s9", "via": {"host": "fe80::1"}}, {"dev": "tailscale0", "gateway": "10.7.0.1"}], "metric": 700},
    ]
    management = run(tree.write())["management"]
    assert (management["interface"], management["gateway"]) == ("wlP9s9", "10.9.0.1")
    assert management["protected"] == ["enP7s7", "tailscale0", "wlP9s9"]


@pytest.mark.parametrize(("address", "named"), [("10.0.1.61/24", True), ("10.0.0.61/16", True), ("10.0.2.61/24", False), ("10.0.1.61/32", False)])
def test_a_rail_in_the_subnet_of_the_management(tmp_path: Path, address: str, named: bool) -> None:
    result = run(spark(tmp_path, {RAIL0: [address], RAIL1: PAIR[RAIL1]}).write())
    assert indices(result) == [3, 3]
    assert [(found["id"], found["interface"]) for found in result["problems"]] == ([("subnet_of_management", RAIL0)] if named else [])


def test_a_wide_network_of_the_management_around_the_rails_does_no_harm(tmp_path: Path) -> None:
    sync = {RAIL0: ["10.100.192.1/24"], RAIL1: ["10.100.193.1/24"]}
    assert run(spark(tmp_path, sync, management="10.7.1.60/8").write())["problems"] == []
    result = run(spark(tmp_path / "inside", sync, management="10.100.193.60/8").write())
    assert [(found["id"], found["interface"]) for found in result["problems"]] == [("subnet_of_management", RAIL1)]


@pytest.mark.parametrize(
    ("name", "kind", "address", "named"),
    [
        ("enx000000000001", None, "192.168.100.200/24", True),
        ("docker0", "bridge", "192.168.0.1/16", False),
        ("virbr0", "bridge", "192.168.101.1/24", True),
        ("kube-ipvs0", "dummy", "192.168.100.240/32", False),
    ],
)
def test_a_rail_in_the_subnet_of_an_interface_without_any_route(tmp_path: Path, name: str, kind: str | None, address: str, named: bool) -> None:
    tree = spark(tmp_path, PAIR)
    tree.netdev(name, [address], kind=kind, up=kind is None)
    result = run(tree.write())
    assert result["env"]["NCCL_IB_HCA"] == f"{HCA0},{HCA1}"
    assert ids(result) == (["subnet_of_another"] if named else [])
    assert all(f"{name} ({address})" in found["message"] for found in result["problems"])
    set_down(tree, name)
    assert run(tree.write())["problems"] == []


@pytest.mark.parametrize("linked", [True, False])
def test_another_port_of_the_card_in_a_rails_subnet_counts_when_it_has_a_link(tmp_path: Path, linked: bool) -> None:
    other = {"enp1s0f1np1": ["192.168.100.20/24"]}
    result = run(spark(tmp_path, PAIR | other, up=ALL_FOUR if linked else tuple(PAIR)).write(), interfaces=list(PAIR))
    assert ids(result) == (["subnet_of_another"] if linked else [])


@pytest.mark.parametrize("zone", ["enP7s7", RAIL0])
def test_a_link_local_session_is_on_the_interface_of_its_zone(tmp_path: Path, zone: str) -> None:
    tree = spark(tmp_path, {name: [*addresses, "fe80::1/64"] for name, addresses in PAIR.items()})
    management = run(tree.write(), ssh=f"fe80::9%{zone} 5000 fe80::1%{zone} 22")["management"]
    assert (management["interface"], management["reason"]) == (zone, "ssh session")


def test_files_of_others_are_named_while_the_card_is_powered_down(tmp_path: Path) -> None:
    tree = bare(tmp_path)
    tree.file("etc/netplan/01-all.yaml", "network:\n  version: 2\n  ethernets:\n    all:\n      match: {name: 'en*'}\n      dhcp4: true\n")
    assert ids(run(tree.write())) == ["no_cable"]
    (tmp_path / "etc/netplan/01-all.yaml").unlink()
    tree.file("etc/netplan/40-cx7.yaml", "network:\n  version: 2\n  ethernets:\n    enp1s0f1np1:\n      addresses: [192.168.100.10/24]\n")
    result = run(tree.write())
    assert ids(result) == ["no_cable", "foreign_netplan"]
    assert result["foreign"][0]["interfaces"] == ["enp1s0f1np1"]


# --- _fabric/rails.py: rows of ib_write_bw, classes with remedies.


@needs_shared
@pytest.mark.parametrize(("name", "rate"), [("ib_write_bw.healthy-92g.gb10.txt", 92.57), ("ib_write_bw.degraded-13g.txt", 13.23)])
def test_real_runs(name: str, rate: float) -> None:
    assert parse_bandwidth((samples() / name).read_text()) == rate


@needs_shared
def test_a_header_without_a_row_is_not_a_result_with_any_exit_code() -> None:
    text = (samples() / "ib_write_bw.healthy-92g.gb10.txt").read_text()
    cut = text[: text.index(" 65536 ")]
    assert parse_bandwidth(cut) is None
    assert "no result row" in rails.bandwidth_reason(cut, 0)


HEAD = " #bytes     #iterations    BW peak[{0}]    BW average[{0}]   MsgRate[Mpps]\n"
ROWS: dict[str, tuple[str, float | None]] = {
    "MB/sec": (HEAD.format("MB/sec") + " 65536 1000 12000.00 11921.00 0.19\n", 100.001),
    "MiB/sec": (HEAD.format("MiB/sec") + " 65536 1000 12000.00 11921.00 0.19\n", 100.001),
    "unknown unit": (HEAD.format("furlongs") + " 65536 1000 1.0 1.0 0.1\n", None),
    "the last row counts": (HEAD.format("Gb/sec") + " 2 5 1.00 1.00 0.1\n 65536 5 9.00 8.00 0.1\n", 8.0),
    "row before the header": (" 65536 5 9.00 8.00 0.1\n" + HEAD.format("Gb/sec"), None),
    "nothing finished": (HEAD.format("Gb/sec") + " 65536 0 0.00 0.00 0.0\n", None),
    "empty": ("", None),
}


@pytest.mark.parametrize("case", ROWS)
def test_rows(case: str) -> None:
    text, expected = ROWS[case]
    assert parse_bandwidth(text) == expected


CLASSES: dict[str, tuple[list[float | None], str]] = {
    "both rails of NVIDIA's figure": ([94.9, 94.9], "healthy"),
    "one rail alone": ([92.57], "healthy"),
    "four rails": ([90.0, 91.0, 92.0, 93.0], "healthy"),
    "hot-plug fault": ([13.3, 13.2], "hotplug_13g"),
    "hot-plug fault on one rail only": ([13.3], "hotplug_13g"),
    "hot-plug fault and a dead rail": ([13.3, None], "hotplug_13g"),
    "the second rail is dead": ([95.0, None], "one_rail"),
    "the second rail is slow": ([95.0, 13.0], "one_rail"),
    "both share one path": ([47.0, 46.0], "one_rail"),
    "no result at all": ([None, None], "tcp_only"),
    "nothing measured": ([], "tcp_only"),
    "suspect": ([60.0, 60.0], "unknown"),
    "very slow": ([0.2, 0.2], "unknown"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_classes(case: str) -> None:
    rates, expected = CLASSES[case]
    verdict = classify(rates, Thresholds())
    assert verdict.name == expected
    assert verdict.name in rails.CLASSES
    assert bool(verdict.remedy) is (expected != "healthy")
    for rate in rates:
        assert ("no result" if rate is None else f"{rate:g} Gb/s") in verdict.message


def test_thresholds_are_the_users() -> None:
    assert classify([0.23, 0.2], Thresholds(rail_gbps=0.05)).name == "healthy"
    assert classify([30.0, 30.0], Thresholds(hotplug_low_gbps=25, hotplug_high_gbps=35)).name == "hotplug_13g"


@pytest.mark.parametrize(
    ("text", "rc", "words"),
    [
        (HEAD.format("Gb/sec") + " 65536 0 0.00 0.00 0.0\n", 0, "finished no message"),
        ("", 7, "rc 7"),
        ("local address\n Failed to modify QP 1 to RTR\n Unable to Connect the HCA's through the link\n", 1, "Unable to Connect"),
    ],
)
def test_the_reason_is_in_the_tools_own_words(text: str, rc: int, words: str) -> None:
    assert words in rails.bandwidth_reason(text, rc)


# As a machine with an uneven cycle counter prints it, on standard error into the middle of a line or before the table.
UNEVEN = (
    HEAD.format("Gb/sec") + " 65536      50           0.000000            0.000000            0.000000Correlation coefficient r^2: 0.870992 < 0.9\n---\n",
    "Correlation coefficient r^2: 0.871755 < 0.9\n" + HEAD.format("Gb/sec") + " 65536 50 0.000000 0.000000 0.000000\n",
)


@pytest.mark.parametrize("text", UNEVEN)
def test_a_rate_that_could_not_be_measured_is_not_called_a_dead_rail(text: str) -> None:
    assert parse_bandwidth(text) is None
    assert rails.bandwidth_reason(text, 0) == rails.NO_CLOCK
    verdict = classify([None, None], Thresholds(), [rails.NO_CLOCK] * 2)
    assert verdict.name == "unknown"
    assert "messages arrive" in verdict.message
    assert "again" in verdict.remedy
    assert classify([None, None], Thresholds(), [rails.NO_CLOCK, "it did not end in time"]).name == "tcp_only"
