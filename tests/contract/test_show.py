"""What the playbooks print with Ansible's own callback and without our ansible.cfg, as from an installed tarball: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from playbook import LOCAL_PAIR, REPO, Run
from warm_playbook import ansible

pytestmark = pytest.mark.slow


def play(folder: Path, name: str, *arguments: str, hosts: str = "") -> Run:
    """Run a playbook with an empty configuration and results as JSON."""
    config, inventory = folder / "empty.cfg", folder / "hosts.yml"
    config.write_text("", encoding="utf-8")
    inventory.write_text((hosts or LOCAL_PAIR).format(python=sys.executable), encoding="utf-8")
    variables = {"vllm_tp2_directory": str(folder / "node"), "gb10_receipts": str(folder / "receipts"), "gb10_profile": "b12x-fp8-1m"}
    words = [f"gb10.cluster.{name}", "-i", str(inventory), "-e", json.dumps(variables), *arguments]
    settings = {"ANSIBLE_CONFIG": str(config), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    done = ansible(folder, words, cwd=folder, env=settings)
    assert done.rc == 0, done.stdout
    return done


def starts(lines: list[str], title: str, *columns: str) -> list[str]:
    """The lines of the table below the title; each cell of the columns begins where its title does."""
    first = next(number for number, line in enumerate(lines) if line.startswith(title))
    rows = lines[first + 1 : lines.index("", first)]
    for column in columns:
        place = lines[first].index(f"  {column}") + 2
        assert all(row[place - 1] == " " and row[place] != " " for row in rows), (column, rows)
    return rows


def test_validate_shows_the_compose_files_on_request_and_json_as_one_line(tmp_path: Path) -> None:
    done = play(tmp_path, "validate", "-e", "output=json", "-e", "validate_show=true", "-e", f"validate_output={tmp_path}/out")
    (document,) = done.documents
    assert "Estimated" not in done.stdout.replace(json.dumps(document), "")
    assert (document["schema"], document["group"], document["valid"], document["path"]) == ("gb10.cluster/validate/1", "pair1", True, f"{tmp_path}/out/pair1")
    assert document["pool"]["needed_tokens"] == 1000000
    for rank in document["ranks"]:
        assert rank["compose"] == (tmp_path / f"out/pair1/rank{rank['rank']}-{rank['host']}/compose.yaml").read_text(encoding="utf-8")


def test_import_is_a_text_or_a_document(tmp_path: Path) -> None:
    recipe = f"recipe={REPO}/tests/unit/fixtures/recipes/sparkrun.yaml"
    lines = play(tmp_path, "import", "-e", recipe).stdout.splitlines()
    assert "own-profiles/next-80b.yml is written: profile next-80b, made of a recipe of sparkrun." in lines
    assert starts(lines, "not mapped ", "why")[0].split()[0] == "env.OTHER_URL"
    assert [line for line in lines if line.startswith("Set by the collection, or not in a profile: ") and "recipe_version" in line]
    (document,) = play(tmp_path, "import", "-e", recipe, "-e", "output=json").documents
    assert (document["schema"], document["profile"], document["state"]) == ("gb10.cluster/import/1", "next-80b", "unchanged")
    row = next(line for line in (REPO / "docs/day-to-day.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `import` |"))
    assert [key for key in document if key != "schema" and f"`{key}`" not in row] == []
    assert f"Next: {document['next']}" in lines
    assert document["next"] == "ansible-playbook gb10.cluster.validate -i hosts.yml -e gb10_profile=next-80b"


TWO_GROUPS = f"""{LOCAL_PAIR}
    pair2:
      vars: {{{{gb10_fabric_cidrs: [192.168.202.0/24, 192.168.203.0/24]}}}}
      hosts:
        a-long-name: {{{{ansible_host: 127.0.0.3}}}}
        four: {{{{ansible_host: 127.0.0.4}}}}
"""


def test_status_is_one_table_of_all_groups_with_the_verdicts_first(tmp_path: Path) -> None:
    lines = play(tmp_path, "status", "-e", "vllm_tp2_status_fail=false", hosts=TWO_GROUPS).stdout.splitlines()
    rows = starts(lines, "group  rank", "host", "container", "memory available", "agent")
    assert [row.split()[:3] for row in rows] == [["pair1", "0", "one"], ["pair1", "1", "two"], ["pair2", "0", "a-long-name"], ["pair2", "1", "four"]]
    verdicts = [number for number, line in enumerate(lines) if line.startswith(("NEVER SERVED  ", "UNKNOWN  "))]  # with and without a Docker Engine here
    assert verdicts == [lines.index(rows[0]) - 4, lines.index(rows[0]) - 3]
    assert "\\n" not in "".join(lines[verdicts[0] :])
