"""What doctor.yml and evidence.yml report of nodes that cannot be read. The others are this machine, without an agent, with a Docker Engine or without."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL_KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._checks.judge import CHECKS, IDS
from contract.test_preflight import IGNORE
from playbook import LOCAL_PAIR, REPO, Run
from warm_playbook import local

pytestmark = pytest.mark.slow

SILENT = "{{ansible_host: 127.0.0.2, ansible_connection: ssh, ansible_port: 1, ansible_user: nvidia}}"


def run(folder: Path, playbook: str, *arguments: str, hosts: str = LOCAL_PAIR, **variables: Any) -> Run:
    given = {"gb10_profile": "dspark-nvfp4-1m-seed", "vllm_tp2_directory": str(folder / "node"), "gb10_evidence": str(folder / "evidence"), **variables}
    return local(folder, playbook, *arguments, hosts=hosts, **given)


def test_a_pair_with_nothing_installed_and_a_silent_node_is_reported_in_check_mode_too(tmp_path: Path) -> None:
    silent = LOCAL_PAIR.replace("{{ansible_host: 127.0.0.2}}", SILENT)
    done = run(tmp_path, "doctor", "--check", hosts=silent, output="json", preflight_ignore=[*IGNORE.split(), "api_open", "fabric_forwarding"])
    (data,) = done.documents
    unreachable = [each for each in done._results("runner_on_unreachable") if each["host"] == "two"]
    assert len(unreachable) == 1, "a frozen node is waited for once"
    assert [each["hosts"] for each in data["findings"] if each["id"] == "reachable"] == [["two"]]
    assert done.changed == set()
    assert not (tmp_path / "node").exists()
    assert not (done.folder / "receipts").exists(), "the report of preflight belongs to preflight.yml"
    assert (data["group"], data["hosts"]) == ("pair1", ["one", "two"])
    assert {each["id"] for each in data["findings"]} & {"engine_down", "engine_unknown"}
    assert all(each["why"] and each["command"] for each in data["findings"])
    assert done.rc == (2 if data["counts"]["error"] else 0), done.stdout


def test_every_finding_is_documented() -> None:
    documented = set(re.findall(r"`([a-z0-9_]+)`", (REPO / "docs/day-to-day.md").read_text(encoding="utf-8")))
    assert {name for name in CHECKS if name not in IDS} | set(KERNEL_KINDS) <= documented


def test_a_node_that_cannot_be_read_leaves_a_note_and_fails(tmp_path: Path) -> None:
    hosts = LOCAL_PAIR.replace("{{ansible_host: 127.0.0.2}}", "{{ansible_host: 127.0.0.2, ansible_python_interpreter: /none/python3}}")
    done = run(tmp_path, "evidence", hosts=hosts)
    assert [host for host, _task, _text in done.failures] == ["two"]
    assert "/none/python3" in done.last_message
    note = (tmp_path / "evidence/latest/pair1-rank1-two.txt").read_text(encoding="utf-8")
    assert note == f"No evidence could be read: {done.last_message}\n"
    assert (tmp_path / "evidence/latest/pair1-rank0-one.figures.txt").is_file()


def test_evidence_to_compare_with_that_is_not_there_is_named_before_anything_is_written(tmp_path: Path) -> None:
    done = run(tmp_path, "evidence", evidence_compare="before")
    assert done.rc == 2
    sentence = f"evidence_compare is before, but there is no {tmp_path}/evidence/before/pair1-rank0-one.txt: collect it first"
    assert sentence in " ".join(text for _host, _task, text in done.failures)
    assert not (tmp_path / "evidence").exists()
