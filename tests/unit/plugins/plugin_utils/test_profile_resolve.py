"""Inheritance of profiles, and the bounds that a changed argument invalidates."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE
from ansible_collections.gb10.cluster.plugins.plugin_utils import profile_resolve as r
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError
from shipped_profiles import LEAST, SHIPPED

PORT = {"engine": {"api": {"port": 1234}}}


def extended(**over: Any) -> dict[str, Any]:
    return r.resolve("mine", SHIPPED, {"mine": {"extends": "dspark-nvfp4-1m-seed", **over}})


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_profiles_are_valid_and_complete(name: str) -> None:
    out = r.resolve(name, SHIPPED)
    assert DEFAULT_PROFILE in SHIPPED
    assert (out["name"], out["lineage"][-1], "extends" in out) == (name, name, False)
    args = out["engine"]["args"]
    assert [out["gate"][key] for key in ("context", "kv_cache_dtype", "speculative_method")] == [
        args["max-model-len"], args.get("kv-cache-dtype"), args.get("speculative-config", {}).get("method"),
    ]  # fmt: skip
    assert r.adjusted(out, {"engine": {"args": {}}, "gate": {}}) == out
    assert out["sources"]
    assert out["model"]["relative_path"]


def test_null_removes_a_key_and_lists_replace() -> None:
    over = {
        "extends": "b12x-fp8-1m",
        "engine": {"args": {"enable-flashinfer-autotune": None}, "shell": None},
        "container": {"volumes": ["/a:/b"]},
        "env": {"NCCL_NET": None},
    }
    out = r.resolve("m", SHIPPED, {"m": over})
    assert "enable-flashinfer-autotune" not in out["engine"]["args"]
    assert out["engine"]["shell"] is None
    assert out["container"]["volumes"] == ["/a:/b"]
    assert "NCCL_NET" not in out["env"]


@pytest.mark.parametrize("own", [PORT, {"extends": "fp8-1m", **PORT}])
def test_user_profile_with_a_shipped_name_changes_the_shipped_one(own: dict[str, Any]) -> None:
    out = r.resolve("fp8-1m", SHIPPED, {"fp8-1m": own})
    assert out["engine"]["api"] == {"host": "0.0.0.0", "port": 1234}
    assert out["model"]["id"] == "deepseek-ai/DeepSeek-V4-Flash"


def test_shipped_profiles_extend_shipped_profiles_only() -> None:
    assert r.resolve("fp8-512k", SHIPPED, {"fp8-1m": PORT})["engine"]["api"]["port"] == 8000


@pytest.mark.parametrize(
    ("users", "name", "text"),
    [
        ({}, "dspark-nvfp4", "gb10_profile: 'dspark-nvfp4' is not a known profile; did you mean dspark-nvfp4-"),
        ({"a": {"model": "x/y", "runtime": "vllm", "defaults": {}, "env": {}}}, "a", "profile a: is a recipe of sparkrun, expected a profile; move it"),
        ({"a": {"recipe_version": "1", "command": "vllm serve x", "container": "c"}}, "a", "profile a: is a recipe of eugr/spark-vllm-docker"),
        ({"a": {"services": {"v": {"image": "x"}}}}, "a", "is a Docker Compose file, expected a profile; move it to a file elsewhere, and make"),
        ({"a": {"extends": "fp8-1n"}}, "a", "profile a: extends is 'fp8-1n', which is not a known profile; did you mean fp8-1m?"),
        ({"a": {"extends": "b"}, "b": {"extends": "a"}}, "a", "(a -> b -> a)"),
        ({"a": {"extends": "a"}}, "a", "profile a: extends names the profile itself"),
        ({"a": {"extends": ["b"]}}, "a", "profile a: extends is a list"),
        ({"a": "b"}, "a", "profile a: is the string 'b', expected a mapping"),
        ({"a": {"extnds": "fp8-1m"}}, "a", "profile a: extnds is not a key of a profile; did you mean extends?"),
        ({5: {"extends": "fp8-1m"}}, "nope", "gb10_profiles has the key 5, expected a string"),
        ("nope", "a", "gb10_profiles is the string 'nope', expected a mapping of profile names to profiles, such as {mine: {extends: "),
    ],
)
def test_fault_of_inheritance_has_the_profile(users: Any, name: str, text: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(text)):
        r.resolve(name, SHIPPED, users)


NONE = {"min": None, "max": None}
TOKENS, CONCURRENCY = {"min": 1890000, "max": 2250000}, {"min": 1.8, "max": 2.15}


@pytest.mark.parametrize(
    ("args", "own", "tokens", "concurrency"),
    [
        ({}, {}, TOKENS, CONCURRENCY),
        ({"max-num-seqs": 4, "max-model-len": 1048576}, {}, TOKENS, CONCURRENCY),
        ({"max-model-len": 500000}, {}, TOKENS, NONE),
        ({"gpu-memory-utilization": "0.85"}, {}, {"min": 1890000, "max": None}, {"min": 1.8, "max": None}),
        ({"kv-cache-dtype": "fp8"}, {}, NONE, NONE),
        ({"max-model-len": 500000}, {"concurrency": {"min": 3.5}}, TOKENS, {"min": 3.5, "max": None}),
        ({"kv-cache-dtype": "fp8"}, {"effective_tokens": {"max": 9}}, {"min": None, "max": 9}, NONE),
    ],
)
def test_changed_argument_removes_the_bounds_it_invalidates(args: Any, own: Any, tokens: Any, concurrency: Any) -> None:
    layer = {"engine": {"args": args}, "gate": own}
    out = extended(**layer)
    assert (out["gate"]["effective_tokens"], out["gate"]["concurrency"]) == (tokens, concurrency)
    base = r.resolve("dspark-nvfp4-1m-seed", SHIPPED)
    assert r.adjusted(base, layer) == {**out, "name": base["name"], "lineage": base["lineage"]}


@pytest.mark.parametrize("name", ["dspark-nvfp4-1m-seed", "piecewise-200k"])
def test_another_model_inherits_no_plan(name: str) -> None:
    layer = {"extends": name, "model": {"id": "Qwen/Qwen3-30B-A3B", "path": "Qwen/Qwen3-30B-A3B"}}
    plan = r.resolve("p", SHIPPED, {"p": {**layer, "plan": {"weights_gib_per_rank": 9.0}}})["plan"]
    assert (plan["weights_gib_per_rank"], plan["reserve_gib"], plan["kv_bytes_per_token"]) == (9.0, None, None)


def test_another_image_inherits_neither_digest_nor_build_nor_mods_of_the_first() -> None:
    base = {"image": {"digest": "sha256:" + "1" * 64, "size_gib": 30, "build": "x", "mods": [{"path": "/x.patch"}]}}
    users: dict[str, Any] = {"a": {"extends": "fp8-1m", **base}, "b": {"extends": "a", "image": {"reference": "mine:1"}}}
    assert (r.resolve("a", SHIPPED, users)["image"]["size_gib"], r.resolve("a", SHIPPED, users)["image"]["build"]) == (30, "x")
    own = r.resolve("b", SHIPPED, users)["image"]
    assert (own["digest"], own["size_gib"], own["build"], own["mods"]) == (None, None, None, [])
    users["b"]["image"]["build"] = "y"
    extended = r.resolve("b", SHIPPED, users)["image"]
    assert (extended["digest"], extended["build"]) == (None, "y")


# --- defaults of every pair ------------------------------------------------------------------------------------------------

OWN: dict[str, Any] = {**LEAST, "container": {"volumes": ["{model_store}:/root/.cache/huggingface:ro"]}}
PAIR = {"UCX_MEM_MMAP_HOOK_MODE": "none", "UCX_RCACHE_MAX_UNRELEASED": "1024", "NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "INFO", "HF_HUB_OFFLINE": "1"}


def own(**over: Any) -> dict[str, Any]:
    return r.resolve("mine", SHIPPED, {"mine": {**OWN, **over}})


def test_a_profile_of_ones_own_gets_what_every_pair_needs() -> None:
    out = own()
    assert {key: out["env"][key] for key in PAIR} == PAIR
    assert set(out["defaults"]) == {f"env.{key}" for key in out["env"]}


def test_a_value_or_null_of_any_layer_wins_over_a_default() -> None:
    layers = {
        "base": {**OWN, "env": {"UCX_MEM_MMAP_HOOK_MODE": None}, "worker_env": {"NCCL_IB_DISABLE": "1"}},
        "mine": {"extends": "base", "env": {"NCCL_DEBUG": "WARN"}},
    }
    out = r.resolve("mine", SHIPPED, layers)
    assert "UCX_MEM_MMAP_HOOK_MODE" not in out["env"]
    assert "NCCL_IB_DISABLE" not in out["env"]
    assert out["env"]["NCCL_DEBUG"] == "WARN"
    assert "env.NCCL_DEBUG" not in out["defaults"]
    assert "env.UCX_RCACHE_MAX_UNRELEASED" in out["defaults"]


def test_offline_only_where_the_container_reads_the_proven_weights() -> None:
    assert "HF_HUB_OFFLINE" not in own(container={"volumes": []})["env"]
    assert "HF_HUB_OFFLINE" not in own(model={"id": "x", "path": "/elsewhere/x"})["env"]


@pytest.mark.parametrize(
    ("args", "switches"),
    [
        ({"tokenizer-mode": "deepseek_v4"}, {"thinking": False, "enable_thinking": False}),
        ({"reasoning-parser": "deepseek_v4"}, {"thinking": False, "enable_thinking": False}),
        ({"reasoning-parser": "qwen3"}, None),
        ({}, None),
        ({"tokenizer-mode": "deepseek_v4", "default-chat-template-kwargs": {"thinking": True}}, {"thinking": True}),
        ({"tokenizer-mode": "deepseek_v4", "default-chat-template-kwargs": None}, None),
        ({"tokenizer-mode": "deepseek_v4", "default-chat-template-kwargs.thinking": "true"}, None),
    ],
)
def test_thinking_switches_only_where_the_tokenizer_reads_them(args: dict[str, Any], switches: dict[str, Any] | None) -> None:
    assert own(engine={"args": args})["engine"]["args"].get("default-chat-template-kwargs") == switches


@pytest.mark.parametrize("users", [{}, {"dspark-nvfp4-1m-seed": PORT}])
def test_a_shipped_profile_is_as_its_authors_wrote_it(users: dict[str, Any]) -> None:
    assert "defaults" not in r.resolve("dspark-nvfp4-1m-seed", SHIPPED, users)
    assert "defaults" not in extended()
