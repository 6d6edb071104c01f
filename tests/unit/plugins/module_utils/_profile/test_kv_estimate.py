"""The estimate of the KV pool: its error on each measured figure, and the remedy if a boot cannot pass."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import kv_estimate as k
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped_profiles import LEAST, SHIPPED, ranks

GIB_KIB = 2**20
SPARK = 121.69  # GiB that a DGX Spark reports; others report 119.63


def profile(name: str, **args: Any) -> dict[str, Any]:
    """Return a profile with changed arguments, and with vLLM's own check of the free memory at the start."""
    return resolve("p", SHIPPED, {"p": {"extends": name, "engine": {"args": args}, "env": {"VLLM_SKIP_INIT_MEMORY_CHECK": None}}})


def error(expected: float, measured: float) -> float:
    return round(100 * (expected - measured) / measured, 2)


# --- calibration: measured pool, estimated pool, error in per cent -------------------------------------------------


@pytest.mark.parametrize(
    ("name", "measured", "off"),
    [
        ("dspark-nvfp4-1m-seed", 1990142, 0.0),  # tonyd2wild, 2026-06-30
        ("dspark-nvfp4-1m-seed", 2044166, -2.64),  # tonyd2wild, 2026-06-29
        ("dspark-nvfp4-1m-seed", 1901239, 4.68),  # tonyd2wild, code microbench
        ("fp8-1m", 1430000, 0.0),  # GanyX19
        ("fp8-512k", 1180000, 0.03),  # GanyX19's repository
        ("piecewise-200k", 865000, -0.03),  # Tobias Weiss
        ("pr41834-ray-200k", 1096000, 0.0),  # bjk110/spark_vllm_docker, docs/dsv4-flash-tp2.md: 5.48 x 200,000
    ],
)
def test_error_on_published_pools(name: str, measured: int, off: float) -> None:
    plan = k.make_plan(resolve(name, SHIPPED), ranks(SPARK, SPARK))
    assert error(plan["expected_tokens"], measured) == pytest.approx(off, abs=0.05)
    assert abs(error(plan["expected_tokens"], measured)) <= plan["error_percent"], "the stated error covers the measured one"


@pytest.mark.parametrize(
    ("name", "utilization", "measured", "off"),
    [("minimax-m27-awq-196k", "0.85", 240816, -0.01), ("mimo26-flash-300k", "0.90", 1835052, 0.22)],
)
def test_error_on_pools_that_are_published_for_another_utilization(name: str, utilization: str, measured: int, off: float) -> None:
    plan = k.make_plan(profile(name, **{"gpu-memory-utilization": utilization}), ranks(SPARK, SPARK))
    assert error(plan["expected_tokens"], measured) == pytest.approx(off, abs=0.05)


# --- the start check -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "free", "utilization", "starts"),
    [
        (47.38, 31.44, 0.95, False),  # bootlog 025
        (22.05, 19.77, 0.9, False),  # bootlog 061: 19.77 of 19.84
        (95.01, 94.05, 0.9, True),  # bootlog 071
        (SPARK, 98.89, 0.84, False),  # domain-facts: the floor of 4 GiB cost 6.2
        (SPARK, 100.6, 0.84, False),
        (SPARK, 105.0, 0.84, True),
    ],
)
def test_start_check_as_measured(total: float, free: float, utilization: float, starts: bool) -> None:
    one = resolve("m", {"m": {**LEAST, "engine": {"args": {"gpu-memory-utilization": utilization}}}})
    plan = k.make_plan(one, ranks(total, available=free))
    assert (plan["verdict"] != "refused") is starts
    if not starts:
        assert f"asks for {utilization * total:.1f} GiB" in plan["msg"]
        assert plan["remedy"] is not None


UTILIZATION, PINNED = "gpu-memory-utilization", "kv-cache-memory-bytes"
UNEVEN = [*ranks(SPARK), {**ranks(SPARK, SPARK)[1], "available_kib": int(90 * GIB_KIB)}]


