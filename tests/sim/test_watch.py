"""The watch of a head over a simulated pair that serves: what it notices, what it waits for, and what it does."""

from __future__ import annotations

import functools
import re
from itertools import pairwise
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import merged_settings
from ansible_collections.gb10.cluster.plugins.module_utils._pair.standing import why_lines
from sim.nodes import SimJob
from sim.world import World


def watched(boots: list[str] | None = None, **settings: Any) -> World:
    """A pair that serves release old and is watched."""
    world = World()
    world.settings = merged_settings(settings)
    world.add_release("old", boots or ["good"], good=True, age=100.0)
    world.add_release("new", ["good"], age=50.0)
    world.settled_as_serving("old")
    world.run(10)
    return world


@pytest.fixture(name="world")
def watched_world() -> World:
    return watched()


def events(world: World, kind: str) -> list[dict[str, Any]]:
    return [event for event in world.store.kept if event["kind"] == kind]


def recoveries(world: World, count: int) -> bool:
    """Whether service was restored so often."""
    return len(events(world, "recovered")) == count


def starts(world: World) -> int:
    """How often the head was started."""
    return sum(" one starts " in line for line in world.log)


def serves_again(world: World, seconds: float = 200.0) -> None:
    """Let the agent work until the episode is over."""
    world.run(seconds, until=lambda: bool(events(world, "recovered")))
    assert world.serves("old"), "\n".join([*world.log[-40:], *map(str, world.store.kept[-20:])])


@pytest.mark.parametrize("number", [0, 1])
def test_restarts_both_ranks_after_one_has_died(world: World, number: int) -> None:
    begin = world.now
    world.kill(number)
    serves_again(world)
    [fault] = [event for event in events(world, "fault") if event["cause"] == "rank_dead"][:1]
    assert re.search(rf"rank {number} on \w+: the container \S+ exited with code 137", fault["text"])
    assert events(world, "recovered")[0]["cause"] == "rank_dead"
    assert 0 < events(world, "recovered")[0]["seconds"] < world.now - begin + 1
    assert starts(world) == 1
    assert (world.shown["state"], world.shown["restarts"]) == ("serving", {"rank_dead": 1})


@pytest.mark.parametrize("fault", ["cut", "freeze"])
def test_waits_for_a_rank_that_does_not_answer_and_restarts_nothing_if_it_serves_on(world: World, fault: str) -> None:
    begin = world.now
    getattr(world, fault)(1, 60.0)
    world.run(20)
    assert events(world, "fault")[0]["cause"] == "node_lost"
    assert world.shown["state"] == "waiting"
    assert "rank 1 on two does not answer" in events(world, "waits")[0]["text"]
    serves_again(world)
    assert world.now - begin > 60
    assert starts(world) == 0
    assert "without a restart" in events(world, "recovered")[0]["text"]


def test_an_agent_that_is_updated_keeps_what_it_knows_and_is_one_event(world: World) -> None:
    since = world.shown["serving_since"]
    world.run(600)
    for rank in world.ranks:
        rank.version = "b" * 64
        world.crash("wait", 1)
        world.run(60)
    assert since
    assert world.shown["serving_since"] == since
    updated = [f"{host}: the agent was updated, version {'a' * 12} -> {'b' * 12}" for host in ("one", "two")]
    assert [event["text"] for event in events(world, "agent")] == updated
    assert world.change("old", reasons=["gb10 start on one"])["result"] == "serves"
    world.run(10)
    assert world.shown["serving_since"] > since


def test_an_engine_process_that_stays_stopped_restarts_the_group_and_a_short_stop_does_not(world: World) -> None:
    world.ranks[1].process_fault = "the engine process is stopped (PID 7, VLLM::Worker_TP1)"
    world.run(3)
    world.ranks[1].process_fault = ""
    world.run(60)
    assert (starts(world), events(world, "fault")) == (0, [])
    world.ranks[1].process_fault = "the engine process is stopped (PID 7, VLLM::Worker_TP1)"
    serves_again(world)
    assert events(world, "recovered")[0]["cause"] == "rank_stopped"
    assert starts(world) == 1


