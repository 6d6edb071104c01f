"""What a running group shows: processes, tokens, power, and the sentence about the group."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._watch import gpu, group, metrics, processes

# --- processes


def table(*rows: tuple[int, int, str, str, str]) -> list[processes.Process]:
    out = []
    for pid, parent, state, comm, command in rows:
        found = processes.parse(pid, f"{pid} ({comm}) {state} {parent} 1 1 0 -1 4194560")
        assert found is not None
        out.append(found._replace(command=command))
    return out


SHIM = (10, 1, "S", "containerd-shim", "containerd-shim")
HEAD = [
    SHIM, (100, 10, "S", "vllm", "/usr/bin/python3 /usr/local/bin/vllm serve m"), (101, 100, "S", "VLLM::EngineCor", "VLLM::EngineCore"),
    (102, 101, "S", "VLLM::Worker_TP", "VLLM::Worker_TP0"), (103, 100, "S", "python3", "python3 -c from multiprocessing.resource_tracker import main"),
]  # fmt: skip


def changed(pid: int, state: str) -> list[processes.Process]:
    return table(*[(row[0], row[1], state, row[3], "" if state == "Z" else row[4]) if row[0] == pid else row for row in HEAD])


def test_reads_a_name_with_parentheses_and_blanks() -> None:
    found = processes.parse(7, "7 (a) b (c) T 3 7 7 0")
    assert found is not None
    assert (found.parent, found.state, found.comm) == (3, "T", "a) b (c")
    assert processes.parse(7, "") is None


def test_finds_the_descendants_of_a_container_only() -> None:
    assert [each.pid for each in processes.tree(table(*HEAD, (200, 10, "T", "sh", "sh")), 100)] == [100, 101, 103, 102]
    assert processes.tree(table(*HEAD), 999) == []


@pytest.mark.parametrize(
    ("pid", "state", "judged", "expected"),
    [
        (0, "", True, ""),
        (102, "T", False, "the engine process is stopped (PID 102, VLLM::Worker_TP0)"),
        (102, "t", False, "the engine process is stopped (PID 102, VLLM::Worker_TP0)"),
        (100, "T", False, "the engine process is stopped (PID 100, vllm)"),
        (101, "Z", False, "the engine process is dead (PID 101, VLLM::EngineCor)"),
        (103, "T", True, ""),
        (103, "Z", True, ""),
    ],
)
def test_names_the_process_that_is_stopped_or_dead(pid: int, state: str, judged: bool, expected: str) -> None:
    assert processes.fault(processes.tree(changed(pid, state), 100), judged) == expected


def test_names_a_parent_whose_engine_is_gone_only_after_its_gate() -> None:
    alone = processes.tree(table(SHIM, HEAD[1], HEAD[4]), 100)
    assert processes.fault(alone, judged=False) == ""
    assert processes.fault(alone, judged=True) == "the engine process is gone, and only its parent runs (PID 100, vllm)"
    ray = processes.tree(table(SHIM, (100, 10, "S", "ray", "ray start --block"), (101, 100, "S", "raylet", "raylet")), 100)
    assert processes.fault(ray, judged=True) == "", "a worker of Ray has no process of vLLM"


# --- metrics

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m {x}"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 3.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 4.0e+02
"""


def test_sums_the_engines_of_a_metrics_page() -> None:
    assert metrics.sample(PAGE) == metrics.Sample(403.0, 3, 7)
    assert metrics.sample("<html>") is None
    assert metrics.sample("vllm:num_requests_running 1.0\n") is None


LIMITS = metrics.Limits(answer=10, wedge=20, total=120)


def readings(*rows: tuple[float, float, int] | tuple[float, None]) -> list[tuple[float, metrics.Sample | None]]:
    return [(row[0], None if row[1] is None else metrics.Sample(row[1], row[2], 0)) for row in rows]


