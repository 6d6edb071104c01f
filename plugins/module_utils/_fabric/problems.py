# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the facts of the fabric of a node, and its faults, each with a stable id, a sentence and a remedy. Pure.

`gather()` returns what the module `roce_info` documents. Each function below finds one kind of fault. `find_problems()` calls those of the node, then those of
each rail, then those between rails.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import (
    COMMANDS,
    Capture,
    Node,
    Port,
    Record,
    as_address,
    as_integer,
    rdma_mtu,
)
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import (
    DesiredState,
    Fabric,
    Problem,
    Rail,
    assign,
    counted,
    derive,
    desired_rails,
    environment,
    is_link_local,
    management,
    port_row,
    rail_row,
    resolve,
)

PCIE_FILES = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
REPLUG = "Plug the QSFP cable into the same cage of both machines (either cage works), check that the other machine is on, then reboot both with the cable in."
ONE_NETWORK_EACH = "Give each rail a /24 of its own: gb10_fabric_cidrs with one network per rail, then run the roce role."

RDMA_ONLY = ("gid_ambiguous", "gid_missing", "no_rdma")  # ids that leave the fabric with TCP alone
# ids that make the fabric unusable
FATAL = (
    "no_cable", "link_down", "no_ipv4", "mtu_small", "one_subnet_for_both_rails", "interface_missing", "rail_unplaced", "bad_input",
)  # fmt: skip


def find_problems(fabric: Fabric) -> Iterator[Problem]:
    """Yield the problems of the node, of each rail, and between rails."""
    for check in _NODE:
        yield from check(fabric)
    for rail in fabric.rails:
        yield from rail_problems(fabric, rail)
    for check in _JOINT:
        yield from check(fabric)


# --- the node ------------------------------------------------------------------------------------------------------------------


def _no_card(fabric: Fabric) -> Iterator[Problem]:
    node, hotplug = fabric.node, fabric.hotplug
    if node.ports or node.rdma or fabric.rails or not node.netdevs:
        return
    state = f"; hot-plug state: {hotplug['summary']}" if hotplug["present"] else ""
    message = f"No mlx5 device is visible. A GB10 powers its ConnectX-7 down while no cable is plugged{state}."
    if hotplug["plugged"]:
        message = f"No mlx5 device is visible although the hot-plug controller reports a cable{state}."
    yield Problem("no_cable", message, f"{REPLUG} Never write to /sys/bus/pci/rescan while the card is powered down: the kernel panics.")


def _no_link(fabric: Fabric) -> Iterator[Problem]:
    ports = fabric.node.ports
    if not ports or any(port.linked for port in ports):
        return
    if any(p.phys_state not in (None, "DISABLED") or p.carrier for p in ports):
        shown = ", ".join(f"{p.netdev} {p.state or 'no carrier'} {p.phys_state or ''}".strip() for p in ports)
        if not fabric.rails:
            yield Problem("link_down", f"No port has a link ({shown}).", REPLUG)
        return
    down = [p.netdev for p in ports if p.admin_up is False]
    names = "all are" if len(down) == len(ports) else f"{', '.join(down)} {'is' if len(down) == 1 else 'are'}"
    yield Problem(
        "no_cable",
        f"No port has a link ({', '.join(p.netdev for p in ports)}): no cable is plugged, or its other end is off"
        f"{f'; {names} administratively down, which hides a cable' if down else ''}.",
        f"{f'First `ip link set {down[0]} up`, and so the others, then look again. ' if down else ''}{REPLUG}",
    )


def _one_twin_only(fabric: Fabric) -> Iterator[Problem]:
    for port in [rail.port for rail in fabric.rails if rail.desired is None and rail.port.card]:
        if not [p for p in fabric.node.ports if p.cage == port.cage and p.netdev != port.netdev]:
            yield Problem(
                "ports_asymmetric",
                f"Only {port.netdev} is visible{'' if port.cage is None else f' in cage {port.cage}'}; a GB10 cage has two PCIe functions (twins), "
                "and one alone gives half the bandwidth.",
                "Reboot with the cable in; compare `lspci -d 15b3:` on both machines (four functions are expected).",
            )


