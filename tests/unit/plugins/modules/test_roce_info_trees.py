"""roce_info on trees that nobody has captured yet: states of other people's machines, and damage. Each through the module's own entry point.

What each machine looks like is taken from field reports (issues and pages on DGX Sparks, GX10s, Dell GB10s); none of it is a capture.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import read_tree
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.facts import Wishes, gather
from ansible_collections.gb10.cluster.plugins.modules import roce_info
from unit.fixtures.roce.tree import SPARK, V1, V2, Tree, link_local, mapped, spark, v4_gids

RAIL0, RAIL1 = "enp1s0f0np0", "enP2p1s0f0np0"
HCA0, HCA1 = "rocep1s0f0", "roceP2p1s0f0"
PAIR = {RAIL0: ["192.168.100.10/24"], RAIL1: ["192.168.101.10/24"]}
WANTED = ["192.168.100.0/24", "192.168.101.0/24"]
ALL_FOUR = tuple(row[0] for row in SPARK)
SOCKETS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the module on a root."""

    def run(root: Path, **args: Any) -> dict[str, Any]:
        with patch_module_args({"root": str(root), **args}), pytest.raises(SystemExit):
            roce_info.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert result.get("failed") is not True, result
        for found in result["problems"]:
            assert found["id"], found
            assert found["message"], found
            assert found["remedy"], found
        assert all(isinstance(value, str) and value for value in result["env"].values())
        return result

    return run


def ids(result: dict[str, Any]) -> list[str]:
    return [found["id"] for found in result["problems"]]


def netdevs(result: dict[str, Any]) -> list[str]:
    return [rail["netdev"] for rail in result["rails"]]


def indices(result: dict[str, Any]) -> list[int | None]:
    return [rail["gid_index"] for rail in result["rails"]]


def link(tree: Tree, name: str) -> dict[str, Any]:
    """Return the ip addr record of a device."""
    return next(item for item in tree.addr if item["ifname"] == name)


def gid(tree: Tree, hca: str, index: int, kind: str, value: str, ndev: str | None) -> None:
    """Put one entry into a GID table."""
    at = tree.root / f"sys/class/infiniband/{hca}/ports/1"
    for name in ("types", "ndevs"):
        where = at / f"gid_attrs/{name}/{index}"
        if where.is_dir():
            where.rmdir()
    tree.file(f"sys/class/infiniband/{hca}/ports/1/gids/{index}", value + "\n")
    tree.file(f"sys/class/infiniband/{hca}/ports/1/gid_attrs/types/{index}", kind + "\n")
    if ndev is not None:
        tree.file(f"sys/class/infiniband/{hca}/ports/1/gid_attrs/ndevs/{index}", ndev + "\n")


def renamed(root: Path, names: dict[str, str], *, phys: bool = True, altnames: bool = False) -> Tree:
    """A Spark whose rails have other names everywhere."""
    tree = Tree(root)
    tree.netdev("enP7s7", ["10.0.1.60/24"], pci="0007:01:00.0", vendor="0x10ec", driver="r8127", speed=10000)
    for number, (netdev, hca, pci, port) in enumerate(SPARK):
        name = names.get(netdev, netdev)
        mine = PAIR.get(netdev, [])
        up = bool(mine)
        tree.netdev(name, mine, mtu=9000, up=up, speed=200000 if up else -1, phys=port if phys else None, pci=pci, vendor="0x15b3", driver="mlx5_core")
        if altnames:
            tree.addr[-1]["altnames"] = [netdev]
        tree.hca(hca, name, active=up, gids=v4_gids(mine[0].split("/")[0] if mine else None, number))
    tree.default_route("enP7s7", "10.0.1.1")
    return tree


# --- names ---------------------------------------------------------------------------------------------------------------------

BARE = {row[0]: row[0][:-3] for row in SPARK}
RAILS = {RAIL0: "rail0", RAIL1: "rail1", "enp1s0f1np1": "spare0", "enP2p1s0f1np1": "spare1"}


@pytest.mark.parametrize("phys", [True, False])
@pytest.mark.parametrize("names", [BARE, RAILS], ids=["no npN", "udev"])
def test_other_names(tmp_path: Path, ask: Any, names: dict[str, str], phys: bool) -> None:
    result = ask(renamed(tmp_path, names, phys=phys).write())
    assert netdevs(result) == [names[RAIL0], names[RAIL1]]
    assert [(rail["hca"], rail["cage"], rail["gid_index"]) for rail in result["rails"]] == [(HCA0, 0, 3), (HCA1, 0, 3)]
    assert result["twins"] == {"0": [names[RAIL0], names[RAIL1]], "1": [names["enp1s0f1np1"], names["enP2p1s0f1np1"]]}
    assert result["env"]["NCCL_IB_HCA"] == f"{HCA0},{HCA1}"
    assert result["env"]["NCCL_SOCKET_IFNAME"] == names[RAIL0]
    assert result["problems"] == []


def test_names_without_np_and_nothing_but_commands(tmp_path: Path, ask: Any) -> None:
    tree = renamed(tmp_path, BARE)
    root = tree.write()
    shutil.rmtree(root / "sys")
    result = ask(root)
    assert netdevs(result) == ["enp1s0f0", "enP2p1s0f0"]
    assert [(rail["cage"], rail["ipv4"], rail["gid_index"]) for rail in result["rails"]] == [(0, "192.168.100.10", None), (0, "192.168.101.10", None)]


def test_alternative_names_are_names(tmp_path: Path, ask: Any) -> None:
    tree = renamed(tmp_path, RAILS, phys=False, altnames=True)
    for row in tree.rdma:
        row["netdev"] = {new: old for old, new in RAILS.items()}.get(row["netdev"], row["netdev"])  # recorded before the renaming
    root = tree.write()
    assert netdevs(ask(root)) == ["rail0", "rail1"]
    assert netdevs(ask(root, interfaces=[RAIL1, RAIL0])) == ["rail1", "rail0"]


def test_gids_that_were_recorded_before_the_renaming(tmp_path: Path, ask: Any) -> None:
    tree = renamed(tmp_path, RAILS, altnames=True)
    for hca, old in ((HCA0, RAIL0), (HCA1, RAIL1)):
        for index in range(4):
            tree.file(f"sys/class/infiniband/{hca}/ports/1/gid_attrs/ndevs/{index}", old + "\n")
    assert indices(ask(tree.write())) == [3, 3]


def test_an_old_rdma_link_does_not_hide_what_sysfs_says(tmp_path: Path, ask: Any) -> None:
    tree = renamed(tmp_path, RAILS)
    for row in tree.rdma:
        row["netdev"] = {new: old for old, new in RAILS.items()}[row["netdev"]]
    result = ask(tree.write())
    assert [(rail["netdev"], rail["hca"], rail["gid_index"]) for rail in result["rails"]] == [("rail0", HCA0, 3), ("rail1", HCA1, 3)]


# --- cages, cables and twins -----------------------------------------------------------------------------------------------------


def test_both_cages_with_four_addresses(tmp_path: Path, ask: Any) -> None:
    more = PAIR | {"enp1s0f1np1": ["192.168.102.10/24"], "enP2p1s0f1np1": ["192.168.103.10/24"]}
    result = ask(spark(tmp_path, more, up=ALL_FOUR).write())
    assert [(rail["netdev"], rail["cage"], rail["gid_index"]) for rail in result["rails"]] == [
        (RAIL0, 0, 3),
        (RAIL1, 0, 3),
        ("enp1s0f1np1", 1, 3),
        ("enP2p1s0f1np1", 1, 3),
    ]
    assert result["env"]["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1"
    assert result["problems"] == []


def test_link_local_ports_beside_real_rails_are_not_for_nccl(tmp_path: Path, ask: Any) -> None:
    # a node of a switched fabric: two real addresses, and 169.254 by autoconfiguration on the other two ports
    addresses = {
        RAIL0: ["192.168.200.1/24"],
        "enp1s0f1np1": ["169.254.60.178/16"],
        RAIL1: ["169.254.227.230/16"],
        "enP2p1s0f1np1": ["192.168.201.1/24"],
    }
    result = ask(spark(tmp_path, addresses, up=ALL_FOUR).write())
    assert result["env"] == {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f1", "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, RAIL0)}
    assert ids(result).count("link_local_only") == 2


@pytest.mark.parametrize("local", [(), ("enp1s0f1np1",), ("enp1s0f1np1", "enP2p1s0f1np1")], ids=["no address", "one link-local", "both link-local"])
def test_a_second_cable_that_nothing_uses_decides_nothing(tmp_path: Path, ask: Any, local: tuple[str, ...]) -> None:
    addresses = {name: [f"169.254.3.{number}/16"] for number, name in enumerate(local, 1)}
    tree = spark(tmp_path, PAIR | addresses, up=ALL_FOUR, gids={RAIL0: v4_gids("192.168.100.10", at=4), RAIL1: v4_gids("192.168.101.10", at=4)})
    for name in ("enp1s0f1np1", "enP2p1s0f1np1"):
        link(tree, name)["mtu"] = 1500
    result = ask(tree.write())
    assert result["env"] == {"NCCL_IB_HCA": f"{HCA0},{HCA1}", "NCCL_IB_GID_INDEX": "5", **dict.fromkeys(SOCKETS, RAIL0)}
    assert ids(result) == ["link_local_only"] * len(local) + ["no_ipv4"] * (2 - len(local))
    wished = ask(tmp_path, fabric_cidrs=[*WANTED, "192.168.102.0/24"])
    assert "NCCL_IB_GID_INDEX" not in wished["env"]
    assert {"no_ipv4", "gid_missing"} <= set(ids(wished))