def test_a_wedge_restarts_the_group_and_useful_work_is_never_interrupted(world: World) -> None:
    world.run(60)  # the idle power is learned
    world.requests = 3
    world.run(60)
    assert (starts(world), events(world, "fault")) == (0, [])
    world.wedged = True
    begin = world.now
    world.run(60, until=lambda: bool(events(world, "fault")))
    [fault] = events(world, "fault")
    assert fault["cause"] == "wedge"
    assert re.search(r"3 requests held, no token for \d\d s, .* \(12\.0 W, idle 12\.0 W, 100 %\)$", fault["text"])
    assert world.now - begin <= 35
    serves_again(world)
    assert starts(world) == 1


def busy(world: World, seconds: float = 20.0) -> World:
    """Let requests run from now on."""
    world.requests = 3
    world.run(seconds)
    return world


def wedges(world: World) -> float:
    """Let the engine wedge, and return the seconds until that is decided."""
    count, begin = len(events(world, "fault")), world.now
    world.wedged = True
    world.run(120, until=lambda: len(events(world, "fault")) > count)
    assert [event["cause"] for event in events(world, "fault")[count:]] == ["wedge"], "\n".join(map(str, world.store.kept[-10:]))
    return world.now - begin


def test_a_wedge_is_noticed_by_an_agent_that_never_saw_the_group_idle(world: World) -> None:
    world.run(60)
    busy(world)
    world.crash("wait", 1)
    world.run(30)
    assert wedges(world) <= 35


def test_the_idle_power_is_read_right_after_the_gate() -> None:
    world = World()
    world.settings = merged_settings({})
    world.add_release("old", ["good"], age=100.0)
    world.run(1)
    assert world.change("old")["result"] == "serves"
    world.run(3)
    assert wedges(busy(world)) <= 35


def test_an_idle_power_of_the_release_before_is_replaced_by_that_of_the_present_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run(60)
    monkeypatch.setattr(World, "load", lambda world: (45.0, 95.0) if world.requests else (20.0, 0.0))
    world.change("new")
    world.run(60)
    assert world.watch is not None
    assert world.watch.record["idle_power_w"] == 20.0


def test_a_wedge_that_ends_by_itself_is_reported_without_a_restart() -> None:
    world = watched(stable_seconds=600.0)
    world.run(30)
    for count in range(2):
        world.kill(1)
        world.run(300, until=functools.partial(recoveries, world, count + 1))
        world.run(3)
    wedges(busy(world, 5.0))
    world.run(60, until=lambda: any("before a restart" in event["text"] for event in events(world, "step")))
    world.wedged = False
    world.run(60, until=lambda: recoveries(world, 3))
    assert starts(world) == 2, "\n".join(map(str, world.store.kept))
    assert [event["text"] for event in events(world, "step")][-1] == "pair1 waits 5 s before a restart of release old: it has failed 3 times in a row"
    assert " restarts release" not in " ".join(event["text"] for event in world.store.kept)
    assert "serves release old again without a restart" in why_lines(world.outcome(), world.agent.events(), "/group")[-1]


# --- seconds without service


def test_seconds_without_service_begin_with_the_last_token(world: World) -> None:
    world.run(30)
    busy(world)
    begin = world.now
    wedges(world)
    assert world.shown["unserved_seconds"] >= world.now - begin - 5, "metrics are read every 5 s"
    serves_again(world)
    [recovered] = events(world, "recovered")
    assert world.now - begin - 6 <= recovered["seconds"] <= world.now - begin + 1
    assert world.shown["unserved_seconds"] == world.shown["last"]["unserved_seconds"] == recovered["seconds"]


@pytest.mark.parametrize("requests", [0, 3], ids=["idle", "busy"])
def test_seconds_without_service_begin_when_a_rank_was_stopped(world: World, requests: int) -> None:
    world.requests = requests
    world.run(20)
    begin = world.now
    world.ranks[1].process_fault = "the engine process is stopped (PID 7, VLLM::Worker_TP1)"
    world.wedged = True
    serves_again(world)
    assert world.now - begin - 4 <= events(world, "recovered")[0]["seconds"] <= world.now - begin + 1


