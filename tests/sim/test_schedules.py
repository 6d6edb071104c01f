"""Random schedules of faults and requests: the invariants of sim.world hold at every moment, and every schedule ends with a settled outcome.

GB10_SCHEDULES sets the number of schedules (500 without it).
"""

from __future__ import annotations

import functools
import os
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import merged_settings
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sim.nodes import KINDS
from sim.world import World

#: What is done, and when.
Actions = list[tuple[tuple[str, float], tuple[Any, ...]]]
SCHEDULES = int(os.environ.get("GB10_SCHEDULES") or 500)
BEGINNINGS = ("nothing", "serves", "unknown", "stopped")
SECONDS = st.sampled_from((2.0, 8.0, 25.0, 60.0))
RANKS = st.sampled_from((0, 1))
BY = st.sampled_from(("admin@first", "admin@second"))
ACTIONS = st.one_of(
    st.tuples(st.just("desire"), st.sampled_from(("old", "new", "other")), BY, st.booleans()),
    st.tuples(st.just("stop"), BY),
    st.tuples(st.just("kill"), RANKS, st.sampled_from(("killed", "oom", "exit"))),
    st.tuples(st.just("crash"), st.sampled_from(("wait", "save")), st.sampled_from((1, 2, 3, 5, 9, 20))),
    st.tuples(st.just("cut"), st.just(1), SECONDS),
    st.tuples(st.just("freeze"), st.just(1), SECONDS),
    st.tuples(st.just("hang"), st.just(1), SECONDS),
    st.tuples(st.just("slow"), RANKS, SECONDS),
    st.tuples(st.just("fill_disk"), RANKS, SECONDS),
    st.tuples(st.just("stop_docker"), RANKS, SECONDS),
    st.tuples(st.just("reboot"), RANKS, SECONDS),
    st.tuples(st.just("hold"), RANKS, SECONDS),
    st.tuples(st.just("stop_here"), RANKS),
    st.tuples(st.just("step_wall"), st.sampled_from((-86400.0, -60.0, 60.0, 86400.0))),
    st.tuples(st.just("fail_saves"), st.sampled_from((1, 3, 30))),
    st.tuples(st.just("lose_state")),
)
DELAYS = st.sampled_from((0.0, 0.3, 1.0, 3.0, 6.0, 10.0, 20.0, 40.0))
#: When something is done: so long after what was done before, or after the agent has entered a phase.
MOMENTS = st.one_of(
    st.tuples(st.just(""), DELAYS),
    st.tuples(st.sampled_from(("halting", "memory", "starting", "judging", "recording", "paused")), st.sampled_from((0.0, 0.5, 3.0, 12.0))),
)
BOOTS = st.lists(st.sampled_from((*KINDS, "good", "good", "slow")), min_size=1, max_size=3)


def world_of(beginning: str, new: list[str], other: list[str], old: list[str]) -> World:
    """Return a group in one of the states in which a schedule begins."""
    world = World()
    world.add_release("old", old, good=beginning != "nothing", age=100.0)
    world.add_release("new", new, age=50.0)
    world.add_release("other", other, age=40.0)
    world.add_release("good", ["good"], age=30.0)
    if beginning == "serves":
        world.settled_as_serving("old")
    elif beginning == "unknown":
        world.place("old")
    elif beginning == "stopped":
        world.settled_as_serving("old")
        for rank in world.ranks:
            rank.container = None
            rank.mark, rank.stop_generation = "by admin@first", 1
        world.store.save("desired.json", {**world.store.load("desired.json"), "state": "stopped", "known_stop": 1})
        world.store.save("outcome.json", {**world.store.load("outcome.json"), "result": "stopped", "sentence": "pair1 is stopped.", "release": ""})
    return world


def serves_unattended(world: World) -> None:
    """Without a request, a group that is expected to serve does so in the end, or its outcome is another one."""

    def over() -> bool:
        return world.serves(world.outcome()["release"]) or world.outcome()["result"] in ("held", "failed") or world.desired()["state"] == "stopped"

    world.run(900.0, until=over)
    assert over(), "\n".join([*world.log[-60:], *map(str, world.store.kept[-20:])])


def play(beginning: str, boots: tuple[list[str], list[str], list[str]], actions: Actions, ending: str, stop: float, watched: bool) -> World:
    """Play a schedule; then all faults end, and a good release is desired, after a stop if that is the ending."""
    world = world_of(beginning, *boots)
    world.stop_seconds = stop
    world.settings = merged_settings({"enabled": watched})
    world.run(3.0)
    when = world.now
    for (phase, delay), (name, *arguments) in actions:
        what = functools.partial(getattr(world, name), *arguments)
        if phase:
            world.when(functools.partial(world.is_in, phase), what, delay)
        else:
            when += delay
            world.at(when, what)
    world.run(when - world.now + 30.0)
    world.heal()
    if world.desired().get("state"):
        found = world.settle()
        if found["result"] == "stopped":
            assert not any(rank.runs() for rank in world.ranks), "\n".join(world.log[-60:])
    if watched and world.desired().get("state") == "serving" and world.outcome()["result"] == "serves":
        serves_unattended(world)
    world.run(5.0)
    if ending == "stop":
        world.stop("admin@last")
        found = world.settle()
        assert found["result"] == "stopped", "\n".join([str(found["sentence"]), *world.log[-60:]])
        assert not any(rank.runs() for rank in world.ranks), "\n".join(world.log[-60:])
    for _again in range(3):  # a stop on a worker that the head has not seen yet comes first
        answer = world.desire("good", "admin@last", takeover=True)
        assert answer is not None, "\n".join(world.log[-60:])
        found = world.settle()
        if world.desired()["state"] == "serving":
            break
    assert found["result"] == "serves", "\n".join([str(found["sentence"]), *world.log[-60:]])
    assert world.serves("good"), "\n".join(world.log[-60:])
    world.run(30.0)
    assert world.serves("good"), "\n".join(world.log[-60:])
    return world


@st.composite
def schedules(draw: st.DrawFn) -> Actions:
    """Return what is done, most often after a change is desired."""
    begin = draw(st.sampled_from(("new", "new", "new", "old", "other", "")))
    first: Actions = [(("", 1.0), ("desire", begin, "admin@first", False))] if begin else []
    return first + draw(st.lists(st.tuples(MOMENTS, ACTIONS), min_size=2, max_size=9))


@settings(
    derandomize=True, database=None, max_examples=SCHEDULES, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink)
)
@given(
    beginning=st.sampled_from(BEGINNINGS), boots=st.tuples(BOOTS, BOOTS, st.lists(st.sampled_from(("good", "slow", "oom", "weights")), min_size=1, max_size=3)),
    actions=schedules(), ending=st.sampled_from(("serve", "stop")), stop=st.sampled_from((2.0, 15.0)), watched=st.booleans(),
)  # fmt: skip
def test_every_schedule_settles_and_serves_in_the_end(
    beginning: str, boots: tuple[list[str], list[str], list[str]], actions: Actions, ending: str, stop: float, watched: bool
) -> None:
    play(beginning, boots, actions, ending, stop, watched)
