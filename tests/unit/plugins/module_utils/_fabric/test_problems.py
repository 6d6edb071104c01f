"""Problems: what was found, and its remedy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from unit.fixtures.roce.tree import ALL_FOUR, HCA0, PAIR, RAIL0, RAIL1, SOCKETS, V2, Tree, gid, ids, mapped, netdevs, run, set_down, spark

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
