# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: the KV pool to expect, before anything boots, pure.

vLLM gives the KV cache what is left of ``gpu_memory_utilization x total`` after weights and a reserve (activations,
CUDA graphs, NCCL, and on unified memory the page cache that the profiling run could not tell apart). The rank with
least decides for all. A profile's ``plan`` carries weights, reserve and bytes a token, calibrated on measured boots;
where a figure is missing the answer is ``unknown``, which never blocks.

Units: ``_gib`` GiB, ``_kib`` KiB, tokens are *effective* tokens (maximum concurrency x context), as the gate counts them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile.check import human_int
from ansible_collections.gb10.cluster.plugins.module_utils._profile.schema import PLACEHOLDERS

GIB = 2**30
KIB_PER_GIB = 2**20
# vLLM's default where a profile says nothing: 0.9 up to 0.19, 0.92 from 0.20 on.
DEFAULT_UTILIZATION = {True: 0.92, False: 0.9, None: 0.92}
# Where the reserve was measured with other values of these, the expectation is less certain by so many percent points.
UNCERTAIN = {
    "max-num-seqs": 4.0,
    "max-num-batched-tokens": 6.0,
    "enforce-eager": 8.0,
    "compilation-config": 6.0,
    "enable-expert-parallel": 6.0,
    "speculative-config": 8.0,
    "max-model-len": 2.0,
}
# How much of the reserve each point of an argument that has so many may take away or add: with neither drafter nor graphs and a smaller batch,
# seed 004 booted with about half the reserve.
RESERVE_POINTS, RESERVE_PERCENT_A_POINT = 6.0, 2.0
# Not the same memory at all: nothing is expected when one of these differs.
DECISIVE = ("kv-cache-dtype", "quantization", "block-size", "pipeline-parallel-size", "data-parallel-size", "num-gpu-blocks-override", "cpu-offload-gb")
# Highest utilization proposed where the profile's plan names none: seed 000 calls 0.80 to 0.82 the practical limit on a GB10.
PROPOSE_UP_TO = 0.82
KV_BYTES = {"auto": None, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float32": 4.0, "float": 4.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
DTYPE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0}


class PlanError(ValueError):
    """The inputs cannot be read; the text says which and what was expected."""


