"""The sentence about a serving group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import group_state


def box(running: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "name": "c", "running": running, "status": "running" if running else "exited", "exit_code": 0 if running else 137,
        "finished_at": "0001-01-01T00:00:00Z" if running else "2026-11-22T20:00:01.5Z", **more,
    }  # fmt: skip


LOST = "rank 1 on lab-2: no container exists"
NOTHING: dict[str, str] = {}
ASKED = {"state": "serving", "release": "r2", "by": "admin@ctl", "at": "T"}


def info(
    *boxes: dict[str, Any], fault: str = "", current: str = "r1", stopped: str = "", watch: str = "", desired: Mapping[str, str] = NOTHING, failed: bool = False
) -> dict[str, Any]:
    state = {"watch": {"state": watch, "fault": {"text": LOST} if watch else {}}, "desired": desired, "outcome": {"verdict": {"passed": not failed}}}
    return {
        "containers": list(boxes), "processes": {"fault": fault}, "current": current, "stopped": stopped, "engine_error": "",
        "agent": {"state": state, "converges": bool(desired)},
    }  # fmt: skip


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
        "down", f"pair1 does not serve: rank 0 on lab-1: the completion: HTTP 500: It failed. {group_state.REMEDY}", False,
    ),
    (
        "busy", [info(box()), info(box())], {"outcome": "busy", "text": "busy: 4 requests running, tokens advance"}, {},
        "busy", "pair1 is busy: 4 requests running, tokens advance.", True,
    ),
    (
        "stopped process", [info(box()), info(box(), fault=STOPPED)], {}, {},
        "down", f"pair1 does not serve: rank 1 on lab-2: {STOPPED}. {group_state.REMEDY}", False,
    ),
    (
        "killed worker", [info(box()), info(box(running=False))], {}, {},
        "down", f"pair1 does not serve: rank 1 on lab-2: the container c exited at 2026-11-22T20:00:01Z with exit code 137. {group_state.REMEDY}", False,
    ),
    ("removed", [info(), info(box())], {}, {}, "down", f"pair1 does not serve: rank 0 on lab-1: no container exists. {group_state.REMEDY}", False),
    (
        "wedged", [info(box()), info(box())], {"outcome": "wedged", "text": "the engine is wedged"}, {},
        "down", f"pair1 does not serve: rank 0 on lab-1: the engine is wedged. {group_state.REMEDY}", False,
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
        "a changed file of the API key", [info(box()), info(box())], {"outcome": "refused", "text": "HTTP 401: Unauthorized", "http_status": 401}, {},
        "unknown", "It is not known whether pair1 serves: HTTP 401: Unauthorized. Clients with the key of the container go on. Run site.yml.",
        False,
    ),
    (
        "starting", [info(box()), info(box())], {"outcome": "dead", "text": "refused", "starting": True}, {"state": "starting", "stage": "load"},
        "starting", "pair1 is starting: the head's boot is at stage load.", True,
    ),
    (
        "recovering", [info(box(), watch="recovering"), info(box())], {}, {},
        "recovering", f"pair1 does not serve: {LOST}. {group_state.PROGRESS}", False,
    ),
    (
        "recovering, at a stage", [info(box(), watch="recovering"), info(box())], {"outcome": "dead", "starting": True}, {"state": "starting"},
        "recovering", f"pair1 does not serve: {LOST}. {group_state.PROGRESS}", False,
    ),
    (
        "killed and watched", [info(box(), watch="serving"), info()], {}, {},
        "recovering", f"pair1 does not serve: rank 1 on lab-2: no container exists. {group_state.PROGRESS}", False,
    ),
    (
        "a start by a person ends a recovery", [info(box(), watch="recovering", desired=ASKED), info(box())], {}, {},
        "starting", "pair1 is starting: release r2 was asked for by admin@ctl at T, phase waiting.", True,
    ),
    (
        "back to the last good release", [info(box(), desired=ASKED, failed=True), info(box())], {}, {},
        "recovering", f"pair1 does not serve: its boot is not judged yet. {group_state.PROGRESS}", False,
    ),
    (
        "watched, and it serves", [info(box(), watch="fault"), info(box())], SERVES, {},
        "serves", "pair1 serves: a completion came back in 0.21 s, release r1.", True,
    ),
    (
        "refused after its boot", [info(box()), info(box())], {"outcome": "dead", "text": "/v1/models: refused", "starting": True}, {"state": "ready"},
        "down", f"pair1 does not serve: rank 0 on lab-1: /v1/models: refused. {group_state.REMEDY}", False,
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
    found = group_state.group_status([{**infos[0], "alive": liveness, "boot_log": log}, *infos[1:]], "pair1", ["lab-1", "lab-2"])
    assert (found["state"], found["sentence"], found["ok"]) == (state, sentence, ok)


def test_requests_a_completion_only_if_it_can_tell_more() -> None:
    hosts = ["lab-1", "lab-2"]
    assert group_state.group_status([info(box()), info(box())], "pair1", hosts)["ask"]
    assert group_state.group_status([info(box()), {"unreachable": True}], "pair1", hosts)["ask"]
    for ranks in ([info(box()), info(box(), fault=STOPPED)], [info(box(running=False)), info(box())], [info(), info()], [{}, info(box())]):
        assert not group_state.group_status(ranks, "pair1", hosts)["ask"]


def test_a_group_that_never_ran_has_no_fault_to_keep_evidence_of() -> None:
    assert group_state.group_status([info(current=""), info(current="")], "pair1", ["a", "b"])["faults"] == []
    assert group_state.group_status([info(box()), info(box(), fault=STOPPED)], "pair1", ["a", "b"])["faults"] == [f"rank 1 on b: {STOPPED}"]


def test_a_node_that_ssh_does_not_reach_has_its_remedy_in_the_sentence() -> None:
    lost = {"unreachable": True, "found": "it does not answer (no route)", "remedy": "check that it is on: `ping -c 3 lab-2`"}
    sentence = group_state.group_status([{**info(box()), "alive": SERVES}, lost], "pair1", ["lab-1", "lab-2"])["sentence"]
    assert sentence.endswith("the node is unreachable. lab-2: it does not answer (no route). Check that it is on: `ping -c 3 lab-2`.")
