# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what is wrong with a node's fabric, each with a stable id, a sentence and a remedy. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import PCIE_FILES, Capture
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import Node, Port
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.parse import Record, as_address, as_integer, lists_nothing, rdma_mtu
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import (
    Problem,
    Rail,
    Wanted,
    counted,
    has_spark_name,
    is_link_local,
    spare_cages,
    usable_ipv4,
)

VIRTUAL_DRIVERS = ("virtio_net", "veth", "dummy", "e1000", "e1000e", "vmxnet3")
SPARK_PLACE = re.compile(r"en(?:P2)?p1s0f[01]")  # another server's two-port card has one function a cage
REPLUG = "Plug the QSFP cable into the same cage of both machines (either cage works), check that the other machine is on, then reboot both with the cable in."


def rail_problems(node: Node, rail: Rail, rails: Sequence[Rail], wish: Wanted | None, mtu: int, min_speed: int) -> list[Problem]:
    """Return what is wrong with one rail of all `rails`."""
    port, name = rail.port, rail.port.netdev
    spare = port.cage in spare_cages(rails)
    found: list[Problem] = []

    def say(pid: str, message: str, remedy: str) -> None:
        found.append(Problem(pid, message, remedy, name))

    if port.hca is None and not (node.ports and _rdma_unknown(node)):
        say(
            "no_rdma",
            f"{name} has no RDMA device, so NCCL falls back to TCP on it.",
            "On a GB10 load mlx5_ib (`modprobe mlx5_ib`) and look at `rdma link`; in a container pass /dev/infiniband through.",
        )
    if not port.linked:
        shown = f"{name} ({port.hca or 'no HCA'}) {f'is {port.state}' if port.state else 'has no carrier'}{f', {port.phys_state}' if port.phys_state else ''}"
        moved = _cable_elsewhere(node, port, rails)
        if port.admin_up is False:
            say("link_down", f"{shown}: the interface is administratively down.", f"`ip link set {name} up`, or run the roce role, which configures it.")
        elif moved is not None:
            say(
                "link_down",
                f"{shown}: the cable is in cage {moved}, the address on cage {port.cage}.",
                f"Run the roce role, which moves the addresses to cage {moved}, or plug the cable into cage {port.cage} again.",
            )
        else:
            say("link_down", f"{shown}.", REPLUG)
    elif port.speed_mbps is not None and min_speed and port.speed_mbps < min_speed and port.mellanox is not False and _judge_speed(port):
        say(
            "speed_degraded",
            f"{name} runs at {port.speed_mbps} Mb/s; a GB10 cage links at {min_speed} Mb/s.",
            "Reboot both machines with the cable in; if it stays, use a 200 Gb/s QSFP56 cable or pull the power plugs for a minute.",
        )
    if rail.ipv4 is None and spare:
        say(
            "no_ipv4",
            f"{name} has no IPv4 address: a second cable, in cage {port.cage}, that nothing uses.",
            "Leave it so, for a second cable adds no bandwidth; to use it, list its networks in gb10_fabric_cidrs too and run the roce role.",
        )
    elif rail.ipv4 is None:
        want = (wish.address or wish.network) if wish is not None else None
        have = ", ".join(address.cidr for address in usable_ipv4(port))
        shown = "; ".join(filter(None, (f"wanted: {want}" if want else "", f"it has {have}" if have else "")))
        say(
            "no_ipv4",
            f"{name} has no fabric IPv4 address{f' ({shown})' if shown else ''}.",
            "Run the roce role, which gives it one: `ansible-playbook site.yml --tags roce`.",
        )
    elif is_link_local(rail.ipv4):
        say(
            "link_local_only",
            f"{name} has only the link-local address {rail.ipv4}, which changes at will.",
            "Run the roce role, which gives each rail an address of its own /24.",
        )
    if port.hca is not None and not spare:
        at = f"/sys/class/infiniband/{port.hca}/ports/{port.hca_port}"
        untyped = [f"{g.index}" for g in port.gids if g.type is None and g.ipv4 is not None and g.ipv4 == rail.ipv4]
        if len(rail.candidates) > 1:
            say(
                "gid_ambiguous",
                f"{name} has several fabric addresses ({', '.join(rail.candidates)}), so the GID of {port.hca} is not decided.",
                "Set gb10_fabric_cidrs (or gb10_fabric_addresses) to the one that counts, or remove the others.",
            )
        elif len(rail.matches) > 1:
            say(
                "gid_ambiguous",
                f"{port.hca} has {len(rail.matches)} RoCE v2 GIDs for {rail.ipv4} (indices {', '.join(map(str, rail.matches))}); one was expected.",
                f"Remove and add the address again (`ip addr del`, `ip addr add` on {name}), which the roce role does with roce_gid_repair.",
            )
        elif rail.gid_index is None and not node.capture.dirs.get(f"{at[1:]}/gids"):
            say(
                "gid_missing",
                f"The GID table of {port.hca} could not be read ({at}/gids is missing or empty), "
                f"so the index for {rail.ipv4 or 'an address'} of {name} is unknown.",
                "Pass /sys/class/infiniband through to a container; record it in a captured tree.",
            )
        elif rail.gid_index is None and untyped:
            say(
                "gid_missing",
                f"{port.hca} has GIDs for {rail.ipv4} of {name} (indices {', '.join(untyped)}), but their types could not be read, "
                "so the RoCE v2 one is unknown.",
                f"Read {at}/gid_attrs/types as root (`become: true`); record it in a captured tree.",
            )
        elif rail.gid_index is None:
            others = {g.index: f" of {g.netdev}" for g in port.gids if g.netdev not in (None, name)}
            kinds = ", ".join(f"{g.index}={g.gid} {g.type or 'type unread'}{others.get(g.index, '')}" for g in port.gids) or "empty"
            say(
                "gid_missing",
                f"{port.hca} has no RoCE v2 GID for {rail.ipv4} of {name}; its table: {kinds}."
                if rail.ipv4
                else f"{port.hca} has no GID for NCCL, because {name} has no fabric IPv4 address; its table: {kinds}.",
                f"Give {name} its IPv4 address with the link up; if it has one, remove and add it again (roce_gid_repair does that).",
            )
    if rail not in counted(rails):
        return found
    if port.linked and min_speed:
        for device, lanes in _slow_pcie(node, port).items():
            say(
                "pcie_degraded",
                f"The PCIe link of {device} runs at {lanes}, so {name} cannot carry what its cable does.",
                "Update the firmware (`fwupdmgr refresh`, `fwupdmgr upgrade`; boards of 2026-01 gave the second segment two lanes), "
                "then pull the power plug for a minute.",
            )
    if port.mtu is not None and mtu and port.mtu < mtu:
        rdma = f" (RDMA MTU {port.active_mtu or '?'} instead of {rdma_mtu(mtu)})" if port.active_mtu != rdma_mtu(mtu) else ""
        say(
            "mtu_small",
            f"{name} has MTU {port.mtu}, wanted is {mtu}{rdma}.",
            "Run the roce role; set roce_mtu to 1500 if a switch between the nodes cannot carry more.",
        )
    elif port.mtu is not None and port.active_mtu is not None and port.hca is not None and port.linked and port.active_mtu < rdma_mtu(port.mtu):
        say(
            "active_mtu_small",
            f"{port.hca} uses RDMA MTU {port.active_mtu} although {name} has MTU {port.mtu} (expected {rdma_mtu(port.mtu)}).",
            f"Set the link down and up once (`ip link set {name} down`, `up`) while nothing serves.",
        )
    return found


