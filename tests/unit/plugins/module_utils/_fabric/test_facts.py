"""What roce_info knows (_fabric/facts.py and its parts): rails, GIDs, management, environment and problems, on captures and built trees."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import capture, facts
from shared_samples import needs_shared, samples
from unit.fixtures.roce.tree import (
    ADDRESSES,
    ALL_FOUR,
    HCA0,
    PAIR,
    RAIL0,
    RAIL1,
    SOCKETS,
    SPARK,
    V1,
    V2,
    Tree,
    from_pair,
    gid,
    ids,
    link_local,
    mapped,
    netdevs,
    run,
    set_down,
    spark,
    v4_gids,
)

BOTH = "rocep1s0f0,roceP2p1s0f0"
CIDRS = ["192.168.100.0/24", "192.168.101.0/24"]


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
    assert result["twins"] == {"0": ["enp1s0f0np0", "enP2p1s0f0np0"], "1": ["enp1s0f1np1", "enP2p1s0f1np1"]}
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
            assert "gid_index_differs" in ids(result)
            assert result["env"]["NCCL_IB_HCA"] == BOTH


def test_rail_on_a_vlan_that_is_named_or_has_the_address(tmp_path: Path) -> None:
    tree = spark(tmp_path, {"enP2p1s0f0np0": ["192.168.101.10/24"]}, gids={"enp1s0f0np0": v4_gids(None)})
    tree.netdev("enp1s0f0np0.100", ["192.168.100.10/24"], mtu=9000, link="enp1s0f0np0", kind="vlan")
    for index, kind in ((4, V1), (5, V2)):
        gid(tree, HCA0, index, kind, mapped("192.168.100.10"), "enp1s0f0np0.100")
    named: dict[str, Any] = {"interfaces": ["enp1s0f0np0.100", "enP2p1s0f0np0"]}
    for desired in ({"addresses": ADDRESSES}, named, {**named, "cidrs": CIDRS}):
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
    "no rdma link": ([], {"rdma": False}, True),
    "no ip route": ([], {"route": False}, True),
    "no sys/class/net": (["sys/class/net"], {}, True),
    "no phys_port_name": ([f"sys/class/net/{row[0]}/phys_port_name" for row in SPARK], {}, True),
    "no device": ([f"sys/class/net/{row[0]}/device" for row in SPARK], {}, True),
    "no states": ([f"sys/class/infiniband/{row[1]}/ports/1/{n}" for row in SPARK for n in ("state", "phys_state")], {}, True),
    "no infiniband": (["sys/class/infiniband"], {}, False),
    "no types": ([f"sys/class/infiniband/{row[1]}/ports/1/gid_attrs" for row in SPARK], {}, False),
}


@pytest.mark.parametrize("case", LOSSES)
def test_missing_parts(tmp_path: Path, case: str) -> None:
    import shutil

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
    hotplug = run(tree.write())["hotplug"]
    assert (hotplug["interface"], hotplug["files"]) == ("cx7_dbg", {"cx7_dbg/plugin": "1"})


def test_cable_in_but_the_other_machine_is_off(tmp_path: Path) -> None:
    result = run(spark(tmp_path, {}, up=(), down_state="POLLING").write())
    assert ids(result) == ["link_down"]


@pytest.mark.parametrize(("mtu", "rdma"), [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1280, 1024), (600, 256), (100, 0)])
def test_rdma_mtu(mtu: int, rdma: int) -> None:
    assert capture.rdma_mtu(mtu) == rdma


def test_link_local_ipv4_of_nvidias_first_playbook(tmp_path: Path) -> None:
    addresses = {"enp1s0f0np0": ["169.254.11.5/16"], "enP2p1s0f0np0": ["169.254.200.7/16"]}
    result = run(spark(tmp_path, addresses).write())
    assert [r["ipv4"] for r in result["rails"]] == ["169.254.11.5", "169.254.200.7"]
    assert ids(result) == ["link_local_only", "link_local_only", "one_subnet_for_both_rails"]


def test_two_addresses_are_ambiguous_without_a_desired_rail(tmp_path: Path) -> None:
    addresses = {"enp1s0f0np0": ["10.100.192.1/24", "192.168.100.10/24"], "enP2p1s0f0np0": ["192.168.101.10/24"]}
    gids = {"enp1s0f0np0": v4_gids("10.100.192.1") | v4_gids("192.168.100.10", at=4)}
    tree = spark(tmp_path, addresses, gids=gids)
    result = run(tree.write())
    assert result["rails"][0]["gid_index"] is None
    assert "gid_ambiguous" in ids(result)
    choices: list[dict[str, Any]] = [{"cidrs": CIDRS}, {"addresses": ADDRESSES}]
    for desired in choices:
        decided = run(tmp_path, **desired)
        assert [(r["ipv4"], r["gid_index"]) for r in decided["rails"]] == [("192.168.100.10", 5), ("192.168.101.10", 3)]
        assert ids(decided) == ["gid_index_differs"]
        assert "NCCL_IB_GID_INDEX" not in decided["env"]


def test_a_secondary_address_does_not_make_it_ambiguous(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR, gids={"enp1s0f0np0": v4_gids("192.168.100.10") | v4_gids("192.168.100.14", at=4)})
    entry = next(item for item in tree.addr if item["ifname"] == "enp1s0f0np0")
    entry["addr_info"].append({"family": "inet", "local": "192.168.100.14", "prefixlen": 24, "scope": "global", "secondary": True})
    assert run(tree.write())["rails"][0]["gid_index"] == 3


@pytest.mark.parametrize("desired", [{"cidrs": CIDRS}, {"addresses": ADDRESSES}], ids=["cidrs", "addresses"])
def test_crossed_networks_are_reported_and_the_hca_list_stays_canonical(tmp_path: Path, desired: dict[str, Any]) -> None:
    crossed = {"enp1s0f0np0": ["192.168.101.10/24"], "enP2p1s0f0np0": ["192.168.100.10/24"]}
    result = run(spark(tmp_path, crossed).write(), **desired)
    assert [(r["netdev"], r["gid_index"]) for r in result["rails"]] == [("enP2p1s0f0np0", 3), ("enp1s0f0np0", 3)]
    assert ids(result) == ["rails_crossed"]
    assert result["env"]["NCCL_IB_HCA"] == BOTH


# --- management ------------------------------------------------------------------------------------------------------------------


def test_the_ssh_session_is_the_management_path(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    result = run(tree.write(), ssh="192.168.100.11 50000 192.168.100.10 22")
    assert result["management"] == {
        "interface": "enp1s0f0np0",
        "address": "192.168.100.10",
        "prefix": 24,
        "gateway": None,
        "reason": "ssh session",
        "default_route_interfaces": ["enP7s7"],
        "protected": ["enP7s7", "enp1s0f0np0"],
    }
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


def test_the_only_addressed_interface_without_a_default_route(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    tree.routes = []
    management = run(tree.write())["management"]
    assert (management["interface"], management["reason"], management["protected"]) == ("enP7s7", "only addressed interface", [])
    tree.netdev("eno2", ["10.44.0.1/24"])
    assert run(tree.write())["management"]["interface"] is None


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    state = tmp_path / "sys/class/infiniband/rocep1s0f0/ports/1/state"
    state.unlink()
    state.mkdir()
    result = run(tree.write())
    assert "/sys/class/infiniband/rocep1s0f0/ports/1/state" in next(p["message"] for p in result["problems"] if p["id"] == "unreadable")
    assert by_name(result)["enp1s0f0np0"]["state"] == "ACTIVE"


# --- what follows from problems --------------------------------------------------------------------------------------------------


def test_repair_takes_the_rails_above_the_lowest_index_and_those_without_gid(tmp_path: Path) -> None:
    gids = {"enp1s0f0np0": v4_gids("192.168.100.10"), "enP2p1s0f0np0": v4_gids("192.168.101.10", at=4)}
    drifted = run(spark(tmp_path / "a", PAIR, gids=gids).write(), addresses=["192.168.100.10/24", "192.168.101.10/24"])
    assert [rail["netdev"] for rail in facts.repairs_of(drifted)] == ["enP2p1s0f0np0"]
    cold = run(spark(tmp_path / "b", PAIR, gids={"enp1s0f0np0": v4_gids(None)}).write())
    assert [rail["netdev"] for rail in facts.repairs_of(cold)] == ["enp1s0f0np0"]
    assert facts.repairs_of(run(spark(tmp_path / "c", PAIR).write())) == []


def test_repair_leaves_a_rail_alone_that_is_down_or_carries_the_session(tmp_path: Path) -> None:
    gids = {"enp1s0f0np0": v4_gids("192.168.100.10"), "enP2p1s0f0np0": v4_gids("192.168.101.10", at=4)}
    tree = spark(tmp_path, PAIR, gids=gids)
    assert facts.repairs_of(run(tree.write(), ssh="192.168.101.11 1 192.168.101.10 22")) == []
    assert facts.repairs_of(run(spark(tmp_path / "d", PAIR, gids=gids, up=("enp1s0f0np0",)).write())) == []


def test_assignment_of_the_role_follows_a_moved_cable(tmp_path: Path) -> None:
    root = spark(tmp_path, PAIR, up=("enp1s0f1np1", "enP2p1s0f1np1")).write()
    assert netdevs(run(root, addresses=ADDRESSES, follow_link=True)) == ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert netdevs(run(root, addresses=ADDRESSES)) == ["enp1s0f0np0", "enP2p1s0f0np0"]


# --- Problems: what was found, and its remedy.

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
    "no address": ({"addresses": {}}, None, {}, "gid_missing", f"because {RAIL0} has no fabric IPv4 address; its table", "its IPv4 address"),
    "no table": ({}, lambda t: shutil.rmtree(t.root / f"sys/class/infiniband/{HCA0}"), {}, "gid_missing", "its table: empty or unreadable", "as root"),
    "types unread": ({}, drop_types, {}, "gid_missing", "3=::ffff:192.168.100.10 type unread", "(gids, gid_attrs) as root"),
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
        {"addresses": ["10.0.1.60/24", "192.168.101.10/24"]},
        "rail_is_management",
        "enP7s7 carries the default route",
        "Remove the network of enP7s7 from gb10_fabric_cidrs",
    ),
    "a session over the rail": ({}, None, {"ssh": "1.1.1.1 9 192.168.100.10 22"}, "rail_is_management", "the SSH session", "Connect by the 10 GbE"),
    "a second default route": (
        {},
        lambda t: t.default_route(RAIL0, "192.168.100.1", 900),
        {},
        "rail_is_management",
        "in addition to the one of",
        "never-default",
    ),
}


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
    assert ids(result) == ["no_rdma"] * 3 + (["unreadable"] if text is None or "bash" in text else [])
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
