"""The action plugin profile_import: what it refuses, and what it then leaves alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible import context
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action import profile_import as plugin
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_run import PLAYBOOKS
from unit.fixtures.host.tree import Tree

RECIPES = Path(__file__).parents[2] / "fixtures/recipes"
RECIPE = "model: org/m\ncontainer: vllm:1\ndefaults: {tensor_parallel: 2, gpu_memory_utilization: 0.8, served_model_name: m}\n"
DEEP = '{"a":' * 5000 + "1" + "}" * 5000


def run(folder: Path, text: str | bytes = RECIPE, check: bool = False, variables: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    recipe = folder / "recipe.yaml"
    recipe.write_bytes(text if isinstance(text, bytes) else text.encode())
    args = {"recipe": str(recipe), "directory": str(folder / "own"), **arguments}
    task = SimpleNamespace(args=args, check_mode=check, diff=False, async_val=0, resolved_action="", action="")
    module = plugin.ActionModule(task=task, connection=None, play_context=None, loader=None, templar=None, shared_loader_obj=None)
    out: dict[str, Any] = module.run(None, variables)
    return out


def test_writes_once_and_keeps_a_file_with_other_content(tmp_path: Path) -> None:
    file = tmp_path / "own/m.yml"
    assert (run(tmp_path, check=True)["changed"], file.exists()) == (True, False)
    assert (run(tmp_path)["changed"], run(tmp_path)["changed"]) == (True, False)
    other = RECIPE.replace("0.8", "0.7")
    before = file.read_text()
    with pytest.raises(AnsibleActionFail, match=r"own/m\.yml exists with another content\. .*-e force=true"):
        run(tmp_path, other)
    assert file.read_text() == before
    out = run(tmp_path, other, force=True)
    assert (out["changed"], out["diff"]["before"] == before, "0.7" in file.read_text()) == (True, True, True)
    assert [path.name for path in file.parent.iterdir()] == ["m.yml"]


@pytest.mark.parametrize("name", ["eugr.yaml", "sparkrun.yaml", "docker-compose.yml"])
def test_each_kind_is_written_with_what_is_not_mapped(name: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text((RECIPES / "flash.env").read_text())  # next to the recipe
    out = run(tmp_path, (RECIPES / name).read_text(), name="mine")["document"]
    text = (tmp_path / "own/mine.yml").read_text()
    assert yaml.safe_load(text)["engine"]["args"]["tensor-parallel-size"] == "{ranks}"
    assert out["unmapped"]
    notes = yaml.safe_load(text)["notes"]
    assert notes[-1] == f"Set by the collection, or not in a profile: {', '.join(out['left'])}"
    assert [each for each in out["unmapped"] if "Not mapped: {field}: {reason}".format(**each) not in notes] == []
    assert "hf_abcdefghijklmnopqrstuvwx" not in text + str(out)


@pytest.mark.parametrize(
    ("arguments", "directory", "command"),
    [
        ({}, "own-profiles", "ansible-playbook playbooks/validate.yml -e gb10_profile=m"),
        (
            {"args": ("gb10.cluster.import",), "inventory": ["/etc/ansible/hosts", "/my/pair", "a,b"]},
            "my own",
            "ansible-playbook gb10.cluster.validate -i /my/pair -i a,b -e gb10_profile=m -e 'gb10_profiles_directory=my own'",
        ),
        (
            {"args": (str(PLAYBOOKS / "import.yml"),)},
            "own-profiles",
            f"ansible-playbook {PLAYBOOKS}/validate.yml -e gb10_profile=m",
        ),
    ],
)
def test_the_next_command_selects_the_profile(arguments: dict[str, Any], directory: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not written cannot be validated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(context, "CLIARGS", arguments)
    found = [run(tmp_path, check=check, directory=directory)["document"] for check in (True, False, True)]
    assert [(each["state"], each["next"]) for each in found] == [("would be written", ""), ("written", command), ("unchanged", command)]


@pytest.mark.parametrize(
    ("text", "arguments", "error"),
    [
        ("a: [", {}, r"recipe\.yaml: line 2 of the file is not valid YAML, expected a recipe of sparkrun"),
        ("HF_TOKEN: 'hf_abcdefghijklmnopqrstuvwx9\n", {}, r"recipe\.yaml: line 2 of the file is not valid YAML, expected a recipe of sparkrun"),
        (b"\xff\xfe", {}, r"recipe\.yaml: it is not text in UTF-8\. Give the path of a file with -e recipe=FILE\.$"),
        ("x: 1", {}, "neither services"),
        (RECIPE + "x: !!timestamp foo\n", {}, "line 4 of the file is not valid YAML"),
        (RECIPE + f"command: vllm serve {{model}} --hf-overrides '{DEEP}'\n", {}, r"recipe\.yaml: a value has too many lists and tables in each other"),
        (RECIPE, {"variables": {"dest": "own/m.yml"}}, "dest is not an option .*-e gb10_profiles_directory=FOLDER and -e profile_name=NAME"),
        (RECIPE, {"env_file": str(RECIPES / "eugr.yaml")}, r"recipe\.yaml: eugr\.yaml:\d+: the line is not NAME=value"),
        (RECIPE, {"name": "../x"}, "expected lower-case letters"),
        (RECIPE, {"name": "fp8-1m"}, "is the name of a shipped profile"),
        (RECIPE, {"env_file": "/nowhere/.env"}, r"^/nowhere/\.env: No such file or directory\. Give the path of a file with -e env_file=FILE\.$"),
        (RECIPE.replace("vllm:1", "'vllm 1'"), {}, "nothing was written: .*image.reference"),
        (RECIPE.replace("0.8", "80"), {}, "nothing was written: .*gpu-memory-utilization"),
        (RECIPE.replace("served_model_name: m", "port: 8000, max_model_len: many"), {}, "nothing was written: .*max-model-len"),
    ],
)
def test_refuses_and_writes_nothing(text: str | bytes, arguments: dict[str, Any], error: str, tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match=error) as caught:
        run(tmp_path, text, **arguments)
    assert not (tmp_path / "own").exists()
    assert "hf_abcdefghijklmnopqrstuvwx9" not in str(caught.value)
    assert caught.value.__cause__ is None or "hf_abc" not in str(caught.value.__cause__)


@pytest.mark.parametrize("image", ["https://user:s3cretword@reg/vllm:1", "user:s3cretword@reg/vllm", "http://s3cretword@reg:5000/vllm@sha256:1"])
@pytest.mark.parametrize("form", ["model: org/m\ncontainer: {}\n", "services:\n  vllm:\n    image: {}\n    command: vllm serve org/m\n"])
def test_a_login_in_the_name_of_an_image_is_not_repeated(form: str, image: str, tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match="expected the name of an image without https:// and without a login") as raised:
        run(tmp_path, form.format(image))
    assert "s3cretword" not in str(raised.value)


def test_a_secret_in_a_value_that_is_not_valid_is_masked(tmp_path: Path) -> None:
    with pytest.raises(AnsibleActionFail, match="The profile is not valid") as raised:
        run(tmp_path, RECIPE.replace("vllm:1", "vllm:--token=hf_abcdefghijklmnopqrstuvwx12"))
    assert "hf_abcdefghijklmnopqrstuvwx12" not in str(raised.value)


def test_a_folder_that_cannot_be_written_is_named_with_its_cause_once(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a file")
    with pytest.raises(AnsibleActionFail, match=r"own/m\.yml cannot be written: [\w ]+\. Give another folder with -e gb10_profiles_directory=FOLDER\.$"):
        run(tmp_path)


def test_text_of_a_recipe_cannot_leave_its_comment(tmp_path: Path) -> None:
    out = run(tmp_path, RECIPE + '"restart\\nengine: {}\\u2028x": 1\nexecutor_config: {"ipc": 1}\n', name="m")
    text = Path(out["document"]["path"]).read_text()
    assert "restart engine: {} x" in yaml.safe_load(text)["notes"][-1]
    named = tmp_path / "x\nengine: {}.yaml"
    named.write_text(RECIPE)
    more = Path(run(tmp_path, recipe=str(named), name="n")["document"]["path"]).read_text()
    assert [line for line in (text + more).splitlines() if line.startswith(("engine", "restart"))] == ["engine:"] * 2


def test_a_script_and_a_mod_next_to_the_recipe(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\ndocker run --name v o/vllm:1 vllm serve a/m -tp 2 --gpu-memory-utilization 0.8\n")
    assert run(tmp_path, recipe=str(script))["document"]["kind"] == "script with docker run"
    (tmp_path / ".env").write_text("M=c/d\n")  # a shell reads it if the script does
    for number, (line, model) in enumerate((("", "a/b"), (". ./.env", "c/d"), ("set -a; source .env", "c/d"))):
        script.write_text(f"#!/bin/sh\n{line}\ndocker run o/vllm:1 vllm serve ${{M:-a/b}} --gpu-memory-utilization 0.8\n")
        run(tmp_path, recipe=str(script), name=f"e{number}")
        assert yaml.safe_load((tmp_path / f"own/e{number}.yml").read_text())["model"]["id"] == model
    Tree(tmp_path).put("mods/fix/run.sh", "true\n")
    Tree(tmp_path).put("recipes/r.yaml", RECIPE + "mods: [mods/fix, mods/none]\n")
    out = run(tmp_path, recipe=str(tmp_path / "recipes/r.yaml"), name="modded")
    assert yaml.safe_load((tmp_path / "own/modded.yml").read_text())["image"]["mods"] == [{"path": str(tmp_path / "mods/fix")}]
    assert [each["field"] for each in out["document"]["unmapped"] if each["field"].startswith("mods")] == ["mods[1] mods/none"]
