"""The action plugin: what a rank's instance returns, prints and writes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import preflight_report as plugin

GROUP: dict[str, Any] = {"name": "pair1", "size": 2, "rank": 0, "hosts": ["spark-1", "spark-2"]}


def facts(**more: Any) -> dict[str, Any]:
    """What preflight_info returns on a small healthy machine that is no GB10."""
    return {
        "time": 100.0, "clock": {"before": 99.0, "after": 101.0}, "python": "3.12.3", "container": "docker", "changed": False, "invocation": {"x": 1},
        "machine": {"arch": "aarch64", "product": "", "vendor": "", "gb10": False, "evidence": []},
        "kernel": {"release": "6.17.0-1032-nvidia", "cmdline": "", "reboot_required": False, "reboot_packages": []},
        "dgx": {"present": False, "name": "", "base": "", "ota": ""}, "broken_packages": [], "ota_check": {}, "firmware": {},
        "driver": {"loaded": "580.173.02", "on_disk": "", "libraries": [], "gpus": ["NVIDIA GB10"], "error": "", "present": True},
        "memory": {"problems": []}, "fabric": {"ports": 2, "rails": [], "management": {"interface": "", "reason": "", "wireless": False}, "problems": []},
        "docker": {"version": "28", "driver": "overlay2", "image_store": "graphdriver", "root": "/d", "error": "", "installed": True, "image_present": True},
        "containers": [], "disks": [{"path": "/d", "device": "1:1", "free_gib": 90.0, "total_gib": 100.0, "read_only": False}],
        "model": {"path": "", "present_gib": 0.0}, "listening": [], "memlock": {"known": False, "bytes": None, "may_raise": True}, "kernel_log": [],
    } | more  # fmt: skip


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is displayed."""
    lines: list[str] = []
    monkeypatch.setattr(Display, "display", lambda _self, text, *_args, **_more: lines.append(str(text)))
    monkeypatch.setattr(ActionBase, "run", lambda *_args, **_more: {})
    return lines


def call(host: str, nodes: dict[str, Any], limit: list[str] | None = None, **options: Any) -> dict[str, Any]:
    """One instance, its arguments as given."""
    defaults = {name: spec.get("default") for name, spec in plugin._SPEC.items()} | {"group": GROUP, "register": "node"}
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    action.validate_argument_spec = lambda **_more: (None, defaults | options)
    hostvars = {name: ({"node": value} if value is not None else {}) for name, value in nodes.items()}
    return action.run(task_vars={"inventory_hostname": host, "hostvars": hostvars, "ansible_play_hosts_all": limit or list(GROUP["hosts"])})


def test_all_findings_of_all_hosts_in_one_go(screen: list[str], tmp_path: Path) -> None:
    nodes = {
        "spark-1": facts(listening=[{"port": 8888, "address": "*", "pid": 7, "process": "nginx", "container": ""}], time=500.0),
        "spark-2": {"failed": True, "msg": "Missing sudo password"},
    }
    report = tmp_path / "deep" / "preflight.json"
    head = call("spark-1", nodes, report=str(report), head_ports={"8888": "the API"})
    assert head["failed"] is True
    assert head["msg"].splitlines()[0] == "pair1 is not ready, 2 errors (sudo, ports_free); nothing was changed."
    assert "error sudo (spark-2): Its facts could not be read: Missing sudo password." in head["msg"]
    assert "port 8888 (the API) is taken by nginx (pid 7)" in head["msg"].replace("Port", "port")
    assert any(line.startswith("warning clock_skew (spark-1): Its clock is at least 399 s ahead") for line in screen)
    assert not any(line.startswith("error") for line in screen)
    written = json.loads(report.read_text())
    assert written["schema"] == "gb10.cluster/preflight/1"
    assert written["ready"] is False
    assert [entry["id"] for entry in written["findings"]] == ["sudo", "ports_free", "clock_skew"]
    assert "invocation" not in written["facts"]["spark-1"]
    assert report.stat().st_mode & 0o777 == 0o644


def test_the_other_ranks_fail_as_well_and_point_at_the_first(screen: list[str], tmp_path: Path) -> None:
    nodes = {"spark-1": facts(), "spark-2": {"unreachable": True, "msg": "timed out"}}
    worker = call("spark-2", nodes, report=str(tmp_path / "p.json"))
    assert (worker["failed"], worker["changed"]) == (True, False)
    assert worker["msg"] == "pair1 is not ready, 1 error (reachable); nothing was changed. They are listed at spark-1."
    assert screen == []
    assert not (tmp_path / "p.json").exists()


def test_nothing_wrong_is_said_in_one_line(screen: list[str]) -> None:
    head = call("spark-1", {"spark-1": facts(), "spark-2": facts()})
    assert "failed" not in head
    assert head["msg"] == "pair1: no error, 0 findings."
    assert screen[0] == "\npreflight of pair1: 0 errors, 0 warnings, 0 for information"
    assert "skipped (spark-1, spark-2): gb10, arch: a container (docker) shows the host's hardware or none." in screen


def test_a_limited_run_judges_who_is_there(screen: list[str]) -> None:
    worker = call("spark-2", {"spark-1": None, "spark-2": facts()}, limit=["spark-2"])
    assert "failed" not in worker
    assert "skipped (spark-1): all checks: not in this run (--limit)." in screen


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ignore": ["clock_skw"]}, "preflight_ignore has 'clock_skw', which is no check; did you mean clock_skew?."),
        ({"known_versions": [{"component": "driver"}]}, "preflight_known_versions[0] has no severity, matters, remedy."),
        ({"known_versions": [{"component": "gpu", "severity": "error", "matters": "x", "remedy": "y"}]},
         "preflight_known_versions[0].component is 'gpu'; known are driver, kernel, firmware_cx7."),
        ({"known_versions": [{"component": "driver", "severity": "bad", "matters": "x", "remedy": "y"}]},
         "preflight_known_versions[0].severity is 'bad'; known are error, warning, info."),
        ({"known_versions": [{"component": "driver", "severity": "info", "matters": "x", "remedy": "y"}]},
         "preflight_known_versions[0] has neither match nor below with a version in it."),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_refused_before_anything_else(screen: list[str], options: dict[str, Any], sentence: str) -> None:
    result = call("spark-1", {"spark-1": facts(), "spark-2": facts()}, **options)
    assert result["failed"] is True
    assert result["msg"] == sentence
    assert screen == []


def test_a_version_of_the_users_own_counts(screen: list[str]) -> None:
    own = [{"component": "driver", "match": "580.173", "severity": "error", "matters": "it hurts here", "remedy": "take another"}]
    head = call("spark-1", {"spark-1": facts(), "spark-2": facts()}, known_versions=own)
    assert "error known_bad_driver (spark-1, spark-2): The NVIDIA driver is 580.173.02. Why it matters: it hurts here." in head["msg"]


def test_a_report_that_cannot_be_written_is_one_sentence(screen: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    head = call("spark-1", {"spark-1": facts(), "spark-2": facts()}, report=str(tmp_path / "file" / "p.json"))
    assert head["failed"] is True
    assert head["msg"].startswith(f"preflight_report is {tmp_path}/file/p.json, which cannot be written on the controller (")
