"""The sentence about a serving group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import group_state
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import refusal


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


# --- Whose the nodes of a serving group are.

IDS = ("a" * 32, "b" * 32)


def node(number: int, owners: dict[str, str] | None = None, others: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"agent": {"head_id": IDS[number], "owners": owners or {}}, "others": list(others)}


def placed(number: int, rank: int) -> dict[str, Any]:
    """A node whose agent has a rank of the group. All have one machine id, as after a copy of a disk."""
    return {"agent": {"head_id": IDS[0], "owners": {"duo": IDS[0]}, "place": {"group": "duo", "rank": rank}}, "others": []}


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        pytest.param([node(0), node(1)], [], id="new nodes"),
        pytest.param([node(0, {"duo": IDS[0]}), node(1, {"duo": IDS[0]})], [], id="their own"),
        pytest.param(
            [node(0, {"pair1": IDS[0]}, ("pair1",)), node(1, {}, ("pair1",))], ["one belongs to the group pair1, which runs there", "two belongs"],
            id="renamed",
        ),
        pytest.param([node(0), node(1, {"pair1": IDS[0]})], ["two belongs to the group pair1. Nothing was changed"], id="one node of another group"),
        pytest.param(
            [node(0, {"duo": IDS[1]}), node(1, {"duo": IDS[1]})], ["one obeys two as its head; two obeys two as its head", "-e takeover=true"],
            id="swapped",
        ),
        pytest.param(
            [placed(0, 1), placed(1, 0)], ["one is rank 1 of duo; two is rank 0 of duo, and the inventory has one as head"], id="swapped, of one machine id",
        ),
        pytest.param([placed(0, 0), placed(1, 1)], [], id="in place"),
        pytest.param([node(0), node(1, {"duo": "c" * 32})], ["two obeys a head that is none of these nodes (machine id cccccccccccc)"], id="head replaced"),
        pytest.param([{}, {}], [], id="nothing was read"),
    ],
)  # fmt: skip
def test_nodes_of_another_group_or_head_are_named_with_the_ways(infos: list[dict[str, Any]], words: list[str]) -> None:
    text = refusal(infos, "duo", ["one", "two"])
    assert bool(text) == bool(words)
    assert all(word in text for word in words), text


# --- The state of groups and their kept releases: documents and tables.

HEAD: dict[str, Any] = {
    "containers": [
        {
            "name": "c", "status": "running", "running": True, "started_at": "2026-11-21T05:00:00.1Z", "finished_at": "0001-01-01T00:00:00Z", "exit_code": 0,
            "oom_killed": False, "labels": {"gb10.cluster.release": "4f0c"}, "image_id": "sha256:8d0f",
        }
    ],
    "releases": [{"id": "4f0c", "good": True}, {"id": "77aa", "good": False}], "processes": {"count": 3, "fault": ""},
    "memory": {"total_kib": 127 << 20, "available_kib": 20 << 20, "free_kib": 10 << 20}, "engine_error": "", "current": "4f0c",
    "receipt": {"passed": True, "time": "2026-11-21T05:08:00Z", "release": "4f0c", "profile": "p"},
}  # fmt: skip


def changed(**container: object) -> dict[str, Any]:
    return {**HEAD, "containers": [{**HEAD["containers"][0], **container}]}


def text(infos: list[dict[str, Any]], logs: list[dict[str, Any]] | None = None, state: str = "serves", agent: str = "") -> list[str]:
    hosts = [f"spark-{number}" for number in range(1, len(infos) + 1)]
    found = {"state": state, "ok": state == "serves", "sentence": f"The sentence of {state}.", "release": "4f0c"}
    notes = [agent] if agent else []
    return group_state.status_lines([{**group_state.status_document(found, "pair1", hosts, infos, logs or [{}] * len(infos)), "notes": notes}])


def columns(lines: list[str]) -> list[dict[str, str]]:
    """The rows of the table of ranks, by the titles of their columns; each value begins where its title does, unless it is a number."""
    start = next(number for number, line in enumerate(lines) if line.startswith("group "))
    titles = ("group", "rank", "host", "container", "release", "gate", "memory available", "agent")
    places = [lines[start].index(f" {title}") + 1 if number else 0 for number, title in enumerate(titles)]
    rows = lines[start + 1 : lines.index("", start)]
    return [{title: line[place:end].strip() for title, place, end in zip(titles, places, [*places[1:], None])} for line in rows]


def test_a_serving_pair_is_a_verdict_a_table_and_its_figures() -> None:
    log = {"state": "ready", "stage": "ready", "failure": None, "kv_cache": {"tokens": 1990142, "max_concurrency": 1.9}}
    early = {"state": "starting", "stage": "kv", "failure": None}  # the log of a healthy worker ends at an early stage
    lines = text([HEAD, HEAD], [log, early])
    assert lines[1] == "SERVES  The sentence of serves."
    assert columns(lines) == [
        {
            "group": "pair1", "rank": str(rank), "host": f"spark-{rank + 1}", "container": "running since 2026-11-21T05:00:00Z", "release": "4f0c",
            "gate": "passed", "memory available": "20.0 of 127.0 GiB", "agent": "not installed",
        }
        for rank in (0, 1)
    ]  # fmt: skip
    assert lines[lines.index("", 3) + 1 :] == [
        "pair1 rank 0 on spark-1: KV pool: 1,990,142 tokens, 1.9 requests at full context at once",
        "pair1: last verdict: passed at 2026-11-21T05:08:00Z, release 4f0c, profile p",
    ]


def test_the_stage_of_a_boot_is_named_unless_the_group_serves() -> None:
    log = {"state": "starting", "stage": "kv", "failure": None}
    assert "pair1 rank 0 on spark-1: boot: starting, at stage kv" in text([HEAD], [log], "starting")
    assert "pair1 rank 0 on spark-1: boot: reached stage kv" in text([HEAD], [log], "down")
    assert "boot" not in "\n".join(text([HEAD], [log], "busy"))


def test_a_release_whose_gate_never_passed_is_named() -> None:
    for label, words in (("77aa", "never passed"), ("gone", "not kept here")):
        (row,) = columns(text([changed(labels={"gb10.cluster.release": label})]))
        assert (row["release"], row["gate"]) == (label, words)


def test_a_dead_rank_has_the_time_of_its_end_and_no_line_for_what_its_state_shows() -> None:
    dead = {"status": "exited", "running": False, "finished_at": "2026-11-21T07:30:00Z", "exit_code": 137, "oom_killed": True}
    log = {"stage": "kv", "failure": {"class": "oom_killed", "line": "state of container c: exit code 137 (SIGKILL)"}}
    lines = text([HEAD, {**changed(**dead), "receipt": {}, "current": ""}], [{}, log], "down")
    assert lines[1].startswith("DOES NOT SERVE  ")
    assert columns(lines)[1]["container"] == "exited at 2026-11-21T07:30:00Z with exit code 137, killed by the kernel's OOM killer"
    assert "log:" not in "\n".join(lines)
    assert lines[-2:] == [
        "pair1 rank 0 on spark-1: last verdict: passed at 2026-11-21T05:08:00Z, release 4f0c, profile p",
        "pair1 rank 1 on spark-2: last verdict: none",
    ]


def test_a_fault_of_the_engine_its_log_line_and_the_agent_are_below_the_table() -> None:
    log = {"failure": {"class": "peer_lost", "line": "NCCL WARN \x1b[2Jgone"}, "stage": "load"}
    info = {**HEAD, "processes": {"count": 3, "fault": "the engine process is stopped"}, "agent": {"version": "1", "state": {"watch": {"state": "fault"}}}}
    lines = text([info], [log], "down", "watch: has noticed a fault.")
    assert columns(lines)[0]["agent"] == "fault"
    assert "pair1: watch: has noticed a fault." in lines
    assert "pair1 rank 0 on spark-1: engine: the engine process is stopped" in lines
    assert "pair1 rank 0 on spark-1: log: peer_lost: NCCL WARN \\x1b[2Jgone" in lines


def test_a_node_that_was_not_read_or_has_no_container_has_a_row() -> None:
    lines = text([{"unreachable": True, "msg": "x"}, {**HEAD, "containers": []}, {}], state="unknown")
    assert lines[1] == "UNKNOWN  The sentence of unknown."
    assert [row["container"] for row in columns(lines)] == ["not known", "none", "not known"]
    assert "pair1 rank 0 on spark-1: the node is unreachable" in lines
    assert "pair1 rank 2 on spark-3: the node was not read in this run" in lines


def test_all_groups_share_one_table() -> None:
    found = [group_state.status_document(group_state.group_status([HEAD], name, ["h"]), name, ["h"], [HEAD], [{}]) for name in ("pair1", "a-longer-name")]
    lines = group_state.status_lines(found)
    assert [(row["group"], row["host"]) for row in columns(lines)] == [("pair1", "h"), ("a-longer-name", "h")]
    assert [document["schema"] for document in found] == ["gb10.cluster/status/1"] * 2
    assert found[0]["ranks"][0]["memory_kib"] == {"total": 127 << 20, "available": 20 << 20, "free": 10 << 20}


def test_kept_releases_are_a_table_with_the_current_one_marked() -> None:
    releases = [
        {"id": "4f0c61d2a9be", "good": True, "time": 1795239181, "profile": "b12x-fp8-1m", "pool_tokens": 1766005},
        {"id": "77aa00000000", "good": False, "time": 1795230000},
    ]
    document = group_state.kept_document({"releases": releases, "current": "4f0c61d2a9be"}, "pair1", "spark-1")
    assert [(each["release"], each["current"], each["pool_tokens"]) for each in document["releases"]] == [
        ("4f0c61d2a9be", True, 1766005),
        ("77aa00000000", False, None),
    ]
    assert group_state.kept_lines(document) == [
        "",
        "pair1 keeps 2 releases on spark-1.",
        "",
        "release       profile      date                  gate            KV pool  current",
        "4f0c61d2a9be  b12x-fp8-1m  2026-11-21T05:33:01Z  passed        1,766,005  yes",
        "77aa00000000  -            2026-11-21T03:00:00Z  never passed          -  -",
        "",
    ]
    assert group_state.kept_lines({**document, "releases": []}) == ["", "pair1 keeps 0 releases on spark-1."]


@pytest.mark.parametrize(("finished", "since"), [("2026-11-21T08:00:00.5Z", "2026-11-21T08:00:00Z"), ("0001-01-01T00:00:00Z", "")])
def test_a_container_that_does_not_run_has_the_time_of_its_end(finished: str, since: str) -> None:
    info = changed(status="exited", running=False, finished_at=finished)
    assert group_state.rank_document(info)["containers"][0]["since"] == since
