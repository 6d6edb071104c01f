# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimate the KV pool of a boot from a profile and the memory of the nodes.

vLLM gives the KV cache what is left of ``gpu_memory_utilization x total`` after weights and a reserve (activations, CUDA graphs, NCCL, and on
unified memory the page cache that the profiling run counts as used). The total is MemTotal, or the own memory of the GPU. The rank with the least
decides for all. A profile's ``plan`` has weights, reserve and bytes a token, calibrated on measured boots. If a figure is missing the verdict is
``unknown``, which never blocks.

Units: ``_gib`` GiB, ``_kib`` KiB, tokens are *effective* tokens (maximum concurrency x context), as the gate counts them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile import host_memory, values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import human_int

GIB = 2**30
KIB_PER_GIB = 2**20
# vLLM's default: 0.9 up to 0.19, 0.92 from 0.20 on. (The versions 0.0 and 0.1 are those of forks.)
DEFAULT_UTILIZATION, OLD_DEFAULT, OLD = 0.92, 0.9, re.compile(r"v?0\.(?:[2-9]|1\d)\.\d")
# If the reserve was measured with other values of these, the error grows by so many percent points.
UNCERTAIN = {
    "max-num-seqs": 4.0,
    "max-num-batched-tokens": 6.0,
    "enforce-eager": 8.0,
    "compilation-config": 6.0,
    "enable-expert-parallel": 6.0,
    "speculative-config": 8.0,
    "max-model-len": 2.0,
}
# An argument with so many points also changes the reserve, by so many percent a point: with neither drafter nor graphs and a smaller batch, Tobias Weiss
# booted with about half the reserve.
RESERVE_POINTS, RESERVE_PERCENT_A_POINT = 6.0, 2.0
# If one of these differs, the memory cannot be compared, and nothing is estimated.
DECISIVE = ("kv-cache-dtype", "quantization", "block-size", "pipeline-parallel-size", "data-parallel-size", "num-gpu-blocks-override", "cpu-offload-gb")
GPU_MEMORY = "GPU memory"  # of a GPU that does not share the node's


class PlanError(ValueError):
    """The memory of a node is not known. The text names it and what is expected."""


def utilization_of(args: Mapping[str, Any], version: str | None = None) -> float:
    """Return gpu_memory_utilization as a fraction, or vLLM's default for the version."""
    value = args.get("gpu-memory-utilization")
    if value in (None, False):  # false leaves the flag out
        return OLD_DEFAULT if OLD.match(version or "") else DEFAULT_UTILIZATION
    return float(value)


def pinned_gib(args: Mapping[str, Any]) -> float | None:
    """Return the KV memory that --kv-cache-memory(-bytes) pins, GiB, or None."""
    for flag in ("kv-cache-memory-bytes", "kv-cache-memory"):
        size = human_int(args.get(flag))
        if size:
            return size / GIB
    return None


def _kib(entry: Mapping[str, Any], name: str, host: str) -> float | None:
    """Return a figure in KiB, None without one. preflight_info names the same unit kb; a user may type the figure as text."""
    value = entry.get(f"{name}_kib", entry.get(f"{name}_kb"))
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise PlanError(f"{name}_kib of {host} is {value!r}, expected a number of KiB") from error


def _memory(entry: Mapping[str, Any], number: int, on_gpu: bool) -> dict[str, Any]:
    """Read one rank's figures, in KiB.

    An engine `on_gpu` uses the GPU's own memory if there is one. What the old engine holds of it is free after the stop.
    Page cache counts as available: the agent drops it before a start, also for vLLM before 0.20, which reads MemFree (its pull request 35356).
    """
    host = str(entry.get("host") or f"rank {number}")
    own = on_gpu and bool(entry.get("gpu_total_kib"))
    held = _kib(entry, "gpu_engine", host) if own else None
    total, available = (_kib(entry, key, host) for key in (("gpu_total", "gpu_free") if own else ("total", "available")))
    if not total:
        raise PlanError(f"total_kib of {host} is missing, expected MemTotal in KiB")
    return {
        "rank": int(entry.get("rank", number)),
        "host": host,
        "engine_running": bool(entry.get("engine_running")) and held is None,
        "memory": GPU_MEMORY if own else "memory",
        "total_gib": total / KIB_PER_GIB,
        "available_gib": None if available is None else (available + (held or 0)) / KIB_PER_GIB,
    }