@pytest.mark.parametrize("table", [v4_gids(None), v4_gids("192.168.101.10"), v4_gids("192.168.101.10", at=4)], ids=["cold", "same index", "another index"])
def test_a_twin_without_link_does_not_decide_the_index(tmp_path: Path, ask: Any, table: dict[int, tuple[str, str]]) -> None:
    result = ask(spark(tmp_path, PAIR, up=(RAIL0,), gids={RAIL1: table}).write())
    assert result["env"] == {"NCCL_IB_HCA": HCA0, "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, RAIL0)}
    assert [rail["state"] for rail in result["rails"]] == ["ACTIVE", "DOWN"]
    assert set(ids(result)) - {"gid_missing"} == {"link_down", "ports_asymmetric"}


@pytest.mark.parametrize("bridge", [False, True])
def test_a_cage_that_leads_to_the_office_is_no_fabric(tmp_path: Path, ask: Any, bridge: bool) -> None:
    office = "br0" if bridge else "enp1s0f1np1"
    tree = spark(tmp_path, PAIR if bridge else PAIR | {office: ["10.9.0.60/24"]}, up=ALL_FOUR)
    tree.routes = []
    tree.default_route(office, "10.9.0.1")
    if bridge:
        tree.netdev("br0", ["10.9.0.60/24"], kind="bridge")
        link(tree, "enp1s0f1np1")["master"] = "br0"
    result = ask(tree.write())
    assert (netdevs(result), result["env"]["NCCL_IB_HCA"], result["problems"]) == ([RAIL0, RAIL1], f"{HCA0},{HCA1}", [])
    assert result["management"]["protected"] == sorted({office, "enp1s0f1np1"})


def test_both_ports_of_the_offices_cage_may_carry_a_default_route(tmp_path: Path, ask: Any) -> None:
    office = {"enp1s0f1np1": ["10.9.0.60/24"], "enP2p1s0f1np1": ["10.9.0.61/24"]}
    tree = spark(tmp_path, PAIR | office, up=ALL_FOUR)
    tree.routes = []
    for number, name in enumerate(office):
        tree.default_route(name, "10.9.0.1", metric=100 + number)
    result = ask(tree.write())
    assert (netdevs(result), result["env"]["NCCL_IB_HCA"], result["problems"]) == ([RAIL0, RAIL1], f"{HCA0},{HCA1}", [])
    assert result["management"]["protected"] == sorted(office)


def test_the_first_socket_interface_is_not_the_link_local_one(tmp_path: Path, ask: Any) -> None:
    addresses = {RAIL0: ["169.254.3.4/16"], RAIL1: ["10.100.0.13/24"]}
    result = ask(spark(tmp_path, addresses).write())
    assert result["env"]["NCCL_IB_HCA"] == HCA1
    assert result["env"]["GLOO_SOCKET_IFNAME"] == RAIL1
    cold = ask(spark(tmp_path / "cold", addresses, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)}).write())
    assert cold["env"]["GLOO_SOCKET_IFNAME"] == RAIL1


@pytest.mark.parametrize("wishes", [{"fabric_addresses": ["192.168.100.10/24", "192.168.101.10/24"]}, {"fabric_cidrs": WANTED}])
def test_both_cages_have_the_same_addresses_and_one_has_the_cable(tmp_path: Path, ask: Any, wishes: dict[str, Any]) -> None:
    either = PAIR | {"enp1s0f1np1": PAIR[RAIL0], "enP2p1s0f1np1": PAIR[RAIL1]}
    result = ask(spark(tmp_path, either, up=("enp1s0f1np1", "enP2p1s0f1np1")).write(), **wishes)
    assert (netdevs(result), result["problems"]) == (["enp1s0f1np1", "enP2p1s0f1np1"], [])
    assert result["env"] == {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, "enp1s0f1np1")}


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER", "1", "0: NOP"])
def test_a_port_that_is_not_active_carries_nothing(tmp_path: Path, ask: Any, state: str) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file(f"sys/class/infiniband/{HCA1}/ports/1/state", state + "\n")
    result = ask(tree.write())
    assert result["rails"][1]["state"] == (state.split(": ")[1] if ":" in state else "DOWN")
    assert result["env"]["NCCL_IB_HCA"] == HCA0
    assert {"link_down", "ports_asymmetric"} <= set(ids(result))


def test_numbers_alone_of_port_and_physical_state(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file(f"sys/class/infiniband/{HCA0}/ports/1/state", "4")
    tree.file(f"sys/class/infiniband/{HCA0}/ports/1/phys_state", "5")
    port = ask(tree.write(rdma=False))["ports"][0]
    assert (port["state"], port["phys_state"]) == ("ACTIVE", "LINKUP")


# --- hot-plug --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "plugged", "words"),
    [
        ("0", False, "while no cable is plugged"),
        ("1", True, "although the hot-plug controller reports a cable"),
        ("state: unplugged", None, "hotplug_enabled=1"),
    ],
)
def test_a_card_that_is_powered_down(tmp_path: Path, ask: Any, text: str, plugged: bool | None, words: str) -> None:
    tree = Tree(tmp_path)
    tree.netdev("enP7s7", ["10.0.1.60/24"], vendor="0x10ec")
    tree.default_route("enP7s7", "10.0.1.1")
    tree.file("sys/devices/platform/MTKP0001:00/pcie_hotplug/debug_state", text + "\n")
    tree.file("sys/devices/platform/MTKP0001:00/pcie_hotplug/hotplug_enabled", "1\n")
    result = ask(tree.write())
    assert ids(result) == ["no_cable"]
    assert words in result["problems"][0]["message"]
    assert "pci/rescan" in result["problems"][0]["remedy"]
    assert [result["hotplug"][key] for key in ("present", "plugged", "enabled")] == [True, plugged, True]
    assert (result["rails"], result["env"], result["management"]["interface"]) == ([], {}, "enP7s7")


def test_a_wanted_fabric_on_a_node_whose_card_is_powered_down(tmp_path: Path, ask: Any) -> None:
    tree = Tree(tmp_path)
    tree.netdev("enP7s7", ["10.0.1.60/24"], vendor="0x10ec")
    tree.default_route("enP7s7", "10.0.1.1")
    result = ask(tree.write(), fabric_cidrs=WANTED)
    assert (ids(result), result["rails"], result["env"]) == (["no_cable"], [], {})


# --- GIDs ------------------------------------------------------------------------------------------------------------------------


def test_ipv6_only_gids(tmp_path: Path, ask: Any) -> None:
    tables = {n: {0: (V1, link_local(k)), 1: (V2, link_local(k)), 2: (V1, link_local(k + 9)), 3: (V2, link_local(k + 9))} for k, n in enumerate((RAIL0, RAIL1))}
    result = ask(spark(tmp_path, {RAIL0: ["fe80::2/64"], RAIL1: ["fe80::3/64"]}, gids=tables).write())
    assert indices(result) == [None, None]
    assert set(ids(result)) == {"no_ipv4", "gid_missing"}
    assert "NCCL_IB_GID_INDEX" not in result["env"]


