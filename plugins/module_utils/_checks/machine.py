# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of the machine: access, GB10, sleep, Wi-Fi, memory, disks and clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL_KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import ACCESS, PAIR, REBOOT, SYSCTL, Event, Group, Rank, check, skip
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import ERROR, INFO, WARNING, cause_of, found
from ansible_collections.gb10.cluster.plugins.module_utils._node.parse import numbers

GIB_KB = 1 << 20
MASK_SLEEP = KERNEL_KINDS["suspend"].command.replace("{on} ", "")
_NEW_ID = "sudo rm -f /etc/machine-id /var/lib/dbus/machine-id && sudo systemd-machine-id-setup"
_PROFILES = "profiles, images and memory sizes are made for the DGX Spark and its OEM models"
_LAB = "correct ansible_host if the node should be a GB10. For a lab or a development machine, set preflight_ignore: [gb10, arch]"


@check(
    "reachable", "nodes", ERROR, "a group serves with all ranks or not at all",
    "run `ssh` with the same user and key; check ansible_host, ansible_user and that the node is on", "{on} true", ACCESS)  # fmt: skip
@check("sudo", "nodes", ERROR, command="{play}doctor{end} -K", of=ACCESS)
@check("python", "nodes", ERROR, "modules need Python 3.9", "install a newer python3", "{on} sudo apt install python3", ACCESS)
def access(rank: Rank, _group: Group) -> Iterator[Event]:
    """a rank that does not answer, and why"""
    if rank.read:
        if numbers(rank.facts["python"]) < (3, 9):
            yield found(f"Python is {rank.facts['python']}", name="python")
        return
    text = next((line.strip() for line in rank.failure.splitlines() if line.strip()), "no reason given").rstrip(".")[:300]
    cause = cause_of(rank.failure)
    if cause:
        yield found(f"its facts could not be read: {text}", cause.remedy, cause.why, name=cause.id)
    elif rank.unreachable:
        yield found(f"it cannot be reached: {text}", rank.remedy)
    else:
        yield found(f"its facts could not be read: {text}", "run again with -vvv for this host")


@check(
    "gb10", "nodes", WARNING, _PROFILES, _LAB, "{on} cat /sys/class/dmi/id/product_name /etc/dgx-release",
    looks="DMI product, GB10 host bridges, `nvidia-smi`")  # fmt: skip
@check("arch", "nodes", WARNING, _PROFILES, _LAB, "{on} uname -m", looks="a machine with the name of a GB10 that is not aarch64")
def gb10(rank: Rank, group: Group) -> Iterator[Event]:
    """What identifies the machine as a GB10, and its processor."""
    what, severity = rank.facts["machine"], ERROR if group.needs.require_gb10 else WARNING
    if what["gb10"]:
        return
    if rank.container and not group.needs.require_gb10:
        for name in ("gb10", "arch"):
            yield skip(f"a container ({rank.container}) does not show the hardware of the node", name)
    elif what["evidence"]:
        text = f"its {what['evidence'][0]} identifies a GB10, but the processor is {what['arch'] or 'unknown'}; a GB10 is aarch64"
        yield found(text, severity=severity, name="arch")
    else:
        text = f"{what['product'] or 'no product name'}, {what['arch'] or 'unknown processor'}"
        yield found(f"this is not a GB10: {text}, and no GB10 on the PCI bus or in nvidia-smi", severity=severity)


@check(
    "machine_id", "nodes", WARNING, "a DHCP server can give both nodes one address, and the agent identifies the owner of a node by this ID",
    f"run `{_NEW_ID}` on one of the nodes, and reboot it", f"{{on}} '{_NEW_ID}'", PAIR, physical=True)  # fmt: skip
def machine_id(rank: Rank, group: Group) -> Iterator[Event]:
    """one `/etc/machine-id` on two nodes, as after a copy of a disk"""
    own = rank.facts["machine"].get("id")
    names = [each.host for each in group.read if own and each.facts["machine"].get("id") == own and not each.container]
    if len(names) > 1:
        yield found(f"/etc/machine-id is the same on {' and '.join(names)}, as after a copy of a disk", hosts=names)


@check(
    "copy_missing", "nodes", ERROR, "the weights and the image get to the other rank with rsync over SSH", "install the packages rsync and openssh-server",
    "{on} sudo apt install rsync openssh-server")  # fmt: skip
def copy_missing(rank: Rank, _group: Group) -> Iterator[Event]:
    """a program that copies need: `rsync`, `rrsync`, or one of OpenSSH"""
    if rank.facts["copy_missing"]:
        yield found(f"{', '.join(rank.facts['copy_missing'])} is not installed")


@check(
    "may_suspend", "nodes", WARNING, "a node that suspends ends the service of all ranks, and a request over the network does not wake it",
    f"run `{MASK_SLEEP}` on the node", f"{{on}} {MASK_SLEEP}", physical=True)  # fmt: skip
def may_suspend(rank: Rank, _group: Group) -> Iterator[Event]:
    """what suspends the node by itself: GNOME (`sleep-inactive-ac-type`), `IdleAction` of logind, a lid, suspends since the boot;
    a masked `sleep.target` prevents it"""
    reasons = rank.facts.get("suspends")
    if reasons:
        yield found("; ".join(reasons))


@check(
    "wifi_control_path", "nodes", WARNING,
    "Wi-Fi drops under load and the mt7925 driver oopses on resets: the connection drops during the play and ranks hang",
    "connect a cable to enP7s7 and use it for the default route (nmcli: a lower route metric), or connect over the fabric", "{on} nmcli device")  # fmt: skip
