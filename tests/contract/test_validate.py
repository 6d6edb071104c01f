"""playbooks/validate.yml: every profile on the example's inventory, with no host reachable; and what it refuses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from playbook import PAIR, REPO
from warm_playbook import run

PROFILES = sorted(path.stem for path in (REPO / "profiles").glob("*.yml"))
#: With and without a drafter. The unit tests render every profile.
SOME = ["b12x-fp8-1m", "dspark-nvfp4-1m-seed"]


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """A pair whose hosts cannot be reached."""
    folder = tmp_path / "inventory"
    folder.mkdir()
    (folder / "hosts.yml").write_text(PAIR, encoding="utf-8")
    return folder


@pytest.mark.parametrize("names", [SOME, pytest.param(PROFILES, marks=pytest.mark.long)], ids=["some", "all"])
def test_a_shipped_profile_passes_on_the_example_without_any_host(tmp_path: Path, names: list[str]) -> None:
    """Addresses of the example are reserved for documentation (192.0.2.0/24): a connection would fail."""
    validate = {"ansible.builtin.import_playbook": str(REPO / "playbooks/validate.yml")}
    plays = [{**validate, "vars": {"gb10_profile": name, "validate_output": str(tmp_path / "out" / name)}} for name in names]
    (tmp_path / "all.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    outcome = run(tmp_path, str(tmp_path / "all.yml"), REPO / "inventories/spark-pair")
    assert outcome.rc == 0, outcome.stdout[-4000:]
    assert outcome.failures == []
    done = [event["event_data"] for event in outcome.events if event["event"] == "runner_on_ok"]
    documents = [data["res"]["data"] for data in done if data["task"].endswith("Report the group")]
    assert {document["profile"] for document in documents} == set(names)
    assert all([rank["host"] for rank in document["ranks"]] == ["spark-1", "spark-2"] for document in documents)
    assert len([line for line in outcome.stdout.splitlines() if line.startswith("pair1: valid. Estimated KV pool: ")]) == len(names)


# tests/unit/plugins/module_utils/_profile has each other refusal.
def test_nodes_with_too_little_memory_are_refused_and_nothing_is_written(tmp_path: Path, inventory: Path) -> None:
    memory = {"total_kib": 117440512, "available_kib": 109051904}
    variables = {"gb10_profile": "dspark-nvfp4-1m-seed", "validate_memory": memory, "validate_output": str(tmp_path / "out")}
    outcome = run(tmp_path, "playbooks/validate.yml", inventory, variables=variables)
    assert outcome.rc != 0
    assert any("at least 1,890,000 are needed" in message for _host, _task, message in outcome.failures), outcome.failures
    assert not (tmp_path / "out").exists()


def test_docker_compose_is_asked_where_there_is_one(tmp_path: Path, inventory: Path) -> None:
    """A stand-in that refuses the file: its words are passed on; and it got the file without the secrets' file, which is not here."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = folder / "docker"
    fake.write_text(f'#!/bin/sh\n[ "$2" = version ] && echo 2.40.0 && exit 0\ncat > {tmp_path}/seen.$$\necho "services.vllm is odd" >&2\nexit 15\n')
    fake.chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin:{os.environ['PATH']}"
    outcome = run(tmp_path, "playbooks/validate.yml", inventory, variables={"vllm_tp2_api_key": "key-7c1f2e9d"}, env={"PATH": path})
    assert outcome.rc != 0
    assert "Docker Compose refuses the file made from profile b12x-fp8-1m: services.vllm is odd" in outcome.last_message
    (first, *_rest) = sorted(tmp_path.glob("seen.*"))
    (service,) = yaml.safe_load(first.read_text(encoding="utf-8"))["services"].values()
    assert "env_file" not in service
    assert "key-7c1f2e9d" not in outcome.text() + json.dumps(service)


def test_compose_files_are_shown_on_request_and_a_program_gets_one_line_of_json(tmp_path: Path, inventory: Path) -> None:
    folder = tmp_path / "out"
    outcome = run(tmp_path, "playbooks/validate.yml", inventory, variables={"output": "json", "validate_show": True, "validate_output": str(folder)})
    (document,) = outcome.documents
    assert "Estimated" not in outcome.stdout.replace(json.dumps(document), "")
    assert (document["schema"], document["group"], document["valid"], document["path"]) == ("gb10.cluster/validate/1", "pair1", True, f"{folder}/pair1")
    assert document["pool"]["needed_tokens"] == 1000000
    for rank in document["ranks"]:
        assert rank["compose"] == (folder / f"pair1/rank{rank['rank']}-{rank['host']}/compose.yaml").read_text(encoding="utf-8")
