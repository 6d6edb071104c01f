"""The action plugin profile_import: what it refuses, and what it then leaves alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action import profile_import as plugin

RECIPES = Path(__file__).parents[2] / "fixtures/recipes"
RECIPE = "model: org/m\ncontainer: vllm:1\ndefaults: {tensor_parallel: 2, gpu_memory_utilization: 0.8, served_model_name: m}\n"


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_args, **_more: {})


def run(folder: Path, text: str | bytes = RECIPE, check: bool = False, **arguments: Any) -> dict[str, Any]:
    recipe = folder / "recipe.yaml"
    recipe.write_bytes(text if isinstance(text, bytes) else text.encode())
    args = {"recipe": str(recipe), "directory": str(folder / "own"), **arguments}
    task = SimpleNamespace(args=args, check_mode=check, diff=False, async_val=0, resolved_action="", action="")
    module = plugin.ActionModule(task=task, connection=None, play_context=None, loader=None, templar=None, shared_loader_obj=None)
    out: dict[str, Any] = module.run(None, {})
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
    out = run(tmp_path, (RECIPES / name).read_text(), name="mine")
    text = (tmp_path / "own/mine.yml").read_text()
    assert yaml.safe_load(text)["engine"]["args"]["tensor-parallel-size"] == "{ranks}"
    assert out["unmapped"]
    assert [entry for entry in out["unmapped"] if f"\n# {entry}: " not in text] == []
    assert "hf_abcdefghijklmnopqrstuvwx" not in text + str(out)


def test_a_utilization_that_freezes_nodes_is_a_warning(tmp_path: Path) -> None:
    (text,) = run(tmp_path, RECIPE.replace("0.8", "0.9"))["warnings"]
    assert text.startswith("The inventory check refuses it: m: gpu-memory-utilization 0.9 is above 0.82")


def test_writes_to_another_file(tmp_path: Path) -> None:
    assert run(tmp_path, dest=str(tmp_path / "x/y.yml"), name="z")["path"] == str(tmp_path / "x/y.yml")
    assert (tmp_path / "x/y.yml").read_text().startswith("---\n# Profile z, made by playbooks/import.yml of recipe.yaml, a recipe of sparkrun.\n")


@pytest.mark.parametrize(
    ("text", "arguments", "error"),
    [
        ("a: [", {}, r"recipe\.yaml:2: the recipe is not valid YAML"),
        ("HF_TOKEN: 'hf_abcdefghijklmnopqrstuvwx9\n", {}, r"recipe\.yaml:2: the recipe is not valid YAML"),
        (b"\xff\xfe", {}, "cannot be read"),
        ("x: 1", {}, "neither services"),
        (RECIPE, {"name": "../x"}, "expected lower-case letters"),
        (RECIPE, {"name": "fp8-1m"}, "is the name of a shipped profile"),
        (RECIPE, {"env_file": "/nowhere/.env"}, "environment file cannot be read"),
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


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a file")
    with pytest.raises(AnsibleActionFail, match=r"own/m\.yml cannot be written"):
        run(tmp_path)


def test_text_of_a_recipe_cannot_leave_its_comment(tmp_path: Path) -> None:
    out = run(tmp_path, RECIPE + '"evil\\nengine: {}\\u2028x": 1\n')
    text = Path(out["path"]).read_text()
    assert "\n# evil engine: {} x: a profile has no key for it\n" in text
