"""What roce_info knows (_fabric/problems.py and its parts): rails, GIDs, management, environment and problems.

On captures, on built trees, and on states of machines that field reports describe (DGX Spark, GX10, GB10).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import capture, rails
from shared_samples import needs_shared, samples
from unit.fixtures.roce import tree as fixture
from unit.fixtures.roce.tree import (
    ADDRESSES,
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
    from_pair,
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

BOTH = "rocep1s0f0,roceP2p1s0f0"


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rail["netdev"]: rail for rail in result["rails"]}


# --- the captures of real machines ---------------------------------------------------------------------------------------------


@needs_shared
@pytest.mark.parametrize(("node", "last", "address"), [("head", "10", "10.0.1.60"), ("worker", "11", "10.0.1.61")])
def test_pair_a_is_resolved_on_both_nodes(tmp_path: Path, node: str, last: str, address: str) -> None:
    result = run(from_pair(samples() / "pairA-f0f0" / node, tmp_path).write())
    rails = result["rails"]
    assert [(r["netdev"], r["hca"], r["cage"], r["state"]) for r in rails] == [
        ("enp1s0f0np0", "rocep1s0f0", 0, "ACTIVE"),
        ("enP2p1s0f0np0", "roceP2p1s0f0", 0, "ACTIVE"),
    ]
    assert [r["ipv4"] for r in rails] == [f"192.168.100.{last}", f"192.168.101.{last}"]
    assert [r["gid_index"] for r in rails] == [3, 3]
    assert [r["active_mtu"] for r in rails] == [4096, 4096]
    assert rails[0]["mtu"] == 9000
    assert result["env"] == {"NCCL_IB_HCA": BOTH, "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, RAIL0)}
    assert result["management"]["interface"] == "enP7s7"
    assert result["management"]["address"] == address
    assert result["problems"] == []
    # ethtool was recorded for one rail of each node: "Speed: 200000Mb/s"
    recorded = by_name(result)["enP2p1s0f0np0" if node == "head" else "enp1s0f0np0"]
    assert recorded["speed_mbps"] == 200000


@needs_shared
def test_gid_dump_of_a_real_card_skips_the_zero_entry(tmp_path: Path) -> None:
    gids: dict[str, dict[int, tuple[str, str]]] = {}
    for line in (samples() / "sysfs-gid-dump.env_tool.txt").read_text().splitlines():
        _word, hca, _port, index, *kind, gid = line.split()
        netdev = next(row[0] for row in SPARK if row[1] == hca)
        gids.setdefault(netdev, {})[int(index)] = (" ".join(kind), gid)
    result = run(spark(tmp_path, PAIR, gids=gids).write())
    assert [r["gid_index"] for r in result["rails"]] == [3, 3]
    assert [g["index"] for g in by_name(result)["enp1s0f0np0"]["gids"]] == [0, 1, 2, 3]


# --- cases -----------------------------------------------------------------------------------------------------------------------


TABLES: dict[str, tuple[dict[int, tuple[str, str]], int | None]] = {
    "usual": (v4_gids("192.168.100.10"), 3),
    "moved to 4 and 5": (v4_gids("192.168.100.10", at=4) | {2: (V1, link_local(7)), 3: (V2, link_local(7))}, 5),
    "only v1": ({2: (V1, mapped("192.168.100.10"))}, None),
    "stale address only": (v4_gids("192.168.100.99"), None),
    "twice": (v4_gids("192.168.100.10", at=2) | v4_gids("192.168.100.10", at=6), None),
    "global IPv6 in between": (
        {0: (V1, link_local(1)), 1: (V2, link_local(1)), 2: (V2, "2001:0db8:0000:0000:0000:0000:0000:0001"), 3: (V2, mapped("192.168.100.10"))},
        3,
    ),
    "type unread": ({3: ("", mapped("192.168.100.10"))}, None),
    "nothing": ({}, None),
    "garbage": ({1: (V2, "fe80:0000:0000:0000:xxxx:xxxx:xxxx:xxxx"), 3: (V2, mapped("192.168.100.10"))}, 3),
}


@pytest.mark.parametrize("case", TABLES)
def test_gid_index_is_found_by_type_and_address(tmp_path: Path, case: str) -> None:
    table, expected = TABLES[case]
    tree = spark(tmp_path, PAIR, gids={"enp1s0f0np0": table})
    result = run(tree.write())
    assert by_name(result)["enp1s0f0np0"]["gid_index"] == expected
    if expected is None:
        assert ("gid_ambiguous" if case == "twice" else "gid_missing") in ids(result)
        assert result["env"]["NCCL_IB_HCA"] == "roceP2p1s0f0"
    agree = expected == 3
    assert ("NCCL_IB_GID_INDEX" in result["env"]) is agree
    if not agree:
        assert result["env"]["NCCL_IB_ADDR_FAMILY"] == "AF_INET"
        assert result["env"]["NCCL_IB_ROCE_VERSION_NUM"] == "2"
        if expected is not None:
            assert (result["problems"], result["env"]["NCCL_IB_HCA"]) == ([], BOTH)


def test_rail_on_a_vlan_that_is_named_or_has_the_address(tmp_path: Path) -> None:
    tree = spark(tmp_path, {"enP2p1s0f0np0": ["192.168.101.10/24"]}, gids={"enp1s0f0np0": v4_gids(None)})
    tree.netdev("enp1s0f0np0.100", ["192.168.100.10/24"], mtu=9000, link="enp1s0f0np0", kind="vlan")
    for index, kind in ((4, V1), (5, V2)):
        gid(tree, HCA0, index, kind, mapped("192.168.100.10"), "enp1s0f0np0.100")
    named: dict[str, Any] = {"interfaces": ["enp1s0f0np0.100", "enP2p1s0f0np0"]}
    for desired in ({"addresses": ADDRESSES}, named):
        result = run(tree.write(), **desired)
        rail = by_name(result)["enp1s0f0np0.100"]
        assert (rail["hca"], rail["gid_index"], rail["ipv4"]) == ("rocep1s0f0", 5, "192.168.100.10")
        assert len(result["rails"]) == 2
        assert result["env"]["NCCL_SOCKET_IFNAME"] == "enp1s0f0np0.100"


def test_no_order_of_any_list_matters(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    tree.rdma.reverse()
    tree.addr.reverse()
    result = run(tree.write())
    assert [r["netdev"] for r in result["rails"]] == ["enp1s0f0np0", "enP2p1s0f0np0"]
    assert result["env"]["NCCL_IB_HCA"] == BOTH


LOSSES: dict[str, tuple[list[str], dict[str, Any], bool]] = {
    # what is missing: paths to remove, what write() leaves out, whether the rails are still complete
    "no rdma link": ([], {"rdma": False}, False),
    "no ip route": ([], {"route": False}, True),
    "no sys/class/net": (["sys/class/net"], {}, True),
    "no phys_port_name": ([f"sys/class/net/{row[0]}/phys_port_name" for row in SPARK], {}, True),
    "no device": ([f"sys/class/net/{row[0]}/device" for row in SPARK], {}, True),
    "no infiniband": (["sys/class/infiniband"], {}, False),
    "no types": ([f"sys/class/infiniband/{row[1]}/ports/1/gid_attrs" for row in SPARK], {}, False),
}


@pytest.mark.parametrize("case", LOSSES)
def test_missing_parts(tmp_path: Path, case: str) -> None:
    gone, left_out, complete = LOSSES[case]
    tree = spark(tmp_path, PAIR)
    for path in gone:
        shutil.rmtree(tmp_path / path) if (tmp_path / path).is_dir() else (tmp_path / path).unlink()
    result = run(tree.write(**left_out))
    rails = by_name(result)
    assert {"enp1s0f0np0", "enP2p1s0f0np0"} <= set(rails)
    assert [r["ipv4"] for r in result["rails"]] == ["192.168.100.10", "192.168.101.10"]
    if complete:
        assert [r["gid_index"] for r in result["rails"]] == [3, 3]
        assert [r["hca"] for r in result["rails"]] == ["rocep1s0f0", "roceP2p1s0f0"]
        assert result["env"]["NCCL_IB_HCA"] == BOTH
    else:
        assert [r["gid_index"] for r in result["rails"]] == [None, None]
        assert "NCCL_IB_GID_INDEX" not in result["env"]
    missing = [p for p in result["problems"] if p["id"] == "unreadable"]
    assert len(missing) == len(left_out)


@pytest.mark.parametrize("text", ['[{"ifname":"lo"},{"ifna', "", "[{}]"])
def test_output_of_ip_that_is_not_understood_is_reported_and_gives_no_index(tmp_path: Path, text: str) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write()
    tree.file("cmd/ip-addr.json", text)
    result = run(root)
    assert [(rail["netdev"], rail["ipv4"], rail["gid_index"]) for rail in result["rails"]] == [(RAIL0, None, None), ("enP2p1s0f0np0", None, None)]
    assert f"`ip -j -d addr` is not understood (starts with {text!r})" in next(found["message"] for found in result["problems"] if found["id"] == "unreadable")


def test_older_hotplug_interface(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file("sys/devices/platform/MTKP0001:00/cx7_dbg/plugin", "1\n")
    assert run(tree.write())["hotplug"] == {"present": True, "plugged": None, "summary": "plugin=1"}


def test_cable_in_but_the_other_machine_is_off(tmp_path: Path) -> None:
    result = run(spark(tmp_path, {}, up=(), down_state="POLLING").write())
    assert ids(result) == ["link_down"]


@pytest.mark.parametrize(("mtu", "rdma"), [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1280, 1024), (600, 256), (100, 0)])
def test_rdma_mtu(mtu: int, rdma: int) -> None:
    assert capture.rdma_mtu(mtu) == rdma


def test_two_addresses_are_ambiguous_without_a_desired_rail(tmp_path: Path) -> None:
    addresses = {"enp1s0f0np0": ["10.100.192.1/24", "192.168.100.10/24"], "enP2p1s0f0np0": ["192.168.101.10/24"]}
    gids = {"enp1s0f0np0": v4_gids("10.100.192.1") | v4_gids("192.168.100.10", at=4)}
    tree = spark(tmp_path, addresses, gids=gids)
    result = run(tree.write())
    assert result["rails"][0]["gid_index"] is None
    assert "gid_ambiguous" in ids(result)
    decided = run(tmp_path, addresses=ADDRESSES)
    assert [(r["ipv4"], r["gid_index"]) for r in decided["rails"]] == [("192.168.100.10", 5), ("192.168.101.10", 3)]
    assert (ids(decided), "NCCL_IB_GID_INDEX" in decided["env"]) == ([], False)


def test_a_secondary_address_does_not_make_it_ambiguous(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR, gids={"enp1s0f0np0": v4_gids("192.168.100.10") | v4_gids("192.168.100.14", at=4)})
    entry = next(item for item in tree.addr if item["ifname"] == "enp1s0f0np0")
    entry["addr_info"].append({"family": "inet", "local": "192.168.100.14", "prefixlen": 24, "scope": "global", "secondary": True})
    assert run(tree.write())["rails"][0]["gid_index"] == 3


def test_crossed_networks_are_reported_and_the_hca_list_stays_canonical(tmp_path: Path) -> None:
    crossed = {"enp1s0f0np0": ["192.168.101.10/24"], "enP2p1s0f0np0": ["192.168.100.10/24"]}
    result = run(spark(tmp_path, crossed).write(), addresses=ADDRESSES)
    assert [(r["netdev"], r["gid_index"]) for r in result["rails"]] == [("enP2p1s0f0np0", 3), ("enp1s0f0np0", 3)]
    assert ids(result) == ["rails_crossed"]
    assert result["env"]["NCCL_IB_HCA"] == BOTH


# --- management ------------------------------------------------------------------------------------------------------------------


def test_the_ssh_session_is_the_management_path(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    result = run(tree.write(), ssh="192.168.100.11 50000 192.168.100.10 22")
    assert result["management"] == {
        "interface": "enp1s0f0np0", "address": "192.168.100.10", "prefix": 24, "gateway": None, "reason": "ssh session",
        "default_route_interfaces": ["enP7s7"], "protected": ["enP7s7", "enp1s0f0np0"],
    }  # fmt: skip
    assert ids(result) == ["rail_is_management"]


@pytest.mark.parametrize("ssh", [None, "", "x", "::1 1 ::1 22", "10.0.1.1 1 10.99.99.99 22", "fe80::2%enP7s7 1 fe80::77%enP7s7 22"])
def test_an_unusable_ssh_connection_falls_back(tmp_path: Path, ssh: str | None) -> None:
    result = run(spark(tmp_path, PAIR).write(), ssh=ssh)
    assert (result["management"]["interface"], result["management"]["reason"]) == ("enP7s7", "default route")


def test_members_of_a_bond_with_the_default_route_are_protected(tmp_path: Path) -> None:
    tree = spark(tmp_path, {})
    tree.netdev("bond0", ["10.0.2.60/24"], kind="bond")
    for item in tree.addr:
        if item["ifname"] in ("enp1s0f0np0", "enp1s0f1np1"):
            item["master"] = "bond0"
    tree.default_route("bond0", "10.0.2.1", metric=1)
    result = run(tree.write())
    assert {"bond0", "enp1s0f0np0", "enp1s0f1np1"} <= set(result["management"]["protected"])


# --- what follows from problems --------------------------------------------------------------------------------------------------


def test_repair_takes_the_rails_above_the_lowest_index_and_those_without_gid(tmp_path: Path) -> None:
    gids = {"enp1s0f0np0": v4_gids("192.168.100.10"), "enP2p1s0f0np0": v4_gids("192.168.101.10", at=4)}
    drifted = run(spark(tmp_path / "a", PAIR, gids=gids).write(), addresses=["192.168.100.10/24", "192.168.101.10/24"])
    assert [rail["netdev"] for rail in rails.repairs_of(drifted)] == ["enP2p1s0f0np0"]
    cold = run(spark(tmp_path / "b", PAIR, gids={"enp1s0f0np0": v4_gids(None)}).write())
    assert [rail["netdev"] for rail in rails.repairs_of(cold)] == ["enp1s0f0np0"]
    assert rails.repairs_of(run(spark(tmp_path / "c", PAIR).write())) == []


def test_repair_leaves_a_rail_alone_that_is_down_or_carries_the_session(tmp_path: Path) -> None:
    gids = {"enp1s0f0np0": v4_gids("192.168.100.10"), "enP2p1s0f0np0": v4_gids("192.168.101.10", at=4)}
    tree = spark(tmp_path, PAIR, gids=gids)
    assert rails.repairs_of(run(tree.write(), ssh="192.168.101.11 1 192.168.101.10 22")) == []
    assert rails.repairs_of(run(spark(tmp_path / "d", PAIR, gids=gids, up=("enp1s0f0np0",)).write())) == []


def test_assignment_of_the_role_follows_a_moved_cable(tmp_path: Path) -> None:
    root = spark(tmp_path, PAIR, up=("enp1s0f1np1", "enP2p1s0f1np1")).write()
    assert netdevs(run(root, addresses=ADDRESSES, follow_link=True)) == ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert netdevs(run(root, addresses=ADDRESSES)) == ["enp1s0f0np0", "enP2p1s0f0np0"]


# --- message and remedy of a problem ---------------------------------------------------------------------------------------------


def drop_types(tree: Tree, *_names: str) -> None:
    for index in range(4):
        (tree.root / f"sys/class/infiniband/{HCA0}/ports/1/gid_attrs/types/{index}").unlink()


MESSAGES: dict[str, tuple[dict[str, Any], Any, dict[str, Any], str, str, str]] = {
    # name: (spark's arguments, a change, desired state, id, part of the message, part of the remedy)
    "a twin that is set down": ({"up": (RAIL0,)}, lambda t: set_down(t, RAIL1), {}, "link_down", "administratively down", f"`ip link set {RAIL1} up`"),
    "its other half": ({"up": (RAIL0,)}, lambda t: set_down(t, RAIL1), {}, "ports_asymmetric", f"its twin {RAIL1} does not", f"`ip link set {RAIL1} up`"),
    "a twin without a link": ({"up": (RAIL0,)}, None, {}, "link_down", f"the cable is in, because its twin {RAIL0} has a link", "Reboot both machines"),
    "all set down": ({"up": ()}, lambda t: set_down(t, *ALL_FOUR), {}, "no_cable", "all are administratively down", f"First `ip link set {RAIL0} up`"),
    "a moved cable": ({"up": ALL_FOUR[1::2]}, None, {}, "link_down", "the cable is in cage 1, the address on cage 0", "moves the addresses to cage 1"),
    "no roce role": ({"mtu": 1500}, None, {}, "mtu_small", "has MTU 1500, expected 9000 (RDMA MTU 1024 instead of 4096)", "Run the roce role"),
    "one address twice": ({"addresses": dict.fromkeys(PAIR, PAIR[RAIL0])}, None, {}, "one_subnet_for_both_rails", "have the same address", "a /24 of its own"),
    "the address of the management": ({"management": "192.168.100.10/24"}, None, {}, "subnet_of_management", "has the address of enP7s7", "a /24 of its own"),
    "another address than the wanted": ({}, None, {"addresses": ["192.168.100.99"]}, "no_ipv4", "(expected: 192.168.100.99; found: 192.168.100.10/24)", "roce"),
    "no table": ({}, lambda t: shutil.rmtree(t.root / f"sys/class/infiniband/{HCA0}"), {}, "gid_missing", "its table: empty or unreadable", "as root"),
    "types unread": ({}, drop_types, {}, "gid_missing", "3=::ffff:192.168.100.10 type unread", "(gids, gid_attrs) as root"),
    "a GID of another device": (
        {}, lambda t: gid(t, HCA0, 3, V2, mapped("192.168.100.10"), "eth9"), {}, "gid_missing", "3=::ffff:192.168.100.10 RoCE v2 of eth9", "roce_gid_repair",
    ),
    "the management as a rail": (
        {}, None, {"addresses": ["10.0.1.60/24", "192.168.101.10/24"]}, "rail_is_management", "enP7s7 carries the default route",
        "Remove the network of enP7s7 from gb10_fabric_cidrs",
    ),
    "a session over the rail": ({}, None, {"ssh": "1.1.1.1 9 192.168.100.10 22"}, "rail_is_management", "the SSH session", "Connect by the 10 GbE"),
    "a second default route": (
        {}, lambda t: t.default_route(RAIL0, "192.168.100.1", 900), {}, "rail_is_management", "in addition to the one of", "never-default",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("args", "change", "desired", "pid", "message", "remedy"), MESSAGES.values(), ids=MESSAGES.keys())
def test_a_problem_names_what_was_found_and_its_own_remedy(
    tmp_path: Path, args: dict[str, Any], change: Any, desired: dict[str, Any], pid: str, message: str, remedy: str
) -> None:
    tree = spark(tmp_path, **{"addresses": PAIR, **args})
    if change is not None:
        change(tree)
    result = run(tree.write(), **desired)
    found = next(entry for entry in result["problems"] if entry["id"] == pid)
    assert "rails_crossed" not in ids(result)
    assert message in found["message"]
    assert remedy in found["remedy"]


@pytest.mark.parametrize("text", [None, "bash: rdma: command not found\n", "[ ]\n", ""])
def test_a_node_without_rdma_devices(tmp_path: Path, text: str | None) -> None:
    root = spark(tmp_path, PAIR).write(rdma=False)
    shutil.rmtree(root / "sys/class/infiniband")
    if text is not None:
        (root / "cmd/rdma-link.json").write_text(text)
    result = run(root)
    assert ids(result) == ["no_rdma"] * 2 + (["unreadable"] if text is None or "bash" in text else [])
    assert result["env"] == dict.fromkeys(SOCKETS, RAIL0)


@pytest.mark.parametrize("up", [RAIL0, RAIL1])
def test_a_twin_with_a_link_comes_before_the_rail_without_one_and_the_cable_is_not_asked_for(tmp_path: Path, up: str) -> None:
    found = run(spark(tmp_path, PAIR, up=(up,)).write())["problems"]
    named = [each["id"] for each in found if each["id"] in ("ports_asymmetric", "link_down")]
    assert named == ["ports_asymmetric", "link_down"]
    assert not [each["remedy"] for each in found if "Plug the QSFP cable" in each["remedy"]]


@pytest.mark.parametrize("up", [(RAIL0, "enp1s0f1np1"), (RAIL0,)], ids=["two cables", "one cable"])
def test_the_second_segments_functions_are_gone_and_both_cages_are_addressed(tmp_path: Path, up: tuple[str, ...]) -> None:
    tree = spark(tmp_path, {RAIL0: PAIR[RAIL0], "enp1s0f1np1": PAIR[RAIL1]}, up=up)
    tree.addr = [item for item in tree.addr if not item["ifname"].startswith("enP2")]
    tree.rdma = [item for item in tree.rdma if not item["ifname"].startswith("roceP2")]
    for place in (*tmp_path.glob("sys/class/net/enP2*"), *tmp_path.glob("sys/class/infiniband/roceP2*")):
        shutil.rmtree(place)
    result = run(tree.write())
    assert netdevs(result) == [RAIL0, "enp1s0f1np1"]
    assert [found["message"].split(";")[0] for found in result["problems"] if found["id"] == "ports_asymmetric"] == [
        f"Only {RAIL0} is visible in cage 0",
        "Only enp1s0f1np1 is visible in cage 1",
    ]


# --- States of machines that field reports describe.


def test_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {RAIL0: "rail0", RAIL1: "rail1", "enp1s0f1np1": "spare0", "enP2p1s0f1np1": "spare1"}
    monkeypatch.setattr(fixture, "SPARK", [(names[netdev], *row) for netdev, *row in SPARK])
    result = run(spark(tmp_path, {names[name]: addresses for name, addresses in PAIR.items()}, up=("rail0", "rail1")).write())
    assert netdevs(result) == ["rail0", "rail1"]
    assert [(rail["hca"], rail["cage"], rail["gid_index"]) for rail in result["rails"]] == [(HCA0, 0, 3), (HCA1, 0, 3)]
    assert result["env"] == {"NCCL_IB_HCA": f"{HCA0},{HCA1}", "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, "rail0")}
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
    for found in (result, run(tmp_path, addresses=ADDRESSES)):
        assert (netdevs(found), found["problems"], found["env"]) == ([RAIL0, RAIL1], [], result["env"])
    desired = run(tmp_path, addresses=[*ADDRESSES, "192.168.102.10/24"])
    assert "NCCL_IB_GID_INDEX" not in desired["env"]
    assert "no_ipv4" in ids(desired)


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


def test_both_cages_have_the_same_addresses_and_one_has_the_cable(tmp_path: Path) -> None:
    either = PAIR | {"enp1s0f1np1": PAIR[RAIL0], "enP2p1s0f1np1": PAIR[RAIL1]}
    result = run(spark(tmp_path, either, up=("enp1s0f1np1", "enP2p1s0f1np1")).write(), addresses=ADDRESSES)
    assert (netdevs(result), result["problems"]) == (["enp1s0f1np1", "enP2p1s0f1np1"], [])
    assert result["env"] == {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "NCCL_IB_GID_INDEX": "3", **dict.fromkeys(SOCKETS, "enp1s0f1np1")}


@pytest.mark.parametrize("state", ["DOWN", "ACTIVE_DEFER"])
def test_a_port_that_is_not_active_carries_nothing(tmp_path: Path, state: str) -> None:
    tree = spark(tmp_path, PAIR)
    next(item for item in tree.rdma if item["ifname"] == HCA1)["state"] = state
    result = run(tree.write())
    assert result["rails"][1]["state"] == state
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
    assert [result["hotplug"][key] for key in ("present", "plugged")] == [True, plugged]
    assert (result["rails"], result["env"], result["management"]["interface"]) == ([], {}, "enP7s7")
    wanted = run(tmp_path, addresses=ADDRESSES)
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


@pytest.mark.parametrize(
    ("desired", "words"),
    [
        ({"addresses": [ADDRESSES[0], "nonsense"]}, "Rail 1 (nonsense) is not valid: "),
        ({"addresses": ["fd00::1/64"]}, "Rail 0 (fd00::1/64) is not valid: "),
        ({"interfaces": [RAIL0, RAIL0]}, f"{RAIL0} is named twice."),
    ],
)
def test_an_impossible_desired_rail_is_reported(tmp_path: Path, desired: dict[str, Any], words: str) -> None:
    result = run(spark(tmp_path, PAIR).write(), **desired)
    assert any(words in found["message"] for found in result["problems"] if found["id"] == "bad_input")


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
    assert set(ids(result)) == {"rail_is_management"} | (set() if addressed else {"no_ipv4"})


# --- speed and MTU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "seen", "degraded"),
    [("100000", 100000, True), ("-1", None, False), ("4294967295", None, False), ("garbage", None, False), ("400000", 400000, False)],
)
def test_speeds(tmp_path: Path, speed: str, seen: int | None, degraded: bool) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file(f"sys/class/net/{RAIL0}/speed", speed)
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
        tree.hca(hca, netdev, gids={0: (V2, link_local(number)), 1: (V2, mapped(f"10.77.{number}.1"))})
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
    tree.hca("rxe0", "enP7s7", gids={0: (V2, link_local(7)), 1: (V2, mapped("10.0.1.60"))})
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
