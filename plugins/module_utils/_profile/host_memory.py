# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a boot leaves to the host of a GB10, whose CPU and GPU share one memory, and which settings the sources report to freeze nodes. Pure.

A node without free memory freezes: no SSH, no OOM kill, and a person has to power-cycle it. The figures are those of the seeds:

- 0.80 to 0.82 is the practical maximum of gpu-memory-utilization (000:57).
- At 0.80 about 8 GB stay free while 1M tokens of context are served, at 0.85 about 1 GB (000:52, 000:57). Both agree with a fixed use outside the
  engine's share: 20 % of 121.69 GiB less 7.45 GiB is 16.9 GiB, which at 0.85 leaves 1.4 GiB.
- Above 0.78 with a drafter, or with custom_ops, both nodes of Tobias Weiss froze (his page, Stability and Conclusion). Its profile has the limit in its plan.
- Loading and profiling need about 33 GiB for a time, next to the weights (002:376).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ALLOW = "vllm_tp2_allow_unsafe_memory"
PRACTICAL = 0.82
SPARK_GIB = 121.69  # MemTotal of a node of the sources; some have 119.6
FREE_AT_080_GIB = 7.45  # 8 GB
OUTSIDE_GIB = (1 - 0.80) * SPARK_GIB - FREE_AT_080_GIB  # what the host and the engine use outside its share
LOAD_PEAK_GIB = 33.0
_CUSTOM_OPS = re.compile(r"custom_ops['\"]?\s*:\s*\[[^\]]*['\"]all['\"]")


class Finding(NamedTuple):
    """Why a boot is refused, and what to set instead; both empty if it is not. A warning or a note about one that is not refused."""

    fact: str = ""
    remedy: str = ""
    warning: str = ""
    note: str = ""


def free_gib(share: float, total_gib: float) -> float:
    """Return the memory that stays free on a node while an engine with that share of its memory serves; negative if it does not fit."""
    return (1 - share) * total_gib - OUTSIDE_GIB


def judge(share: float, limit: float | None, what: str, remedy: str, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Compare the engine's share of the memory with the highest that is reported to serve.

    :param share: the engine's share of the memory of the node with the least.
    :param limit: the profile's own limit; None for that of the seeds.
    :param what: what sets the share, as it begins a sentence. ``remedy`` is what to do instead.
    :param rows: ``host`` and ``total_gib`` of each rank. The smallest node decides.
    """
    row = min(rows, key=lambda each: float(each["total_gib"]))
    total, highest = row["total_gib"], PRACTICAL if limit is None else limit
    free, stays = free_gib(share, total), (1 - share) * total
    left = f"about {free:.1f} GiB remain free" if free >= 0.05 else "nothing remains free"
    remains = f"Of {total:.1f} GiB on {row['host']}, {max(0.0, stays):.1f} GiB stay for the host, which uses about {OUTSIDE_GIB:.1f}: {left}"
    if share > highest + 1e-6:
        whose = "the sources report to serve" if limit is None else "this profile is reported to serve"
        fact = f"{what} is above {highest:g}, the highest that {whose}. {remains}. A node without free memory freezes until it is power-cycled."
        return Finding(fact, remedy)
    if stays < (1 - PRACTICAL) * SPARK_GIB - 0.05:
        return Finding(warning=f"{what} leaves less memory than {PRACTICAL:g} of {SPARK_GIB:g} GiB, the practical maximum of the seeds. {remains}.")
    return Finding()


def judge_pinned(pool: float, weights: float | None, reserve: float | None, limit: float | None, rows: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Tell whether enough stays free next to a KV pool of a pinned size, which vLLM does not size by the utilization. All figures are GiB a rank.

    :param limit: the profile's own limit of the utilization. If it is lower than that of the sources, the share of a pinned pool has it too.
    :returns: None if weights or reserve are not known and nothing else refuses: the utilization counts then.
    """
    total, lower = min(float(each["total_gib"]) for each in rows), limit if limit is not None and limit < PRACTICAL else None
    if weights is None:
        return None
    known = weights + (reserve or 0.0)
    left, share = int(((lower or PRACTICAL) * total - known) * 2**30), (pool + known) / total
    remedy = f"Set kv-cache-memory-bytes to {left} or less" if left > 0 else "Use a smaller model or more nodes"
    taker = f"the share {share:.2f} that the weights{'' if reserve is None else ', the reserve'} and {pool:.1f} GiB of pinned KV cache take"
    found = judge(share, lower, taker, remedy, rows)
    if found.fact or reserve is not None:
        note = f"With a KV pool of {pool:.1f} GiB, about {free_gib(share, total):.1f} GiB stay free on each node."
        return found if found.fact else found._replace(note=note)
    return None


def custom_ops(args: Mapping[str, Any], measured: Mapping[str, Any], reported: bool) -> Finding:
    """Refuse custom_ops [all] if the profile's measured boot compiled without it. Warn if no boot of the profile is ``reported``."""
    seen = "custom_ops [all] froze both nodes of Tobias Weiss while the operators compiled, with about 3 GiB free"
    if not _CUSTOM_OPS.search(str(args.get("compilation-config"))):
        return Finding()
    if "compilation-config" in measured and not _CUSTOM_OPS.search(str(measured["compilation-config"])):
        return Finding(f"compilation-config: {seen}, and this profile is reported to serve without it.", "Remove custom_ops")
    return Finding() if reported else Finding(warning=f"compilation-config: {seen}. Boots with a filled compile cache do not compile.")


def load_peak(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning for the rank with the least room while the weights load. Unknown figures (None) give none.

    :param rows: ``host``, ``weights_gib`` and ``available_gib`` of each rank.
    """
    known = [(row["available_gib"] - row["weights_gib"] - LOAD_PEAK_GIB, row) for row in rows if None not in (row["weights_gib"], row["available_gib"])]
    if not known:
        return []
    left, row = min(known, key=lambda each: float(each[0]))
    if left >= 0:
        return []
    return [
        f"{row['host']} has {row['available_gib']:.1f} GiB for the load. {row['weights_gib']:.1f} GiB of weights and the peak of loading and profiling "
        f"({LOAD_PEAK_GIB:g} GiB, 11_p's thread) need {-left:.1f} GiB more. Drop the page cache and stop what else uses memory there."
    ]
