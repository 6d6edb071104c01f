"""Releases: names, reasons to start, what stays."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import releases


def box(rel: str = "r1", running: bool = True, code: int = 0) -> dict[str, Any]:
    return {"running": running, "exit_code": code, "labels": {"gb10.cluster.release": rel}}


def info(current: str = "r1", containers: list[dict[str, Any]] | None = None, releases: list[tuple[str, bool]] | None = None) -> dict[str, Any]:
    kept = [{"id": name, "good": good, "time": 0} for name, good in releases or []]
    return {"current": current, "containers": [box()] if containers is None else containers, "releases": kept}


def test_the_name_changes_with_any_rank_and_only_with_content() -> None:
    one = releases.release_id([{"a": 1, "b": [1]}, {"c": 2}])
    assert one == releases.release_id([{"b": [1], "a": 1}, {"c": 2}])
    assert one != releases.release_id([{"a": 1, "b": [1]}, {"c": 3}])
    assert len(one) == 12


def test_a_secret_names_a_release_without_showing() -> None:
    first = releases.fingerprint({"VLLM_API_KEY": "correct horse"}, "pair1")
    assert first != releases.fingerprint({"VLLM_API_KEY": "battery staple"}, "pair1")
    assert first != releases.fingerprint({"VLLM_API_KEY": "correct horse"}, "pair2")
    assert "horse" not in first
    assert releases.fingerprint({}, "pair1") == ""


HEAD, WORKER = "rank 0 on lab-1", "rank 1 on lab-2"
STOPPED = {"processes": {"fault": "the engine process is stopped (PID 7, VLLM::Worker_TP1)"}}


def alive(outcome: str) -> dict[str, Any]:
    return {"outcome": outcome, "text": f"the text of {outcome}"}


def bound(found: dict[str, Any], gone: bool = False, **image: str) -> dict[str, Any]:
    """Give the releases of a rank an image, and its name another content with `fingerprint`."""
    for entry in found["releases"]:
        entry["image"] = {"reference": "vllm:1", "id": "sha256:old", "fingerprint": "aaaa", "gone": gone}
    return {**found, "image": {"exists": True, "name": "vllm:1", "id": "sha256:new", "fingerprint": "aaaa", **image}}


REASONS = [
    ("all as it should be", info(), None, False, []),
    ("serving", info(), alive("serves"), False, []),
    ("nothing there", info(current="", containers=[]), None, False, ["release r1 is the first one"]),
    ("another release", info(current="r0", containers=[box("r0")]), None, False, ["release r0 -> r1"]),
    ("stopped", info(containers=[]), None, False, ["rank 1 on lab-2 is not running"]),
    ("died", info(containers=[box(running=False, code=137)]), None, False, ["rank 1 on lab-2 is not running (exit code 137)"]),
    ("another release runs under the name", info(containers=[box("r0")]), None, False, ["rank 1 on lab-2 runs release r0 instead of r1"]),
    (
        "the engine is stopped", {**info(containers=[]), "engine_error": "The Docker Engine is not running: /s does not accept connections. Run site.yml."},
        None, False, ["rank 1 on lab-2 cannot be read: The Docker Engine is not running: /s does not accept connections"],
    ),
    ("a second container", info(containers=[box(), box()]), None, False, ["rank 1 on lab-2: 2 containers of the group run, expected one"]),
    ("a process is stopped", info() | STOPPED, None, False, ["rank 1 on lab-2: the engine process is stopped (PID 7, VLLM::Worker_TP1)"]),
    ("another release of a stopped process", info("r0", [box("r0")]) | STOPPED, None, False, ["release r0 -> r1"]),
    *[(outcome, info(), alive(outcome), False, [f"the head does not serve: the text of {outcome}"]) for outcome in ("dead", "wedged")],
    *[(f"{outcome}: a restart can do harm", info(), alive(outcome), False, []) for outcome in ("busy", "frozen", "silent", "refused")],
    (
        "a tag that leads to another content", bound(info("r0", [box("r0")], [("r0", True)]), fingerprint="bbbb"), None, False,
        ["release r0 -> r1", "image behind the tag changed: vllm:1 was sha256:old and is sha256:new"],
    ),
    (
        "the same content under another id",
        bound(info("r1", [{**box(), "image_fingerprint": "aaaa", "image_id": "sha256:old"}], [("r1", True)]), id="sha256:other-store"), None, False, [],
    ),
    (
        "a container of another image", bound(info("r1", [{**box(), "image_fingerprint": "cccc", "image_id": "sha256:cccc"}], [("r1", True)])), None, False,
        ["rank 1 on lab-2 runs another image (sha256:cccc) than release r1 names"],
    ),
    ("asked for", info(), None, True, ["a restart was asked for"]),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "probe", "forced", "expected"), [r[1:] for r in REASONS], ids=[r[0] for r in REASONS])
def test_reasons(facts: dict[str, Any], probe: dict[str, Any] | None, forced: bool, expected: list[str]) -> None:
    assert releases.start_reasons(facts, "r1", WORKER, probe, forced) == expected


def test_a_rank_that_runs_a_judged_release_without_a_record_of_it_needs_no_start() -> None:
    runs = info(current="r0")
    assert releases.start_reasons(runs, "r1", WORKER) == ["release r0 -> r1"]
    assert releases.start_reasons(runs, "r1", WORKER, judged={"passed": True}) == []
    assert releases.start_reasons(info(current="r0", containers=[box("r0")]), "r1", WORKER, judged={"passed": True}) == ["release r0 -> r1"]


def test_the_release_that_takes_down_is_the_running_one() -> None:
    assert releases.release_on_disk(info("r1", [box("r0")], [("r1", True), ("r0", True)])) == "r0"
    assert releases.release_on_disk(info("r1", [box("gone")], [("r1", True)])) == "r1"
    assert releases.release_on_disk(info("", [], [])) == ""


def test_last_good_is_common_to_all_ranks() -> None:
    head = info("r2", releases=[("r3", False), ("r2", True), ("r1", True)])
    worker = info("r2", releases=[("r3", False), ("r2", True), ("r1", True)])
    assert releases.last_good([head, worker], "r3") == "r2"
    assert releases.last_good([head, worker], "r2") == "r1"
    assert releases.last_good([head, info("r2", releases=[("r1", True)])], "r3") == "r1"
    assert releases.last_good([head, info("", releases=[])], "r3") == ""
    assert releases.last_good([], "r3") == ""


GOOD = {"release": "r1", "passed": True}


@pytest.mark.parametrize("current", ["", "r0"], ids=["lost", "stale"])
def test_a_link_that_is_lost_restarts_nothing_where_the_release_runs_and_was_judged(current: str) -> None:
    assert releases.start_reasons(info(current), "r1", HEAD, judged=GOOD) == []
    assert releases.start_reasons(info(current), "r1", HEAD) != [], "a boot that was interrupted was never judged"
    assert releases.start_reasons(info(current, containers=[]), "r1", HEAD, judged=GOOD) != []


def test_one_receipt_is_enough_to_go_back() -> None:
    head, worker = (info("r2", releases=[("r2", True), ("r1", good)]) for good in (True, False))
    assert releases.last_good([head, worker], "r2") == "r1"
    assert releases.lost_ways([head, worker], ["a", "b"], "r2", GOOD) == []


def test_a_lost_folder_or_image_of_the_way_back_is_reported() -> None:
    head = info("r3", releases=[("r3", True), ("r2", True), ("r1", True)])
    worker = info("r3", releases=[("r3", True), ("r1", True)])
    assert releases.lost_ways([head, head], ["a", "b"], "r3", GOOD) == []
    assert releases.lost_ways([head, worker], ["a", "b"], "r3", GOOD) == [
        "Release r2 passed its gate and cannot be started again: b does not keep its files any more. The way back is release r1."
    ]
    pruned = bound(info("r2", releases=[("r1", True)]), gone=True)
    assert releases.last_good([pruned, pruned], "r2") == ""
    assert releases.lost_ways([pruned, pruned], ["a", "b"], "r2", GOOD) == [
        "Release r1 passed its gate and cannot be started again: a does not have its image sha256:old any more; "
        "b does not have its image sha256:old any more. There is no release to go back to if the next boot fails."
    ]


def test_a_current_release_without_any_receipt_is_reported() -> None:
    rank = info("r1", releases=[("r1", False)])
    assert releases.lost_ways([rank, rank], ["a", "b"], "r2") == []
    assert releases.lost_ways([rank, rank], ["a", "b"], "r1")[0].startswith("Release r1 is current and no receipt of it is left")


def test_the_receipt_comes_from_another_rank_or_the_controller() -> None:
    other = {"release": "r0", "passed": True}
    assert releases.judged_receipt([{"receipt": {}}, {"receipt": GOOD}], "r1") == GOOD
    assert releases.judged_receipt([{"receipt": other}], "r1", [other, "broken", GOOD]) == GOOD
    assert releases.judged_receipt([{"receipt": {**GOOD, "passed": False}}], "r1", [other]) == {}


def test_what_a_rank_has_lost_is_named() -> None:
    files = {"compose.yaml": "0640 aa", "release.json": "0640 bb"}
    whole = {"current": "r1", "releases": [{"id": "r1", "good": True, "files": files}]}
    assert releases.repairs(whole, "r1", files, GOOD) == []
    assert releases.repairs({"current": "r1", "releases": []}, "r1", files, GOOD) == ["the files of release r1 were missing"]
    torn = {"current": "r0", "releases": [{"id": "r1", "good": False, "files": {"compose.yaml": "0640 cc", "release.json": ""}}]}
    assert releases.repairs(torn, "r1", files, GOOD) == [
        "compose.yaml of release r1 differed from the inventory", "release.json of release r1 was missing",
        "the receipt of release r1 was missing", "the link current led to release r0",
    ]  # fmt: skip
    assert releases.repairs({**whole, "current": ""}, "r1", files) == ["the link current was missing"]


def test_weights_that_differ_from_the_judged_ones_are_named_with_their_sizes() -> None:
    judged = {"proof": "1", "files": {"a": [6, "aaaa"], "b": [6, "bbbb"], "c": [6, "cccc"], "d": [6, "dddd"]}}
    now = {"proof": "2", "files": {"a": [6, "aaaa"], "b": [5, ""], "c": [6, "eeee"], "d": [-1, ""], "e": [1, "ffff"]}}
    assert releases.weights_differ(judged, now) == [
        "b has 5 bytes instead of 6", "c (6 bytes) has another content (SHA-256 eeee instead of cccc)", "d is missing", "e is new (1 bytes)",
    ]  # fmt: skip
    assert releases.weights_differ(judged, judged) == []
    assert releases.weights_differ({}, now) == releases.weights_differ(judged, {}) == [], "nothing is known of one of them"
    same, other = ({**now, "folders": folders} for folders in (["/m"], ["/m", "/drafter"]))
    assert releases.weights_differ({**judged, "folders": ["/m"]}, other) == [], "another drafter is another release"
    assert releases.weights_differ({**judged, "folders": ["/m"]}, same) == releases.weights_differ(judged, now)


def test_old_releases_go_and_the_protected_stay() -> None:
    facts = info("r4", releases=[("r5", True), ("r4", True), ("r3", True), ("r2", True), ("r1", True)])
    assert releases.stale_releases(facts, 3, ["r5"]) == ["r2", "r1"]
    assert releases.stale_releases(facts, 3, ["r5", "r1"]) == ["r3", "r2"]
    assert releases.stale_releases(facts, 9, ["r5"]) == []


def test_a_release_that_has_never_passed_goes_before_one_that_has() -> None:
    facts = info("r5", releases=[("r5", True), ("r4", False), ("r3", True), ("r2", False), ("r1", True)])
    assert releases.stale_releases(facts, 3, ["r5"]) == ["r4", "r2"]
    assert releases.stale_releases(facts, 2, ["r5"]) == ["r1", "r4", "r2"]
    assert releases.stale_releases(facts, 2, ["r4"]) == ["r3", "r1", "r2"], "the release of this run stays"
