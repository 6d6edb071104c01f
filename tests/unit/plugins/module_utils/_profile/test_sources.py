"""The shipped profiles against their sources, argument by argument and variable by variable, and what a new owner needs for their images."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, kv_estimate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import EXAMPLES, FOLDER, IMAGES, SHIPPED, arguments, place, ranks

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "profiles"
SOURCES: dict[str, dict[str, Any]] = yaml.safe_load((FIXTURES / "sources.yml").read_text())
RECIPES = [name for name, source in SOURCES.items() if source.get("public")]
PROFILES = {name: resolve(name, SHIPPED, EXAMPLES) for name in (*SHIPPED, *EXAMPLES)}
# The collection writes these for every profile, and docs/reference/profiles.md names them once.
WIRING = {"host", "port", "served-model-name", "nnodes", "node-rank", "master-addr", "master-port", "distributed-executor-backend"}
FABRIC = {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM"}
KEYS = {"served-model-name": "model.served_names", "revision": "model.revision"}


def given(name: str) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Return what a source gives: its arguments, its environment, and its model and image."""
    own = SOURCES[name]
    args, env, rest = given(own["like"]) if "like" in own else ({}, {}, {})
    args = {**args, **dict(arguments(shlex.split(own.get("arguments", ""))))}
    env = {**env, **dict(word.split("=", 1) for word in shlex.split(own.get("environment", "")))}
    without = set(own.get("without", []))
    left = ({key: value for key, value in args.items() if key not in without}, {key: value for key, value in env.items() if key not in without})
    return *left, {**rest, **{key: own[key] for key in ("model", "image") if key in own}}


def listed(profile: dict[str, Any]) -> set[str]:
    return {KEYS.get(key.removeprefix("engine.args."), key) for each in profile["deviations"] for key in each["keys"]}


def differences(name: str) -> set[str]:
    """Return the keys of a profile that differ from its source."""
    profile, (args, env, rest) = PROFILES[name], given(name)
    own = dict(arguments(compose.build_argv(profile, place(0))))
    texts = " ".join(each["original"] or "" for each in profile["deviations"])
    found = set()
    for flag in set(own) | set(args):
        compared = ("distributed-executor-backend", *(("host", "port") if name in RECIPES else ()))
        written_by_us = flag in WIRING and flag not in args and flag not in compared
        quoted = name not in RECIPES and flag not in own and f"--{flag}" in texts
        if own.get(flag) != args.get(flag) and not written_by_us and not quoted:
            found.add(KEYS.get(flag, f"engine.args.{flag}"))
    found |= {f"env.{key}" for key in set(profile["env"]) | set(env) if profile["env"].get(key) != env.get(key) and key not in FABRIC}
    if rest["model"] != profile["model"]["path"]:
        found.add("model.path")
    if rest["image"] not in (None, profile["image"]["reference"]):
        found.add("image.reference")
    return found


def test_every_profile_has_a_source_or_a_source_file() -> None:
    assert set(SOURCES) <= set(PROFILES)
    assert all(profile["sources"] for profile in PROFILES.values())


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_each_difference_from_the_source_is_a_listed_deviation(name: str) -> None:
    assert differences(name) - listed(PROFILES[name]) == set()


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_each_listed_deviation_is_a_difference(name: str) -> None:
    compared = {key for key in listed(PROFILES[name]) if key.startswith(("engine.args.", "env."))} - {f"env.{key}" for key in FABRIC}
    more = {"env.NCCL_DEBUG"} if name in RECIPES else set()  # a recipe may export it in its shell
    assert compared - differences(name) <= more


def test_what_no_registry_has_and_nothing_here_builds_is_an_example() -> None:
    assert {name for name, each in PROFILES.items() if not each["image"]["pull"] and each["image"]["build"] is None} == set(EXAMPLES)
    assert all("The image is yours" in " ".join(PROFILES[name]["notes"]) for name in EXAMPLES)
    assert not set(EXAMPLES) & set(SHIPPED)


@pytest.mark.parametrize(("hits", "missing"), [(5, ""), (4, "'is_prefill_chunk' is in 4 lines, expected 5. The image does not have Patch 3")])
def test_the_check_of_patch_3_compares_the_count(hits: int, missing: str, tmp_path: Path) -> None:
    """A scheduler before the patch has the marker four times (76d51ff), after it five times (cd366d5)."""
    [mod] = EXAMPLES["dspark-nvfp4-1m-0731"]["image"]["mods"]
    markers = {"v1/core/sched/scheduler.py": "is_prefill_chunk\n" * hits, "v1/spec_decode/dspark_proposer.py": "rejected = torch.zeros(\n"}
    markers |= {"v1/spec_decode/dspark.py": "shared_experts.gate_up_proj\n" * 3, "_version.py": "0.21.1rc1.dev339+g1967a5627bc3"}
    for path, text in markers.items():
        (tmp_path / "vllm" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "vllm" / path).write_text(text)
    command, env = ["bash", str(FOLDER / "examples" / mod["path"] / "run.sh")], {**os.environ, "SITE": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, missing in done.stderr) == (int(bool(missing)), True), done.stderr