def _number(value: Any, what: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise PlanError(f"{what} is {value!r}, expected a number")
    try:
        number = float(value)
    except ValueError:
        raise PlanError(f"{what} is {value!r}, expected a number") from None
    if not math.isfinite(number) or number < 0:
        raise PlanError(f"{what} is {value!r}, expected a number of at least 0")
    return number


def utilization_of(args: Mapping[str, Any], version: str | None = None) -> float:
    """Return gpu_memory_utilization as a fraction, vLLM's own default for the version where the profile has none."""
    value = _number(args.get("gpu-memory-utilization"), "engine.args.gpu-memory-utilization")
    if value is None:
        return DEFAULT_UTILIZATION[checks_memavailable(version)]
    if not 0 < value <= 1:
        raise PlanError(f"engine.args.gpu-memory-utilization is {value:g}, expected a fraction above 0 and up to 1")
    return value


def pinned_gib(args: Mapping[str, Any]) -> float | None:
    """Return the KV memory that --kv-cache-memory(-bytes) pins, GiB, or None."""
    for flag in ("kv-cache-memory-bytes", "kv-cache-memory"):
        size = human_int(args.get(flag))
        if size:
            return size / GIB
    return None


def checks_memavailable(version: str | None) -> bool | None:
    """Tell which figure vLLM's start check reads on an integrated GPU: True MemAvailable, False MemFree, None unknown (a fork)."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version or "")
    if not match or (match.group(1), match.group(2)) in (("0", "0"), ("0", "1")):
        return None
    # vLLM pull request 35356 was merged on 2026-04-13, between 0.19 and 0.20.
    return tuple(int(n) for n in match.groups()) >= (0, 20, 0)


def kv_bytes_from_config(config: Mapping[str, Any], tensor_parallel: int, kv_dtype: str = "auto") -> tuple[float | None, str]:
    """Return (KV bytes per token and rank, why) from a model's config.json; None where its layers are not all alike.

    Uniform attention: 2 x layers x KV heads on a rank x head size x bytes. Multi-head latent attention: layers x
    (kv_lora_rank + qk_rope_head_dim) x bytes, the same on every rank.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    layers = config.get("num_hidden_layers")
    heads = config.get("num_attention_heads")
    if not isinstance(layers, int) or not isinstance(heads, int) or layers < 1 or heads < 1:
        return None, "the model's config has no num_hidden_layers and num_attention_heads"
    kinds = config.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str) and len({str(k) for k in kinds}) > 1:
        return None, "the model mixes kinds of attention layers, whose tokens cost differently"
    for key in (
        "index_topk",
        "compress_ratios",
        "sliding_window_pattern",
        "full_attention_interval",
        "mamba_num_heads",
        "ssm_state_size",
        "hybrid_override_pattern",
    ):
        if config.get(key):
            return None, f"the model's {key} makes a token's cost depend on the context"
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        return None, "the model's sliding_window makes a token's cost depend on the context"
    if kv_dtype not in KV_BYTES:
        return None, f"the KV cache dtype {kv_dtype} has a layout of its own"
    size = KV_BYTES[kv_dtype]
    if size is None:
        size = DTYPE_BYTES.get(str(config.get("torch_dtype") or config.get("dtype")))
        if size is None:
            return None, "the model's config names no dtype that is known here"
    rank, rope = config.get("kv_lora_rank"), config.get("qk_rope_head_dim")
    if isinstance(rank, int) and isinstance(rope, int):
        if kv_dtype.startswith("fp8"):
            return None, "fp8 with latent attention has a layout of its own"
        return layers * (rank + rope) * size, "latent attention, the same on every rank"
    kv_heads = config.get("num_key_value_heads", heads)
    hidden = config.get("hidden_size")
    head = config.get("head_dim") or (hidden // heads if isinstance(hidden, int) else None)
    if not isinstance(kv_heads, int) or not isinstance(head, int):
        return None, "the model's config has no head size"
    return 2 * layers * max(1, kv_heads // max(1, tensor_parallel)) * head * size, "uniform attention"


def _memory(entry: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Read one rank's figures; keys end in _kib (or in _kb, which uma_info writes for the same unit)."""
    host = str(entry.get("host") or f"rank {number}")
    out: dict[str, Any] = {"rank": int(entry.get("rank", number)), "host": host, "engine_running": bool(entry.get("engine_running"))}
    for key in ("total", "available", "free"):
        value = entry.get(key + "_kib", entry.get(key + "_kb"))
        number_kib = _number(value, f"{key}_kib of {host}")
        out[key + "_gib"] = None if number_kib is None else number_kib / KIB_PER_GIB
    if not out["total_gib"]:
        raise PlanError(f"total_kib of {host} is missing, expected MemTotal in KiB")
    return out


def _differs(one: Any, two: Any) -> bool:
    """Tell whether two values of an argument differ; 1048576, "1048576" and "1M" are one."""
    left, right = human_int(one), human_int(two)
    return left != right if left is not None and right is not None else bool(one != two)


def _uncertainty(profile: Mapping[str, Any], size: int) -> tuple[float, float, str | None]:
    """Return (error in percent of the pool, error in percent of the reserve, reason why nothing can be expected or None)."""
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


def _rank_plan(memory: dict[str, Any], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return one rank's budget, available KV memory and start check."""
    utilization, weights, reserve = figures["utilization"], figures["weights"], figures["reserve"]
    budget = utilization * memory["total_gib"]
    pinned = figures["pinned"]
    available = pinned if pinned is not None else (None if weights is None or reserve is None else budget - weights - reserve)
    start = "unknown"
    free = {True: memory["available_gib"], False: memory["free_gib"], None: memory["available_gib"]}[figures["memavailable"]]
    if figures["check_skipped"]:
        start = "skipped"
    elif memory["engine_running"]:
        start = "later"
    elif free is not None:
        start = "ok" if free >= budget else "refused"
        if start == "ok" and figures["memavailable"] is None and memory["free_gib"] is not None and memory["free_gib"] < budget:
            start = "ok if the image reads MemAvailable"
    return {
        **memory,
        "budget_gib": budget,
        "weights_gib": weights,
        "reserve_gib": reserve,
        "kv_gib": available,
        "start_check": start,
        "start_check_gib": free,
        "tokens": None,
    }


def _floor2(value: float) -> float:
    return math.floor(value * 100 + 1e-9) / 100


def _ceil2(value: float) -> float:
    return math.ceil(value * 100 - 1e-9) / 100


def _spread(raw: float, error: float, reserve: float, plan: Mapping[str, Any], per: float) -> float:
    """Return by how many tokens the pool may differ. A boot's memory varies by GiB, whatever is left of it for the pool: a small pool has no small error."""
    return max(max(raw, plan["measured_pool_tokens"] or 0) * error, (plan["reserve_gib"] or 0.0) * reserve * GIB / per) / 100


def _fmt(tokens: float) -> str:
    return f"{round(tokens):,}"


def _start_remedy(short: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], figures: Mapping[str, Any], needed: float | None) -> str:
    """Return the one change that lets the start check pass."""
    fits = _floor2(min(r["start_check_gib"] / r["total_gib"] for r in ranks if r["start_check_gib"] is not None))
    per, weights = figures["bytes"], figures["weights"]
    if needed is not None and per and weights is not None and figures["reserve"] is not None:
        fits = min(fits, figures["limit"])
        pool = min(fits * r["total_gib"] - weights - figures["reserve"] for r in ranks) * GIB / per
        if pool >= needed:
            return f"set gpu-memory-utilization to {fits:.2f}"
    elif fits >= 0.5 and (weights is None or all(fits * r["total_gib"] > weights for r in ranks)):
        return f"set gpu-memory-utilization to {fits:.2f} or less"
    return (
        f"free {short['budget_gib'] - short['start_check_gib']:.1f} GiB on {short['host']}: stop what holds it, drop the page cache, "
        "and reboot the node if the driver kept it"
    )


def _room(rank: Mapping[str, Any], figures: Mapping[str, Any]) -> float:
    """Return what a rank may fill: what is free now, or all where the check is skipped, comes later or reads nothing."""
    free = rank["start_check_gib"]
    return float(rank["total_gib"] if free is None or figures["check_skipped"] or rank["engine_running"] else free)


def _smaller(expected: float, gate: Mapping[str, Any]) -> str:
    """Return which context or bounds a pool of `expected` tokens still holds."""
    context, figure = gate["context"], int(expected) // 1000 * 1000
    if figure < 1000:
        return "use a smaller model, a smaller quantization or more nodes"
    lower = []
    if gate["effective_tokens"]["min"] is not None and gate["effective_tokens"]["min"] > figure:
        lower.append(f"gate.effective_tokens.min to {figure}")
    if context is not None and expected < context:
        return f"set max-model-len to {figure} or less" + "".join(f" and lower {bound}" for bound in lower)
    if gate["concurrency"]["min"] is not None and context and gate["concurrency"]["min"] * context > figure:
        lower.append(f"gate.concurrency.min to {math.floor(figure / context * 100) / 100:.2f}")
    return f"lower {' and '.join(lower)} if that pool will do, or use fewer sequences and batched tokens"


def _pool_remedy(ranks: Sequence[Mapping[str, Any]], figures: Mapping[str, Any], needed: float, low: float, gate: Mapping[str, Any]) -> str:
    """Return the one change that makes the pool fit; what is to be lowered is lowered to what even the worst of the stated error (`low`) holds."""
    pool = needed * figures["bytes"] / GIB
    if figures["pinned"] is not None:
        if figures["weights"] is None or all(figures["weights"] + (figures["reserve"] or 0.0) + pool <= _room(r, figures) for r in ranks):
            return f"raise kv-cache-memory-bytes to {math.ceil(needed * figures['bytes'])}"
        return _smaller(low, gate)
    total = min(r["total_gib"] for r in ranks)
    utilization = _ceil2((figures["weights"] + figures["reserve"] + pool) / total)
    if utilization <= figures["limit"] and all(utilization * r["total_gib"] <= _room(r, figures) for r in ranks):
        return f"set gpu-memory-utilization to {utilization:.2f}"
    return _smaller(low, gate)


def check_profile(profile: Mapping[str, Any]) -> None:
    """Refuse a mapping that is no resolved profile, saying how to get one."""
    for key in ("name", "engine", "gate", "plan", "env", "container"):
        if key not in profile:
            raise PlanError(f"profile has no {key}, expected a resolved profile: pass lookup('gb10.cluster.profile')")


def make_plan(
    profile: Mapping[str, Any],
    ranks: Sequence[Mapping[str, Any]],
    version: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what to expect of a boot, and whether it can pass.

    :param profile: a resolved profile.
    :param ranks: one mapping a rank: ``rank``, ``host``, ``total_kib``, ``available_kib``, ``free_kib`` (or _kb, KiB all the same),
        ``engine_running`` (true while this group's old engine still holds its memory).
    :param version: the image's vLLM version where known; decides which figure its start check reads.
    :param config: the model's config.json, for bytes a token where the profile has none.
    :returns: ``verdict`` (ok, refused, unknown), ``msg``, ``warnings``, ``expected_tokens``, ``error_percent``, ``low_tokens``, ``high_tokens``,
        ``needed_tokens``, ``short_rank`` (the one that decides), ``remedy``, ``utilization``, ``kv_bytes_per_token`` and ``ranks``.
    :raises PlanError: unreadable inputs.
    """
    if not ranks:
        raise PlanError("there is no rank to plan for, expected one entry a rank with total_kib, available_kib and free_kib")
    args, plan, gate = profile["engine"]["args"], profile["plan"], profile["gate"]
    memories = [_memory(entry, i) for i, entry in enumerate(ranks)]
    error, reserve_error, unknown = _uncertainty(profile, len(memories))
    per, why = plan["kv_bytes_per_token"], ""
    if per is None and config is not None:
        tensor = args.get("tensor-parallel-size")
        count = len(memories) if tensor in (None, PLACEHOLDERS["tensor-parallel-size"]) else human_int(tensor) or len(memories)
        per, why = kv_bytes_from_config(config, count, str(args.get("kv-cache-dtype") or "auto"))
    figures: dict[str, Any] = {
        "utilization": utilization_of(args, version),
        "pinned": pinned_gib(args),
        "weights": plan["weights_gib_per_rank"],
        "reserve": plan["reserve_gib"],
        "bytes": per,
        "memavailable": checks_memavailable(version),
        "limit": PROPOSE_UP_TO if plan["utilization_limit"] is None else plan["utilization_limit"],
        "check_skipped": profile["env"].get("VLLM_SKIP_INIT_MEMORY_CHECK") == "1" or profile["container"]["gpus"] == "none",
    }
    if unknown is not None:
        figures["weights"] = figures["reserve"] = None
    rows = [_rank_plan(m, figures) for m in memories]
    missing = [
        name
        for name, value in (("weights_gib_per_rank", figures["weights"]), ("reserve_gib", figures["reserve"]), ("kv_bytes_per_token", per))
        if value is None and not (figures["pinned"] is not None and name != "kv_bytes_per_token")
    ]
    needs = [n for n in (gate["effective_tokens"]["min"], gate["context"]) if n is not None]
    if gate["concurrency"]["min"] is not None and gate["context"] is not None:
        needs.append(round(gate["concurrency"]["min"] * gate["context"], 3))
    needed = max(needs) if needs else None
    result: dict[str, Any] = {
        "verdict": "unknown",
        "msg": "",
        "warnings": [],
        "expected_tokens": None,
        "low_tokens": None,
        "high_tokens": None,
        "error_percent": error,
        "needed_tokens": None if needed is None else math.ceil(needed),
        "short_rank": None,
        "remedy": None,
        "utilization": figures["utilization"],
        "kv_bytes_per_token": per,
        "ranks": rows,
    }
    if not missing:
        for row in rows:
            row["tokens"] = max(0, int(row["kv_gib"] * GIB / per)) if per else None
        short = min(rows, key=lambda r: (r["kv_gib"], r["rank"]))
        expected, raw = short["tokens"], short["kv_gib"] * GIB / per
        spread = raw * error / 100 if figures["pinned"] is not None else _spread(raw, error, reserve_error, plan, per)
        result.update(
            expected_tokens=expected,
            low_tokens=max(0, int(raw - spread)),
            high_tokens=max(0, int(raw + spread)),
            short_rank=short["rank"],
        )
        if expected:
            result["error_percent"] = min(100.0, round(100 * spread / expected, 1))
    _judge(result, profile, figures, unknown, missing, why)
    for row in rows:
        for key, value in row.items():
            if isinstance(value, float):
                row[key] = round(value, 2)
    return result


def _judge(result: dict[str, Any], profile: Mapping[str, Any], figures: Mapping[str, Any], unknown: str | None, missing: Sequence[str], why: str) -> None:
    """Fill verdict, message, warnings and remedy."""
    rows, needed, expected = result["ranks"], result["needed_tokens"], result["expected_tokens"]
    name, utilization = profile["name"], figures["utilization"]
    for row in rows:
        if row["start_check"] == "ok if the image reads MemAvailable":
            result["warnings"].append(
                f"{row['host']} has {row['free_gib']:.1f} GiB free and {row['available_gib']:.1f} GiB available, and the engine "
                f"asks for {row['budget_gib']:.1f}: "
                "an image older than vLLM 0.20 reads the first and refuses to start; drop the page cache first"
            )
    refused = [r for r in rows if r["start_check"] == "refused"]
    if refused:
        short = max(refused, key=lambda r: r["budget_gib"] - r["start_check_gib"])
        result["verdict"], result["short_rank"] = "refused", short["rank"]
        result["remedy"] = _start_remedy(short, rows, figures, needed)
        what = "MemFree" if figures["memavailable"] is False else "MemAvailable"
        result["msg"] = (
            f"{name}: {short['host']} (rank {short['rank']}) has {short['start_check_gib']:.1f} of {short['total_gib']:.1f} GiB ({what}), but "
            f"gpu-memory-utilization {utilization:g} asks for {short['budget_gib']:.1f} GiB, so vLLM refuses to start: {result['remedy']}."
        )
        return
    if expected is None:
        reason = unknown or ("plan.{} unknown".format(" and plan.".join(missing)) + (f", and {why}" if why else ""))
        result["msg"] = f"{name}: no pool can be foretold ({reason}); the gate will judge the boot."
        return
    short = next(r for r in rows if r["rank"] == result["short_rank"])
    figure = f"{_fmt(expected)} tokens (+-{result['error_percent']:g} %)"
    if not expected or result["error_percent"] >= 100:
        figure = f"{_fmt(expected)} tokens (at most {_fmt(result['high_tokens'])})"
    others = [r for r in rows if r is not short]
    pinned, held = figures["pinned"], (figures["weights"] or 0.0) + (figures["pinned"] or 0.0)
    where = f"{short['host']} (rank {short['rank']}), which has {short['kv_gib']:.1f} GiB{' pinned' if pinned is not None else ''} for the KV cache"
    if pinned is None:
        where += f" of {short['budget_gib']:.1f} GiB after {short['weights_gib']:.1f} GiB of weights and {short['reserve_gib']:.1f} GiB reserve"
    if needed is not None and result["high_tokens"] < needed:
        result["verdict"] = "refused"
        result["remedy"] = _pool_remedy(rows, figures, float(needed), float(result["low_tokens"]), profile["gate"])
        result["msg"] = f"{name}: expected is a pool of {figure}, and at least {_fmt(needed)} are needed; short is {where}: {result['remedy']}."
        return
    tight = min(rows, key=lambda r: _room(r, figures))
    room = _room(tight, figures)
    if pinned is not None and figures["weights"] is not None and held + (figures["reserve"] or 0.0) > room:
        left = room - figures["weights"] - (figures["reserve"] or 0.0)
        remedy = f"set kv-cache-memory-bytes to {int(left * GIB)} or less" if left > 0 else "free memory there, or use a smaller model or more nodes"
        text = f"{tight['host']} (rank {tight['rank']}) has {room:.1f} GiB for {figures['weights']:.1f} GiB of weights and {pinned:.1f} GiB of pinned KV cache"
        if held > room:
            result.update(verdict="refused", remedy=remedy, short_rank=tight["rank"], msg=f"{name}: {text}, which do not fit: {remedy}.")
            return
        result["warnings"].append(f"{text}, which leaves {room - held:.1f} GiB for all else: a long prompt may end the engine; {remedy}")
    result["verdict"] = "ok"
    if needed is not None and expected < needed:
        result["remedy"] = _pool_remedy(rows, figures, float(needed), float(result["low_tokens"]), profile["gate"])
        result["warnings"].append(f"it may be short: {_fmt(needed)} tokens are needed and {figure} expected; if the gate fails, {result['remedy']}")
    gap = max((r["kv_gib"] - short["kv_gib"] for r in others), default=0.0)
    if gap >= 1.0:
        result["warnings"].append(f"{short['host']} decides: the other ranks have up to {gap:.1f} GiB more for the KV cache")
    if any(r["start_check"] == "later" for r in rows):
        result["warnings"].append("the old engine still holds its memory: it is waited for once that one has stopped (vllm_tp2_wait_available)")
    wanted = "" if needed is None else f", {_fmt(needed)} needed"
    result["msg"] = f"{name}: expected is a pool of {figure}{wanted}; it is decided by {where}."
