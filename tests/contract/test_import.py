"""playbooks/import.yml: a recipe becomes a file with a valid profile, or nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playbook import REPO, Run, run

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


def report(outcome: Run) -> list[str]:
    (result,) = [event["event_data"]["res"] for event in outcome.events if event["event"] == "runner_on_ok" and event["event_data"]["task"] == "Import"]
    lines: list[str] = result["msg"]
    return lines


def test_a_compose_file_is_imported_selected_and_validated(inventory: Path) -> None:
    compose = {"recipe": RECIPES / "docker-compose.yml", "env_file": RECIPES / "flash.env", "name": "mine"}
    file = inventory.parent / "own/mine.yml"
    checked = imported(inventory, "--check", "--diff", **compose)
    assert (checked.rc, len(checked.changed), file.exists()) == (0, 1, False)
    assert "+  tensor-parallel-size" in checked.stdout.replace("+    ", "+  ")

    first = imported(inventory, **compose)
    assert (first.rc, first.hosts, len(first.changed)) == (0, {"localhost"}, 1)
    lines, text = report(first), file.read_text(encoding="utf-8")
    for line in lines[lines.index("Not mapped:") :]:
        assert f"# {line}\n" in text, "the file names what is not mapped"
    assert "privileged: the role drops all capabilities but IPC_LOCK" in lines
    secrets = ("hf_abcdefghijklmnopqrstuvwx2", "plain-words-for-the-api", "pw123456")
    assert [secret for secret in secrets if secret in text + first.text() + checked.text()] == []

    again = imported(inventory, **compose)
    assert (again.rc, again.changed, file.read_text(encoding="utf-8")) == (0, set(), text)

    valid = run(inventory.parent, "playbooks/validate.yml", inventory, variables={"gb10_profile": "mine", "validate_show": True})
    assert (valid.rc, valid.failures) == (0, [])
    assert "UCX_MEM_MMAP_HOOK_MODE: none" in json.dumps(valid.events)