@pytest.mark.parametrize(
    ("name", "args", "entries", "remedy", "text"),
    [
        pytest.param("fp8-1m", {UTILIZATION: "0.82"}, ranks(SPARK, SPARK, available=98.5), f"set {UTILIZATION} to 0.80$",
                     r"^p: spark-a \(rank 0\) has 98\.5 of 121\.7 GiB \(MemAvailable\), but gpu-memory-utilization 0\.82 asks for 99\.8 GiB",
                     id="what still holds the pool"),
        pytest.param("dspark-nvfp4-1m-seed", {}, UNEVEN, "free 7.4 GiB on spark-b", r"^p: spark-b \(rank 1\) has 90\.0", id="a lower utilization is too small"),
        pytest.param("fp8-1m", {UTILIZATION: "0.95"}, ranks(SPARK, SPARK, available=113), f"set {UTILIZATION} to 0.82$", "", id="the practical limit"),
        pytest.param("b12x-fp8-1m", {}, ranks(SPARK, SPARK, available=70), "free 29.8 GiB on spark-a", "", id="0.57 does not hold 74 GiB of weights"),
        pytest.param("dspark-nvfp4-1m-seed", {}, ranks(SPARK, 119.63), f"set {UTILIZATION} to 0.81$",
                     r"spark-b \(rank 1\) has the least memory: 12\.8 GiB for the KV cache of 95\.7 GiB", id="the smaller node decides"),
        pytest.param("dspark-nvfp4-1m-seed", {UTILIZATION: "0.5"}, ranks(SPARK, SPARK), "",
                     r"has no memory for the KV cache: 75\.0 GiB of weights and .* reserve are [\d.]+ GiB more than its budget of 60\.8 GiB",
                     id="no negative memory"),
        pytest.param("dspark-nvfp4-1m-seed", {"max-model-len": 3000000}, ranks(SPARK, SPARK),
                     "set max-model-len to 1831000 or less and lower gate.effective_tokens.min to 1831000$", "", id="both bounds"),
        pytest.param("pr41834-300k", {PINNED: "1G"}, ranks(SPARK, SPARK), f"raise {PINNED} to {300000 * 14336}$", "", id="pinned memory"),
        pytest.param("dspark-nvfp4-1m-seed", {PINNED: "5G", "max-model-len": 8000000}, ranks(SPARK, SPARK), "set max-model-len to ", "",
                     id="pinned memory for 8M tokens would not fit"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_one_change_that_helps(name: str, args: dict[str, Any], entries: list[dict[str, Any]], remedy: str, text: str) -> None:
    asked = profile(name, **args)
    asked["plan"]["kv_bytes_per_token"] = asked["plan"]["kv_bytes_per_token"] or 14336
    plan = k.make_plan(asked, entries)
    assert plan["verdict"] == "refused"
    assert f"{plan['remedy']}$".startswith(remedy)
    assert re.search(text, plan["msg"])


def test_a_running_engine_or_a_skipped_check_refuses_nothing() -> None:
    busy = ranks(SPARK, SPARK, available=10, engine_running=True)
    plan = k.make_plan(profile("dspark-nvfp4-1m-seed"), busy)
    assert plan["verdict"] == "ok"
    assert "vllm_tp2_wait_available" in plan["warnings"][-1]
    skipped = k.make_plan(resolve("pr41834-ray-200k", SHIPPED), ranks(SPARK, SPARK, available=10))
    assert skipped["verdict"] == "ok"
    assert {r["start_check"] for r in skipped["ranks"]} == {"skipped"}


# --- a GPU with its own memory: two H100, vLLM 0.25.1, 2026-11-26 ----------------------------------------------------

H100 = 79.18  # GiB; MemTotal was 251


def h100s(*free: float, **more: Any) -> list[dict[str, Any]]:
    """The memory of nodes with much more memory than their GPU has, and of these GPUs in GiB."""
    nodes = ranks(*[251.0] * len(free), available=240.0, **more)
    return [{**each, "gpu_total_kib": int(H100 * GIB_KIB), "gpu_free_kib": int(gib * GIB_KIB)} for each, gib in zip(nodes, free, strict=True)]


def llama(utilization: float, **args: Any) -> dict[str, Any]:
    """The profile of the measured boots; the reserve is that of the first one."""
    given = {UTILIZATION: utilization, "max-model-len": 32768, **args}
    tokens = 8192 if args.get("kv-cache-dtype") == "fp8" else 16384
    plan = {"weights_gib_per_rank": 0.92, "reserve_gib": 0.43, "kv_bytes_per_token": tokens, "ranks": 2}
    return resolve("m", {"m": {**LEAST, "engine": {"args": given}, "plan": plan}})


@pytest.mark.parametrize(
    ("own", "measured", "off"),
    [
        (llama(0.5), 2506112, 0.0),
        (llama(0.5), 2509312, -0.13),
        (llama(0.3, **{"kv-cache-dtype": "fp8", "enforce-eager": True}), 2940960, -0.15),
        (llama(0.8, **{"max-model-len": 131072, "max-num-seqs": 64}), 4062832, 0.0),
        (llama(0.5, **{"kv-cache-memory-bytes": "8G", "enforce-eager": True}), 524288, 0.0),
    ],
)
def test_error_on_pools_of_a_gpu_with_its_own_memory(own: dict[str, Any], measured: int, off: float) -> None:
    plan = k.make_plan(own, h100s(78.1, 78.1))
    assert (plan["verdict"], plan["unsafe"], plan["warnings"]) == ("ok", None, [])
    assert error(plan["expected_tokens"], measured) == pytest.approx(off, abs=0.05)
    assert "has the least GPU memory: " in plan["msg"]


def test_a_neighbour_on_a_gpu_refuses_the_boot() -> None:
    """The node itself has enough: the engine stopped with 52.63 of 79.18 GiB, after 93 s without service."""
    plan = k.make_plan(llama(0.8), h100s(78.1, 52.6))
    assert (plan["verdict"], plan["remedy"], plan["short_rank"]) == ("refused", "set gpu-memory-utilization to 0.66", 1)
    assert plan["msg"].startswith(
        "m: spark-b (rank 1) has 52.6 of 79.2 GiB (GPU memory), but gpu-memory-utilization 0.8 asks for 63.3 GiB, so vLLM refuses to start"
    )
    again = k.make_plan(llama(0.66), h100s(78.1, 52.6))
    assert again["verdict"] == "ok"
    small = k.make_plan(llama(0.8), h100s(78.1, 1.0))
    assert small["remedy"].startswith("free 62.3 GiB on spark-b: ")


@pytest.mark.parametrize(("held", "verdict", "check"), [(39.6, "refused", "refused"), (50.4, "ok", "ok"), (None, "ok", "later")])
def test_memory_of_the_old_engine_is_free_after_its_stop(held: float | None, verdict: str, check: str) -> None:
    """39.6 GiB of it and a neighbour's 25 GiB: known only if nvidia-smi lists the engine's processes."""
    entries = h100s(13.0, 13.0, engine_running=True)
    for entry in entries if held else ():
        entry["gpu_engine_kib"] = int((held or 0) * GIB_KIB)
    plan = k.make_plan(llama(0.8), entries)
    assert (plan["verdict"], plan["warnings"]) == (verdict, [])
    assert {row["start_check"] for row in plan["ranks"]} == {check}


def test_an_engine_on_the_cpu_uses_the_memory_of_the_node() -> None:
    own = llama(0.5)
    own["container"]["gpus"] = "none"
    plan = k.make_plan(own, h100s(78.1, 78.1))
    assert [row["total_gib"] for row in plan["ranks"]] == [251.0, 251.0]


# --- the pool --------------------------------------------------------------------------------------------------------


def test_pool_that_may_be_too_small_is_a_warning() -> None:
    plan = k.make_plan(profile("dspark-nvfp4-1m-seed", **{"gpu-memory-utilization": "0.79"}), ranks(SPARK, SPARK))
    assert plan["verdict"] == "ok"
    assert plan["expected_tokens"] < plan["needed_tokens"] <= plan["high_tokens"]
    assert "1,890,000 tokens are needed" in plan["warnings"][0]
    assert plan["warnings"][0].endswith("set gpu-memory-utilization to 0.80.")


def test_the_remedy_always_fits() -> None:
    """What is proposed, when followed, is not refused again."""
    for utilization, second in (("0.70", SPARK), ("0.75", SPARK), ("0.78", SPARK), ("0.80", 119.63)):
        plan = k.make_plan(profile("dspark-nvfp4-1m-seed", **{UTILIZATION: utilization}), ranks(SPARK, second))
        assert plan["verdict"] == "refused", utilization
        wanted = re.fullmatch(r"set gpu-memory-utilization to (0\.\d\d)", plan["remedy"])
        assert wanted, plan["remedy"]
        retry = k.make_plan(profile("dspark-nvfp4-1m-seed", **{UTILIZATION: wanted.group(1)}), ranks(SPARK, second))
        assert (retry["verdict"], retry["expected_tokens"] >= retry["needed_tokens"]) == ("ok", True)


def test_pinned_memory_is_the_pool() -> None:
    own = profile("pr41834-300k", **{PINNED: "18G"})
    own["plan"]["kv_bytes_per_token"] = 14336
    given = k.make_plan(own, ranks(SPARK, SPARK))
    assert (given["verdict"], given["expected_tokens"]) == ("ok", 18 * k.GIB // 14336)


@pytest.mark.parametrize(
    ("name", "args", "count", "text"),
    [
        ("fp8-256k", {}, 2, "plan.reserve_gib unknown"),
        ("dsv4-0731-b12x-512k", {}, 2, "plan.reserve_gib and plan.kv_bytes_per_token unknown"),
        ("dspark-nvfp4-1m-seed", {"kv-cache-dtype": "fp8"}, 2, "kv-cache-dtype is fp8, and the figures were measured with nvfp4_ds_mla"),
        ("dspark-nvfp4-1m-seed", {"quantization": "awq"}, 2, "quantization is awq, and the figures were measured with None"),
        ("dspark-nvfp4-1m-seed", {"num-gpu-blocks-override": 512}, 2, "num-gpu-blocks-override is 512"),
        ("dspark-nvfp4-1m-seed", {"cpu-offload-gb": 20, "gpu-memory-utilization": "0.70"}, 2, "cpu-offload-gb is 20"),
        ("dspark-nvfp4-1m-seed", {}, 4, "the figures were measured on 2 ranks, not 4"),
    ],
)
def test_unknown_figures_never_block(name: str, args: dict[str, Any], count: int, text: str) -> None:
    plan = k.make_plan(profile(name, **args), ranks(*[SPARK] * count))
    assert (plan["verdict"], plan["expected_tokens"]) == ("unknown", None)
    assert text in plan["msg"]


def test_arguments_that_differ_from_the_measured_boot_increase_the_error() -> None:
    same = k.make_plan(profile("dspark-nvfp4-1m-seed", **{"max-model-len": "1M"}), ranks(SPARK, SPARK))
    assert same["error_percent"] == 6
    assert k.make_plan(resolve("dspark-nvfp4-200k", SHIPPED), ranks(SPARK, SPARK))["error_percent"] == 28 + 6
    assert k.make_plan(profile("fp8-1m", **{"enforce-eager": True}), ranks(SPARK, SPARK))["error_percent"] > 8


def test_configuration_far_from_the_measured_one_is_not_refused() -> None:
    """Tobias Weiss before its changes: 0.70, eager, one sequence, no drafter. It booted with 482K tokens, where the measured reserve leaves none."""
    dropped = dict.fromkeys(("speculative-config", "compilation-config", "enable-expert-parallel"))
    args = {"gpu-memory-utilization": "0.70", "enforce-eager": True, "max-num-seqs": 1, "max-num-batched-tokens": 4096, **dropped}
    bounds = {"effective_tokens": {"min": 400000}, "concurrency": None}
    first = resolve("p", SHIPPED, {"p": {"extends": "piecewise-200k", "engine": {"args": args}, "gate": bounds}})
    plan = k.make_plan(first, ranks(SPARK, SPARK))
    assert plan["verdict"] == "ok"
    assert plan["low_tokens"] <= 482000 <= plan["high_tokens"]
    assert "0 tokens (at most " in plan["msg"]


def test_error_of_a_small_pool_is_not_smaller() -> None:
    plan = k.make_plan(profile("dspark-nvfp4-1m-seed", **{"gpu-memory-utilization": "0.72"}), ranks(SPARK, SPARK))
    assert plan["high_tokens"] - plan["expected_tokens"] == pytest.approx(0.06 * 1990142, abs=2)


def test_default_utilization_follows_the_version() -> None:
    assert [k.utilization_of({}, version) for version in ("0.19.1", "v0.2.0")] == [0.9, 0.9]
    forks = ("0.1.dev17016+g27fd665bd", "0.0.0", None)
    assert {k.utilization_of({}, version) for version in ("0.20.0", "v0.21.1rc1", "0.22.1", "1.0.0", *forks)} == {0.92}
    assert k.utilization_of({}) == k.utilization_of({"gpu-memory-utilization": False}) == 0.92


def test_a_node_whose_memory_is_not_known_is_named() -> None:
    with pytest.raises(k.PlanError, match="total_kib of a is missing, expected MemTotal in KiB"):
        k.make_plan(profile("fp8-1m"), [{"host": "a"}])
    with pytest.raises(k.PlanError, match="total_kib of a is '121 GiB', expected a number of KiB"):
        k.make_plan(profile("fp8-1m"), [{"host": "a", "total_kib": "121 GiB"}])


def test_memory_of_preflight_info_and_figures_that_are_typed_as_text_are_read() -> None:
    entries = ranks(SPARK, SPARK)
    expected = k.make_plan(profile("fp8-1m"), entries)["ranks"]
    facts = [{key.replace("_kib", "_kb"): value for key, value in entry.items()} for entry in entries]
    assert k.make_plan(profile("fp8-1m"), facts)["ranks"] == expected
    typed = [{key: str(value) if key.endswith("_kib") else value for key, value in entry.items()} for entry in entries]
    assert k.make_plan(profile("fp8-1m"), typed)["ranks"] == expected


@given(st.floats(1, 300), st.floats(1, 300), st.floats(0, 300), st.floats(0.01, 1), st.sampled_from(sorted(SHIPPED)))
@settings(max_examples=120, deadline=None)
def test_any_memory_gives_a_verdict_in_one_line(a: float, b: float, free: float, utilization: float, name: str) -> None:
    plan = k.make_plan(profile(name, **{"gpu-memory-utilization": utilization}), ranks(a, b, available=free))
    assert plan["verdict"] in ("ok", "refused", "unknown")
    assert plan["msg"]
    assert "\n" not in plan["msg"]
    assert (plan["verdict"] == "refused") <= (plan["remedy"] is not None)
    if plan["expected_tokens"] is not None:
        assert plan["low_tokens"] <= plan["expected_tokens"] <= plan["high_tokens"]
        assert plan["expected_tokens"] == min(r["tokens"] for r in plan["ranks"])


def test_remedy_names_all_bounds_to_lower() -> None:
    asked = profile("piecewise-200k")
    pair = ranks(SPARK, 119.63)
    plan = k.make_plan(asked, pair)
    assert plan["verdict"] == "refused"
    assert plan["needed_tokens"] == 830000
    lowered = re.findall(r"gate\.(\w+)\.min to ([\d.]+\d)", plan["remedy"])
    assert [name for name, _figure in lowered] == ["effective_tokens", "concurrency"], plan["remedy"]
    for name, figure in lowered:
        asked["gate"][name]["min"] = float(figure)
    assert k.make_plan(asked, pair)["verdict"] == "ok"