def wifi(rank: Rank, _group: Group) -> Iterator[Event]:
    """a node that is reached over Wi-Fi"""
    path = rank.facts["fabric"]["management"]
    if path["wireless"]:
        yield found(f"the connection to the node uses Wi-Fi ({path['interface']}, {path['reason'] or 'default route'})")


@check(
    "kho_leak", "memory", ERROR, "the engine lacks this memory, and RDMA registration fails", command=SYSCTL, physical=True,
    looks="more free CMA than there is CMA")  # fmt: skip
@check(
    "memory_stuck", "memory", ERROR, "the start check of the engine does not find the memory that it needs", command=REBOOT, physical=True,
    looks="memory of a dead run that the driver keeps")  # fmt: skip
@check(
    "memory_fragmented", "memory", WARNING, "large registrations of the GPU and of RDMA fail although memory is free", command=REBOOT, physical=True,
    looks="no large blocks on an idle node")  # fmt: skip
@check(
    "memory_cache", "memory", INFO, "an engine that starts now can run out of memory although MemAvailable is high",
    command="{on} 'sudo sync && echo 1 | sudo tee /proc/sys/vm/drop_caches'", physical=True, looks="MemAvailable that is page cache")  # fmt: skip
@check(
    "watermark_boost", "memory", INFO, "the kernel does not allocate memory that it reports as free", command=SYSCTL, physical=True,
    looks="a multiplied floor")  # fmt: skip
def memory(rank: Rank, _group: Group) -> Iterator[Event]:
    """The problems of the memory."""
    for problem in rank.facts["memory"].get("problems", []):
        lowered = problem["id"] in ("kho_leak", "memory_stuck") and not rank.facts["machine"]["gb10"]
        yield found(problem["message"], problem["remedy"], severity=WARNING if lowered else "", name=problem["id"])
    figures = rank.info.get("memory") or {}
    if figures.get("available_kib"):
        yield f"{rank.host}: {figures['available_kib'] / GIB_KB:.0f} GiB available, {figures['free_kib'] / GIB_KB:.0f} GiB free"


class Need(NamedTuple):
    """Space that a stage needs. The size of an image on disk is an estimate, so its lack alone is a warning."""

    what: str
    gib: float
    exact: bool


@check(
    "disk_space", "nodes", ERROR, "a download or a copy fails and leaves a full disk; a full disk stops Docker",
    "free space (docker image prune, old models, journalctl --vacuum-size=1G), or set gb10_model_store to a larger disk",
    "{on} 'df -h; sudo docker system df'")  # fmt: skip
def disk_space(rank: Rank, group: Group) -> Iterator[Event]:
    """no room for weights (`model.size_gib`) or image, a read-only or nearly full disk"""
    disks = rank.facts["disks"]
    if not disks:
        yield skip("no file system could be read")
    elif not group.needs.model_gib:
        yield skip("the profile has no size of its weights (model.size_gib), so only the free space is checked")
    devices: dict[str, list[Any]] = {}
    for disk in disks:
        devices.setdefault(str(disk.get("device") or disk["path"]), []).append(disk)
    for entries in devices.values():
        yield from _device(rank, group, entries)


def _device(rank: Rank, group: Group, entries: list[Any]) -> Iterator[Event]:
    path, free, kept = entries[0]["path"], float(entries[0]["free_gib"]), group.needs.free_gib
    wanted = _needs_of(rank, group, [entry["path"] for entry in entries])
    total = sum(need.gib for need in wanted)
    if entries[0].get("read_only"):
        yield found(f"{path} is mounted read-only", "read dmesg, then mount it writable", "downloads and copies fail")
    elif total and free < total + kept:
        severity = ERROR if free < sum(need.gib for need in wanted if need.exact) else WARNING
        listed = " and ".join(f"{need.gib:.0f} GiB for {need.what}" for need in wanted)
        yield found(f"{free:.1f} GiB are free at {path}. Required: {listed}, and {kept:g} GiB that stay free", severity=severity)
    elif free < kept:
        yield found(f"{free:.1f} GiB are free at {path}. Required: {kept:g} GiB", severity=WARNING)


def _needs_of(rank: Rank, group: Group, paths: list[str]) -> list[Need]:
    """Return what is stored on the file system of `paths`. The last disk of the facts is the one of the model store."""
    engine, store, needs = rank.facts["docker"], rank.facts["disks"][-1]["path"], group.needs
    image = 0.0 if engine["image_present"] else needs.image_gib
    model = needs.model_gib - rank.facts["model"]["present_gib"]
    wanted = [(engine["root"], f"the image {needs.image}".rstrip(), image, False), (store, "the weights", model, True)]
    return [Need(f"{what} at {path}", gib, exact) for path, what, gib, exact in wanted if path in paths and gib > 0]


@check(
    "clock_skew", "nodes", WARNING, "the logs of the ranks cannot be compared, and downloads fail on certificates if the difference is large",
    "run `timedatectl set-ntp true` on the node; if all nodes differ by the same time, correct the clock of the controller",
    "{on} sudo timedatectl set-ntp true")  # fmt: skip
def clock_skew(rank: Rank, group: Group) -> Iterator[Event]:
    """a clock that is off for certain, however long the connection took"""
    clock, now = rank.facts.get("clock"), rank.facts.get("time")
    if not clock or not now:
        yield skip("the time was not measured around the module's call")
        return
    lowest, highest = float(now) - float(clock["after"]), float(now) - float(clock["before"])
    ahead = lowest if lowest > 0 else min(highest, 0.0)
    if abs(ahead) > group.needs.clock_skew_seconds:
        yield found(f"its clock is at least {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the controller's")
