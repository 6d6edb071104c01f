"""What a report is made of: results of this run, and files of earlier runs that may be damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_sources

HOSTS = ["spark-1", "spark-2"]
RECORDS = {
    "read_at": "2026-11-25T08:00:00Z", "receipts": [], "events": [{"n": 1, "text": "VLLM_API_KEY=sk-0123456789abcdef0123"}],
    "memory": {"recent": "5 1 2 3", "day": "", "source": "agent"}, "bandwidth": {}, "changed": False,
}  # fmt: skip
FABRIC = {
    "rails": [{"netdev": "enp1s0f0np0", "hca": None, "carrier": True, "gids": []}], "problems": [{"id": "no_rdma", "message": "m", "remedy": None}], "env": {},
}  # fmt: skip
INFO = {"containers": [{"name": "gb10-pair1-rank0", "running": True}], "processes": {"fault": ""}, "memory": {"available_kib": 10 << 20}}
GOOD = {"fabric": FABRIC, "info": {**INFO, "records": RECORDS}}
LOST = {"fabric": {"unreachable": True}, "info": {"unreachable": True, "msg": "ssh: no route\nmore"}}
RECEIPT = {
    "release": "4f0c", "profile": "p", "time": "2026-11-25T07:00:00Z", "passed": True, "seconds": 50.0, "checks": [{"name": "x"}],
    "ranks": [{"rank": 0, "facts": {"a": 1}}],
}  # fmt: skip
ROW: dict[str, Any] = dict.fromkeys(("depth", "concurrency", "requests", "output_tokens", "completed", "preemptions"), 1) | {"prefix": "cold", "varied": False}


def put(folder: Path, name: str, content: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_node_that_is_off_is_shown_as_the_last_report_read_it(tmp_path: Path) -> None:
    first = report_sources.nodes_of(HOSTS, {"spark-1": GOOD, "spark-2": GOOD}, tmp_path)
    assert [first[host]["problem"] for host in HOSTS] == ["", ""]
    assert first["spark-1"]["state"] == "its container runs, 10.0 GiB of memory available"
    later = report_sources.nodes_of(HOSTS, {"spark-1": GOOD, "spark-2": LOST}, tmp_path)
    assert later["spark-2"] == {**first["spark-2"], "problem": "the node is unreachable"}
    again = report_sources.nodes_of(HOSTS, {}, tmp_path)
    assert [again[host]["problem"] for host in HOSTS] == ["it is not in this run"] * 2
    assert again["spark-1"]["memory"] == RECORDS["memory"]


def test_what_is_kept_of_nodes_is_for_its_owner_and_without_secrets(tmp_path: Path) -> None:
    report_sources.nodes_of(HOSTS, {"spark-1": GOOD}, tmp_path)
    path = tmp_path / report_sources.CACHE
    assert path.stat().st_mode & 0o777 == 0o600
    assert "sk-0123456789abcdef0123" not in path.read_text(encoding="utf-8")


def test_run_that_reads_no_node_writes_nothing(tmp_path: Path) -> None:
    refused = {"info": {"failed": True, "msg": "sudo: a password is required.\nx"}}
    found = report_sources.nodes_of(HOSTS, {"spark-1": LOST, "spark-2": refused}, tmp_path / "new")
    assert [found[host] for host in HOSTS] == [{"problem": "the node is unreachable"}, {"problem": "sudo: a password is required"}]
    assert not (tmp_path / "new").exists()


def test_rails_that_could_not_be_read_are_left_out(tmp_path: Path) -> None:
    failed = {**GOOD, "fabric": {"failed": False, "msg": "No PyYAML"}}
    assert report_sources.nodes_of(["spark-1"], {"spark-1": failed}, tmp_path)["spark-1"]["fabric"] == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_damaged_record_of_an_earlier_report_counts_as_missing(tmp_path: Path, text: str) -> None:
    put(tmp_path, report_sources.CACHE, text)
    assert report_sources.nodes_of(HOSTS, {}, tmp_path)["spark-1"] == {"problem": "it is not in this run"}


def test_receipts_are_read_by_their_name_without_damaged_ones(tmp_path: Path) -> None:
    put(tmp_path, "20261125T070000Z-4f0c-passed.json", RECEIPT)
    put(tmp_path, "last-good.json", RECEIPT)
    put(tmp_path, report_sources.CACHE, {})
    for number, content in enumerate(("", "{", [])):
        put(tmp_path, f"2026112{number}-4f0c-failed.json", content)
    found = report_sources.receipts_in(tmp_path)
    assert found == [{"release": "4f0c", "profile": "p", "time": "2026-11-25T07:00:00Z", "passed": True, "seconds": 50.0, "ranks": [{"rank": 0}], "models": []}]
    assert report_sources.receipts_in(tmp_path / "none") == []


def test_last_readable_bench_of_the_group_counts(tmp_path: Path) -> None:
    put(tmp_path, "pair1-20261124T110000Z.json", {"group": "pair1", "release": "4f0c", "rows": [ROW]})
    put(tmp_path, "pair1-20261125T110000Z.json", "{")
    put(tmp_path, "pair12-20261126T110000Z.json", {"rows": [ROW]})
    found = report_sources.bench_in(tmp_path, "pair1")
    assert (found["at"], found["release"]) == ("2026-11-24 11:00", "4f0c")
    assert report_sources.bench_in(tmp_path, "pair2") == {}
