"""The shipped profiles against their sources, argument by argument and variable by variable, and what a new owner needs for their images."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import IMAGES, SHIPPED, arguments, place

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "profiles"
SOURCES: dict[str, dict[str, Any]] = yaml.safe_load((FIXTURES / "sources.yml").read_text())
PROFILES = {name: resolve(name, SHIPPED) for name in SHIPPED}
# Profiles whose image is not available. They go to profiles/examples/, or get one.
# The collection writes these for every profile, and docs/reference/profiles.md names them once.
WIRING = {"host", "port", "served-model-name", "nnodes", "node-rank", "master-addr", "master-port", "distributed-executor-backend"}
FABRIC = {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME"}
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
    return {key for each in profile["deviations"] for key in each["keys"]}


def differences(name: str) -> set[str]:
    """Return the keys of a profile that differ from its source."""
    profile, (args, env, rest) = PROFILES[name], given(name)
    own = dict(arguments(compose.build_argv(profile, place(0))))
    texts = " ".join(each["original"] or "" for each in profile["deviations"])
    found = set()
    for flag in set(own) | set(args):
        written_by_us = flag in WIRING and flag not in args and flag != "distributed-executor-backend"
        quoted = flag not in own and f"--{flag}" in texts
        if own.get(flag) != args.get(flag) and not written_by_us and not quoted:
            found.add(KEYS.get(flag, f"engine.args.{flag}"))
    found |= {f"env.{key}" for key in set(profile["env"]) | set(env) if profile["env"].get(key) != env.get(key) and key not in FABRIC}
    if rest["model"] != profile["model"]["path"]:
        found.add("model.path")
    if rest["image"] not in (None, profile["image"]["reference"]):
        found.add("image.reference")
    return found


def test_every_profile_has_a_source_or_a_source_file() -> None:
    assert set(SOURCES) <= set(SHIPPED)
    assert all(profile["sources"] for profile in PROFILES.values())


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_each_difference_from_the_source_is_a_listed_deviation(name: str) -> None:
    assert differences(name) - listed(PROFILES[name]) == set()


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_each_listed_deviation_is_a_difference(name: str) -> None:
    compared = {key for key in listed(PROFILES[name]) if key.startswith(("engine.args.", "env."))} - {f"env.{key}" for key in FABRIC}
    assert compared - differences(name) == set()


# Their owners build and load these images themselves: each profile names the sources.
OWN_IMAGE = {"dspark-nvfp4-1m-0731", "dspark-nvfp4-1m-seed"}


def test_an_image_that_the_owner_brings_is_described() -> None:
    own = {name for name, each in PROFILES.items() if not each["image"]["pull"] and each["image"]["build"] is None}
    assert own == OWN_IMAGE
    assert all("The image is yours" in " ".join(PROFILES[name]["notes"]) for name in own)


@pytest.mark.parametrize("name", sorted(set(SHIPPED) - OWN_IMAGE))
def test_the_image_is_pulled_or_built_from_a_pinned_base(name: str) -> None:
    image = PROFILES[name]["image"]
    if image["pull"]:
        assert image["reference"].count("/") >= 1, "a name of a registry"
        return
    words = [line.split() for line in (IMAGES / image["build"] / "Dockerfile").read_text(encoding="utf-8").splitlines()]
    given = dict(each[1].split("=", 1) for each in words if each[:1] == ["ARG"] and "=" in each[1])
    stages = {each[3] for each in words if each[:1] == ["FROM"] and each[2:3] == ["AS"]}
    bases = {given.get(each[1].strip("${}"), each[1]) for each in words if each[:1] == ["FROM"]} - stages
    assert bases
    assert all("@sha256:" in base for base in bases)


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