def test_a_netdev_of_a_gid_that_cannot_be_read(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    for index in range(4):
        (tmp_path / f"sys/class/infiniband/{HCA0}/ports/1/gid_attrs/ndevs/{index}").unlink()
        (tmp_path / f"sys/class/infiniband/{HCA0}/ports/1/gid_attrs/ndevs/{index}").mkdir()
    result = ask(tree.write())
    assert indices(result) == [3, 3]
    assert [entry["netdev"] for entry in result["rails"][0]["gids"]] == [None] * 4


@pytest.mark.parametrize("spelling", ["RoCE v2", "RoCEv2", "ROCE V2", " RoCE v2\x00"])
def test_the_spelling_of_a_type(tmp_path: Path, ask: Any, spelling: str) -> None:
    tree = spark(tmp_path, PAIR)
    gid(tree, HCA0, 3, spelling, mapped("192.168.100.10"), RAIL0)
    result = ask(tree.write())
    assert indices(result) == [3, 3]
    assert result["rails"][0]["gids"][3]["type"] == "RoCE v2"


def test_both_rails_have_the_index_5(tmp_path: Path, ask: Any) -> None:
    tables = {RAIL0: v4_gids("192.168.100.10", at=4), RAIL1: v4_gids("192.168.101.10", at=4)}
    result = ask(spark(tmp_path, PAIR, gids=tables).write())
    assert result["env"]["NCCL_IB_GID_INDEX"] == "5"
    assert result["problems"] == []


def test_a_table_of_256_entries_with_odd_file_names(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    for index in range(8, 256):
        tree.file(f"sys/class/infiniband/{HCA0}/ports/1/gids/{index}", "0000:0000:0000:0000:0000:0000:0000:0000\n")
    for name in ("²", "x", "3~", ".swp"):
        tree.file(f"sys/class/infiniband/{HCA0}/ports/1/gids/{name}", mapped("192.168.100.10") + "\n")
    tree.file(f"sys/class/infiniband/{HCA0}/ports/³/state", "4: ACTIVE\n")
    assert indices(ask(tree.write())) == [3, 3]


# --- addresses -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [30, 31, 16])
def test_prefixes(tmp_path: Path, ask: Any, prefix: int) -> None:
    result = ask(spark(tmp_path, {RAIL0: [f"10.20.0.2/{prefix}"], RAIL1: [f"10.21.0.2/{prefix}"]}).write())
    assert [(rail["ipv4"], rail["prefix"], rail["gid_index"]) for rail in result["rails"]] == [("10.20.0.2", prefix, 3), ("10.21.0.2", prefix, 3)]
    assert result["problems"] == []


def test_one_subnet_by_a_wide_prefix(tmp_path: Path, ask: Any) -> None:
    result = ask(spark(tmp_path, {RAIL0: ["10.0.1.1/16"], RAIL1: ["10.0.1.2/16"]}, management="192.168.0.7/24").write())
    assert ids(result) == ["one_subnet_for_both_rails"]
    assert indices(result) == [3, 3]
    four = {name: [f"10.0.1.{number}/24"] for number, name in enumerate(ALL_FOUR, 1)}
    found = ask(spark(tmp_path / "four", four, up=ALL_FOUR, management="192.168.0.7/24").write())["problems"]
    assert len(found) == 1  # and not one for each of the six pairs
    assert "enP2p1s0f0np0 (10.0.1.3/24), enp1s0f1np1 (10.0.1.2/24) and enP2p1s0f1np1 (10.0.1.4/24) are in one subnet" in found[0]["message"]


def test_a_service_address_of_32_bits_is_no_rail_address(tmp_path: Path, ask: Any) -> None:
    addresses = {RAIL0: ["192.168.100.10/24", "10.9.9.9/32"], RAIL1: ["192.168.101.10/24"]}
    tables = {RAIL0: v4_gids("192.168.100.10") | v4_gids("10.9.9.9", at=4)}
    result = ask(spark(tmp_path, addresses, gids=tables).write())
    assert indices(result) == [3, 3]
    assert result["problems"] == []


def test_addresses_of_the_routes_stand_in_for_ip_addr(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    for dev, net, source in (
        (RAIL0, "192.168.100.0/24", "192.168.100.10"),
        (RAIL1, "192.168.101.0/24", "192.168.101.10"),
        ("enP7s7", "10.0.1.0/24", "10.0.1.60"),
    ):
        tree.routes.append({"dst": net, "dev": dev, "protocol": "kernel", "scope": "link", "prefsrc": source, "flags": []})
    result = ask(tree.write(addr=False))
    assert [(rail["ipv4"], rail["prefix"], rail["gid_index"]) for rail in result["rails"]] == [("192.168.100.10", 24, 3), ("192.168.101.10", 24, 3)]
    assert (result["management"]["address"], result["management"]["prefix"]) == ("10.0.1.60", 24)
    assert ids(result) == ["unreadable"]


def test_a_rail_that_a_cut_ip_addr_does_not_mention(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.addr = [item for item in tree.addr if item["ifname"] != RAIL1]
    result = ask(tree.write())
    assert [(rail["netdev"], rail["ipv4"], rail["gid_index"]) for rail in result["rails"]] == [(RAIL0, "192.168.100.10", 3), (RAIL1, "192.168.101.10", 3)]


WISHES: dict[str, tuple[dict[str, Any], str]] = {
    "no network": ({"fabric_cidrs": [WANTED[0], "nonsense"]}, "fabric_cidrs[1] is 'nonsense', which is no IPv4 network."),
    "no address": ({"fabric_addresses": ["300.1.1.1"]}, "fabric_addresses[0] is '300.1.1.1', which is no IPv4 address."),
    "a network of IPv6": ({"fabric_cidrs": ["fd00::/64", WANTED[1]]}, "fabric_cidrs[0] is 'fd00::/64', which is no IPv4 network."),
    "an address of IPv6": ({"fabric_addresses": ["fd00::1/64"]}, "fabric_addresses[0] is 'fd00::1/64', which is no IPv4 address."),
    "an address outside of its network": (
        {"fabric_addresses": ["192.168.100.10", "192.168.101.10"], "fabric_cidrs": [WANTED[1], WANTED[0]]},
        "fabric_addresses[0] 192.168.100.10 is not in fabric_cidrs[0] 192.168.101.0/24.",
    ),
    "a prefix of 33": ({"fabric_addresses": ["192.168.100.10/33"]}, "which is no IPv4 address."),
    "an interface twice": ({"interfaces": [RAIL0, RAIL0]}, f"interfaces[1] names {RAIL0} a second time."),
}


@pytest.mark.parametrize(("wishes", "sentence"), WISHES.values(), ids=WISHES.keys())
@pytest.mark.parametrize("addr", [True, False])
def test_a_wish_that_no_rail_can_fulfil_is_named(tmp_path: Path, ask: Any, wishes: dict[str, Any], sentence: str, addr: bool) -> None:
    result = ask(spark(tmp_path, PAIR).write(addr=addr), **wishes)
    assert any(sentence in found["message"] for found in result["problems"] if found["id"] == "bad_input")


# --- things on top of a rail -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bond", "bridge"])
def test_a_bond_or_bridge_over_both_twins(tmp_path: Path, ask: Any, kind: str) -> None:
    tree = spark(tmp_path, {}, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)})
    tree.netdev("fabric0", ["192.168.100.10/24"], mtu=9000, kind=kind)
    for name in (RAIL0, RAIL1):
        link(tree, name)["master"] = "fabric0"
    gid(tree, HCA1, 4, V1, mapped("192.168.100.10"), "fabric0")
    gid(tree, HCA1, 5, V2, mapped("192.168.100.10"), "fabric0")
    result = ask(tree.write())
    assert [(rail["netdev"], rail["hca"], rail["ipv4"], rail["gid_index"]) for rail in result["rails"]] == [("fabric0", HCA1, "192.168.100.10", 5)]
    assert result["env"] == {"NCCL_IB_HCA": HCA1, "NCCL_IB_GID_INDEX": "5", **dict.fromkeys(SOCKETS, "fabric0")}


def test_a_vlan_on_a_bond(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, {}, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)})
    tree.netdev("bond0", mtu=9000, kind="bond")
    tree.netdev("bond0.7", ["192.168.100.10/24"], mtu=9000, kind="vlan", link="bond0")
    for name in (RAIL0, RAIL1):
        link(tree, name)["master"] = "bond0"
    gid(tree, HCA0, 5, V2, mapped("192.168.100.10"), "bond0.7")
    result = ask(tree.write())
    assert [(rail["netdev"], rail["hca"], rail["gid_index"]) for rail in result["rails"]] == [("bond0.7", HCA0, 5)]


def test_a_vrf_is_no_bond(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.netdev("fabric", kind="vrf")
    for name in (RAIL0, RAIL1):
        link(tree, name)["master"] = "fabric"
    result = ask(tree.write())
    assert netdevs(result) == [RAIL0, RAIL1]
    assert result["env"]["NCCL_SOCKET_IFNAME"] == RAIL0
    assert result["problems"] == []


def test_open_vswitch_takes_the_addresses_and_stands_for_no_port(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, {})
    tree.netdev("ovs-system", up=False, kind="openvswitch")
    tree.netdev("br-fabric", PAIR[RAIL0], mtu=9000, kind="openvswitch")
    for name in (RAIL0, RAIL1):
        link(tree, name)["master"] = "ovs-system"
    result = ask(tree.write())
    assert netdevs(result) == [RAIL0, RAIL1]
    assert ids(result) == ["no_ipv4", "gid_missing"] * 2


def test_macvlans_of_containers_change_nothing(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.netdev("mac0", kind="macvlan", link=RAIL0)
    tree.netdev("veth1", kind="veth", link="if2", master="docker0")
    assert netdevs(ask(tree.write())) == [RAIL0, RAIL1]


def test_what_sits_on_an_addressed_port_is_no_rail(tmp_path: Path, ask: Any) -> None:
    # a container's macvlan shim and a storage VLAN, both with addresses and GIDs of their own
    tree = spark(tmp_path, PAIR)
    for number, (name, kind, address) in enumerate((("shim0", "macvlan", "192.168.100.250/32"), (f"{RAIL0}.100", "vlan", "10.100.0.5/24"))):
        tree.netdev(name, [address], kind=kind, link=RAIL0, mtu=9000)
        for index, version in ((4 + 2 * number, V1), (5 + 2 * number, V2)):
            gid(tree, HCA0, index, version, mapped(address.split("/")[0]), name)
    result = ask(tree.write())
    assert (netdevs(result), indices(result), result["env"]["NCCL_IB_GID_INDEX"], result["problems"]) == ([RAIL0, RAIL1], [3, 3], "3", [])
    assert netdevs(ask(tmp_path, fabric_addresses=["10.100.0.5/24", "192.168.101.10/24"])) == [f"{RAIL0}.100", RAIL1]


def test_a_vlan_with_a_real_address_stands_for_its_link_local_port(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, {RAIL0: ["169.254.1.1/16"], RAIL1: ["169.254.2.2/16"]})
    for number, (name, hca) in enumerate(((RAIL0, HCA0), (RAIL1, HCA1))):
        tree.netdev(f"{name}.100", [f"192.168.10{number}.10/24"], kind="vlan", link=name, mtu=9000)
        for index, version in ((4, V1), (5, V2)):
            gid(tree, hca, index, version, mapped(f"192.168.10{number}.10"), f"{name}.100")
    result = ask(tree.write())
    assert (netdevs(result), indices(result), result["problems"]) == ([f"{RAIL0}.100", f"{RAIL1}.100"], [5, 5], [])
    assert result["env"] == {"NCCL_IB_HCA": f"{HCA0},{HCA1}", "NCCL_IB_GID_INDEX": "5", **dict.fromkeys(SOCKETS, f"{RAIL0}.100")}


@pytest.mark.parametrize("told", ["link", "text", "proc"])
def test_vlans_with_names_of_their_own_where_ip_says_no_kind(tmp_path: Path, ask: Any, told: str) -> None:
    tree = spark(tmp_path, {}, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)})
    for number, (name, hca) in enumerate(((RAIL0, HCA0), (RAIL1, HCA1))):
        tree.netdev(f"fabric{number}", [f"192.168.10{number}.10/24"], link=None if told == "proc" else name, mtu=9000)
        for index, version in ((4, V1), (5, V2)):
            gid(tree, hca, index, version, mapped(f"192.168.10{number}.10"), f"fabric{number}")
    tree.netdev("vethA", ["10.200.0.1/24"], link="vethB")
    tree.netdev("vethB", link="vethA")
    root = tree.write()
    if told == "proc":
        tree.file("proc/net/vlan/config", f"VLAN Dev name    | VLAN ID\nName-Type: X\nfabric0        | 100  | {RAIL0}\nfabric1        | 101  | {RAIL1}\n")
    if told == "text":
        heads = [f"{r['ifindex']}: {r['ifname']}{'@' + r['link'] if 'link' in r else ''}: <{','.join(r['flags'])}> mtu {r['mtu']}" for r in tree.addr]
        lines = [[f"    {a['family']} {a['local']}/{a['prefixlen']} scope {a['scope']} x" for a in r["addr_info"]] for r in tree.addr]
        tree.file("cmd/ip-addr.json", "\n".join(line for head, rest in zip(heads, lines) for line in (head, *rest)))
    result = ask(root)
    assert [(rail["netdev"], rail["hca"], rail["gid_index"]) for rail in result["rails"]] == [("fabric0", HCA0, 5), ("fabric1", HCA1, 5)]
    assert result["problems"] == []


@pytest.mark.parametrize("addressed", [True, False])
def test_the_offices_vlan_on_a_rail_is_the_management(tmp_path: Path, ask: Any, addressed: bool) -> None:
    tree = spark(tmp_path, PAIR if addressed else {RAIL1: PAIR[RAIL1]})
    tree.netdev(f"{RAIL0}.10", ["10.9.0.60/24"], kind="vlan", link=RAIL0)
    tree.routes = []
    tree.default_route(f"{RAIL0}.10", "10.9.0.1")
    result = ask(tree.write())
    assert (netdevs(result), indices(result), result["management"]["interface"]) == ([RAIL0, RAIL1], [3 if addressed else None, 3], f"{RAIL0}.10")
    assert set(ids(result)) == {"rail_is_management"} | (set() if addressed else {"no_ipv4", "gid_missing"})