def _cable_elsewhere(node: Node, port: Port, rails: Sequence[Rail]) -> int | None:
    """Return the one other cage that has a link and no address, if the port's own cage has no link at all."""
    linked = {p.cage for p in node.ports if p.linked}
    addressed = {p.cage for p in node.ports if usable_ipv4(p)} | {r.port.cage for r in rails if r.ipv4 is not None}
    others = linked - addressed
    return others.pop() if len(others) == 1 and port.cage in addressed - linked and None not in (port.cage, *others) else None


def _slow_pcie(node: Node, port: Port) -> dict[str, str]:
    """Return {device: its lanes} for what is below a rail and has less PCIe than it could; a virtual machine does not know (0, 255, Unknown)."""
    found = {}
    for name in sorted(node.closure(port.netdev)):
        texts = {item: node.capture.text(f"sys/class/net/{name}/device/{item}") or "" for item in PCIE_FILES}
        width, widest = (as_integer(texts[item]) or 0 for item in PCIE_FILES[:2])
        speeds = [float(gts) for item in PCIE_FILES[2:] for gts in re.findall(r"^\d+(?:\.\d+)?(?= GT/s)", texts[item])]
        if 0 < width < widest <= 32 or (len(speeds) == 2 and speeds[0] < speeds[1]):
            found[name] = f"{width} of {widest} lanes, {texts[PCIE_FILES[2]]} of {texts[PCIE_FILES[3]]}"
    return found


