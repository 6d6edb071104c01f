"""The faults of ranks that are expected to serve."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import Fault, View, faults


def container(release: str = "new", running: bool = True, **more: Any) -> dict[str, Any]:
    state = {"name": "gb10-pair1-rank1", "running": running, "status": "running" if running else "exited", "exit_code": 137, "oom_killed": False}
    return {**state, "labels": {"gb10.cluster.release": release}, **more}


def view(number: int = 1, lost: str = "", restarted: str = "", **sample: Any) -> View:
    return View(number, ("one", "two")[number], {"containers": [container()], "engine_error": "", "fault": "", "rails": [], **sample}, lost, restarted)


RAIL = {"address": "192.168.200.12", "interface": "enp1s0f0np0", "up": True, "mtu": 9000}
STOPPED = "the engine process is stopped (PID 7, VLLM::Worker_TP1)"
CASES: dict[str, tuple[View, str, str]] = {
    "serves": (view(rails=[RAIL]), "", ""),
    "lost": (view(lost="Connection refused."), "node_lost", "rank 1 on two does not answer (Connection refused)"),
    "no engine": (view(engine_error="The Docker Engine does not answer."), "docker", "rank 1 on two: The Docker Engine does not answer"),
    "no link": (view(rails=[{**RAIL, "up": False}]), "fabric", "rank 1 on two: the rail enp1s0f0np0 has no link"),
    "no address": (view(rails=[{**RAIL, "interface": ""}]), "fabric", "rank 1 on two: no interface has the rail address 192.168.200.12"),
    "exited": (view(containers=[container(running=False)]), "rank_dead", "rank 1 on two: the container gb10-pair1-rank1 exited with code 137"),
    "absent": (view(containers=[]), "rank_dead", "rank 1 on two: the container does not exist"),
    "another release": (view(containers=[container("old")]), "rank_dead", "rank 1 on two: the container does not exist"),
    "rebooted": (view(containers=[], restarted="reboot"), "reboot", "rank 1 on two: the container does not exist"),
    "no memory": (view(containers=[container(running=False)], memory_stop="1.0 GiB of memory were available"), "memory", "rank 1 on two: 1.0 GiB of memory"),
    "ends for lack of memory": (view(memory_stop="1.0 GiB of memory were available"), "memory", "rank 1 on two: 1.0 GiB of memory"),
    "dead child": (view(fault="the engine process is dead (PID 7, VLLM::Worker_TP1)"), "rank_dead", "rank 1 on two: the engine process is dead"),
    "stopped": (view(fault=STOPPED, fault_seconds=10.0), "rank_stopped", f"rank 1 on two: {STOPPED}"),
    "paused": (view(fault="the container gb10-pair1-rank1 is paused", fault_seconds=30.0), "rank_stopped", "rank 1 on two: the container"),
    "stopped for a moment": (view(fault=STOPPED, fault_seconds=3.0), "", ""),
    "not read yet": (View(1, "two", {}), "", ""),
}


@pytest.mark.parametrize(("found", "cause", "text"), CASES.values(), ids=CASES)
def test_fault_of_a_rank(found: View, cause: str, text: str) -> None:
    seen = faults([view(0), found], "new", 10.0)
    assert [fault.cause for fault in seen] == ([cause] if cause else [])
    assert all(fault.text.startswith(text) and fault.rank == 1 for fault in seen)


def test_what_has_to_pass_comes_before_what_needs_a_restart() -> None:
    seen = faults([view(0, containers=[]), view(1, lost="timeout")], "new", 10.0)
    assert [(fault.cause, fault.waits) for fault in seen] == [("node_lost", True), ("rank_dead", False)]
    assert not Fault("wedge", "").waits


def test_a_lack_of_memory_comes_before_the_rank_that_ends_with_its_peer() -> None:
    seen = faults([view(0, containers=[]), view(1, memory_stop="1.0 GiB of memory were available")], "new", 10.0)
    assert [fault.cause for fault in seen] == ["memory", "rank_dead"]