@pytest.mark.parametrize("wishes", [{}, {"fabric_addresses": ["192.168.100.10/24", "192.168.101.10/24"]}, {"fabric_cidrs": WANTED}])
def test_virtual_functions_that_have_the_addresses_are_the_rails(tmp_path: Path, ask: Any, wishes: dict[str, Any]) -> None:
    tree = spark(tmp_path, {})
    for number, (name, pci) in enumerate((("enp1s0f0v0", "0000:01:00.2"), ("enP2p1s0f0v0", "0002:01:00.2"))):
        address = f"192.168.10{number}.10"
        tree.netdev(name, [f"{address}/24"], mtu=9000, speed=200000, pci=pci, vendor="0x15b3", driver="mlx5_core")
        tree.hca(f"roce{name[2:]}", name, gids=v4_gids(address, 9 + number))
    result = ask(tree.write(), **wishes)
    assert [(rail["netdev"], rail["hca"], rail["cage"], rail["gid_index"]) for rail in result["rails"]] == [
        ("enp1s0f0v0", "rocep1s0f0v0", 0, 3),
        ("enP2p1s0f0v0", "roceP2p1s0f0v0", 0, 3),
    ]


@pytest.mark.parametrize("told", ["physfn", "name", "phys_port_name"])
def test_virtual_functions_and_their_representors_are_no_ports(tmp_path: Path, ask: Any, told: str) -> None:
    tree = spark(tmp_path, PAIR)
    name = {"physfn": "vf0", "name": "enp1s0f0v0", "phys_port_name": "enp1s0f0npf0vf0"}[told]
    pci = "0000:01:00.0" if told == "phys_port_name" else "0000:01:00.2"
    tree.netdev(name, mtu=9000, speed=200000, pci=pci, vendor="0x15b3", driver="mlx5_core", phys="pf0vf0" if told == "phys_port_name" else None)
    if told == "physfn":
        (tmp_path / f"sys/class/net/{name}/device/physfn").symlink_to("../0000:01:00.0")
    if told != "phys_port_name":
        tree.hca("rocep1s0f0v0", name, gids=v4_gids(None, 9))
    result = ask(tree.write())
    assert (netdevs(result), result["problems"]) == ([RAIL0, RAIL1], [])
    assert result["twins"] == {"0": [RAIL0, RAIL1], "1": ["enp1s0f1np1", "enP2p1s0f1np1"]}


def test_virtual_functions_inside_of_a_vm_are_the_rails(tmp_path: Path, ask: Any) -> None:
    tree = Tree(tmp_path)
    tree.netdev("enp0s1", ["10.0.2.15/24"], vendor="0x1af4", driver="virtio_net", pci="0000:00:01.0")
    for number, (name, pci) in enumerate((("ens5", "0000:00:05.0"), ("ens6", "0000:00:06.0"))):
        tree.netdev(name, [f"192.168.10{number}.10/24"], mtu=9000, speed=200000, pci=pci, vendor="0x15b3", driver="mlx5_core")
        tree.hca(f"mlx5_{number}", name, gids=v4_gids(f"192.168.10{number}.10", number))
    tree.default_route("enp0s1", "10.0.2.2")
    result = ask(tree.write())
    assert (netdevs(result), indices(result), result["problems"]) == (["ens5", "ens6"], [3, 3], [])


# --- speed and MTU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "rate", "seen", "degraded"),
    [
        ("100000", "100 Gb/sec (1X NDR)", 100000, True),
        ("-1", "200 Gb/sec (2X NDR)", 200000, False),
        ("-1", "40 Gb/sec (4X QDR)", 40000, True),
        ("4294967295", "", None, False),
        ("garbage", "nonsense", None, False),
        ("400000", "", 400000, False),
    ],
)
def test_speeds(tmp_path: Path, ask: Any, speed: str, rate: str, seen: int | None, degraded: bool) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file(f"sys/class/net/{RAIL0}/speed", speed)
    tree.file(f"sys/class/infiniband/{HCA0}/ports/1/rate", rate)
    result = ask(tree.write())
    assert result["rails"][0]["speed_mbps"] == seen
    assert ("speed_degraded" in ids(result)) is degraded


@pytest.mark.parametrize(
    ("lanes", "said"),
    [
        (("4", "4", "32.0 GT/s PCIe", "32.0 GT/s PCIe"), None),
        (("2", "4", "32.0 GT/s PCIe", "32.0 GT/s PCIe"), "2 of 4 lanes, 32.0 GT/s PCIe of 32.0 GT/s PCIe"),
        (("4", "4", "8.0 GT/s PCIe", "32.0 GT/s PCIe"), "4 of 4 lanes, 8.0 GT/s PCIe of 32.0 GT/s PCIe"),
        (("0", "255", "Unknown", "Unknown"), None),
        (("", "4", "Unknown speed", "32.0 GT/s PCIe"), None),
    ],
)
@pytest.mark.parametrize("bond", [False, True])
def test_pcie_lanes_behind_a_rail(tmp_path: Path, ask: Any, lanes: tuple[str, ...], said: str | None, bond: bool) -> None:
    tree = spark(tmp_path, {} if bond else PAIR)
    if bond:
        tree.netdev("bond0", PAIR[RAIL0], mtu=9000, kind="bond")
        for name in (RAIL0, RAIL1):
            link(tree, name)["master"] = "bond0"
    for name, values in ((RAIL0, ("4", "4", "32.0 GT/s PCIe", "32.0 GT/s PCIe")), (RAIL1, lanes), ("enP2p1s0f1np1", lanes)):
        for item, value in zip(("current_link_width", "max_link_width", "current_link_speed", "max_link_speed"), values):
            tree.file(f"sys/class/net/{name}/device/{item}", value + "\n")
    tree.write()
    found = [item for item in ask(tmp_path)["problems"] if item["id"] == "pcie_degraded"]
    assert [item["interface"] for item in found] == ([] if said is None else ["bond0" if bond else RAIL1])
    assert all(f"The PCIe link of {RAIL1} runs at {said}," in item["message"] for item in found)
    assert "pcie_degraded" not in ids(ask(tmp_path, min_speed_mbps=0))


SPELLINGS = [("4096 (5)", 4096), ("IBV_MTU_1024", 1024), ("1024(3)", 1024), ("3", 1024), ("5: 4096", 4096), ("x", 4096), ("9", 4096)]


@pytest.mark.parametrize(("text", "bytes_"), SPELLINGS)
@pytest.mark.parametrize("where", ["ibv_devinfo", "sysfs"])
def test_the_spellings_of_an_rdma_mtu(tmp_path: Path, ask: Any, text: str, bytes_: int, where: str) -> None:
    tree = spark(tmp_path, PAIR)
    if where == "sysfs":
        tree.file(f"sys/class/infiniband/{HCA0}/ports/1/active_mtu", text + "\n")
    else:
        tree.file("cmd/ibv_devinfo.txt", f"hca_id:\t{HCA0}\n\tport:\t1\n\t\tactive_mtu:\t\t{text}\n")
    result = ask(tree.write())
    assert [rail["active_mtu"] for rail in result["rails"]] == [bytes_, 4096]
    assert ids(result) == (["active_mtu_small"] if bytes_ == 1024 else [])


# --- soft-RoCE -------------------------------------------------------------------------------------------------------------------


def soft(root: Path, *, parent: bool, names: tuple[str, str] = ("rxe0", "rxe1"), kind: str | None = None) -> Tree:
    tree = Tree(root)
    tree.netdev("eth0", ["10.0.2.15/24"], kind=kind)
    for number, hca in enumerate(names):
        netdev = f"enp1s0f{number}np{number}"
        tree.netdev(netdev, [f"10.77.{number}.1/24"], mtu=9000, speed=10000, kind=kind)
        tree.hca(hca, netdev, gids={0: (V2, link_local(number)), 1: (V2, mapped(f"10.77.{number}.1"))}, rate="10 Gb/sec (4X SDR)")
        if parent:
            tree.file(f"sys/class/infiniband/{hca}/parent", netdev + "\n")
    tree.default_route("eth0", "10.0.2.2")
    return tree


@pytest.mark.parametrize("parent", [True, False])
@pytest.mark.parametrize("names", [("rxe0", "rxe1"), (HCA0, "rocep1s0f1")])
@pytest.mark.parametrize("kind", [None, "veth"])
def test_soft_roce_index_1_and_no_word_about_speed(tmp_path: Path, ask: Any, parent: bool, names: tuple[str, str], kind: str | None) -> None:
    result = ask(soft(tmp_path, parent=parent, names=names, kind=kind).write())
    assert [(rail["netdev"], rail["hca"], rail["gid_index"]) for rail in result["rails"]] == [("enp1s0f0np0", names[0], 1), ("enp1s0f1np1", names[1], 1)]
    assert result["env"] == {"NCCL_IB_HCA": ",".join(names), "NCCL_IB_GID_INDEX": "1", **dict.fromkeys(SOCKETS, "enp1s0f0np0")}
    assert result["problems"] == []


def test_soft_roce_on_the_only_nic(tmp_path: Path, ask: Any) -> None:
    tree = Tree(tmp_path)
    tree.netdev("eth0", ["10.0.2.15/24"])
    tree.hca("rxe0", "eth0", gids={0: (V2, link_local(1)), 1: (V2, mapped("10.0.2.15"))}, rate="2.5 Gb/sec (1X SDR)")
    tree.default_route("eth0", "10.0.2.2")
    result = ask(tree.write())
    assert [(rail["netdev"], rail["hca"], rail["gid_index"], rail["cage"]) for rail in result["rails"]] == [("eth0", "rxe0", 1, None)]
    assert set(ids(result)) == {"rail_is_management", "mtu_small"}


