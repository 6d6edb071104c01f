"""Settings that the sources report to freeze nodes, and the memory that stays for the host."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import host_memory
from ansible_collections.gb10.cluster.plugins.module_utils._profile.kv_estimate import make_plan, pinned_gib
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import LEAST, SHIPPED, ranks

SPARK = 121.69
CUSTOM_OPS = {"cudagraph_mode": "PIECEWISE", "custom_ops": ["all"]}


def plan(name: str, args: dict[str, Any], *totals: float, allow: bool = False) -> dict[str, Any]:
    one = resolve("p", SHIPPED, {"p": {"extends": name, "engine": {"args": args}}})
    return make_plan(one, ranks(*(totals or (SPARK, SPARK))), allow_unsafe=allow)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_each_shipped_profile_passes_at_its_own_value(name: str) -> None:
    own = resolve(name, SHIPPED)
    found = make_plan(own, ranks(SPARK, SPARK))
    assert found["unsafe"] is None
    share = float(own["engine"]["args"]["gpu-memory-utilization"])
    pinned = pinned_gib(own["engine"]["args"]) is not None  # vLLM ignores the utilization then
    texts = [text for text in found["warnings"] if "remain free" in text]
    assert len(texts) == (share > 0.82 and not pinned), "a warning names the memory that remains"
    assert all(f"about {host_memory.free_gib(share, SPARK):.1f} GiB remain free" in text for text in texts)


@pytest.mark.parametrize(
    ("name", "utilization", "limit", "left"),
    [
        ("dspark-nvfp4-1m-seed", "0.92", "0.82", "nothing remains free"),
        ("dspark-nvfp4-1m-seed", "0.83", "0.82", "about 3.8 GiB remain free"),
        ("piecewise-200k", "0.85", "0.78", "about 1.4 GiB remain free"),
        ("pr41834-300k", "0.86", "0.85", "about 0.1 GiB remain free"),
    ],
)
def test_refuses_a_utilization_above_what_is_reported_to_serve(name: str, utilization: str, limit: str, left: str) -> None:
    args = {"gpu-memory-utilization": utilization}
    refused = plan(name, args)["unsafe"]
    assert f"gpu-memory-utilization {utilization} is above {limit}" in refused
    assert left in refused
    assert f"to {limit} or less, or accept the risk with vllm_tp2_allow_unsafe_memory: true." in refused
    allowed = plan(name, args, allow=True)
    assert allowed["unsafe"] is None
    assert [text for text in allowed["warnings"] if left in text and "because vllm_tp2_allow_unsafe_memory is true" in text]


def test_the_limit_of_a_shipped_profile_is_that_of_a_profile_on_top_of_it() -> None:
    assert plan("pr41834-300k", {"gpu-memory-utilization": "0.85"})["unsafe"] is None
    twice = {"a": {"extends": "pr41834-300k"}, "b": {"extends": "a", "engine": {"args": {"gpu-memory-utilization": "0.87"}}}}
    assert make_plan(resolve("b", SHIPPED, twice), ranks(SPARK, SPARK))["unsafe"]
    other = {"c": {"extends": "pr41834-300k", "model": {"id": "another/model"}}}
    assert make_plan(resolve("c", SHIPPED, other), ranks(SPARK, SPARK))["unsafe"], "the limit was reported with another model"


def test_refuses_vllms_own_default() -> None:
    refused = make_plan(resolve("own", SHIPPED, {"own": LEAST}), ranks(SPARK, SPARK))["unsafe"]
    assert "gpu-memory-utilization is not set, and vLLM's default 0.92 is above 0.82" in refused


def test_a_profile_without_a_gpu_takes_no_share() -> None:
    own = {**LEAST, "container": {"gpus": "none"}}
    assert make_plan(resolve("own", SHIPPED, {"own": own}), ranks(16, 16))["unsafe"] is None


@pytest.mark.parametrize("text", [CUSTOM_OPS, '{"cudagraph_mode": "PIECEWISE", "custom_ops": ["all"]}'])
def test_refuses_custom_ops_where_the_measured_boot_compiled_without(text: Any) -> None:
    refused = plan("piecewise-200k", {"compilation-config": text})["unsafe"]
    assert "custom_ops [all] froze both nodes" in refused
    assert "about 3 GiB free" in refused
    assert "vllm_tp2_allow_unsafe_memory: true" in refused
    assert plan("piecewise-200k", {"compilation-config": {"cudagraph_mode": "FULL", "custom_ops": ["none"]}})["unsafe"] is None


def test_warns_about_custom_ops_of_a_profile_of_ones_own() -> None:
    args = {"gpu-memory-utilization": "0.8", "compilation-config": CUSTOM_OPS}
    found = make_plan(resolve("own", SHIPPED, {"own": {**LEAST, "engine": {"args": args}}}), ranks(SPARK, SPARK))
    assert found["unsafe"] is None
    assert [text for text in found["warnings"] if "custom_ops [all] froze both nodes of Tobias Weiss" in text]


def test_pinned_memory_counts_instead_of_the_utilization() -> None:
    args = {"kv-cache-memory-bytes": "14G", "gpu-memory-utilization": "0.95"}
    assert plan("dspark-nvfp4-1m-seed", args)["unsafe"] is None
    refused = plan("dspark-nvfp4-1m-seed", {**args, "kv-cache-memory-bytes": "30G"})["unsafe"]
    assert "the share 0.93 that the weights, the reserve and 30.0 GiB of pinned KV cache take is above 0.82" in refused
    (fits,) = re.findall(r"Set kv-cache-memory-bytes to (\d+) or less", refused)
    assert plan("dspark-nvfp4-1m-seed", {**args, "kv-cache-memory-bytes": fits})["unsafe"] is None


WEIGHTS, RESERVE = {"weights_gib_per_rank": 80.0}, {"reserve_gib": 8.0}
BOTH, POOL = {**WEIGHTS, **RESERVE}, "With a KV pool of "
UNKNOWN = "Set plan.weights_gib_per_rank and plan.reserve_gib of the profile (GiB a rank), or gpu-memory-utilization"


@pytest.mark.parametrize(
    ("utilization", "pool", "figures", "accepted", "sentence"),
    [
        pytest.param("0.85", "6G", BOTH, True, f"{POOL}6.0 GiB, about 10.8 GiB stay free on each node.", id="enough"),
        pytest.param("0.87", 6 * 2**30, BOTH, True, f"{POOL}6.0 GiB, about 10.8 GiB", id="bytes"),
        pytest.param("0.85", "11G", BOTH, True, f"{POOL}11.0 GiB, about 5.8 GiB", id="above what 0.82 leaves, 5.0 GiB"),
        pytest.param("0.85", "13G", BOTH, False, "the weights, the reserve and 13.0 GiB of pinned KV cache take is above 0.82", id="too much"),
        pytest.param("0.75", "13G", BOTH, False, "Set kv-cache-memory-bytes to ", id="too much at a low utilization"),
        pytest.param("0.85", "8G", {**BOTH, "utilization_limit": 0.78}, False, "above 0.78, the highest that this profile", id="a drafter that froze nodes"),
        pytest.param("0.85", "13G", {**BOTH, "utilization_limit": 0.87}, False, "is above 0.82", id="a limit of the utilization"),
        pytest.param("0.85", "6G", WEIGHTS, False, UNKNOWN, id="reserve missing"),
        pytest.param("0.85", "6G", {}, False, UNKNOWN, id="both missing"),
        pytest.param(None, "6G", {}, False, "vLLM's default 0.92 is above 0.82", id="vLLM's default"),
        pytest.param("0.80", "6G", WEIGHTS, True, "", id="a low utilization"),
        pytest.param("0.80", "30G", WEIGHTS, False, "the share 0.90 that the weights and 30.0 GiB of pinned", id="too much without the reserve"),
        pytest.param("0.85", "6G", {**BOTH, "at": {"quantization": "awq"}}, False, UNKNOWN, id="figures of another boot"),
    ],
)
def test_a_pinned_pool_is_judged_by_what_stays_free(utilization: str | None, pool: Any, figures: dict[str, Any], accepted: bool, sentence: str) -> None:
    """Of 121.7 GiB, the host and the engine use 16.9 outside of weights, reserve and pool."""
    args = {"gpu-memory-utilization": utilization, "kv-cache-memory-bytes": pool}
    found = make_plan(resolve("own", {}, {"own": {**LEAST, "engine": {"args": args}, "plan": figures}}), ranks(SPARK, SPARK))
    assert (found["unsafe"] is None) is accepted, found
    assert sentence in (found["msg"] if accepted else found["unsafe"])
    (fits,) = re.findall(r"Set kv-cache-memory-bytes to (\d+) or less", found["unsafe"] or "") or (None,)
    if fits:
        retry = {**args, "kv-cache-memory": fits, "kv-cache-memory-bytes": None}
        assert make_plan(resolve("own", {}, {"own": {**LEAST, "engine": {"args": retry}, "plan": figures}}), ranks(SPARK, SPARK))["unsafe"] is None


def test_vllms_start_check_still_reads_the_utilization_of_a_pinned_pool() -> None:
    args = {"gpu-memory-utilization": "0.85", "kv-cache-memory-bytes": "6G"}
    own = resolve("own", {}, {"own": {**LEAST, "engine": {"args": args}, "plan": {**BOTH, "kv_bytes_per_token": 8092}}})
    found = make_plan(own, ranks(SPARK, SPARK, available=101.0))
    assert (found["unsafe"], found["verdict"], found["remedy"]) == (None, "refused", "set gpu-memory-utilization to 0.82")
    assert "has 101.0 of 121.7 GiB (MemAvailable), but gpu-memory-utilization 0.85 asks for 103.4 GiB, so vLLM refuses to start" in found["msg"]


def test_a_share_of_more_than_the_node_is_named_as_such() -> None:
    refused = plan("dspark-nvfp4-1m-seed", {"kv-cache-memory-bytes": "60G"})["unsafe"]
    assert "the share 1.17 that the weights, the reserve and 60.0 GiB of pinned KV cache take is above 0.82" in refused
    assert "0.0 GiB stay for the host, which uses about 16.9: nothing remains free" in refused


def test_the_smaller_node_of_a_pair_decides() -> None:
    args = {"gpu-memory-utilization": "0.82"}
    assert [text for text in plan("dspark-nvfp4-1m-seed", args)["warnings"] if "remain free" in text] == []
    (text,) = [text for text in plan("dspark-nvfp4-1m-seed", args, SPARK, 119.63)["warnings"] if "remain free" in text]
    assert "Of 119.6 GiB on spark-b, 21.5 GiB stay for the host" in text
    assert "about 4.6 GiB remain free" in text
    assert [text for text in plan("dspark-nvfp4-1m-seed", {}, SPARK, 119.63)["warnings"] if "remain free" in text] == []


def test_the_figures_of_seed_000_agree() -> None:
    assert host_memory.free_gib(0.80, SPARK) == pytest.approx(8e9 / 2**30, abs=0.01)
    assert host_memory.free_gib(0.85, SPARK) == pytest.approx(1e9 / 2**30, abs=0.5)


def test_warns_if_the_peak_of_the_load_does_not_fit() -> None:
    own = resolve("dspark-nvfp4-1m-seed", SHIPPED)
    short = make_plan(own, ranks(SPARK, SPARK, available=104.0))
    (text,) = [text for text in short["warnings"] if "peak" in text]
    assert "spark-a has 104.0 GiB for the load. 75.0 GiB of weights and the peak of loading and profiling (33 GiB, 11_p's thread) need 4.0 GiB more." in text
    assert short["verdict"] == "ok", "one report does not refuse a boot"
    for entries in (ranks(SPARK, SPARK), ranks(SPARK, SPARK, available=20.0, engine_running=True)):
        assert [text for text in make_plan(own, entries)["warnings"] if "peak" in text] == []
