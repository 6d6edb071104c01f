"""The schema of a profile: faults, defaults and derived keys."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import human_int
from ansible_collections.gb10.cluster.plugins.plugin_utils import profile_check as c
from ansible_collections.gb10.cluster.plugins.plugin_utils.image_folders import PROFILES_DIR
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import SCHEMA, ProfileError
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from shipped_profiles import LEAST, SHIPPED


def checked(**over: Any) -> dict[str, Any]:
    return c.check("x", {**LEAST, **over})


SHA = "ab" * 20
MODELINE = "# yaml-language-server: $schema=schema/profile.yml\n---\n"
HUB = "https://github.com/o/n"


def mods(**values: Any) -> dict[str, Any]:
    return {"image": {"reference": "e:1", "mods": [{"path": "mods/x", **values}]}}


def args(**values: Any) -> dict[str, Any]:
    return {"engine": {"args": {key.replace("_", "-"): value for key, value in values.items()}}}


def figures(quantity: str = "decode_tok_s", **level: Any) -> dict[str, Any]:
    return {"published": [{**level, "figures": {quantity: 40}}]}


def test_defaults_are_complete_and_not_shared() -> None:
    first = checked()
    assert first["model"]["served_names"] == ["a/b"]
    assert first["launch"]["phase_seconds"]["total"] == 2700
    first["engine"]["args"]["x"] = 1
    first["engine"]["command"].append("y")
    second = checked()
    assert (second["engine"]["args"], second["engine"]["command"]) == ({}, ["vllm", "serve"])


@pytest.mark.parametrize(
    ("over", "key", "expected"),
    [
        ({"engin": {}}, "engin", "did you mean engine? (known at the top: "),
        ({"engine": {"agrs": {}}}, "engine.agrs", "did you mean args? (known here: "),
        ({"summary": None}, "summary", "expected a string"),
        ({"summary": 3}, "summary", '"3"'),
        ({"model": {"id": "a"}}, "model.path", "is missing"),
        ({"image": {"reference": "a b"}}, "image.reference", "an image name"),
        ({"image": {"reference": "a", "digest": "sha256:12"}}, "image.digest", "64 hexadecimal digits"),
        ({"image": {"reference": "a", "pull": "yes"}}, "image.pull", "the string 'yes', expected true or false"),
        ({"image": {"reference": "e:1", "build": "../x"}}, "image.build", "expected the name of a folder below images/"),
        (mods(repository="https://g.example/o/n", commit=SHA), "image.mods[0].repository", "clone another repository and give the path"),
        (mods(repository="https://me:s3cret@github.com/o/n", commit=SHA), "image.mods[0].repository", "https://github.com/OWNER/REPO"),
        (mods(repository=HUB), "image.mods[0].repository", "set without commit"),
        (mods(commit=SHA), "image.mods[0].commit", "set without repository"),
        (mods(repository=HUB, commit=SHA, path="../mods/x"), "image.mods[0].path", "a path in the repository"),
        (mods(repository=HUB, commit=SHA, path="mods/x; id"), "image.mods[0].path", "a path in the repository"),
        ({"gate": {"cold_prefill_tools": True}}, "gate.cold_prefill_tools", "engine.args has no enable-auto-tool-choice"),
        ({"engine": {"executor": "Ray"}}, "engine.executor", "mp, ray; did you mean ray?"),
        ({"engine": {"api": {"port": 70000}}}, "engine.api.port", "at most 65535"),
        ({"engine": {"api": {"port": 8000.0}}}, "engine.api.port", "a whole number"),
        ({"plan": {"utilization_limit": float("nan")}}, "plan.utilization_limit", "a number"),
        (args(**{"--seed": 1}), "engine.args.--seed", "a flag without its dashes"),
        (args(x=[[1]]), "engine.args.x", "a string, a number"),
        (args(api_key="s3cret"), "engine.args.api-key", "VLLM_API_KEY"),
        (args(nnodes=2), "engine.args.nnodes", "leave it out"),
        (args(port=8000), "engine.args.port", 'set engine.api.port instead, or use "{port}"'),
        (args(max_model_len="1 M"), "engine.args.max-model-len", "131072"),
        ({"engine": {"args": {"max_model_len": 0}}}, "engine.args.max_model_len", "131072"),
        ({"engine": {"args": {"max_num_seqs": 1, "max-num-seqs": 2}}}, "engine.args.max_num_seqs", "max-num-seqs are the same flag"),
        (args(max_num_seqs="four"), "engine.args.max-num-seqs", "expected a whole number from 1"),
        (args(gpu_memory_utilization=80), "engine.args.gpu-memory-utilization", "above 0 and at most 1"),
        ({"env": {"A": 1}}, "env.A", '"1"'),
        ({"env": {"A-B": "1"}}, "env.A-B", "a variable name"),
        ({"env": {"A": "a\rb"}}, "env", "carriage return"),
        ({"env": {3: "x"}}, "env", "the number 3"),
        ({"container": {"volumes": ["/a"]}}, "container.volumes[0]", "host:container"),
        ({"container": {"volumes": ["a:/b"]}}, "container.volumes[0]", "an absolute path or {model_store}"),
        ({"container": {"volumes": ["{model_stor}/x:/b"]}}, "container.volumes[0]", "; did you mean {model_store}?"),
        ({"container": {"cache_dirs": ["{model_store}/../x"]}}, "container.cache_dirs[0]", "it is removed"),
        ({"gate": {"context": 5}, **args(max_model_len=6)}, "gate.context", "engine.args.max-model-len is 6"),
        ({"gate": {"kv_cache_dtype": "fp8"}, **args(kv_cache_dtype="auto")}, "gate.kv_cache_dtype", "'auto'"),
        ({"gate": {"concurrency": {"min": 2, "max": 1}}}, "gate.concurrency", "min 2 above max 1"),
        ({"gate": {"completion": {"body": {"stream": True}}}}, "gate.completion.body.stream", "other than model, prompt"),
        ({"image": {"reference": "ghcr.io/me/vllm@sha256:abc123"}}, "image.reference", "a digest goes into image.digest, as sha256: and 64 hexadecimal digits"),
        ({"ranks": 2}, "ranks", "a mapping; write min: ... below it"),
        ({"container": {"volumes": "{model_store}:/b:ro"}}, "container.volumes", 'a list, such as ["{model_store}:/b:ro"]'),
        (args(data_parallel_address="{head_ip}"), "engine.args.data-parallel-address", "has {head_ip}, which is not replaced here: write the value itself"),
        (args(speculative_config={"model": "{model_store}/x"}), "engine.args.speculative-config", "has {model_store}, which is not replaced here"),
        ({"env": {"A": "{model_stor}/a"}}, "env.A", "has {model_stor}, which is not replaced here"),
        (args(speculative_config="method=mtp,n=2"), "engine.args.speculative-config", "a mapping, such as {key: value}, or JSON"),
        ({"published": {"single_stream_tok_s": 40}}, "published", "expected a list of groups of figures, each with a level (docs/reference/profiles.md#"),
        (figures(tool="vllm bench serve"), "published[0].tool", "expected one of llama-benchy, tool-eval-bench, gb10"),
        (figures(), "published[0]", "has no tool, expected one of tool, measured_by (what measures it) and not_compared (the reason)"),
        (figures(tool="gb10", case="code", not_compared="why"), "published[0]", "has tool and not_compared"),
        (figures(tool="gb10", case="cod"), "published[0].case", "is 'cod', expected one of code, chat, topics for the tool gb10"),
        (figures(tool="gb10", case="code", arrivals="often"), "published[0].arrivals", "is 'often', expected every N s, such as every 0.4 s"),
        (figures(tool="llama-benchy", concurrency=0), "published[0].concurrency", "is 0, expected the number of requests at once"),
        (figures(tool="llama-benchy", prompt=[1, 2], depth=[1, 2, 3]), "published[0]", "has lists of 2 (prompt), 3 (depth) values"),
        (figures("decode_toks", tool="llama-benchy"), "published[0].figures.decode_toks", "is not a quantity; did you mean decode_tok_s?"),
    ],
)
def test_fault_has_the_key_and_what_is_expected(over: dict[str, Any], key: str, expected: str) -> None:
    with pytest.raises(ProfileError) as caught:
        checked(**over)
    [fault] = caught.value.faults
    assert fault.startswith(f"profile x: {key} ")
    assert expected in fault
    assert "s3cret" not in fault


@pytest.mark.parametrize(
    "over",
    [
        args(chat_template="{% for m in messages %}{m}{% endfor %}", x='{"a": "{rank}"}', y="${HOME}/x", compilation_config=3, hf_overrides='{"a": 1}'),
        args(limit_mm_per_prompt="image=1", chat_template="{{messages}}"),
        {"env": {"LOGURU_FORMAT": "{time} {rank} {message}"}},
    ],
)
def test_accepts_templates_and_json(over: dict[str, Any]) -> None:
    checked(**over)


def test_reports_all_faults_of_the_schema_else_all_others() -> None:
    keys = {"engin": {}, "summary": 3, "env": {"A": 1, "B-C": "1"}, "image": {"reference": "a b", "pull": "yes"}, "deviations": [{"keys": 1, "why": "w"}]}
    keys["container"] = {"volumes": ["/a", "b:/c", "/ok:/ok"]}
    others = {"engine": {"args": {"nnodes": 2, "api-key": "s3cret"}}, "env": {"HF_TOKEN": "x"}}
    for over, paths in (
        (
            {**others, **keys},
            ["engin", "summary", "deviations[0].keys", "image.reference", "image.pull", "env.A", "env.B-C", "container.volumes[0]", "container.volumes[1]"],
        ),
        (others, ["engine.args.nnodes", "engine.args.api-key", "env.HF_TOKEN"]),
    ):
        with pytest.raises(ProfileError) as caught:
            checked(**over)
        assert [fault.split()[2] for fault in caught.value.faults] == paths
        assert all(fault in str(caught.value) for fault in caught.value.faults)


@pytest.mark.parametrize(("value", "context"), [("auto", None), (-1, None), ("128K", 131072), (None, None), (False, None)])
def test_gate_context_follows_a_numeric_argument(value: Any, context: int | None) -> None:
    assert checked(**args(max_model_len=value, gpu_memory_utilization="0.8"))["gate"]["context"] == context


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        (200000, 200000), ("200000", 200000), ("200k", 200000), ("512K", 524288), ("1M", 1048576), ("1.5k", 1500), ("1m", 1000000),
        ("auto", None), ("1.5K", None), (True, None), (1.5, None), ("", None),
    ],
)  # fmt: skip
def test_human_int_reads_counts_as_vllm_does(written: object, tokens: int | None) -> None:
    assert human_int(written) == tokens


@pytest.mark.parametrize(
    ("model", "volumes", "layout", "relative"),
    [
        ({"path": "a/b"}, ["{model_store}:/c"], "hub", "hub/models--a--b"),
        ({"path": "/c/a/b"}, ["{model_store}:/c"], "directory", "a/b"),
        ({"path": "/c2/a"}, ["{model_store}:/c"], "directory", None),
        ({"path": "/x", "relative_path": "y"}, [], "directory", "y"),
        ({"path": "/x", "layout": "hub"}, [], "hub", "hub/models--a--b"),
    ],
)
def test_path_in_the_model_store_is_derived(model: dict[str, Any], volumes: list[str], layout: str, relative: str | None) -> None:
    out = checked(model={"id": "a/b", **model}, container={"volumes": volumes})["model"]
    assert (out["layout"], out["relative_path"]) == (layout, relative)


def test_an_editor_accepts_each_shipped_profile_as_it_is_written() -> None:
    """What the collection adds to JSON Schema is unknown to an editor, and is ignored."""
    Draft202012Validator.check_schema(SCHEMA)
    faults = {name: [error.message for error in Draft202012Validator(SCHEMA).iter_errors(raw)] for name, raw in SHIPPED.items()}
    assert not any(faults.values()), faults
    assert list(Draft202012Validator(SCHEMA).iter_errors({"gate": {"contxt": 1}}))
    assert {path.name for path in PROFILES_DIR.glob("*.yml") if not path.read_text(encoding="utf-8").startswith(MODELINE)} == set()


_KEYS = st.sampled_from(["summary", "image", "model", "engine", "args", "env", "gate", "container", "volumes", "min", "context", "plan", "x"])
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_KEYS, _ANY, max_size=4))
@settings(max_examples=40)
def test_any_mapping_gives_a_profile_or_a_fault_with_its_name(raw: Any) -> None:
    faults: tuple[str, ...] = ()
    try:
        c.check("m", {**SHIPPED["dspark-nvfp4-1m-seed"], **raw})
    except ProfileError as error:
        faults = error.faults
    assert all(fault.startswith("profile m: ") for fault in faults)
