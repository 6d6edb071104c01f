"""Releases: names, reasons to start, what stays."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils import release


def box(rel: str = "r1", running: bool = True, code: int = 0) -> dict[str, Any]:
    return {"running": running, "exit_code": code, "labels": {"gb10.cluster.release": rel}}


def info(current: str = "r1", containers: list[dict[str, Any]] | None = None, releases: list[tuple[str, bool]] | None = None) -> dict[str, Any]:
    kept = [{"id": name, "good": good, "time": 0} for name, good in releases or []]
    return {"current": current, "containers": [box()] if containers is None else containers, "releases": kept}


def test_the_name_changes_with_any_rank_and_only_with_content() -> None:
    one = release.release_id([{"a": 1, "b": [1]}, {"c": 2}])
    assert one == release.release_id([{"b": [1], "a": 1}, {"c": 2}])
    assert one != release.release_id([{"a": 1, "b": [1]}, {"c": 3}])
    assert len(one) == 12


def test_a_secret_names_a_release_without_showing() -> None:
    first = release.fingerprint({"VLLM_API_KEY": "correct horse"}, "pair1")
    assert first != release.fingerprint({"VLLM_API_KEY": "battery staple"}, "pair1")
    assert first != release.fingerprint({"VLLM_API_KEY": "correct horse"}, "pair2")
    assert "horse" not in first
    assert release.fingerprint({}, "pair1") == ""


ANSWER: dict[str, Any] = {"error": "", "http_status": 200, "replies": [{"ok": True, "status": 200, "error": ""}]}
REASONS = [
    ("all as it should be", info(), None, False, []),
    ("serving", info(), ANSWER, False, []),
    ("nothing there", info(current="", containers=[]), None, False, ["release r1 is the first one"]),
    ("another release", info(current="r0", containers=[box("r0")]), None, False, ["release r0 -> r1"]),
    ("stopped", info(containers=[]), None, False, ["rank 1 is not running"]),
    ("died", info(containers=[box(running=False, code=137)]), None, False, ["rank 1 is not running (exit code 137)"]),
    ("an older release runs under the name", info(containers=[box("r0")]), None, False, ["rank 1 is not running"]),
    ("a second container", info(containers=[box(), box()]), None, False, ["2 containers of the group run on this node, and one belongs here"]),
    (
        "the API is gone",
        info(), {"error": "/v1/models does not answer (refused)", "http_status": 0, "replies": []}, False,
        ["the head does not serve: /v1/models does not answer (refused)"],
    ),
    (
        "the engine is dead",
        info(), {"error": "", "http_status": 200, "replies": [{"ok": False, "status": 500, "error": "HTTP 500: dead"}]}, False,
        ["the head answers no completion (HTTP 500: dead)"],
    ),
    (
        "busy: a time-out restarts nothing",
        info(), {"error": "", "http_status": 200, "replies": [{"ok": False, "status": 0, "error": "no answer: timed out"}]}, False, [],
    ),
    ("another key: not dead", info(), {"error": "refuses the API key", "http_status": 401, "replies": []}, False, []),
    ("asked for", info(), None, True, ["a restart was asked for"]),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "probe", "forced", "expected"), [r[1:] for r in REASONS], ids=[r[0] for r in REASONS])
def test_reasons(facts: dict[str, Any], probe: dict[str, Any] | None, forced: bool, expected: list[str]) -> None:
    assert release.start_reasons(facts, "r1", 1, probe, forced) == expected


def test_the_release_that_takes_down_is_the_running_one() -> None:
    assert release.release_on_disk(info("r1", [box("r0")], [("r1", True), ("r0", True)]), "new") == "r0"
    assert release.release_on_disk(info("r1", [box("gone")], [("r1", True)]), "new") == "r1"
    assert release.release_on_disk(info("", [], []), "new") == "new"


def test_last_good_is_common_to_all_ranks() -> None:
    head = info("r2", releases=[("r3", False), ("r2", True), ("r1", True)])
    worker = info("r2", releases=[("r3", False), ("r2", True), ("r1", True)])
    assert release.last_good([head, worker], "r3") == "r2"
    assert release.last_good([head, worker], "r2") == "r1"
    assert release.last_good([head, info("r2", releases=[("r1", True)])], "r3") == "r1"
    assert release.last_good([head, info("", releases=[])], "r3") == ""
    assert release.last_good([], "r3") == ""


def test_old_releases_go_and_the_protected_stay() -> None:
    facts = info("r4", releases=[("r5", True), ("r4", True), ("r3", True), ("r2", True), ("r1", True)])
    assert release.stale_releases(facts, 3, ["r5"]) == ["r2", "r1"]
    assert release.stale_releases(facts, 3, ["r5", "r1"]) == ["r3", "r2"]
    assert release.stale_releases(facts, 9, ["r5"]) == []
