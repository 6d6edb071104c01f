"""What evidence.yml writes and prints. Both hosts are this machine, which has no agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playbook import LOCAL_PAIR, Run
from warm_playbook import local

pytestmark = pytest.mark.slow


def collect(folder: Path, text: str = LOCAL_PAIR, *arguments: str, **variables: Any) -> Run:
    given = {"gb10_profile": "dspark-nvfp4-1m-seed", "gb10_evidence": str(folder / "evidence"), "vllm_tp2_directory": str(folder / "node"), **variables}
    return local(folder, "evidence", *arguments, hosts=text, **given)


def test_a_node_that_cannot_be_read_leaves_a_note_and_fails(tmp_path: Path) -> None:
    hosts = LOCAL_PAIR.replace("{{ansible_host: 127.0.0.2}}", "{{ansible_host: 127.0.0.2, ansible_python_interpreter: /none/python3}}")
    done = collect(tmp_path, hosts)
    assert [host for host, _task, _text in done.failures] == ["two"]
    assert "/none/python3" in done.last_message
    note = (tmp_path / "evidence/latest/pair1-rank1-two.txt").read_text(encoding="utf-8")
    assert note == f"No evidence could be read: {done.last_message}\n"
    assert (tmp_path / "evidence/latest/pair1-rank0-one.figures.txt").is_file()


def test_evidence_to_compare_with_that_is_not_there_is_named_before_anything_is_written(tmp_path: Path) -> None:
    done = collect(tmp_path, evidence_compare="before")
    assert done.rc == 2
    sentence = f"evidence_compare is before, but there is no {tmp_path}/evidence/before/pair1-rank0-one.txt: collect it first"
    assert sentence in " ".join(text for _host, _task, text in done.failures)
    assert not (tmp_path / "evidence").exists()
