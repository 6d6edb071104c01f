"""A served pair keeps serving without a controller. The first three tests are one story: each continues with the crashes that the one before has left."""

from __future__ import annotations

import json
import time
from typing import Any

import agents
import pytest
from agents import FOLDER
from container_lab import Lab
from recoveries import FAULTS, SERVES, done, noticed, restart, serves_within

AGENT = "desired by the agent on lab-1"


def status(lab: Lab) -> tuple[int, str]:
    """Return exit code and text of `gb10 status` on the head."""
    text, _mark, code = lab.on(1, "gb10 status 2>&1; echo exit=$?").rpartition("exit=")
    return int(code), text


def watch(lab: Lab) -> dict[str, Any]:
    """Return what the watch of the head remembers."""
    return dict(json.loads(lab.on(1, f"cat {FOLDER}/agent/watch.json 2>/dev/null || echo '{{}}'")))


@pytest.fixture(scope="module")
def limit(lab: Lab) -> dict[str, Any]:
    """Variables of site.yml with which the second crash from now on is the last one; the release of the inventory serves with them."""
    out = {"vllm_tp2_watch": {"restarts": len(watch(lab).get("crashes", [])) + 1}}
    run = lab.play("site.yml", "--tags", "vllm_tp2", variables=out)
    assert run.rc == 0, run.stdout[-4000:]
    return out


def test_a_pair_whose_worker_is_killed_serves_again_and_site_follows_without_a_start(lab: Lab, limit: dict[str, Any]) -> None:
    before, number = lab.identity(), agents.last_event(lab)
    kept = set(lab.on(2, f"ls {FOLDER}/evidence 2>/dev/null || true").split())
    restarts = watch(lab).get("restarts", {}).get("rank_dead", 0)
    at = FAULTS["worker"].act(lab)
    event = noticed(lab, number, 30)
    assert event["cause"] == "rank_dead"
    assert event["seen"] - at <= 5
    assert agents.wait_for(lambda: agents.judging(lab), 60), lab.on(1, "gb10 events")
    after = lab.identity()
    assert {each for each, _at in before}.isdisjoint(each for each, _at in after)
    assert any(event["kind"] == "desired" and AGENT in event["text"] for event in agents.events(lab, number))
    assert set(lab.on(2, f"ls {FOLDER}/evidence").split()) - kept, "the crash left no evidence"
    code, text = status(lab)
    assert code == 2, text
    assert "restores service; rank_dead at " in text
    run = lab.play("site.yml", "--tags", "vllm_tp2", variables=limit)
    assert run.rc == 0, run.stdout[-4000:]
    printed = " ".join(run.stdout.split())
    assert "followed the start that the agent on lab-1 began at" in printed
    assert lab.identity() == after
    assert len(agents.starts(lab, number)) == 1
    assert lab.complete() == SERVES
    code, text = status(lab)
    assert code == 0, text
    assert f"rank_dead {restarts + 1}" in text


def test_a_release_that_crashes_again_and_again_is_held(lab: Lab, limit: dict[str, Any]) -> None:
    number = agents.last_event(lab)
    lab.on(2, f"docker kill -s KILL {lab.container(2)}")
    held = agents.wait_for(lambda: (agents.state(lab).get("outcome") or {}).get("result") == "held", 90)
    assert held, lab.on(1, "gb10 events")
    assert not agents.starts(lab, number)
    assert lab.gone(), "both ranks are stopped"
    code, text = status(lab)
    assert code == 2, text
    sentence = str(agents.state(lab)["outcome"]["sentence"])
    for part in ("crash_loop", f"has failed {limit['vllm_tp2_watch']['restarts'] + 1} times", "The first time: ", "The last time: rank 1 on lab-2", "137"):
        assert part in sentence


def test_a_stopped_pair_stays_stopped_after_both_nodes_have_restarted(lab: Lab, limit: dict[str, Any]) -> None:
    lab.on(1, "gb10 stop")
    restart(1, 2)(lab)
    assert agents.wait_for(lambda: agents.settled(lab) and status(lab)[0] == 0, 60), status(lab)
    time.sleep(15)
    assert lab.gone()
    code, text = status(lab)
    assert code == 0, text
    assert "desired stopped" in text


@pytest.mark.long
@pytest.mark.parametrize("name", ["stopped-idle", "node", "head-node", "both", "rail"])
def test_a_pair_serves_again_after(served: Lab, name: str) -> None:
    fault = FAULTS[name]
    assert agents.wait_for(lambda: agents.settled(served), 60)
    out = done(served, fault)
    assert out.noticed is not None
    assert out.noticed <= fault.within
    assert out.serves is not None, served.on(1, "gb10 events")
    assert out.restarts <= 1


@pytest.mark.long
def test_a_pair_serves_again_after_both_docker_engines_have_restarted(served: Lab) -> None:
    number = agents.last_event(served)
    for node in (1, 2):
        served.on(node, "systemctl restart docker", timeout=120)
    assert noticed(served, number, 30)
    assert serves_within(served, 300), served.on(1, "gb10 events")
    assert agents.wait_for(lambda: agents.settled(served), 60)
    assert len(agents.starts(served, number)) == 1


@pytest.mark.long
def test_a_dead_pair_stays_dead_if_it_is_not_watched(served: Lab) -> None:
    off = served.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_keep_serving": False})
    assert off.rc == 0, off.stdout[-4000:]
    number = agents.last_event(served)
    served.on(2, f"docker kill -s KILL {served.container(2)}")
    time.sleep(20)
    assert not agents.events(served, number)
    assert status(served)[0] == 2
    assert served.play("site.yml", "--tags", "vllm_tp2").rc == 0
    assert served.complete() == SERVES