def _differs(one: Any, two: Any) -> bool:
    """Tell whether two values of an argument differ; 1048576, "1048576" and "1M" are one."""
    left, right = human_int(one), human_int(two)
    return left != right if left is not None and right is not None else bool(one != two)


def _uncertainty(profile: Mapping[str, Any], size: int) -> tuple[float, float, str | None]:
    """Return (error in percent of the pool, error in percent of the reserve, reason why nothing can be estimated, or None)."""
    plan, args = profile["plan"], profile["engine"]["args"]
    error = float(plan["error_percent"] if plan["error_percent"] is not None else 15.0)
    if size != plan["ranks"]:
        return error, 0.0, f"the figures were measured on {plan['ranks']} ranks, not {size}"
    measured = plan["at"]
    if not measured:
        return error, 0.0, None
    for flag in DECISIVE:
        if _differs(args.get(flag), measured.get(flag)) and (flag in measured or args.get(flag) not in (None, 1, "1")):
            return error, 0.0, f"{flag} is {args.get(flag)}, and the figures were measured with {measured.get(flag)}"
    reserve = 0.0
    for flag, points in UNCERTAIN.items():
        if _differs(args.get(flag), measured.get(flag)) and (flag in measured or args.get(flag) not in (None, False)):
            error += points
            reserve += points * RESERVE_PERCENT_A_POINT if points >= RESERVE_POINTS else 0.0
    return min(error, 40.0), reserve, None


@dataclass(frozen=True)
class _Figures:
    """What the estimate of all ranks depends on; None is not known."""

    utilization: float
    pinned: float | None  # GiB of KV memory
    weights: float | None  # GiB
    reserve: float | None  # GiB
    bytes: float | None  # a token and rank
    limit: float  # highest utilization to propose
    check_skipped: bool

    @property
    def missing(self) -> list[str]:
        """The keys of the profile's plan without which the pool cannot be estimated. Pinned memory needs only the bytes a token."""
        pinned = self.pinned is not None
        known = {"weights_gib_per_rank": pinned or self.weights, "reserve_gib": pinned or self.reserve, "kv_bytes_per_token": self.bytes}
        return [name for name, value in known.items() if value is None]


def _rank_plan(memory: dict[str, Any], figures: _Figures) -> dict[str, Any]:
    """Return one rank's budget, available KV memory and start check."""
    budget = figures.utilization * memory["total_gib"]
    available = figures.pinned
    if available is None and figures.weights is not None and figures.reserve is not None:
        available = budget - figures.weights - figures.reserve
    free, start = memory["available_gib"], "unknown"
    if figures.check_skipped:
        start = "skipped"
    elif memory["engine_running"]:
        start = "later"
    elif free is not None:
        start = "ok" if free >= budget else "refused"
    return {
        **memory,
        "budget_gib": budget,
        "weights_gib": figures.weights,
        "reserve_gib": figures.reserve,
        "kv_gib": available,
        "start_check": start,
        "start_check_gib": free,
        "tokens": None if figures.missing or available is None or not figures.bytes else max(0, int(available * GIB / figures.bytes)),
    }


def _start_remedy(short: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], figures: _Figures, needed: int | None) -> str:
    """Return what lets the start check pass: a utilization that every rank has free and that holds the weights and the pool, or free memory."""
    fits = math.floor(min(figures.limit, *(row["start_check_gib"] / row["total_gib"] for row in ranks if row["start_check_gib"] is not None)) * 100) / 100
    pool = (needed or 0) * (figures.bytes or 0.0) / GIB if figures.pinned is None else 0.0
    holds = all(fits * row["total_gib"] > (figures.weights or 0.0) + (figures.reserve or 0.0) + pool for row in ranks)
    if fits >= 0.5 and holds:
        return f"set gpu-memory-utilization to {fits:.2f}"
    lacks = short["budget_gib"] - short["start_check_gib"]
    return f"free {lacks:.1f} GiB on {short['host']}: stop what `nvidia-smi` and `ps` list there, drop the page cache, or reboot the node"


