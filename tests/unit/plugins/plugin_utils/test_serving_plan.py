"""What a run makes of the options of the role and of what its ranks show."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action.serving_plan import kept_on_controller
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose
from ansible_collections.gb10.cluster.plugins.plugin_utils import serving_plan as plans
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve

HOSTS = ["one", "two"]
OPTIONS: dict[str, Any] = {
    **dict.fromkeys(plans.OPTIONS), **dict.fromkeys(("again", "allow_unsafe_memory", "restart", "takeover", "weights_writable"), False),
    "extra_env": {}, "fabric_env": {}, "healthcheck": {}, "phase_seconds": {}, "secret_env": {}, "cap_add": [], "failure_classes": [], "interfaces": [],
    "api_key": "", "api_open": True, "collective_test": "auto", "directory": "/opt/g", "infiniband": "nodes", "ipc": "private", "keep_releases": 3,
    "log_max_file": 3, "log_max_size": "50m", "memlock": "unlimited", "model_store": "/srv/models", "no_new_privileges": True, "plan": "enforce",
    "stack": 67108864,
}  # fmt: skip
IMAGE = {"exists": True, "name": "vllm:1", "id": "sha256:tag", "fingerprint": "f"}
DEVICES = ["/dev/infiniband", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]


@cache
def resolved_profile(name: str) -> dict[str, Any]:
    return resolve(name, shipped_profiles())


def place(rank: int = 0, profile: str = "dspark-nvfp4-1m-seed", check_mode: bool = False, **options: Any) -> plans.Place:
    resolved = resolved_profile(profile)
    group = {
        "name": "pair1", "rank": rank, "size": 2, "head": "one", "hosts": HOSTS, "master_addr": "192.168.200.1", "fabric": [f"192.168.200.{rank + 1}"],
    }  # fmt: skip
    return plans.Place(group, {**OPTIONS, **options}, resolved, plans.criteria_of(resolved), check_mode)


def info(current: str = "", *kept: str, **more: Any) -> dict[str, Any]:
    """What a rank shows that runs its current release, if it has one."""
    runs = {"name": "c", "running": True, "labels": {"gb10.cluster.release": current}}
    releases = [{"id": each, "good": True, "files": {}} for each in kept]
    known = {"current": current, "containers": [runs] if current else [], "releases": releases, "receipt": {}, "image": IMAGE, "agent": {}}
    return {**known, "devices": DEVICES, **more}


def decide(infos: list[dict[str, Any]], rank: int = 0, receipts: tuple[Any, ...] = (), rails: Any = ({}, {}), **options: Any) -> dict[str, Any]:
    ranks = [plans.rank_of(place(number, **options), infos) for number in (0, 1)]
    return plans.group_of(place(rank, **options), infos, ranks, rails, lambda _release: receipts)


def today(infos: list[dict[str, Any]], **options: Any) -> str:
    """The release that the options describe."""
    return str(compose.name_release([plans.rank_of(place(number, **options), infos) for number in (0, 1)])["id"])


def test_the_controllers_receipts_count_and_a_broken_one_is_passed_over(tmp_path: Path) -> None:
    assert kept_on_controller(str(tmp_path / "none"), "r2") == []
    (tmp_path / "last-good.json").write_text('{"release": "r2", "pas')
    (tmp_path / "20261122T120000Z-r2-passed.json").write_text('{"release": "r2", "passed": true}')
    assert kept_on_controller(str(tmp_path), "r2") == [{"release": "r2", "passed": True}]
    release = today([info(), info()])
    good = {"release": release, "passed": True}
    assert decide([info(release, release)] * 2, receipts=(good,))["judged"] == good


def test_a_release_of_the_same_inputs_stays_until_a_restart_is_asked_for() -> None:
    inputs = [plans.rank_of(place(number), [info(), info()])["manifest"]["inputs"] for number in (0, 1)]
    infos = [info("r1", "r1", inputs=each) for each in inputs]
    release = today(infos)
    found = decide(infos)
    assert (found["release"], found["stands"], found["do"], found["files"]) == ("r1", True, "nothing", {})
    assert any(f"Today it is release {release}. To start that one: -e vllm_tp2_restart=true." in phrase for phrase in found["phrases"])
    found = decide(infos, restart=True)
    assert (found["release"], found["stands"], found["do"], found["files"].keys()) == (release, False, "start", {"compose.yaml", "release.json"})
    found = decide([infos[0], {**infos[1], "inputs": "other"}])
    assert (found["do"], found["reasons"]) == ("start", [f"release r1 -> {release}"])


def test_a_start_of_another_release_names_the_settings_that_change() -> None:
    now = plans.settings_of(resolved_profile("dspark-nvfp4-1m-seed"))
    head = info("r1", "r1", settings={**now, "max-model-len": 4096, "enforce-eager": True})
    assert decide([head, info("r1", "r1")])["reasons"][1:] == [f"max-model-len 4096 -> {now['max-model-len']}", "enforce-eager true -> not set"]
    other = info("r1", "r1", settings={**now, "profile": "old", "max-model-len": 4096})
    assert decide([other, other])["reasons"][1:] == ["profile old -> dspark-nvfp4-1m-seed"]
    assert decide([info("r1", "r1", settings=now)] * 2)["reasons"][1:] == []


def test_a_dead_api_of_the_head_and_a_new_key_are_reasons() -> None:
    release = today([info(), info()], api_open=False)
    key = {"path": "/opt/g/pair1/api_key", "new": True, "due": True}
    head = info(release, release, alive={"outcome": "dead", "text": "HTTP 500"}, receipt={"release": release, "passed": True}, key=key)
    found = decide([head, info(release, release)], api_open=False)
    assert [reason.partition(":")[0] for reason in found["reasons"]] == ["the head does not serve", "the API needs the new key in /opt/g/pair1/api_key on one"]
    assert (found["key_due"], decide([head, info(release, release)], 1, api_open=False)["key_due"]) == (True, False)


def test_a_lost_release_is_restored_and_each_rank_keeps_its_judged_image_id() -> None:
    release = today([info(), info()])
    good = {"release": release, "passed": True}
    kept = {"id": release, "good": True, "files": {"compose.yaml": "edited"}, "image": {"id": "sha256:judged", "fingerprint": "f", "gone": False}}
    whole = info(release, receipt=good, releases=[kept], weights_differ=["a has 1 bytes instead of 2"])
    infos = [whole, {**whole, "current": "", "receipt": {}, "releases": []}]
    ids = [plans.rank_of(place(number), infos)["manifest"]["image"]["id"] for number in (0, 1)]
    assert ids == ["sha256:judged", "sha256:tag"]
    for rank in (0, 1):
        found = decide(infos, rank)
        assert (found["do"], found["reasons"], found["restores"], found["writes"], found["judged"]) == ("nothing", [], True, True, good)
        assert found["repaired"] == [
            f"one: compose.yaml of release {release} differed from the inventory", f"one: release.json of release {release} was missing",
            f"two: the files of release {release} were missing", "two: the link current was missing",
        ]  # fmt: skip
        assert found["phrases"] == ["the weights are not the judged ones: a has 1 bytes instead of 2"]


def test_files_that_passed_their_gate_are_not_tried_again() -> None:
    first = decide([info(), info()])
    assert (first["do"], first["tries"], first["caches"] != []) == ("start", True, True)
    prints = {name: f"0640 {hashlib.sha256(text.encode()).hexdigest()}" for name, text in first["files"].items()}
    kept = {"id": first["release"], "good": True, "files": prints, "image": {}}
    assert decide([info(releases=[kept]), info()])["tries"] is False
    assert decide([info(), info()], rank=1)["tries"] is True


@pytest.mark.parametrize(
    ("shown", "options", "due"),
    [
        ({}, {}, True), ({}, {"collective_test": "never"}, False), ({"containers": [{"running": True, "labels": {}}]}, {}, False),
        ({"agent": {"converges": True}}, {}, False), ({"collective": "TESTED"}, {}, False), ({"collective": "TESTED"}, {"collective_test": "always"}, True),
    ],
)  # fmt: skip
def test_collectives_are_tested_before_a_first_boot_at_rest(shown: dict[str, Any], options: dict[str, Any], due: bool) -> None:
    key = decide([info(), info()])["collective_key"]
    infos = [info(**{name: key if value == "TESTED" else value for name, value in shown.items()})] * 2
    assert decide(infos, **options)["collective_due"] is due
    assert decide([info(), info()], rails=({"NCCL_IB_HCA": "x"}, {}))["collective_key"] != key


def test_the_drafter_is_an_input_of_a_release_and_the_gate_is_not() -> None:
    here = place(profile="glm53-flash-dflash2-262k")
    infos = [info(), info()]

    def inputs(**changed: Any) -> str:
        return str(plans.rank_of(here._replace(profile={**here.profile, **changed}), infos)["manifest"]["inputs"])

    assert inputs() != inputs(drafter={**here.profile["drafter"], "revision": "ab" * 20})
    assert inputs() == inputs(gate={}) == inputs(image={**here.profile["image"], "build": {"context": "/home/x"}})


def test_a_secret_changes_the_inputs_and_is_in_no_result() -> None:
    infos = [info(), info()]
    plain, secret = (plans.rank_of(place(secret_env=env), infos) for env in ({}, {"HF_TOKEN": "s3cret-word"}))
    assert plain["manifest"]["inputs"] != secret["manifest"]["inputs"]
    assert secret["secret_names"] == ["HF_TOKEN"]
    assert "s3cret-word" not in json.dumps([secret, decide(infos, secret_env={"HF_TOKEN": "s3cret-word"})])
    assert place(1, api_key="k", secret_env={"A": "b"}).secrets == {"A": "b"}, "a worker serves no API"


@pytest.mark.parametrize(
    ("shown", "options", "sentence"),
    [
        ({}, {}, ""),
        ({"engine_error": "The Docker Engine is off."}, {}, "one: The Docker Engine is off."),
        ({"image": {}}, {}, "one: The image ghcr.io/drowzeys/vllm-dspark-nvfp4-stage-c:gb10 is not on this node, and all ranks need the same."),
        ({"image": {**IMAGE, "fingerprint": "g"}}, {"rank": 1}, "one: The image"),
        ({"devices": ["/dev/infiniband/rdma_cm"]}, {}, "one: /dev/infiniband has no uverbs device"),
        ({"key": {"msg": "It is a link."}}, {"api_open": False}, "one: It is a link."),
        ({"key": {"new": False}}, {"api_open": False}, ""),
        ({"others": ["pair9"]}, {}, "pair1: one belongs to the group pair9, which runs there"),
        ({"others": ["pair9"]}, {"takeover": True}, ""),
        ({"image": {}}, {"check_mode": True}, ""),
    ],
)  # fmt: skip
def test_a_node_that_cannot_take_part_is_named(shown: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    options = dict(options)
    rank = int(options.pop("rank", 0))
    infos = [info(**shown), info()] if not rank else [info(), info(**shown)]
    found = plans.unfit(place(rank, **options), "one", infos, answers=True)
    assert found.startswith(sentence) if sentence else not found


START, NOTHING = {"do": "start"}, {"do": "nothing", "adjust": []}
STATED = {"document": {"generation": 7}}


@pytest.mark.parametrize(
    ("decision", "answers", "stated", "followed", "text"),
    [
        (NOTHING, False, {}, {}, ""),
        (START, True, STATED, {"passed": True}, ""),
        (START, True, STATED, {"passed": False, "msg": "kv_too_small"}, "kv_too_small"),
        (START, False, STATED, {}, "The connection to one is lost."),
        (START, True, {"unreachable": True}, {}, "one does not answer, and it is not known"),
        (START, True, {"msg": "refused"}, {}, "refused"),
        ({**NOTHING, "adjust": ["attempts 3 -> 2"]}, True, {"msg": "refused"}, {}, "refused"),
        ({**NOTHING, "adjust": ["attempts 3 -> 2"]}, True, STATED, {}, ""),
        ({"do": "follow"}, True, {}, {"passed": False, "msg": "stopped by root"}, "stopped by root"),
    ],
)  # fmt: skip
def test_the_failure_of_a_run_is_one_sentence(decision: Any, answers: bool, stated: Any, followed: Any, text: str) -> None:
    found = plans.failure_of("one", answers, decision, stated, followed)
    assert found.startswith(text) if text else not found


def test_the_estimate_has_the_memory_of_now_and_the_version_of_the_last_boot_of_this_image() -> None:
    total, receipt = int(119.63 * 2**20), {"version": "0.22.1", "image_id": IMAGE["id"]}
    infos = [info("r1", "r1", memory={"total_kib": total}, receipt=receipt), info(memory={"total_kib": total})]
    memory, version = plans.memory_now(place(), infos)
    assert ([each["engine_running"] for each in memory], version) == ([True, False], "0.22.1")
    assert plans.memory_now(place(), [{**infos[0], "image": {"id": "sha256:other"}}, infos[1]])[1] == ""
    for mode, is_refused in (("enforce", True), ("report", False)):
        found, refused = plans.estimate(place(plan=mode), memory, version)
        assert (found["verdict"], bool(refused)) == ("refused", is_refused)
