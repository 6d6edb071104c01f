"""The bound of a whole boot: a user's own, else the profile's total; as the role's default says it, judged as the gate judges it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from playbook import REPO


def rank(number: int) -> dict[str, Any]:
    return {"rank": number, "host": f"spark-{number + 1}", "facts": {"state": "starting", "stage": "load"}, "stage_since": 0.0, "seen": True}


@pytest.mark.parametrize(
    ("phases", "user", "seconds"),
    [({}, {}, 2700), ({"total": 4000}, {}, 4000), ({}, {"vllm_tp2_phase_seconds": {"total": 50}}, 50), ({"total": 4000}, {"vllm_tp2_timeout": 9000}, 9000)],
    ids=["default", "the profile's", "with the stages'", "the user's"],
)
def test_the_whole_boot_has_the_profiles_total_unless_the_user_says_otherwise(phases: dict[str, Any], user: dict[str, Any], seconds: int) -> None:
    """The role's defaults hand the gate its timeout; `total` among the limits of the stages bounds nothing by itself."""
    defaults = yaml.safe_load((REPO / "roles" / "vllm_tp2" / "defaults" / "main.yml").read_text(encoding="utf-8"))
    own = {"extends": "dspark-nvfp4-1m", "launch": {"phase_seconds": phases}}
    variables = {**defaults, "vllm_tp2_profile": resolve("mine", shipped_profiles(), {"mine": own}), **user}
    value = variables["vllm_tp2_timeout"]
    timeout = Templar(loader=DataLoader(), variables=variables).template(trust_as_template(value) if isinstance(value, str) else value)
    assert timeout == seconds
    ranks, limits = [rank(0), rank(1)], {**variables["vllm_tp2_profile"]["launch"]["phase_seconds"], "load": 99999}
    assert gate.slow(ranks, seconds - 1.0, float(timeout), limits) is None
    assert (gate.slow(ranks, seconds + 1.0, float(timeout), limits) or {})["class"] == "stalled"
