"""State files that are lost, damaged or could not be written: what serves goes on, and one event names the file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sim import nodes
from sim.nodes import EPOCH, SimRank
from sim.test_actor import during, order, pair
from sim.test_watch import events, watched
from sim.world import World


def restarted(world: World, **files: str | None) -> World:
    """Replace files of the head's agent (None: remove them), kill it, and let the next one work."""
    for name, text in files.items():
        world.store.files.pop(f"{name}.json", None)
        if text is not None:
            world.store.files[f"{name}.json"] = text
    world.crashed = True
    world.run(60)
    return world


def warnings(world: World) -> list[str]:
    return [str(event["text"]) for event in world.store.kept if event["kind"] == "warning"]


def changed() -> World:
    """A pair that serves a release since a request with reasons, and is watched."""
    world = watched()
    assert world.change("new")["result"] == "serves"
    world.run(20)
    return world


@pytest.fixture(name="world")
def changed_world() -> World:
    return changed()


LOST = [None, "", "{", "[]"]


@pytest.mark.parametrize("text", LOST)
def test_a_restarted_agent_without_its_outcome_leaves_a_pair_that_serves_as_it_is(world: World, text: str | None) -> None:
    before = order(world)
    assert world.desired()["reasons"]
    restarted(world, outcome=text)
    assert (order(world), world.serves("new"), world.outcome()["result"]) == (before, True, "serves")
    assert warnings(world) == [f"pair1: outcome.json was {'lost' if text is None else 'damaged'}; what runs was read instead"]
    world.kill(1)
    world.run(200, until=lambda: bool(events(world, "recovered")))
    assert world.serves("new"), "it is watched"


@pytest.mark.parametrize("release", ["new", "old"])
def test_an_outcome_that_could_not_be_written_restarts_nothing(release: str) -> None:
    world = pair(new=["good"])
    world.desire(release, reasons=["a new setting"])
    world.fill_disk(0, 1e6)
    assert world.settle()["result"] == "serves"
    before = order(world)
    restarted(world)
    assert (order(world), world.serves(release), world.outcome()["result"]) == (before, True, "serves")


@pytest.mark.parametrize(("kind", "release"), [("slow", "new"), ("hang", "old")], ids=["passes", "gives way to the last good release"])
def test_a_boot_whose_outcome_is_lost_is_judged_and_not_started_again(kind: str, release: str) -> None:
    world = pair(new=[kind])
    during(world, "judging", lambda: world.store.files.pop("outcome.json"), 15.0)
    during(world, "judging", world.crash, 15.0)
    assert world.change("new")["release"] == release
    assert (order(world).count("one starts new"), world.serves(release)) == (1, True)


@pytest.mark.parametrize("how", ["lost", "full"])
def test_the_last_good_release_that_took_over_stays_and_is_watched(how: str) -> None:
    world = watched()
    world.boots["new"] = ["flag"]
    if how == "full":  # the failed verdict is written, what follows is not
        world.when(lambda: world.is_in("halting") and bool(world.outcome().get("verdict")), lambda: world.fill_disk(0, 1e6))
    assert world.change("new")["release"] == "old"
    world.run(20)
    before = order(world)
    restarted(world, **({"outcome": None} if how == "lost" else {}))
    found = world.outcome()
    assert (order(world), world.serves("old")) == (before, True)
    assert (found["result"], found["release"], found["final"]) == ("failed", "old", True)
    world.heal()
    world.kill(0)
    world.run(300, until=lambda: bool(events(world, "recovered")))
    assert world.serves("old"), "it is watched"


@pytest.mark.parametrize("text", ["", "{", "null"])
@pytest.mark.parametrize("outcome", [True, False])
def test_a_pair_whose_desired_state_is_damaged_is_taken_over_and_the_file_is_named(world: World, text: str, outcome: bool) -> None:
    before = order(world)
    generation = world.desired()["generation"]
    restarted(world, desired=text, **({} if outcome else {"outcome": "{"}))
    assert (order(world), world.serves("new"), world.outcome()["result"]) == (before, True, "serves")
    assert (world.desired()["release"], world.desired()["generation"]) == ("new", generation + 1)
    assert warnings(world)[0] == "pair1: desired.json was damaged; what runs was read instead"
    assert len(warnings(world)) == (1 if outcome else 2)
    count = len(warnings(world))
    restarted(world)
    assert len(warnings(world)) == count, "it is written again"


