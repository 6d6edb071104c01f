"""Faults of a pair that serves on two GPUs: what its owner sees of them by requests."""

import json
import threading
import time
from dataclasses import dataclass

import pytest
from acceptance.owner import SERVES, wait_for
from gpu.pair import GPU, Logs, Pair, Row

RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")
#: The packets of the engines are lost; SSH goes on over the same rails.
DROP = "; ".join(f"iptables -A INPUT -i {rail} -p tcp --{way} 22 -j ACCEPT" for rail in RAILS for way in ("dport", "sport"))
DROP += "".join(f"; iptables -A INPUT -i {rail} -j DROP" for rail in RAILS)
PASS = "iptables -F INPUT"
STOP = "for p in $(docker top gb10-pair1-rank1 -eo pid | tail -n +2); do kill -STOP $p; done"
KILL = "kill -KILL $(docker inspect --format '{{.State.Pid}}' gb10-pair1-rank1)"


@dataclass(frozen=True)
class Fault:
    """One row. `act` is done on the worker; packets are dropped on both nodes until an event of kind `until`, or for so many seconds."""

    name: str
    act: str
    causes: tuple[str, ...]  # any of these is right
    busy: bool = True
    until: str | float = "desired"
    restarts: bool | None = True  # None: TCP may send again before or after the watch has decided


FAULTS = [
    Fault("killed while busy", KILL, ("rank_dead",)),
    Fault("wedge while busy, packets dropped", DROP, ("wedge",)),
    Fault("wedge while idle, packets dropped", DROP, ("idle_wedge", "wedge", "engine_failed"), busy=False),
    Fault("stopped while busy", STOP, ("rank_stopped",)),
    Fault("packets lost for 20 s", DROP, (), until=20.0, restarts=None),
    Fault("stopped while idle", STOP, ("rank_stopped",), busy=False),
    Fault("killed while idle", KILL, ("rank_dead",), busy=False),
]


def ask_long(pair: Pair, row: Row) -> None:
    """Let a long request run, and record its status and its seconds."""
    body = json.dumps({"model": pair.model, "prompt": "The", "max_tokens": 30000 if GPU else 4000, "ignore_eos": True, "temperature": 0})
    headers = f"-H 'Authorization: Bearer {pair.key()}' -H 'Content-Type: application/json'"
    line = f"curl -s -m 300 -o /dev/null -w '%{{http_code}} %{{time_total}}' {headers} -d '{body}' http://127.0.0.1:8000/v1/completions"
    threading.Thread(target=lambda: row.facts.update({"long request": pair.on(1, line, check=False, timeout=330)}), daemon=True).start()
    time.sleep(4)


def watch(pair: Pair, row: Row, fault: Fault, since: int) -> float | None:
    """Do a fault, and ask until the pair serves again; record who has noticed what, and when. Return after how many seconds it serves."""
    at, seen, dropped = time.time(), set[str](), fault.act == DROP
    down, back = None if fault.busy else 0.0, None
    for node in pair.nodes if dropped else (2,):
        pair.on(node, fault.act)
    while (passed := round(time.time() - at, 1)) < 240 and not (back and not dropped and pair.settled()):
        for event in pair.follow(since)["events"]:
            if event["kind"] == "fault" and "fault" not in seen:
                row.facts |= {"noticed": passed, "class": event["cause"], "sentence": event["text"], "gpu": pair.smi("power.draw,utilization.gpu")}
            seen.add(event["kind"])
        if dropped and (passed > fault.until if isinstance(fault.until, float) else fault.until in seen):
            dropped = not [pair.on(node, PASS) for node in pair.nodes]
        if fault.busy or "fault" in seen:  # a request to an idle pair would show the fault: its watch has to notice it
            answers = pair.complete(seconds=3) == SERVES
            down = passed if down is None and not answers else down
            back = round(time.time() - at, 1) if back is None and answers and down is not None else back
        time.sleep(0.3)
    row.facts |= {"down": down, "back": back}
    return back


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_served(served: Pair, row: Row, fault: Fault) -> None:
    since, before, logs = served.follow()["next"], served.identity(), Logs(served, now=True)
    if fault.busy:
        ask_long(served, row)
    try:
        back = watch(served, row, fault, since)
    finally:
        for node in served.nodes:
            served.on(node, PASS)
        logs.keep(row)
    events = served.follow(since)["events"]
    row.facts |= {"starts": sum(" starts release " in event["text"] for event in events), "seconds": row.facts.get("noticed")}
    row.facts["ends"] = [event["text"] for event in events if event["kind"] in ("recovered", "settled")]
    assert back is not None, served.on_node("events")
    assert wait_for(served.settled, 60)
    assert (served.identity() != before) == bool(row.facts["starts"]), events
    assert fault.restarts in (None, bool(row.facts["starts"])), events
    assert not fault.causes or row.facts["class"] in fault.causes, row.facts