def test_an_idle_group_that_gets_a_request_is_not_without_service_since_its_last_one(world: World) -> None:
    busy(world, 10.0)
    world.requests = 0
    world.run(600)
    world.wedged, world.requests = True, 1
    begin = world.now
    serves_again(world)
    assert events(world, "recovered")[0]["seconds"] <= world.now - begin + 1


@pytest.mark.parametrize("requests", [0, 3], ids=["idle", "busy"])
def test_a_head_that_does_not_reach_a_rank_of_a_group_that_serves_counts_nothing(world: World, requests: int) -> None:
    world.requests = requests
    world.run(20)
    world.cut(1, 86.0)
    world.run(60)
    assert (events(world, "fault")[0]["cause"], world.shown["unserved_seconds"]) == ("node_lost", 0.0)
    world.requests = 0
    serves_again(world)
    assert (events(world, "recovered")[0]["seconds"], world.shown["unserved_seconds"]) == (0.0, 0.0)


def test_a_rank_that_is_lost_and_takes_the_requests_with_it_counts_from_the_last_token(world: World) -> None:
    busy(world)
    begin = world.now
    world.freeze(1, 60.0)
    serves_again(world)
    assert starts(world) == 0
    assert 50 <= events(world, "recovered")[0]["seconds"] <= world.now - begin + 1


def test_a_group_that_is_held_counts_until_it_serves_again() -> None:
    world = watched(restarts=0)
    world.kill(1)
    world.run(200, until=lambda: world.outcome().get("result") == "held")
    world.run(10)
    before = world.shown["unserved_seconds"]
    assert before > 0
    world.run(100)
    assert 95 <= world.shown["unserved_seconds"] - before <= 106
    world.desire("old", reasons=["gb10 start on one"])
    world.settle()
    world.run(10)
    assert world.shown["unserved_seconds"] == events(world, "recovered")[0]["seconds"] > before + 95


@pytest.mark.parametrize("seconds", [94_608_000.0, -7200.0], ids=["three years ahead", "two hours back"])
@pytest.mark.parametrize("crash", [False, True], ids=["", "and the agent is killed"])
def test_a_step_of_the_clock_in_a_fault_adds_no_seconds(world: World, seconds: float, crash: bool) -> None:
    world.run(30)
    begin = world.now
    world.kill(1)
    world.run(6)
    world.step_wall(seconds)
    if crash:
        world.crash("wait", 1)
    serves_again(world, 400)
    assert 0 < world.shown["unserved_seconds"] <= world.now - begin + 1


# --- kernel log


@pytest.mark.parametrize(("count", "expected"), [(9, 0), (10, 1), (163, 1)])
def test_many_lines_of_a_driver_without_memory_are_one_event(world: World, count: int, expected: int) -> None:
    for number in range(count):
        world.ranks[1].kernel += [{"at": "2026-11-27T00:00:00Z", "kind": "driver_no_memory", "text": f"NVRM: line {number}"}]
        world.run(0.6)
    world.run(3)
    assert len(events(world, "kernel")) == expected


def test_kernel_events_are_reported_after_the_clock_was_set_back(world: World) -> None:
    world.ranks[1].kernel += [{"at": "2026-01-01T00:00:00Z", "kind": "oom_killed", "text": "Out of memory: Killed process 1"}]
    world.run(5)
    assert [event["text"] for event in events(world, "kernel")] == ["two: Out of memory: Killed process 1"]
    world.run(60)
    world.crash("wait", 1)
    world.run(30)
    assert len(events(world, "kernel")) == 1, "once, also by the next agent"


def test_an_idle_wedge_is_found_by_a_completion(world: World) -> None:
    world.wedged = True
    begin = world.now
    world.run(120, until=lambda: bool(events(world, "fault")))
    assert events(world, "fault")[0]["cause"] == "idle_wedge"
    assert world.now - begin <= 90
    serves_again(world)
    assert starts(world) == 1