def _room(rank: Mapping[str, Any], figures: _Figures) -> float:
    """Return the memory that a rank may fill: what is free now, or all if the start check does not apply."""
    free = rank["start_check_gib"]
    return float(rank["total_gib"] if free is None or figures.check_skipped or rank["engine_running"] else free)


def _pool_remedy(result: Mapping[str, Any], figures: _Figures, gate: Mapping[str, Any]) -> str:
    """Return what makes the pool fit: more memory for it if the ranks have that, or else the lower end of the error as the context or the gate's bound."""
    ranks, lowest = result["ranks"], int(result["low_tokens"]) // 1000 * 1000
    pool = result["needed_tokens"] * (figures.bytes or 0.0)
    taken = (figures.weights or 0.0) + (figures.reserve or 0.0) + pool / GIB
    utilization = math.ceil(taken / min(row["total_gib"] for row in ranks) * 100 - 1e-9) / 100
    if figures.pinned is not None and all(taken <= _room(row, figures) for row in ranks):
        return f"raise kv-cache-memory-bytes to {math.ceil(pool)}"
    if figures.pinned is None and utilization <= figures.limit and all(utilization * row["total_gib"] <= _room(row, figures) for row in ranks):
        return f"set gpu-memory-utilization to {utilization:.2f}"
    if lowest < 1000:
        return "use a smaller model, a smaller quantization or more nodes"
    context, bounds = gate["context"] or 0, {key: gate[key]["min"] or 0 for key in ("effective_tokens", "concurrency")}
    change = [f"set max-model-len to {lowest} or less"] if lowest < context else []
    change += [f"lower gate.effective_tokens.min to {lowest}"] if lowest < bounds["effective_tokens"] else []
    change += [f"lower gate.concurrency.min to {math.floor(lowest / context * 100) / 100:.2f}"] if context and lowest < bounds["concurrency"] * context else []
    return " and ".join(change)


def _figures(profile: Mapping[str, Any], size: int, version: str | None, comparable: bool) -> _Figures:
    args, plan = profile["engine"]["args"], profile["plan"]
    return _Figures(
        utilization=utilization_of(args, version),
        pinned=pinned_gib(args),
        weights=values.weights_gib(profile, size) if comparable else None,
        reserve=plan["reserve_gib"] if comparable else None,
        bytes=plan["kv_bytes_per_token"],
        limit=host_memory.PRACTICAL if plan["utilization_limit"] is None else plan["utilization_limit"],
        check_skipped=profile["env"].get("VLLM_SKIP_INIT_MEMORY_CHECK") == "1" or profile["container"]["gpus"] == "none",
    )


def _needed(gate: Mapping[str, Any]) -> int | None:
    """Return the tokens that the gate asks for, and at least one request of full length."""
    needs = [tokens for tokens in (gate["effective_tokens"]["min"], gate["context"]) if tokens is not None]
    if gate["concurrency"]["min"] is not None and gate["context"] is not None:
        needs.append(round(gate["concurrency"]["min"] * gate["context"], 3))
    return math.ceil(max(needs)) if needs else None


def _estimate(rows: Sequence[Mapping[str, Any]], figures: _Figures, plan: Mapping[str, Any], error: float, reserve_error: float) -> dict[str, Any]:
    """Return the pool that the rank with the least memory leaves, with its error; only the error if a figure is not known."""
    if figures.missing or not figures.bytes:
        return {"expected_tokens": None, "low_tokens": None, "high_tokens": None, "short_rank": None, "error_percent": error}
    short = min(rows, key=lambda r: (r["kv_gib"], r["rank"]))
    tokens = short["kv_gib"] * GIB / figures.bytes
    spread = tokens * error / 100
    if figures.pinned is None:
        # What varies from boot to boot are GiB, so that the error of a small pool is not smaller.
        reserve = (plan["reserve_gib"] or 0.0) * reserve_error * GIB / figures.bytes
        spread = max(max(tokens, plan["measured_pool_tokens"] or 0) * error, reserve) / 100
    return {
        "expected_tokens": short["tokens"],
        "low_tokens": max(0, int(tokens - spread)),
        "high_tokens": max(0, int(tokens + spread)),
        "short_rank": short["rank"],
        "error_percent": min(100.0, round(100 * spread / short["tokens"], 1)) if short["tokens"] else error,
    }


