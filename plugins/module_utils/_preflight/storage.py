# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of disk space and clocks."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.findings import FindingCollector, Rank, Requirements


class Need(NamedTuple):
    """Space that a stage needs. The size of an image on disk is an estimate, so its lack alone is a warning."""

    what: str
    gib: float
    exact: bool


def check_disks(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """Free space for weights and image on each file system."""
    disks = rank.facts["disks"]
    if not disks:
        found.skip(["disk_space"], rank.host, "no file system could be read")
    if not needs.model_gib:
        reason = "the profile has no size of its weights (model.size_gib), so only the free space is checked"
        found.skip(["disk_space"], rank.host, reason)
    devices: dict[str, list[Any]] = {}
    for disk in disks:
        devices.setdefault(str(disk.get("device") or disk["path"]), []).append(disk)
    for entries in devices.values():
        _check_device(found, rank, needs, entries)


def _check_device(found: FindingCollector, rank: Rank, needs: Requirements, entries: list[Any]) -> None:
    path, free = entries[0]["path"], float(entries[0]["free_gib"])
    wanted = _needs_of(rank, needs, [entry["path"] for entry in entries])
    total = sum(need.gib for need in wanted)
    if entries[0].get("read_only"):
        found.add("disk_space", "error", rank.host, f"{path} is mounted read-only", "downloads and copies fail", "read dmesg, then mount it writable")
    elif total and free < total + needs.free_gib:
        severity = "error" if free < sum(need.gib for need in wanted if need.exact) else "warning"
        listed = " and ".join(f"{need.gib:.0f} GiB for {need.what}" for need in wanted)
        found.add("disk_space", severity, rank.host, f"{free:.1f} GiB are free at {path}. Required: {listed}, and {needs.free_gib:g} GiB that stay free")
    elif free < needs.free_gib:
        found.add("disk_space", "warning", rank.host, f"{free:.1f} GiB are free at {path}. Required: {needs.free_gib:g} GiB")


def _needs_of(rank: Rank, needs: Requirements, paths: list[str]) -> list[Need]:
    """Return what is stored on the file system of `paths`. The last disk of the facts is the one of the model store."""
    engine, store = rank.facts["docker"], rank.facts["disks"][-1]["path"]
    image = 0.0 if engine["image_present"] else needs.image_gib
    model = needs.model_gib - rank.facts["model"]["present_gib"]
    wanted = [(engine["root"], f"the image {needs.image}".rstrip(), image, False), (store, "the weights", model, True)]
    return [Need(f"{what} at {path}", gib, exact) for path, what, gib, exact in wanted if path in paths and gib > 0]


def check_clock(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """Clock of the node against the controller's. Only a difference that the duration of the call cannot explain counts."""
    clock, now = rank.facts.get("clock"), rank.facts.get("time")
    if not clock or not now:
        found.skip(["clock_skew"], rank.host, "the time was not measured around the module's call")
        return
    lowest, highest = float(now) - float(clock["after"]), float(now) - float(clock["before"])
    ahead = lowest if lowest > 0 else min(highest, 0.0)
    if abs(ahead) > needs.clock_skew_seconds:
        direction = "ahead of" if ahead > 0 else "behind"
        found.add("clock_skew", "warning", rank.host, f"its clock is at least {abs(ahead):.0f} s {direction} the controller's")