def test_a_decode_that_gets_slow_is_a_warning_once_and_again_when_it_is_over(world: World) -> None:
    world.run(13 * 620)
    assert events(world, "warning") == []
    world.speed = 24.0
    world.run(4 * 620)
    world.requests = 3
    world.speed = 10.0  # of a group that is busy, it is not measured
    world.run(2 * 620)
    world.requests = 0
    world.meets_canary = 1  # nor of one that gets a request meanwhile
    for _each in range(4):
        world.run(620)
        world.requests = 0
    world.meets_canary = 0
    assert events(world, "warning") == []
    world.run(6 * 620)
    assert [event["text"] for event in events(world, "warning")] == [
        "pair1: decoding is slow: look at clocks and power of all ranks with `gb10 doctor`. It made 10.0 tokens/s while nothing else ran, and usually 25.0."
    ]
    world.crash("wait", 1)
    world.speed = 25.0
    world.run(5 * 620)
    assert [event["text"].partition(". It made")[0] for event in events(world, "warning")[1:]] == ["pair1: decoding is as fast as before"]
    assert (starts(world), events(world, "fault"), world.watch and world.watch.shown["canary_tok_s"]) == (0, [], 25.0)


def test_an_engine_that_refuses_connections_is_not_reported_as_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_collections.gb10.cluster.plugins.module_utils._pair.watch.SETTLE_SECONDS", 10.0)  # time for a completion
    world = watched()
    world.reboot(0, 5.0)
    serves_again(world, 400)
    assert "idle_wedge" not in {event["cause"] for event in events(world, "fault")}


def test_a_lost_connection_that_is_back_at_once_is_not_reported(world: World) -> None:
    world.cut(1, 1.0)
    world.run(60)
    assert (events(world, "fault"), starts(world)) == ([], 0)


def test_a_release_that_crashes_again_and_again_is_held_with_its_first_and_last_crash() -> None:
    world = watched(restarts=3)
    for _crash in range(4):
        world.run(400, until=lambda: world.serves("old") and world.outcome().get("result") == "serves")
        world.run(5)
        world.kill(1)
        world.run(3)
    world.run(600, until=lambda: world.outcome().get("result") == "held")
    found = world.outcome()
    assert found["result"] == "held", "\n".join([*world.log[-40:], *map(str, world.store.kept[-30:])])
    assert "crash_loop: release old has failed 4 times" in found["sentence"]
    assert starts(world) == 3
    begun = [float(line.split()[0]) for line in world.log if " one starts " in line]
    assert begun[2] - begun[1] > begun[1] - begun[0], "the pauses grow"
    assert not any(rank.runs() for rank in world.ranks)
    world.run(200)
    assert starts(world) == 3
    assert world.desire("old") is not None
    assert world.settle()["result"] == "serves"


def test_a_request_of_a_person_replaces_a_recovery_and_the_same_one_joins_it(world: World) -> None:
    world.kill(1)
    world.run(60, until=lambda: bool(world.desired()["auto"]) and world.outcome()["phase"] == "judging")
    before = world.desired()["generation"]
    assert world.desire("old", by="ann@laptop") == {"generation": before, "joined": True}
    assert world.desire("new", by="ann@laptop") == {"generation": before + 1, "joined": False}
    assert world.settle()["release"] == "new"
    assert world.serves("new")


def test_a_hold_keeps_the_watch_from_acting(world: World) -> None:
    world.hold(1, 60.0)
    world.run(5)
    world.kill(1)
    world.run(40)
    assert starts(world) == 0
    serves_again(world)


def test_a_crash_after_long_service_does_not_count() -> None:
    world = watched(restarts=1)
    for _crash in range(4):
        world.run(400, until=lambda: world.serves("old") and world.outcome().get("result") == "serves")
        world.run(60)
        world.kill(1)
        world.run(3)
    world.run(200, until=lambda: len(events(world, "recovered")) == 4)
    assert world.serves("old")
    assert starts(world) == 4


