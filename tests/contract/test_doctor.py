"""What doctor.yml reports and how it ends. Both hosts are this machine; it may have a Docker Engine or not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL_KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._checks.judge import CHECKS, IDS
from contract.test_preflight import IGNORE
from playbook import LOCAL_PAIR, REPO, Run
from warm_playbook import local

pytestmark = pytest.mark.slow

SILENT = "{{ansible_host: 127.0.0.2, ansible_connection: ssh, ansible_port: 1, ansible_user: nvidia}}"


def doctor(folder: Path, *arguments: str, hosts: str = LOCAL_PAIR, **variables: object) -> Run:
    given = {
        "gb10_profile": "dspark-nvfp4-1m-seed",
        "vllm_tp2_directory": str(folder / "node"),
        "preflight_ignore": [*IGNORE.split(), "api_open", "fabric_forwarding"],
        **variables,
    }
    return local(folder, "doctor", *arguments, hosts=hosts, **given)


def test_a_pair_with_nothing_installed_and_a_silent_node_is_reported_in_check_mode_too(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--check", hosts=LOCAL_PAIR.replace("{{ansible_host: 127.0.0.2}}", SILENT), output="json")
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
