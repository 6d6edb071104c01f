# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the output of ib_write_bw, and name the class of a fabric. Pure. All rates are Gb/s (1e9 bit/s)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads

BANDWIDTH_RECEIPT = Path("/var/lib/gb10-cluster/roce/bandwidth.json")  # of the last test that passed

_HEADER = re.compile(r"^\s*#bytes\s.*BW average\[(?P<unit>[^\]]+)\]", re.M)
_ROW = re.compile(r"^\s*\d+\s+(?P<count>\d+)\s+(?P<peak>[\d.]+)\s+(?P<average>[\d.]+)\s+[\d.]+(?:\s+[\d.]+)?\s*$", re.M)
# perftest derives its rates from the processor's cycle counter. Where that runs unevenly it prints this, in the middle of any line, and prints 0.
_NO_CLOCK = re.compile(r"Correlation coefficient r\^2: [\d.]+ < [\d.]+")
NO_CLOCK = "its messages arrive, but perftest could not measure their rate: the processor's clock ran too unevenly"
_COMPLAINT = re.compile(r"fail|error|couldn't|unable|cannot|not found|refused|timed? ?out", re.I)
_UNITS = {"Gb/sec": 1.0, "MB/sec": 8 * 2**20 / 1e9, "MiB/sec": 8 * 2**20 / 1e9}

CLASSES = ("healthy", "one_rail", "hotplug_13g", "tcp_only", "unknown")


@dataclass(frozen=True)
class Thresholds:
    """From `rail_gbps` on a rail is good; a rail between the two `hotplug` figures shows the hot-plug fault."""

    rail_gbps: float = 85.0
    hotplug_low_gbps: float = 11.0
    hotplug_high_gbps: float = 15.5


@dataclass(frozen=True)
class Verdict:
    """The class, one sentence about what was measured, and the remedy (empty when healthy)."""

    name: str
    message: str
    remedy: str


def result_of(text: str, rc: int) -> tuple[float | None, str | None]:
    """Return the average rate of the last result row, or why there is none, in the tool's own words where it has some.

    A wrong GID index prints the header and exits 0. The reason is ``NO_CLOCK`` where only the measuring failed.
    """
    uneven, text = _NO_CLOCK.search(text), _NO_CLOCK.sub("", text)
    header = _HEADER.search(text)
    row = ([None, *_ROW.finditer(text, header.end())] if header else [None])[-1]
    rate = round(float(row["average"]) * _UNITS.get(header["unit"], 0.0), 3) if header and row else 0.0
    if rate:
        return rate, None
    complaints = [line.strip() for line in text.splitlines() if _COMPLAINT.search(line)]
    if complaints:
        return None, complaints[-1]
    if rc == 124:
        return None, "it did not end in time"
    if row:
        return None, NO_CLOCK if uneven and int(row["count"]) > 0 else "it finished no message in the time of the test"
    return None, "it printed the header and no result row, as with a wrong GID index" if header else f"it ended with rc {rc} and no result"


def classify(rates: Sequence[float | None], thresholds: Thresholds, reasons: Sequence[str | None] = ()) -> Verdict:
    """Name the class of rails that were measured at the same time; None is a rail without a result, for the reason at the same place."""
    shown = ", ".join("no result" if rate is None else f"{rate:g} Gb/s" for rate in rates) or "nothing"
    known = [rate for rate in rates if rate is not None]
    total = sum(known)
    good = thresholds.rail_gbps
    measured = f"RDMA write over {len(rates)} rail(s) at once: {shown}"
    if NO_CLOCK in reasons and all(rate is not None or why == NO_CLOCK for rate, why in zip(rates, reasons)):
        return Verdict("unknown", f"{measured}: {NO_CLOCK}.", "Run --tags roce again while nothing else keeps the processors busy.")
    if not rates or not known:
        return Verdict(
            "tcp_only",
            f"{measured}: no RDMA gets through, although the rails answer.",
            "NCCL would fall back to TCP. Check `rdma link`, the GID index and /dev/infiniband on both nodes, and that no firewall drops UDP port 4791.",
        )
    if len(known) == len(rates) and all(rate >= good for rate in known):
        return Verdict("healthy", f"{measured}; wanted are {good:g} Gb/s a rail.", "")
    if any(thresholds.hotplug_low_gbps <= rate <= thresholds.hotplug_high_gbps for rate in known) and max(known) < good:
        return Verdict(
            "hotplug_13g",
            f"{measured}: the hot-plug fault of about 13 Gb/s a rail, which every status command calls healthy.",
            "Reboot both machines with the cable in (`systemctl reboot --no-block` on both); if it stays, pull both power plugs for 30 s to 30 min.",
        )
    halves = len(rates) > 1 and len(known) == len(rates) and good <= total < 1.25 * good
    single = len(rates) > 1 and any(rate >= good for rate in known) and sum(1 for rate in rates if rate is None or rate < good) > 0
    if halves or single:
        return Verdict(
            "one_rail",
            f"{measured}: together no more than one rail.",
            "Both PCIe functions of the cage must carry traffic: a network of its own for each rail, both HCAs up on both nodes; reboot with the cable in.",
        )
    return Verdict(
        "unknown",
        f"{measured}; wanted are {good:g} Gb/s a rail.",
        "Compare cable, firmware and MTU of both nodes; if this fabric is slower by design, set roce_bandwidth_rail_gbps.",
    )


def bandwidth_key(rails: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return what a receipt is valid for: HCA and address of each rail."""
    return sorted([str(rail["hca"]), str(rail["ipv4"])] for rail in rails)


def matching_receipt(text: str, rails: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the receipt if it is readable and speaks of these rails, else None."""
    try:
        receipt = loads(text)
    except ValueError:
        return None
    return receipt if isinstance(receipt, dict) and receipt.get("key") == bandwidth_key(rails) else None