def test_the_gate_of_the_authors_later_state_has_a_cold_long_prompt_with_tools() -> None:
    gates = {name: each["gate"] for name, each in PROFILES.items() if name.startswith("dspark-")}
    without = {name for name, each in gates.items() if (each["cold_prefill_tokens"], each["cold_prefill_tools"]) != (20000, True)}
    assert without == {"dspark-nvfp4-1m-seed", "dspark-fp8-262k-baseline"}, "their image is older than Patch 3"


def test_each_image_is_pulled_by_digest_or_built_for_a_public_recipe() -> None:
    images = {name: PROFILES[name]["image"] for name in SHIPPED}
    assert [name for name, each in images.items() if not (each["digest"] and "/" in each["reference"] if each["pull"] else name in RECIPES)] == []


def test_the_default_profile_needs_no_build_and_pins_what_it_downloads() -> None:
    default = PROFILES[DEFAULT_PROFILE]
    assert default["image"]["pull"]
    assert default["image"]["digest"]
    assert default["model"]["revision"]
    assert default["model"]["layout"] in (None, "hub")


WITH_CUSTOM_OPS = [name for name, profile in sorted(PROFILES.items()) if "custom_ops" in str(profile["engine"]["args"].get("compilation-config"))]


@pytest.mark.parametrize("name", WITH_CUSTOM_OPS)
def test_custom_ops_come_with_the_warning_of_its_source(name: str) -> None:
    assert any("custom_ops" in note and "froze both nodes" in note for note in PROFILES[name]["notes"])


# --- Profiles of public recipes.


@pytest.mark.parametrize("name", RECIPES)
def test_image_model_and_store_of_a_public_recipe(name: str) -> None:
    raw = SHIPPED[name]
    service = compose.render_rank(PROFILES[name], place(0), {"model_store": "/srv/models"})["compose"]["services"]["vllm"]
    assert service["pull_policy"] == ("missing" if "@sha256:" in service["image"] else "never")
    unpinned = any(each.startswith("No revision of the weights is published.") for each in raw["notes"])
    assert unpinned or re.fullmatch("[0-9a-f]{40}", raw["model"]["revision"])
    assert [each for each in service["volumes"] if each.startswith("/srv/models:")] == [service["volumes"][0]]
    assert service["volumes"][0].endswith(":ro")
    assert all(each.startswith("/srv/models/vllm-cache") for each in service["volumes"][1:])
    assert raw["notes"][0].startswith("Not run by us.")
    assert any(re.search(r"\b[0-9a-f]{40}\b", each) for each in raw["sources"])
    assert (raw["image"].get("build") is None) == ("@sha256:" in service["image"])


BUILT = [name for name in RECIPES if SHIPPED[name]["image"].get("build")]


@pytest.mark.parametrize("name", BUILT)
def test_the_dockerfile_of_a_recipe_is_pinned_and_proves_what_it_builds(name: str) -> None:
    raw = SHIPPED[name]
    text = (IMAGES / raw["image"]["build"] / "Dockerfile").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == re.findall(r"^FROM (\S+:\S+@sha256:[0-9a-f]{64})$", text, re.MULTILINE)
    for each in re.findall(r"https://[\w.]*github\w*\.com/\S+", text):
        assert re.search(r"\b[0-9a-f]{40}\b|\$\{\w+\}", each), f"{each} names no commit"
    values = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    assert all(re.search(r"\b[0-9a-f]{40}\b", value) for key, value in values.items() if "/archive/${" + key + "}" in text or value.startswith("https:"))
    assert "# Proofs:" in text
    if "MODEL" in values:
        assert values["MODEL"] == raw["model"]["path"]


@pytest.mark.parametrize("name", [name for name in RECIPES if "drafter" in SHIPPED[name]])
def test_the_drafter_is_pinned_and_the_engine_loads_it(name: str) -> None:
    raw = SHIPPED[name]
    assert re.fullmatch("[0-9a-f]{40}", raw["drafter"]["revision"])
    assert raw["engine"]["args"]["speculative-config"]["model"] == raw["drafter"]["path"]


@pytest.mark.parametrize(
    ("name", "pinned", "pool"),
    [
        ("glm53-flash-spark-500k", "8G", 1_061_538),
        ("glm53-flash-dflash2-262k", 6 * 2**30, 678_661),
        ("qwen38-flash-next-262k", 20 * 2**30, 2_229_941),
        ("qwen38-flash-next-262k", 24 * 2**30, 2_675_242),
    ],
)
def test_published_pools_of_pinned_kv_memory_are_estimated(name: str, pinned: str | int, pool: int) -> None:
    flag = next(each for each in SHIPPED[name]["engine"]["args"] if each.startswith("kv-cache-memory"))
    profile = resolve("p", SHIPPED, {"p": {"extends": name, "engine": {"args": {flag: pinned}}}})
    plan = kv_estimate.make_plan(profile, ranks(121.69, 121.69, available=None))
    assert plan["expected_tokens"] == pytest.approx(pool, rel=0.001)
    assert plan["verdict"] == "ok"
