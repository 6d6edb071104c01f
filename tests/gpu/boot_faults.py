"""Faults of a boot on two GPUs, as data: what is done, and what its owner must see."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from acceptance.owner import wait_for
from gpu.pair import ONE_ATTEMPT, ONLY_SERVING, SHARED, Logs, Pair, Row

#: Classes that the log of a rank does not show.
NOT_IN_LOGS = {"killed", "node_lost", "ranks_disagree", "start_failed"}
#: A neighbour on the GPU of a node, in a container of the release: it takes a share of the free memory, some times, once /tmp/go is there.
HOG = """import os, time, torch
held = [torch.zeros(1, device="cuda")]
print("here", flush=True)
while not os.path.exists("/tmp/go"): time.sleep(0.02)
for _ in range(TIMES): held.append(torch.empty(int(torch.cuda.mem_get_info()[0] * SHARE), dtype=torch.uint8, device="cuda"))
print("holds", flush=True)
time.sleep(600)"""


def hog(share: float, times: int = 0) -> str:
    """Return the shell line that starts the neighbour, and waits until it is there (`times`: how often it will take the share), or has taken it once."""
    words = "run --rm --detach --no-deps --no-TTY --name hog --label gb10.cluster.group= --entrypoint python3 vllm -c"
    script = HOG.replace("SHARE", str(share)).replace("TIMES", str(times or 1))
    wait = "until docker logs hog 2>&1 | grep -q {}; do docker inspect hog >/dev/null || exit 1; sleep 0.2; done"
    start = f"docker compose -p hog -f /opt/gb10-cluster/vllm_tp2/pair1/current/compose.yaml {words} '{script}' >/dev/null && {wait.format('here')}"
    return start if times else f"{start} && docker exec hog touch /tmp/go && {wait.format('holds')}"


@dataclass(frozen=True)
class Fault:
    """One row. Its shell lines run on `node`, as root; `act` runs once the log of the node's rank shows `phase`."""

    name: str
    classes: tuple[str, ...]  # any of these is right; none: the run refuses to start
    rank: int | None = None  # who the sentence must name; None: any
    settings: dict[str, Any] = field(default_factory=dict)
    node: int = 2
    before: str = "true"
    phase: str = ""
    act: str = ""
    until: str = "$never"  # what the log of that rank must not show: the fault came in its phase
    after: str = "true"
    words: tuple[str, ...] = ()
    own_gpu: bool = False  # it needs a GPU for each node


def killed(node: int, where: str, phase: str, until: str, **settings: Any) -> Fault:
    """Return the row of a rank that is killed in a phase of its boot."""
    line = f"kill -KILL $(docker inspect --format '{{{{.State.Pid}}}}' gb10-pair1-rank{node - 1})"
    return Fault(f"{('head', 'worker')[node - 1]} killed in {where}", ("killed",), node - 1, settings, node, phase=phase, act=line, until=until)


def boots(*faults: Fault) -> Callable[..., None]:
    """Return the test of some faults."""

    @pytest.mark.parametrize("fault", faults, ids=lambda fault: fault.name)
    def test_boot(known: Pair, row: Row, fault: Fault) -> None:
        """Start the pair with a fault, and check what its owner sees, and that no half of a pair is left."""
        if fault.own_gpu and SHARED:
            pytest.skip("both nodes share one GPU")
        if not known.gone():
            known.on_node("stop").passed()
        since, logs, at, over, verdict = known.follow()["next"], Logs(known), 0.0, False, dict[str, Any]()
        try:
            known.on(fault.node, fault.before, timeout=120)
            run = known.begin("bring up", *ONLY_SERVING, **{**ONE_ATTEMPT, **fault.settings})
            while not over and not verdict:
                over = run.process.poll() is not None
                if fault.act and not at and not over:
                    if re.search(fault.phase, logs.text(fault.node - 1)):
                        at = time.time()
                        known.on(fault.node, fault.act, check=False)
                else:
                    verdict = next(({**event, "seen": time.time()} for event in known.follow(since)["events"] if event["kind"] == "verdict"), {})
                time.sleep(0.05)
            screen = run.screen()
        finally:
            known.on(fault.node, fault.after, check=False)
            text = str(verdict.get("text") or "")
            found = re.search(r"^\S+: (?:rank (\d) on (\S+): )?(\w+): .*Remedy: ", text, re.DOTALL)
            logs.keep(row, () if NOT_IN_LOGS.intersection(fault.classes) else fault.classes, int(found[1]) if found and found[1] else None)
        text = text or screen.flat[screen.flat.find("ERROR") :]
        row.facts |= {"sentence": text, "run": round(screen.seconds, 1), "class": found[3] if found else "refused"}
        if verdict:
            seconds = verdict["seen"] - at if at else float(verdict["seconds"])
            row.facts |= {"seconds": round(seconds, 1), "from": "fault" if at else "start of the boot", "rank": found and found[1], "host": found and found[2]}
        screen.failed(*fault.words)
        assert bool(at) == bool(fault.act), "the fault was not done"
        assert row.facts["class"] in (fault.classes or ("refused",)), text
        assert fault.rank is None or (row.facts["rank"], row.facts["host"]) == (str(fault.rank), f"lab-{fault.rank + 1}"), text
        assert not re.search(fault.until, logs.text(fault.node - 1)), f"the rank was past {fault.until}"
        assert row.facts["class"] == "node_lost" or wait_for(known.gone, 30), "a half of the pair is left"  # what cannot be reached cannot be stopped

    return test_boot
