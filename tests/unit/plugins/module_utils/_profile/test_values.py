"""The drafter of a profile: checked, inherited, rendered, mounted and estimated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, kv_estimate, text, trial, values
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_check import check
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import adjusted, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError
from shipped_profiles import LEAST, SHIPPED, arguments, place, ranks

PATH = "/models/org/Draft"
DRAFTER = {"id": "org/Draft", "path": PATH, "revision": "ab" * 20, "size_gib": 4}
SPEC = {"method": "dflash", "model": PATH, "num_speculative_tokens": 7}
STORE = {"volumes": ["{model_store}:/models:ro"]}


def raw(spec: Any = (), **over: Any) -> dict[str, Any]:
    return {**LEAST, "engine": {"args": {"speculative-config": SPEC if spec == () else spec}}, "container": STORE, "drafter": DRAFTER, **over}


def resolved(*layers: dict[str, Any]) -> dict[str, Any]:
    """Return the last of profiles, each of which extends the one before."""
    users = {f"p{i}": {**layer, **({"extends": f"p{i - 1}"} if i else {})} for i, layer in enumerate(layers)}
    return resolve(f"p{len(layers) - 1}", {}, users)


def args(spec: Any) -> dict[str, Any]:
    return {"engine": {"args": {"speculative-config": spec}}}


@pytest.mark.parametrize(
    "given",
    [
        raw(),
        raw(json.dumps(SPEC)),
        raw(engine={"args": {"speculative_config": SPEC}}),
        raw(engine={"args": {"speculative-config.method": "eagle3", "speculative-config.model": PATH + "/"}}),
        raw({"method": "ngram", "num_speculative_tokens": 3}, drafter=None),
        raw({"model": "ngram"}, drafter=None),
        raw({"method": "custom_class", "model": "package.Proposer"}, drafter=None),
        raw({"method": "mtp", "model": "a/b"}, drafter=None),
        raw({"method": "mtp"}, drafter=None),
        raw({"model": "org/Draft"}, drafter={"id": "org/Draft", "path": "org/Draft"}),
        raw({"model": "/d"}, drafter={"id": "d", "path": "/d", "relative_path": "d"}, container={"volumes": ["{model_store}/d:/d:ro"]}),
        raw(False, drafter=None),
    ],
)
def test_these_drafters_are_accepted(given: dict[str, Any]) -> None:
    check("p", given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (raw(drafter=None), f"engine.args.speculative-config names the model '{PATH}', which is neither model.path nor drafter.path"),
        (raw({"model": "x/Other"}), "engine.args.speculative-config names the model 'x/Other', which is neither"),
        (raw(json.dumps({"model": "x/Other"}), drafter=None), "engine.args.speculative-config names the model 'x/Other'"),
        (raw(engine={"args": {"speculative-config.model": "x/O"}}, drafter=None), "engine.args.speculative-config.model names the model 'x/O'"),
        (raw({"method": "mtp"}), f"drafter.path is '{PATH}', which speculative-config does not name; set engine.args.speculative-config: {{model: "),
        (raw(container={}), f"drafter.path is '{PATH}', which is not below a mount of the model store"),
        (raw(drafter={**DRAFTER, "relative_path": "x"}, container={}), "is not below a mount of the model store"),
        (raw(container={"volumes": ["/nvme/drafts:/models:ro"]}), "is not below a mount of the model store"),
        (raw(drafter={"id": "d"}), "drafter.path is missing"),
        (raw(drafter={**DRAFTER, "serves": 1}), "drafter.serves is not a key of a profile"),
        (raw(drafter={**DRAFTER, "path": "{model_store}/x"}), "drafter.path has {model_store}, which is not replaced here"),
    ],
)
def test_a_drafter_that_no_role_brings_is_refused_in_one_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(words)) as error:
        check("p", given)
    assert len(error.value.faults) == 1


def test_the_lines_of_the_refusal_make_the_profile_valid() -> None:
    with pytest.raises(ProfileError) as error:
        check("p", raw(drafter=None))
    lines = re.search(r"drafter: \{.*?\}", str(error.value))
    assert lines
    own = check("p", raw(**yaml.safe_load(lines[0].replace("<commit>", "main"))))["drafter"]
    assert own == {"id": "org/Draft", "path": PATH, "revision": "main", "layout": "directory", "relative_path": "org/Draft", "size_gib": None}


@pytest.mark.parametrize(
    ("layer", "drafter"),
    [
        ({}, "org/Draft"),
        (args({"num_speculative_tokens": 3}), "org/Draft"),
        (args(None), None),
        ({**args({"model": None, "method": "mtp"})}, None),
        ({**args(None), "drafter": None}, None),
        ({**args({"model": "x/y"}), "drafter": {"id": "x/y", "path": "x/y", "revision": None}}, "x/y"),
        ({"drafter": {"revision": "cd" * 20}}, "org/Draft"),
        ({"model": {"id": "c/d", "path": "c/d"}}, "org/Draft"),
    ],
)
def test_a_drafter_is_inherited_with_the_arguments_that_name_it(layer: dict[str, Any], drafter: str | None) -> None:
    found = resolved(raw(), layer)["drafter"]
    assert (found or {}).get("id") == drafter
    if "drafter" not in layer:
        again = adjusted(resolved(raw()), layer)
        assert (again["drafter"] or {}).get("id") == drafter, "as vllm_tp2_extra_args changes it"


def test_extra_arguments_with_another_drafter_are_refused_with_the_lines_to_add() -> None:
    with pytest.raises(ProfileError, match=re.escape("add drafter: {id: x/y, revision: <commit>, path: x/y}")):
        adjusted(resolved(raw()), args({"model": "x/y"}))


def config_of(given: dict[str, Any]) -> Any:
    words = arguments(compose.build_argv(resolved(given), place(0)))
    return [(flag, value) for flag, value in words if flag.startswith("speculative")]


def test_the_revision_of_the_drafter_is_an_argument_and_names_the_release() -> None:
    whole = json.dumps({**SPEC, "revision": "ab" * 20}, separators=(",", ":"))
    assert config_of(raw()) == config_of(raw(json.dumps(SPEC))) == [("speculative-config", (whole,))]
    dotted = raw(engine={"args": {"speculative-config.model": PATH}})
    assert config_of(dotted) == [("speculative-config.model", (PATH,)), ("speculative-config.revision", ("ab" * 20,))]
    own = {**SPEC, "revision": "main"}
    assert config_of(raw(own)) == [("speculative-config", (json.dumps(own, separators=(",", ":")),))]

    def release(**drafter: Any) -> str:
        profile = resolved(raw(drafter={**DRAFTER, **drafter}))
        return str(compose.name_release([compose.render_rank(profile, place(number), {"model_store": "/srv"}) for number in (0, 1)])["id"])

    assert release() == release(size_gib=5)
    assert release() != release(revision="cd" * 20)
    keys = [values.cache_key(resolved(raw(drafter={**DRAFTER, "revision": each})), 2, "i", {}) for each in ("ab" * 20, "cd" * 20)]
    assert keys[0] != keys[1]


def test_the_drafter_is_protected_tried_and_found_on_the_node() -> None:
    profile = resolved(raw(drafter={**DRAFTER, "relative_path": "org/Draft"}, container={"volumes": ["{model_store}:/models:ro", "/srv/models/org/Draft:/x"]}))
    [fault] = values.writable_weights(profile, "/srv/models")
    assert "container.volumes[1] is '/srv/models/org/Draft:/x', which lets the engine change the weights below /srv/models/org/Draft" in fault
    assert values.writable_weights(resolved(raw()), "/srv/models") == []
    assert json.loads(trial.probe_words(profile, [])[-1])["models"] == ["a/b", PATH]
    paths = compose.host_paths(profile, "/srv/models")
    assert (paths["model"], paths["drafter"], paths["gib"]) == ("/srv/models/hub/models--a--b", "/srv/models/org/Draft", 0)
    tools = {"volumes": [*STORE["volumes"], "/opt/draft:/models/org/Draft:ro", "/opt/tool:/tool:ro"]}
    assert values.tool_volumes(resolved(raw(container=tools)), "/srv/models") == ["/opt/tool:/tool:ro"]


@pytest.mark.parametrize(
    ("at", "spec", "weights"),
    [
        ({}, {}, 40.0),  # the figure of a profile with a drafter contains it
        ({"speculative-config": SPEC}, {}, 40.0),
        ({"max-model-len": 4096}, {}, 42.0),  # measured without a drafter
        ({"max-model-len": 4096}, {"draft_tensor_parallel_size": 1}, 44.0),
        ({"speculative-config": {"method": "mtp"}}, {"draft_tensor_parallel_size": 2}, 42.0),
    ],
)
def test_the_plan_counts_a_drafter_if_the_measured_boot_ran_without_one(at: dict[str, Any], spec: dict[str, Any], weights: float) -> None:
    plan = {"weights_gib_per_rank": 40, "reserve_gib": 1, "kv_bytes_per_token": 10000, "at": at}
    own = raw({**SPEC, **spec}, plan=plan)
    own["engine"]["args"]["max-model-len"] = 4096
    found = kv_estimate.make_plan(resolved(own), ranks(119.7, 119.7))
    assert {row["weights_gib"] for row in found["ranks"]} == {weights}


def test_sizes_and_sheet_have_both_models() -> None:
    profile = resolved(raw(model={"id": "a/b", "path": "a/b", "size_gib": 100.5}))
    assert values.disk_gib(profile) == 104.5
    sheet = "\n".join(text.sheet(profile))
    assert "  model: a/b, 100.5 GiB\n  drafter: org/Draft, 4 GiB\n" in sheet
    assert "\n  drafter on the node: <model store>/org/Draft\n" in sheet
    assert text.facts(profile)["model_gib"] == 104.5
    assert text.facts(resolved({**LEAST}))["model_gib"] is None


# --- The key of a compile cache, its variables, vLLM's own time limits, and where NCCL prints.

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
