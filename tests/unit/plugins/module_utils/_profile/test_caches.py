"""The key of a compile cache, its variables, vLLM's own time limits, and where NCCL prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, values
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import LEAST, SHIPPED, place

DOC = Path(__file__).resolve().parents[5] / "docs" / "reference" / "profiles.md"
BASE = "dspark-nvfp4-1m-seed"
OPTIONS = {"model_store": "/srv/models", "content": "aaaa"}


def folder(over: dict[str, Any] | None = None, number: int = 0, size: int = 2, **options: Any) -> str:
    """Return the folder of the cache of the base profile with changes."""
    own = resolve("mine", SHIPPED, {"mine": {"extends": BASE, **(over or {})}})
    rendered = compose.render_rank(own, place(number, size), {**OPTIONS, **options})
    [path] = rendered["caches"]
    assert f"{path}:/cache/huggingface/vllm-cache" in rendered["compose"]["services"]["vllm"]["volumes"]
    return str(path)


@pytest.mark.parametrize(
    ("over", "options"),
    [
        ({}, {"content": "bbbb"}),
        ({}, {"size": 3}),
        ({}, {"extra_env": {"VLLM_USE_B12X_MOE": "0"}}),
        ({"env": {"TORCH_CUDA_ARCH_LIST": "12.1"}}, {}),
        ({"worker_env": {"VLLM_USE_B12X_MOE": "0"}}, {}),
        ({"model": {"revision": "a" * 40}}, {}),
        *[
            ({"engine": {"args": {flag: value}}}, {})
            for flag, value in (
                ("max-model-len", 500000), ("max-num-seqs", 5), ("max-num-batched-tokens", 4096), ("kv-cache-dtype", "fp8"), ("block-size", 64),
                ("compilation-config", {"cudagraph_mode": "PIECEWISE"}), ("speculative-config", {"method": "dspark", "num_speculative_tokens": 3}),
                ("enable-expert-parallel", True), ("an-unknown-flag", 1),
            )
        ],
    ],
)  # fmt: skip
def test_another_image_or_shape_has_another_cache(over: dict[str, Any], options: dict[str, Any]) -> None:
    """11_p's thread and Tobias Weiss: stale artifacts give garbled text without a crash."""
    assert folder(over, **options) != folder()


@pytest.mark.parametrize(
    ("over", "options"),
    [
        ({}, {"number": 1}),
        ({"engine": {"args": {"gpu-memory-utilization": "0.78"}}}, {}),
        ({"engine": {"args": {"override-generation-config": {"temperature": 0.0}}}}, {}),
        ({"engine": {"api": {"port": 9000}}}, {}),
        ({"launch": {"phase_seconds": {"init": 3000}}}, {}),
        ({"model": {"served_names": ["other"]}}, {}),
        ({"env": {"NCCL_DEBUG": "WARN"}}, {}),
        ({}, {"extra_env": {"TRITON_CACHE_DIR": None, "VLLM_LOGGING_LEVEL": "DEBUG"}}),
    ],
)
def test_what_changes_no_kernel_keeps_the_cache(over: dict[str, Any], options: dict[str, Any]) -> None:
    assert folder(over, **options) == folder()


def test_only_the_caches_of_the_profile_get_the_key() -> None:
    assert values.with_cache_key("/m/cache", ["/m/cache"], "k") == "/m/cache-k"
    assert values.with_cache_key("/m/cache/deep", ["/m/cache"], "k") == "/m/cache-k/deep"
    assert values.with_cache_key("/m/cache2", ["/m/cache"], "k") == "/m/cache2"
    assert values.with_cache_key("/m/cache/b/c", ["/m/cache", "/m/cache/b"], "k") == "/m/cache/b-k/c"


def test_the_owner_has_the_last_word() -> None:
    own = resolve("mine", SHIPPED, {"mine": {"extends": BASE, "env": {"TRITON_CACHE_DIR": "/x", "VLLM_ENGINE_READY_TIMEOUT_S": "9"}}})
    env = compose.render_rank(own, place(0), {**OPTIONS, "extra_env": {"CUDA_CACHE_PATH": None}})["env"]
    assert (env["TRITON_CACHE_DIR"], env["VLLM_ENGINE_READY_TIMEOUT_S"]) == ("/x", "9")
    assert "CUDA_CACHE_PATH" not in env
    assert env["DG_JIT_CACHE_DIR"] == "/cache/huggingface/vllm-cache/deep_gemm"


@pytest.mark.parametrize("volumes", [[], ["{model_store}/c:/cache:ro"], ["{model_store}/other:/cache"]])
def test_without_a_writable_mount_of_the_cache_no_variable_is_added(volumes: list[str]) -> None:
    box = {"volumes": volumes, "cache_dirs": ["{model_store}/c"]}
    assert set(values.added_environment(resolve("mini", {"mini": {**LEAST, "container": box}}))) == set(values.TIME_LIMITS)


def test_the_limits_of_vllm_follow_the_phases() -> None:
    own = resolve("mine", SHIPPED, {"mine": {"extends": BASE, "launch": {"phase_seconds": {"rendezvous": 1, "load": 20, "init": 300}}}})
    added = values.added_environment(own)
    assert (added["VLLM_ENGINE_READY_TIMEOUT_S"], added["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"]) == ("321", "300")


@pytest.mark.parametrize(
    ("over", "options", "expected"),
    [
        ({}, {}, "/dev/stderr"),
        ({"env": {"NCCL_DEBUG": "WARN"}}, {}, "/dev/stderr"),
        ({"env": {"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}}, {}, "/tmp/nccl.%h.%p"),
        ({"env": {"NCCL_DEBUG_FILE": ""}}, {}, ""),
        ({"head_env": {"NCCL_DEBUG_FILE": "/tmp/head"}}, {}, "/tmp/head"),
        ({}, {"extra_env": {"NCCL_DEBUG_FILE": "/tmp/extra"}}, "/tmp/extra"),
        ({}, {"extra_env": {"NCCL_DEBUG_FILE": None}}, None),
        ({"env": {"NCCL_DEBUG": None}}, {}, None),
    ],
)
def test_nccl_prints_to_a_stream_of_the_container_unless_the_owner_sets_it(over: dict[str, Any], options: dict[str, Any], expected: str | None) -> None:
    own = resolve("mine", SHIPPED, {"mine": {"extends": BASE, **over}})
    assert compose.render_rank(own, place(0), {**OPTIONS, **options})["env"].get("NCCL_DEBUG_FILE") == expected


def test_the_page_of_profiles_lists_what_is_added() -> None:
    text = DOC.read_text(encoding="utf-8").partition("### What the collection adds")[2].partition("\n### ")[0]
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert listed == {*values.CACHE_VARIABLES, *values.TIME_LIMITS, *values.NCCL_LOG}
