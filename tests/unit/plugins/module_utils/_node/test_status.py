"""The state of groups and their kept releases: documents and tables."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import group_state

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
