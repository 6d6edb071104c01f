"""The watch over the stub pair on real kernels: it serves again after reboots and a lack of memory, stays stopped after a stop, and leaves nothing.

This module runs after test_serve.py and uses its pair.
"""

from __future__ import annotations

import calendar
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from vm.node_helpers import NODES, docker_answers, until
from vm.serve_helpers import MODEL, TRACES, answer, before, serve, served, state, traces

if TYPE_CHECKING:
    from vm.conftest import VmLab

NOTICED_SECONDS = 10
HOOKED = f"{MODEL}/control/events"
READY = "journalctl -b -u gb10-agent -o short-unix -g 'is ready' | grep -m 1 gb10"
RUNNING = "docker ps --quiet --filter label=gb10.cluster.group=pair1 | wc -l"
# Milliseconds since the start of the node's rank, by its own clock.
AGE = "now=$(date +%s%3N); echo $((now - $(date -d \"$(docker inspect -f '{{.State.StartedAt}}' gb10-pair1-rank{rank})\" +%s%3N)))"
HOG_MIB = 200  # below memory_floor_gib
# 32 MiB a second until less than HOG_MIB is available, and whenever more is.
HOG = f"""
import re, time
held = []
while True:
    if int(re.search(r"MemAvailable: +([0-9]+)", open("/proc/meminfo").read())[1]) > {HOG_MIB} << 10:
        held.append(b"x" * (8 << 20))
    time.sleep(0.25)
"""


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    """Both machines with the stub pair serving."""
    return served(vmlab)


def news(lab: VmLab, since: int, wait: int = 0) -> dict[str, Any]:
    """Return the head's reply with the events after number `since`; without any while it does not answer."""
    done = lab.try_on(1, f"gb10 follow --since {since} --wait {wait}", timeout=wait + 60)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {"events": [], "next": since}


def last(lab: VmLab) -> int:
    """Return the number of the last event."""
    lab.on(1, "sync")
    return int(news(lab, 0)["next"])