def make_plan(
    profile: Mapping[str, Any],
    ranks: Sequence[Mapping[str, Any]],
    version: str | None = None,
    allow_unsafe: bool = False,
) -> dict[str, Any]:
    """Return the estimate of a boot, and whether it can pass.

    :param profile: a resolved profile.
    :param ranks: one mapping a rank: ``rank``, ``host``, ``total_kib``, ``available_kib``,
        ``engine_running`` (true while this group's old engine still holds its memory). ``gpu_total_kib``, ``gpu_free_kib`` and ``gpu_engine_kib`` (what
        the old engine holds of it) are there if the GPU has its own memory, and are used then.
    :param version: the image's vLLM version if known, for its default of the utilization.
    :param allow_unsafe: settings that the sources report to freeze nodes are a warning.
    :returns: ``verdict`` (ok, refused, unknown), ``msg``, ``unsafe`` (why the boot may freeze the nodes, or None), ``warnings``,
        ``expected_tokens``, ``error_percent``, ``low_tokens``, ``high_tokens``, ``needed_tokens``, ``short_rank`` (the one that decides), ``remedy``,
        ``utilization``, ``kv_bytes_per_token`` and ``ranks``.
    :raises PlanError: the memory of a node is not known.
    """
    plan = profile["plan"]
    memories = [_memory(entry, i, profile["container"]["gpus"] != "none") for i, entry in enumerate(ranks)]
    error, reserve_error, unknown = _uncertainty(profile, len(memories))
    figures = _figures(profile, len(memories), version, unknown is None)
    rows = [_rank_plan(memory, figures) for memory in memories]
    result: dict[str, Any] = {
        **_estimate(rows, figures, plan, error, reserve_error),
        "verdict": "ok",
        "remedy": None,
        "warnings": [],
        "needed_tokens": _needed(profile["gate"]),
        "utilization": figures.utilization,
        "kv_bytes_per_token": figures.bytes,
        "ranks": rows,
    }
    if any(row["start_check"] == "refused" for row in rows):
        text = _refuse_start(result, figures)
    elif result["expected_tokens"] is None:
        reason = unknown or f"plan.{' and plan.'.join(figures.missing)} unknown"
        result["verdict"], text = "unknown", f"the KV pool cannot be estimated ({reason}). The gate judges the boot."
    else:
        text = _judge_pool(result, figures, profile["gate"])
    result["msg"] = f"{profile['name']}: {text}"
    _judge_host(result, profile, figures, allow_unsafe)
    result["ranks"] = [{key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()} for row in rows]
    return result


def _judge_host(result: dict[str, Any], profile: Mapping[str, Any], figures: _Figures, allow: bool) -> None:
    """Set ``unsafe``, and add the warnings about the memory of the host. An engine without a GPU, or on one with its own memory, takes no share of it."""
    rows, args, plan = [row for row in result["ranks"] if row["memory"] != GPU_MEMORY], profile["engine"]["args"], profile["plan"]
    result["unsafe"] = None
    if profile["container"]["gpus"] == "none" or not rows:
        return
    share, what = figures.utilization, f"gpu-memory-utilization {figures.utilization:g}"
    remedy = f"Set gpu-memory-utilization (vllm_tp2_gpu_memory_utilization) to {figures.limit:g} or less"
    if args.get("gpu-memory-utilization") is None:
        what = f"gpu-memory-utilization is not set, and vLLM's default {share:g}"
    memory = host_memory.judge(share, plan["utilization_limit"], what, remedy, rows)
    if figures.pinned is not None:  # without its figures, only the limit of the utilization counts
        remedy = f"Set plan.weights_gib_per_rank and plan.reserve_gib of the profile (GiB a rank), or {remedy[4:]}"
        by_figures = host_memory.judge_pinned(figures.pinned, figures.weights, figures.reserve, plan["utilization_limit"], rows)
        memory = by_figures or memory._replace(warning="", remedy=remedy)
    result["msg"] += f" {memory.note}" if memory.note and result["verdict"] != "refused" else ""
    found = [memory, host_memory.custom_ops(args, plan["at"], "defaults" not in profile)]
    result["warnings"] += [finding.warning for finding in found if finding.warning]
    refusals = [finding for finding in found if finding.fact]
    if allow:
        result["warnings"] += [f"{finding.fact} The boot is not refused, because {host_memory.ALLOW} is true." for finding in refusals]
    elif refusals:
        texts = (f"{finding.fact} {finding.remedy}, or accept the risk with {host_memory.ALLOW}: true." for finding in refusals)
        result["unsafe"] = f"{profile['name']}: {' '.join(texts)}"
    result["warnings"] += host_memory.load_peak([row for row in rows if not row["engine_running"]])


