"""Faults of a pair that serves: it comes back by itself, and the owner is told why."""

from __future__ import annotations

import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest
from acceptance.commands import SERVING, tags
from acceptance.owner import INSTANCE, Owner, wait_for

ONLY_SERVING = tags(SERVING)
RAIL = "enp1s0f0np0"
FACTORY = Path("/var/lib/gb10-cluster/docker.json")
LONG = '{"model": "lab-stub", "prompt": "The", "max_tokens": 4000, "ignore_eos": true, "temperature": 0}'


def comes_back_with_one_start(owner: Owner, since: str, before: list[tuple[str, str]], cause: str, seconds: float = 120) -> None:
    """Wait until the fault was noticed and the pair serves again; check that all ranks are new, started once, and that the cause is told."""
    assert owner.noticed(since, cause, seconds), owner.on_node("events")
    old = {ident for ident, _start in before}
    assert wait_for(lambda: not old & {str(state["Id"]) for node in owner.nodes if (state := owner.container(node))}, 120), owner.on_node("events")
    owner.fault()
    assert owner.comes_back(), owner.on_node("events")
    after = owner.identity()
    assert {entry[0] for entry in before}.isdisjoint(entry[0] for entry in after)
    assert after[1][1] < after[0][1], "the worker starts first"
    assert len(owner.events(since, "step: pair1 starts release")) == 1, owner.on_node("events")
    assert owner.run("bring up", *ONLY_SERVING).passed().changes == set()
    assert owner.identity() == after


def reboot(*nodes: int) -> None:
    """Cut the power of nodes and start them again, and wait for their Docker Engines."""
    names = [f"gb10-lab{INSTANCE}-{node}" for node in nodes]
    for word in ("kill", "start"):
        subprocess.run(["docker", word, *names], check=True, capture_output=True, timeout=120)
    for node in nodes:
        assert wait_for(lambda node=node: bool(Owner.on(node, "docker version >/dev/null 2>&1 && echo up", check=False)), 120)  # type: ignore[misc]


@pytest.mark.quick
def test_a_killed_rank_comes_back_by_itself(served: Owner) -> None:
    since, before = served.now(), served.identity()
    served.on(2, f"kill -KILL $(docker inspect --format '{{{{.State.Pid}}}}' {served.places.container(1)})")
    comes_back_with_one_start(served, since, before, "rank 1 on lab-2: .*exited")


def test_a_dead_engine_process_is_noticed_while_its_container_runs(served: Owner) -> None:
    since, before = served.now(), served.identity()
    served.on(2, "pkill -KILL -f '[V]LLM::' || pkill -KILL VLLM")
    comes_back_with_one_start(served, since, before, "rank 1 on lab-2: ")


@pytest.mark.quick
def test_tokens_that_stand_still_are_noticed_and_the_pair_comes_back(served: Owner) -> None:
    since, before = served.now(), served.identity()
    headers = f"-H 'Authorization: Bearer {served.key()}' -H 'Content-Type: application/json'"
    line = f"curl -s -m 240 -o /dev/null {headers} -d '{LONG}' http://127.0.0.1:8000/v1/completions"
    threading.Thread(target=lambda: served.on(1, line, check=False, timeout=300), daemon=True).start()
    assert wait_for(lambda: bool(served.on(1, "curl -s http://127.0.0.1:8000/metrics | grep 'num_requests_running.* [1-9]'", check=False)), 30)
    served.fault("* wedge")
    comes_back_with_one_start(served, since, before, "token", 240)


def test_a_stopped_engine_process_is_noticed_and_the_pair_comes_back(served: Owner) -> None:
    since, before = served.now(), served.identity()
    served.on(2, "pkill -STOP VLLM")
    comes_back_with_one_start(served, since, before, "process is stopped")


@pytest.mark.quick
def test_the_pair_serves_again_after_both_nodes_lost_their_power(served: Owner) -> None:
    before = served.identity()
    reboot(1, 2)
    assert served.comes_back(240), served.on_node("events")
    assert {entry[1] for entry in before}.isdisjoint(entry[1] for entry in served.identity())
    assert served.run("bring up", *ONLY_SERVING).passed().changes == set()


