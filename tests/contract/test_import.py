"""playbooks/import.yml: a recipe becomes a file with a valid profile, or nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playbook import REPO, Run
from warm_playbook import ansible, run

pytestmark = pytest.mark.slow

RECIPES = REPO / "tests/unit/fixtures/recipes"
PAIR = """
gb10:
  vars: {gb10_profiles_directory: DIRECTORY}
  children:
    pair1:
      hosts:
        spark-1: {ansible_host: 10.255.255.1, ansible_connection: ssh}
        spark-2: {ansible_host: 10.255.255.2, ansible_connection: ssh}
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yml"
    path.write_text(PAIR.replace("DIRECTORY", str(tmp_path / "own")), encoding="utf-8")
    return path


def imported(inventory: Path, *arguments: str, **variables: Any) -> Run:
    given = {key: str(value) if isinstance(value, Path) else value for key, value in variables.items()}
    return run(inventory.parent, "playbooks/import.yml", inventory, *arguments, variables=given)


def test_a_compose_file_is_imported_selected_and_validated(inventory: Path) -> None:
    compose = {"recipe": RECIPES / "docker-compose.yml", "env_file": RECIPES / "flash.env", "profile_name": "mine"}
    file = inventory.parent / "own/mine.yml"
    checked = imported(inventory, "--check", "--diff", **compose)
    assert (checked.rc, len(checked.changed), file.exists()) == (0, 1, False)
    assert "+  tensor-parallel-size" in checked.stdout.replace("+    ", "+  ")

    first = imported(inventory, **compose)
    assert (first.rc, first.hosts, len(first.changed)) == (0, {"localhost"}, 1)
    lines, text = [line.split("  ", 1) for line in first.stdout.splitlines() if "  " in line], file.read_text(encoding="utf-8")
    assert f"{file} is written: profile mine, made of a Docker Compose file." in first.stdout.splitlines()
    assert ["privileged", "the role drops all capabilities but IPC_LOCK"] in [[field, reason.strip()] for field, reason in lines]
    assert "- 'Not mapped: privileged: the role drops all capabilities but IPC_LOCK'\n" in text, "the file names what is not mapped"
    assert "reserved name" not in first.stdout
    secrets = ("hf_abcdefghijklmnopqrstuvwx2", "plain-words-for-the-api", "pw123456")
    assert [secret for secret in secrets if secret in text + first.text() + checked.text()] == []

    again = imported(inventory, **compose)
    assert (again.rc, again.changed, file.read_text(encoding="utf-8")) == (0, set(), text)

    valid = run(inventory.parent, "playbooks/validate.yml", inventory, variables={"gb10_profile": "mine", "validate_show": True})
    assert (valid.rc, valid.failures) == (0, [])
    assert "UCX_MEM_MMAP_HOOK_MODE: none" in json.dumps(valid.events)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["recipe=compose.yml", "profile_nam=mine"], "profile_nam: is not a variable of this collection; did you mean profile_name?"),
        (["recpie=flash.yaml"], "recpie: is not a variable of this collection; did you mean recipe?"),
        (["recipe=compose.yml", "force=maybe"], "force: is 'maybe', expected true or false"),
    ],
)
def test_a_wrong_extra_variable_is_refused_without_an_inventory(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    """Nothing is written then."""
    (tmp_path / "compose.yml").write_bytes((RECIPES / "docker-compose.yml").read_bytes())
    done = ansible(tmp_path, [str(REPO / "playbooks/import.yml"), *(word for each in arguments for word in ("-e", each))], cwd=tmp_path)
    assert done.rc == 2
    assert f"1. the extra variables (-e): {sentence}\n" in done.stdout
    assert [path.name for path in tmp_path.glob("*profiles*")] == []
