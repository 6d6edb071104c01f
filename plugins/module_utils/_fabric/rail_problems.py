# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: faults of one rail. Pure. One function per id."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import PCIE_FILES
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import Port
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.parse import as_integer, rdma_mtu
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import (
    Fabric,
    Problem,
    Rail,
    counted,
    is_link_local,
    spare_cages,
)

REPLUG = "Plug the QSFP cable into the same cage of both machines (either cage works), check that the other machine is on, then reboot both with the cable in."


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
    connectx = port.mellanox is not False and port.hca is not None and not port.soft  # a capture may lack the vendor
    if port.linked and port.speed_mbps is not None and port.speed_mbps < expected and connectx:
        yield Problem(
            "speed_degraded",
            f"{port.netdev} runs at {port.speed_mbps} Mb/s; a GB10 cage links at {expected} Mb/s.",
            "Reboot both machines with the cable in; if it stays, use a 200 Gb/s QSFP56 cable or pull the power plugs for a minute.",
        )


def _no_ipv4(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    port, desired = rail.port, rail.desired
    if rail.ipv4 is not None:
        return
    if port.cage in spare_cages(fabric.rails):
        message = f"{port.netdev} has no IPv4 address: a second, unused cable in cage {port.cage}."
        remedy = "No action is needed, because a second cable adds no bandwidth. To use it, add its networks to gb10_fabric_cidrs and run the roce role."
    else:
        expected = (desired.address or desired.network) if desired is not None else None
        have = ", ".join(address.cidr for address in port.usable_ipv4)
        shown = "; ".join(filter(None, (f"expected: {expected}" if expected else "", f"found: {have}" if have else "")))
        message = f"{port.netdev} has no fabric IPv4 address{f' ({shown})' if shown else ''}."
        remedy = "Run the roce role, which configures it: `ansible-playbook site.yml --tags roce`."
    yield Problem("no_ipv4", message, remedy)


def _link_local_only(_fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    if rail.ipv4 is not None and is_link_local(rail.ipv4):
        yield Problem(
            "link_local_only",
            f"{rail.port.netdev} has only the link-local address {rail.ipv4}, which changes without notice.",
            "Run the roce role, which gives each rail an address of its own /24.",
        )


def _gid_ambiguous(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    port, name = rail.port, rail.port.netdev
    if port.hca is None or port.cage in spare_cages(fabric.rails):
        return
    if len(rail.candidates) > 1:
        message = f"{name} has several fabric addresses ({', '.join(rail.candidates)}), so the GID of {port.hca} is ambiguous."
        yield Problem("gid_ambiguous", message, "Set gb10_fabric_cidrs (or gb10_fabric_addresses) to the right one, or remove the others.")
    elif len(rail.matches) > 1:
        yield Problem(
            "gid_ambiguous",
            f"{port.hca} has {len(rail.matches)} RoCE v2 GIDs for {rail.ipv4} (indices {', '.join(map(str, rail.matches))}); one was expected.",
            f"Remove and add the address again (`ip addr del`, `ip addr add` on {name}), which the roce role does with roce_gid_repair.",
        )


def _gid_missing(fabric: Fabric, rail: Rail) -> Iterator[Problem]:
    port, name = rail.port, rail.port.netdev
    if port.hca is None or port.cage in spare_cages(fabric.rails) or rail.gid_index is not None or len(rail.candidates) > 1 or rail.matches:
        return
    others = {g.index: f" of {g.netdev}" for g in port.gids if g.netdev not in (None, name)}
    table = ", ".join(f"{g.index}={g.gid} {g.type or 'type unread'}{others.get(g.index, '')}" for g in port.gids) or "empty or unreadable"
    remedy = f"Give {name} its IPv4 address with the link up; if it has one, remove and add it again (roce_gid_repair does that)."
    if not port.gids or any(g.type is None for g in port.gids):
        remedy = f"Read /sys/class/infiniband/{port.hca}/ports/1 (gids, gid_attrs) as root (`become: true`), and pass it through to a container."
    what = f"no RoCE v2 GID for {rail.ipv4} of {name}" if rail.ipv4 else f"no GID for NCCL, because {name} has no fabric IPv4 address"
    message = f"{port.hca} has {what}; its table: {table}."
    yield Problem("gid_missing", message, remedy)


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


_RAIL = (_no_rdma, _link_down, _speed_degraded, _no_ipv4, _link_local_only, _gid_ambiguous, _gid_missing)
_COUNTED_RAIL = (_pcie_degraded, _mtu_small)  # only of rails that count for NCCL