def test_a_stopped_pair_stays_stopped_after_a_reboot(served: Owner) -> None:
    served.on_node("stop").passed()
    reboot(1, 2)
    assert wait_for(lambda: served.on_node("status").code == 0, 90, 1)
    assert not wait_for(lambda: not served.gone(), 15, 3), "a rank was started"
    served.on_node("status").passed().shows("stopped")


def test_a_rail_that_is_cut_and_restored_restarts_nothing(served: Owner) -> None:
    since, before = served.now(), served.identity()
    served.on(2, f"ip link set {RAIL} down")
    try:
        assert served.noticed(since, RAIL), served.on_node("events")
    finally:
        served.on(2, f"ip link set {RAIL} up; ip addr replace $(ip -o -4 addr show {RAIL} | awk '{{print $4}}') dev {RAIL} 2>/dev/null || true")
    assert served.comes_back(), served.on_node("events")
    assert served.identity() == before


def test_a_restarted_docker_engine_is_noticed_and_the_pair_comes_back(served: Owner) -> None:
    since, before = served.now(), served.identity()
    served.on(2, "systemctl restart docker", timeout=120)
    assert served.noticed(since, "lab-2"), served.on_node("events")
    assert served.comes_back(), served.on_node("events")
    assert {entry[1] for entry in before}.isdisjoint(entry[1] for entry in served.identity())


def test_a_release_that_crashes_again_and_again_is_held_until_the_owner_starts_it(served: Owner) -> None:
    served.run("bring up", *ONLY_SERVING, watch={"restarts": 1, "stable_seconds": 3600}).passed()

    def held() -> bool:
        return "held" in served.on_node("status").text

    def over(before: list[tuple[str, str]]) -> bool:
        return held() or (served.comes_back(1) and served.identity() != before)

    for _crash in range(3):
        before = served.identity()
        served.on(2, f"kill -KILL $(docker inspect --format '{{{{.State.Pid}}}}' {served.places.container(1)})")
        assert wait_for(partial(over, before), 150, 1), served.on_node("events")
        if held():
            break
    assert held(), served.on_node("events")
    assert served.gone()
    served.on_node("status").failed("crash_loop", "first time", "last time")
    served.on_node("start", "--wait").passed()
    assert served.serves()
    served.run("bring up", *ONLY_SERVING).passed()


def test_a_worker_that_was_wiped_is_rebuilt_without_a_restart(served: Owner) -> None:
    before = served.identity()
    # Docker goes on with our settings, so its factory settings, which an undo gives back, stay recorded.
    all_but_factory_settings = f"mv {FACTORY} /tmp/docker.json; rm -rf {served.places.all}; mkdir -p {FACTORY.parent}; mv /tmp/docker.json {FACTORY}"
    served.on(2, f"systemctl stop {served.places.agent_unit}; {all_but_factory_settings}")
    served.run("bring up").passed()
    assert served.identity() == before
    assert served.serves()
    assert served.on(2, f"ls {served.places.receipt}").strip() == served.places.receipt


@pytest.mark.quick
def test_a_killed_agent_goes_on_with_the_start(served: Owner) -> None:
    served.on_node("stop").passed()
    served.boot_takes(10)
    served.on_node("start", "--no-wait").passed()
    assert wait_for(lambda: served.container(1) is not None and served.container(2) is not None, 90)
    during = served.identity()
    served.on(1, f"systemctl kill -s KILL {served.places.agent_unit}")
    assert served.comes_back(), served.on_node("events")
    assert served.identity() == during


def test_a_node_that_is_off_is_named_and_the_pair_comes_back_with_it(served: Owner) -> None:
    since = served.now()
    subprocess.run(["docker", "kill", f"gb10-lab{INSTANCE}-2"], check=True, capture_output=True)
    try:
        assert served.noticed(since, "lab-2"), served.on_node("events")
        served.run("status").failed("lab-2")
    finally:
        subprocess.run(["docker", "start", f"gb10-lab{INSTANCE}-2"], check=True, capture_output=True)
    assert served.comes_back(240), served.on_node("events")
