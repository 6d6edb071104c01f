"""`gb10 want` against an agent that keeps one desired state."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import CommandError, desire
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError

PARAMS: dict[str, Any] = {"state": "serving", "release": "abc", "by": "admin@ctl", "reasons": [], "options": {"timeout": 60}, "takeover": False, "seen": 0}


class FakeAgent:
    """One desired state and its outcome."""

    def __init__(self) -> None:
        self.desired: dict[str, Any] = {"generation": 0, "state": "", "release": ""}
        self.result, self.busy, self.calls = "", False, list[str]()

    def call(self, verb: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        self.calls.append(verb)
        if verb == "state":
            return {"desired": dict(self.desired), "outcome": {"result": self.result}, "busy": self.busy}
        same = (self.desired["state"], self.desired["release"]) == (arguments["state"], arguments["release"])
        if same and (self.busy or (self.result == "serves" and not arguments["reasons"])):
            return {"generation": self.desired["generation"], "joined": True}
        if self.busy and not arguments.pop("takeover"):
            raise RankError("pair1 is being changed to release abc by admin@ctl.", "refused")
        self.desired = {"generation": self.desired["generation"] + 1, **arguments}
        self.busy = True
        return {"generation": self.desired["generation"], "joined": False}


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


def run(agent: FakeAgent, check: bool = False, **params: Any) -> dict[str, Any]:
    return desire({**PARAMS, **params}, check, agent.call)


def test_a_new_state_is_a_change_and_the_same_one_joins(agent: FakeAgent) -> None:
    first = run(agent)
    assert (first["changed"], first["generation"], first["joined"]) == (True, 1, False)
    assert (agent.desired["by"], agent.desired["options"]) == ("admin@ctl", {"timeout": 60})
    assert (first["diff"]["before"], first["diff"]["after"]) == ("", "serving abc\n")
    second = run(agent)
    assert (second["changed"], second["generation"], second["joined"]) == (False, 1, True)
    assert second["diff"]["before"] == second["diff"]["after"]


@pytest.mark.parametrize(
    ("params", "busy", "result"),
    [({}, True, ""), ({}, False, "serves"), ({"reasons": ["a new image"]}, False, "serves"), ({"release": "def"}, False, "serves"), ({}, False, "failed")],
)
def test_check_mode_predicts_and_does_not_ask_for_a_change(agent: FakeAgent, params: dict[str, Any], busy: bool, result: str) -> None:
    run(agent)
    agent.busy, agent.result, agent.calls = busy, result, []
    predicted = run(agent, True, **params)
    assert (agent.calls, predicted["generation"]) == (["state"], 1)
    done = run(agent, **params)
    assert (predicted["changed"], predicted["diff"]["after"]) == (done["changed"], done["diff"]["after"])


@pytest.mark.parametrize("error", [AgentMissing("no socket"), CommandError("The agent is that of another group.")])
def test_check_mode_needs_no_agent(error: Exception) -> None:
    def missing(verb: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        raise error

    assert desire(PARAMS, True, missing)["changed"] is True
    with pytest.raises(type(error)):
        desire(PARAMS, False, missing)


def test_a_stop_does_not_depend_on_reading_the_state(agent: FakeAgent) -> None:
    def unreadable(verb: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        if verb == "state":
            raise RankError("A message of 9000000 bytes is longer than the limit of 8388608 bytes.")
        return agent.call(verb, timeout, **arguments)

    found = desire({**PARAMS, "state": "stopped", "release": ""}, False, unreadable)
    assert (found["changed"], found["generation"]) == (True, 1)
    with pytest.raises(RankError):
        desire(PARAMS, False, unreadable)
