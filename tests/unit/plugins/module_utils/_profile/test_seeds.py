"""The shipped profiles against their seeds, argument by argument and variable by variable, and what a new owner needs for their images."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from ansible_collections.gb10.cluster.plugins.module_utils._profile.schema import DEFAULT_PROFILE
from shipped_profiles import SHIPPED, arguments, place

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "profiles"
SEEDS: dict[str, dict[str, Any]] = yaml.safe_load((FIXTURES / "seeds.yml").read_text())
PROFILES = {name: resolve(name, SHIPPED) for name in SHIPPED}
# The collection writes these for every profile, and docs/profiles.md names them once.
WIRING = {"host", "port", "served-model-name", "nnodes", "node-rank", "master-addr", "master-port", "distributed-executor-backend"}
FABRIC = {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME"}
KEYS = {"served-model-name": "model.served_names", "revision": "model.revision"}


def given(name: str) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Return what a seed gives: its arguments, its environment, and its model and image."""
    own = SEEDS[name]
    args, env, rest = given(own["like"]) if "like" in own else ({}, {}, {})
    args = {**args, **dict(arguments(shlex.split(own.get("arguments", ""))))}
    env = {**env, **dict(word.split("=", 1) for word in shlex.split(own.get("environment", "")))}
    without = set(own.get("without", []))
    left = ({key: value for key, value in args.items() if key not in without}, {key: value for key, value in env.items() if key not in without})
    return *left, {**rest, **{key: own[key] for key in ("model", "image") if key in own}}


def listed(profile: dict[str, Any]) -> set[str]:
    return {key for each in profile["deviations"] for key in each["keys"]}


def differences(name: str) -> set[str]:
    """Return the keys of a profile that differ from its seed."""
    profile, (args, env, rest) = PROFILES[name], given(name)
    own = dict(arguments(compose.build_argv(profile, place(0))))
    seed_texts = " ".join(each["seed"] or "" for each in profile["deviations"])
    found = set()
    for flag in set(own) | set(args):
        written_by_us = flag in WIRING and flag not in args and flag != "distributed-executor-backend"
        quoted = flag not in own and f"--{flag}" in seed_texts
        if own.get(flag) != args.get(flag) and not written_by_us and not quoted:
            found.add(KEYS.get(flag, f"engine.args.{flag}"))
    found |= {f"env.{key}" for key in set(profile["env"]) | set(env) if profile["env"].get(key) != env.get(key) and key not in FABRIC}
    if rest["model"] != profile["model"]["path"]:
        found.add("model.path")
    if rest["image"] not in (None, profile["image"]["reference"]):
        found.add("image.reference")
    return found


def test_every_profile_has_a_seed_or_a_source_file() -> None:
    assert set(SEEDS) <= set(SHIPPED)
    assert all(profile["sources"] for profile in PROFILES.values())


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_each_difference_from_the_seed_is_a_listed_deviation(name: str) -> None:
    assert differences(name) - listed(PROFILES[name]) == set()


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_each_listed_deviation_is_a_difference(name: str) -> None:
    compared = {key for key in listed(PROFILES[name]) if key.startswith(("engine.args.", "env."))} - {f"env.{key}" for key in FABRIC}
    assert compared - differences(name) == set()


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_the_image_is_available_or_the_profile_names_another(name: str) -> None:
    image = PROFILES[name]["image"]
    build = image["build"] or {}
    if image["pull"]:
        assert image["reference"].count("/") >= 1, "a name of a registry"
        return
    if build["missing"] is None:
        assert build["repository"].startswith("https://github.com/")
        assert build["commit"]
        assert build["steps"]
        assert build["verify"], "what proves the build"
        return
    other = PROFILES[build["use_instead"]]["image"]
    assert other["pull"] or other["build"]["steps"], "the profile to use instead is available"


def test_the_default_profile_needs_no_build_and_pins_what_it_downloads() -> None:
    default = PROFILES[DEFAULT_PROFILE]
    assert default["image"]["pull"]
    assert default["image"]["digest"]
    assert default["model"]["revision"]
    assert default["model"]["layout"] in (None, "hub")


def test_the_successor_of_the_1m_profile_has_the_authors_later_state() -> None:
    later = PROFILES["dspark-nvfp4-1m-0731"]
    args = dict(arguments(compose.build_argv(later, place(0))))
    assert "override-generation-config" not in args
    assert args["max-cudagraph-capture-size"] == (str(int(args["max-num-seqs"][0]) * (5 + 1)),), "sequences x (draft tokens + 1)"
    assert {"async-scheduling", "enable-chunked-prefill"} <= set(args)
    assert later["env"]["VLLM_USE_FLASHINFER_SAMPLER"] == "1"
    patches = " ".join(check["name"] for check in later["image"]["build"]["verify"])
    assert all(patch in patches for patch in ("Patch 2b", "Patch 3", "Patch 4"))
    assert later["model"]["revision"]
    assert any("dspark-nvfp4-1m-0731" in note for note in PROFILES["dspark-nvfp4-1m"]["notes"])


WITH_CUSTOM_OPS = [name for name, profile in sorted(PROFILES.items()) if "custom_ops" in str(profile["engine"]["args"].get("compilation-config"))]


@pytest.mark.parametrize("name", WITH_CUSTOM_OPS)
def test_custom_ops_come_with_the_warning_of_seed_004(name: str) -> None:
    assert any("custom_ops" in note and "froze both nodes" in note for note in PROFILES[name]["notes"])
