"""What a release is rendered from, for a group that another version of the collection started."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from playbook import REPO


def role_variables(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((REPO / "roles/vllm_tp2" / name / "main.yml").read_text(encoding="utf-8"))
    return {key: trust_as_template(value) if isinstance(value, str) else value for key, value in raw.items()}


@pytest.mark.parametrize(
    ("own", "variable", "before", "option", "former"),
    [
        (None, "private", "host", {}, "host"),
        ("private", "private", "private", {}, "private"),
        ("host", "private", "host", {"ipc": "host"}, "host"),
        (None, "host", "host", {"ipc": "host"}, "host"),
    ],
)
def test_the_private_ipc_namespace_does_not_start_a_group_again(own: str | None, variable: str, before: str, option: dict[str, str], former: str) -> None:
    """The inputs are those of the version whose default was host, unless the owner asks for something else."""
    profile = resolve("mine", shipped_profiles(), {"mine": {"extends": "dspark-nvfp4-1m", "container": {"ipc": own}}})
    known = {
        "__vllm_tp2_options_given": {}, "__vllm_tp2_profile": profile, "__vllm_tp2_given": {}, "__vllm_tp2_makes_key": False, "__vllm_tp2_head": True,
        "vllm_tp2_ipc": variable,
    }  # fmt: skip
    templar = Templar(loader=DataLoader(), variables={**role_variables("defaults"), **role_variables("vars"), **known})
    inputs, options, given = (
        templar.template(trust_as_template("{{ " + name + " }}")) for name in ("__vllm_tp2_rendered_from", "__vllm_tp2_options", "__vllm_tp2_former_options")
    )
    assert inputs == {key: value for key, value in profile.items() if key not in ("gate", "launch")} | {"container": {**profile["container"], "ipc": before}}
    assert options == option
    assert given["ipc"] == former
