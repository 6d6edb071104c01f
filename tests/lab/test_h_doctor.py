"""doctor.yml on a pair that serves, on one with a stopped engine and no agent, on half a pair, and after a boot that failed. It changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from container_lab import Lab
from playbook import Run

# The agent writes its own records at any time.


def report(run: Run) -> dict[str, Any]:
    """Return what -e output=json has printed."""
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


def page(run: Run) -> list[str]:
    """Return the page that was printed."""
    (lines,) = [each["res"]["lines"] for each in run._results("runner_on_ok") if "verdict" in (each.get("res") or {}) and "report" in each["res"]]
    return [str(line) for line in lines]


@pytest.fixture
def stopped(served: Lab) -> Iterator[Lab]:
    """The pair with a stopped engine process on the worker, and no agent that notices it."""
    served.on(1, "systemctl stop gb10-agent")
    served.on(2, "pkill -STOP -f '[V]LLM::Worker'")
    try:
        yield served
    finally:
        served.on(2, "pkill -CONT -f '[V]LLM::Worker'")
        served.on(1, "systemctl start gb10-agent")


def written(lab: Lab) -> str:
    """Return the page that report.yml writes of the lab as it is now."""
    run = lab.play("playbooks/report.yml")
    assert (run.rc, run.changed) == (0, set()), run.stdout[-4000:]
    return (lab.folder / "receipts/pair1/report.html").read_text(encoding="utf-8")


def test_a_stopped_engine_and_a_stopped_agent_are_named_with_their_commands(stopped: Lab) -> None:
    run = stopped.play("playbooks/doctor.yml", variables={"output": "json"})
    assert run.rc == 2, run.stdout[-4000:]
    assert run.changed == set()
    assert run.seconds < 90, "a completion to a stopped rank takes minutes"
    found = {each["id"]: each for each in report(run)["findings"]}
    assert "rank 1 on lab-2: the engine process is stopped (PID " in found["engine_down"]["found"]
    assert found["engine_down"]["command"].startswith("ansible-playbook ")
    assert found["agent_down"]["hosts"] == ["lab-1"]
    assert found["agent_down"]["command"].startswith("ssh ")
    assert run.last_message.startswith("pair1: ")
    assert "pair1 does not serve: " in written(stopped)


def test_half_a_pair_is_judged_and_the_other_node_is_a_finding(served: Lab, tmp_path: Path) -> None:
    shutil.copytree(served.inventory, tmp_path / "half")
    hosts = tmp_path / "half/hosts.yml"
    text, line = hosts.read_text(encoding="utf-8"), "          ansible_host: 172.30.70.12\n"
    assert line in text
    hosts.write_text(text.replace(line, f"{line}          ansible_port: 1\n"), encoding="utf-8")
    # The copy finds the key of the lab by its absolute path.
    run = served.play("playbooks/doctor.yml", inventory=tmp_path / "half", variables={"lab_dir": str(served.inventory.parents[1] / ".lab")})
    assert run.rc == 2, run.stdout[-4000:]
    lines = page(run)
    assert any(line.startswith("error reachable (lab-2): ") for line in lines), lines
    assert any("lab-2 is not known: the node is unreachable" in line for line in lines), lines
    assert (run.changed, len(lines) <= 60) == (set(), True)


@pytest.mark.long
def test_a_boot_that_failed_is_named_with_its_class_and_where_it_is_kept(served: Lab) -> None:
    bad = {"vllm_tp2_extra_args": {"max-model-len": 1000000000}, "vllm_tp2_rollback": False, "vllm_tp2_plan": "report"}
    try:
        assert served.play("site.yml", "--tags", "vllm_tp2", variables=bad).rc != 0
        run = served.play("playbooks/doctor.yml", variables={**bad, "output": "json"})
        assert (run.rc, run.changed) == (2, set()), run.stdout[-4000:]
        found = {each["id"]: each for each in report(run)["findings"]}
        assert {"engine_down", "boot_failed"} <= set(found)
        assert found["boot_failed"]["found"].startswith("pair1: ")
        assert found["boot_failed"]["command"].endswith("sudo gb10 why")
        failed = written(served)
        assert "pair1 does not serve: " in failed
        assert found["boot_failed"]["found"].removeprefix("pair1: ").split(":")[0] in failed
    finally:
        assert served.play("site.yml", "--tags", "vllm_tp2").rc == 0


@pytest.mark.long
def test_a_silent_node_does_not_hang_the_run(served: Lab) -> None:
    """Open connections of SSH get no packet either, as those of a frozen node."""
    rule = "INPUT -p tcp --dport 22 -j DROP"
    served.on(2, f"iptables -I {rule}")
    try:
        run = served.play("playbooks/doctor.yml", timeout=240)
    finally:
        served.on(2, f"iptables -D {rule}")
    assert run.rc == 2, run.stdout[-4000:]
    assert any(line.startswith("error reachable (lab-2)") for line in page(run))