def _refuse_start(result: dict[str, Any], figures: _Figures) -> str:
    """Refuse a boot whose start check fails; return the sentence."""
    rows = result["ranks"]
    short = max((row for row in rows if row["start_check"] == "refused"), key=lambda row: row["budget_gib"] - row["start_check_gib"])
    result.update(verdict="refused", short_rank=short["rank"], remedy=_start_remedy(short, rows, figures, result["needed_tokens"]))
    figure = GPU_MEMORY if short["memory"] == GPU_MEMORY else "MemAvailable"
    return (
        f"{short['host']} (rank {short['rank']}) has {short['start_check_gib']:.1f} of {short['total_gib']:.1f} GiB ({figure}), but "
        f"gpu-memory-utilization {figures.utilization:g} asks for {short['budget_gib']:.1f} GiB, so vLLM refuses to start: {result['remedy']}."
    )


def _judge_pool(result: dict[str, Any], figures: _Figures, gate: Mapping[str, Any]) -> str:
    """Compare the estimated pool with the memory and with what is needed. Set verdict, remedy and warnings; return the sentence."""
    rows, needed, expected = result["ranks"], result["needed_tokens"], result["expected_tokens"]
    short = next(row for row in rows if row["rank"] == result["short_rank"])
    error = f"+-{result['error_percent']:g} %" if expected and result["error_percent"] < 100 else f"at most {result['high_tokens']:,}"
    pool = f"Estimated KV pool: {expected:,} tokens ({error})"
    kind = "" if figures.pinned is None else " pinned"
    least = f"{short['host']} (rank {short['rank']}) has the least {short['memory']}: {short['kv_gib']:.1f} GiB{kind} for the KV cache"
    if figures.pinned is None and short["kv_gib"] < 0:
        least = (
            f"{short['host']} (rank {short['rank']}) has no memory for the KV cache: {short['weights_gib']:.1f} GiB of weights and "
            f"{short['reserve_gib']:.1f} GiB reserve are {-short['kv_gib']:.1f} GiB more than its budget of {short['budget_gib']:.1f} GiB"
        )
    elif figures.pinned is None:
        least += f" of {short['budget_gib']:.1f} GiB after {short['weights_gib']:.1f} GiB of weights and {short['reserve_gib']:.1f} GiB reserve"
    if needed is not None and result["high_tokens"] < needed:
        result.update(verdict="refused", remedy=_pool_remedy(result, figures, gate))
        return f"{pool}, at least {needed:,} are needed. {least}: {result['remedy']}."
    if needed is not None and expected < needed:
        result["remedy"] = _pool_remedy(result, figures, gate)
        result["warnings"].append(f"The pool may be too small: {needed:,} tokens are needed. {pool}. If the gate fails, {result['remedy']}.")
    gap = max(row["kv_gib"] - short["kv_gib"] for row in rows)
    if gap >= 1.0:
        result["warnings"].append(f"{short['host']} decides: the other ranks have up to {gap:.1f} GiB more for the KV cache.")
    if any(row["start_check"] == "later" and row["memory"] != GPU_MEMORY for row in rows):
        result["warnings"].append("The old engine still uses its memory. The agent waits for that memory after the stop (vllm_tp2_wait_available).")
    return f"{pool}{'' if needed is None else f', {needed:,} needed'}. {least}."
