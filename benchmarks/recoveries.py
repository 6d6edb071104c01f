"""Faults on a served pair that comes back by itself, as data: what is done, how soon it must be noticed. Used by benchmarks/recovery.py."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from acceptance.owner import wait_for
from container_lab import BEARER, NODE, Lab

from benchmarks import agents

RAIL = "enp1s0f0np0"
SERVES = (200, " Paris.")
ENGINE = "'[v]llm serve|[V]LLM::'"
SLACK = 15.0  # seconds that a recovery may take in addition to a plain boot
LONG = '{"model": "lab-tiny", "prompt": "The", "max_tokens": 4000, "ignore_eos": true, "temperature": 0}'


def _on(node: int, line: str) -> Callable[[Lab], float]:
    """Return a fault that is a shell line on a node."""
    return lambda lab: float(lab.on(node, f"{line} >/dev/null; date +%s.%N", timeout=120))


def restart(*nodes: int) -> Callable[[Lab], float]:
    """Return a fault that cuts the power of nodes and starts them; it counts from when the last Docker Engine answers."""

    def act(lab: Lab) -> float:
        names = [f"{NODE}{node}" for node in nodes]
        for word in ("kill", "start"):
            subprocess.run(["docker", word, *names], check=True, capture_output=True, timeout=120)
        up = wait_for(lambda: all(lab.on(node, "docker version >/dev/null 2>&1 && echo up", check=False) for node in nodes), 120, 0.3)
        assert up, f"no Docker Engine answers on {names}"
        return time.time()

    return act


def killed(rank: int) -> Callable[[Lab], float]:
    """Return a fault that kills the first process of a rank's container. After `docker kill` a restart policy would leave it stopped."""
    return _on(rank + 1, f"kill -KILL $(docker inspect --format '{{{{.State.Pid}}}}' gb10-pair1-rank{rank})")


@dataclass(frozen=True)
class Fault:
    """One row: what is done, within how many seconds it must be noticed, and whether a request runs."""

    name: str
    within: float
    act: Callable[[Lab], float]  # returns the time from which the seconds count
    request: bool = False
    after: str = ""  # a shell line on lab-2 that ends the fault 60 s later; the seconds until it serves count from there
    needs_restart: bool = True  # False: a pair that goes on with its containers is as good


FAULTS = {
    "worker": Fault("worker container SIGKILLed", 5, killed(1)),
    "head": Fault("head container SIGKILLed", 5, killed(0)),
    "child": Fault("engine child process of the worker SIGKILLed, no request", 5, _on(2, "pkill -KILL -f '[V]LLM::'")),
    "stopped": Fault("worker rank SIGSTOPped, a request runs", 35, _on(2, f"pkill -STOP -f {ENGINE}"), request=True),
    "stopped-idle": Fault("worker rank SIGSTOPped, idle", 90, _on(2, f"pkill -STOP -f {ENGINE}")),
    "engine": Fault("Docker Engine of the worker restarted", 5, _on(2, "systemctl restart docker")),
    "node": Fault("worker node restarted", 5, restart(2)),
    "head-node": Fault("head node restarted", 5, restart(1)),
    "both": Fault("both nodes restarted", 5, restart(1, 2)),
    "rail": Fault("rail cut for 60 s, then restored", 10, _on(2, f"ip link set {RAIL} down"), after=f"ip link set {RAIL} up", needs_restart=False),
}


@dataclass
class Outcome:
    """What followed a fault: seconds until it was noticed and until the pair served; None where this did not happen in time."""

    noticed: float | None = None
    serves: float | None = None
    restarts: int = 0
    cause: str = ""


def serves_within(lab: Lab, seconds: float) -> bool:
    """Wait until a real completion comes back."""
    return wait_for(lambda: lab.complete() == SERVES, seconds)


def noticed(lab: Lab, since: int, seconds: float) -> dict[str, Any]:
    """Wait for the event of a fault after event number `since`; return it with the time when it was `seen`, empty if there is none."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(ValueError, subprocess.TimeoutExpired):
            reply = json.loads(lab.on(1, f"gb10 follow --since {since} --wait 5 2>/dev/null", check=False) or "{}")
            for event in reply.get("events", []):
                since = max(since, int(event["n"]))
                if event["kind"] == "fault":
                    return {**event, "seen": time.time()}
        time.sleep(0.2)
    return {}


def long_request(lab: Lab) -> None:
    """Start a request of 4,000 tokens in the background, and wait until it is decoded."""
    line = f"curl -s -m 300 -o /dev/null {BEARER} -H 'Content-Type: application/json' -d '{LONG}' http://127.0.0.1:8000/v1/completions"
    threading.Thread(target=lambda: lab.on(1, line, check=False, timeout=330), daemon=True).start()
    running = "curl -s -m 5 http://127.0.0.1:8000/metrics | grep -q '^vllm:num_requests_running.* [1-9]' && echo yes"
    assert wait_for(lambda: bool(lab.on(1, running, check=False)), 30), "the request does not run"
    time.sleep(1)


def done(lab: Lab, fault: Fault, limit: float = 300) -> Outcome:
    """Do a fault to the served pair, and wait until the pair serves again without help."""
    out, number = Outcome(), agents.last_event(lab)
    if fault.request:
        long_request(lab)
    at = fault.act(lab)
    event = noticed(lab, number, 60 if fault.after else limit)
    if event:
        out.noticed, out.cause = max(0.0, event["seen"] - at), str(event.get("cause"))
    if fault.after:
        time.sleep(max(0.0, at + 60 - time.time()))
        lab.on(2, fault.after)
        at += 60
    if (event or not fault.needs_restart) and serves_within(lab, limit):
        out.serves = max(0.0, time.time() - at)
    # A pair that serves at once may still be restarted for what the watch has seen.
    wait_for(lambda: agents.settled(lab), 180, 1)
    out.restarts = len(agents.starts(lab, number))
    return out


def plain_boot(lab: Lab) -> float:
    """Stop the pair and start it as a user does; return the seconds from the start to the first completion."""
    lab.on(1, "gb10 stop", timeout=180)
    start = time.monotonic()
    lab.on(1, "gb10 start --no-wait")
    assert serves_within(lab, 300), "a plain start does not serve"
    seconds = time.monotonic() - start
    assert wait_for(lambda: agents.settled(lab), 60), "a plain start is not settled"
    return seconds
