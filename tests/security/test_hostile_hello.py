"""Long texts that a worker passes on from its containers: the head bounds them and stays answerable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol, session
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import MAX_TEXT, RankError
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import merged_settings
from sim.nodes import SimRank
from sim.world import World

pytestmark = pytest.mark.slow

LONG = "x" * (1 << 20)
CONTAINER: dict[str, Any] = {
    "id": "1", "name": "gb10-pair1-rank1", "status": "running", "running": True, "pid": 1, "exit_code": 0, "oom_killed": False, "error": LONG,
    "started_at": LONG, "finished_at": "", "restart_count": 0, "image": LONG, "image_id": LONG,
    "labels": {"gb10.cluster.release": "new"}, "log": LONG,
}  # fmt: skip


class Liar(SimRank):
    """A rank whose replies are changed on their way; they pass the check of the head as those of a real one."""

    def __init__(self, rank: SimRank) -> None:
        self.__dict__.update(rank.__dict__)
        self.lies: dict[str, Any] = {}
        self.verbs: tuple[str, ...] = ()

    def carry_out(self, verb: str, caller: tuple[str, str, int], arguments: Mapping[str, Any]) -> dict[str, Any]:
        found = super().carry_out(verb, caller, arguments)
        if verb in self.verbs:
            place = found["hello"] if verb == "watch" else found
            place.update(self.lies)
        return session.checked(verb, protocol.reply_of(protocol.decode(protocol.encode({"ok": True, "result": found}))))


def lied_to(watches: bool = True) -> tuple[World, Liar]:
    world = World()
    world.settings = merged_settings({"enabled": watches})
    world.add_release("old", ["good"], good=True, age=100.0)
    world.add_release("new", ["good"])
    world.settled_as_serving("old")
    world.allow_errors = world.locally_stopped = True  # a lie may stop the pair
    liar = world.ranks[1] = Liar(world.ranks[1])
    world.run(6)
    return world, liar


def answers(world: World) -> int:
    """Return the bytes of the largest reply that `gb10 events` and `gb10 state` need."""
    assert world.actor is not None
    state, events = world.actor.state(), world.actor.events()
    shown = world.watch.shown if world.watch is not None else {}
    return max(len(protocol.encode({"ok": True, "result": {**state, **more}})) for more in ({"watch": shown}, {"events": events, "next": 0}))


def heals(world: World, liar: Liar) -> None:
    """The worker is honest again: a stop and a start succeed, also those of a restarted agent."""
    liar.lies = {}
    world.run(35)
    assert answers(world) < protocol.MAX_LINE
    world.crashed = True
    world.run(10)
    assert answers(world) < protocol.MAX_LINE
    world.stop()
    assert world.settle()["result"] == "stopped"
    world.desire("new", reasons=["asked"], takeover=True)
    assert world.settle()["result"] == "serves", world.outcome()
    assert world.serves("new")


@pytest.mark.parametrize(
    ("verb", "lies"),
    [
        ("watch", {"stopped": LONG, "stop_generation": 50}), ("look", {"missing": ["\x01" * 40] * 9000}), ("start", {"error": "\x01" * (1 << 20)}),
        ("hello", {"holds": [{"name": "h", "reason": LONG, "until": 1e12}]}), ("look", {"containers": [CONTAINER]}),
    ],
)  # fmt: skip
def test_long_texts_of_a_worker_leave_the_agent_answerable(verb: str, lies: dict[str, Any]) -> None:
    world, liar = lied_to(watches=verb == "watch")
    liar.verbs, liar.lies = (verb,), dict(lies)
    world.at(world.now + 300.0, liar.lies.clear)  # a start waits for a hold without an end
    for release in ("new", "old"):
        world.desire(release, reasons=["asked"], takeover=True)
        world.run(200)
        assert answers(world) < protocol.MAX_LINE
    heals(world, liar)


@pytest.mark.parametrize("verb", ["hello", "watch"])
@pytest.mark.parametrize("lies", [{"generation": 2**63 - 1}, {"generation": 2**63}, {"generation": -(2**70)}, {"stopped": "now", "stop_generation": 2**63}])
def test_no_number_of_a_worker_locks_start_or_stop(verb: str, lies: dict[str, Any]) -> None:
    world, liar = lied_to(watches=verb == "watch")
    liar.verbs, liar.lies = (verb,), dict(lies)
    for release in ("new", "old"):
        world.desire(release, reasons=["asked"], takeover=True)
        world.run(200)
    heals(world, liar)


def test_texts_of_a_reply_are_cut_but_a_log_a_manifest_and_a_receipt() -> None:
    long = "é" * (MAX_TEXT + 5)
    found = session.checked("start", {"error": long, "receipt": {"text": long}, "manifest": long, "more": [{"deep": long, long: 1e300, "log": long}]})
    assert (found["error"], found["receipt"], found["manifest"]) == (long[:MAX_TEXT], {"text": long}, long)
    assert found["more"] == [{"deep": long[:MAX_TEXT], long[:MAX_TEXT]: None, "log": long[:MAX_TEXT]}]
    log: dict[str, Any] = {"log": "QUJD" * MAX_TEXT, "cursor": "5:1", "container": None, "memory": {}, "http_status": 0}
    assert session.checked("slice", log) == log


def test_a_reply_with_too_many_texts_is_refused() -> None:
    with pytest.raises(RankError, match="its reply to start is not valid: it has more than"):
        session.checked("start", {"error": "", "more": ["x" * 100] * 20_000})


@pytest.mark.parametrize(("verb", "wrong"), [("hello", {}), ("watch", {"hello": {}}), ("halt", {"left": "x"}), ("look", [])])
def test_a_reply_of_another_type_is_refused(verb: str, wrong: Any) -> None:
    with pytest.raises(RankError, match=f"its reply to {verb} has no valid"):
        session.checked(verb, wrong if isinstance(wrong, dict) else {"containers": wrong})