@pytest.mark.parametrize(
    ("seen", "idle", "expected"),
    [
        (readings((0, 400, 4), (5, 480, 5)), None, ""),
        (readings((0, 400, 4), (10, 480, 5)), None, "busy"),
        # Only the check's own request runs on a slow server: the completion is about to come.
        (readings((0, 400, 0), (10, 404, 1)), None, ""),
        (readings((0, 400, 0), (119, 404, 1), (120, 405, 1)), None, "busy"),
        (readings((0, 400, 4), (10, 400, 4)), None, ""),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), None, "frozen"),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), True, "wedged"),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), False, "computing"),
        # A worker that was stopped while idle: the engine never reports the request.
        (readings((0, 400, 0), (20, 400, 0)), True, "wedged"),
        (readings((0, 400, 4), (10, 480, 5), (29, 480, 5)), True, "busy"),
        (readings((0, None), (10, None)), None, ""),
        (readings((0, None), (20, None)), True, "silent"),
    ],
)
def test_tells_busy_frozen_and_wedged(seen: list[tuple[float, metrics.Sample | None]], idle: bool | None, expected: str) -> None:
    assert metrics.decide(seen, LIMITS, idle) == expected


# --- power: figures of two H200 and of owners of GB10 (W)


@pytest.mark.parametrize(
    ("readings", "idle", "expected"),
    [
        ([120.0, 122.0], 119.4, True), ([165.0], 119.4, False), ([129.0], 127.0, True), ([120.0, 165.0], 119.4, False), ([16.0], 12.0, True),
        ([46.0], 12.0, False), ([120.0], None, None), ([], 119.4, None),
    ],
)  # fmt: skip
def test_idle_power_is_measured_against_the_same_gpu(readings: list[float], idle: float | None, expected: bool | None) -> None:
    assert gpu.at_idle(readings, idle) is expected


def test_reads_the_output_of_nvidia_smi() -> None:
    assert gpu.power("119.41\n82.61\n") == 119.41
    assert gpu.power("[N/A]\n") is None
    assert gpu.power("No devices were found\n") is None


# --- the group


def box(running: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "name": "c", "running": running, "status": "running" if running else "exited", "exit_code": 0 if running else 137,
        "finished_at": "0001-01-01T00:00:00Z" if running else "2026-11-22T20:00:01.5Z", **more,
    }  # fmt: skip


def info(*boxes: dict[str, Any], fault: str = "", current: str = "r1", stopped: str = "") -> dict[str, Any]:
    return {"containers": list(boxes), "processes": {"fault": fault}, "current": current, "stopped": stopped, "engine_error": ""}