def event(lab: VmLab, since: int, kind: str, seconds: float = 300) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Wait for an event of a kind after number `since`; return it, and all events until then."""
    end, found = time.monotonic() + seconds, list[dict[str, Any]]()
    while not any(each["kind"] == kind for each in found):
        assert time.monotonic() < end, f"no event `{kind}` after {seconds:.0f} s: {found}"
        found = news(lab, since, wait=0 if found else 20)["events"]
        time.sleep(1)
    number = next(index for index, each in enumerate(found) if each["kind"] == kind)
    return found[number], found[: number + 1]


def epoch(stamp: str) -> float:
    """Return the time of an event in seconds since the epoch."""
    return float(calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")))


def serves_again(lab: VmLab, since: int, ready: float, within: int = NOTICED_SECONDS) -> dict[str, Any]:
    """Wait until the pair serves again, check what was done, and return the event. `ready` is since when the head can notice the fault, by its clock."""
    done, seen = event(lab, since, "recovered")
    noticed = next(epoch(each["at"]) for each in seen if each["kind"] == "fault" and epoch(each["at"]) >= int(ready)) - ready
    print(f"\nnoticed after {noticed:.0f} s, served after {epoch(done['at']) - ready:.0f} s, {done['seconds']} s without service: {done['text']}")
    assert noticed <= within, seen
    verdicts = [each for each in seen if each["kind"] == "verdict"]
    assert len(verdicts) == 1, seen
    assert "serves" in verdicts[0]["text"]
    worker, head = (int(lab.on(node, AGE.replace("{rank}", str(node - 1)))) for node in (2, 1))
    assert worker > head, "the worker, which was asked first, runs for longer than the head"
    assert answer(lab) == " Paris."
    return done


def ready_at(lab: VmLab, node: int) -> float:
    """Return when the agent of a node was ready in this boot."""
    return float(until(lab, node, READY).split()[0])


def test_pair_serves_again_after_both_nodes_are_rebooted(lab: VmLab) -> None:
    since, restarts = last(lab), state(lab)["watch"]["restarts"].get("reboot", 0)
    lab.reboot(*NODES)
    assert serves_again(lab, since, ready_at(lab, 1))["cause"] == "reboot"
    watch = state(lab)["watch"]
    assert (watch["state"], watch["fault"], watch["restarts"]["reboot"]) == ("serving", {}, restarts + 1)


def test_pair_serves_again_after_the_worker_has_lost_its_power(lab: VmLab) -> None:
    since, begun = last(lab), float(lab.on(1, "date +%s"))
    lab.reboot(2, hard=True)
    serves_again(lab, since, begun, within=20)
    assert "vm-2" in news(lab, since)["events"][0]["text"]


def test_worker_calls_the_hook_while_the_head_is_off(lab: VmLab) -> None:
    since = last(lab)
    for node in NODES:
        lab.on(node, f"rm -f {HOOKED}")
    lab.reboot(1, hard=True, off=45)
    serves_again(lab, since, ready_at(lab, 1))
    worker, head = ([json.loads(line) for line in lab.on(node, f"cat {HOOKED}").splitlines() if line] for node in (2, 1))
    assert [(each["kind"], each["host"]) for each in worker] == [("head_lost", "vm-2"), ("head_back", "vm-2")]
    assert "the head vm-1 has not asked vm-2 for 4" in worker[0]["text"]
    assert {each["kind"] for each in head} == {"fault", "settled", "recovered"}


def test_rank_stops_itself_before_the_memory_is_exhausted(lab: VmLab) -> None:
    since, restarts = last(lab), dict(state(lab)["watch"]["restarts"])
    replies, ended = list[float](), threading.Event()

    def ask() -> None:
        while not ended.wait(2):
            begun = time.monotonic()
            lab.on(2, "true")
            replies.append(time.monotonic() - begun)

    pool = ThreadPoolExecutor(1)
    asking = pool.submit(ask)
    try:
        lab.on(2, f"systemd-run --quiet --collect --unit hog python3 -c '{HOG}'")
        event(lab, since, "fault")
        until(lab, 2, f"test $({RUNNING}) = 0")
        time.sleep(10)
        during = lab.on(2, "systemctl is-active hog; journalctl -k -b -g 'oom-kill|Out of memory' | grep -c kernel; awk '/MemAvail/ {print $2}' /proc/meminfo")
        assert not any("pair1 starts" in each["text"] for each in news(lab, since)["events"]), "no start while the memory is short"
    finally:
        lab.on(2, "systemctl stop hog")
        ended.set()
    asking.result()  # SSH has answered each time
    stopped = time.time()
    assert during.split()[:2] == ["active", "0"], "the hog runs on, and the kernel has killed nothing"
    [fault] = [each for each in news(lab, since)["events"] if each["kind"] == "fault" and each["cause"] == "memory"]  # the peer's end may be read before it
    assert "rank 1 on vm-2" in fault["text"]
    assert "GiB, so the rank has stopped itself" in fault["text"]
    done, _all = event(lab, since, "recovered")
    print(f"\navailable while the hog ran: {int(during.split()[2]) >> 10} MiB; SSH {max(replies):.1f} s at most, {len(replies)} calls; {done['seconds']} s"
          f" without service, served {time.time() - stopped:.0f} s after the hog")  # fmt: skip
    assert done["cause"] == "memory"
    assert state(lab)["watch"]["restarts"] == {**restarts, "memory": restarts.get("memory", 0) + 1}
    assert answer(lab) == " Paris."


def test_pair_that_was_stopped_stays_stopped_after_a_reboot(lab: VmLab) -> None:
    lab.on(1, "gb10 stop")
    since = last(lab)
    lab.reboot(*NODES)
    docker_answers(lab)
    for node in NODES:
        ready_at(lab, node)
    time.sleep(20)
    assert [lab.on(node, RUNNING) for node in NODES] == ["0", "0"]
    assert news(lab, since)["events"] == []
    assert (state(lab)["outcome"]["result"], state(lab)["watch"]["state"]) == ("stopped", "stopped")


def test_absent_leaves_nothing(lab: VmLab) -> None:
    assert {node: bool(found["processes"]) for node, found in traces(lab).items()} == {1: True, 2: True}
    run = serve(lab, variables={"vllm_tp2_state": "absent"})
    assert run.rc == 0, run.stdout[-4000:]
    was, after = before(lab), traces(lab)
    assert {(node, line) for node in NODES for name in TRACES for line in set(after[node][name]) ^ set(was[node][name])} == set()
