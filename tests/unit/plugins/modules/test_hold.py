"""The hold module against an agent that keeps holds."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._agent.client import AgentMissing
from ansible_collections.gb10.cluster.plugins.modules.hold import hold

PARAMS: dict[str, Any] = {"state": "present", "name": "reboot", "reason": "reboot.yml restarts this node", "seconds": 600}


class FakeAgent:
    """The holds of one rank; it does not answer the first `late` calls."""

    def __init__(self) -> None:
        self.holds: list[dict[str, Any]] = [{"name": "other", "reason": "an upgrade", "until": 99.0}]
        self.calls: list[str] = []
        self.late = 0
        self.paused = 0.0

    def call(self, verb: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        if self.late:
            self.late -= 1
            raise AgentMissing("no socket")
        self.calls.append(verb)
        if verb != "hello":
            self.holds = [each for each in self.holds if each["name"] != arguments["name"]]
        if verb == "hold":
            self.holds.append({"name": arguments["name"], "reason": arguments["reason"], "until": arguments["seconds"]})
        return {"holds": list(self.holds)}

    def pause(self, seconds: float) -> None:
        self.paused += seconds


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


def run(agent: FakeAgent, check: bool = False, **params: Any) -> dict[str, Any]:
    return hold({**PARAMS, **params}, check, agent.call, agent.pause)


def test_a_hold_is_taken_extended_and_released(agent: FakeAgent) -> None:
    taken = run(agent)
    assert (taken["changed"], taken["active"], [each["name"] for each in taken["holds"]]) == (True, True, ["other", "reboot"])
    extended = run(agent, seconds=900)
    assert (extended["changed"], extended["holds"][-1]["until"]) == (False, 900)
    released = run(agent, state="absent")
    assert (released["changed"], [each["name"] for each in released["holds"]]) == (True, ["other"])
    diff = released["diff"]
    assert (diff["before"], diff["after"]) == ("other: an upgrade\nreboot: reboot.yml restarts this node\n", "other: an upgrade\n")
    assert run(agent, state="absent")["changed"] is False


@pytest.mark.parametrize("params", [{}, {"state": "absent", "name": "other"}])
def test_check_mode_predicts_and_changes_nothing(agent: FakeAgent, params: dict[str, Any]) -> None:
    predicted = run(agent, True, **params)
    assert agent.calls == ["hello"]
    done = run(agent, **params)
    assert (predicted["changed"], predicted["diff"]) == (done["changed"], done["diff"])


def test_an_agent_that_has_just_been_started_gets_ten_seconds(agent: FakeAgent) -> None:
    agent.late = 5
    assert run(agent)["changed"]
    assert agent.paused == 2.5
    agent.late, agent.paused = 100, 0.0
    with pytest.raises(AgentMissing):
        run(agent)
    assert agent.paused == 10
