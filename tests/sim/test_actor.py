"""The actor of a serving group against simulated nodes: one scenario each."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate.judge import Judge
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Actor, Superseded
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Store
from sim.nodes import GROUP, SimRank
from sim.world import World

OTHER_HEAD = "head-of-another-pair"


def pair(**boots: list[str]) -> World:
    """A pair that serves release old, which has passed; `boots` are the kinds of the boots of the other releases."""
    world = World()
    world.add_release("old", boots.pop("old", ["good"]), good=True, age=100.0)
    for name, kinds in boots.items():
        world.add_release(name, kinds, age=50.0)
    world.settled_as_serving("old")
    world.run(6)
    return world


@pytest.fixture(name="world")
def serving_pair() -> World:
    return pair(new=["good"])


def fresh(**boots: list[str]) -> World:
    """Nodes without a container, an owner and a release that has passed."""
    world = World()
    for name, kinds in boots.items():
        world.add_release(name, kinds)
    world.run(6)
    return world


def order(world: World) -> list[str]:
    """What was done to the containers, in order: "two starts new"."""
    return [" ".join(line.split()[1:4]) for line in world.log if re.search(r" (starts|halts) ", line) and "agent" not in line]


def starts(world: World) -> list[float]:
    """The times at which the head was started."""
    return [float(line.split()[0]) for line in world.log if " one starts " in line]


def during(world: World, phase: str, what: Any, delay: float = 0.0) -> None:
    """Do something `delay` seconds after the agent has entered a phase of the generation after the present one."""
    before = world.desired()["generation"]
    world.when(lambda: world.outcome().get("phase") == phase and world.desired()["generation"] > before, what, delay)


def test_a_release_that_passes_serves_and_is_recorded_on_all_ranks(world: World) -> None:
    assert world.desire("new") == {"generation": 2, "joined": False}
    found = world.settle()
    assert (found["result"], found["release"], found["sentence"]) == ("serves", "new", "pair1 serves release new.")
    assert [each["result"] for each in world.agent.events() if each["kind"] == "settled"] == ["serves"], "a receiver of the webhook sees the outcome"
    assert found["warnings"] == []
    assert world.serves("new")
    assert [rank.current for rank in world.ranks] == ["new", "new"]
    assert order(world)[2:] == ["two starts new", "one starts new"], "the worker first"
    assert found["unserved_seconds"] > 10


def steps(world: World) -> list[str]:
    """The progress that a follower of the start reads, without what the engine logs."""
    return [event["text"] for event in world.store.kept if event["kind"] == "step"]


def test_a_start_waits_for_the_requests_of_what_it_stops(world: World) -> None:
    world.requests = 3
    during(world, "draining", lambda: setattr(world, "requests", 0), 12.0)
    found = world.change("new", drain_seconds=60)
    assert (found["result"], found["unserved_seconds"] < 60) == ("serves", True)
    assert steps(world)[0] == "pair1 waits up to 60 s for 3 requests"
    assert re.fullmatch(r"pair1 drained after 1\d s", steps(world)[1])
    assert order(world)[:2] == ["one halts old", "two halts old"]


@pytest.mark.parametrize(("requests", "seconds", "text"), [(3, 0, "3 requests are cut"), (1, 10, r"1 request is cut after 1\d s")])
def test_a_start_names_the_requests_that_it_cuts(world: World, requests: int, seconds: int, text: str) -> None:
    world.requests = requests
    assert world.change("new", drain_seconds=seconds)["result"] == "serves"
    assert any(re.fullmatch(f"pair1: {text}", step) for step in steps(world))


@pytest.mark.parametrize("here", [False, True], ids=["on the head", "on a worker"])
def test_a_stop_cuts_what_a_start_waits_for(world: World, here: bool) -> None:
    world.requests, begin = 2, world.now
    during(world, "draining", functools.partial(world.stop_here, 1) if here else world.stop, 5.0)
    assert world.change("new", drain_seconds=600)["result"] == "stopped"
    assert world.now - begin < 40
    assert here or steps(world)[-1] == "pair1: 2 requests are cut"


def test_a_stop_is_completed_when_a_node_that_was_off_is_back(world: World) -> None:
    world.cut(1, 120.0)
    world.stop()
    assert world.settle()["result"] == "failed"
    assert "not known whether a container of pair1 runs there" in world.outcome()["sentence"]
    world.run(200)
    assert (world.outcome()["result"], world.outcome()["sentence"]) == ("stopped", "pair1 is stopped.")
    assert not any(rank.runs() for rank in world.ranks)
    assert all(rank.mark for rank in world.ranks)
    assert [event["result"] for event in world.store.kept if event["kind"] == "settled"] == ["failed", "stopped"]


def started_by_hand(kind: str = "good") -> World:
    """A pair that was stopped, and whose containers a person has started behind that."""
    world = pair()
    world.stop()
    assert world.settle()["result"] == "stopped"
    world.boots["old"], world.by_hand = [kind], True
    for rank in world.ranks:
        rank.container = world.new_container(rank.number, "old", world.kind_of("old", rank.number))
    return world


def test_a_pair_that_was_started_by_hand_after_a_stop_is_taken_over_without_a_restart() -> None:
    world = started_by_hand()
    world.run(60)
    before = order(world)
    assert world.change("old")["result"] == "serves"
    assert (order(world), world.serves("old"), [rank.mark for rank in world.ranks]) == (before, True, ["", ""])
    assert all(rank.releases["old"]["receipt"]["passed"] for rank in world.ranks)


def test_a_pair_that_was_started_by_hand_and_does_not_answer_is_restarted() -> None:
    world = started_by_hand("hang")
    world.boots["old"] = ["good"]
    world.run(60)
    assert world.change("old")["result"] == "serves"
    assert order(world)[-2:] == ["two starts old", "one starts old"]
    assert [rank.mark for rank in world.ranks] == ["", ""]


def test_metrics_that_do_not_answer_keep_no_start_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.requests = 3
    monkeypatch.setattr(SimRank, "_engine", lambda *_arguments, **_more: {"status": 0, "running": 0, "waiting": 0, "tokens": None})
    assert world.change("new", drain_seconds=600)["unserved_seconds"] < 60
    assert steps(world) == ["pair1 starts release new"]


def test_a_new_release_that_fails_gives_way_to_the_last_good_one() -> None:
    world = pair(new=["flag"])
    found = world.change("new")
    assert order(world)[2:] == ["two starts new", "one starts new", "one halts new", "two halts new", "two starts old", "one starts old"]
    assert world.serves("old")
    assert (found["result"], found["release"], found["evidence"]) == ("failed", "old", ["new"])
    assert [rank.evidence for rank in world.ranks] == [["new"], ["new"]]
    assert found["verdict"]["class"] == "bad_argument"
    assert found["sentence"].startswith(found["verdict"]["msg"] + " Release old, the last good one, serves again, after ")


@pytest.mark.parametrize(
    ("world", "options", "end"),
    [(fresh, {}, "All ranks of pair1 are stopped, and no earlier release passed its gate on all of them."), (pair, {"rollback": False}, "pair1 are stopped.")],
    ids=["without an earlier one", "if rollback is off"],
)
def test_a_release_that_fails_leaves_the_group_stopped(world: Callable[..., World], options: dict[str, Any], end: str) -> None:
    group = world(new=["flag"])
    found = group.change("new", **options)
    assert (found["result"], found["release"]) == ("failed", "")
    assert not any(rank.runs() for rank in group.ranks)
    assert found["sentence"].endswith(end)


def test_a_passed_release_waits_for_a_node_that_reboots_in_its_boot(world: World) -> None:
    assert world.change("new")["result"] == "serves"
    during(world, "judging", lambda: world.reboot(1, 70.0), 5.0)
    found = world.change("new", reasons=["restart"], wait_seconds=180)
    assert (found["result"], found["attempt"]) == ("serves", 2)
    assert any(event["text"].startswith("pair1 waits up to 180 s: rank 1 on two does not answer") for event in world.store.kept)
    assert world.serves("new")


def test_a_passed_release_starts_again_after_transient_failures_with_growing_pauses() -> None:
    world = pair(old=["killed"], new=["good"])
    world.kill(1)
    world.run(10)
    found = world.change("old", attempts=4)
    times = starts(world)
    assert len(times) == 4
    gaps = [after - before for before, after in zip(times, times[1:])]
    assert gaps == sorted(gaps)
    assert gaps[2] - gaps[1] > 30
    assert (found["result"], found["verdict"]["class"], found["attempt"]) == ("held", "killed", 4)
    assert not any(rank.runs() for rank in world.ranks)
    assert "Release old passed its gate before; attempt 4 of it failed. All ranks of pair1 are stopped." in found["sentence"]
    assert not any("starts new" in line for line in world.log)
    assert [rank.evidence[1:] for rank in world.ranks] == [["old", "old-attempt2", "old-attempt3", "old-attempt4"]] * 2


def test_a_last_good_release_that_fails_too_leaves_the_group_stopped() -> None:
    world = pair(old=["oom"], new=["flag"])
    found = world.change("new")
    assert not any(rank.runs() for rank in world.ranks)
    assert [rank.evidence for rank in world.ranks] == [["new", "old-rollback"]] * 2
    assert "The last good release old did not start again either (pair1: rank 1 on two: cuda_oom:" in found["sentence"]
    assert found["sentence"].endswith("All ranks of pair1 are stopped: nothing serves now.")


@pytest.mark.parametrize("fault", ["stop_docker", "cut", "freeze"])
def test_no_release_starts_while_a_rank_is_not_proven_to_be_stopped(fault: str) -> None:
    world = pair(new=["flag"])
    world.when(lambda: "one starts new" in order(world), lambda: getattr(world, fault)(1, 400.0), 1.0)
    found = world.change("new")
    assert not any("starts old" in line for line in world.log)
    assert world.ranks[0].runs() == ""
    assert "No release is started: rank 1 on two " in found["sentence"]
    assert "It is not known whether a container of pair1 runs there." in found["sentence"]
    assert "nothing serves" not in found["sentence"]


@pytest.mark.parametrize("phase", ["halting", "memory", "starting", "judging", "recording", "paused"])
def test_a_stop_wins_in_every_phase(phase: str) -> None:
    world = pair(old=["killed"], new=["good"])
    if phase == "paused":
        world.kill(0)
        world.run(10)
    answers: list[Any] = []
    during(world, phase, lambda: answers.append((world.outcome()["phase"], world.stop("other@second"))))
    found = world.change("old" if phase == "paused" else "new")
    assert (found["result"], found["sentence"]) == ("stopped", "pair1 is stopped.")
    assert answers == [(phase, {"generation": 3, "joined": False})]
    done = len(world.containers_started())
    world.run(300)
    assert len(world.containers_started()) == done, "the first run starts nothing any more"


def test_a_second_change_is_refused_with_a_sentence_that_names_the_first() -> None:
    world = pair(new=["slow"], other=["good"])
    answers: list[Any] = []

    def second() -> None:
        answers.extend([world.desire("other", by="bob@desk"), world.desire("new", by="bob@desk"), world.desire("other", by="bob@desk", takeover=True)])

    during(world, "judging", second)
    world.desire("new", by="ann@laptop")
    world.run(1)
    assert answers == [None, {"generation": 2, "joined": True}, {"generation": 3, "joined": False}]
    assert re.match(r"pair1 is being changed to release new by ann@laptop since \S+Z\. Wait until that has ended", world.refusals[-1])
    assert world.settle()["release"] == "other"
    assert world.serves("other")


def test_a_restart_request_restarts_a_pair_that_serves(world: World) -> None:
    assert world.change("old", reasons=["a restart was asked for"])["result"] == "serves"
    assert order(world) == ["one halts old", "two halts old", "two starts old", "one starts old"]
    assert [label[:8] for label in world.ranks[1].evidence] == ["restart-"]


@pytest.mark.parametrize("where", ["wait", "save"])
@pytest.mark.parametrize("kinds", [["good"], ["flag"], ["oom", "good"]], ids=["passes", "fails", "fails once"])
def test_an_agent_that_is_killed_at_any_moment_continues(where: str, kinds: list[str]) -> None:
    count, moments = 1, 0
    while True:
        world = pair(new=list(kinds))
        world.desire("new")
        world.crash(where, count)
        found = world.settle()
        if world.crash_after is not None:
            break  # it settled before
        moments += 1
        wanted = "new" if kinds == ["good"] or (found["result"] == "serves") else "old"
        assert world.serves(wanted), "\n".join(world.log)
        assert found["result"] == ("serves" if wanted == "new" else "failed")
        assert found["release"] == wanted
        begun = [name for name in order(world) if name.startswith("one starts")]
        assert len(begun) <= (1 if kinds == ["good"] else 2) + 1, "\n".join(world.log)
        count += 1 if where == "save" else 2
    assert moments > 8


def test_a_rollback_is_recorded_on_all_ranks_and_one_that_cannot_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    world, rolled = pair(new=["good"]), {"from": "old", "to": "new"}
    monkeypatch.setattr(world.ranks[1], "_record", lambda *_caller, **asked: {"note": f"could not record {asked['rolled_back']}."})
    assert world.change("new", rolled_back=rolled)["warnings"] == [f"two could not record {rolled}."]
    assert world.ranks[0].rolled_back == rolled


@pytest.mark.parametrize("number", [0, 1])
def test_a_receipt_that_cannot_be_written_is_a_warning(world: World, number: int) -> None:
    during(world, "judging", lambda: world.fill_disk(number, 600.0))
    found = world.change("new")
    host = world.ranks[number].host
    assert found["result"] == "serves"
    assert any(text.startswith(f"{host} could not record the release: ") and "No space left on device" in text for text in found["warnings"])
    world.run(100)
    assert world.serves("new")


def test_a_warning_of_the_gate_is_in_the_outcome_and_the_group_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    concluded = Judge.concluded
    monkeypatch.setattr(Judge, "concluded", lambda judge, seconds: concluded(judge, seconds) | {"warnings": ["pair1: decode_slow: too slow."]})
    world = pair(new=["good"])
    found = world.change("new")
    assert (found["result"], found["warnings"]) == ("serves", ["pair1: decode_slow: too slow."])


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_a_store_that_fails_changes_no_verdict(world: World, count: int) -> None:
    during(world, "starting", lambda: world.fail_saves(count))
    found = world.change("new")
    assert world.failed_saves > 0
    assert (found["result"], found["verdict"]["passed"], found["sentence"]) == ("serves", True, "pair1 serves release new.")
    world.run(60)
    assert world.serves("new")


def test_a_request_that_cannot_be_recorded_changes_nothing(world: World) -> None:
    world.fail_saves(1)
    assert world.desire("new") is None
    assert "the desired state cannot be recorded on the head" in world.refusals[-1]
    world.run(60)
    assert world.serves("old")


def test_a_head_that_has_lost_its_state_continues_from_the_workers_generation(world: World) -> None:
    for rank in world.ranks:
        rank.seen_generation = 41
    world.lose_state()
    world.run(30)
    assert world.serves("old"), "a pair that serves is taken over without a restart"
    assert (world.desired()["generation"], world.desired()["release"], world.outcome()["result"]) == (42, "old", "serves")
    assert order(world) == []
    assert world.desire("new") == {"generation": 43, "joined": False}
    assert world.settle()["result"] == "serves"


@pytest.mark.parametrize("what", ["new", "stop"])
def test_a_head_that_has_lost_its_state_goes_above_a_worker_that_answers_later(world: World, what: str) -> None:
    world.ranks[1].seen_generation = 41
    world.cut(1, 30.0)
    world.lose_state()
    world.run(15)
    answer = world.stop() if what == "stop" else world.desire("new")
    assert answer is not None
    world.run(20)
    found = world.settle()
    if found["result"] == "failed":  # the worker did not answer in time
        world.stop()
        found = world.settle()
    assert found["result"] == ("stopped" if what == "stop" else "serves")
    assert found["generation"] > 41


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_head_that_returns_obeys_a_stop_on_a_worker(world: World, ahead: int) -> None:
    """`ahead`: how many generations of the head the worker has not heard of."""

    def raise_generation() -> None:
        for name in ("desired.json", "outcome.json"):
            known = world.store.load(name)
            world.store.save(name, {**known, "generation": known["generation"] + ahead})

    world.reboot(0, 60.0)
    world.at(world.now + 5, world.ranks[1].stop_here)
    world.at(world.now + 10, raise_generation)
    world.run(80)
    found = world.settle()
    assert (world.desired()["state"], found["result"]) == ("stopped", "stopped")
    assert world.desired()["by"] == "a stop on two"
    world.run(200)
    assert not any(rank.runs() for rank in world.ranks)
    assert world.change("old")["result"] == "serves", "a later request starts it again"


def test_a_stop_on_a_worker_during_a_boot_is_obeyed() -> None:
    world = pair(new=["slow"])
    during(world, "judging", world.ranks[1].stop_here, 5.0)
    found = world.change("new")
    assert (found["result"], world.desired()["by"]) == ("stopped", "a stop on two")
    assert not any(rank.runs() for rank in world.ranks)


@pytest.mark.parametrize("number", [0, 1])
def test_a_hold_delays_a_start_and_is_named(world: World, number: int) -> None:
    seen: list[Any] = []
    world.hold(number, 60.0, "playbooks/reboot.yml restarts one")
    begun = world.now
    world.at(begun + 50, lambda: seen.extend([*order(world), world.serves("old")]))
    world.desire("new")
    world.run(1)
    assert seen == [True]
    assert [event["text"] for event in world.store.kept if event["kind"] == "hold"] == ["pair1 waits: playbooks/reboot.yml restarts one"]
    assert world.settle()["result"] == "serves"
    assert starts(world)[0] - begun > 60


@pytest.mark.parametrize("release", ["old", "new"], ids=["the next attempt", "the return to the last good release"])
def test_a_hold_delays_what_follows_a_failed_boot(release: str) -> None:
    world = pair(old=["killed", "good"], new=["flag"]) if release == "old" else pair(new=["flag"])
    if release == "old":
        world.kill(0)
        world.run(10)
    held: list[float] = []

    def hold() -> None:
        held.append(world.now)
        world.hold(1, 100.0)

    before = len(order(world))
    world.when(lambda: f"one halts {release}" in order(world)[before:], hold)
    assert world.change(release)["release"] == "old"
    assert starts(world)[-1] > held[0] + 100


def test_a_stop_does_not_wait_for_a_hold(world: World) -> None:
    world.hold(0, 600.0)
    world.stop()
    assert world.settle(60)["result"] == "stopped"


def test_a_pair_that_serves_without_a_desired_state_is_adopted_without_a_restart() -> None:
    world = World()
    world.add_release("old", ["good"], good=True)
    world.place("old")
    world.run(30)
    assert (world.outcome()["result"], world.outcome()["release"], world.outcome()["final"]) == ("serves", "old", True)
    assert order(world) == []
    found = world.desire("old")
    assert found is not None
    assert (found["generation"], found["joined"]) == (1, True)
    assert any(each.startswith("timeout not set -> ") for each in found["adjusted"]), "it took those of the run"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (lambda world: world.ranks[1].owner.update(head=OTHER_HEAD), "rank 1 on two cannot be used: two has another owner"),
        (lambda world: world.ranks[1].releases.pop("new"), "pair1: rank 1 on two: releases/new is missing. Nothing was changed. Remedy: run site.yml"),
        (lambda world: world.cut(1, 300.0), "rank 1 on two does not answer"),
        (lambda world: world.freeze(1, 300.0), "rank 1 on two does not answer"),
        (lambda world: (world.reboot(1, 300.0), world.run(1)), "rank 1 on two does not answer"),
    ],
    ids=["a rank of another head", "a missing release", "a cut session", "a frozen node", "a node that reboots"],
)
def test_what_keeps_a_start_from_its_boot_is_named_and_stops_nothing(world: World, fault: Callable[[World], object], text: str) -> None:
    fault(world)
    found = world.change("new")
    assert (found["result"], text in found["sentence"], "Nothing was changed." in found["sentence"]) == ("failed", True, True)
    assert order(world) == []


def test_a_session_that_is_cut_for_a_moment_does_not_end_a_boot() -> None:
    world = pair(new=["slow"])
    during(world, "judging", lambda: world.cut(1, 15.0), 10.0)
    assert world.change("new")["result"] == "serves"


@pytest.mark.parametrize(("options", "result"), [({}, "serves"), ({"wait_seconds": 0}, "failed")])
def test_a_request_without_options_waits_for_memory(world: World, options: dict[str, Any], result: str) -> None:
    world.ranks[1].hog_until = world.now + 30.0
    world.agent.desire("serving", "new", options={"wait_available": 0.7, "rollback": False, **options})
    assert world.settle()["result"] == result


def test_a_head_without_docker_while_the_receipt_is_recorded_does_not_serve(world: World) -> None:
    during(world, "recording", lambda: world.stop_docker(0, 30.0))
    during(world, "recording", lambda: world.cut(1, 30.0), 3.0)
    found = world.change("new")
    assert (found["result"], found["attempt"]) == ("serves", 2), "neither rank could be read, and the API did not answer"
    assert world.serves("new")
    assert "its rank could not be read for 20 s" in found["warnings"][0]


def test_the_result_of_the_collective_test_is_in_the_receipt_of_its_release_alone() -> None:
    tested = {"class": "", "failed": False, "msg": "gloo over TCP.", "gb_s": 0.5}
    world = pair(new=["good"])
    assert world.change("new", collective=tested)["verdict"]["receipt"]["collective"] == tested
    world = pair(new=["garbled"], old=["good"])
    world.change("new", collective=tested)
    assert world.serves("old")
    kept = world.ranks[0].releases["old"]["receipt"]
    assert kept["passed"]
    assert "collective" not in kept


def test_an_error_in_the_judgement_leaves_a_pair_as_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.allow_errors = True
    monkeypatch.setattr("ansible_collections.gb10.cluster.plugins.module_utils._gate.judge.Judge.concluded", lambda *_args: 1 / 0)
    found = world.change("new")
    assert found["verdict"]["class"] == "gate_error"
    assert found["sentence"].endswith("The containers are left as they are.")
    assert world.serves("new")


def test_the_head_does_not_start_if_only_the_worker_fails_to_start(world: World) -> None:
    during(world, "memory", lambda: world.ranks[1].releases.pop("new"))
    found = world.change("new", rollback=False)
    assert found["verdict"]["class"] == "start_failed"
    assert "compose.yaml is missing on two" in found["sentence"]
    assert not any("one starts new" in line for line in world.log)


def test_every_attempt_that_loses_a_node_counts() -> None:
    world = pair(old=["slow"])

    def boots(number: int) -> bool:
        return world.is_in("judging") and bool(world.outcome()["attempt"] == number)

    for number in (1, 2):
        world.when(functools.partial(boots, number), lambda: world.cut(1, 35.0), 3.0)
    found = world.change("old", reasons=["restart"], attempts=2, wait_seconds=180)
    assert (found["result"], found["verdict"]["class"], found["attempt"]) == ("held", "node_lost", 2)


def test_a_return_that_goes_on_while_the_agent_is_down_is_not_started_again() -> None:
    world = pair(new=["flag"], old=["slow"])
    world.when(lambda: "one starts old" in order(world), world.crash, 20.0)
    found = world.change("new")
    assert (found["result"], found["release"], world.serves("old")) == ("failed", "old", True)
    assert (order(world).count("one starts old"), order(world)[-1]) == (1, "one starts old")


def test_an_outcome_of_an_earlier_generation_is_not_recorded(world: World) -> None:
    world.stop()
    with pytest.raises(Superseded):
        world.agent.settle(1, "serves", "pair1 serves release old.")
    assert not world.agent.settled()


def test_each_start_begins_and_ends_the_load_phase_of_the_disks(world: World) -> None:
    world.change("new")
    world.run(5)
    assert [rank.phases for rank in world.ranks] == [["load", "steady"]] * 2


def test_a_rank_that_cannot_drop_its_page_cache_is_one_warning_and_its_available_memory_counts() -> None:
    world = pair(new=["oom", "oom"], old=["good"])
    world.ranks[1].cache_gib = 90
    world.ranks[1].no_reclaim = "This node is a container (docker)."
    found = world.change("new")
    assert (found["result"], found["release"]) == ("failed", "old")
    assert [text for text in found["warnings"] if "container" in text] == [f"rank 1 on {world.ranks[1].host}: This node is a container (docker)."]
    assert world.ranks[1].reclaimed > 1


def test_page_cache_that_comes_back_during_the_wait_is_dropped_again(world: World) -> None:
    world.ranks[1].hog_until = world.now + 90.0
    world.when(lambda: world.ranks[1].reclaimed == 1, lambda: setattr(world.ranks[1], "cache_gib", 90), 5.0)
    assert world.change("new", wait_seconds=600)["result"] == "serves"
    assert 1 < world.ranks[1].reclaimed < 5


def returned() -> World:
    """A pair that serves release old again, after release new has failed: nothing is asked of it that it does not do."""
    world = pair(new=["flag"])
    assert world.change("new")["release"] == "old"
    return world


def test_a_release_that_serves_again_is_taken_over_without_a_restart() -> None:
    world = returned()
    before = order(world)
    assert (world.change("old")["result"], order(world)) == ("serves", before)


@pytest.mark.parametrize("fault", ["rank", "process"])
def test_a_release_that_serves_no_more_is_not_taken_over(fault: str) -> None:
    world = returned()
    if fault == "rank":
        world.kill(1)
    else:
        world.ranks[1].process_fault = "the engine process 7 is stopped"
        world.fault("an engine process of two is stopped")
    assert world.change("old", reasons=[])["result"] == "serves"
    assert world.serves("old")
    assert order(world).count("two starts old") == 2


def test_a_boot_after_a_death_is_judged_again_by_a_restarted_agent() -> None:
    world = pair(new=["good", "killed"])
    during(world, "recording", lambda: world.kill(1))
    world.when(lambda: order(world).count("one starts new") == 2, world.crash, 2.0)
    found = world.change("new", attempts=2)
    assert (found["result"], found["verdict"]["class"]) == ("held", "killed")
    assert not any(rank.runs() for rank in world.ranks)


def test_events_have_the_same_numbers_in_memory_and_in_a_file_whose_last_line_was_cut_off(tmp_path: Path) -> None:
    world = World()

    def actor() -> Actor:
        return Actor(GROUP, world.ranks, Store(str(tmp_path / "agent")), world.clock)

    before = actor()
    before.event("step", "first")
    before.event("step", "second")
    kept = tmp_path / "agent/events.jsonl"
    kept.write_bytes(kept.read_bytes()[:-5])
    after = actor()
    after.event("step", "third")
    assert [(each["n"], each["text"]) for each in after.events(since=2)] == [(3, "third")], "a controller that has read event 2 gets the next one"
    assert [each["n"] for each in after.store.events()] == [each["n"] for each in after.events()] == [1, 3]


def test_no_event_shows_a_secret(world: World) -> None:
    world.agent.event("warning", "pair1: the engine refused api_key=s3cretKEY7aZ twice.")
    assert world.agent.events()[-1]["text"] == "pair1: the engine refused api_key=******** twice."