def test_a_missing_desired_state_is_named_if_the_agent_has_worked_before(world: World) -> None:
    restarted(world, desired=None)
    assert warnings(world) == ["pair1: desired.json was lost; what runs was read instead"]
    fresh = World()
    fresh.add_release("new", ["good"])
    fresh.run(6)
    assert fresh.change("new")["result"] == "serves"
    assert warnings(fresh) == []


def test_half_of_a_pair_without_a_desired_state_is_reported_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "PEER_SECONDS", 1e6)  # the engine goes on without its peer
    world = changed()
    world.kill(1)
    for name in ("desired.json", "outcome.json"):
        del world.store.files[name]
    world.crashed = True
    before = order(world)
    world.run(60)
    text = (
        "The desired state of pair1 is not known: rank 0 on one runs release new, rank 1 on two runs nothing."
        " The agent does not watch that. Run site.yml to serve, or stop.yml."
    )
    assert warnings(world)[-1] == world.outcome()["sentence"] == text
    assert order(world) == before
    world.stop()
    assert world.settle()["result"] == "stopped"
    restarted(world)
    assert warnings(world).count(text) == 1


def test_a_pair_is_taken_over_although_a_docker_engine_starts_after_the_agent(world: World) -> None:
    box = world.ranks[1].container
    world.ranks[1].docker_until = world.now + 30.0  # it does not answer, and its containers live
    restarted(world, desired=None, outcome=None)
    assert world.ranks[1].container is box
    assert (world.serves("new"), world.outcome()["result"]) == (True, "serves")


def test_a_damaged_record_of_the_watch_is_named(world: World) -> None:
    restarted(world, watch="{")
    assert warnings(world) == ["pair1: watch.json was damaged; its counts begin at 0"]
    assert world.serves("new")


@pytest.mark.parametrize("watches", [True, False])
def test_a_rank_that_has_lost_its_owner_is_named_once(watches: bool) -> None:
    world = changed() if watches else pair()
    world.ranks[1].owner = {}
    world.run(100)
    text = "rank 1 on two has no owner: owner.json was lost or damaged. The next start or stop writes it again."
    assert (warnings(world), world.outcome()["warnings"]) == ([text], [text])
    world.desire(world.outcome()["release"])  # a run of site.yml that changes nothing
    world.run(100)
    assert not world.ranks[1].owner
    assert world.change("old", reasons=["a new setting"])["result"] == "serves"
    assert world.ranks[1].owner


def test_events_whose_file_is_lost_have_numbers_above_those_that_were_read(world: World) -> None:
    last = world.store.last_number()
    for files in ({}, {"desired": None, "outcome": None}):
        world.store.kept.clear()
        restarted(world, **files)
        world.agent.event("step", "the next one")
        numbers = [event["n"] for event in world.agent.events(since=last)]
        assert numbers == sorted(set(numbers))
        assert numbers[0] >= EPOCH + world.now - 100
        last = numbers[-1]


def test_a_request_after_the_agents_start_is_not_taken_as_carried_out() -> None:
    """A start of the earlier request ends after the later one was made."""
    world = watched(["slow"])
    world.kill(1)
    world.run(100, until=lambda: world.is_in("starting"))
    world.desire("new", takeover=True)
    assert world.settle()["release"] == "new"
    assert world.serves("new")


def test_a_refused_start_is_tried_again_and_is_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose disk is full refuses each claim."""
    world = watched(restarts=2)
    claim = SimRank._claim

    def refuse(self: SimRank, caller: tuple[str, str, int]) -> dict[str, Any]:
        if self.full():
            self.owner = {**self.owner, "head": "lost"}
        try:
            return claim(self, caller)
        finally:
            self.owner = {"group": caller[0], "head": caller[1]}

    monkeypatch.setattr(SimRank, "_claim", refuse)
    world.fill_disk(1, 1800.0)
    world.kill(1)
    world.run(1700)
    assert (world.outcome()["result"], world.desired()["state"]) == ("failed", "serving"), "it is not held"
    assert "No space left on device" in world.outcome()["sentence"]
    assert len(events(world, "desired")) < 30, "the pauses grow"
    assert json.loads(world.store.files["watch.json"])["restarts"] == {"rank_dead": 1}
    world.run(600, until=lambda: bool(events(world, "recovered")))
    assert world.serves("old")


@pytest.mark.parametrize("number", [0, 1])
def test_a_full_disk_on_a_rank_does_not_prevent_a_restart(number: int) -> None:
    world = watched()
    world.fill_disk(number, 1e6)
    world.kill(1)
    world.run(300, until=lambda: world.serves("old"))
    assert world.serves("old")
