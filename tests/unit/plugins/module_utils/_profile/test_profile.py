"""The profile schema, inheritance and checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._profile import profile as p
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[5]
SHIPPED: dict[str, Any] = {f.stem: yaml.safe_load(f.read_text()) for f in sorted((ROOT / "profiles").glob("*.yml"))}
TWELVE = {
    "dspark-nvfp4-1m",
    "dspark-nvfp4-1m-2",
    "dspark-nvfp4-500k",
    "dspark-nvfp4-200k",
    "dspark-fp8-262k-baseline",
    "b12x-fp8-1m",
    "fp8-1m",
    "fp8-512k",
    "fp8-256k",
    "pr41834-300k",
    "pr41834-ray-200k",
    "piecewise-200k",
}


def least(**over: Any) -> dict[str, Any]:
    return {"summary": "s", "image": {"reference": "e:1"}, "model": {"id": "a/b", "path": "a/b"}, **over}


def one(**over: Any) -> dict[str, Any]:
    return p.resolve("x", {"x": least(**over)})


def test_the_twelve_are_there() -> None:
    assert set(SHIPPED) == TWELVE
    assert p.DEFAULT_PROFILE in SHIPPED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_profiles_are_valid_and_complete(name: str) -> None:
    out = p.resolve(name, SHIPPED)
    assert out["name"] == name
    assert out["lineage"][-1] == name
    assert out["gate"]["context"] == out["engine"]["args"]["max-model-len"]
    assert out["gate"]["kv_cache_dtype"] == out["engine"]["args"]["kv-cache-dtype"]
    assert out["gate"]["speculative_method"] == out["engine"]["args"]["speculative-config"]["method"]
    assert "extends" not in out


def test_every_default_is_filled() -> None:
    out = one()
    paths = {path for path, *_unused in p.schema_rows() if "[" not in path and not path.startswith("image.build.")}

    def walk(value: Any, spec: p.Field, path: str) -> set[str]:
        found = set()
        for key, sub in spec.fields.items():
            where = f"{path}.{key}" if path else key
            assert key in value, where
            found.add(where)
            if sub.kind == "map" and value[key] is not None:
                found |= walk(value[key], sub, where)
        return found

    assert walk(out, p.SCHEMA, "") == paths


def test_defaults_are_not_shared() -> None:
    first, second = one(), one()
    first["engine"]["args"]["x"] = 1
    first["engine"]["command"].append("y")
    assert second["engine"]["args"] == {}
    assert one()["engine"]["command"] == ["vllm", "serve"]


# (tokens as printed or published, concurrency as printed or published) of each seed's own boots
EVIDENCE = [
    ("dspark-nvfp4-1m", 1990142, 1.90),
    ("dspark-nvfp4-1m", 2044166, 1.95),
    ("dspark-nvfp4-1m", 1901239, 1.81),
    ("dspark-nvfp4-1m-2", 1990142, 1.90),
    ("dspark-nvfp4-500k", 1990142, 3.98),
    ("dspark-nvfp4-200k", 1990142, 9.95),
    ("fp8-1m", 1430000, 1.43),
    ("fp8-512k", 1180000, 2.25),
    ("piecewise-200k", 865000, 4.33),
]


@pytest.mark.parametrize(("name", "tokens", "concurrency"), EVIDENCE)
def test_the_gates_numbers_let_the_seeds_boot_pass_and_a_smaller_pool_fail(name: str, tokens: int, concurrency: float) -> None:
    gate = p.resolve(name, SHIPPED)["gate"]

    def passes(factor: float) -> bool:
        effective = round(concurrency * factor, 2) * gate["context"]
        low, high = gate["effective_tokens"], gate["concurrency"]
        return bool(low["min"] <= effective <= low["max"] and high["min"] <= round(concurrency * factor, 2) <= high["max"])

    assert abs(concurrency * gate["context"] - tokens) / tokens < 0.01, "the evidence agrees with itself"
    assert passes(1.0)
    assert not passes(0.9)
    assert not passes(1.3)


# --- inheritance -----------------------------------------------------------------------------------------------------


def test_extends_merges_in_order() -> None:
    out = p.resolve("mine", SHIPPED, {"mine": {"extends": "dspark-nvfp4-1m", "engine": {"args": {"max-model-len": 500000, "seed": 1}}}})
    base = p.resolve("dspark-nvfp4-1m", SHIPPED)
    assert list(out["engine"]["args"]) == [*base["engine"]["args"], "seed"]
    assert out["engine"]["args"]["max-model-len"] == out["gate"]["context"] == 500000
    assert out["lineage"] == ["dspark-nvfp4-1m", "mine"]
    assert out["env"] == base["env"]


NOTHING = {"min": None, "max": None}


@pytest.mark.parametrize(
    ("args", "own", "tokens", "concurrency"),
    [
        ({"max-num-seqs": 4}, {}, {"min": 1890000, "max": 2250000}, {"min": 1.8, "max": 2.15}),
        ({"max-model-len": 1048576}, {}, {"min": 1890000, "max": 2250000}, {"min": 1.8, "max": 2.15}),
        ({"max-model-len": 500000}, {}, {"min": 1890000, "max": 2250000}, NOTHING),
        ({"gpu-memory-utilization": "0.85"}, {}, {"min": 1890000, "max": None}, {"min": 1.8, "max": None}),
        ({"kv-cache-dtype": "fp8"}, {}, NOTHING, NOTHING),
        ({"max-model-len": 500000}, {"concurrency": {"min": 3.5}}, {"min": 1890000, "max": 2250000}, {"min": 3.5, "max": None}),
        ({"kv-cache-dtype": "fp8"}, {"effective_tokens": {"max": 9}}, {"min": None, "max": 9}, NOTHING),
    ],
)
def test_a_changed_argument_takes_the_bounds_with_it_that_it_makes_meaningless(args: Any, own: Any, tokens: Any, concurrency: Any) -> None:
    gate = p.resolve("m", SHIPPED, {"m": {"extends": "dspark-nvfp4-1m", "engine": {"args": args}, "gate": own}})["gate"]
    assert (gate["effective_tokens"], gate["concurrency"]) == (tokens, concurrency)


def test_null_removes_a_key_and_lists_replace() -> None:
    over = {
        "extends": "b12x-fp8-1m",
        "engine": {"args": {"enable-flashinfer-autotune": None}, "shell": None},
        "container": {"volumes": ["/a:/b"]},
        "env": {"NCCL_NET": None},
    }
    out = p.resolve("m", SHIPPED, {"m": over})
    assert "enable-flashinfer-autotune" not in out["engine"]["args"]
    assert out["engine"]["shell"] is None
    assert out["container"]["volumes"] == ["/a:/b"]
    assert "NCCL_NET" not in out["env"]


def test_a_users_profile_with_a_shipped_name_changes_the_shipped_one() -> None:
    for own in ({"engine": {"api": {"port": 1234}}}, {"extends": "fp8-1m", "engine": {"api": {"port": 1234}}}):
        out = p.resolve("fp8-1m", SHIPPED, {"fp8-1m": own})
        assert out["engine"]["api"] == {"host": "0.0.0.0", "port": 1234}
        assert out["model"]["id"] == "deepseek-ai/DeepSeek-V4-Flash"


def test_shipped_profiles_do_not_change_when_the_user_changes_their_base() -> None:
    out = p.resolve("fp8-512k", SHIPPED, {"fp8-1m": {"engine": {"api": {"port": 1234}}}})
    assert out["engine"]["api"]["port"] == 8000


def test_users_profiles_build_on_users_profiles() -> None:
    users = {"a": {"extends": "fp8-1m", "engine": {"api": {"port": 1}}}, "b": {"extends": "a", "engine": {"api": {"host": "::1"}}}}
    assert p.resolve("b", SHIPPED, users)["engine"]["api"] == {"host": "::1", "port": 1}
    assert p.resolve("b", SHIPPED, users)["lineage"] == ["fp8-1m", "a", "b"]


@pytest.mark.parametrize(
    ("users", "name", "text"),
    [
        ({}, "dspark-nvfp4", "gb10_profile: 'dspark-nvfp4' is not a known profile; did you mean dspark-nvfp4-"),
        ({"a": {"extends": "fp8-1n"}}, "a", "profile a: extends 'fp8-1n', which is not a known profile; did you mean fp8-1m?"),
        ({"a": {"extends": "b"}, "b": {"extends": "a"}}, "a", "profile a: extends goes round in a circle (a -> b -> a)"),
        ({"a": {"extends": "a"}}, "a", "profile a: extends itself, and no shipped profile has its name; name another one, or leave extends out"),
        ({"a": {"extends": ["b"]}}, "a", "profile a: extends is a list, expected a profile's name"),
        ({"a": "b"}, "a", "profile a: is the string 'b', expected a mapping"),
        ("nope", "a", "gb10_profiles is the string 'nope', expected a mapping of profile names to profiles"),
    ],
)
def test_inheritance_faults(users: Any, name: str, text: str) -> None:
    with pytest.raises(p.ProfileError, match=re.escape(text)):
        p.resolve(name, SHIPPED, users)


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "text"),
    [
        ({"engin": {}}, "profile x: engin is not a key of a profile; did you mean engine? (known at the top: "),
        ({"engine": {"agrs": {}}}, "profile x: engine.agrs is not a key of a profile; did you mean args? (known here: "),
        ({"summary": None}, "profile x: summary is missing, expected a string"),
        ({"summary": 3}, 'profile x: summary is the number 3, expected a string: write it in quotes, "3"'),
        ({"image": {"reference": "a b"}}, "profile x: image.reference is 'a b', expected an image name"),
        ({"image": {"reference": "a", "digest": "sha256:12"}}, "profile x: image.digest is 'sha256:12', expected sha256: and 64"),
        ({"image": {"reference": "a", "pull": "yes"}}, "profile x: image.pull is the string 'yes', expected true or false"),
        ({"model": {"id": "a"}}, "profile x: model.path is missing, expected a string"),
        ({"engine": {"executor": "Ray"}}, "profile x: engine.executor is 'Ray', expected one of mp, ray; did you mean ray?"),
        ({"engine": {"api": {"port": 70000}}}, "profile x: engine.api.port is 70000, expected at most 65535"),
        ({"engine": {"api": {"port": "8000"}}}, "profile x: engine.api.port is the string '8000', expected a whole number"),
        ({"engine": {"api": {"port": True}}}, "profile x: engine.api.port is true, expected a whole number"),
        ({"engine": {"command": "vllm serve"}}, "profile x: engine.command is the string 'vllm serve', expected a list"),
        ({"engine": {"args": {"--seed": 1}}}, "profile x: engine.args.--seed is no usable key, expected a flag without its dashes"),
        ({"engine": {"args": {"x": [[1]]}}}, "profile x: engine.args.x is a list, expected a string, a number"),
        ({"engine": {"args": {"api-key": "s3cret"}}}, "profile x: engine.args.api-key would show a secret in the process list: give it as VLLM_API_KEY"),
        ({"engine": {"args": {"nnodes": 2}}}, "profile x: engine.args.nnodes is the number 2, but the collection writes this argument itself"),
        (
            {"engine": {"args": {"headless": True}}},
            'engine.args.headless is true, but the collection writes this argument itself: leave it out, or use "{headless}"',
        ),
        (
            {"engine": {"args": {"port": 8000}}},
            'engine.args.port is the number 8000, but the collection writes this argument itself: set engine.api.port instead, or use "{port}"',
        ),
        ({"engine": {"args": {"max_num_seqs": 1, "max-num-seqs": 2}}}, "profile x: engine.args.max_num_seqs and max-num-seqs are the same flag: keep one"),
        ({"env": {"A": 1}}, 'profile x: env.A is the number 1, expected a string: write it in quotes, "1"'),
        ({"env": {"A": True}}, 'profile x: env.A is true, expected a string: write it in quotes, "true"'),
        ({"env": {"A-B": "1"}}, "profile x: env.A-B is no usable key, expected a variable name"),
        ({"env": {"A": "a\rb"}}, "profile x: env.A holds a NUL or carriage return"),
        ({"env": {"HF_TOKEN": "x"}}, "profile x: env.HF_TOKEN looks like a secret, and a profile is not the place for one"),
        ({"env": {3: "x"}}, "profile x: env has the key the number 3, expected a string: write it in quotes"),
        ({"container": {"volumes": ["/a"]}}, "profile x: container.volumes[0] is '/a', expected host:container"),
        ({"container": {"volumes": ["a:/b"]}}, "profile x: container.volumes[0] mounts 'a', expected an absolute path or {model_store}"),
        ({"container": {"cache_dirs": ["/"]}}, "profile x: container.cache_dirs[0] is '/', expected a directory below {model_store}/, because it is deleted"),
        ({"container": {"cache_dirs": ["{model_store}/../x"]}}, "container.cache_dirs[0] is '{model_store}/../x', expected a directory below"),
        ({"container": {"cache_dirs": ["{model_store}/"]}}, "container.cache_dirs[0] is '{model_store}/', expected a directory below"),
        ({"container": {"memlock": "unlimited"}}, "profile x: container.memlock is the string 'unlimited', expected a whole number"),
        ({"container": {"shm_size": "lots"}}, "profile x: container.shm_size is 'lots', expected a size like 16g"),
        (
            {"gate": {"context": 5}, "engine": {"args": {"max-model-len": 6}}},
            "profile x: gate.context is 5, but engine.args.max-model-len is 6: leave gate.context out",
        ),
        ({"engine": {"args": {"max-model-len": "1 M"}}}, "engine.args.max-model-len is the string '1 M', expected a number of tokens such as 131072 or 128k"),
        ({"engine": {"args": {"max_model_len": 0}}}, "engine.args.max_model_len is the number 0, expected a number of tokens"),
        ({"engine": {"args": {"gpu-memory-utilization": 80}}}, "engine.args.gpu-memory-utilization is the number 80, expected a share of the memory, above 0"),
        ({"engine": {"args": {"gpu-memory-utilization": True}}}, "engine.args.gpu-memory-utilization is true, expected a share of the memory, above 0"),
        ({"gate": {"kv_cache_dtype": "fp8"}, "engine": {"args": {"kv-cache-dtype": "auto"}}}, "gate.kv_cache_dtype is 'fp8', but engine.args says 'auto'"),
        ({"gate": {"concurrency": {"min": 2, "max": 1}}}, "profile x: gate.concurrency has min 2 above max 1"),
        ({"gate": {"effective_tokens": {"min": -1}}}, "profile x: gate.effective_tokens.min is -1, expected at least 0"),
        ({"gate": {"concurrency": {"min": float("nan")}}}, "profile x: gate.concurrency.min is the number nan, expected a number"),
        ({"ranks": {"min": 3, "max": 2}}, "profile x: ranks has min 3 above max 2"),
        ({"launch": {"phase_seconds": {"loading": 1}}}, "profile x: launch.phase_seconds.loading is not a key of a profile; did you mean load?"),
        ({"deviations": [{"keys": ["a"]}]}, "profile x: deviations[0].why is missing, expected a string"),
        ({"published": {"a": [1]}}, "profile x: published.a is a list, expected a string, a number, true or false"),
        ({"gate": "strict"}, "profile x: gate is the string 'strict', expected a mapping"),
    ],
)
def test_faults_name_key_found_and_expected(over: dict[str, Any], text: str) -> None:
    with pytest.raises(p.ProfileError, match=re.escape(text)):
        one(**over)


@pytest.mark.parametrize(("value", "context"), [("auto", None), (-1, None), ("128K", 131072), (None, None), (False, None)])
def test_contexts_that_vllm_takes(value: Any, context: int | None) -> None:
    """The gate wants a context only where a number says which."""
    assert one(engine={"args": {"max-model-len": value, "gpu-memory-utilization": "0.8"}})["gate"]["context"] == context


def test_all_faults_of_a_profile_come_at_once() -> None:
    """By the schema and beyond it; a table with a fault is not looked at further, the others are."""
    over = {
        "engin": {},
        "summary": 3,
        "engine": {"args": {"nnodes": 2, "api-key": "s3cret"}},
        "env": {"HF_TOKEN": "x", "A": 1, "B-C": "1"},
        "container": {"volumes": ["/a", "b:/c", "/ok:/ok"]},
        "image": {"reference": "a b", "pull": "yes"},
        "deviations": [{"keys": ["a"]}, {"keys": 1, "seed": "s", "why": "w"}],
    }
    with pytest.raises(p.ProfileError) as caught:
        one(**over)
    assert [fault.split()[2] for fault in caught.value.faults] == [
        "engin", "summary", "deviations[0].why", "deviations[1].keys", "image.reference", "image.pull", "env.A", "env.B-C",
        "engine.args.nnodes", "engine.args.api-key", "env.HF_TOKEN", "container.volumes[0]", "container.volumes[1]",
    ]  # fmt: skip
    assert all(fault in str(caught.value) for fault in caught.value.faults)
    assert "s3cret" not in str(caught.value)


def test_all_contradictions_of_a_profile_come_at_once() -> None:
    """Between values that are right by themselves."""
    with pytest.raises(p.ProfileError) as caught:
        one(gate={"context": 5, "concurrency": {"min": 2, "max": 1}}, engine={"args": {"max-model-len": 6}}, ranks={"min": 3, "max": 2})
    assert [fault.split()[2] for fault in caught.value.faults] == ["gate.context", "gate.concurrency", "ranks"]


def test_faults_never_show_a_secret() -> None:
    with pytest.raises(p.ProfileError) as caught:
        one(engine={"args": {"api-key": "s3cret"}})
    assert "s3cret" not in str(caught.value)


# --- derived ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        (200000, 200000),
        ("200000", 200000),
        ("200k", 200000),
        ("512K", 524288),
        ("1M", 1048576),
        ("1.5k", 1500),
        ("1m", 1000000),
        ("auto", None),
        ("1.5K", None),
        (True, None),
        (1.5, None),
        ("", None),
    ],
)
def test_human_int(written: object, tokens: int | None) -> None:
    assert p.human_int(written) == tokens


@pytest.mark.parametrize(
    ("model", "volumes", "layout", "relative"),
    [
        ({"id": "a/b", "path": "a/b"}, ["{model_store}:/c"], "hub", "hub/models--a--b"),
        ({"id": "a/b", "path": "/c/a/b"}, ["{model_store}:/c"], "directory", "a/b"),
        ({"id": "a/b", "path": "/c2/a"}, ["{model_store}:/c"], "directory", None),
        ({"id": "a/b", "path": "/c/a"}, [], "directory", None),
        ({"id": "a/b", "path": "/x", "relative_path": "y"}, [], "directory", "y"),
        ({"id": "a/b", "path": "/x", "layout": "hub"}, [], "hub", "hub/models--a--b"),
    ],
)
def test_where_the_model_lies(model: dict[str, Any], volumes: list[str], layout: str, relative: str | None) -> None:
    out = one(model=model, container={"volumes": volumes})["model"]
    assert (out["layout"], out["relative_path"]) == (layout, relative)


def test_served_names_default_to_the_id() -> None:
    assert one()["model"]["served_names"] == ["a/b"]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("VLLM_API_KEY", True),
        ("MY_SECRET", True),
        ("DB_PASSWORD", True),
        ("MTP_NUM_TOKENS", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("NUM_TOKEN", False),
        ("KEYS", False),
    ],
)
def test_secret_names(name: str, secret: bool) -> None:
    assert p.is_secret_name(name) is secret


# --- anything at all -------------------------------------------------------------------------------------------------

_KEYS = st.sampled_from(["summary", "image", "model", "engine", "args", "env", "gate", "container", "volumes", "min", "context", "extends", "plan", "x"])
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(_ANY)
@settings(max_examples=150, deadline=None)
def test_whatever_a_user_writes_gives_a_profile_or_a_sentence(raw: Any) -> None:
    message, name = "", "m"
    try:
        name = p.resolve("m", SHIPPED, {"m": {"extends": "fp8-1m", **raw} if isinstance(raw, dict) else raw})["name"]
    except p.ProfileError as exc:
        message = str(exc)
    assert name == "m"
    assert message == "" or message.startswith(("profile ", "gb10_profile: "))


@pytest.mark.parametrize(
    ("layer", "context", "concurrency", "ceiling"),
    [
        ({}, 1048576, {"min": 1.8, "max": 2.15}, 2250000),
        ({"engine": {"args": {"max-model-len": "500000"}}}, 500000, {"min": None, "max": None}, 2250000),
        ({"engine": {"args": {"max-model-len": 500000}}, "gate": {"concurrency": {"min": 3.5}}}, 500000, {"min": 3.5, "max": None}, 2250000),
        ({"engine": {"args": {"gpu-memory-utilization": 0.82}}}, 1048576, {"min": 1.8, "max": None}, None),
    ],
)
def test_an_adjusted_profile_is_judged_by_what_it_then_is(layer: dict[str, Any], context: int, concurrency: dict[str, Any], ceiling: int | None) -> None:
    base = p.resolve("dspark-nvfp4-1m", SHIPPED, {})
    gate = p.adjusted(base, layer)["gate"]
    assert (gate["context"], gate["concurrency"], gate["effective_tokens"]["max"]) == (context, concurrency, ceiling)
    extended = p.resolve("mine", SHIPPED, {"mine": {"extends": "dspark-nvfp4-1m", **layer}})
    assert p.adjusted(base, layer) == {**extended, "name": base["name"], "lineage": base["lineage"]}


def test_an_adjusted_profile_without_changes_is_the_same_for_each_that_is_shipped() -> None:
    for name in SHIPPED:
        profile = p.resolve(name, SHIPPED, {})
        assert p.adjusted(profile, {"engine": {"args": {}}, "gate": {}}) == profile


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ({"engine": {"args": {"port": 9000}}}, "engine.args.port is the number 9000, but the collection writes this argument itself"),
        ({"engine": {"args": {"nnodes": 3}}}, "engine.args.nnodes is the number 3"),
        ({"engine": {"args": {"max_model_len": 5}}}, "max-model-len are the same flag"),
        ({"gate": {"effective_token": {"min": 5}}}, "effective_tokens"),
        ({"gate": {"effective_tokens": 5}}, "gate.effective_tokens"),
        ({"gate": {"concurrency": {"min": "two"}}}, "gate.concurrency.min"),
        ({"gate": {"context": "500k"}}, "gate.context"),
        ({"gate": {"transport": "rmda"}}, "gate.transport"),
        ({"gate": {"completion": "hello"}}, "gate.completion"),
        ({"gate": {"completion": {"body": {"stream": True}}}}, "gate.completion.body.stream"),
        ({"gate": {"completion": {"body": [1]}}}, "gate.completion.body"),
    ],
)
def test_an_adjusted_profile_is_checked_like_any_other(layer: dict[str, Any], said: str) -> None:
    with pytest.raises(p.ProfileError, match=said):
        p.adjusted(p.resolve("dspark-nvfp4-1m", SHIPPED, {}), layer)


def test_body_of_the_completion_is_part_of_a_profile() -> None:
    body = {"chat_template_kwargs": {"enable_thinking": False}, "min_tokens": 1}
    profile = p.adjusted(p.resolve("dspark-nvfp4-1m", SHIPPED, {}), {"gate": {"completion": {"body": body}}})
    assert profile["gate"]["completion"]["body"] == body
