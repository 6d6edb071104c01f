"""The steps preflight and doctor of the action serving_plan: what the instance of a rank returns, prints and writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action import serving_plan as plugin
from ansible_collections.gb10.cluster.plugins.plugin_utils import rank_checks, shown
from unit.fixtures import node_facts

GROUP: dict[str, Any] = {"name": "pair1", "size": 2, "rank": 0, "hosts": ["spark-1", "spark-2"]}


def facts(**more: Any) -> dict[str, Any]:
    """Facts of a healthy container on a machine that is not a GB10."""
    machine = {"arch": "aarch64", "product": "", "gb10": False, "evidence": []}
    return node_facts.facts(machine=machine, container="docker", **more)


def call(host: str, nodes: dict[str, Any], limit: list[str] | None = None, step: str = "preflight", **options: Any) -> dict[str, Any]:
    """One instance, its arguments as given."""
    needs = {name: options.pop(name, spec["default"]) for name, spec in rank_checks.NEEDS.items()}
    checks = {name: spec.get("default") for name, spec in rank_checks.SPEC.items()} | {"needs": needs} | options
    given = dict.fromkeys(("profile", "infos", "labels")) | {"step": step, "group": GROUP, "enforce": True, "read": [], "checks": checks}
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._task, action._loader = SimpleNamespace(check_mode=False), None
    action.validate_argument_spec = lambda **_more: (None, given)
    hostvars = {name: ({rank_checks.FACTS: value} if value is not None else {}) for name, value in nodes.items()}
    return action.run(task_vars={"inventory_hostname": host, "hostvars": hostvars, "ansible_play_hosts_all": limit or list(GROUP["hosts"])})


def test_the_page_of_the_doctor_names_the_node_that_is_lost_and_never_fails(screen: list[str]) -> None:
    nodes = {"spark-1": facts(), "spark-2": {"unreachable": True, "msg": "spark-2: sudo", "access": "sudo asks for a password (Missing sudo password)"}}
    found = call("spark-1", nodes, step="doctor", bandwidth_not="check mode measures nothing")
    assert (found["changed"], "failed" in found, screen) == (False, False, [])
    lost = next(each for each in found["report"]["findings"] if each["hosts"] == ["spark-2"])
    assert (lost["id"], lost["found"]) == ("sudo", "its facts could not be read: sudo asks for a password (Missing sudo password)")
    assert "Rank 1 on spark-2 is not known: the node is unreachable." in found["report"]["sentence"]
    assert found["verdict"] == found["lines"][0]
    assert {"area": "fabric", "hosts": GROUP["hosts"], "reason": "bandwidth test: check mode measures nothing"} in found["report"]["not_checked"]


def test_reports_the_findings_of_all_hosts(screen: list[str], tmp_path: Path) -> None:
    nodes = {
        "spark-1": facts(listening=[{"port": 8888, "address": "*", "pid": 7, "process": "nginx", "container": ""}], time=500.0),
        "spark-2": {"failed": True, "msg": "Missing sudo password"},
    }
    report = tmp_path / "deep" / "preflight.json"
    head = call("spark-1", nodes, file=str(report), head_ports={"8888": "the API"})
    assert head["failed"] is True
    assert head["msg"].splitlines()[0] == "pair1 is not ready, 2 errors (sudo, ports_free); nothing was changed."
    assert "error sudo (spark-2)" in head["msg"]
    assert "error ports_free (spark-1)" in head["msg"]
    assert [line.partition(":")[0] for line in "\n".join(screen).splitlines() if line.startswith(("error", "warning"))] == ["warning clock_skew (spark-1)"]
    written = json.loads(report.read_text())
    assert written["schema"] == "gb10.cluster/preflight/2"
    assert written["ready"] is False
    assert [entry["id"] for entry in written["findings"]] == ["sudo", "ports_free", "clock_skew"]
    assert "invocation" not in written["facts"]["spark-1"]
    assert report.stat().st_mode & 0o777 == 0o600


def test_the_other_ranks_fail_with_the_same_list(screen: list[str], tmp_path: Path) -> None:
    nodes = {"spark-1": facts(), "spark-2": {"unreachable": True, "msg": "timed out"}}
    worker = call("spark-2", nodes, file=str(tmp_path / "p.json"))
    assert (worker["failed"], worker["changed"]) == (True, False)
    assert "error reachable (spark-2): It cannot be reached" in worker["msg"]
    assert screen == []
    assert not (tmp_path / "p.json").exists()


def test_a_pair_without_findings_passes(screen: list[str]) -> None:
    head = call("spark-1", {"spark-1": facts(), "spark-2": facts()})
    assert (head.get("failed", False), head["findings"]) == (False, [])
    first, *lines = "\n".join(screen).splitlines()
    assert first == "preflight of pair1: 0 errors, 0 warnings, 0 for information"
    assert [line for line in lines if line.startswith("skipped")] == [lines[-1]]
    assert re.fullmatch(r"skipped: .* reasons \(-e output=json prints them\)", lines[-1])


def test_a_limited_run_checks_the_hosts_in_it() -> None:
    worker = call("spark-2", {"spark-1": None, "spark-2": facts()}, limit=["spark-2"])
    assert "failed" not in worker
    assert {each["reason"] for each in worker["not_checked"] if each["hosts"] == ["spark-1"]} == {"not in this run (--limit)"}


def test_checks_the_known_versions_of_the_user() -> None:
    own = [{"component": "driver", "match": "580.173", "severity": "error", "matters": "it hurts here", "remedy": "take another"}]
    head = call("spark-1", {"spark-1": facts(), "spark-2": facts()}, known_versions=own)
    assert "error known_bad_driver (spark-1, spark-2)" in head["msg"]
    assert "Why it matters: it hurts here." in head["msg"]
    without = call("spark-1", {"spark-1": facts(), "spark-2": facts()}, known_versions=[{**own[0], "match": ""}])
    assert "known_bad_driver" not in without["msg"], "an entry without a version matches nothing"


def test_a_report_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    head = call("spark-1", {"spark-1": facts(), "spark-2": facts()}, file=str(tmp_path / "file" / "p.json"))
    assert head["failed"] is True
    assert head["msg"].startswith(f"preflight_report is {tmp_path}/file/p.json, which cannot be written on the controller (")


def test_prints_one_document_with_output_json(screen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "load_extra_vars", lambda _loader: {"output": "json"})
    call("spark-1", {"spark-1": facts(time=500.0), "spark-2": facts()})
    (document,) = map(json.loads, screen)
    assert (document["schema"], document["group"], document["ready"]) == ("gb10.cluster/preflight/2", "pair1", True)
    assert [entry["id"] for entry in document["findings"]] == ["clock_skew"]
    assert "facts" not in document


def test_a_node_that_ssh_does_not_reach_has_its_own_remedy() -> None:
    lost = {"unreachable": True, "msg": "spark-2: it does not answer (no route). Check it.", "found": "it does not answer (no route)", "remedy": "check it"}
    head = call("spark-1", {"spark-1": facts(), "spark-2": lost})
    (finding,) = (each for each in head["findings"] if each["id"] == "reachable")
    assert (finding["found"], finding["remedy"]) == ("it cannot be reached: it does not answer (no route)", "check it")
