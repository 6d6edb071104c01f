"""A served pair keeps serving without a controller. The first three tests are one story: each continues with the crashes that the one before has left."""

from __future__ import annotations

import json
import time
from typing import Any

import agents
import pytest
from acceptance.owner import wait_for
from agents import FOLDER
from container_lab import Lab
from recoveries import FAULTS, SERVES, done, noticed, serves_within


def status(lab: Lab) -> tuple[int, str]:
    """Return exit code and text of `gb10 status` on the head."""
    text, _mark, code = lab.on(1, "gb10 status 2>&1; echo exit=$?").rpartition("exit=")
    return int(code), text


def watch(lab: Lab) -> dict[str, Any]:
    """Return what the watch of the head remembers."""
    return dict(json.loads(lab.on(1, f"cat {FOLDER}/agent/watch.json 2>/dev/null || echo '{{}}'")))


@pytest.mark.long
@pytest.mark.parametrize("name", ["stopped-idle", "node", "head-node", "both", "rail"])
def test_a_pair_serves_again_after(served: Lab, name: str) -> None:
    fault = FAULTS[name]
    assert wait_for(lambda: agents.settled(served), 60)
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
    assert wait_for(lambda: agents.settled(served), 60)
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