def _rail_unplaced(fabric: Fabric) -> Iterator[Problem]:
    if fabric.unplaced and fabric.node.ports:
        shown = ", ".join(rail.address or rail.interface or str(rail.index) for rail in fabric.unplaced)
        yield Problem(
            "rail_unplaced",
            f"{len(fabric.unplaced)} configured rail(s) ({shown}) have no port; this node has {', '.join(p.netdev for p in fabric.node.ports)}.",
            "A cable gives two rails: list at most two networks per cable in gb10_fabric_cidrs.",
        )


# --- one rail ------------------------------------------------------------------------------------------------------------------


def rail_problems(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    """Yield the problems of one rail, each with its interface."""
    checks = (*_RAIL, *(_COUNTED_RAIL if rail in counted(fabric.rails) else ()))
    if rail.desired and rail.desired.interface and rail.port.netdev not in fabric.node.netdevs:
        checks = (_interface_missing,)
    for check in checks:
        for problem in check(fabric, rail):
            yield replace(problem, interface=rail.port.netdev)


def _interface_missing(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    yield Problem(
        "interface_missing",
        f"The interface {rail.port.netdev} of rail {rail.index} does not exist on this node (found: {', '.join(fabric.node.netdevs) or 'none'}).",
        "Correct or remove roce_interfaces; without it the ports are found automatically.",
    )


def _no_rdma(_fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    if rail.port.hca is None:
        yield Problem(
            "no_rdma",
            f"{rail.port.netdev} has no RDMA device, so NCCL falls back to TCP on it.",
            "On a GB10 load mlx5_ib (`modprobe mlx5_ib`) and look at `rdma link`; in a container pass /dev/infiniband through.",
        )


def _link_down(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    port, name = rail.port, rail.port.netdev
    if port.linked:
        return
    state = f"is {port.state}" if port.state else "has no carrier"
    shown = f"{name} ({port.hca or 'no HCA'}) {state}{f', {port.phys_state}' if port.phys_state else ''}"
    moved = _cable_elsewhere(fabric, port)
    twin = next((p.netdev for p in fabric.node.ports if port.cage is not None and p.cage == port.cage and p.linked), "")
    if port.admin_up is False:
        message, remedy = f"{shown}: the interface is administratively down.", f"`ip link set {name} up`, or run the roce role, which configures it."
    elif moved is not None:
        message = f"{shown}: the cable is in cage {moved}, the address on cage {port.cage}."
        remedy = f"Run the roce role, which moves the addresses to cage {moved}, or plug the cable into cage {port.cage} again."
    elif twin:
        message = f"{shown}: the cable is in, because its twin {twin} has a link."
        remedy = "Reboot both machines with the cable in; if it stays, pull the power plugs of this machine for a minute."
    else:
        message, remedy = f"{shown}.", REPLUG
    yield Problem("link_down", message, remedy)


def _cable_elsewhere(fabric: Fabric, port: Port) -> int | None:
    """Return the one other cage that has a link and no address, if the port's own cage has no link."""
    linked = {p.cage for p in fabric.node.ports if p.linked}
    addressed = {p.cage for p in fabric.node.ports if p.usable_ipv4} | {r.port.cage for r in fabric.rails if r.ipv4 is not None}
    others = linked - addressed
    return others.pop() if len(others) == 1 and port.cage in addressed - linked and None not in (port.cage, *others) else None


def _speed_degraded(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    port, expected = rail.port, fabric.desired.min_speed_mbps
    if port.linked and port.speed_mbps is not None and port.speed_mbps < expected and port.card:
        yield Problem(
            "speed_degraded",
            f"{port.netdev} runs at {port.speed_mbps} Mb/s; a GB10 cage links at {expected} Mb/s.",
            "Reboot both machines with the cable in; if it stays, use a 200 Gb/s QSFP56 cable or pull the power plugs for a minute.",
        )


def _no_ipv4(_fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    if rail.ipv4 is None:
        have = ", ".join(address.cidr for address in rail.port.usable_ipv4)
        shown = "; ".join([*([f"expected: {rail.desired.address}"] if rail.desired and rail.desired.address else []), *([f"found: {have}"] if have else [])])
        yield Problem(
            "no_ipv4",
            f"{rail.port.netdev} has no fabric IPv4 address{f' ({shown})' if shown else ''}.",
            "Run the roce role, which configures it: `ansible-playbook site.yml --tags roce`.",
        )


def _link_local_only(_fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    if rail.ipv4 is not None and is_link_local(rail.ipv4):
        yield Problem(
            "link_local_only",
            f"{rail.port.netdev} has only the link-local address {rail.ipv4}, which changes without notice.",
            "Run the roce role, which gives each rail an address of its own /24.",
        )


def _no_gid(_fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    port, name = rail.port, rail.port.netdev
    if port.hca is None or rail.ipv4 is None or rail.gid_index is not None:
        return
    if len(rail.candidates) > 1:
        message = f"{name} has several fabric addresses ({', '.join(rail.candidates)}), so the GID of {port.hca} is ambiguous."
        yield Problem("gid_ambiguous", message, "Set gb10_fabric_cidrs (or gb10_fabric_addresses) to the right one, or remove the others.")
        return
    remedy = f"Remove and add the address of {name} with the link up (`ip addr del`, `ip addr add`), which the roce role does with roce_gid_repair."
    if rail.matches:
        indices = ", ".join(map(str, rail.matches))
        yield Problem("gid_ambiguous", f"{port.hca} has {len(rail.matches)} RoCE v2 GIDs for {rail.ipv4} (indices {indices}); one was expected.", remedy)
        return
    others = {g.index: f" of {g.netdev}" for g in port.gids if g.netdev not in (None, name)}
    table = ", ".join(f"{g.index}={g.gid} {g.type or 'type unread'}{others.get(g.index, '')}" for g in port.gids) or "empty or unreadable"
    if not port.gids or any(g.type is None for g in port.gids):
        remedy = f"Read /sys/class/infiniband/{port.hca}/ports/1 (gids, gid_attrs) as root (`become: true`), and pass it through to a container."
    yield Problem("gid_missing", f"{port.hca} has no RoCE v2 GID for {rail.ipv4} of {name}; its table: {table}.", remedy)


def _pcie_degraded(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    """Compare the PCIe links below a rail with what they support; a virtual machine reports 0, 255 or Unknown."""
    node, port = fabric.node, rail.port
    for device in sorted(node.closure(port.netdev)) if port.linked and fabric.desired.min_speed_mbps else ():
        texts = {item: node.capture.text(f"sys/class/net/{device}/device/{item}") or "" for item in PCIE_FILES}
        width, widest = (as_integer(texts[item]) or 0 for item in PCIE_FILES[:2])
        speeds = [float(gts) for item in PCIE_FILES[2:] for gts in re.findall(r"^\d+(?:\.\d+)?(?= GT/s)", texts[item])]
        if 0 < width < widest <= 32 or (len(speeds) == 2 and speeds[0] < speeds[1]):
            lanes = f"{width} of {widest} lanes, {texts[PCIE_FILES[2]]} of {texts[PCIE_FILES[3]]}"
            yield Problem(
                "pcie_degraded",
                f"The PCIe link of {device} runs at {lanes}, so {port.netdev} is slower than its cable.",
                "Update the firmware (`fwupdmgr refresh`, `fwupdmgr upgrade`; boards of 2026-01 gave the second segment two lanes), "
                "then pull the power plug for a minute.",
            )


def _mtu_small(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    port, expected = rail.port, fabric.desired.mtu
    if port.mtu is not None and port.mtu < expected:
        rdma = f" (RDMA MTU {port.active_mtu or '?'} instead of {rdma_mtu(expected)})" if port.active_mtu != rdma_mtu(expected) else ""
        yield Problem(
            "mtu_small",
            f"{port.netdev} has MTU {port.mtu}, expected {expected}{rdma}.",
            "Run the roce role; set roce_mtu to 1500 if a switch between the nodes cannot carry more.",
        )


# --- between rails, and with others --------------------------------------------------------------------------------------------


def _one_subnet(fabric: Fabric) -> Iterator[Problem]:
    rails = [rail for rail in counted(fabric.rails) if rail.network is not None]
    shared = [rail for rail in rails if any(other is not rail and rail.network.overlaps(other.network) for other in rails)]
    if shared:
        shown = [f"{rail.port.netdev} ({rail.ipv4}/{rail.prefix})" for rail in shared]
        how = "have the same address" if len({rail.ipv4 for rail in shared}) == 1 else "are in one subnet"
        message = f"{', '.join(shown[:-1])} and {shown[-1]} {how}, so the kernel sends everything over one of them."
        yield Problem("one_subnet_for_both_rails", message, ONE_NETWORK_EACH)


def _twin_without_link(fabric: Fabric) -> Iterator[Problem]:
    for cage in sorted({rail.port.cage for rail in fabric.rails if rail.port.cage is not None and rail.port.linked}):
        ports = [rail.port for rail in fabric.rails if rail.port.cage == cage]
        up, down = [p.netdev for p in ports if p.linked], [p.netdev for p in ports if not p.linked]
        admin_down = [p.netdev for p in ports if not p.linked and p.admin_up is False]
        if down:
            yield Problem(
                "ports_asymmetric",
                f"Cage {cage}: {', '.join(up)} has a link, its twin {', '.join(down)} does not.",
                "Both PCIe functions of a cage share one cable; "
                f"{' and '.join(f'`ip link set {name} up`' for name in admin_down) or 'reboot with the cable in'}.",
            )


def _rails_crossed(fabric: Fabric) -> Iterator[Problem]:
    ordered = [r for r in fabric.rails if r.desired is not None and (r.port.hca, r.port.cage) != (None, None)]
    cages = {rail.port.cage for rail in fabric.rails if rail.port.cage is not None and rail.port.linked}
    named = any(r.desired is not None and r.desired.interface for r in ordered)
    if len(cages) <= 1 and not named and ordered != sorted(ordered, key=lambda r: r.port.sort_key()):
        shown = ", ".join(f"{r.port.netdev}={r.ipv4}" for r in ordered)
        yield Problem(
            "rails_crossed",
            f"The fabric networks are on the twins in reverse order ({shown}); NCCL pairs HCAs across nodes by position.",
            "Put the first network on the port of the lower PCIe segment on every node, or name both ports in roce_interfaces.",
        )


def _rail_is_management(fabric: Fabric) -> Iterator[Problem]:
    mgmt, node = fabric.management, fabric.node
    for rail in fabric.rails:
        name, interface = rail.port.netdev, mgmt["interface"]
        if name not in mgmt["protected"]:
            continue
        what, remedy = "the default route", "Move the default route to the 10 GbE port (enP7s7)"
        if mgmt["reason"] == "ssh session" and name in node.closure(interface):
            what, remedy = "the SSH session", "Connect by the 10 GbE port (ansible_host is its address)"
        elif rail.port.cage is None and rail.desired is not None:
            remedy = f"Remove the network of {name} from gb10_fabric_cidrs and roce_interfaces, because it is not a port of the card"
        elif name not in node.closure(interface):
            what, remedy = f"a default route in addition to the one of {interface}", f"Remove the gateway from {name} (NetworkManager: never-default)"
        message = f"{name} carries {what}, so the roce role does not change it."
        yield Problem("rail_is_management", message, f"{remedy}, or name other ports in roce_interfaces.", name)


def _subnet_of_another(fabric: Fabric) -> Iterator[Problem]:
    """Find interfaces with an address in the network of a rail. Rails are compared with each other by _one_subnet().

    Single and link-local addresses have no subnet, and a wider network around the one of the rail does no harm: the longest prefix wins.
    An administratively down interface has no routes. A port of the card without a link may have the addresses in case the cable is moved.
    """
    node, mgmt = fabric.node, fabric.management
    dark = {port.netdev for port in node.ports if not port.linked}
    rails = set().union(*(node.closure(rail.port.netdev) for rail in fabric.rails))
    others = [name for name in node.netdevs if name not in dark and node.port(name).admin_up is not False and not node.closure(name) & rails]
    for name in others:
        for address in node.addresses(name):
            net = ipaddress.ip_network(address.cidr, strict=False)
            for rail in fabric.rails:
                network = rail.network
                if network is None or 1 in (net.num_addresses, network.num_addresses) or net.is_link_local or as_address(address.local) not in network:
                    continue
                how = "has the address of" if rail.ipv4 == address.local else "is in the subnet of"
                yield Problem(
                    "subnet_of_management" if name in (mgmt["interface"], *mgmt["default_route_interfaces"]) else "subnet_of_another",
                    f"{rail.port.netdev} ({rail.ipv4}/{rail.prefix}) {how} {name} ({address.cidr}), so the kernel may send fabric traffic over {name}.",
                    ONE_NETWORK_EACH,
                    rail.port.netdev,
                )


def _unreadable(fabric: Fabric) -> Iterator[Problem]:
    capture = fabric.node.capture
    for name, what in (("ip-addr", "addresses and MTU"), ("ip-route", "the default route"), ("rdma-link", "the RDMA links")):
        text = capture.commands.get(name, "").strip()
        if name not in capture.commands or (text and not text.endswith("]")) or (name == "ip-addr" and not fabric.node.links):
            why = f"is not understood (starts with {text[:60]!r})" if name in capture.commands else "is missing"
            yield Problem("unreadable", f"`{' '.join(COMMANDS[name])}` {why}, so {what} cannot be read.", "Install iproute2 and run as root.")
    if capture.unreadable:
        shown = ", ".join(f"/{path} ({why})" for path, why in capture.unreadable.items())
        yield Problem("unreadable", f"Could not read {shown}.", "Run as root (`become: true`).")


def _foreign_netplan(fabric: Fabric) -> Iterator[Problem]:
    rails = {rail.port.netdev for rail in fabric.rails}
    for item in fabric.foreign:
        names = sorted(set(item["interfaces"]) & rails) or sorted(item["interfaces"])
        yield Problem(
            "foreign_netplan",
            f"{item['path']} ({item['writer'] or 'not written by gb10.cluster'}) configures {', '.join(names)}.",
            "Choose in roce_foreign_policy: `adopt` keeps the file, `replace` moves a netplan file to a backup, `refuse` stops.",
            names[0] if len(names) == 1 else None,
        )


_NODE = (
    _no_card,
    _no_link,
    _one_twin_only,
    _rail_unplaced,
    _twin_without_link,  # it proves that the cable is in
)
_RAIL = (_no_rdma, _link_down, _speed_degraded, _no_ipv4, _link_local_only, _no_gid)
_COUNTED_RAIL = (_pcie_degraded, _mtu_small)  # only of rails that count for NCCL
_JOINT = (
    _one_subnet,
    _rails_crossed,
    _rail_is_management,
    _subnet_of_another,
    _unreadable,
    _foreign_netplan,
)


def hotplug_state(capture: Capture) -> Record:
    """Return the state of the hot-plug controller MTKP0001:00 of the ConnectX-7 (newer kernels: pcie_hotplug; older: cx7_dbg)."""
    folders = capture.find("sys/devices/platform/MTKP0001:*/*")
    paths = [path for folder in folders if folder.endswith(("/pcie_hotplug", "/cx7_dbg")) for path in capture.find(f"{folder}/*")]
    values = {path.rpartition("/")[2]: capture.text(path) or "" for path in paths}
    summary = ", ".join(f"{name}={text.splitlines()[0] if text else '(empty)'}" for name, text in values.items())
    plugged = {"1": True, "0": False}.get(values.get("debug_state", ""))
    return {"present": bool(folders), "plugged": plugged, "summary": summary or "not exposed by this kernel"}


# --- all facts -------------------------------------------------------------------------------------------------------------------


def gather(capture: Capture, desired: DesiredState, ssh_connection: str | None = None, foreign: Iterable[Record] = ()) -> Record:
    """Return the facts that `roce_info` documents: rails, ports, management, hotplug, env, problems."""
    node = Node(capture)
    mgmt = management(node, ssh_connection)
    wanted, bad_input = desired_rails(desired)
    placed = assign(node, wanted, mgmt["protected"], desired.follow_link)
    if wanted:
        rails = [resolve(placed[rail.index], rail.index, rail) for rail in wanted if rail.index in placed]
    else:
        rails = [resolve(port, index, None) for index, port in enumerate(derive(node, mgmt["protected"]))]
    unplaced = [rail for rail in wanted if rail.index not in placed]
    fabric = Fabric(node, rails, desired, unplaced, mgmt, hotplug_state(capture), list(foreign))
    return {
        "rails": [rail_row(rail) for rail in rails],
        "ports": [port_row(port, mgmt["protected"]) for port in node.ports],
        "management": mgmt,
        "hotplug": fabric.hotplug,
        "foreign": fabric.foreign,
        "env": environment(rails),
        "problems": [asdict(problem) for problem in dict.fromkeys([*bad_input, *find_problems(fabric)])],
    }


def sentence_of(problem: Record, rails: list[Record]) -> str:
    """Return a problem with its rail and its remedy."""
    rail = next((rail for rail in rails if problem["interface"] and rail["netdev"] == problem["interface"]), None)
    where = f"Rail {rail['index']} ({rail['ipv4'] or 'no address'}) does not work: " if rail else ""
    return f"{where}{problem['message']} {problem['remedy']}"
