"""A served pair whose engine is stopped, dead or busy: status.yml and site.yml report what is true, and site.yml restarts only what does not serve."""

from __future__ import annotations

import threading

import pytest
from container_lab import BEARER, Lab
from faults import UNWATCHED

STOPPED = "the engine process is stopped (PID "


@pytest.fixture(scope="module", autouse=True)
def _settled(lab: Lab) -> None:
    """The release of the inventory serves, after any earlier test, and it is not watched."""
    run = lab.play("site.yml", "--tags", "vllm_tp2", variables=UNWATCHED)
    assert run.rc == 0, run.stdout[-4000:]


def spoken(text: str) -> str:
    """Return a run's text without Ansible's line breaks."""
    return " ".join(text.split())


def test_a_stopped_engine_process_is_reported_at_once_and_restarted(served: Lab) -> None:
    before = served.identity()
    served.on(2, "pkill -STOP -f '[V]LLM::Worker'")
    try:
        status = served.play("playbooks/status.yml")
        assert status.rc == 2, status.stdout[-4000:]
        assert status.seconds < 60, "a completion to a stopped rank takes minutes"
        assert f"pair1 does not serve: rank 1 on lab-2: {STOPPED}" in spoken(status.stdout)
        for part in ("DOES NOT SERVE  ", "pair1 rank 1 on lab-2: engine: ", "VLLM::Worker_TP", "  passed  "):
            assert part in status.stdout
        assert served.play("playbooks/status.yml", variables={"vllm_tp2_status_fail": False}).rc == 0
        smoke = served.play("playbooks/smoke.yml")
        assert smoke.rc != 0
        assert f"pair1 does not serve: rank 1 on lab-2: {STOPPED}" in smoke.last_message
        check = served.play("site.yml", "--check", "--tags", "vllm_tp2", variables=UNWATCHED)
        assert check.rc == 0, check.stdout[-4000:]
        assert "pair1 would be started to serve" in check.stdout
        assert f"rank 1 on lab-2: {STOPPED}" in spoken(check.stdout)
        assert served.identity() == before, "check mode changes nothing"
    finally:
        run = served.play("site.yml", "--tags", "vllm_tp2", variables=UNWATCHED)
    assert run.rc == 0, run.stdout[-4000:]
    assert f"rank 1 on lab-2: {STOPPED}" in spoken(run.stdout)
    assert served.complete() == (200, " Paris.")
    assert {entry[0] for entry in before}.isdisjoint(entry[0] for entry in served.identity())
    again = served.play("playbooks/status.yml")
    assert again.rc == 0, again.stdout[-4000:]
    assert "pair1 serves: a completion came back in" in spoken(again.stdout)
    assert "SERVES  pair1 serves: " in again.stdout
    assert "boot: starting" not in again.stdout


def test_a_busy_pair_is_reported_as_busy_and_left_alone(served: Lab) -> None:
    before = served.identity()
    stop = threading.Event()
    # The engine runs four sequences at once: the request of the check waits behind these.
    body = '{"model": "lab-tiny", "prompt": "The", "max_tokens": 4000, "ignore_eos": true, "temperature": 0}'
    line = f"curl -s -m 120 -o /dev/null {BEARER} -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:8000/v1/completions"

    def load() -> None:
        while not stop.is_set():
            served.on(1, line, check=False, timeout=150)
            stop.wait(0.5)

    threads = [threading.Thread(target=load, daemon=True) for _each in range(12)]
    for thread in threads:
        thread.start()
    try:
        quick = {"vllm_tp2_status_timeout": 3}
        status = served.play("playbooks/status.yml", variables=quick)
        run = served.play("site.yml", "--tags", "vllm_tp2", variables={**quick, **UNWATCHED})
    finally:
        stop.set()
        served.on(1, "pkill -f '[c]url -s -m 120' || true", check=False)
        for thread in threads:
            thread.join(30)
    for each in (status, run):
        assert each.rc == 0, each.stdout[-4000:]
        assert each.changed == set()
        assert "pair1 is busy: 4 requests running" in spoken(each.stdout)
        assert "tokens advance" in spoken(each.stdout)
        assert "pair1 serves" not in each.stdout
    assert served.identity() == before


def test_status_names_when_a_killed_worker_died(served: Lab) -> None:
    served.on(2, f"docker kill -s KILL {served.container(2)}")
    state = served.inspect(2)
    assert state is not None
    status = served.play("playbooks/status.yml")
    assert status.rc == 2, status.stdout[-4000:]
    assert status.seconds < 60, "a completion to a stopped rank takes minutes"
    died = f"exited at {state['State']['FinishedAt'][:19]}Z with exit code 137"
    assert f"pair1 does not serve: rank 1 on lab-2: the container gb10-pair1-rank1 {died}" in spoken(status.stdout)
    assert served.inspect(1)["State"]["Running"], "the check sends no request that ends the head"  # type: ignore[index]


@pytest.mark.long
def test_a_stopped_pair_is_not_a_fault_and_site_removes_the_mark(served: Lab) -> None:
    stop = served.play("playbooks/stop.yml")
    assert stop.rc == 0, stop.stdout[-4000:]
    status = served.play("playbooks/status.yml")
    assert status.rc == 0, status.stdout[-4000:]
    assert "pair1 is stopped on request since 20" in spoken(status.stdout)
    run = served.play("site.yml", "--tags", "vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    for node in (1, 2):
        assert not served.on(node, "ls /opt/gb10-cluster/vllm_tp2/pair1/stopped 2>/dev/null || true")
