"""A recipe of another author: its secrets in the profile and in refusals, files outside its folder, and texts that take time or memory (R1 to R7)."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action import profile_import as plugin
from unit.fixtures.host.tree import Tree

SECRET = "abcd1234secretvalue"
RECIPE = "model: org/m\ncontainer: o/vllm:1\ndefaults: {tensor_parallel: 2, gpu_memory_utilization: 0.8}\n"
SECONDS = 2  # none takes more than 0.2 s; in quadratic time each takes seven or more


@pytest.fixture(autouse=True)
def _without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActionBase, "run", lambda *_args, **_more: {})


def run(folder: Path, text: str, env: str = "", file: str = "recipe.yaml") -> str:
    """Return what an import reports and writes, or its refusal."""
    Tree(folder).put(file, text)
    Tree(folder).put(".env", env)
    args = {"recipe": str(folder / file), "directory": str(folder / "own"), "name": "m", "env_file": str(folder / ".env")}
    task = SimpleNamespace(args=args, check_mode=False, diff=False, async_val=0, resolved_action="", action="")
    module = plugin.ActionModule(task=task, connection=None, play_context=None, loader=None, templar=None, shared_loader_obj=None)
    try:
        return str(module.run(None, {})) + (folder / "own/m.yml").read_text()
    except AnsibleActionFail as error:
        return f"refused: {error}"


def command(text: str) -> str:
    return f"{RECIPE}command: |\n  {text}\n"


@pytest.mark.parametrize("flag", ["--served-model-name", "--hf-overrides", "--seed 1 --x-unknown"])
def test_a_secret_of_a_script_is_not_in_the_profile(flag: str, tmp_path: Path) -> None:
    out = run(tmp_path, command(f"export MY_API_KEY={SECRET}\n  vllm serve {{model}} {flag} $MY_API_KEY"))
    assert SECRET not in out
    assert "env.MY_API_KEY" in out


def test_a_secret_in_a_description_is_not_in_the_summary(tmp_path: Path) -> None:
    out = run(tmp_path, f"{RECIPE}description: 'Serve it with password=hunter2hunter2'\n")
    assert "hunter2hunter2" not in out
    assert "summary: Serve it with password=****" in out


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (command("vllm serve Q/a $API_KEY"), "the command has the word ********"),
        (command("vllm serve Q/a -$API_KEY"), "the argument -********"),
        (command("$API_KEY x; y"), "the command starts ********, y"),
        (command(f"export API_KEY={SECRET}; $API_KEY x; y"), "the command starts ********, y"),
        (command(f"API_KEY='pass {SECRET}'; vllm serve Q/a $API_KEY"), "the command has the word ********"),
        ("services: {v: {image: o/vllm, env_file: $API_KEY, command: vllm serve a/b}}", "has env_file ********"),
        ("services: {v: {image: o/vllm, command: [$API_KEY]}}", "the service v runs ********, expected"),
        ("services: {v: {image: o/vllm, env_file: own.env, command: 'sh -c \"vllm serve a/b $$OTHER_API_KEY\"'}}", "the command has the word ********"),
        (f"services: {{v: {{image: o/vllm, environment: [API_KEY={SECRET}], command: vllm serve a/b {SECRET}}}}}", "the command has the word ********"),
    ],
)
def test_a_refusal_quotes_no_secret(text: str, refusal: str, tmp_path: Path) -> None:
    Tree(tmp_path).put("own.env", f"OTHER_API_KEY={SECRET}\n")
    out = run(tmp_path, text, f"API_KEY={SECRET}\n")
    assert out.startswith("refused: ")
    assert refusal in out
    assert SECRET not in out


@pytest.mark.parametrize("name", ["{}/creds", "../creds", "link"])
def test_an_environment_file_outside_the_folder_of_the_recipe_is_not_read(name: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put("creds", "MYPLAIN: topsecretvalue\n")
    tree.put("here/recipe.yaml", "")
    (tmp_path / "here/link").symlink_to("../creds")
    out = run(tmp_path / "here", f"services: {{v: {{image: o/vllm, env_file: '{name.format(tmp_path)}', command: vllm serve a/b -tp 2}}}}")
    assert out.startswith("refused: ")
    assert "is not below the folder of the recipe. Put the file there" in out


@pytest.mark.parametrize("name", ["{}/outside", "../outside", "mods/link", "linked"])
def test_a_mod_outside_the_folders_of_mods_is_not_taken(name: str, tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put("outside/run.sh", "true\n")
    tree.put("a/b/c/mods/linked/x", "")
    (tmp_path / "a/b/c/mods/link").symlink_to(tmp_path / "outside")
    (tmp_path / "a/b/c/mods/linked/run.sh").symlink_to(tmp_path / "outside/run.sh")
    out = run(tmp_path / "a/b/c", f"{RECIPE}mods: ['{name.format(tmp_path)}']\n")
    assert "- path: " not in out
    assert "'field': 'mods[0] " in out


MERGES = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" if n else "a0: &a0 {x: 1}\n" for n in range(9))
WIDE = "a: &a {" + ", ".join(f"k{n}: 1" for n in range(1000)) + "}\nb: {<<: [" + ", ".join(["*a"] * 9000) + "]}\n"
VALUE = "x" * 30000


@pytest.mark.parametrize(
    ("file", "text", "refusal"),
    [
        ("nl.sh", "#!/bin/sh\n" + "\n" * 40000, "it is neither"),
        ("nl.sh", "#!/bin/sh\n. " + "\n" * 40000, "it is neither"),
        ("word.sh", f"B={VALUE}\nC={'$B' * 500}\n", "more than 65536 characters after its variables were replaced"),
        ("quotes.sh", f'B={VALUE}\nC="' + '$B\\"' * 5000 + '"\n', "more than 65536 characters after its variables were replaced"),
        ("words.sh", "B='" + "x " * 15000 + "'\necho " + "$B " * 5000, "more than 65536 characters after its variables were replaced"),
        ("lines.sh", f"B={VALUE}\n" + "echo $B\n" * 4000, "more than 65536 characters after its variables were replaced"),
        ("brace.sh", "#!/bin/sh\necho {" + "," * 40000, "it is neither"),
        ("brace.sh", "#!/bin/sh\necho {" + "," * 40000 + "}", "line 2 of the script has {,,,,"),
        ("word.sh", "docker run o/vllm vllm serve a/b {" + "," * 40000, "... that belongs to no argument, expected --NAME VALUE"),
        ("brace.sh", "#!/bin/sh\necho {" + ".." * 20000, "it is neither"),
        ("brace.sh", "#!/bin/sh\necho {" + "a." * 20000, "it is neither"),
        ("merge.yaml", MERGES, "more than 5000 entries"),
        ("wide.yaml", WIDE, "more than 5000 entries"),
        ("deep.yaml", "[" * 400000, "more than 50 lists and tables in each other"),
    ],
)
def test_a_recipe_takes_little_time_and_memory(file: str, text: str, refusal: str, tmp_path: Path) -> None:
    start = time.process_time()
    out = run(tmp_path, text, file=file)
    assert time.process_time() - start < SECONDS
    assert out.startswith("refused: ")
    assert refusal in out
    assert len(out) < 1000
