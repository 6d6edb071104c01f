"""What the role vllm_tp2 computes in YAML: the time limit of a boot, and what a removal names."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from playbook import REPO


def role_variables(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((REPO / "roles/vllm_tp2" / name / "main.yml").read_text(encoding="utf-8"))
    return {key: trust_as_template(value) if isinstance(value, str) else value for key, value in raw.items()}


def rank(number: int) -> dict[str, Any]:
    return {"rank": number, "host": f"spark-{number + 1}", "facts": {"state": "starting", "stage": "load"}, "stage_since": 0.0, "seen": True}


@pytest.mark.parametrize(
    ("phases", "user", "seconds"),
    [({}, {}, 2700), ({"total": 4000}, {}, 4000), ({}, {"vllm_tp2_phase_seconds": {"total": 50}}, 50), ({"total": 4000}, {"vllm_tp2_timeout": 9000}, 9000)],
    ids=["default", "the profile's", "with the stages'", "the user's"],
)
def test_time_limit_of_a_boot_is_the_users_or_the_profiles_total(phases: dict[str, Any], user: dict[str, Any], seconds: int) -> None:
    """The gate gets its timeout from the role's defaults. It does not read `total` among the limits of the stages."""
    own = {"extends": "dspark-nvfp4-1m-seed", "launch": {"phase_seconds": phases}}
    variables = {**role_variables("defaults"), "vllm_tp2_profile": resolve("mine", shipped_profiles(), {"mine": own}), **user}
    timeout = Templar(loader=DataLoader(), variables=variables).template(variables["vllm_tp2_timeout"])
    assert timeout == seconds
    ranks, limits = [rank(0), rank(1)], {**variables["vllm_tp2_profile"]["launch"]["phase_seconds"], "load": 99999}
    assert gate.slow(ranks, seconds - 1.0, float(timeout), limits) is None
    assert (gate.slow(ranks, seconds + 1.0, float(timeout), limits) or {})["class"] == "stalled"


@pytest.mark.parametrize(
    ("given", "goes"),
    [({}, True), ({"vllm_tp2_api_key": "k"}, False), ({"vllm_tp2_secret_env": {"VLLM_API_KEY": "k"}}, False), ({"vllm_tp2_api_open": True}, False)],
    ids=["made-on-the-head", "own", "own-in-the-environment", "open"],
)
def test_removal_names_the_api_key_only_if_it_goes(given: dict[str, Any], goes: bool) -> None:
    tasks = yaml.safe_load((REPO / "roles/vllm_tp2/tasks/stop.yml").read_text(encoding="utf-8"))[-1]["block"]
    here = {"ansible_check_mode": False, "vllm_tp2_group": {"name": "pair1"}, "gb10_evidence": "/evidence", "gb10_receipts": "/receipts"}
    variables = {**role_variables("defaults"), **here, "vllm_tp2_api_key": "", "vllm_tp2_api_open": False, **given}
    text = re.sub(r"lookup\('gb10\.cluster\.setting', '(\w+)'\)", r"\1", tasks[-1]["gb10.cluster.show"]["lines"][0])
    line = Templar(loader=DataLoader(), variables=variables).template(trust_as_template(text))
    assert line.startswith("pair1 is removed with its API key: the next start" if goes else "pair1 is removed. Weights and image stay")
