"""The profile lookup, through Ansible's own templating."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gb10.cluster.plugins.lookup import profile as lookup
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE
from ansible_collections.gb10.cluster.plugins.plugin_utils.image_folders import PROFILES_DIR
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import adjusted
from shipped_profiles import SHIPPED


def run(terms: list[Any], **variables: Any) -> list[Any]:
    plugin = lookup.LookupModule(loader=DataLoader(), templar=Templar(loader=DataLoader(), variables=variables))
    plugin._load_name = "gb10.cluster.profile"
    options = {"gb10_profile": variables.get("gb10_profile"), "gb10_profiles": variables.get("gb10_profiles", {})}
    options["gb10_profiles_directory"] = variables.get("gb10_profiles_directory", "")
    plugin.set_options = lambda **_: None
    plugin.get_option = options.__getitem__
    return plugin.run(terms, variables)


def test_the_selected_one_with_templates_in_it() -> None:
    own = {"mine": {"extends": "fp8-1m", "engine": {"args": {"max-model-len": trust_as_template("{{ ctx }}")}}}}
    out = run([], gb10_profile=trust_as_template("{{ which }}"), which="mine", ctx=500000, gb10_profiles=own)[0]
    assert out["name"] == "mine"
    assert out["gate"]["context"] == 500000


def test_the_default_and_terms_and_all() -> None:
    assert run([])[0]["name"] == DEFAULT_PROFILE
    assert [o["name"] for o in run(["fp8-1m", "fp8-512k"])] == ["fp8-1m", "fp8-512k"]
    everything = run(["*"], gb10_profiles={"mine": {"extends": "fp8-1m"}})[0]
    assert set(everything) == {*SHIPPED, "mine"}
    assert everything["mine"]["lineage"] == ["fp8-1m", "mine"]


def test_faults_are_ansible_errors() -> None:
    with pytest.raises(AnsibleError, match="'fp8-1x' is not a known profile; did you mean fp8-1m"):
        run(["fp8-1x"])


def test_unreadable_yaml_and_missing_directory(tmp_path: Path) -> None:
    (tmp_path / "date.yml").write_text("summary: 2024-13-01")
    (tmp_path / "bad.yml").write_text("a: b: c")
    with pytest.raises(AnsibleError, match=r"bad\.yml:1: the file is not valid YAML here \("):
        lookup.shipped_profiles(tmp_path)["bad"]
    with pytest.raises(AnsibleError, match=r"date\.yml: the file cannot be read \(month must be in 1\.\.12"):
        lookup.shipped_profiles(tmp_path)["date"]
    with pytest.raises(AnsibleError, match="installation is incomplete"):
        lookup.shipped_profiles(tmp_path / "none")


def test_files_of_the_directory_are_profiles_and_the_inventory_wins(tmp_path: Path) -> None:
    (tmp_path / "filed.yml").write_text("extends: fp8-1m\nengine: {args: {max-model-len: 500000}}\n")
    (tmp_path / "both.yml").write_text("extends: fp8-1m\nsummary: file\n")
    own = {"both": {"extends": "fp8-1m", "summary": "inventory"}, "mine": {"extends": "filed"}}
    filed, both, mine = run(["filed", "both", "mine"], gb10_profiles_directory=str(tmp_path), gb10_profiles=own)
    assert (filed["gate"]["context"], both["summary"], mine["lineage"]) == (500000, "inventory", ["fp8-1m", "filed", "mine"])
    assert run(["both"], gb10_profiles_directory=str(tmp_path / "none"), gb10_profiles=own)[0]["summary"] == "inventory"
    (tmp_path / "bad.yml").write_text("a: b: c")
    with pytest.raises(AnsibleError, match=r"bad\.yml:1: the file is not valid YAML here \("):
        run(["both"], gb10_profiles_directory=str(tmp_path))


def test_the_folder_of_a_dockerfile_is_the_users_or_the_collections(tmp_path: Path) -> None:
    own: dict[str, Any] = {"mine": {"extends": "mimo26-flash-300k"}}
    given = {"gb10_profiles": own, "gb10_profiles_directory": str(tmp_path)}
    assert run(["mine"], **given)[0]["image"]["build"] == str(PROFILES_DIR / "images/mimo26-flash")
    (tmp_path / "images/mimo26-flash").mkdir(parents=True)
    assert run(["mine"], **given)[0]["image"]["build"] == f"{tmp_path}/images/mimo26-flash"
    own["mine"]["image"] = {"build": "none"}
    assert run(["mine"], **given)[0]["image"]["build"] == f"{tmp_path}/images/none", "where it is expected"


def test_a_profile_with_mods_serves_an_image_of_its_own(tmp_path: Path) -> None:
    """The same content has the same name."""
    (tmp_path / "fix").mkdir()
    (tmp_path / "fix/run.sh").write_text("true\n")
    image: dict[str, Any] = {"mods": [{"path": "fix"}, {"repository": "https://github.com/o/r", "commit": "a" * 40, "path": "x.patch"}]}
    given = {"gb10_profiles": {"mine": {"extends": DEFAULT_PROFILE, "image": image}}, "gb10_profiles_directory": str(tmp_path)}
    below, found = run([])[0]["image"], run(["mine"], **given)[0]["image"]
    assert found["base"] == {key: below[key] for key in ("reference", "digest", "pull", "build")}
    assert (found["digest"], found["pull"], found["build"]) == (None, False, None)
    assert found["reference"] == f"bjk110/vllm-spark:unholy-fusion-prod-ready-mods-{found['layer']['hash'][:12]}"
    assert found["layer"]["copies"] == [{"src": f"{tmp_path}/fix/", "dest": "1-fix"}]
    assert found["layer"]["dockerfile"].splitlines()[-5] == f"FROM {below['reference']}@{below['digest']}"
    assert run(["mine"], **given)[0]["image"] == found
    (tmp_path / "fix/run.sh").write_text("false\n")
    other = run(["mine"], **given)[0]["image"]
    assert other["reference"] != found["reference"]
    image["mods"][1]["commit"] = "b" * 40
    assert run(["mine"], **given)[0]["image"]["reference"] not in (other["reference"], found["reference"])
    profile = run(["mine"], **given)[0]
    assert adjusted(profile, {"engine": {"args": {"max-num-seqs": 2}}})["image"] == profile["image"]
