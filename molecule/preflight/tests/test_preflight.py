"""The report on the controller has each node's facts, and the node is unchanged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def report() -> dict[str, Any]:
    """What the run wrote."""
    data: dict[str, Any] = json.loads((Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "preflight.json").read_text(encoding="utf-8"))
    return data


def test_the_report_has_every_rank_and_no_error(report: dict[str, Any]) -> None:
    assert report["schema"] == "gb10.cluster/preflight/2"
    assert set(report["facts"]) == set(report["hosts"]) == {"lab-1", "lab-2"}
    assert report["ready"] is True


def test_facts_are_the_nodes_own(host: Any, report: dict[str, Any]) -> None:
    facts = report["facts"][host.check_output("hostname")]
    assert facts["kernel"]["release"] == host.check_output("uname -r")
    assert facts["docker"]["version"] == host.check_output("docker version --format '{{.Server.Version}}'")
    assert sorted(each["name"] for each in facts["containers"]) == sorted(host.check_output("docker ps -a --format '{{.Names}}'").split())


def test_what_a_container_cannot_show_is_skipped_with_its_reason(report: dict[str, Any]) -> None:
    reasons = {entry["id"]: entry["reason"] for entry in report["not_checked"]}
    assert "container" in reasons["kho_leak"]
    assert "container" in reasons["gb10"]
