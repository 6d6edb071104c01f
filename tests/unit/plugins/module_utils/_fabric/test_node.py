"""Facts of a node from other sources than usual, and from damaged output of `ip` and `rdma`."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.parse import is_truncated, parse_ip_addr, parse_ip_route, parse_mtu
from unit.fixtures.roce.tree import (
    ADDRESSES,
    ALL_FOUR,
    HCA0,
    HCA1,
    PAIR,
    RAIL0,
    RAIL1,
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
    spark,
    v4_gids,
)

CIDRS = ["192.168.100.0/24", "192.168.101.0/24"]
OTHER_HCAS = {row[1]: f"mlx5_{number}" for number, row in enumerate(SPARK)}


# --- how a device and its HCA are joined -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["IPv4 address", "MAC address"])
def test_an_hca_is_joined_to_its_netdev_by_its_gids(tmp_path: Path, by: str) -> None:
    tree = spark(tmp_path, PAIR if by == "IPv4 address" else {}, hca_names=OTHER_HCAS)
    for row in tree.rdma:
        del row["netdev"]
    for number, (netdev, *_rest) in enumerate(SPARK):
        shutil.rmtree(tmp_path / f"sys/class/infiniband/mlx5_{number}/ports/1/gid_attrs/ndevs")
        if by == "MAC address":
            link(tree, netdev)["address"] = f"4c:bb:47:00:{number:02x}:6e"
            tree.file(f"sys/class/infiniband/mlx5_{number}/ports/1/gids/1", f"fe80:0000:0000:0000:4ebb:47ff:fe00:{number:02x}6e\n")
    result = run(tree.write())
    assert [(rail["netdev"], rail["hca"]) for rail in result["rails"]] == [(RAIL0, "mlx5_0"), (RAIL1, "mlx5_2")]
    assert indices(result) == ([3, 3] if by == "IPv4 address" else [None, None])


@pytest.mark.parametrize("text", [False, True])
def test_an_hca_is_joined_to_its_netdev_by_the_interface_index_of_rdma_link(tmp_path: Path, text: bool) -> None:
    tree = spark(tmp_path, PAIR, hca_names=OTHER_HCAS)
    for row in tree.rdma:
        row["netdev_index"] = link(tree, row.pop("netdev"))["ifindex"]
        row.pop("netdev_ifindex")
    root = tree.write()
    shutil.rmtree(root / "sys/class")
    if text:
        lines = [f"link {r['ifname']}/1 state {r['state']} physical_state {r['physical_state']} netdev_index {r['netdev_index']} \n" for r in tree.rdma]
        tree.file("cmd/rdma-link.json", "".join(lines))
    result = run(root)
    assert [(rail["netdev"], rail["hca"], rail["state"]) for rail in result["rails"]] == [(RAIL0, "mlx5_0", "ACTIVE"), (RAIL1, "mlx5_2", "ACTIVE")]


def test_rdma_link_in_the_text_form_with_indices(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write(rdma=False)
    shutil.rmtree(root / "sys/class/infiniband")
    rows = f"1/1: {HCA0}/1: state ACTIVE physical_state LINK_UP netdev {RAIL0} \n2/1: {HCA1}/1: state DOWN physical_state LINK_UP netdev {RAIL1} \n"
    tree.file("cmd/rdma-link.json", f"{rows}3/1: odd/1:\n")
    assert [(rail["hca"], rail["state"]) for rail in run(root)["rails"]] == [(HCA0, "ACTIVE"), (HCA1, "DOWN")]


def test_names_without_np_have_cage_and_order_without_sysfs(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for name, hca in (("enP2p1s0f0", HCA1), ("enp1s0f0", HCA0)):
        tree.netdev(name, PAIR[f"{name}np0"], mtu=9000, sysfs=False)
        tree.hca(hca, name, sysfs=False)
    result = run(tree.write())
    assert [(rail["netdev"], rail["cage"]) for rail in result["rails"]] == [("enp1s0f0", 0), ("enP2p1s0f0", 0)]


def test_ip_with_details_replaces_sysfs(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    for number, (netdev, _hca, pci, phys) in enumerate(SPARK):
        link(tree, netdev).update({"ifname": f"port{number}", "parentbus": "pci", "parentdev": pci, "phys_port_name": phys})
        tree.rdma[number]["netdev"] = f"port{number}"
    root = tree.write()
    shutil.rmtree(root / "sys/class/net")
    result = run(root)
    assert [(rail["netdev"], rail["cage"], rail["pci"]) for rail in result["rails"]] == [("port0", 0, "0000:01:00.0"), ("port2", 0, "0002:01:00.0")]
    assert result["twins"] == {"0": ["port0", "port2"], "1": ["port1", "port3"]}


# --- states, MTU, mode of the card -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "word"), [("4", "ACTIVE"), ("1", "DOWN"), ("0: NOP", "NOP")])
def test_port_states_as_numbers(tmp_path: Path, state: str, word: str) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file(f"sys/class/infiniband/{HCA0}/ports/1/state", state)
    tree.file(f"sys/class/infiniband/{HCA0}/ports/1/phys_state", "5")
    port = run(tree.write())["ports"][0]
    assert (port["state"], port["phys_state"]) == (word, "LINKUP")


def test_operstate_when_carrier_cannot_be_read(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    shutil.rmtree(tmp_path / "sys/class/infiniband")
    for netdev in ALL_FOUR:
        (tmp_path / f"sys/class/net/{netdev}/carrier").unlink(missing_ok=True)
    result = run(tree.write(addr=False, rdma=False))
    assert [(port["netdev"], port["carrier"]) for port in result["ports"]] == [(RAIL0, True), (RAIL1, True), ("enp1s0f1np1", False), ("enP2p1s0f1np1", False)]


SPELLINGS = [("4096 (5)", 4096), ("IBV_MTU_1024", 1024), ("1024(3)", 1024), ("3", 1024), ("5: 4096", 4096), ("x", None), ("9", None), (None, None)]


@pytest.mark.parametrize(("text", "size"), SPELLINGS)
def test_spellings_of_an_rdma_mtu(text: str | None, size: int | None) -> None:
    assert parse_mtu(text) == size


@pytest.mark.parametrize("path", ["cmd/ibv_devinfo.txt", f"sys/class/infiniband/{HCA0}/ports/1/active_mtu"])
def test_sources_of_the_rdma_mtu(tmp_path: Path, path: str) -> None:
    tree = spark(tmp_path, PAIR)
    tree.file(path, f"hca_id:\t{HCA0}\n\tport:\t1\n\t\tactive_mtu:\t\t1024 (3)\n" if path.startswith("cmd") else "1024 (3)\n")
    result = run(tree.write())
    assert [rail["active_mtu"] for rail in result["rails"]] == [1024, 4096]
    assert ids(result) == ["active_mtu_small"]


@pytest.mark.parametrize("sysfs", [True, False])
@pytest.mark.parametrize("netdev", [True, False])
def test_a_card_in_infiniband_mode(tmp_path: Path, sysfs: bool, netdev: bool) -> None:
    tree = bare(tmp_path)
    for number, (name, _hca, pci, _phys) in enumerate(SPARK):
        both = f"ib{name[2:-3]}"  # rdma link names no netdev in this mode, and udev gives the HCA and the device one name
        if netdev:
            tree.netdev(both, [f"192.168.10{number}.10/24"], mtu=2044, pci=pci, vendor="0x15b3", driver="mlx5_core", kind="ipoib")
            link(tree, both)["link_type"] = "infiniband"
        tree.hca(both, None, gids={0: ("", link_local(number))})
        tree.file(f"sys/class/infiniband/{both}/ports/1/link_layer", "InfiniBand\n")
    root = tree.write()
    if not sysfs:
        shutil.rmtree(root / "sys")
    result = run(root)
    assert (result["rails"], result["env"], set(ids(result))) == ([], {}, {"infiniband_mode"})
    assert result["management"]["interface"] == "enP7s7"


def test_infiniband_mode_by_ibv_devinfo_alone(tmp_path: Path) -> None:
    tree = bare(tmp_path)
    tree.file("cmd/ibv_devinfo.txt", "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tlink_layer:\t\tInfiniBand\n")
    result = run(tree.write())
    assert (result["rails"], ids(result)) == ([], ["infiniband_mode", "unreadable"])


# --- devices on top of a port, management ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "text"])
def test_vlans_of_which_ip_shows_no_kind(tmp_path: Path, form: str) -> None:
    tree = spark(tmp_path, {}, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)})
    for number, (name, hca) in enumerate(((RAIL0, HCA0), (RAIL1, HCA1))):
        tree.netdev(f"fabric{number}", [ADDRESSES[number]], link=name, mtu=9000)
        for index, kind in ((4, V1), (5, V2)):
            gid(tree, hca, index, kind, mapped(ADDRESSES[number].split("/")[0]), f"fabric{number}")
    tree.netdev("vethA", ["10.200.0.1/24"], link="vethB")
    tree.netdev("vethB", link="vethA")
    root = tree.write()
    if form == "text":
        lines = []
        for r in tree.addr:
            lines.append(f"{r['ifindex']}: {r['ifname']}{'@' + r['link'] if 'link' in r else ''}: <{','.join(r['flags'])}> mtu {r['mtu']}")
            lines += [f"    {a['family']} {a['local']}/{a['prefixlen']} scope {a['scope']} x" for a in r["addr_info"]]
        tree.file("cmd/ip-addr.json", "\n".join(lines))
    result = run(root)
    assert [(rail["netdev"], rail["hca"], rail["gid_index"]) for rail in result["rails"]] == [("fabric0", HCA0, 5), ("fabric1", HCA1, 5)]
    assert result["problems"] == []


@pytest.mark.parametrize("by", ["physfn", "name", "phys_port_name"])
def test_an_sriov_function_or_its_representor_is_not_a_port(tmp_path: Path, by: str) -> None:
    tree = spark(tmp_path, PAIR)
    name, pci, phys = {
        "physfn": ("vf0", "0000:01:00.2", None),
        "name": ("enp1s0f0v0", "0000:01:00.2", None),
        "phys_port_name": ("enp1s0f0npf0vf0", "0000:01:00.0", "pf0vf0"),
    }[by]
    tree.netdev(name, mtu=9000, speed=200000, pci=pci, vendor="0x15b3", driver="mlx5_core", phys=phys)
    if by == "physfn":
        (tmp_path / f"sys/class/net/{name}/device/physfn").symlink_to("../0000:01:00.0")
    if phys is None:
        tree.hca("rocep1s0f0v0", name, gids=v4_gids(None, 9))
    result = run(tree.write())
    assert (netdevs(result), result["problems"]) == ([RAIL0, RAIL1], [])
    assert result["twins"] == {"0": [RAIL0, RAIL1], "1": ["enp1s0f1np1", "enP2p1s0f1np1"]}


@pytest.mark.parametrize("desired", [{}, {"addresses": ADDRESSES}, {"cidrs": CIDRS}])
def test_sriov_functions_with_the_addresses_of_the_fabric(tmp_path: Path, desired: dict[str, Any]) -> None:
    tree = spark(tmp_path, {})
    for number, (name, pci) in enumerate((("enp1s0f0v0", "0000:01:00.2"), ("enP2p1s0f0v0", "0002:01:00.2"))):
        tree.netdev(name, [ADDRESSES[number]], mtu=9000, speed=200000, pci=pci, vendor="0x15b3", driver="mlx5_core")
        tree.hca(f"roce{name[2:]}", name, gids=v4_gids(ADDRESSES[number].split("/")[0], 9 + number))
    result = run(tree.write(), **desired)
    rails = [(rail["netdev"], rail["hca"], rail["cage"], rail["gid_index"]) for rail in result["rails"]]
    assert rails == [("enp1s0f0v0", "rocep1s0f0v0", 0, 3), ("enP2p1s0f0v0", "roceP2p1s0f0v0", 0, 3)]


def test_the_only_addressed_interface_without_a_default_route(tmp_path: Path) -> None:
    tree = spark(tmp_path, PAIR)
    tree.routes = []
    management = run(tree.write())["management"]
    assert (management["interface"], management["reason"], management["protected"]) == ("enP7s7", "only addressed interface", [])
    tree.netdev("eno2", ["10.44.0.1/24"])
    assert run(tree.write())["management"]["interface"] is None


def test_ip_addr_in_text_form() -> None:
    text = "3: wg0: <UP> mtu 1420 master vrf0\n    inet 10.8.0.2 peer 10.8.0.1/32 scope global secondary wg0\n"
    address = {"local": "10.8.0.2", "prefixlen": 32, "scope": "global", "secondary": True}
    assert parse_ip_addr(text) == [{"ifname": "wg0", "flags": ["UP"], "mtu": 1420, "master": "vrf0", "addr_info": [address]}]


def test_ip_route_in_text_form() -> None:
    text = "default via 10.0.1.1 dev enP7s7 proto dhcp src 10.0.1.60 metric 100\n10.0.1.0/24 dev enP7s7 proto kernel\nunreachable default metric 1\n"
    assert parse_ip_route(text) == [
        {"dst": "default", "gateway": "10.0.1.1", "dev": "enP7s7", "prefsrc": "10.0.1.60", "metric": 100},
        {"dst": "10.0.1.0/24", "dev": "enP7s7", "metric": 0},
    ]


# --- damaged output --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 4])
def test_a_truncated_list_is_reported(tmp_path: Path, indent: int | None) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write()
    text = json.dumps(tree.addr, indent=indent)
    tree.file("cmd/ip-addr.json", "Warning: [1] old\n" + text[: text.index("192.168.101.10") - 20])
    result = run(root)
    assert (netdevs(result), indices(result)[0]) == ([RAIL0, RAIL1], 3)
    assert "`ip -j -d addr` is truncated after 8 entries" in next(found["message"] for found in result["problems"] if found["id"] == "unreadable")


@pytest.mark.parametrize(
    ("text", "truncated"), [('[{"dst":"a"}]', False), ('{"dst":"a"}\n{"dst":"b"}', False), ('[{"dst":"a"},', True), ('[{"dst":"a"},{"ds', True)]
)
def test_a_truncated_list_begins_and_does_not_end(text: str, truncated: bool) -> None:
    assert is_truncated(text, "dst") is truncated


def test_a_record_per_family_and_a_warning_inside_the_list(tmp_path: Path) -> None:
    tree = spark(tmp_path, {RAIL0: [*PAIR[RAIL0], "fe80::2/64"], RAIL1: PAIR[RAIL1]})
    root = tree.write()
    families = [[{**r, "addr_info": [a for a in r["addr_info"] if a["family"] == family]} for r in tree.addr] for family in ("inet6", "inet")]
    warned = json.dumps(tree.addr, indent=4).replace('    {\n        "ifindex": 4', 'Error: Peer netns reference is invalid.\n    {\n        "ifindex": 4')
    for text in ("\n".join(map(json.dumps, families)), "\n".join(map(json.dumps, tree.addr)), warned):
        tree.file("cmd/ip-addr.json", text)
        result = run(root)
        assert (indices(result), result["problems"]) == ([3, 3], [])
        assert set(result["rails"][0]["addresses"]) == {"fe80::2/64", "192.168.100.10/24"}


ODD: list[Any] = [None, 0, -1, 1e300, True, "", "x", [], {}, [None], [[]], {"x": 1}, "9" * 400, "\u0000", [{"dev": None}]]


@pytest.mark.parametrize("odd", ODD, ids=lambda value: repr(value)[:20])
def test_values_of_the_wrong_kind_change_no_rail(tmp_path: Path, odd: Any) -> None:
    tree = spark(tmp_path, PAIR)
    lists = (tree.addr, tree.rdma, tree.routes)
    keys = {key for records in lists for record in records for key in record} | {"master", "link", "linkinfo", "altnames", "nexthops", "via", "prefsrc"}
    for record in [record for records in lists for record in records[1::2]]:
        record.update({key: copy.deepcopy(odd) for key in keys})
    for entry in [entry for record in tree.addr[::2] for entry in record["addr_info"]]:
        entry.update(dict.fromkeys(("prefixlen", "scope", "secondary", "family"), odd))
    tree.routes.append(dict.fromkeys(("dst", "dev", "gateway", "metric", "flags", "nexthops"), odd))
    root = tree.write()
    for result in (run(root), run(root, cidrs=CIDRS)):
        assert [(rail["hca"], rail["ipv4"], rail["gid_index"]) for rail in result["rails"]] == [(HCA0, "192.168.100.10", 3), (HCA1, "192.168.101.10", 3)]


@pytest.mark.parametrize("prefix", [33, -1, 999, "24", None, 24.5])
def test_an_impossible_prefix_keeps_the_address(tmp_path: Path, prefix: Any) -> None:
    tree = spark(tmp_path, PAIR)
    for name in (RAIL0, RAIL1):
        link(tree, name)["addr_info"][0]["prefixlen"] = prefix
    assert indices(run(tree.write())) == [3, 3]


@pytest.mark.parametrize("text", ["[" * 300000, "{" * 300000, "[{" * 100000, '[{"ifname":' * 50000], ids=["lists", "objects", "both", "keys"])
def test_deep_nesting_is_reported(tmp_path: Path, text: str) -> None:
    tree = spark(tmp_path, PAIR)
    root = tree.write()
    tree.file("cmd/ip-addr.json", text)
    result = run(root)
    assert (netdevs(result), [rail["ipv4"] for rail in result["rails"]]) == ([RAIL0, RAIL1], [None, None])
    assert "unreadable" in ids(result)


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_leads_to_no_wrong_address_or_index(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    tree = spark(tmp_path, PAIR, up=ALL_FOUR if seed % 3 else (RAIL0, RAIL1))
    tree.file("cmd/ibv_devinfo.txt", f"hca_id:\t{HCA1}\n\tport:\t1\n\t\tstate:\tPORT_ACTIVE (4)\n\t\tactive_mtu:\t1024 (3)\n")
    root = tree.write()
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for path in choose.sample(files, len(files) // 2):
        data = path.read_bytes()
        path.unlink()
        damage = choose.randrange(5)
        if damage == 0:
            path.write_bytes(data[: choose.randrange(len(data) + 1)])
        elif damage == 1:
            path.write_bytes(bytes(choose.randrange(256) for _byte in range(40)))
        elif damage == 2:
            path.symlink_to(choose.choice(["missing", path.name, "/etc/hostname", ".."]))
        elif damage == 3:
            path.mkdir()
    for result in (run(root), run(root, addresses=[ADDRESSES[0], "192.168.101.10"], interfaces=["", RAIL1])):
        assert netdevs(result)[:2] == [RAIL0, RAIL1]
        for rail, hca, address in zip(result["rails"], (HCA0, HCA1), ("192.168.100.10", "192.168.101.10")):
            assert rail["hca"] == hca
            assert rail["ipv4"] in (address, None)
            assert rail["gid_index"] in (3, None)