SERVES = {"outcome": "serves", "text": "a completion came back in 0.21 s"}
STOPPED = "the engine process is stopped (PID 123, VLLM::Worker_TP1)"
GROUPS: list[tuple[str, list[dict[str, Any]], dict[str, Any], dict[str, Any], str, str, bool]] = [
    ("serves", [info(box()), info(box())], SERVES, {}, "serves", "pair1 serves: a completion came back in 0.21 s, release r1.", True),
    (
        "a stale link", [info(box(labels={"gb10.cluster.release": "r2"})), info(box())], SERVES, {},
        "serves", "pair1 serves: a completion came back in 0.21 s, release r2.", True,
    ),
    (
        "an API with a sentence of its own", [info(box()), info(box())], {"outcome": "dead", "text": "the completion: HTTP 500: It failed."}, {},
        "down", f"pair1 does not serve: rank 0 on lab-1: the completion: HTTP 500: It failed. {group.REMEDY}", False,
    ),
    (
        "busy", [info(box()), info(box())], {"outcome": "busy", "text": "busy: 4 requests running, tokens advance"}, {},
        "busy", "pair1 is busy: 4 requests running, tokens advance.", True,
    ),
    (
        "stopped process", [info(box()), info(box(), fault=STOPPED)], {}, {},
        "down", f"pair1 does not serve: rank 1 on lab-2: {STOPPED}. {group.REMEDY}", False,
    ),
    (
        "killed worker", [info(box()), info(box(running=False))], {}, {},
        "down", f"pair1 does not serve: rank 1 on lab-2: the container c exited at 2026-11-22T20:00:01Z with exit code 137. {group.REMEDY}", False,
    ),
    ("removed", [info(), info(box())], {}, {}, "down", f"pair1 does not serve: rank 0 on lab-1: no container exists. {group.REMEDY}", False),
    (
        "wedged", [info(box()), info(box())], {"outcome": "wedged", "text": "the engine is wedged"}, {},
        "down", f"pair1 does not serve: rank 0 on lab-1: the engine is wedged. {group.REMEDY}", False,
    ),
    (
        "frozen", [info(box()), info(box())], {"outcome": "frozen", "text": "no completion came back within 20 s"}, {},
        "unserved", "pair1 does not answer: no completion came back within 20 s. Nothing shows that a restart helps, so site.yml does not restart it.", False,
    ),
    (
        "another API key", [info(box()), info(box())], {"outcome": "refused", "text": "/v1/models: HTTP 401: Unauthorized"}, {}, "unserved",
        "pair1 refuses the request of this check: /v1/models: HTTP 401: Unauthorized. Nothing shows that a restart helps, so site.yml does not restart it.",
        False,
    ),
    (
        "starting", [info(box()), info(box())], {"outcome": "dead", "text": "refused", "starting": True}, {"state": "starting", "stage": "load"},
        "starting", "pair1 is starting: the head's boot is at stage load.", True,
    ),
    (
        "refused after its boot", [info(box()), info(box())], {"outcome": "dead", "text": "/v1/models: refused", "starting": True}, {"state": "ready"},
        "down", f"pair1 does not serve: rank 0 on lab-1: /v1/models: refused. {group.REMEDY}", False,
    ),
    (
        "stopped on request", [info(stopped="T"), info(stopped="T")], {}, {},
        "stopped", "pair1 is stopped on request since T. Run site.yml to start it.", True,
    ),
    ("never deployed", [info(current=""), info(current="")], {}, {}, "absent", "pair1 has never served: no release is current. Run site.yml.", True),
    (
        "worker unreachable, serves", [info(box()), {"unreachable": True, "msg": "timed out"}], SERVES, {},
        "serves", "pair1 serves: a completion came back in 0.21 s, release r1. Rank 1 on lab-2 is not known: the node is unreachable.", True,
    ),
    (
        "head unreachable", [{"unreachable": True}, info(box())], {}, {},
        "unknown", "It is not known whether pair1 serves. Rank 0 on lab-1 is not known: the node is unreachable.", False,
    ),
    (
        "Docker stopped on the head", [info() | {"engine_error": "the Docker Engine does not answer."}, info(box())], {}, {},
        "unknown", "It is not known whether pair1 serves. Rank 0 on lab-1 is not known: the Docker Engine does not answer.", False,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("infos", "liveness", "log", "state", "sentence", "ok"), [row[1:] for row in GROUPS], ids=[row[0] for row in GROUPS])
def test_one_sentence_for_a_group(infos: list[dict[str, Any]], liveness: dict[str, Any], log: dict[str, Any], state: str, sentence: str, ok: bool) -> None:
    found = group.group_status(infos, "pair1", ["lab-1", "lab-2"], liveness, log)
    assert (found["state"], found["sentence"], found["ok"]) == (state, sentence, ok)


def test_requests_a_completion_only_if_it_can_tell_more() -> None:
    hosts = ["lab-1", "lab-2"]
    assert group.group_status([info(box()), info(box())], "pair1", hosts)["ask"]
    assert group.group_status([info(box()), {"unreachable": True}], "pair1", hosts)["ask"]
    for ranks in ([info(box()), info(box(), fault=STOPPED)], [info(box(running=False)), info(box())], [info(), info()], [{}, info(box())]):
        assert not group.group_status(ranks, "pair1", hosts)["ask"]


def test_a_group_that_never_ran_has_no_fault_to_keep_evidence_of() -> None:
    assert group.group_status([info(current=""), info(current="")], "pair1", ["a", "b"])["faults"] == []
    assert group.group_status([info(box()), info(box(), fault=STOPPED)], "pair1", ["a", "b"])["faults"] == [f"rank 1 on b: {STOPPED}"]