def test_soft_roce_on_the_management_nic_of_a_spark_is_no_rail(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.hca("rxe0", "enP7s7", gids={0: (V2, link_local(7)), 1: (V2, mapped("10.0.1.60"))}, rate="2.5 Gb/sec (1X SDR)")
    tree.file("sys/class/infiniband/rxe0/parent", "enP7s7\n")
    result = ask(tree.write())
    assert netdevs(result) == [RAIL0, RAIL1]
    assert result["env"]["NCCL_IB_GID_INDEX"] == "3"
    assert result["problems"] == []


def test_soft_roce_beside_the_card_on_one_rail(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR, hca_names={HCA0: "zz_0"})
    tree.hca("rxe0", RAIL0, gids={0: (V2, link_local(7)), 1: (V2, mapped("192.168.100.10"))})
    tree.file("sys/class/infiniband/rxe0/parent", RAIL0 + "\n")
    assert [rail["hca"] for rail in ask(tree.write())["rails"]] == ["zz_0", HCA1]


# --- what joins a device to its HCA ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clue", ["address", "MAC"])
def test_an_hca_is_joined_by_its_gids_where_nothing_else_is_said(tmp_path: Path, ask: Any, clue: str) -> None:
    tree = spark(tmp_path, PAIR if clue == "address" else {}, hca_names={row[1]: f"mlx5_{number}" for number, row in enumerate(SPARK)})
    for row in tree.rdma:
        del row["netdev"]
    for number, (netdev, _hca, _pci, _phys) in enumerate(SPARK):
        shutil.rmtree(tmp_path / f"sys/class/infiniband/mlx5_{number}/ports/1/gid_attrs/ndevs")
        if clue == "MAC":
            link(tree, netdev)["address"] = f"4c:bb:47:00:{number:02x}:6e"
            tree.file(f"sys/class/infiniband/mlx5_{number}/ports/1/gids/1", f"fe80:0000:0000:0000:4ebb:47ff:fe00:{number:02x}6e\n")
    result = ask(tree.write())
    assert [(rail["netdev"], rail["hca"]) for rail in result["rails"]] == [(RAIL0, "mlx5_0"), (RAIL1, "mlx5_2")]
    if clue == "address":
        assert indices(result) == [3, 3]


@pytest.mark.parametrize("text", [False, True])
def test_an_hca_is_joined_by_the_interface_index_of_rdma_link(tmp_path: Path, ask: Any, text: bool) -> None:
    tree = spark(tmp_path, PAIR, hca_names={row[1]: f"mlx5_{number}" for number, row in enumerate(SPARK)})
    rows = [{**row, "netdev_index": link(tree, row["netdev"])["ifindex"]} for row in tree.rdma]
    tree.rdma = [{key: value for key, value in row.items() if key not in ("netdev", "netdev_ifindex")} for row in rows]
    root = tree.write()
    if text:
        lines = [f"link {r['ifname']}/1 state {r['state']} physical_state {r['physical_state']} netdev_index {r['netdev_index']} \n" for r in rows]
        tree.file("cmd/rdma-link.json", "".join(lines))
    shutil.rmtree(root / "sys/class")
    result = ask(root)
    assert [(rail["netdev"], rail["hca"], rail["state"]) for rail in result["rails"]] == [(RAIL0, "mlx5_0", "ACTIVE"), (RAIL1, "mlx5_2", "ACTIVE")]
    assert set(ids(result)) == {"gid_missing"}


def test_an_interface_that_is_not_there_is_said(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.addr = [item for item in tree.addr if item["ifname"] != RAIL1]
    shutil.rmtree(tmp_path / f"sys/class/net/{RAIL1}")
    result = ask(tree.write())
    assert ("hca_without_netdev", RAIL1) in [(found["id"], found["interface"]) for found in result["problems"]]


# --- other RDMA devices ----------------------------------------------------------------------------------------------------------


def test_an_hca_in_infiniband_mode(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.netdev("ibp3s0", pci="0003:01:00.0", vendor="0x15b3", driver="mlx5_core", mtu=2044)
    tree.hca("ibp3s0", "ibp3s0", gids={0: (V1, link_local(3))})
    tree.file("sys/class/infiniband/ibp3s0/ports/1/link_layer", "InfiniBand\n")
    result = ask(tree.write())
    assert netdevs(result) == [RAIL0, RAIL1]
    assert ids(result) == ["infiniband_mode"]


def test_the_second_port_of_one_rdma_device(tmp_path: Path, ask: Any) -> None:
    tree = Tree(tmp_path)
    tree.netdev("eth0", ["10.0.2.15/24"])
    for number in (1, 2):
        tree.netdev(f"ens1f{number}", [f"192.168.10{number}.10/24"], mtu=9000, pci="0000:41:00.0", vendor="0x15b3", driver="mlx5_core", speed=200000)
        at = f"sys/class/infiniband/mlx4_0/ports/{number}"
        tree.rdma.append({"ifname": "mlx4_0", "port": number, "state": "ACTIVE", "physical_state": "LINK_UP", "netdev": f"ens1f{number}"})
        tree.file(f"{at}/state", "4: ACTIVE\n")
        for index, kind in ((2, V1), (3, V2)):
            tree.file(f"{at}/gids/{index}", mapped(f"192.168.10{number}.10") + "\n")
            tree.file(f"{at}/gid_attrs/types/{index}", kind + "\n")
    tree.default_route("eth0", "10.0.2.2")
    result = ask(tree.write())
    assert [(rail["hca"], rail["hca_port"], rail["gid_index"]) for rail in result["rails"]] == [("mlx4_0", 1, 3), ("mlx4_0", 2, 3)]
    assert result["env"]["NCCL_IB_HCA"] == "mlx4_0,mlx4_0:2"


def test_the_old_text_of_rdma_link(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write(rdma=False)
    shutil.rmtree(root / "sys/class/infiniband")
    tree.file(
        "cmd/rdma-link.json",
        f"1/1: {HCA0}/1: state ACTIVE physical_state LINK_UP netdev {RAIL0} \n2/1: {HCA1}/1: state DOWN physical_state LINK_UP netdev {RAIL1} \n3/1: odd/1:\n",
    )
    assert [(rail["hca"], rail["state"]) for rail in ask(root)["rails"]] == [(HCA0, "ACTIVE"), (HCA1, "DOWN")]


@pytest.mark.parametrize("sysfs", [True, False])
@pytest.mark.parametrize("netdev", [True, False])
def test_a_card_in_infiniband_mode(tmp_path: Path, ask: Any, sysfs: bool, netdev: bool) -> None:
    # rdma link names no netdev in this mode, and udev gives the HCA and the device one name
    tree = Tree(tmp_path)
    tree.netdev("enP7s7", ["10.0.1.60/24"], pci="0007:01:00.0", vendor="0x10ec", driver="r8127")
    for number, (name, _hca, pci, _phys) in enumerate(SPARK):
        both = f"ib{name[2:-3]}"
        if netdev:
            tree.netdev(both, [f"192.168.10{number}.10/24"], mtu=2044, pci=pci, vendor="0x15b3", driver="mlx5_core", kind="ipoib")
            link(tree, both)["link_type"] = "infiniband"
        tree.hca(both, None, gids={0: ("", link_local(number))})
        tree.file(f"sys/class/infiniband/{both}/ports/1/link_layer", "InfiniBand\n")
    tree.default_route("enP7s7", "10.0.1.1")
    root = tree.write()
    if not sysfs:
        shutil.rmtree(root / "sys")
    result = ask(root)
    assert (result["rails"], result["env"], set(ids(result))) == ([], {}, {"infiniband_mode"})
    assert result["management"]["interface"] == "enP7s7"


def test_infiniband_mode_by_ibv_devinfo_alone(tmp_path: Path, ask: Any) -> None:
    tree = Tree(tmp_path)
    tree.netdev("enP7s7", ["10.0.1.60/24"])
    tree.file("cmd/ibv_devinfo.txt", "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\t\tInfiniBand\n")
    tree.default_route("enP7s7", "10.0.1.1")
    result = ask(tree.write())
    assert (result["rails"], ids(result)) == ([], ["infiniband_mode", "unreadable"])


# --- management ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wlP9s9", "enx00e04c680001", "eno1"])
def test_management_elsewhere(tmp_path: Path, ask: Any, name: str) -> None:
    tree = spark(tmp_path, PAIR)
    if name != "wlP9s9":
        tree.netdev(name)
    tree.routes = []
    link(tree, name)["addr_info"] = [{"family": "inet", "local": "10.9.0.7", "prefixlen": 22, "scope": "global", "dynamic": True}]
    tree.default_route(name, "10.9.0.1", metric=600)
    management = ask(tree.write())["management"]
    assert (management["interface"], management["address"], management["prefix"], management["gateway"]) == (name, "10.9.0.7", 22, "10.9.0.1")
    assert management["protected"] == [name]


@pytest.mark.parametrize("other", ["169.254.8.8/16", "10.77.0.9/24", "10.0.1.200/24", "2001:db8:9::9/64", "fe80::9%enP7s7/64"])
@pytest.mark.parametrize("source", [None, "10.0.1.60"])
def test_the_management_address_is_the_one_that_leads_to_the_gateway(tmp_path: Path, ask: Any, other: str, source: str | None) -> None:
    tree = spark(tmp_path, PAIR)
    local, _slash, prefix = other.partition("/")
    entry = {"family": "inet6" if ":" in local else "inet", "local": local, "prefixlen": int(prefix), "scope": "global"}
    link(tree, "enP7s7")["addr_info"].insert(0, entry | {"secondary": local.startswith("10.0.1")})
    if source is not None:
        tree.routes[0].update({"prefsrc": source, "gateway": "10.8.0.1"})
    elif local.startswith("169"):
        del tree.routes[0]["gateway"]
    assert ask(tree.write())["management"]["address"] == "10.0.1.60"


def test_a_default_route_without_link_does_not_win(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.routes = [
        {"dst": "default", "gateway": "10.0.1.1", "dev": "enP7s7", "metric": 100, "flags": ["dead", "linkdown"]},
        {"dst": "default", "gateway": "10.9.0.1", "dev": "wlP9s9", "metric": 600, "flags": []},
        {"type": "unreachable", "dst": "default", "dev": "lo", "metric": 1, "flags": []},
        {"dst": "default", "via": {"family": "inet6", "host": "fe80::1"}, "dev": "wlP9s9", "metric": 700, "flags": []},
    ]
    management = ask(tree.write())["management"]
    assert (management["interface"], management["gateway"]) == ("wlP9s9", "10.9.0.1")
    assert management["protected"] == ["enP7s7", "wlP9s9"]


def test_no_default_route_leaves_the_one_addressed_interface(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.routes = []
    management = ask(tree.write())["management"]
    assert (management["interface"], management["reason"], management["protected"]) == ("enP7s7", "only addressed interface", [])
    tree.netdev("eno2", ["10.44.0.1/24"])
    assert ask(tree.write())["management"]["interface"] is None


@pytest.mark.parametrize("text", ["[ ]", "[]\n", "[ ]\n"])
def test_an_empty_list_of_routes_is_an_answer(tmp_path: Path, ask: Any, text: str) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write()
    tree.file("cmd/ip-route.json", text)
    assert ask(root)["problems"] == []


@pytest.mark.parametrize(("address", "named"), [("10.0.1.61/24", True), ("10.0.0.61/16", True), ("10.0.2.61/24", False), ("10.0.1.61/32", False)])
def test_a_rail_in_the_subnet_of_the_management(tmp_path: Path, ask: Any, address: str, named: bool) -> None:
    result = ask(spark(tmp_path, {RAIL0: [address], RAIL1: PAIR[RAIL1]}).write())
    assert indices(result) == [3, 3]
    assert [(found["id"], found["interface"]) for found in result["problems"]] == ([("subnet_of_management", RAIL0)] if named else [])


def test_a_wide_network_of_the_management_around_the_rails_does_no_harm(tmp_path: Path, ask: Any) -> None:
    sync = {RAIL0: ["10.100.192.1/24"], RAIL1: ["10.100.193.1/24"]}
    assert ask(spark(tmp_path, sync, management="10.7.1.60/8").write())["problems"] == []
    result = ask(spark(tmp_path / "inside", sync, management="10.100.193.60/8").write())
    assert [(found["id"], found["interface"]) for found in result["problems"]] == [("subnet_of_management", RAIL1)]


def test_wifi_in_the_fabrics_subnet_beside_a_wired_management(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    link(tree, "wlP9s9")["addr_info"] = [{"family": "inet", "local": "192.168.100.55", "prefixlen": 24, "scope": "global"}]
    tree.default_route("wlP9s9", "192.168.100.1", metric=600)
    result = ask(tree.write())
    assert [(found["id"], found["interface"]) for found in result["problems"]] == [("subnet_of_management", RAIL0)]
    assert "wlP9s9 (192.168.100.55/24)" in result["problems"][0]["message"]


@pytest.mark.parametrize(
    ("name", "kind", "address", "named"),
    [
        ("enx000000000001", None, "192.168.100.200/24", True),
        ("docker0", "bridge", "192.168.0.1/16", False),
        ("virbr0", "bridge", "192.168.101.1/24", True),
        ("kube-ipvs0", "dummy", "192.168.100.240/32", False),
    ],
)
def test_a_rail_in_the_subnet_of_an_interface_without_any_route(tmp_path: Path, ask: Any, name: str, kind: str | None, address: str, named: bool) -> None:
    tree = spark(tmp_path, PAIR)
    tree.netdev(name, [address], kind=kind, up=kind is None)
    result = ask(tree.write())
    assert result["env"]["NCCL_IB_HCA"] == f"{HCA0},{HCA1}"
    assert ids(result) == (["subnet_of_another"] if named else [])
    assert all(f"{name} ({address})" in found["message"] for found in result["problems"])
    lay_down(tree, name)
    assert ask(tree.write())["problems"] == []


@pytest.mark.parametrize("linked", [True, False])
def test_another_port_of_the_card_in_a_rails_subnet_counts_when_it_has_a_link(tmp_path: Path, ask: Any, linked: bool) -> None:
    other = {"enp1s0f1np1": ["192.168.100.20/24"]}
    result = ask(spark(tmp_path, PAIR | other, up=ALL_FOUR if linked else tuple(PAIR)).write(), interfaces=list(PAIR))
    assert ids(result) == (["subnet_of_another"] if linked else [])


def test_rails_in_one_subnet_with_the_management_are_said_once_each(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, {RAIL0: ["10.0.1.61/24"], RAIL1: ["10.0.1.62/24"]})
    for number, name in enumerate(PAIR):
        tree.default_route(name, "10.0.1.1", metric=101 + number)
    assert ids(ask(tree.write())) == ["one_subnet_for_both_rails", *["rail_is_management"] * 2, *["subnet_of_management"] * 2]


def test_a_default_route_over_a_rail_is_not_its_own_neighbour(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.routes = []
    tree.default_route(RAIL0, "192.168.100.11")
    assert ids(ask(tree.write())) == ["rail_is_management"]


@pytest.mark.parametrize("zone", ["enP7s7", RAIL0])
def test_a_link_local_session_is_on_the_interface_of_its_zone(tmp_path: Path, ask: Any, zone: str) -> None:
    tree = spark(tmp_path, {name: [*addresses, "fe80::1/64"] for name, addresses in PAIR.items()})
    management = ask(tree.write(), ssh_connection=f"fe80::9%{zone} 5000 fe80::1%{zone} 22")["management"]
    assert (management["interface"], management["reason"]) == (zone, "ssh session")


def test_files_of_others_are_named_while_the_card_is_powered_down(tmp_path: Path, ask: Any) -> None:
    tree = Tree(tmp_path)
    tree.netdev("enP7s7", ["10.0.1.60/24"], vendor="0x10ec")
    tree.default_route("enP7s7", "10.0.1.1")
    tree.file("etc/netplan/01-all.yaml", "network:\n  version: 2\n  ethernets:\n    all:\n      match: {name: 'en*'}\n      dhcp4: true\n")
    assert ids(ask(tree.write())) == ["no_cable"]
    (tmp_path / "etc/netplan/01-all.yaml").unlink()
    tree.file("etc/netplan/40-cx7.yaml", "network:\n  version: 2\n  ethernets:\n    enp1s0f1np1:\n      addresses: [192.168.100.10/24]\n")
    result = ask(tree.write())
    assert ids(result) == ["no_cable", "foreign_netplan"]
    assert result["foreign"][0]["interfaces"] == ["enp1s0f1np1"]


# --- what a problem says ---------------------------------------------------------------------------------------------------------


def lay_down(tree: Tree, *names: str) -> None:
    """Take interfaces down as `ip link set X down` does."""
    for name in names:
        link(tree, name)["flags"] = ["BROADCAST", "MULTICAST"]


def drop_types(tree: Tree, *_names: str) -> None:
    for index in range(4):
        (tree.root / f"sys/class/infiniband/{HCA0}/ports/1/gid_attrs/types/{index}").unlink()


SAYINGS: dict[str, tuple[dict[str, Any], Any, dict[str, Any], str, str, str]] = {
    # name: (spark's arguments, a change, wishes, id, words of the message, words of the remedy)
    "a twin that is laid down": ({"up": (RAIL0,)}, lambda t: lay_down(t, RAIL1), {}, "link_down", "administratively down", f"`ip link set {RAIL1} up`"),
    "its other half": ({"up": (RAIL0,)}, lambda t: lay_down(t, RAIL1), {}, "ports_asymmetric", f"its twin {RAIL1} has not", f"`ip link set {RAIL1} up`"),
    "all laid down": ({"up": ()}, lambda t: lay_down(t, *ALL_FOUR), {}, "no_cable", "all are administratively down", f"First `ip link set {RAIL0} up`"),
    "a moved cable": ({"up": ALL_FOUR[1::2]}, None, {}, "link_down", "the cable is in cage 1, the address on cage 0", "moves the addresses to cage 1"),
    "one address twice": ({"addresses": dict.fromkeys(PAIR, PAIR[RAIL0])}, None, {}, "one_subnet_for_both_rails", "have the same address", "a /24 of its own"),
    "the address of the management": ({"management": "192.168.100.10/24"}, None, {}, "subnet_of_management", "has the address of enP7s7", "a /24 of its own"),
    "another address than the wanted": (
        {},
        None,
        {"fabric_addresses": ["192.168.100.99"]},
        "no_ipv4",
        "(wanted: 192.168.100.99; it has 192.168.100.10/24)",
        "roce",
    ),
    "no address": ({"addresses": {}}, None, {}, "gid_missing", f"because {RAIL0} has no fabric IPv4 address; its table: 0=fe80", "its IPv4 address"),
    "a table of no GIDs": ({}, lambda t: shutil.rmtree(t.root / f"sys/class/infiniband/{HCA0}"), {}, "gid_missing", "could not be read", "record it"),
    "types unread": ({}, drop_types, {}, "gid_missing", "(indices 2, 3), but their types could not be read", "gid_attrs/types as root"),
    "a GID of another device": (
        {},
        lambda t: gid(t, HCA0, 3, V2, mapped("192.168.100.10"), "eth9"),
        {},
        "gid_missing",
        "3=::ffff:192.168.100.10 RoCE v2 of eth9",
        "roce_gid_repair",
    ),
    "the management as a rail": (
        {},
        None,
        {"fabric_addresses": ["10.0.1.60/24", "192.168.101.10/24"]},
        "rail_is_management",
        "enP7s7 carries the default route",
        "Take the network of enP7s7 out of gb10_fabric_cidrs",
    ),
    "a session over the rail": ({}, None, {"ssh_connection": "1.1.1.1 9 192.168.100.10 22"}, "rail_is_management", "the SSH session", "Connect by the 10 GbE"),
    "a second default route": ({}, lambda t: t.default_route(RAIL0, "192.168.100.1", 900), {}, "rail_is_management", "beside the one of", "never-default"),
}


@pytest.mark.parametrize(("args", "change", "wishes", "pid", "message", "remedy"), SAYINGS.values(), ids=SAYINGS.keys())
def test_a_problem_names_what_was_found_and_its_own_remedy(
    tmp_path: Path, ask: Any, args: dict[str, Any], change: Any, wishes: dict[str, Any], pid: str, message: str, remedy: str
) -> None:
    tree = spark(tmp_path, **{"addresses": PAIR, **args})
    if change is not None:
        change(tree)
    result = ask(tree.write(), **wishes)
    found = next(entry for entry in result["problems"] if entry["id"] == pid)
    assert "rails_crossed" not in ids(result)
    assert message in found["message"]
    assert remedy in found["remedy"]


def test_an_mtu_that_costs_no_rdma_mtu_does_not_say_so(tmp_path: Path, ask: Any) -> None:
    result = ask(spark(tmp_path, PAIR, mtu=4200).write())
    assert [found["message"] for found in result["problems"]] == [f"{name} has MTU 4200, wanted is 9000." for name in (RAIL0, RAIL1)]


@pytest.mark.parametrize(("text", "known"), [(None, False), ("bash: rdma: command not found\n", False), ("[ ]\n", True), ("", True)])
def test_rdma_devices_that_nothing_speaks_of_are_unknown_and_not_missing(tmp_path: Path, ask: Any, text: str | None, known: bool) -> None:
    root = spark(tmp_path, PAIR).write(rdma=False)
    shutil.rmtree(root / "sys/class/infiniband")
    if text is not None:
        (root / "cmd/rdma-link.json").write_text(text)
    result = ask(root)
    assert ids(result) == (["no_rdma"] * 3 if known else ["rdma_unreadable", "unreadable"])
    assert result["env"] == dict.fromkeys(SOCKETS, RAIL0)


@pytest.mark.parametrize("up", [(RAIL0, "enp1s0f1np1"), (RAIL0,)], ids=["two cables", "one cable"])
def test_the_second_segments_functions_are_gone_and_both_cages_are_addressed(tmp_path: Path, ask: Any, up: tuple[str, ...]) -> None:
    tree = spark(tmp_path, {RAIL0: PAIR[RAIL0], "enp1s0f1np1": PAIR[RAIL1]}, up=up)
    tree.addr = [item for item in tree.addr if not item["ifname"].startswith("enP2")]
    tree.rdma = [item for item in tree.rdma if not item["ifname"].startswith("roceP2")]
    for place in (*tmp_path.glob("sys/class/net/enP2*"), *tmp_path.glob("sys/class/infiniband/roceP2*")):
        shutil.rmtree(place)
    result = ask(tree.write())
    assert netdevs(result) == [RAIL0, "enp1s0f1np1"]
    assert [found["message"].split(";")[0] for found in result["problems"] if found["id"] == "ports_asymmetric"] == [
        f"Only {RAIL0} is visible in cage 0",
        "Only enp1s0f1np1 is visible in cage 1",
    ]


def test_a_two_port_card_of_another_server_has_no_twins(tmp_path: Path, ask: Any) -> None:
    tree = Tree(tmp_path)
    for number, address in enumerate(("192.168.100.10", "192.168.101.10")):
        name, pci = f"enp59s0f{number}np{number}", f"0000:3b:00.{number}"
        tree.netdev(name, [f"{address}/24"], mtu=9000, speed=200000, phys=f"p{number}", pci=pci, vendor="0x15b3", driver="mlx5_core")
        tree.hca(f"mlx5_{number}", name, gids=v4_gids(address, number))
    result = ask(tree.write())
    assert (result["env"]["NCCL_IB_HCA"], result["problems"]) == ("mlx5_0,mlx5_1", [])


def test_a_twin_whose_interface_is_elsewhere_is_said_once(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.addr = [item for item in tree.addr if item["ifname"] not in (RAIL1, "enp1s0f1np1", "enP2p1s0f1np1")]
    tree.rdma = [row for row in tree.rdma if row["ifname"] in (HCA0, HCA1)]
    for netdev, hca, _pci, _phys in SPARK[1:]:
        shutil.rmtree(tmp_path / f"sys/class/net/{netdev}")
        shutil.rmtree(tmp_path / f"sys/class/infiniband/{hca}")
    del tree.rdma[1]["netdev"]
    assert ids(ask(tree.write())) == ["hca_without_netdev"]


# --- damage ----------------------------------------------------------------------------------------------------------------------


def test_addresses_recorded_family_by_family(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, {RAIL0: [*PAIR[RAIL0], "fe80::2/64"], RAIL1: PAIR[RAIL1]})
    tree.write()
    lists = [
        [{**record, "addr_info": [a for a in record["addr_info"] if a["family"] in families]} for record in tree.addr]
        for families in (("inet6",), ("inet",), ("inet", "inet6"))
    ]
    tree.file("cmd/ip-addr.json", "\n".join(map(json.dumps, lists)))
    result = ask(tmp_path)
    assert (indices(result), result["problems"]) == ([3, 3], [])
    assert result["rails"][0]["addresses"] == ["fe80::2/64", "192.168.100.10/24"]


def test_warnings_around_and_empty_objects_inside(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    clean = ask(tree.write())
    for name, data in (("ip-addr", tree.addr), ("ip-route", tree.routes), ("rdma-link", tree.rdma)):
        mixed: list[Any] = [{}, *data, {}, None, 7, "x", {"ifname": None, "dst": None}, {"ifname": 4, "dst": 4}, []]
        tree.file(f"cmd/{name}.json", f"Warning: [1] old {{kernel}}\n\ufeff{json.dumps(mixed)}\nError: Peer netns reference is invalid. [x]\n")
    noisy = ask(tmp_path)
    assert {k: v for k, v in noisy.items() if k != "invocation"} == {k: v for k, v in clean.items() if k != "invocation"}


@pytest.mark.parametrize("indent", [None, 4])
def test_a_cut_list_is_said(tmp_path: Path, ask: Any, indent: int | None) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write()
    text = json.dumps(tree.addr, indent=indent)
    tree.file("cmd/ip-addr.json", "Warning: [1] old\n" + text[: text.index("192.168.101.10") - 20])
    result = ask(root)
    assert (netdevs(result), indices(result), ids(result)) == ([RAIL0, RAIL1], [3, 3], ["unreadable"])
    assert [rail["ipv4"] for rail in result["rails"]] == ["192.168.100.10", "192.168.101.10"]
    assert "`ip -j -d addr` is cut off after 8 entries" in result["problems"][0]["message"]


def test_one_object_a_line_and_a_warning_inside_of_the_list_are_whole(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write()
    tree.file("cmd/ip-addr.json", "\n".join(map(json.dumps, tree.addr)))
    assert ask(root)["problems"] == []
    text = json.dumps(tree.addr, indent=4)
    tree.file("cmd/ip-addr.json", text.replace('    {\n        "ifindex": 4', 'Error: Peer netns reference is invalid.\n    {\n        "ifindex": 4'))
    assert ask(root)["problems"] == []


def test_a_capture_recorded_by_windows_powershell(tmp_path: Path, ask: Any) -> None:
    root = spark(tmp_path, PAIR).write()
    for path in (root / "cmd").iterdir():
        path.write_bytes(path.read_text().replace("\n", "\r\n").encode("utf-16"))
    result = ask(root)
    assert (result["management"]["interface"], indices(result), result["problems"]) == ("enP7s7", [3, 3], [])


def test_files_that_hold_the_error_of_cat(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    net, at = f"sys/class/net/{RAIL0}", f"sys/class/infiniband/{HCA0}/ports/1"
    for path in (f"{net}/speed", f"{net}/carrier", f"{net}/phys_port_name", f"{net}/mtu", f"{at}/state", f"{at}/gid_attrs/ndevs/3"):
        tree.file(path, f"cat: /{path}: Invalid argument\n")
    for kind in ("types", "ndevs"):
        (tmp_path / f"{at}/gid_attrs/{kind}/5").rmdir()
        tree.file(f"{at}/gid_attrs/{kind}/5", "cat: Das Argument ist ungültig\n")
    rail = ask(tree.write())["rails"][0]
    assert [rail[key] for key in ("state", "speed_mbps", "mtu", "cage", "gid_index")] == ["ACTIVE", 200000, 9000, 0, 3]


def test_what_ip_d_says_of_devices_that_sysfs_does_not_show(tmp_path: Path, ask: Any) -> None:
    tree = renamed(tmp_path, RAILS)
    for netdev, _hca, pci, phys in SPARK:
        link(tree, RAILS[netdev]).update({"parentbus": "pci", "parentdev": pci, "phys_port_name": phys})
    root = tree.write()
    shutil.rmtree(root / "sys/class/net")
    result = ask(root)
    assert [(rail["netdev"], rail["cage"], rail["pci"]) for rail in result["rails"]] == [("rail0", 0, "0000:01:00.0"), ("rail1", 0, "0002:01:00.0")]
    assert result["twins"] == {"0": ["rail0", "rail1"], "1": ["spare0", "spare1"]}


@pytest.mark.parametrize("nested", [False, True])
def test_addresses_from_proc_alone(tmp_path: Path, ask: Any, nested: bool) -> None:
    tree = spark(tmp_path, PAIR, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)})
    nets = [("enP7s7", "00000000", "0101000A", "00000000"), ("enP7s7", "0001000A", "00000000", "00FFFFFF")]
    nets += [(RAIL0, "0064A8C0", "00000000", "00FFFFFF"), (RAIL1, "0065A8C0", "00000000", "00FFFFFF")]
    nets += [("docker0", "0000A8C0", "00000000", "0000FFFF")] if nested else []  # 192.168.0.0/16 around both
    rows = "".join(f"{dev}\t{dst}\t{gateway}\t0001\t0\t0\t100\t{mask}\t0\t0\t0\n" for dev, dst, gateway, mask in nets)
    tree.file("proc/net/route", f"Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n{rows}")
    leaves = [("10.0.1.60", "host LOCAL"), ("127.0.0.1", "host LOCAL"), ("10.0.1.255", "link BROADCAST"), ("300.1.1.1", "host LOCAL")]
    leaves += [("192.168.100.10", "host LOCAL"), ("192.168.101.10", "host LOCAL")]
    tree.file("proc/net/fib_trie", "Main:\n  +-- 0.0.0.0/0 3 0 5\n" + "".join(f"        |-- {leaf}\n           /32 {kind}\n" for leaf, kind in leaves))
    result = ask(tree.write(addr=False, route=False))
    assert [(rail["netdev"], rail["ipv4"], rail["prefix"]) for rail in result["rails"]] == [(RAIL0, "192.168.100.10", 24), (RAIL1, "192.168.101.10", 24)]
    assert [result["management"][key] for key in ("interface", "address", "gateway")] == ["enP7s7", "10.0.1.60", "10.0.1.1"]
    assert result["env"]["NCCL_SOCKET_IFNAME"] == RAIL0


ODD: list[Any] = [None, 0, -1, 1e300, True, "", "x", [], {}, [None], [[]], {"x": 1}, "9" * 400, "\u0000", [{"dev": None}]]


@pytest.mark.parametrize("odd", ODD, ids=lambda value: repr(value)[:20])
def test_values_of_the_wrong_kind_change_no_rail(tmp_path: Path, ask: Any, odd: Any) -> None:
    tree = spark(tmp_path, PAIR)
    keys = {key for record in (*tree.addr, *tree.rdma, *tree.routes) for key in record} | {
        "master",
        "link",
        "linkinfo",
        "altnames",
        "nexthops",
        "via",
        "prefsrc",
    }
    for key in sorted(keys):
        for data in (tree.addr, tree.rdma, tree.routes):
            for number, record in enumerate(data):
                if number % 2:
                    record[key] = copy.deepcopy(odd)
    for record in tree.addr:
        for entry in record["addr_info"] if isinstance(record["addr_info"], list) else []:
            if isinstance(entry, dict):
                entry.update(dict.fromkeys(("prefixlen", "scope", "secondary", "family"), odd))
    tree.routes.append(dict.fromkeys(("dst", "dev", "gateway", "metric", "flags", "nexthops"), odd))
    for result in (ask(tree.write(), fabric_cidrs=WANTED), ask(tmp_path)):
        assert [(rail["hca"], rail["ipv4"], rail["gid_index"]) for rail in result["rails"]] == [(HCA0, "192.168.100.10", 3), (HCA1, "192.168.101.10", 3)]


@pytest.mark.parametrize("prefix", [33, -1, 999, "24", None, 24.5])
def test_a_prefix_that_no_address_can_have(tmp_path: Path, ask: Any, prefix: Any) -> None:
    tree = spark(tmp_path, PAIR)
    for name in (RAIL0, RAIL1):
        link(tree, name)["addr_info"][0]["prefixlen"] = prefix
    assert indices(ask(tree.write())) == [3, 3]


@pytest.mark.parametrize(
    "line", ["x\t00000000000\tAA\t1\t0\t0\t0\t00000000\n", "eth0\tZZ\t0\t1\t0\t0\t0\t0\n", "\x00\n", "eth0 00000000 0101A8C0 3 0 0 x 00000000 0 0 0\n"]
)
def test_a_damaged_proc_route(tmp_path: Path, ask: Any, line: str) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file("proc/net/route", "Iface\n" + line)
    assert ask(tree.write(route=False))["management"]["interface"] == "enP7s7"


def test_links_that_became_small_files(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    for netdev, hca, pci, _phys in SPARK:
        shutil.rmtree(tmp_path / f"sys/class/net/{netdev}")
        tree.file(f"sys/class/net/{netdev}", f"../../devices/pci{pci[:4]}:00/{pci[:4]}:00:00.0/{pci}/net/{netdev}")
        tree.file(f"sys/class/infiniband/{hca}/device", f"../../../{pci}")
    tree.file("sys/class/net/bonding_masters", "\n")
    for row in tree.rdma:
        del row["netdev"]
    shutil.rmtree(tmp_path / f"sys/class/infiniband/{HCA0}/ports/1/gid_attrs/ndevs")
    result = ask(tree.write())
    assert [(rail["netdev"], rail["hca"], rail["pci"], rail["gid_index"]) for rail in result["rails"]] == [
        (RAIL0, HCA0, "0000:01:00.0", 3),
        (RAIL1, HCA1, "0002:01:00.0", 3),
    ]


def test_only_uevents_and_no_other_attribute_of_the_devices(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR, hca_names={HCA0: "mlx5_2", HCA1: "mlx5_0"})
    for netdev, _hca, _pci, _phys in SPARK:
        for entry in list((tmp_path / f"sys/class/net/{netdev}").iterdir()):
            if entry.is_file():
                entry.unlink()
        (tmp_path / f"sys/class/net/{netdev}/device/vendor").unlink()
    result = ask(tree.write())
    assert [(rail["hca"], rail["mtu"], rail["state"], rail["cage"], rail["speed_mbps"]) for rail in result["rails"]] == [
        ("mlx5_2", 9000, "ACTIVE", 0, 200000),
        ("mlx5_0", 9000, "ACTIVE", 0, 200000),
    ]


def test_operstate_says_what_carrier_does_not(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    shutil.rmtree(tmp_path / "sys/class/infiniband")
    for netdev in ALL_FOUR:
        (tmp_path / f"sys/class/net/{netdev}/carrier").unlink(missing_ok=True)
    result = ask(tree.write(addr=False, rdma=False))
    assert [(port["netdev"], port["carrier"]) for port in result["ports"]] == [(RAIL0, True), (RAIL1, True), ("enp1s0f1np1", False), ("enP2p1s0f1np1", False)]


def test_pipes_and_folders_where_files_should_be(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    tree.write()
    for path in (f"sys/class/net/{RAIL0}/mtu", f"sys/class/infiniband/{HCA0}/ports/1/rate", "cmd/ip-route.json"):
        (tmp_path / path).unlink()
        os.mkfifo(tmp_path / path)
    (tmp_path / "cmd/rdma-link.json").unlink()
    (tmp_path / "cmd/rdma-link.json").mkdir()
    (tmp_path / "etc/netplan/a.yaml").mkdir(parents=True)
    result = ask(tmp_path)
    assert indices(result) == [3, 3]
    assert any("/cmd/ip-route.json (not a regular file)" in found["message"] for found in result["problems"])


def test_the_json_record_is_empty_and_the_text_beside_it_is_not(tmp_path: Path, ask: Any) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write(rdma=False)
    tree.file("cmd/rdma-link.json", "\n")
    tree.file(
        "cmd/rdma-link.txt", "".join(f"link {r['ifname']}/1 state {r['state']} physical_state {r['physical_state']} netdev {r['netdev']}\n" for r in tree.rdma)
    )
    assert ask(root)["problems"] == []


@pytest.mark.parametrize("text", ["[" * 300000, "{" * 300000, "[{" * 100000, '[{"ifname":' * 50000])
def test_hostile_nesting_ends_soon(tmp_path: Path, ask: Any, text: str) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write()
    tree.file("cmd/ip-addr.json", text)
    assert indices(ask(root)) == [3, 3]


@pytest.mark.parametrize("seed", range(25))
def test_random_damage_leads_to_no_wrong_address_or_index(tmp_path: Path, ask: Any, seed: int) -> None:
    choose = random.Random(seed)
    tree = spark(tmp_path, PAIR, up=ALL_FOUR if seed % 3 else (RAIL0, RAIL1))
    tree.file("etc/netplan/40-cx7.yaml", "network:\n  version: 2\n  ethernets:\n    enp1s0f0np0:\n      addresses: [192.168.100.10/24]\n")
    tree.file("cmd/ibv_devinfo.txt", f"hca_id:\t{HCA1}\n\tport:\t1\n\t\tstate:\tPORT_ACTIVE (4)\n\t\tactive_mtu:\t1024 (3)\n")
    tree.write()
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for path in choose.sample(files, len(files) // 2):
        data = path.read_bytes()
        damage = choose.randrange(6)
        if damage == 0:
            path.unlink()
        elif damage == 1:
            path.write_bytes(data[: choose.randrange(len(data) + 1)])
        elif damage == 2:
            path.write_bytes(bytes(choose.randrange(256) for _byte in range(40)))
        elif damage == 3:
            path.unlink()
            path.symlink_to(choose.choice(["missing", path.name, "/etc/hostname", ".."]))
        elif damage == 4:
            path.unlink()
            path.mkdir()
        else:
            path.write_bytes(data.replace(b":", b"", 1).replace(b"0", b"f", 3))
    for result in (ask(tmp_path), ask(tmp_path, fabric_addresses=["192.168.100.10/24", "192.168.101.10"], interfaces=["", RAIL1])):
        assert netdevs(result)[:2] == [RAIL0, RAIL1]
        for rail, hca, address in zip(result["rails"], (HCA0, HCA1), ("192.168.100.10", "192.168.101.10")):
            assert rail["hca"] == hca
            assert rail["ipv4"] in (address, None)
            assert rail["gid_index"] in (3, None)


def test_any_wiring_of_devices_and_any_wish_ends_in_an_answer(tmp_path: Path) -> None:
    choose = random.Random(7)
    tree = spark(tmp_path, PAIR, up=ALL_FOUR)
    tree.netdev("bond0", ["10.4.4.4/24"], kind="bond")
    tree.netdev("enp1s0f0np0.7", ["10.4.5.4/24"], kind="vlan", link=RAIL0)
    capture = read_tree(str(tree.write()))
    names = [record["ifname"] for record in tree.addr]
    texts = ["192.168.100.10/24", "192.168.101.10", "fd00::1/64", "169.254.1.1/16", "0.0.0.0/0", "::/0", "x", "", "10.4.5.0/24", "1.2.3.4/33", "127.0.0.1"]
    for _turn in range(200):
        records = copy.deepcopy(tree.addr)
        for record in choose.sample(records, len(records) // 2):
            record[choose.choice(["master", "link", "ifname"])] = choose.choice(names)
            record["linkinfo"] = {"info_kind": choose.choice(["vlan", "macvlan", "bond", "bridge", "vrf", "team", "veth"])}
            record["altnames"] = [choose.choice(names)]
        choose.shuffle(records)
        routes = [{"dst": choose.choice([*texts, "default"]), "dev": choose.choice(names), "prefsrc": choose.choice(texts)} for _route in range(4)]
        rdma = [{**row, "netdev": choose.choice(names)} for row in tree.rdma]
        commands = {"ip-addr": json.dumps(records), "ip-route": json.dumps(routes), "rdma-link": json.dumps(rdma)}
        addresses, cidrs, interfaces = ([choose.choice([*texts, *names]) for _wish in range(choose.randrange(4))] for _list in range(3))
        found = gather(replace(capture, commands=commands), Wishes(addresses, cidrs, interfaces), choose.choice([None, "1 2 192.168.100.10 22"]))
        json.dumps(found)
        assert all(entry["id"] and entry["message"] and entry["remedy"] for entry in found["problems"])
        assert all(isinstance(value, str) and value for value in found["env"].values())