def test_a_run_that_found_its_reasons_before_a_recovery_does_not_restart_the_pair_again(world: World) -> None:
    seen = world.desired()["generation"]
    world.kill(1)
    serves_again(world)
    reasons = ["rank 1 on two is not running (exit code 137)"]
    answer = world.agent.desire("serving", "old", "ann@laptop", reasons, {}, seen=seen)
    assert answer == {"generation": seen + 1, "joined": True}
    assert world.agent.desire("serving", "old", "ann@laptop", reasons, {}, seen=seen + 1)["joined"] is False


def test_a_worker_is_asked_while_the_next_attempt_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = watched(["killed"])
    asked = [world.now]
    begin = world.ranks[1].begin

    def count(verb: str, limit: float, /, **arguments: Any) -> SimJob:
        asked.append(world.now)
        return begin(verb, limit, **arguments)

    monkeypatch.setattr(world.ranks[1], "begin", count)
    world.desire("old", reasons=["restart"], attempts=5)
    assert world.settle(600)["result"] == "held"
    assert max(after - before for before, after in pairwise(asked)) < 45, "head_seconds is 60"


def test_restarts_of_a_docker_engine_are_not_crashes() -> None:
    world = watched(restarts=1)
    for count in range(3):
        world.stop_docker(1, 1.0)
        world.run(300, until=functools.partial(recoveries, world, count + 1))
        world.run(3)
    assert world.serves("old")
    assert starts(world) == 3
    assert {event["cause"] for event in events(world, "recovered")} <= {"docker", "docker_restart"}


def test_options_that_change_while_it_serves_are_those_of_the_next_restart_by_the_agent(world: World) -> None:
    options = {**world.desired()["options"], "attempts": 7}
    found = world.agent.desire("serving", "old", "ann@laptop", [], options)
    assert (found["joined"], len(found["adjusted"])) == (True, 1)
    world.run(5)
    assert starts(world) == 0, "nothing was restarted"
    world.kill(1)
    world.run(300, until=functools.partial(recoveries, world, 1))
    assert (world.desired()["auto"], world.desired()["options"]["attempts"]) == (True, 7)


def test_a_stop_ends_the_count_of_seconds_without_service(world: World) -> None:
    busy(world)
    world.freeze(1, 400.0)
    world.run(40)
    world.stop()
    world.run(600, until=lambda: world.outcome().get("final") is True and world.desired()["state"] == "stopped")
    world.run(30)
    counted = world.shown["unserved_seconds"]
    assert counted > 30
    world.run(300)
    assert (world.shown["unserved_seconds"], world.shown["fault"]) == (counted, {})
    assert events(world, "recovered") == []


def test_a_peer_that_ends_because_of_a_restarted_docker_engine_is_not_a_crash(world: World) -> None:
    world.ranks[0].engine_id += 1  # the head's engine restarts, and the worker's container is seen first
    world.kill(1)
    serves_again(world)
    world.run(10)
    assert world.watch is not None
    assert world.watch.record["crashes"] == []
    world.kill(1)
    world.run(6)
    assert len(world.watch.record["crashes"]) == 1


def test_a_lack_of_memory_is_waited_for_and_uses_up_no_restarts() -> None:
    world = watched(restarts=1)
    world.ranks[1].hog_until = world.now + 3600.0
    world.kill(0)
    world.kill(1)
    world.run(3500)
    assert starts(world) == 0
    assert "20.0 GiB of 120.0 GiB of memory are available" in events(world, "waits")[0]["text"]
    serves_again(world)
    assert starts(world) == 1


def test_the_cause_is_that_of_the_rank_that_ended_first_also_if_it_is_read_last(world: World) -> None:
    world.ranks[1].memory_stop = "1.0 GiB of memory were available, less than 1.5 GiB, so the rank has stopped itself"
    world.cut(1, 3.0)  # the worker is read late
    world.kill(1)
    world.kill(0)
    serves_again(world)
    assert events(world, "fault")[0]["cause"] == "rank_dead"
    assert events(world, "recovered")[0]["cause"] in ("memory", "node_lost")
    assert "rank_dead" not in world.shown["restarts"]