def _judge_speed(port: Port) -> bool:
    """Speed is judged on a ConnectX only: by vendor or driver, else by a Spark's name on no known virtual driver."""
    if port.mellanox is True:
        return True
    return port.driver not in VIRTUAL_DRIVERS and port.hca is not None and not port.soft and has_spark_name(port)


def _networks(rails: Sequence[Rail]) -> list[tuple[Rail, Any]]:
    return [(rail, ipaddress.ip_network(f"{rail.ipv4}/{rail.prefix}", strict=False)) for rail in rails if rail.ipv4 is not None and rail.prefix is not None]


def management_problems(node: Node, rails: Sequence[Rail], mgmt: Record) -> list[Problem]:
    """Name the rails that carry the way in, and those in the subnet of another interface, be it the way in or a container bridge.

    Single and link-local addresses have no subnet, and a wider network around the rail's does no harm: the longest prefix wins.
    Nor does an interface that is laid down, which has no routes, or a port of the card without link, which may hold the addresses
    for the day the cable is moved.
    """
    found: list[Problem] = []
    for rail in rails:
        name, way = rail.port.netdev, mgmt["interface"]
        if name not in mgmt["protected"]:
            continue
        session = mgmt["reason"] == "ssh session" and name in node.closure(way)
        what, remedy = "the default route", "Move the default route to the 10 GbE port (enP7s7)"
        if session:
            what, remedy = "the SSH session", "Connect by the 10 GbE port (ansible_host is its address)"
        elif rail.port.cage is None and rail.wanted:
            remedy = f"Take the network of {name} out of gb10_fabric_cidrs and roce_interfaces, for it is no port of the card"
        elif name not in node.closure(way):
            what, remedy = f"a default route beside the one of {way}", f"Take the gateway off {name} (NetworkManager: never-default)"
        found.append(
            Problem(
                "rail_is_management",
                f"{name} carries {what}, so the roce role will not touch it.",
                f"{remedy}, or give other ports in roce_interfaces.",
                name,
            )
        )
    ways = {mgmt["interface"], *mgmt["default_route_interfaces"]}
    dark = {port.netdev for port in node.ports if not port.linked}
    for name in node.netdevs:
        for address in node.addresses(name):
            net = ipaddress.ip_network(f"{address.local}/{address.prefix}", strict=False)
            for rail, fabric in _networks(rails):
                if 1 in (net.num_addresses, fabric.num_addresses) or net.is_link_local or as_address(address.local) not in fabric:
                    continue
                if name in dark or node.port(name).admin_up is False or any(node.closure(name) & node.closure(other.port.netdev) for other in rails):
                    continue  # joint_problems() judges rail against rail
                found.append(
                    Problem(
                        "subnet_of_management" if name in ways else "subnet_of_another",
                        f"{rail.port.netdev} ({rail.ipv4}/{rail.prefix}) {_shares(rail.ipv4, address.local)} {name} ({address.cidr}), "
                        "so the kernel may send the fabric's traffic over that one.",
                        "Give each rail a /24 of its own: gb10_fabric_cidrs with one network per rail, then run the roce role.",
                        rail.port.netdev,
                    )
                )
    return found


def _wake(down: Sequence[Rail]) -> str:
    lying = [r.port.netdev for r in down if r.port.admin_up is False]
    return " and ".join(f"`ip link set {name} up`" for name in lying) if lying else "reboot with the cable in"


def _shares(one: str | None, other: str) -> str:
    return "has the address of" if as_address(one) == as_address(other) else "is in the subnet of"


def _overlapping(nets: Sequence[tuple[Rail, Any]]) -> list[list[Rail]]:
    """Return the groups of rails whose networks overlap."""
    groups: list[list[tuple[Rail, Any]]] = []
    for entry in nets:
        touched = [group for group in groups if any(entry[1].version == net.version and entry[1].overlaps(net) for _rail, net in group)]
        groups = [group for group in groups if group not in touched] + [[member for group in touched for member in group] + [entry]]
    return [[rail for rail, _net in group] for group in groups if len(group) > 1]


