"""A served pair that is busy, or stopped on request: status.yml and site.yml report what is true, and restart nothing."""

from __future__ import annotations

import json
import threading

import pytest
from container_lab import BEARER, Lab
from faults import UNWATCHED


@pytest.fixture(scope="module", autouse=True)
def _settled(lab: Lab) -> None:
    """The release of the inventory serves, after any earlier test, and it is not watched."""
    run = lab.play("site.yml", "--tags", "vllm_tp2", variables=UNWATCHED)
    assert run.rc == 0, run.stdout[-4000:]


def spoken(text: str) -> str:
    """Return a run's text without Ansible's line breaks."""
    return " ".join(text.split())


def test_a_busy_pair_is_reported_as_busy_and_left_alone(served: Lab) -> None:
    before = served.identity()
    stop = threading.Event()
    # The engine runs four sequences at once: the request of the check waits behind these.
    body = json.dumps({"model": served.model, "prompt": "The", "max_tokens": 4000, "ignore_eos": True, "temperature": 0})
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