def joint_problems(rails: Sequence[Rail], wishes: Mapping[int, Wanted]) -> list[Problem]:
    """Return what is wrong between rails; those that do not count for NCCL harm no other."""
    found: list[Problem] = []
    judged = counted(rails)
    for group in _overlapping(_networks(judged)):
        together = [f"{rail.port.netdev} ({rail.ipv4}/{rail.prefix})" for rail in group]
        how = "have the same address" if len({rail.ipv4 for rail in group}) == 1 else "are in one subnet"
        found.append(
            Problem(
                "one_subnet_for_both_rails",
                f"{', '.join(together[:-1])} and {together[-1]} {how}, so the kernel sends everything over one of them.",
                "Give each rail a /24 of its own: gb10_fabric_cidrs with one network per rail, then run the roce role.",
            )
        )
    resolved = [rail for rail in judged if rail.port.linked and rail.gid_index is not None]
    if len({rail.gid_index for rail in resolved}) > 1:
        shown = ", ".join(f"{r.port.hca}={r.gid_index}" for r in resolved)
        found.append(
            Problem(
                "gid_index_differs",
                f"The rails' GID indices differ ({shown}), which one NCCL_IB_GID_INDEX cannot say.",
                "Nothing breaks: NCCL_IB_ADDR_FAMILY and NCCL_IB_ROCE_VERSION_NUM select the GIDs instead; roce_gid_repair evens them out.",
            )
        )
    sized = [rail for rail in judged if rail.port.mtu is not None]
    if len({rail.port.mtu for rail in sized}) > 1:
        shown = ", ".join(f"{r.port.netdev}={r.port.mtu}" for r in sized)
        found.append(Problem("mtu_mismatch", f"The rails have different MTUs ({shown}).", "Run the roce role, which sets roce_mtu on every rail."))
    cages = sorted({rail.port.cage for rail in rails if rail.port.cage is not None and rail.port.linked})
    per_cage = {cage: [r for r in rails if r.port.cage == cage and r.port.linked] for cage in cages}
    for cage, members in per_cage.items():
        down = [r for r in rails if r.port.cage == cage and not r.port.linked]
        if members and down:
            found.append(
                Problem(
                    "ports_asymmetric",
                    f"Cage {cage}: {', '.join(r.port.netdev for r in members)} has link, its twin {', '.join(r.port.netdev for r in down)} has not.",
                    f"Both PCIe functions of a cage share one cable; {_wake(down)}.",
                )
            )
    ordered = sorted((r for r in rails if r.index in wishes and (r.port.hca, r.port.cage) != (None, None)), key=lambda r: r.index)
    canonical = sorted(ordered, key=lambda r: r.port.sort_key())
    if ordered != canonical and len(cages) <= 1 and all(wishes[r.index].interface is None for r in ordered):
        shown = ", ".join(f"{r.port.netdev}={r.ipv4}" for r in ordered)
        found.append(
            Problem(
                "rails_crossed",
                f"The fabric networks sit on the twins in reverse order ({shown}); NCCL pairs HCAs across nodes by position.",
                "Let the first network be on the port of the lower PCIe segment on every node, or name both ports in roce_interfaces.",
            )
        )
    return found


def _infiniband_mode(hca: str | None, netdev: str | None) -> Problem:
    return Problem(
        "infiniband_mode",
        f"{' of '.join(filter(None, (hca, netdev)))} is in InfiniBand mode, so it has no RoCE GIDs and is no rail.",
        "Set the port to Ethernet: `mlxconfig -d <PCI address> set LINK_TYPE_P1=ETH`, then power the machine off and on.",
        netdev,
    )


def _no_device(node: Node) -> bool:
    return not node.ports and not node.hcas()


def _rdma_unknown(node: Node) -> bool:
    """Return whether no source was there that could name an RDMA device; an empty answer of `rdma link` is one."""
    said = node.capture.commands.get("rdma-link")
    return not node.hcas() and "sys/class/infiniband" not in node.capture.dirs and (said is None or not (lists_nothing(said) or not said.strip()))


def node_problems(node: Node, rails: Sequence[Rail], hotplug: Record, wished: bool) -> list[Problem]:
    """Return what is wrong with the node as a whole."""
    found: list[Problem] = []
    capture = node.capture
    if _no_device(node):
        if not node.netdevs and not capture.dirs.get("sys/class/infiniband"):
            found.append(
                Problem(
                    "unreadable",
                    "Neither sys/class/net nor sys/class/infiniband nor `ip addr` could be read, so nothing is known of this node's ports.",
                    "Run as root on the node, or capture sys/ and cmd/ again.",
                )
            )
        elif not rails:
            state = f"; hot-plug state: {hotplug['summary']}" if hotplug["present"] else ""
            found.append(
                Problem(
                    "no_cable",
                    f"No mlx5 device is visible although the hot-plug controller reports a cable{state}."
                    if hotplug["plugged"]
                    else f"No mlx5 device is visible. A GB10 powers its ConnectX-7 down while no cable is plugged{state}.",
                    f"{REPLUG} Never write to /sys/bus/pci/rescan while the card is powered down: the kernel panics.",
                )
            )
    elif node.ports and not any(port.linked for port in node.ports):
        dark = [p for p in node.ports if p.phys_state in (None, "DISABLED") and not p.carrier]
        if len(dark) == len(node.ports):
            lying = [p.netdev for p in node.ports if p.admin_up is False]
            shown = "all are" if len(lying) == len(node.ports) else f"{', '.join(lying)} {'is' if len(lying) == 1 else 'are'}"
            found.append(
                Problem(
                    "no_cable",
                    f"No port has a link ({', '.join(p.netdev for p in node.ports)}): no cable is plugged, or its other end is off"
                    f"{f'; {shown} administratively down, which hides a cable' if lying else ''}.",
                    f"{f'First `ip link set {lying[0]} up`, and so the others, then look again. ' if lying else ''}{REPLUG}",
                )
            )
        elif not rails:
            shown = ", ".join(f"{p.netdev} {p.state or 'no carrier'} {p.phys_state or ''}".strip() for p in node.ports)
            found.append(Problem("link_down", f"No port has a link ({shown}).", REPLUG))
    for hca in node.orphans:
        if node.infiniband_hca(hca):
            found.append(_infiniband_mode(hca, None))
            continue
        found.append(
            Problem(
                "hca_without_netdev",
                f"{hca} has no network device in rdma link, gid_attrs/ndevs or its PCI function.",
                "Look at `rdma link`; the interface may be in another network namespace.",
            )
        )
    for port in node.ports:
        if port.hca is not None and node.netdevs and port.netdev not in node.netdevs:
            found.append(
                Problem(
                    "hca_without_netdev",
                    f"{port.hca} belongs to {port.netdev}, which this node does not show.",
                    "Look at `rdma link` and `ip link`; the interface may be in another network namespace.",
                    port.netdev,
                )
            )
        if not port.ethernet:
            found.append(_infiniband_mode(port.hca, port.netdev))
    for hca, netdev in node.guessed:
        found.append(
            Problem(
                "netdev_by_name",
                f"{hca} was joined to {netdev} by its name only, because rdma link and sysfs do not say.",
                "Install iproute2, whose `rdma` says it, and run as root; in a captured tree record it as cmd/rdma-link.json.",
            )
        )
    if node.ports and _rdma_unknown(node):
        found.append(
            Problem(
                "rdma_unreadable",
                f"Neither /sys/class/infiniband nor `rdma link` could be read, so whether the ports ({', '.join(p.netdev for p in node.ports)}) "
                "have RDMA devices is unknown.",
                "Install iproute2 and `modprobe mlx5_ib`; in a container pass /dev/infiniband and /sys through; record both in a captured tree.",
            )
        )
    elif node.ports and not node.hcas():
        found.append(
            Problem(
                "no_rdma",
                f"Ports are there ({', '.join(p.netdev for p in node.ports)}) but no RDMA device.",
                "`modprobe mlx5_ib`, then `rdma link`; in a container pass /dev/infiniband and /sys through.",
            )
        )
    for port in [] if wished or node.orphans else [rail.port for rail in rails]:
        twins = [p for p in node.ports if p.cage == port.cage and p.netdev != port.netdev]
        if node.ports and not twins and port.mellanox and (len(rails) == 1 or SPARK_PLACE.match(port.netdev)):
            found.append(
                Problem(
                    "ports_asymmetric",
                    f"Only {port.netdev} is visible{'' if port.cage is None else f' in cage {port.cage}'}; a GB10 cage has two PCIe functions (twins), "
                    "and one alone gives half the bandwidth.",
                    "Reboot with the cable in; compare `lspci -d 15b3:` on both machines (four functions are expected).",
                )
            )
    return found


def missing_sources(node: Node) -> list[Problem]:
    """Say which sources were missing or unreadable; only those that are wanted."""
    found: list[Problem] = []
    capture = node.capture
    for name, records, what in (
        ("ip-addr", node.links, "addresses and MTU"),
        ("ip-route", node.routes, "the default route"),
        ("rdma-link", node.rdma, "the RDMA links"),
    ):
        raw = capture.commands.get(name)
        if records:
            continue
        nothing = raw is not None and lists_nothing(raw)
        if name == "rdma-link" and raw is not None and not node.hcas() and (nothing or not raw.strip()):
            continue
        if name == "ip-route" and nothing and raw is not None and "{" not in raw:
            continue
        shown = (raw or "").strip()
        why = "is empty" if not shown else ("lists nothing" if nothing else f"is not understood (starts with {shown[:60]!r})")
        if raw is None:
            why = "is missing"
        found.append(
            Problem(
                "unreadable",
                f"`{' '.join(_COMMAND_WORDS[name])}` {why}, so {what} can only be taken from other sources.",
                "Install iproute2 and run as root; in a captured tree record it as cmd/" + name + ".json.",
            )
        )
    important = sorted(path for path in capture.unreadable if path.startswith(("sys/class/infiniband", "sys/class/net", "etc/netplan", "cmd")))
    if important:
        shown = ", ".join(f"/{path} ({capture.unreadable[path]})" for path in important[:4])
        more = f" and {len(important) - 4} more" if len(important) > 4 else ""
        found.append(Problem("unreadable", f"Could not read {shown}{more}.", "Run as root (`become: true`)."))
    return found


_COMMAND_WORDS = {"ip-addr": ("ip", "-j", "-d", "addr"), "ip-route": ("ip", "-j", "route"), "rdma-link": ("rdma", "-j", "link")}


def hotplug_state(capture: Capture) -> Record:
    """Return the state of the ConnectX-7's hot-plug controller MTKP0001:00: {present, enabled, files, summary}."""
    files = {path[len("hotplug/") :]: (capture.text(path) or "") for path in sorted(capture.files) if path.startswith("hotplug/")}
    enabled_text = next((text for path, text in files.items() if path.endswith("hotplug_enabled")), None)
    enabled = {"1": True, "y": True, "yes": True, "enabled": True, "0": False, "n": False, "no": False, "disabled": False}.get(
        (enabled_text or "").strip().lower()
    )
    plugged_text = next((text for path, text in files.items() if path.endswith("debug_state")), None)
    plugged = {"1": True, "0": False}.get((plugged_text or "").strip())
    interface = next((path.split("/")[0] for path in files), None)
    summary = ", ".join(f"{path.split('/')[-1]}={text.splitlines()[0] if text else '(empty)'}" for path, text in files.items())
    return {
        "present": "hotplug" in capture.dirs,
        "interface": interface,
        "enabled": enabled,
        "plugged": plugged,
        "files": files,
        "summary": summary or "not exposed by this kernel",
    }


# what keeps a fabric from working; the rest of the problems are for the reader
FATAL = (
    "no_cable",
    "link_down",
    "no_ipv4",
    "mtu_small",
    "mtu_mismatch",
    "one_subnet_for_both_rails",
    "interface_missing",
    "rail_unplaced",
    "bad_input",
    "gid_ambiguous",
    "gid_missing",
    "no_rdma",
    "rdma_unreadable",
)
RDMA_ONLY = ("gid_ambiguous", "gid_missing", "no_rdma", "rdma_unreadable")


def failures_of(problems: Sequence[Mapping[str, Any]], require_rdma: bool) -> list[str]:
    """Return the sentences (what and remedy) of the problems that keep the fabric from working; `problems` as gather() gives them."""
    return [f"{problem['message']} {problem['remedy']}" for problem in problems if problem["id"] in FATAL and (require_rdma or problem["id"] not in RDMA_ONLY)]
